"""Imputation of the hidden layers by elliptical slice sampling within Gibbs (Algorithm 2).

A sweep updates the hidden layers in order. Within a layer, ``block`` columns move together: one
at a time as in the paper, or all of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import linalg
from deepemu.core.inference import slice_step
from deepemu.core.kernels import products
from deepemu.core.kernels.families import Parts
from deepemu.core.model.network import (
    Data,
    Latents,
    Network,
    Params,
    layer_cholesky,
    layer_log_density,
    layer_nodes,
    layer_sites,
    layer_targets,
)
from deepemu.core.nodes import dense
from deepemu.core.nodes.node import Node, Sites

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
    """The state of the sampler: latents, running mean of |accepted angle| a node, and counts."""

    latents: Latents
    angles: tuple[Array, ...]
    evaluations: Array
    sweeps: Array


@record
class Brackets:
    """Slice brackets of width min(2π, ``factor`` × mean accepted angle) a node.

    An infinite factor gives the full circle of the paper. ``adapt`` lets the means follow the
    accepted angles, which must be off for draws that are kept.
    """

    factor: Array | float
    adapt: Array | bool


@record
class Fixed:
    """What stays as it is during the sweeps, and what can be computed before them.

    x and the parameters are fixed, so the first layer's prior is factorised once, and so is the
    part of each later layer's correlations that comes from x, nugget and padding.
    """

    network: Network = field(metadata={"static": True})
    moves: Moves = field(metadata={"static": True})
    params: Params
    data: Data
    brackets: Brackets
    first_prior: Array
    from_inputs: tuple[Parts, ...]


def sweeps(
    key: Array,
    network: Network,
    moves: Moves,
    params: Params,
    state: Imputation,
    data: Data,
    n_sweeps: Array | int,
    brackets: Brackets,
) -> Imputation:
    """``n_sweeps`` sweeps of Algorithm 2 with parameters held."""
    if network.depth == 1:
        return state
    fixed = Fixed(
        network, moves, params, data, brackets,
        layer_cholesky(network, 0, params, state.latents, data),
        tuple(_from_inputs(network, layer, params, data) for layer in range(1, network.depth)),
    )  # fmt: skip
    known = layer_log_density(network, network.depth - 1, params, state.latents, data)

    def one_sweep(index: Array, carry: tuple[Imputation, Array]) -> tuple[Imputation, Array]:
        return _sweep(jax.random.fold_in(key, index), fixed, *carry)

    return jax.lax.fori_loop(0, n_sweeps, one_sweep, (state, known))[0]


def _from_inputs(network: Network, layer: int, params: Params, data: Data) -> Parts:
    """Correlation over the columns of x that a layer reads, nugget and padding included, a node."""
    spec = network.layers[layer]
    nodes, sites = layer_nodes(spec, params[layer]), layer_sites(network, layer, data)
    n_hidden = network.layers[layer - 1].width
    x = data.x[:, : spec.n_columns - n_hidden]

    def of_node(node: Node, site: Sites) -> Parts:
        factor, exponent = products.parts(spec.kernel, x, x, node.inverse_lengthscale[n_hidden:])
        return factor, exponent + dense.site_exponent(node.nugget, site)

    return jax.vmap(of_node)(nodes, sites)


def _sweep(
    key: Array, fixed: Fixed, state: Imputation, above_last: Array
) -> tuple[Imputation, Array]:
    """Update each hidden layer given the others; returns the last layer's log density as well.

    The density of the outputs given the last hidden layer is known from its last accepted
    proposal; that of an inner layer changes when the layer above it moves.
    """
    network, params, data = fixed.network, fixed.params, fixed.data
    for layer in range(network.depth - 1):
        latents = state.latents
        prior = (
            fixed.first_prior
            if layer == 0
            else layer_cholesky(network, layer, params, latents, data)
        )
        current = (
            above_last
            if layer == network.depth - 2
            else layer_log_density(network, layer + 1, params, latents, data)
        )
        key_layer = jax.random.fold_in(key, layer)
        state, current = _update_layer(key_layer, fixed, layer, state, prior, current)
    return replace(state, sweeps=state.sweeps + 1), current


def _update_layer(
    key: Array, fixed: Fixed, layer: int, state: Imputation, prior: Array, current: Array
) -> tuple[Imputation, Array]:
    """Slice-sample the blocks of a layer in turn; ``current`` is log p(next layer | this one)."""
    width = fixed.network.layers[layer].width
    block = fixed.moves.block(width)
    key_draw, key_slice = jax.random.split(key)
    directions = _directions(key_draw, fixed, layer, prior)
    rate = jnp.where(fixed.brackets.adapt, learning_rate(state.sweeps), 0.0)
    uniforms = jax.random.uniform(
        key_slice, (width // block, slice_step.N_UNIFORMS), directions.dtype
    )

    def update(
        index: Array, carry: tuple[Array, Array, Array, Array]
    ) -> tuple[Array, Array, Array, Array]:
        latent, angles, current, evaluations = carry
        first = index * block
        columns_of = lambda of: jax.lax.dynamic_slice_in_dim(of, first, block, axis=1)  # noqa: E731
        angle = jnp.mean(jax.lax.dynamic_slice_in_dim(angles, first, block))
        columns, current, info = slice_step.step(
            uniforms[index],
            columns_of(latent),
            columns_of(directions),
            _likelihood_of_block(fixed, layer, state.latents, latent, first, block),
            current,
            jnp.minimum(fixed.brackets.factor * angle, FULL_CIRCLE),
        )
        latent = jax.lax.dynamic_update_slice_in_dim(latent, columns, first, axis=1)
        followed = angle + rate * (turn(info.angle) - angle)
        angles = jax.lax.dynamic_update_slice_in_dim(
            angles, jnp.full(block, followed, angles.dtype), first, axis=0
        )
        return latent, angles, current, evaluations + info.evaluations

    begin = (state.latents[layer], state.angles[layer], current, state.evaluations)
    latent, angles, current, evaluations = jax.lax.fori_loop(0, width // block, update, begin)
    moved = replace(
        state,
        latents=_replaced(state.latents, layer, latent),
        angles=_replaced(state.angles, layer, angles),
        evaluations=evaluations,
    )
    return moved, current


def _directions(key: Array, fixed: Fixed, layer: int, prior: Array) -> Array:
    """A draw (n, P) from the prior of each node of a layer given the layer below it."""
    nodes = layer_nodes(fixed.network.layers[layer], fixed.params[layer])
    sites = layer_sites(fixed.network, layer, fixed.data)
    # Rows lead, so that draws do not depend on the padding behind them.
    normals = jax.vmap(lambda k: jax.random.normal(k, prior.shape[1:2], prior.dtype))(
        jax.random.split(key, prior.shape[0])
    )
    return jax.vmap(dense.draw_prior)(prior, nodes.scale, sites, normals).T


def learning_rate(sweeps: Array) -> Array:
    """Of the running mean of angles: first the plain mean, later one that forgets."""
    return jnp.maximum(1.0 / (2.0 + sweeps), LEARNING_RATE)


def turn(angle: Array) -> Array:
    """How far a point moved on the ellipse: an angle near ±2π is a short way round."""
    return jnp.minimum(jnp.abs(angle), FULL_CIRCLE - jnp.abs(angle))


def _replaced(items: tuple[Array, ...], index: int, item: Array) -> tuple[Array, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _likelihood_of_block(
    fixed: Fixed, layer: int, latents: Latents, latent: Array, first: Array, block: int
) -> Callable[[Array], Array]:
    """log p(layer l+1 | layer l) as a function of the moving columns of layer l.

    ``latent`` is layer l now. The kernel is a product over columns, so the part of the columns
    that stay is computed once a block, not once a proposal.
    """
    network, above = fixed.network, layer + 1
    spec, sites = network.layers[above], layer_sites(network, above, fixed.data)
    nodes = layer_nodes(spec, fixed.params[above])
    targets = layer_targets(network, above, fixed.data, latents).T
    hidden = nodes.inverse_lengthscale[:, : latent.shape[1]]
    moving = jax.lax.dynamic_slice_in_dim(hidden, first, block, axis=1)
    staying = jax.lax.dynamic_update_slice_in_dim(hidden, jnp.zeros_like(moving), first, axis=1)

    def of_resting(inverse: Array, from_inputs: Parts) -> Parts:
        factor, exponent = products.parts(spec.kernel, latent, latent, inverse)
        return factor * from_inputs[0], exponent + from_inputs[1]

    resting = jax.vmap(of_resting)(staying, fixed.from_inputs[layer])
    constant = jnp.sum(jax.vmap(dense.log_constant)(nodes.scale, nodes.nugget, sites))

    def of_node(
        columns: Array, scale: Array, target: Array, resting: Parts, inverse: Array
    ) -> Array:
        factor, exponent = products.parts(spec.kernel, columns, columns, inverse)
        lower = linalg.cholesky(products.combine(factor * resting[0], exponent + resting[1]))
        return dense.log_variable(lower, dense.quadratic_form(lower, target), scale)

    def log_likelihood(columns: Array) -> Array:
        each = (nodes.scale, targets, resting, moving)
        if spec.width == 1:  # a batch of one would copy its matrices
            return of_node(columns, *jax.tree.map(lambda of: of[0], each)) + constant
        return jnp.sum(jax.vmap(of_node, in_axes=(None, 0, 0, 0, 0))(columns, *each)) + constant

    return log_likelihood
