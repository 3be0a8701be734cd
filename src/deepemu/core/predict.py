"""Prediction: a Gaussian pushed through the layers of imputed networks (Algorithm 1)."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from deepemu._types import Array, record
from deepemu.core.distributions import Gaussian, mixture
from deepemu.core.ensemble import Member
from deepemu.core.keys import from_words
from deepemu.core.model.network import Data, Network, Params, layer_inputs, layer_nodes
from deepemu.core.nodes import dense, linked
from deepemu.core.nodes.dense import Factor
from deepemu.core.nodes.linked import Inputs, Link, Linked, Way
from deepemu.core.nodes.node import Node

T = TypeVar("T")
Rows = TypeVar("Rows")
Prepared = tuple[Any, ...]
"""Layer by layer from the second, and stacked over nodes, what a `Way` made of the links."""


@dataclass(frozen=True)
class RowsInside:
    """Pairs are added up with test rows along the innermost axis: they fill a CPU's vector units,
    and read little on a GPU where features are few."""

    n_tiles: int = 1

    def map(self, function: Callable[[Inputs], Linked], rows: Inputs) -> Linked:
        return function(rows)


@dataclass(frozen=True)
class RowsOutside:
    """Pairs are added up for each test row on its own: a GPU's threads share many features in a
    cache. Fewer tiles than there are, or XLA would unroll the loop and compute features anew."""

    n_tiles: int = 8

    def map(self, function: Callable[[Inputs], Linked], rows: Inputs) -> Linked:
        def one(row: Inputs) -> Linked:
            found = function(jax.tree.map(lambda column: column[None], row))
            return jax.tree.map(lambda values: values[0], found)

        return jax.vmap(one)(rows)


@dataclass(frozen=True)
class Method:
    """How the moments of linked layers are computed.

    Level zero takes each kernel's cheapest way, the last of the levels its general one.
    """

    level: int
    rows: RowsInside | RowsOutside

    def way(self, network: Network, layer: int) -> Way:
        ways = _ways(network, layer)
        return ways[min(self.level, len(ways) - 1)]


def _ways(network: Network, layer: int) -> tuple[Way, ...]:
    return linked.ways(network.layers[layer].kernel, network.layers[layer - 1].width)


def n_levels(network: Network) -> int:
    """How many levels `Method` has for the network; one where no layer is linked."""
    return max((len(_ways(network, layer)) for layer in range(1, network.depth)), default=1)


@record
class Entered:
    """Moments of the first layer's outputs at test points, for the K imputations of a chain.

    They share the variances, because these do not depend on what was imputed.
    """

    means: Array  # (K, ..., P)
    var: Array  # (..., P)
    spread: Array  # (...,), the largest sum of variances in lengthscales of a node above


def enter(
    network: Network, params: Params, alpha: Array, whitening: Array, data: Data, x: Array
) -> Entered:
    """The first layer at test points x (m, d), given α (K, P, n) of a chain's imputations."""
    nodes = layer_nodes(network.layers[0], params[0])
    one = lambda node: dense.predict(node[0], Factor(node[1], node[2]), data.x, x)  # noqa: E731
    moments = lax.map(one, (nodes, whitening, jnp.swapaxes(alpha, 0, 1)))
    var = moments.var.T
    return Entered(jnp.transpose(moments.mean, (1, 2, 0)), var, _spread(network, params, var))


def _spread(network: Network, params: Params, var: Array) -> Array:
    """max_p sum_d v_d / γ_pd² (m,) over the nodes p of the second layer; zero if there is none."""
    if network.depth == 1:
        return jnp.zeros(len(var))
    inverse = layer_nodes(network.layers[1], params[1]).inverse_lengthscale[:, : var.shape[1]]
    return jnp.max(var @ (inverse**2).T, axis=1)


def propagate(
    network: Network,
    method: Method,
    member: Member,
    prepared: Prepared,
    data: Data,
    x: Array,
    below: Gaussian,
) -> Linked:
    """Moments (m, q) of the outputs at test points x (m, d), given those of the first layer (m, P).

    Each layer's outputs are treated as independent normals that feed the next layer, which makes
    the network a linked GP (section 2.2 of the paper). Nodes are visited one by one, so that the
    working memory is one node's.
    """
    suited = jnp.ones(len(x), bool)
    for layer in range(1, network.depth):
        found = _propagate_layer(network, method, layer, member, prepared, data, x, below)
        below = Gaussian(found.moments.mean.T, found.moments.var.T)
        suited = suited & jnp.all(found.suited, axis=0)
    return Linked(below, suited)


def _propagate_layer(
    network: Network,
    method: Method,
    layer: int,
    member: Member,
    prepared: Prepared,
    data: Data,
    x: Array,
    below: Gaussian,
) -> Linked:
    """Moments (P, m) of a layer's outputs, given those (m, .) of the layer below."""
    spec = network.layers[layer]
    way, inputs = method.way(network, layer), layer_inputs(network, layer, data.x, member.latents)
    at = Inputs(below, x[:, : spec.n_columns - below.mean.shape[1]])

    def one(node: tuple[Node, Array, Any]) -> Linked:
        return method.rows.map(lambda rows: linked.predict(way, *node, inputs, rows), at)

    nodes, alpha = layer_nodes(spec, member.params[layer]), member.links[layer - 1].alpha
    return lax.map(one, (nodes, alpha, prepared[layer - 1]))


