"""The parameters of a plain Gaussian process: the best of several starts."""

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core.inference.m_step import fit_layers
from deepemu.core.inference.steps import Nodes
from deepemu.core.model.network import Data, LayerParams, Network


def best_ascent(
    network: Network,
    nodes: Nodes,
    starts: LayerParams,
    data: Data,
    n_scout: Array,
    n_polish: Array,
    tolerance: Array,
) -> tuple[LayerParams, Array]:
    """A one-layer network's best parameters and objective, node by node.

    After a few steps from each start (along the first axis), the best one is run to convergence.
    """

    def ascend(start: LayerParams, n_steps: Array) -> tuple[LayerParams, Array]:
        (fitted,), values = fit_layers(nodes, network, [0], (start,), (), data, n_steps, tolerance)
        return fitted, values

    ends, values = jax.lax.map(lambda start: ascend(start, n_scout), starts)
    best = jnp.argmax(jnp.where(jnp.isnan(values), -jnp.inf, values), axis=0)
    choose = jax.vmap(lambda tries, i: tries[i], (1, 0))
    return ascend(jax.tree.map(lambda each: choose(each, best), ends), n_polish)
