"""Imputation of latent layers by elliptical slice sampling within Gibbs (Algorithm 2).

A sweep updates the imputed layers in order: the hidden ones, and the last one where the observation
model does not integrate it out. Within a layer, ``block`` columns move together: one at a time as
in the paper, or all of them.
"""

import math
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core.inference import slice_step
from deepemu.core.inference.steps import Steps
from deepemu.core.model.network import (
    Data,
    Latents,
    Network,
    Params,
    columns_of,
    layer_factor,
    layer_log_density,
    layer_nodes,
    layer_sites,
    layer_targets,
    log_likelihood,
    map_kernels,
    map_nodes,
)
from deepemu.core.nodes.node import Node, Sites

FULL_CIRCLE = 2.0 * math.pi
LEARNING_RATE = 0.05
FIRST_LEAP = 0.1


@record
class Imputation:
    """The state of the sampler: latents, running mean of |accepted angle| per node, and counts."""

    latents: Latents
    angles: tuple[Array, ...]
    evaluations: Array
    sweeps: Array
    guide: "Guide | None" = None


@record
class Guide:
    """What shapes guided moves: the layers where the information is taken, and the length of
    leaps."""

    reference: Latents
    step: Array


def start_guided(latents: Latents, bracket: Array | float) -> Imputation:
    """The same for guided moves."""
    return replace(
        start(latents, bracket), guide=Guide(latents, jnp.array(FIRST_LEAP, latents[0].dtype))
    )


def start(latents: Latents, bracket: Array | float) -> Imputation:
    """Mean angles are set so that the first brackets are the full circle; never zero, so that an
    infinite factor gives an infinite bracket and not an undefined one."""
    first = FULL_CIRCLE / jnp.minimum(bracket, FULL_CIRCLE)
    angles = tuple(jnp.full(w.shape[1], first, w.dtype) for w in latents)
    none = jnp.zeros((), jnp.int32)
    return Imputation(latents, angles, evaluations=none, sweeps=none)


@record
class Fixed:
    """Quantities that are constant during the sweeps, computed before them.

    x and the parameters are fixed, so the first layer's prior is factorised once, and so is the
    part of each later layer's correlations that comes from x, nugget and padding.
    """

    network: Network = field(metadata={"static": True})
    steps: Steps
    params: Params
    data: Data
    first_prior: Any
    from_inputs: tuple[Any, ...]


def sweeps(
    key: Array, network: Network, steps: Steps, params: Params, state: Imputation, data: Data
) -> Imputation:
    """``steps.n_sweeps`` sweeps of Algorithm 2 with fixed parameters."""
    if network.n_imputed == 0:
        return state
    fixed = Fixed(
        network, steps, params, data,
        layer_factor(network, 0, params, state.latents, data),
        tuple(_from_inputs(network, layer, params, data) for layer in range(1, network.depth)),
    )  # fmt: skip
    known = _log_density_above(fixed, network.n_imputed - 1, state.latents)

    def one_sweep(index: Array, carry: tuple[Imputation, Array]) -> tuple[Imputation, Array]:
        return _sweep(jax.random.fold_in(key, index), fixed, *carry)

    return jax.lax.fori_loop(0, steps.n_sweeps, one_sweep, (state, known))[0]


def _from_inputs(network: Network, layer: int, params: Params, data: Data) -> Any:
    """The solver's part of R over the columns of x that a layer reads, for each of its kernels."""
    spec, n_hidden = network.layers[layer], network.n_hidden(layer)
    n_known = spec.n_columns - n_hidden
    nodes = columns_of(layer_nodes(spec, params[layer]), n_hidden, n_known)
    at_rest = lambda node, sites: network.solver.at_rest(node, data.x[:, :n_known], sites)  # noqa: E731
    return map_kernels(spec, at_rest, nodes, layer_sites(network, layer, data))


