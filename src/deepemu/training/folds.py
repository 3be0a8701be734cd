"""Held-out sites: each chain is trained without some, and predicts them.

Chains take turns: chain k is trained without the sites of fold k mod F. Neither its parameters nor
its hidden layers depend on the outputs that it then predicts. (Removing a site from a trained chain
is not enough: hidden layers mix so slowly that the scores stay optimistic for hundreds of sweeps.)
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from deepemu.core.distributions import Gaussian
from deepemu.core.inference import sem
from deepemu.core.model.network import Network
from deepemu.data.sites import SiteData, pack_without
from deepemu.ensembles import assembly
from deepemu.ensembles.prediction import chain_latents, chains_of
from deepemu.runtime import padding, trees
from deepemu.runtime.interrupt import Interrupt
from deepemu.training import imputations
from deepemu.training.keeper import Keeper
from deepemu.training.plan import Plan

# The chains are at their last state of training, but with averaged parameters.
SWEEPS_BEFORE, SWEEPS_APART, N_IMPUTATIONS = 10, 5, 5
T = TypeVar("T")
Fold = tuple[np.ndarray, list[int]]
"""A mask of sites, and the chains that hold them out."""


@dataclass(frozen=True)
class HeldOut:
    """Moments (chains, places, sites, P) of the last layer's nodes at sites that chains held out.

    The first ``n_imputations`` (chains, sites) places hold a prediction each, by one of the chain's
    imputed networks; none where the chain did not hold out the site. Other moments are zero.
    """

    latents: Gaussian
    n_imputations: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        """Which sites (chains, sites) each chain held out."""
        return self.n_imputations > 0

    @property
    def shares(self) -> np.ndarray:
        """The share (chains, places, sites) of each prediction among those of its chain."""
        places = np.arange(self.latents.mean.shape[1])[None, :, None]
        n_kept = self.n_imputations[:, None]
        return (places < n_kept) / np.maximum(n_kept, 1)


def held_out_sites(seed: int, n_sites: int, n_chains: int, n_folds: int) -> np.ndarray:
    """The sites (chains, sites) that each chain holds out: fold k mod F for chain k.

    Folds are drawn at random, and their sizes differ by one at most.
    """
    n_folds = min(n_folds, n_sites)
    fold = np.random.default_rng(seed).permutation(np.arange(n_sites) % n_folds)
    return np.arange(n_chains)[:, None] % n_folds == fold[None, :]


def gathered(tree: T, rows: np.ndarray, size: int) -> T:
    """Some of the rows of arrays, followed by padding up to ``size``."""
    return jax.tree.map(lambda of: padding.pad_rows(np.asarray(of)[rows], size), tree)


def scattered(tree: T, rows: np.ndarray, size: int) -> T:
    """Arrays of ``size`` rows that are zero but for those that were gathered."""

    def of_all(part: Any) -> np.ndarray:
        nothing = np.zeros((size, *part.shape[1:]), part.dtype)
        return trees.put_at(rows)(nothing, np.asarray(part)[: len(rows)])

    return jax.tree.map(of_all, tree)


def hold_out(
    seed: int,
    network: Network,
    plan: Plan,
    chains: list[sem.Chain],
    sites: SiteData,
    mask: np.ndarray,
    keeper: Keeper,
) -> tuple[list[sem.Chain], HeldOut]:
    """Each chain's predictions of its held-out sites, given by a mask (chains, sites).

    The chains advance by the sweeps before these imputations.
    """
    n_chains, n_sites = mask.shape
    mean, var = np.zeros((2, n_chains, N_IMPUTATIONS, n_sites, network.layers[-1].width))
    folds = _by_fold(mask)
    of_folds = [pack_without(sites, held_out) for held_out, _ in folds]
    data = {k: each for each, (_, of) in zip(of_folds, folds, strict=True) for k in of}
    kept, chains = imputations.keep(
        functools.partial(_keys, seed, folds), network, plan, _sweeps_of(plan), chains,
        [data[k] for k in range(n_chains)], lambda _: None, Interrupt(), keeper, "held out",
    )  # fmt: skip
    for of_sites, (held_out, members) in zip(of_folds, folds, strict=True):
        of_fold, shares = trees.row(kept, np.array(members)), plan.m_step.shares_parameters
        imputed = assembly.imputed_of(network, of_sites, of_fold, shares)
        found = chain_latents(chains_of(imputed), sites.x[held_out])
        for k, mean_k, var_k in zip(members, found.mean, found.var, strict=True):
            mean[k][:, held_out], var[k][:, held_out] = mean_k, var_k
    return chains, HeldOut(Gaussian(mean, var), N_IMPUTATIONS * mask)


def _keys(seed: int, folds: Sequence[Fold], index: int) -> np.ndarray:
    """Keys of all chains before the imputation ``index``: those of a fold have a stream."""
    chains = [k for _, members in folds for k in members]
    keys = [
        padding.keys(len(members), seed, padding.FOLD_STREAM, fold, index)
        for fold, (_, members) in enumerate(folds)
    ]
    return np.concatenate(keys)[np.argsort(chains)]


def _sweeps_of(plan: Plan) -> tuple[int, ...]:
    """Sweeps before each of the imputations."""
    few = dataclasses.replace(plan, n_imputations=N_IMPUTATIONS)
    return few.kept if plan.is_guided else (SWEEPS_BEFORE, *[SWEEPS_APART] * (N_IMPUTATIONS - 1))


def _by_fold(mask: np.ndarray) -> list[Fold]:
    """Each fold as a mask of sites, with the chains that held it out."""
    chains: dict[bytes, list[int]] = {}
    for k, held_out in enumerate(mask):
        chains.setdefault(held_out.tobytes(), []).append(k)
    return [(mask[members[0]], members) for members in chains.values()]


def one_chain(parts: Sequence[Gaussian], mask: np.ndarray) -> HeldOut:
    """Predictions (1, 1, m, P) of all folds in turn, as those of one chain that held out every
    site."""
    order = np.argsort(np.concatenate([np.flatnonzero(held_out) for held_out in mask]))
    latents = jax.tree.map(lambda each: each[:, :, order], trees.joined(parts, axis=2))
    return HeldOut(latents, np.ones((1, len(order)), int))


def with_new_sites(held_out: HeldOut, new: Gaussian) -> HeldOut:
    """Followed by predictions (chains, imputations, m, P) of sites that no chain has yet."""
    n_chains, n_imputations, n_new = new.mean.shape[:3]
    n_places = max(held_out.latents.mean.shape[1], n_imputations)
    parts = [_with_places(each, n_places) for each in (held_out.latents, new)]
    added = np.full((n_chains, n_new), n_imputations)
    counts = np.concatenate([held_out.n_imputations, added], axis=1)
    return HeldOut(trees.joined(parts, axis=2), counts)


def join(given: Sequence[HeldOut]) -> HeldOut:
    """Chains of several structures, one after the other."""
    n_places = max(each.latents.mean.shape[1] for each in given)
    latents = trees.joined([_with_places(each.latents, n_places) for each in given])
    return HeldOut(latents, np.concatenate([each.n_imputations for each in given]))


def _with_places(latents: Gaussian, n_places: int) -> Gaussian:
    """Moments with places of zeros behind the predictions."""
    more = (0, 0), (0, n_places - latents.mean.shape[1]), (0, 0), (0, 0)
    return jax.tree.map(lambda each: np.pad(each, more), latents)
