"""Imputed networks on the host: from chains, or from the latents that a file holds."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from deepemu.core import extend
from deepemu.core.ensemble import Imputed, Member, build_member, conditioned
from deepemu.core.inference import sem
from deepemu.core.model.network import Data, Latents, Network, Params
from deepemu.errors import NOT_POSITIVE_DEFINITE, NumericalError
from deepemu.runtime.programs import compiled, in_order
from deepemu.runtime.trees import Shelf, row, stack, to_numpy

Kept = tuple[Params, Member]
"""An imputed network and its parameters."""


def networks_of(network: Network, chains: Sequence[sem.Chain], data: Sequence[Data]) -> list[Kept]:
    """The imputed network that each chain holds now."""
    given = [(chain.params, chain.imputation.latents) for chain in chains]
    return list(
        zip([params for params, _ in given], build_members(network, given, data), strict=True)
    )


def build_members(
    network: Network, given: Sequence[tuple[Params, Latents]], data: Sequence[Data]
) -> list[Member]:
    program = compiled(build_member, ("network",))
    return in_order(
        functools.partial(program, network, *one, of_chain)
        for one, of_chain in zip(given, data, strict=True)
    )


def as_they_are(network: Network, data: Data, chains: Sequence[sem.Chain]) -> Imputed:
    """One imputed network per chain, from its present state."""
    kept: Shelf[Kept] = Shelf(len(chains), 1)
    kept.put(networks_of(network, chains, [data] * len(chains)))
    return imputed_of(network, data, kept.stacked(), True)


def imputed_of(network: Network, data: Data, kept: Kept, shares_parameters: bool) -> Imputed:
    """The kept networks of all chains, stacked; one set of parameters per chain, if imputations
    share it."""
    params, members = kept
    if shares_parameters:
        params = jax.tree.map(lambda each: each[:, :1], params)
    return assemble(network, data, params, members)


def assemble(network: Network, data: Data, params: Params, members: Member) -> Imputed:
    """Imputed networks with the conditioned first layer that members of equal parameters share."""
    jax.tree.map(require_finite, members.alphas)
    return to_numpy(Imputed(network, data, params, _conditioned(network, params, data), members))


def rebuilt(network: Network, data: Data, params: Params, latents: Latents) -> Imputed:
    """Recomputed from saved parameters (chains, sets) and latents (chains, …), by the same
    programs."""
    n_chains, n_sets = params[0].log_scale.shape[:2]
    n_members = latents[0].shape[1] if latents else n_sets
    members: Shelf[Member] = Shelf(n_chains, n_members)
    for k in range(n_members):
        given = [
            (row(params, (chain, k % n_sets)), row(latents, (chain, k)))
            for chain in range(n_chains)
        ]
        members.put(build_members(network, given, [data] * n_chains))
    return assemble(network, data, params, members.stacked())


def _conditioned(network: Network, params: Params, data: Data) -> Any:
    """The conditioned first layer for each set of parameters (chains, sets)."""
    n_chains, n_sets = params[0].log_scale.shape[:2]
    program = compiled(conditioned, ("network",), brief=True)
    each = in_order(
        functools.partial(program, network, row(params, (chain, place)), data)
        for chain in range(n_chains)
        for place in range(n_sets)
    )
    unflat = lambda leaf: leaf.reshape(n_chains, n_sets, *leaf.shape[1:])  # noqa: E731
    return jax.tree.map(unflat, stack(each))


def require_finite(values: Any) -> None:
    if not np.all(np.isfinite(values)):
        raise NumericalError(NOT_POSITIVE_DEFINITE)


def extended(imputed: Imputed, grown: Data, n_old: int, n_new: int) -> Imputed:
    """With the last ``n_new`` sites of grown data, at the cost of a rank-k update."""
    network, params = imputed.network, imputed.params
    n_chains, n_members = imputed.members.alpha.shape[:2]
    n_sets = params[0].log_scale.shape[1]
    program = compiled(extend.extended, ("network", "n_new"))
    tasks = [
        functools.partial(
            program, network, n_new,
            row(params, (chain, k % n_sets)), row(imputed.conditioned, (chain, k % n_sets)),
            row(imputed.members, (chain, k)), imputed.data, grown, np.int32(n_old),
        )
        for chain in range(n_chains)
        for k in range(n_members)
    ]  # fmt: skip
    unflat = lambda leaf: leaf.reshape(n_chains, n_members, *leaf.shape[1:])  # noqa: E731
    shared, members = jax.tree.map(unflat, stack(in_order(tasks)))
    jax.tree.map(require_finite, members.alphas)
    shared = jax.tree.map(lambda each: each[:, :n_sets], shared)
    return to_numpy(Imputed(network, grown, params, shared, members))