def _log_density_above(fixed: Fixed, layer: int, latents: Latents) -> Array:
    """log p(layers or outputs that read ``layer`` | its outputs and all else)."""
    network = fixed.network
    densities = [
        layer_log_density(network, reader, fixed.params, latents, fixed.data)
        for reader in network.readers(layer)
    ]
    if layer == network.depth - 1:
        densities.append(log_likelihood(network, latents, fixed.data))
    return sum(densities[1:], start=densities[0])


def _is_known_from_last_sweep(network: Network, layer: int) -> bool:
    """Whether the density above the last imputed layer depends on no other imputed layer."""
    last = layer == network.n_imputed - 1
    return last and all(network.sources(reader) == (layer,) for reader in network.readers(layer))


def _sweep(
    key: Array, fixed: Fixed, state: Imputation, above_last: Array
) -> tuple[Imputation, Array]:
    """Update each imputed layer given the others; returns the last log density above as well.

    The density of the outputs given the last imputed layer is known from its last accepted
    proposal; that of an inner layer changes when the layer above it moves.
    """
    network = fixed.network
    for layer in range(network.n_imputed):
        prior = (
            fixed.first_prior
            if layer == 0
            else layer_factor(network, layer, fixed.params, state.latents, fixed.data)
        )
        current = (
            above_last
            if _is_known_from_last_sweep(network, layer)
            else _log_density_above(fixed, layer, state.latents)
        )
        key_layer = jax.random.fold_in(key, layer)
        state, current = _update_layer(key_layer, fixed, layer, state, prior, current)
    return replace(state, sweeps=state.sweeps + 1), current


@record
class _Layer:
    """A layer while its blocks are updated; ``current`` is the log density of what is above it."""

    latent: Array
    angles: Array
    current: Array
    evaluations: Array


