"""Training by stochastic expectation maximisation (Algorithm 3), or with parameters sampled."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import keys
from deepemu.core.inference import impute
from deepemu.core.inference.impute import Brackets, Imputation, Moves
from deepemu.core.inference.m_step import InTurn, Maximise, MStep, Nodes, layer_task, update_layers
from deepemu.core.model.network import Data, LayerParams, Network, Params


@dataclass(frozen=True)
class Schedule:
    """What is compiled into a block of training: how imputation moves, its length, whether the
    M-step takes nodes in turn, and what it does."""

    moves: Moves
    block: int
    nodes: Nodes = InTurn()
    m_step: MStep = Maximise()


@record
class Effort:
    """What a block is told when it runs: sweeps per I-step, scoring steps (or moves, where
    parameters are sampled) per M-step, brackets.

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
    """I-step: impute the hidden layers. M-step: improve (or move) every node's parameters given
    them."""
    imputation = impute.sweeps(
        key, network, schedule.moves, chain.params, chain.imputation, data, effort.n_sweeps,
        effort.brackets,
    )  # fmt: skip
    tasks = [
        layer_task(network, layer, chain.params[layer], imputation.latents, data)
        for layer in range(network.depth)
    ]
    update = schedule.m_step.update(key, effort.n_scoring)
    params: dict[int, LayerParams] = {}
    total = jnp.zeros((), data.x.dtype)
    for group in schedule.nodes.groups(network.layers):
        some = [tasks[layer] for layer in group]
        fitted, values = update_layers(schedule.nodes, some, update)
        params |= zip(group, fitted, strict=True)
        total += jnp.sum(values)
    return Chain(tuple(params[layer] for layer in range(network.depth)), imputation), total
