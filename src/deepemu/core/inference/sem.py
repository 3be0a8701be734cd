"""Training by stochastic expectation maximisation (Algorithm 3), or with parameters sampled."""

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import keys
from deepemu.core.inference import guided, impute
from deepemu.core.inference.impute import Imputation
from deepemu.core.inference.m_step import update_layers
from deepemu.core.inference.steps import Guided, Steps
from deepemu.core.model.network import Data, LayerParams, Network, Params, log_likelihood


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
    steps: Steps,
    chain: Chain,
    data: Data,
    first: Array | int,
    n_iterations: Array | int,
) -> tuple[Chain, Trace]:
    """``n_iterations`` ≤ ``steps.block`` iterations of SEM from the ``first``, with their trace.

    The number of iterations is not a shape: the trace has ``steps.block`` entries of which the
    first ``n_iterations`` are filled. Draws belong to an iteration, wherever blocks are cut.
    ``key`` is two words of 32 random bits.
    """
    empty = Trace(
        jax.tree.map(lambda p: jnp.zeros((steps.block, *p.shape), p.dtype), chain.params),
        jnp.zeros(steps.block, data.x.dtype),
    )

    def iterate(index: Array, carry: tuple[Chain, Trace]) -> tuple[Chain, Trace]:
        chain, trace = carry
        key_now = jax.random.fold_in(keys.from_words(key), first + index)
        chain, value = step(key_now, network, steps, chain, data)
        # A slice, where ``.at[index].set`` would be a scatter, which takes longer to compile.
        put = lambda path, now: jax.lax.dynamic_update_index_in_dim(path, now, index, 0)  # noqa: E731
        return chain, jax.tree.map(put, trace, Trace(chain.params, value))

    return jax.lax.fori_loop(0, n_iterations, iterate, (chain, empty))


def step(
    key: Array, network: Network, steps: Steps, chain: Chain, data: Data
) -> tuple[Chain, Array]:
    """I-step: impute the latent layers. M-step: improve (or move) every node's parameters given
    them."""
    sweeps = guided.sweeps if isinstance(steps.moves, Guided) else impute.sweeps
    imputation = sweeps(key, network, steps, chain.params, chain.imputation, data)
    update = steps.m_step.update(key, steps.n_scoring)
    params: dict[int, LayerParams] = {}
    total = log_likelihood(network, imputation.latents, data)
    for group in steps.nodes.groups(network):
        fitted, values = update_layers(
            steps.nodes, network, group, chain.params, imputation.latents, data, update
        )
        params |= zip(group, fitted, strict=True)
        total += jnp.sum(values)
    return Chain(tuple(params[layer] for layer in range(network.depth)), imputation), total
