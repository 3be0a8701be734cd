"""Sites that chains are trained without, and predict.

Chains take turns: chain k is trained without the sites of fold k mod F, which become padding, so
that nothing is compiled for them. Neither its parameters nor its hidden layers have seen what it
then predicts. (To take a row out of a chain that has seen it does not do: hidden layers forget so
slowly that its score stays far too kind for hundreds of sweeps.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from deepemu.core.distributions import Gaussian
from deepemu.core.inference import sem
from deepemu.core.model.network import Network
from deepemu.data.sites import Replicates, pack_without
from deepemu.ensembles import prediction
from deepemu.runtime import padding, trees
from deepemu.runtime.interrupt import Interrupt
from deepemu.training import growth, imputations
from deepemu.training.plan import Keep, Sampling

# The chains stand where training left them, but with averaged parameters.
SWEEPS_BEFORE, SWEEPS_APART, N_IMPUTATIONS = 10, 5, 5


@dataclass(frozen=True)
class HeldOut:
    """Moments (chains, sites, q) of one new run at sites that a chain had not seen.

    ``unseen`` (chains, sites) says which those are; elsewhere the moments are zero.
    """

    moments: Gaussian
    unseen: np.ndarray


def left_out(seed: int, n_sites: int, n_chains: int, n_folds: int) -> np.ndarray:
    """The sites (chains, sites) that each chain does without: fold k mod F for chain k.

    Folds are drawn at random, and their sizes differ by one at most.
    """
    n_folds = min(n_folds, n_sites)
    fold = np.random.default_rng(seed).permutation(np.arange(n_sites) % n_folds)
    return np.arange(n_chains)[:, None] % n_folds == fold[None, :]


def forget(chain: sem.Chain, rows: np.ndarray) -> sem.Chain:
    """The chain with zeros for the hidden variables of some sites, as padding has."""
    put = trees.put_at(np.flatnonzero(rows))
    latents = jax.tree.map(lambda latent: put(latent, 0.0), chain.imputation.latents)
    return growth.with_latents(chain, latents)


def hold_out(
    seed: int,
    network: Network,
    sampling: Sampling,
    chains: list[sem.Chain],
    sites: Replicates,
    rows: np.ndarray,
) -> tuple[list[sem.Chain], HeldOut]:
    """Each chain's predictions of the ``rows`` (chains, sites) that it does without.

    Chains are sampled a little further meanwhile, as ``sampling`` says.
    """
    chains, mean, var = list(chains), *np.zeros((2, len(chains), *sites.y.shape))
    for fold, (left_out, members) in enumerate(_by_fold(rows)):
        kept = Keep(
            (SWEEPS_BEFORE, *[SWEEPS_APART] * (N_IMPUTATIONS - 1)), (padding.FOLD_STREAM, fold)
        )
        ensemble, ends = imputations.keep(
            seed, network, sampling, kept, [chains[k] for k in members],
            pack_without(sites, left_out), lambda _: None, Interrupt(),
        )  # fmt: skip
        found = prediction.predict_chains(
            [(ensemble, k) for k in range(len(ends))], sites.x[left_out]
        )
        for k, end, mean_k, var_k in zip(members, ends, found.mean, found.var, strict=True):
            chains[k], mean[k, left_out], var[k, left_out] = end, mean_k, var_k
    return chains, HeldOut(Gaussian(mean, var), rows)


def _by_fold(rows: np.ndarray) -> list[tuple[np.ndarray, list[int]]]:
    """Folds, as rows that are left out, with the chains that do without each."""
    chains: dict[bytes, list[int]] = {}
    for k, left_out in enumerate(rows):
        chains.setdefault(left_out.tobytes(), []).append(k)
    return [(rows[members[0]], members) for members in chains.values()]


def one_row(parts: Sequence[Gaussian], rows: np.ndarray) -> HeldOut:
    """Predictions (1, m, q) of each fold in turn as those of a single chain that saw none of it."""
    order = np.argsort(np.concatenate([np.flatnonzero(left_out) for left_out in rows]))
    moments = jax.tree.map(lambda each: each[:, order], trees.joined(parts, axis=1))
    return HeldOut(moments, np.ones((1, len(order)), bool))
