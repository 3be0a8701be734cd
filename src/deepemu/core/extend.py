"""Imputed networks with more rows: parameters and imputations are kept, nothing is trained."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core.ensemble import Member, conditional_mean
from deepemu.core.model.network import Data, Latents, Network, Params, layer_parts


def extended(
    network: Network,
    n_new: int,
    params: Params,
    conditioned: Any,
    member: Member,
    data: Data,
    grown: Data,
    first: Array,
) -> tuple[Any, Member]:
    """A member, and what its chain shares, with the ``n_new`` rows of ``grown`` from the ``first``.

    Latents of new rows are at their conditional means. The solver extends its factors, with O(n²)
    operations per row and node.
    """
    latents = _extended_latents(network, n_new, params, member, data, grown, first)
    parts = [layer_parts(network, layer, params, latents, grown) for layer in range(network.depth)]
    nodes, inputs, targets, sites = parts[0]
    extend = functools.partial(network.solver_of(0).extend, n_new)
    shared = jax.vmap(extend, (None, 0, 0, None, 0))(first, nodes, conditioned, inputs, sites)
    alpha = jax.vmap(network.solver_of(0).alpha_of)(shared, targets)
    links = []
    for layer, link in enumerate(member.links, 1):
        extend_link = functools.partial(network.solver_of(layer).extend_link, n_new)
        batched = jax.vmap(extend_link, (None, 0, 0, None, 0, 0))
        nodes, inputs, targets, sites = parts[layer]
        links.append(batched(first, nodes, link, inputs, targets, sites))
    return shared, Member(latents, alpha, tuple(links))


def _extended_latents(
    network: Network,
    n_new: int,
    params: Params,
    member: Member,
    data: Data,
    grown: Data,
    first: Array,
) -> Latents:
    missing = grown.x.shape[0] - data.x.shape[0]
    x_new = jax.lax.dynamic_slice_in_dim(grown.x, first, n_new)
    below = conditional_mean(network, params, member, data, x_new)
    return tuple(
        jax.lax.dynamic_update_slice_in_dim(jnp.pad(old, ((0, missing), (0, 0))), new, first, 0)
        for old, new in zip(member.latents, below, strict=True)
    )
