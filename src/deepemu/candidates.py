"""Structures that can be trained: one-layer processes and deep networks, each with its own way."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from deepemu import _boundary, training
from deepemu.core.network import Network, Params
from deepemu.folds import HeldOut, pack
from deepemu.layers import INTERPOLATES
from deepemu.training import Plan, Trained
from deepemu.validation import Replicates

# Hidden layers start as copies of the inputs. Parameters that are fitted to those, before the
# layers have taken a shape that explains the outputs, can lead a chain to where the outputs are
# noise about something smooth, and it stays there: one in six single chains on a step function.
SWEEPS_BEFORE_FIRST_M_STEP = 50
# Of the iterations of a fit, those that an update runs: the chains start where they were.
SHARE_OF_UPDATE = 0.2


@dataclass(frozen=True)
class Shallow:
    """A Gaussian process: one layer, whose parameters climb to the best of several maxima."""

    label: str
    network: Network
    start: Params
    n_folds: int

    def train(self, seed: int, sites: Replicates, show_progress: bool) -> Trained:
        """From scratch."""
        (start,) = self.start
        return training.train_single_layer(self.network, sites, start, seed, self.n_folds)

    def go_on(
        self, seed: int, before: Trained, sites: Replicates, n_old: int, show_progress: bool
    ) -> Trained:
        """From where training over the first ``n_old`` sites ended."""
        (start,) = before.chains[0].params
        trained = training.train_single_layer(self.network, sites, start, seed, n_folds=0)
        return dataclasses.replace(trained, held_out=_with_new_sites(before, sites.x[n_old:]))


@dataclass(frozen=True)
class Deep:
    """A deep Gaussian process, trained by several chains."""

    label: str
    network: Network
    start: Params
    plan: Plan
    n_chains: int

    def train(self, seed: int, sites: Replicates, show_progress: bool) -> Trained:
        latents = training.starting_latents(self.network, sites.x, _boundary.bucket(len(sites.x)))
        chains = training.start_chains(self.plan, self.start, latents, self.n_chains)
        return training.train(
            seed, self.network, self.plan, chains, sites, show_progress,
            SWEEPS_BEFORE_FIRST_M_STEP, self.label,
        )  # fmt: skip

    def go_on(
        self, seed: int, before: Trained, sites: Replicates, n_old: int, show_progress: bool
    ) -> Trained:
        """All chains have all sites from the start: what they say of new ones, they say before."""
        ensemble, n_new = before.ensemble, len(sites.x) - n_old
        held_out = _with_new_sites(before, sites.x[n_old:])
        chains = _boundary.extend_chains(
            self.network, before.chains, ensemble.data, pack(sites), n_old, n_new
        )
        n_iter = max(int(SHARE_OF_UPDATE * self.plan.n_iter), 1)
        plan = dataclasses.replace(self.plan, n_iter=n_iter, n_folds=0)
        trained = training.train(
            seed, self.network, plan, chains, sites, show_progress, 0, self.label
        )
        return dataclasses.replace(trained, held_out=held_out)


Candidate = Shallow | Deep


def is_noisy(candidate: Candidate) -> bool:
    """Whether outputs scatter about the emulated function, so that replicates differ."""
    # A nugget that interpolates comes back from its logarithm with an error in the last digit.
    given = np.exp(np.max(candidate.start[-1].log_nugget)) > INTERPOLATES * (1.0 + 1e-9)
    return candidate.network.layers[-1].free_nugget or bool(given)


def _with_new_sites(before: Trained, x: np.ndarray) -> HeldOut | None:
    """Predictions of sites that no chain has seen yet, behind those of the sites so far."""
    held_out = before.held_out
    if held_out is None or not len(x):
        return held_out
    voices = [(before.ensemble, chain) for chain in range(len(before.chains))]
    moments = _boundary.joined([held_out.moments, _boundary.predict_chains(voices, x)], axis=1)
    unseen = np.ones((len(voices), len(x)), bool)
    return HeldOut(moments, np.concatenate([held_out.unseen, unseen], axis=1))
