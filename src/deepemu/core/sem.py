"""Training by stochastic expectation maximisation (Algorithm 3)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import dense, impute, keys
from deepemu.core.dense import Fit, Node, Sites
from deepemu.core.impute import Brackets, Imputation, Moves
from deepemu.core.maximise import Objective, Slopes, Value, maximise
from deepemu.core.network import (
    Data,
    LayerParams,
    LayerSpec,
    Network,
    Params,
    geometry,
    layer_inputs,
    layer_sites,
    layer_targets,
)
from deepemu.core.priors import Geometry

T = TypeVar("T")

# Logarithms of 1e-3 … 1e3 and 1e-7 … 1e2. A smaller nugget is lost in the round-off of the linked
# variance, which sums terms of the size of R⁻¹.
LENGTHSCALE_BOUNDS = (-6.9, 6.9)
NUGGET_BOUNDS = (-16.1, 4.6)


@dataclass(frozen=True)
class InTurn:
    """Nodes one after the other: right for a CPU, and half as long to compile."""

    def map(self, function: Callable[..., T], *nodes: Any) -> T:
        return jax.lax.map(lambda node: function(*node), nodes)


@dataclass(frozen=True)
class Together:
    """All nodes of a layer in batches: right for a GPU."""

    def map(self, function: Callable[..., T], *nodes: Any) -> T:
        return jax.vmap(function)(*nodes)


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
        put = lambda path, now: path.at[index].set(now)  # noqa: E731
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
    params, values = [], []
    for layer, spec in enumerate(network.layers):
        inputs = layer_inputs(network, layer, data.x, imputation.latents)
        targets = layer_targets(network, layer, data, imputation.latents)
        fitted, value = fit_layer(
            schedule.nodes, spec, chain.params[layer], inputs, targets,
            layer_sites(network, layer, data), effort.n_scoring,
        )  # fmt: skip
        params.append(fitted)
        values.append(jnp.sum(value))
    return Chain(tuple(params), imputation), sum(values[1:], values[0])


def fit_layer(
    nodes: Nodes,
    spec: LayerSpec,
    params: LayerParams,
    inputs: Array,
    targets: Array,
    sites: Sites,
    n_steps: Array | int,
    tolerance: Array | float = 0.0,
) -> tuple[LayerParams, Array]:
    """Maximise log density + log prior of each node of a layer; returns the objective as well."""
    shapes = geometry(spec, inputs, sites.used[0])

    def fit(
        reads: Array, start: LayerParams, target: Array, site: Sites, shape: Geometry
    ) -> tuple[LayerParams, Array]:
        return _fit_node(spec, reads, start, inputs, target, site, shape, n_steps, tolerance)

    return nodes.map(fit, jnp.asarray(spec.reads), params, targets.T, sites, shapes)


def _fit_node(
    spec: LayerSpec,
    reads: Array,
    params: LayerParams,
    inputs: Array,
    target: Array,
    sites: Sites,
    shape: Geometry,
    n_steps: Array | int,
    tolerance: Array | float,
) -> tuple[LayerParams, Array]:
    ties = _ties(spec, inputs.dtype)
    n_free = ties.shape[1]

    def unpack(free: Array) -> tuple[Array, Array]:
        return ties @ free[:n_free], free[n_free] if spec.free_nugget else params.log_nugget

    def node_at(free: Array) -> Node:
        log_lengthscale, log_nugget = unpack(free)
        inverse = jnp.where(reads, jnp.exp(-log_lengthscale), 0.0)
        return Node(spec.kernel, inverse, jnp.exp(params.log_scale), jnp.exp(log_nugget))

    def log_prior(free: Array) -> Array:
        return spec.prior.log_density(*unpack(free), shape)

    def at(free: Array, fit: Fit) -> Value:
        extra = jnp.log(fit.scale) if spec.free_scale else params.log_scale
        return Value(fit.value + log_prior(free), extra)

    def value(free: Array) -> Value:
        return at(free, dense.fit(node_at(free), inputs, target, sites, spec.free_scale))

    def slopes(free: Array) -> Slopes:
        of = dense.derivatives(node_at(free), inputs, target, sites, spec.free_scale)
        curvature = jnp.diag(jnp.append(*spec.prior.curvature(*unpack(free), shape)))
        into = _block_diagonal(ties, spec.free_nugget)
        return Slopes(
            at(free, of.fit),
            into.T @ of.gradient + jax.grad(log_prior)(free),
            into.T @ (of.information + curvature) @ into,
        )

    start, lower, upper = _start_and_bounds(spec, params, ties)
    objective = Objective(value, slopes)
    best = maximise(objective, start, lower, upper, n_steps, params.log_scale, tolerance)
    log_lengthscale, log_nugget = unpack(best.point)
    return LayerParams(log_lengthscale, best.at.extra, log_nugget), best.at.value


def _ties(spec: LayerSpec, dtype: jnp.dtype) -> Array:
    """T with log γ = T φ: the identity, or one column of ones where all columns share one γ."""
    n = spec.n_columns
    return jnp.ones((n, 1), dtype) if spec.shared_lengthscale else jnp.eye(n, dtype=dtype)


def _block_diagonal(ties: Array, free_nugget: bool) -> Array:
    """∂(log γ, log η)/∂φ; the last row is zero where the nugget is held."""
    n_columns, n_free = ties.shape
    into = jnp.zeros((n_columns + 1, n_free + free_nugget), ties.dtype)
    into = into.at[:n_columns, :n_free].set(ties)
    return into.at[n_columns, n_free:].set(1.0)


def _start_and_bounds(
    spec: LayerSpec, params: LayerParams, ties: Array
) -> tuple[Array, Array, Array]:
    n_free = ties.shape[1]
    start = params.log_lengthscale[:n_free]
    lower, upper = (jnp.full_like(start, bound) for bound in LENGTHSCALE_BOUNDS)
    if spec.free_nugget:
        start = jnp.append(start, params.log_nugget)
        lower, upper = (
            jnp.append(side, bound)
            for side, bound in zip((lower, upper), NUGGET_BOUNDS, strict=True)
        )
    return start, lower, upper
