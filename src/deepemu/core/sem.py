"""Training by stochastic expectation maximisation (Algorithm 3)."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import dense, impute, keys
from deepemu.core.dense import Fit, Node, Sites
from deepemu.core.impute import Brackets, Imputation, Moves
from deepemu.core.kernels import Kernel
from deepemu.core.maximise import Objective, Slopes, Value, maximise
from deepemu.core.network import (
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
from deepemu.core.priors import Geometry, Prior

T = TypeVar("T")

# Logarithms of 1e-3 … 1e3 and 1e-7 … 1e2. A smaller nugget is lost in the round-off of the linked
# variance, which sums terms of the size of R⁻¹.
LENGTHSCALE_BOUNDS = (-6.9, 6.9)
NUGGET_BOUNDS = (-16.1, 4.6)


@dataclass(frozen=True)
class Kind:
    """What nodes have in common that the same piece of a program fits."""

    kernel: Kernel
    prior: Prior
    shared_lengthscale: bool
    free_nugget: bool

    @classmethod
    def of(cls, spec: LayerSpec) -> "Kind":
        return cls(spec.kernel, spec.prior, spec.shared_lengthscale, spec.free_nugget)


@dataclass(frozen=True)
class InTurn:
    """Nodes one after the other, those of all layers by one piece of a program: right for a CPU,
    and a fraction of the time to compile."""

    def map(self, function: Callable[..., T], *nodes: Any) -> T:
        return jax.lax.map(lambda node: function(*node), nodes)

    def groups(self, layers: Sequence[LayerSpec]) -> list[list[int]]:
        """The places of layers of the same kind, kind by kind."""
        alike: dict[Kind, list[int]] = {}
        for place, spec in enumerate(layers):
            alike.setdefault(Kind.of(spec), []).append(place)
        return list(alike.values())


@dataclass(frozen=True)
class Together:
    """All nodes of a layer in batches: right for a GPU."""

    def map(self, function: Callable[..., T], *nodes: Any) -> T:
        return jax.vmap(function)(*nodes)

    def groups(self, layers: Sequence[LayerSpec]) -> list[list[int]]:
        """Each layer by itself, so that memory holds the matrices of one."""
        return [[place] for place in range(len(layers))]


Nodes = InTurn | Together


@dataclass(frozen=True)
class Schedule:
    """What is compiled into a block of training: how imputation moves, its length, and whether
    the M-step takes nodes in turn."""

    moves: Moves
    block: int
    nodes: Nodes = InTurn()


@record
class Effort:
    """What a block is told when it runs: sweeps per I-step, scoring steps per M-step, brackets.

    No scoring steps and no adaptation leave parameters and brackets as they are: imputation alone.
    """

    n_sweeps: Array
    n_scoring: Array
    brackets: Brackets


@record
class Chain:
    """One chain of the algorithm: parameters and the sampler's state."""

    params: Params
    imputation: Imputation


@record
class Trace:
    """Parameters and complete-data log posterior density after each iteration of a block."""

    params: Params
    log_density: Array


def train_block(
    key: Array,
    network: Network,
    schedule: Schedule,
    effort: Effort,
    chain: Chain,
    data: Data,
    first: Array | int,
    n_iterations: Array | int,
) -> tuple[Chain, Trace]:
    """``n_iterations`` ≤ ``schedule.block`` iterations of SEM from the ``first``, with their trace.

    The number of iterations is not a shape: the trace has ``schedule.block`` entries of which the
    first ``n_iterations`` are filled. Draws belong to an iteration, wherever blocks are cut.
    ``key`` is two words of 32 random bits.
    """
    empty = Trace(
        jax.tree.map(lambda p: jnp.zeros((schedule.block, *p.shape), p.dtype), chain.params),
        jnp.zeros(schedule.block, data.x.dtype),
    )

    def iterate(index: Array, carry: tuple[Chain, Trace]) -> tuple[Chain, Trace]:
        chain, trace = carry
        key_now = jax.random.fold_in(keys.from_words(key), first + index)
        chain, value = step(key_now, network, schedule, effort, chain, data)
        # A slice, where ``.at[index].set`` would be a scatter, which takes longer to compile.
        put = lambda path, now: jax.lax.dynamic_update_index_in_dim(path, now, index, 0)  # noqa: E731
        return chain, jax.tree.map(put, trace, Trace(chain.params, value))

    return jax.lax.fori_loop(0, n_iterations, iterate, (chain, empty))


