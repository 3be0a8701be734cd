"""Imputation of the hidden layers by elliptical slice sampling within Gibbs (Algorithm 2).

A sweep updates the hidden layers in order. Within a layer, ``block`` columns move together: one
at a time as in the paper, or all of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import dense, kernels, slice
from deepemu.core.dense import Node, Sites
from deepemu.core.network import (
    Data,
    Latents,
    Network,
    Params,
    layer_cholesky,
    layer_inputs,
    layer_log_density,
    layer_nodes,
    layer_sites,
    layer_targets,
)

FULL_CIRCLE = 2.0 * math.pi
LEARNING_RATE = 0.05


@dataclass(frozen=True)
class NodeWise:
    """One node at a time, as in Algorithm 2 of the paper."""

    def block(self, width: int) -> int:
        return 1


@dataclass(frozen=True)
class LayerWise:
    """All nodes of a layer at once, on one ellipse."""

    def block(self, width: int) -> int:
        return width


Moves = NodeWise | LayerWise


@record
class Imputation:
    """The state of the sampler: latents, running mean of |accepted angle| a node, evaluations."""

    latents: Latents
    angles: tuple[Array, ...]
    evaluations: Array


def start(latents: Latents, bracket_factor: float) -> Imputation:
    """Mean angles are set so that the first brackets are the full circle; never zero, so that an
    infinite factor gives an infinite bracket and not an undefined one."""
    first = FULL_CIRCLE / min(bracket_factor, FULL_CIRCLE)
    angles = tuple(jnp.full(w.shape[1], first, w.dtype) for w in latents)
    return Imputation(latents, angles, jnp.zeros((), jnp.int32))


def sweeps(
    key: Array,
    network: Network,
    moves: Moves,
    params: Params,
    state: Imputation,
    data: Data,
    n_sweeps: Array | int,
    bracket_factor: Array | float,
    adapt: Array | bool,
) -> Imputation:
    """``n_sweeps`` sweeps of Algorithm 2 with parameters held.

    Brackets have width min(2π, ``bracket_factor`` × mean accepted angle) a node; an infinite factor
    gives the full circle of the paper. ``adapt`` lets the means follow the accepted angles, which
    must be off for draws that are kept.
    """
    if network.depth == 1:
        return state
    # x and the parameters are fixed, so the first layer's prior is factorised once for all sweeps.
    first_prior = layer_cholesky(network, 0, params, state.latents, data)
    last = network.depth - 1
    known = layer_log_density(network, last, params, state.latents, data)

    def one_sweep(index: Array, carry: tuple[Imputation, Array]) -> tuple[Imputation, Array]:
        return _sweep(
            jax.random.fold_in(key, index), network, moves, params, carry, data, first_prior,
            bracket_factor, adapt,
        )  # fmt: skip

    return jax.lax.fori_loop(0, n_sweeps, one_sweep, (state, known))[0]


def _sweep(
    key: Array,
    network: Network,
    moves: Moves,
    params: Params,
    carry: tuple[Imputation, Array],
    data: Data,
    first_prior: Array,
    bracket_factor: Array | float,
    adapt: Array | bool,
) -> tuple[Imputation, Array]:
    """Update each hidden layer given the others; returns the last layer's log density as well.

    The density of the outputs given the last hidden layer is known from its last accepted
    proposal; that of an inner layer changes when the layer above it moves.
    """
    state, above_last = carry
    for layer in range(network.depth - 1):
        key, key_layer = jax.random.split(key)
        latents = state.latents
        prior = first_prior if layer == 0 else layer_cholesky(network, layer, params, latents, data)
        current = (
            above_last
            if layer == network.depth - 2
            else layer_log_density(network, layer + 1, params, latents, data)
        )
        state, current = _update_layer(
            key_layer, network, layer, moves, params, state, data, prior, current,
            bracket_factor, adapt,
        )  # fmt: skip
    return state, current


def _update_layer(
    key: Array,
    network: Network,
    layer: int,
    moves: Moves,
    params: Params,
    state: Imputation,
    data: Data,
    prior: Array,
    current: Array,
    bracket_factor: Array | float,
    adapt: Array | bool,
) -> tuple[Imputation, Array]:
    """Slice-sample the blocks of a layer in turn; ``current`` is log p(next layer | this one)."""
    width = network.layers[layer].width
    block = moves.block(width)
    nodes = layer_nodes(network.layers[layer], params[layer])
    sites = layer_sites(network, layer, data)

    def update(index: Array, carry: tuple[Array, Array, Array, Array]):  # type: ignore[no-untyped-def]
        latent, angles, current, evaluations = carry
        key_draw, key_slice = jax.random.split(jax.random.fold_in(key, index))
        first = index * block
        pick = lambda rows: jax.lax.dynamic_slice_in_dim(rows, first, block)  # noqa: E731
        normals = jax.vmap(lambda k: jax.random.normal(k, latent.shape[:1], latent.dtype))(
            jax.random.split(key_draw, block)
        )
        direction = jax.vmap(dense.draw_prior)(
            pick(prior), pick(nodes.scale), jax.tree.map(pick, sites), normals
        ).T
        below = tuple(latent if i == layer else w for i, w in enumerate(state.latents))
        likelihood = _likelihood_of_block(network, layer, params, below, data, first, block)
        columns = jax.lax.dynamic_slice_in_dim(latent, first, block, axis=1)
        angle = jnp.mean(pick(angles))
        bracket = jnp.minimum(bracket_factor * angle, FULL_CIRCLE)
        columns, current, info = slice.step(
            key_slice, columns, direction, likelihood, current, bracket
        )
        latent = jax.lax.dynamic_update_slice_in_dim(latent, columns, first, axis=1)
        followed = angle + jnp.where(adapt, LEARNING_RATE, 0.0) * (turn(info.angle) - angle)
        angles = jax.lax.dynamic_update_slice_in_dim(
            angles, jnp.full(block, followed, angles.dtype), first, axis=0
        )
        return latent, angles, current, evaluations + info.evaluations

    begin = (state.latents[layer], state.angles[layer], current, state.evaluations)
    latent, angles, current, evaluations = jax.lax.fori_loop(0, width // block, update, begin)
    replace = lambda old, new: tuple(new if i == layer else w for i, w in enumerate(old))  # noqa: E731
    moved = Imputation(replace(state.latents, latent), replace(state.angles, angles), evaluations)
    return moved, current


def turn(angle: Array) -> Array:
    """How far a point moved on the ellipse: an angle near ±2π is a short way round."""
    return jnp.minimum(jnp.abs(angle), FULL_CIRCLE - jnp.abs(angle))


def _likelihood_of_block(
    network: Network,
    layer: int,
    params: Params,
    latents: Latents,
    data: Data,
    first: Array,
    block: int,
) -> Callable[[Array], Array]:
    """log p(layer l+1 | layer l) as a function of the moving columns of layer l.

    The kernel is a product over columns, so the part of the columns that stay is computed once a
    block, not once a proposal.
    """
    spec = network.layers[layer + 1]
    nodes = layer_nodes(spec, params[layer + 1])
    inputs = layer_inputs(network, layer + 1, data.x, latents)
    targets = layer_targets(network, layer + 1, data, latents).T
    sites = layer_sites(network, layer + 1, data)
    column = jnp.arange(spec.n_columns)
    stays = (column < first) | (column >= first + block)
    resting = jax.vmap(lambda inverse: kernels.parts(spec.kernel, inputs, inputs, inverse))(
        jnp.where(stays[None, :], nodes.inverse_lengthscale, 0.0)
    )
    moving = jax.lax.dynamic_slice_in_dim(nodes.inverse_lengthscale, first, block, axis=1)

    def node_density(
        node: Node, target: Array, site: Sites, rest: tuple[Array, Array], inverse: Array,
        columns: Array,
    ) -> Array:  # fmt: skip
        factor, exponent = kernels.parts(spec.kernel, columns, columns, inverse)
        plain = kernels.combine(factor * rest[0], exponent + rest[1])
        lower = dense.cholesky(dense.add_nugget(plain, node.nugget, site))
        return dense.log_density(lower, target, node.scale, node.nugget, site)

    def log_likelihood(columns: Array) -> Array:
        each = jax.vmap(node_density, in_axes=(0, 0, 0, 0, 0, None))
        return jnp.sum(each(nodes, targets, sites, resting, moving, columns))

    return log_likelihood
