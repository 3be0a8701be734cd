"""Structures that can be trained: one-layer processes and deep networks, each with its own way."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepemu.core.inference import sem
from deepemu.core.model.network import Network, Params
from deepemu.data.checks import is_real
from deepemu.data.sites import Replicates, pack
from deepemu.ensembles import prediction
from deepemu.runtime import padding, trees
from deepemu.training import growth, plain
from deepemu.training.chains import Trained, train
from deepemu.training.folds import HeldOut
from deepemu.training.layers import ESTIMATE, INTERPOLATES, Layer, build_network
from deepemu.training.plan import N_FOLDS, Plan
from deepemu.training.start import start_chains, starting_latents, starting_params

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
        return plain.train_single_layer(self.network, sites, start, seed, self.n_folds)

    def go_on(
        self, seed: int, before: Trained, sites: Replicates, n_old: int, show_progress: bool
    ) -> Trained:
        """From where training over the first ``n_old`` sites ended."""
        (start,) = before.chains[0].params
        trained = plain.train_single_layer(self.network, sites, start, seed, n_folds=0)
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
        latents = starting_latents(self.network, sites.x, padding.bucket(len(sites.x)))
        chains = start_chains(self.plan, self.start, latents, self.n_chains)
        return train(
            seed, self.network, self.plan, chains, sites, show_progress,
            SWEEPS_BEFORE_FIRST_M_STEP, self.label,
        )  # fmt: skip

    def go_on(
        self, seed: int, before: Trained, sites: Replicates, n_old: int, show_progress: bool
    ) -> Trained:
        """All chains have all sites from the start: what they say of new ones, they say before."""
        ensemble, n_new = before.ensemble, len(sites.x) - n_old
        held_out = _with_new_sites(before, sites.x[n_old:])
        chains = growth.extend_chains(
            self.network, before.chains, ensemble.data, pack(sites), n_old, n_new
        )
        n_iter = max(int(SHARE_OF_UPDATE * self.plan.n_iter), 1)
        plan = dataclasses.replace(self.plan, n_iter=n_iter, n_folds=0)
        trained = train(seed, self.network, plan, chains, sites, show_progress, 0, self.label)
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
    moments = trees.joined([held_out.moments, prediction.predict_chains(voices, x)], axis=1)
    unseen = np.ones((len(voices), len(x)), bool)
    return HeldOut(moments, np.concatenate([held_out.unseen, unseen], axis=1))


STARTING_NUGGET = 1e-3
KERNELS = ("matern52", "squared_exponential")
# Of the plain processes beside a deep one, where nuggets are there for the arithmetic only.
NUGGET_OF_ONE_LAYER = 1e-8


def shallow(layer: Layer, n_inputs: int, n_outputs: int, n_folds: int) -> Shallow:
    network = build_network([layer], n_inputs, n_outputs)
    start = starting_params_of(network, [layer])
    return Shallow(f"GP, {kernels_in_words([layer])}", network, start, n_folds)


def companions(nugget: float | str, n_inputs: int, n_outputs: int) -> list[Shallow]:
    """Plain Gaussian processes with the noise model of a deep network.

    A nugget that only interpolates is there for the equations of several layers. A very smooth
    function has a process variance of some hundred times that of the outputs, and errors so small
    that a millionth of it shows; one layer does with less.
    """
    if is_real(nugget) and nugget <= INTERPOLATES:
        nugget = NUGGET_OF_ONE_LAYER
    layers = [Layer(kernel=k, prior="reference", nugget=nugget) for k in KERNELS]
    return [shallow(layer, n_inputs, n_outputs, N_FOLDS) for layer in layers]


def layers_in_words(depth: int) -> str:
    return "1 layer" if depth == 1 else f"{depth} layers"


def kernels_in_words(layers: Sequence[Layer]) -> str:
    return " / ".join(dict.fromkeys(words(layer.kernel) for layer in layers))


def words(kernel: str) -> str:
    return kernel.replace("_", " ")


def starting_params_of(network: Network, layers: Sequence[Layer]) -> Params:
    scales = [float(layer.scale) if is_real(layer.scale) else 1.0 for layer in layers]
    nuggets = [
        STARTING_NUGGET if layer.nugget == ESTIMATE else float(layer.nugget) for layer in layers
    ]
    return starting_params(network, scales, nuggets)


def trace_in_words(trace: sem.Trace) -> dict[str, Any]:
    """Paths on the natural scale: for each layer an array (chains, iterations, nodes, …)."""
    return {
        "lengthscale": [np.exp(layer.log_lengthscale) for layer in trace.params],
        "scale": [np.exp(layer.log_scale) for layer in trace.params],
        "nugget": [np.exp(layer.log_nugget) for layer in trace.params],
        "log_density": np.asarray(trace.log_density),
    }
