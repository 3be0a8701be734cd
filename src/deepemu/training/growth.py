"""Chains whose data grow: latents of new rows start at their conditional means."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from deepemu.core.ensemble import conditional_mean
from deepemu.core.inference import sem
from deepemu.core.model.network import Data, Latents, Network
from deepemu.ensembles.assembly import networks_of
from deepemu.runtime.padding import bucket, pad_rows
from deepemu.runtime.programs import compiled
from deepemu.runtime.trees import put_at, to_numpy


def extend_chains(
    network: Network, chains: Sequence[sem.Chain], data: Data, grown: Data, n_old: int, n_new: int
) -> list[sem.Chain]:
    """Chains over the grown data: latents are kept at old rows, and start at their conditional
    mean given the present imputation at new ones."""
    if not network.n_imputed:
        return list(chains)
    size = grown.x.shape[0]
    new = slice(n_old, n_old + n_new)
    means = _conditional_means(
        network, chains, [data] * len(chains), [np.asarray(grown.x)[new]] * len(chains)
    )
    grow = lambda old, new: pad_rows(np.concatenate([old[:n_old], new]), size)  # noqa: E731
    return [
        with_latents(chain, jax.tree.map(grow, to_numpy(chain.imputation.latents), mean))
        for chain, mean in zip(chains, means, strict=True)
    ]


def fill_in(
    network: Network,
    chains: Sequence[sem.Chain],
    data: Sequence[Data],
    x: np.ndarray,
    held_out: np.ndarray,
) -> list[sem.Chain]:
    """Chains whose rows ``held_out`` (chains, n) start at their conditional mean given the others.

    x (n, d) are the inputs of all rows.
    """
    rows = [np.flatnonzero(of_chain) for of_chain in held_out]
    means = _conditional_means(network, chains, data, [x[of_chain] for of_chain in rows])
    return [
        with_latents(chain, jax.tree.map(put_at(at), to_numpy(chain.imputation.latents), mean))
        for chain, mean, at in zip(chains, means, rows, strict=True)
    ]


def _conditional_means(
    network: Network, chains: Sequence[sem.Chain], data: Sequence[Data], at: Sequence[np.ndarray]
) -> list[Latents]:
    """Hidden layers of each chain at its inputs ``at``, given its present imputation.

    Inputs are padded to one bucket, so that one program serves all chains.
    """
    size = bucket(max(1, *(len(rows) for rows in at)))
    program = compiled(conditional_mean, ("network",))
    means = [
        program(network, params, member, of_chain, pad_rows(rows, size))
        for (params, member), of_chain, rows in zip(
            networks_of(network, chains, data), data, at, strict=True
        )
    ]
    cut = lambda mean, n: jax.tree.map(lambda values: np.asarray(values)[:n], mean)  # noqa: E731
    return [cut(mean, len(rows)) for mean, rows in zip(means, at, strict=True)]


def with_latents(chain: sem.Chain, latents: Latents) -> sem.Chain:
    guide = chain.imputation.guide
    if guide is not None:
        guide = dataclasses.replace(guide, reference=latents)
    moved = dataclasses.replace(chain.imputation, latents=latents, guide=guide)
    return dataclasses.replace(chain, imputation=moved)
