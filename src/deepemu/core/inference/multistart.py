"""The parameters of a plain Gaussian process: the best of several starts."""

import functools

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core.inference.m_step import fit_layers
from deepemu.core.inference.steps import Nodes
from deepemu.core.model.network import Data, LayerParams, Network

Found = tuple[LayerParams, Array]
"""Parameters and objective (P,) of all nodes."""


def best_ascent(
    network: Network,
    nodes: Nodes,
    starts: LayerParams,
    data: Data,
    n_scout: Array,
    n_polish: Array,
    tolerance: Array,
) -> Found:
    """A one-layer network's best parameters and objective, node by node.

    After a few steps from each start (along the first axis), the best one is run to convergence.
    """
    n_starts = len(starts.log_scale)

    # One loop for both, because the ascent is most of the program and would be compiled twice.
    def ascend(index: Array, found: Found) -> Found:
        is_last, one = index == n_starts, jax.tree.map(lambda each: each[index], starts)
        start = jax.tree.map(lambda best, new: jnp.where(is_last, best, new), found[0], one)
        n_steps = jnp.where(is_last, n_polish, n_scout)
        (end,), values = fit_layers(nodes, network, [0], (start,), (), data, n_steps, tolerance)
        return _better(is_last | (values > found[1]), (end, values), found)

    first = jax.tree.map(lambda each: each[0], starts)
    lowest = jnp.full_like(first.log_scale, -jnp.inf)
    return jax.lax.fori_loop(0, n_starts + 1, ascend, (first, lowest))


def _better(is_better: Array, new: Found, old: Found) -> Found:
    """The new parameters and objective of the nodes (P,) for which they are better."""
    of_node = lambda better, *both: jax.tree.map(functools.partial(jnp.where, better), *both)  # noqa: E731
    return jax.vmap(of_node)(is_better, new, old)