def step(
    key: Array, network: Network, schedule: Schedule, effort: Effort, chain: Chain, data: Data
) -> tuple[Chain, Array]:
    """I-step: impute the hidden layers. M-step: improve every node's parameters given them."""
    imputation = impute.sweeps(
        key, network, schedule.moves, chain.params, chain.imputation, data, effort.n_sweeps,
        effort.brackets,
    )  # fmt: skip
    tasks = [
        _layer_task(network, layer, chain.params[layer], imputation.latents, data)
        for layer in range(network.depth)
    ]
    params: dict[int, LayerParams] = {}
    total = jnp.zeros((), data.x.dtype)
    for group in schedule.nodes.groups(network.layers):
        some = [tasks[layer] for layer in group]
        fitted, values = fit_layers(schedule.nodes, some, effort.n_scoring)
        params |= zip(group, fitted, strict=True)
        total += jnp.sum(values)
    return Chain(tuple(params[layer] for layer in range(network.depth)), imputation), total


@record
class LayerTask:
    """A layer to be fitted: where its parameters are now, inputs (n, D), targets (n, P), sites."""

    spec: LayerSpec = field(metadata={"static": True})
    params: LayerParams
    inputs: Array
    targets: Array
    sites: Sites


def _layer_task(
    network: Network, layer: int, params: LayerParams, latents: Latents, data: Data
) -> LayerTask:
    return LayerTask(
        network.layers[layer],
        params,
        layer_inputs(network, layer, data.x, latents),
        layer_targets(network, layer, data, latents),
        layer_sites(network, layer, data),
    )


@record
class _NodeTask:
    """A node to be fitted, or several, stacked; ``layer`` is the place of its inputs."""

    reads: Array
    free_scale: Array
    params: LayerParams
    target: Array
    sites: Sites
    shape: Geometry
    layer: Array


def fit_layers(
    nodes: Nodes,
    layers: Sequence[LayerTask],
    n_steps: Array | int,
    tolerance: Array | float = 0.0,
) -> tuple[list[LayerParams], Array]:
    """Maximise log density + log prior of each node of layers of one kind.

    Returns the objectives of all nodes as well. Narrow layers get columns that nobody reads.
    """
    n_columns = max(task.spec.n_columns for task in layers)
    kind = Kind.of(layers[0].spec)
    inputs = jnp.stack([_widened(task.inputs, n_columns) for task in layers])
    tasks = [_node_tasks(task, place, n_columns) for place, task in enumerate(layers)]
    stacked = jax.tree.map(lambda *parts: jnp.concatenate(parts), *tasks)

    def fit(node: _NodeTask) -> tuple[LayerParams, Array]:
        return _fit_node(kind, node, inputs[node.layer], n_steps, tolerance)

    fitted, values = nodes.map(fit, stacked)
    ends = list(itertools.accumulate(task.spec.width for task in layers))
    return [
        _rows_of_layer(fitted, end - task.spec.width, task.spec)
        for task, end in zip(layers, ends, strict=True)
    ], values


def _node_tasks(task: LayerTask, place: int, n_columns: int) -> _NodeTask:
    """All nodes of a layer, with columns that nobody reads up to ``n_columns``."""
    spec, width = task.spec, task.spec.width
    shape = geometry(spec, task.inputs, task.sites.used[0])
    widened = functools.partial(_widened, n_columns=n_columns)
    return _NodeTask(
        widened(jnp.asarray(spec.reads)),
        jnp.full(width, spec.free_scale),
        dataclasses.replace(task.params, log_lengthscale=widened(task.params.log_lengthscale)),
        task.targets.T,
        task.sites,
        dataclasses.replace(shape, span=widened(shape.span), weight=widened(shape.weight)),
        jnp.full(width, place),
    )