def _update_layer(
    key: Array, fixed: Fixed, layer: int, state: Imputation, prior: Any, current: Array
) -> tuple[Imputation, Array]:
    """Slice-sample the blocks of a layer in turn, given the solver's factors of its prior."""
    width = fixed.network.layers[layer].width
    block = fixed.steps.moves.block(width)  # type: ignore[union-attr]
    key_draw, key_slice = jax.random.split(key)
    directions = _directions(key_draw, fixed, layer, prior)
    rate = jnp.where(fixed.steps.adapt, learning_rate(state.sweeps), 0.0)
    uniforms = jax.random.uniform(
        key_slice, (width // block, slice_step.N_UNIFORMS), directions.dtype
    )

    def update(index: Array, now: _Layer) -> _Layer:
        first = index * block
        angle = jnp.mean(jax.lax.dynamic_slice_in_dim(now.angles, first, block))
        columns, current, info = slice_step.step(
            uniforms[index],
            jax.lax.dynamic_slice_in_dim(now.latent, first, block, axis=1),
            jax.lax.dynamic_slice_in_dim(directions, first, block, axis=1),
            _likelihood_of_block(fixed, layer, state.latents, now.latent, first, block),
            now.current,
            jnp.minimum(fixed.steps.bracket * angle, FULL_CIRCLE),
        )
        followed = angle + rate * (turn(info.angle) - angle)
        angles = jnp.full(block, followed, now.angles.dtype)
        return _Layer(
            jax.lax.dynamic_update_slice_in_dim(now.latent, columns, first, axis=1),
            jax.lax.dynamic_update_slice_in_dim(now.angles, angles, first, axis=0),
            current,
            now.evaluations + info.evaluations,
        )

    begin = _Layer(state.latents[layer], state.angles[layer], current, state.evaluations)
    end = jax.lax.fori_loop(0, width // block, update, begin)
    moved = replace(
        state,
        latents=_replaced(state.latents, layer, end.latent),
        angles=_replaced(state.angles, layer, end.angles),
        evaluations=end.evaluations,
    )
    return moved, end.current


def _directions(key: Array, fixed: Fixed, layer: int, prior: Any) -> Array:
    """A draw (n, P) from the prior of each node of a layer given the layers below it."""
    spec, data, solver = fixed.network.layers[layer], fixed.data, fixed.network.solver
    nodes = layer_nodes(spec, fixed.params[layer])
    sites = layer_sites(fixed.network, layer, data)
    # Rows lead, so that draws do not depend on the padding behind them.
    normals = jax.vmap(lambda k: jax.random.normal(k, data.used.shape, data.x.dtype))(
        jax.random.split(key, spec.width)
    )

    def of_node(node: Node, of_kernel: tuple[Any, Sites], normals: Array) -> Array:
        factor, sites = of_kernel
        return solver.draw_prior(factor, node, sites, normals)

    return map_nodes(spec, of_node, nodes, (prior, sites), normals).T


def learning_rate(sweeps: Array) -> Array:
    """Step size of the running mean of angles: first a plain mean, later an exponential one."""
    return jnp.maximum(1.0 / (2.0 + sweeps), LEARNING_RATE)


def turn(angle: Array) -> Array:
    """How far a point moved on the ellipse: an angle near ±2π is a short way round."""
    return jnp.minimum(jnp.abs(angle), FULL_CIRCLE - jnp.abs(angle))


def _replaced(items: tuple[Array, ...], index: int, item: Array) -> tuple[Array, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _likelihood_of_block(
    fixed: Fixed, layer: int, latents: Latents, latent: Array, first: Array, block: int
) -> Callable[[Array], Array]:
    """log p(what is above layer l | layer l) as a function of the moving columns of layer l.

    ``latent`` is layer l now.
    """
    network = fixed.network
    readers = [
        _density_of_reader(fixed, layer, reader, latents, latent, first, block)
        for reader in network.readers(layer)
    ]
    if layer == network.depth - 1:
        readers.append(_density_of_outputs(fixed, latent, first))

    def log_likelihood(columns: Array) -> Array:
        densities = [of_reader(columns) for of_reader in readers]
        return sum(densities[1:], start=densities[0])

    return log_likelihood


def _density_of_outputs(fixed: Fixed, latent: Array, first: Array) -> Callable[[Array], Array]:
    """log p(outputs | last layer) as a function of its moving columns."""

    def log_density(columns: Array) -> Array:
        moved = jax.lax.dynamic_update_slice_in_dim(latent, columns, first, axis=1)
        data = fixed.data
        return fixed.network.observation.log_density(data.observed, moved, data.used)

    return log_density


def _density_of_reader(
    fixed: Fixed,
    layer: int,
    reader: int,
    latents: Latents,
    latent: Array,
    first: Array,
    block: int,
) -> Callable[[Array], Array]:
    """log p(layer that reads l | layer l and others) as a function of the moving columns of l.

    The kernel is a product over columns, so the part of the columns that stay is computed once per
    block, not once per proposal.
    """
    network, solver = fixed.network, fixed.network.solver
    spec, sources = network.layers[reader], network.sources(reader)
    hidden = jnp.concatenate([latent if s == layer else latents[s] for s in sources], axis=1)
    before = sum(network.layers[s].width for s in sources[: sources.index(layer)])
    sites = layer_sites(network, reader, fixed.data)
    targets = layer_targets(network, reader, fixed.data, latents).T
    nodes = layer_nodes(spec, fixed.params[reader])
    of_hidden = columns_of(nodes, 0, hidden.shape[1])
    moving = columns_of(of_hidden, before + first, block)
    still = jnp.zeros_like(moving.inverse_lengthscale)
    staying = replace(
        of_hidden,
        inverse_lengthscale=jax.lax.dynamic_update_slice_in_dim(
            of_hidden.inverse_lengthscale, still, before + first, axis=1
        ),
    )
    at_rest = lambda node, resting: solver.more_at_rest(node, hidden, resting)  # noqa: E731
    resting = map_kernels(spec, at_rest, staying, fixed.from_inputs[reader - 1])

    def log_density(columns: Array) -> Array:
        def of_node(node: Node, of_kernel: tuple[Any, Sites], target: Array) -> Array:
            return solver.log_density_moving(node, columns, of_kernel[0], target, of_kernel[1])

        return jnp.sum(map_nodes(spec, of_node, moving, (resting, sites), targets))

    return log_density