def prepare(network: Network, method: Method, member: Member, data: Data) -> Prepared:
    """What the method needs of a member's linked layers, node by node."""

    def of_layer(layer: int, link: Link) -> Any:
        spec, n_uncertain = network.layers[layer], network.layers[layer - 1].width
        inputs = layer_inputs(network, layer, data.x, member.latents)
        of_node = lambda node, link: linked.prepare(  # noqa: E731
            method.way(network, layer), node, link, inputs, n_uncertain, method.rows.n_tiles
        )
        return jax.vmap(of_node)(layer_nodes(spec, member.params[layer]), link)

    return tuple(of_layer(layer, link) for layer, link in enumerate(member.links, 1))


def mix_in(
    network: Network,
    method: Method,
    members: Member,
    shares: Array,
    whitening: Array,
    data: Data,
    x: Array,
    n_rows: Array,
    mixed: Linked,
) -> Linked:
    """The mixture after some more members of a chain, stacked, given that of those before them.

    x (blocks, m, d) holds test points, of which the first n_rows are wanted. A member's share is
    its weight over the sum of the weights up to its own.

    Blocks are filled in the order of what is uncertain of the first layer's outputs, so that rows
    of a block are content with the same effort.
    """
    n_blocks = -(-n_rows // x.shape[1])
    entered = _enter_blocks(network, members, whitening, data, x, n_blocks)
    wanted = jnp.arange(entered.spread.size).reshape(x.shape[:2]) < n_rows
    # Padding goes last, behind NaN as well.
    most = jnp.finfo(x.dtype).max
    spread = jnp.where(entered.spread < most, entered.spread, most)
    order = jnp.argsort(jnp.where(wanted, spread, jnp.inf).ravel())
    means = jax.vmap(lambda mean: _reordered(mean, order))(entered.means)
    x, var, mixed = _reordered((x, entered.var, mixed), order)

    def add(mixed: Linked, step: tuple[Member, Array, Array]) -> tuple[Linked, None]:
        member, share, mean = step
        prepared = prepare(network, method, member, data)
        block = lambda rows: propagate(network, method, member, prepared, data, *rows)  # noqa: E731
        one = _first_blocks(block, n_blocks, (x, Gaussian(mean, var)), mixed)
        both = jax.tree.map(lambda *parts: jnp.stack(parts), mixed.moments, one.moments)
        moments = mixture(both, jnp.stack([1.0 - share, share]))
        return Linked(moments, mixed.suited & one.suited), None

    mixed, _ = lax.scan(add, mixed, (members, shares, means))
    return _reordered(mixed, jnp.argsort(order))


def _enter_blocks(
    network: Network, members: Member, whitening: Array, data: Data, x: Array, n_blocks: Array
) -> Entered:
    """`enter` for the first blocks of x (blocks, m, d), else zero."""
    params = jax.tree.map(lambda values: values[0], members.params)  # those of the chain
    blocks, m, width = *x.shape[:2], network.layers[0].width
    shapes = (blocks, len(members.alpha), m, width), (blocks, m, width), (blocks, m)
    block = lambda rows: enter(network, params, members.alpha, whitening, data, rows)  # noqa: E731
    entered = _first_blocks(block, n_blocks, x, Entered(*map(jnp.zeros, shapes)))
    return dataclasses.replace(entered, means=jnp.swapaxes(entered.means, 0, 1))


def _first_blocks(block: Callable[[Rows], T], n_blocks: Array, rows: Rows, found: T) -> T:
    """What ``block`` makes of the first blocks of rows; the others keep what stands there."""

    def at(index: Array, found: T) -> T:
        one = block(jax.tree.map(lambda each: each[index], rows))
        put = lambda whole, part: lax.dynamic_update_index_in_dim(whole, part, index, 0)  # noqa: E731
        return jax.tree.map(put, found, one)

    return lax.fori_loop(0, n_blocks, at, found)


def _reordered(rows: T, order: Array) -> T:
    """Rows of blocks (blocks, m, ...), taken in another order."""
    flat = lambda each: each.reshape(-1, *each.shape[2:])[order].reshape(each.shape)  # noqa: E731
    return jax.tree.map(flat, rows)


def draw(
    key: Array,
    network: Network,
    factors: tuple[Factor, ...],
    member: Member,
    data: Data,
    x: Array,
) -> Array:
    """One joint draw (m, q) of the outputs at known inputs (m, d), through drawn hidden layers.

    ``key`` is two words of 32 random bits.
    """
    below: tuple[Array, ...] = ()
    for layer, spec in enumerate(network.layers):
        inputs = layer_inputs(network, layer, data.x, member.latents)
        at = layer_inputs(network, layer, x, below)
        nodes = layer_nodes(spec, member.params[layer])
        key_layer = jax.random.fold_in(from_words(key), layer)
        keys = jax.random.split(key_layer, spec.width)
        normals = jax.vmap(lambda k: jax.random.normal(k, x.shape[:1], x.dtype))(keys)
        drawn = jax.vmap(dense.draw_posterior, in_axes=(0, 0, None, None, 0))(
            nodes, factors[layer], inputs, at, normals
        )
        below = (*below, drawn.T)
    return below[-1]