def _widened(values: Array, n_columns: int) -> Array:
    """Columns of zeros appended up to ``n_columns``."""
    return jnp.pad(values, ((0, 0), (0, n_columns - values.shape[1])))


def _rows_of_layer(params: LayerParams, first: int, spec: LayerSpec) -> LayerParams:
    rows = jax.tree.map(lambda of: of[first : first + spec.width], params)
    return dataclasses.replace(rows, log_lengthscale=rows.log_lengthscale[:, : spec.n_columns])


def _fit_node(
    kind: Kind,
    node: _NodeTask,
    inputs: Array,
    n_steps: Array | int,
    tolerance: Array | float,
) -> tuple[LayerParams, Array]:
    """Maximise log density + log prior of one node."""
    params, n_free = node.params, _n_free_lengthscales(kind, inputs.shape[1])

    def unpack(free: Array) -> tuple[Array, Array]:
        log_lengthscale = jnp.broadcast_to(free[:n_free], params.log_lengthscale.shape)
        return log_lengthscale, free[n_free] if kind.free_nugget else params.log_nugget

    def node_at(free: Array) -> Node:
        log_lengthscale, log_nugget = unpack(free)
        inverse = jnp.where(node.reads, jnp.exp(-log_lengthscale), 0.0)
        return Node(kind.kernel, inverse, jnp.exp(params.log_scale), jnp.exp(log_nugget))

    def log_prior(free: Array) -> Array:
        return kind.prior.log_density(*unpack(free), node.shape)

    def at(free: Array, fit: Fit) -> Value:
        extra = jnp.where(node.free_scale, jnp.log(fit.scale), params.log_scale)
        return Value(fit.value + log_prior(free), extra)

    def value(free: Array) -> Value:
        return at(free, dense.fit(node_at(free), inputs, node.target, node.sites, node.free_scale))

    def slopes(free: Array) -> Slopes:
        of = dense.derivatives(node_at(free), inputs, node.target, node.sites, node.free_scale)
        curvature = jnp.diag(jnp.append(*kind.prior.curvature(*unpack(free), node.shape)))
        information = _of_free(kind, of.information + curvature)
        return Slopes(
            at(free, of.fit),
            _of_free(kind, of.gradient) + jax.grad(log_prior)(free),
            _of_free(kind, information.T),
        )

    start, lower, upper = _start_and_bounds(kind, params, n_free)
    objective = Objective(value, slopes)
    best = maximise(objective, start, lower, upper, n_steps, params.log_scale, tolerance)
    log_lengthscale, log_nugget = unpack(best.point)
    return LayerParams(log_lengthscale, best.at.extra, log_nugget), best.at.value


def _n_free_lengthscales(kind: Kind, n_columns: int) -> int:
    return 1 if kind.shared_lengthscale else n_columns


def _of_free(kind: Kind, slopes: Array) -> Array:
    """Derivatives along the first axis in the free parameters, given those in (log γ, log η).

    Those in lengthscales that are one parameter add up; that in a nugget that is held is dropped.
    """
    columns, nugget = slopes[:-1], slopes[-1:]
    free = jnp.sum(columns, axis=0, keepdims=True) if kind.shared_lengthscale else columns
    return jnp.concatenate([free, nugget]) if kind.free_nugget else free


def _start_and_bounds(kind: Kind, params: LayerParams, n_free: int) -> tuple[Array, Array, Array]:
    start = params.log_lengthscale[:n_free]
    lower, upper = (jnp.full_like(start, bound) for bound in LENGTHSCALE_BOUNDS)
    if kind.free_nugget:
        start = jnp.append(start, params.log_nugget)
        lower, upper = (
            jnp.append(side, bound)
            for side, bound in zip((lower, upper), NUGGET_BOUNDS, strict=True)
        )
    return start, lower, upper
