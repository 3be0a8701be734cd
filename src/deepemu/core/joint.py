"""Joint draws of imputed networks, layer by layer, and what is normal given a draw."""

from typing import Any

import jax

from deepemu._types import Array
from deepemu.core.ensemble import Member
from deepemu.core.keys import from_words
from deepemu.core.model.network import Data, Network, Params, layer_inputs, layer_nodes
from deepemu.core.nodes.node import Joint


def draw(
    key: Array,
    network: Network,
    params: Params,
    conditioned: list[tuple[Any, Array]],
    member: Member,
    data: Data,
    x: Array,
) -> Array:
    """One joint draw (m, P) of the last layer at known inputs (m, d), through drawn hidden layers.

    It has the nodes' nuggets, as one new run has. ``key`` is two words of 32 random bits.
    """
    below = _draw_below(network.depth, key, network, params, conditioned, member, data, x)
    return below[-1]


def _draw_below(
    layers: int,
    key: Array,
    network: Network,
    params: Params,
    conditioned: list[tuple[Any, Array]],
    member: Member,
    data: Data,
    x: Array,
) -> tuple[Array, ...]:
    """Joint draws of the first ``layers`` layers at known inputs."""
    below: tuple[Array, ...] = ()
    for layer, spec in enumerate(network.layers[:layers]):
        inputs = layer_inputs(network, layer, data.x, member.latents)
        at = layer_inputs(network, layer, x, below)
        nodes = layer_nodes(spec, params[layer])
        key_layer = jax.random.fold_in(from_words(key), layer)
        keys = jax.random.split(key_layer, spec.width)
        normals = jax.vmap(lambda k: jax.random.normal(k, x.shape[:1], x.dtype))(keys)
        drawn = jax.vmap(network.solver_of(layer).draw_posterior, in_axes=(0, 0, 0, None, None, 0))(
            nodes, *conditioned[layer], inputs, at, normals
        )
        below = (*below, drawn.T)
    return below


def given_hidden(
    key: Array,
    network: Network,
    params: Params,
    conditioned: list[tuple[Any, Array]],
    member: Member,
    data: Data,
    x: Array,
) -> Joint:
    """Means (P, m) and covariances (P, m, m) of the last layer, given one draw of those below."""
    last = network.depth - 1
    below = _draw_below(last, key, network, params, conditioned, member, data, x)
    nodes = layer_nodes(network.layers[last], params[last])
    inputs = layer_inputs(network, last, data.x, member.latents)
    at = layer_inputs(network, last, x, below)
    return jax.vmap(network.solver.joint, in_axes=(0, 0, 0, None, None))(
        nodes, *conditioned[last], inputs, at
    )
