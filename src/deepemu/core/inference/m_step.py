"""The M-step: all nodes of a network, maximised or sampled one by one or in batches."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core.inference import hit_and_run
from deepemu.core.inference.free_node import FreeNode, Kind, NodeTask
from deepemu.core.inference.scoring import Objective, Slopes, Value, maximise
from deepemu.core.inference.steps import MStep, Nodes, Update
from deepemu.core.model.network import (
    Data,
    Latents,
    LayerParams,
    LayerSpec,
    Network,
    Params,
    geometry,
    layer_inputs,
    layer_sites,
    layer_targets,
)
from deepemu.core.nodes.node import Fit

T = TypeVar("T")
BEHIND_ALL_SWEEPS = 2**31 - 1  # a number that the keys of an iteration's sweeps do not use


@dataclass(frozen=True)
class InTurn(Nodes):
    """Nodes one after the other, those of all layers by one piece of a program: suited to a CPU,
    and compiled in a fraction of the time."""

    def map(self, function: Callable[..., T], *nodes: Any) -> T:
        return jax.lax.map(lambda node: function(*node), nodes)

    def groups(self, network: Network) -> list[list[int]]:
        """The layers of the same kind, kind by kind."""
        alike: dict[Kind, list[int]] = {}
        for layer, spec in enumerate(network.layers):
            alike.setdefault(Kind.of(spec, network.solver_of(layer)), []).append(layer)
        return list(alike.values())


@dataclass(frozen=True)
class Together(Nodes):
    """All nodes of a layer in batches: suited to a GPU."""

    def map(self, function: Callable[..., T], *nodes: Any) -> T:
        return jax.vmap(function)(*nodes)

    def groups(self, network: Network) -> list[list[int]]:
        """Each layer by itself, so that memory holds the matrices of one."""
        return [[layer] for layer in range(network.depth)]


@dataclass(frozen=True)
class Maximise(MStep):
    """The M-step of stochastic EM: scoring steps towards the best parameters."""

    shares_parameters: ClassVar[bool] = True
    n_between: ClassVar[int] = 1

    def update(self, key: Array, n_scoring: Array | int) -> Update:
        return functools.partial(maximised, n_steps=n_scoring, tolerance=0.0)


@dataclass(frozen=True)
class Sample(MStep):
    """Moves of the parameters that leave their posterior invariant: a Gibbs sampler.

    Networks that are kept are ten iterations apart, because parameters move slower than latents.
    """

    shares_parameters: ClassVar[bool] = False
    n_between: ClassVar[int] = 10

    def update(self, key: Array, n_scoring: Array | int) -> Update:
        key_nodes = jax.random.fold_in(key, BEHIND_ALL_SWEEPS)

        def update(node: FreeNode) -> tuple[LayerParams, Array]:
            return _sampled(jax.random.fold_in(key_nodes, node.task.number), node, n_scoring)

        return update


def fit_layers(
    nodes: Nodes,
    network: Network,
    layers: Sequence[int],
    params: Params,
    latents: Latents,
    data: Data,
    n_steps: Array | int,
    tolerance: Array | float = 0.0,
) -> tuple[list[LayerParams], Array]:
    """Maximise log density + log prior of each node of layers of one kind.

    Returns the objectives of all nodes as well.
    """
    update = functools.partial(maximised, n_steps=n_steps, tolerance=tolerance)
    return update_layers(nodes, network, layers, params, latents, data, update)


def update_layers(
    nodes: Nodes,
    network: Network,
    layers: Sequence[int],
    params: Params,
    latents: Latents,
    data: Data,
    update: Update,
) -> tuple[list[LayerParams], Array]:
    """New parameters of each node of layers of one kind, and log posterior densities: one for each
    kernel.

    Narrow layers are padded with columns that no node reads.
    """
    specs = [network.layers[layer] for layer in layers]
    n_columns = max(spec.n_columns for spec in specs)
    kind = Kind.of(specs[0], network.solver_of(layers[0]))
    every = [layer_inputs(network, layer, data.x, latents) for layer in layers]
    inputs = jnp.stack([_widened(columns, n_columns) for columns in every])
    tasks = [
        _node_tasks(network, layer, params[layer], latents, data, place, n_columns)
        for place, layer in enumerate(layers)
    ]
    stacked = jax.tree.map(lambda *parts: jnp.concatenate(parts), *tasks)

    def of_node(node: NodeTask) -> tuple[LayerParams, Array]:
        return update(FreeNode(kind, node, inputs[node.layer]))

    fitted, values = nodes.map(of_node, stacked)
    ends = list(itertools.accumulate(spec.n_kernels for spec in specs))
    return [
        _rows_of_layer(fitted, end - spec.n_kernels, spec)
        for spec, end in zip(specs, ends, strict=True)
    ], values


def _node_tasks(
    network: Network,
    layer: int,
    params: LayerParams,
    latents: Latents,
    data: Data,
    place: int,
    n_columns: int,
) -> NodeTask:
    """All nodes of a layer, padded to ``n_columns`` with columns that no node reads.

    The first of those that share a kernel stands for all of them.
    """
    spec, n = network.layers[layer], network.layers[layer].n_kernels
    sites = layer_sites(network, layer, data)
    shape = geometry(spec, layer_inputs(network, layer, data.x, latents), sites.used[0])
    widened = functools.partial(_widened, n_columns=n_columns)
    targets = layer_targets(network, layer, data, latents).T
    return NodeTask(
        widened(jnp.asarray(spec.reads))[:n],
        jnp.array(spec.free_scales[:n]),
        jnp.array(spec.free_nuggets[:n]),
        LayerParams(
            widened(params.log_lengthscale)[:n],
            params.log_scale.reshape(n, -1),
            params.log_nugget[:n],
        ),
        targets.reshape(n, -1, targets.shape[1]),
        _first(sites, n),
        dataclasses.replace(
            _first(shape, n), span=widened(shape.span)[:n], weight=widened(shape.weight)[:n]
        ),
        jnp.full(n, place),
        sum(each.width for each in network.layers[:layer]) + jnp.arange(n),
    )


def _first(stacked: T, count: int) -> T:
    return jax.tree.map(lambda of: of[:count], stacked)


def _widened(values: Array, n_columns: int) -> Array:
    """Columns of zeros appended up to ``n_columns``."""
    return jnp.pad(values, ((0, 0), (0, n_columns - values.shape[1])))


def _rows_of_layer(params: LayerParams, first: int, spec: LayerSpec) -> LayerParams:
    """The parameters of a layer's nodes, given those of its kernels from the ``first`` on."""
    of = jax.tree.map(lambda of: of[first : first + spec.n_kernels], params)
    each = lambda of_kernels: jnp.repeat(of_kernels, spec.width // spec.n_kernels, axis=0)  # noqa: E731
    log_lengthscale = each(of.log_lengthscale[:, : spec.n_columns])
    return LayerParams(log_lengthscale, of.log_scale.reshape(-1), each(of.log_nugget))


def maximised(
    node: FreeNode, n_steps: Array | int, tolerance: Array | float
) -> tuple[LayerParams, Array]:
    """Maximise log density + log prior of one node."""

    def at(free: Array, fit: Fit) -> Value:
        return Value(fit.value + node.log_prior(free), node.log_scale(fit))

    def value(free: Array) -> Value:
        return at(free, node.fit(free))

    def slopes(free: Array) -> Slopes:
        of = node.derivatives(free)
        return Slopes(at(free, of.fit), of.gradient, of.information)

    unevaluated = node.task.params.log_scale
    objective = Objective(value, slopes)
    best = maximise(objective, node.start, *node.bounds, n_steps, unevaluated, tolerance)
    return node.params_at(best.point, best.at.extra), best.at.value


def _sampled(key: Array, node: FreeNode, n_moves: Array | int) -> tuple[LayerParams, Array]:
    """Move the free parameters of one node given its data, then draw its scale given them.

    The target is log p(w | γ, η) + log prior, as a density of the logarithms, zero outside of the
    bounds. A free scale is integrated out under p(σ²) ∝ 1/σ²: with Q = wᵀR⁻¹w + S/η = N σ̂²,

    ∫ p(w | γ, η, σ²) dσ²/σ² ∝ |R|^(−½) η^(−(N−n)/2) ∫ σ^(−N−2) exp(−Q/(2σ²)) dσ²
                             = |R|^(−½) η^(−(N−n)/2) Γ(N/2) (Q/2)^(−N/2),

    which is the density at its maximum, |R|^(−½) η^(−(N−n)/2) (Q/N)^(−N/2) exp(−N/2), but for a
    factor that depends on N alone: the solver's `fit` serves. The draw of σ² given the others then
    makes one draw of all parameters. Without moves there is none.
    """
    key_moves, key_scale = jax.random.split(key)
    lower, upper = node.bounds

    def log_density(free: Array) -> Array:
        inside = jnp.all((free >= lower) & (free <= upper))
        value = node.fit(free).value + node.log_prior(free) + node.log_jacobian(free)
        return jnp.where(inside, value, -jnp.inf)

    point, value = hit_and_run.hit_and_run(
        key_moves, log_density, node.start, node.movable, n_moves
    )
    drawn = hit_and_run.draw_log_scale(
        key_scale, node.fit(point).scale, node.task.sites.n_observations
    )
    draws = node.task.free_scale & (jnp.asarray(n_moves) > 0)
    return node.params_at(point, jnp.where(draws, drawn, node.task.params.log_scale)), value
