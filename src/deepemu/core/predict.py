"""Prediction: a Gaussian pushed through the layers of imputed networks (Algorithm 1)."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from deepemu._types import Array, record
from deepemu.core.distributions import Gaussian
from deepemu.core.ensemble import Member, conditional_mean
from deepemu.core.model.network import (
    Data,
    Network,
    Params,
    inputs_in_lengthscales,
    layer_inputs,
    layer_nodes,
    layer_parts,
)
from deepemu.core.nodes.linked import Inputs, Link, Linked, Scheme
from deepemu.core.nodes.nearest import nearest
from deepemu.core.nodes.node import Node

T = TypeVar("T")
Rows = TypeVar("Rows")
Prepared = tuple[Any, ...]
"""The links prepared by a `Scheme`, layer by layer from the second, stacked over nodes."""


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


RowOrder = RowsInside | RowsOutside


@dataclass(frozen=True)
class Method:
    """How the moments of linked layers are computed.

    Level zero takes each kernel's cheapest scheme, the last of the levels its general one.
    """

    level: int
    rows: RowOrder

    def scheme(self, network: Network, layer: int) -> Scheme:
        schemes = _schemes(network, layer)
        return schemes[min(self.level, len(schemes) - 1)]


def _schemes(network: Network, layer: int) -> tuple[Scheme, ...]:
    kernel, n_uncertain = network.layers[layer].kernel, network.n_uncertain(layer)
    return network.solver_of(layer).schemes(kernel, n_uncertain)


def n_levels(network: Network) -> int:
    """How many levels `Method` has for the network; one where no layer is linked."""
    return max((len(_schemes(network, layer)) for layer in range(1, network.depth)), default=1)


@record
class Points:
    """Test points x (m, d), and for a solver that asks for them the rows near each (m, k)."""

    x: Array
    near: Array | None = None


def in_lengthscales(
    network: Network, params: Params, member: Member, data: Data, x: Array
) -> Array:
    """The last layer's inputs (m, D) in lengthscales at x (m, d), by one imputed network."""
    below = conditional_mean(network, params, member, data, x)
    return inputs_in_lengthscales(network, params[-1], below, x)


def with_near(network: Network, params: Params, members: Member, data: Data, x: Array) -> Points:
    """Test points with the rows near each, if the solver asks for them.

    They are near by the first of K imputations, and stand for all: imputations of a chain hardly
    differ in which rows are near.
    """
    if not network.solver.n_predict:
        return Points(x)
    first = jax.tree.map(lambda each: each[0], members)
    rows = inputs_in_lengthscales(network, params[-1], first.latents, data.x)
    at = in_lengthscales(network, params, first, data, x)
    near = nearest(*lax.stop_gradient((rows, data.used > 0, at)), network.solver.n_predict)
    return Points(x, near)


@record
class Entered:
    """Moments of the first layer's outputs at test points, for K imputations of equal parameters.

    They share the variances, which do not depend on the imputation.
    """

    means: Array  # (K, ..., P)
    var: Array  # (..., P)


def enter(
    network: Network, params: Params, conditioned: Any, alpha: Array, data: Data, at: Points
) -> Entered:
    """The first layer at m test points, given α (K, P, n) of imputations."""
    nodes, solver = layer_nodes(network.layers[0], params[0]), network.solver_of(0)
    near = at.near if network.depth == 1 else None

    def one(each: tuple[Node, Any, Array]) -> Gaussian:
        node, ready, alpha = each
        ready = ready if near is None else solver.with_near(ready, near)
        return solver.predict(node, ready, alpha, data.x, at.x)

    moments = lax.map(one, (nodes, conditioned, jnp.swapaxes(alpha, 0, 1)))
    return Entered(jnp.transpose(moments.mean, (1, 2, 0)), moments.var.T)


def propagate(
    network: Network,
    method: Method,
    params: Params,
    member: Member,
    prepared: Prepared,
    data: Data,
    points: Points,
    first: Gaussian,
) -> Linked:
    """Moments (m, P) of the last layer at m test points, given those of the first (m, P).

    Each layer's outputs are treated as independent normals that feed the layers above, which makes
    the network a linked GP (section 2.2 of the paper). Nodes are visited one by one, so that the
    working memory is one node's.
    """
    x, outputs = points.x, [first]
    errors, accurate = jnp.zeros(len(x)), jnp.ones(len(x), bool)
    for layer in range(1, network.depth):
        below = _joined(x, [outputs[source] for source in network.sources(layer)])
        near = points.near if layer == network.depth - 1 else None
        at = replace(_inputs_of_layer(network, layer, below, x), near=near)
        found = _propagate_layer(network, method, layer, params, member, prepared, data, at)
        outputs.append(Gaussian(found.moments.mean.T, found.moments.var.T))
        errors = jnp.maximum(errors, jnp.max(found.error, axis=0))
        accurate = accurate & jnp.all(found.accurate, axis=0)
    return Linked(outputs[-1], errors, accurate)


def _propagate_layer(
    network: Network,
    method: Method,
    layer: int,
    params: Params,
    member: Member,
    prepared: Prepared,
    data: Data,
    at: Inputs,
) -> Linked:
    """Moments (P, m) of a layer's outputs."""
    scheme = method.scheme(network, layer)
    inputs = layer_inputs(network, layer, data.x, member.latents)

    def one(node: tuple[Node, Array, Any]) -> Linked:
        return method.rows.map(lambda rows: scheme.predict(*node, inputs, rows), at)

    nodes = layer_nodes(network.layers[layer], params[layer])
    return lax.map(one, (nodes, member.alphas[layer], prepared[layer - 1]))


def _inputs_of_layer(network: Network, layer: int, below: Gaussian, x: Array) -> Inputs:
    known = x[:, : network.layers[layer].n_columns - network.n_hidden(layer)]
    if network.n_uncertain(layer) or not network.n_hidden(layer):
        return Inputs(below, known)
    nothing = jax.tree.map(lambda each: each[:, :0], below)
    return Inputs(nothing, jnp.concatenate([below.mean, known], axis=1))


def _joined(x: Array, layers: list[Gaussian]) -> Gaussian:
    """Outputs of several layers, or of none, at the rows of x, one beside the other."""
    if not layers:
        return Gaussian(x[:, :0], x[:, :0])
    return jax.tree.map(lambda *columns: jnp.concatenate(columns, axis=1), *layers)


def prepare(
    network: Network, method: Method, params: Params, member: Member, data: Data
) -> Prepared:
    """The method's preparation of a member's linked layers, node by node."""

    def of_layer(layer: int, link: Link) -> Any:
        inputs = layer_inputs(network, layer, data.x, member.latents)
        of_node = lambda node, link: method.scheme(network, layer).prepare(  # noqa: E731
            node, link, inputs, network.n_uncertain(layer), method.rows.n_tiles
        )
        return jax.vmap(of_node)(layer_nodes(network.layers[layer], params[layer]), link)

    return tuple(of_layer(layer, link) for layer, link in enumerate(member.links, 1))


def through(
    network: Network, method: Method, params: Params, member: Member, data: Data
) -> Callable[[Points, Gaussian], Linked]:
    """`propagate` by a member whose linked layers are prepared once."""
    prepared = prepare(network, method, params, member, data)
    return functools.partial(propagate, network, method, params, member, prepared, data)


def predict(
    network: Network,
    method: Method,
    params: Params,
    conditioned: Any,
    data: Data,
    members: Member,
    at: Points,
    n_rows: Array,
) -> Linked:
    """Moments (K, blocks · m, P) of the last layer by K imputations of equal parameters.

    There are blocks of m test points, of which the first n_rows are wanted.
    """
    n_blocks = -(-n_rows // at.x.shape[1])
    entered = _enter_blocks(network, params, conditioned, members.alpha, data, at, n_blocks)

    def of_member(one: tuple[Member, Array]) -> Linked:
        member, mean = one
        onwards = through(network, method, params, member, data)
        rows = at, Gaussian(mean, entered.var)
        return _first_blocks(lambda rows: onwards(*rows), n_blocks, rows, _nothing(network, at.x))

    return _rows_in_line(lax.map(of_member, (members, entered.means)))


def predict_again(
    network: Network,
    method: Method,
    params: Params,
    conditioned: Any,
    data: Data,
    members: Member,
    points: Points,
    rows: Array,
    n_rows: Array,
) -> Linked:
    """The same by each imputation at rows of its own, (K, blocks, m) of them among the test points,
    the first n_rows (K,) of which are wanted."""
    in_line = jax.tree.map(lambda each: each.reshape(-1, each.shape[-1]), points)

    def of_member(one: tuple[Member, Array, Array]) -> Linked:
        member, rows, n_rows = one
        onwards = through(network, method, params, member, data)

        def block(rows: Array) -> Linked:
            at = jax.tree.map(lambda each: each[rows], in_line)
            entered = enter(network, params, conditioned, member.alpha[None], data, at)
            return onwards(at, Gaussian(entered.means[0], entered.var))

        return _first_blocks(block, -(-n_rows // rows.shape[1]), rows, _nothing(network, rows))

    def of_wanted(one: tuple[Member, Array, Array]) -> Linked:
        """Where no rows are wanted, nothing is prepared either."""
        return lax.cond(one[2] > 0, of_member, lambda one: _nothing(network, one[1]), one)

    return _rows_in_line(lax.map(of_wanted, (members, rows, n_rows)))


def _nothing(network: Network, rows: Array) -> Linked:
    """Zeros at rows (blocks, m, …)."""
    moments = jnp.zeros((*rows.shape[:2], network.layers[-1].width))
    error, accurate = jnp.zeros(rows.shape[:2]), jnp.ones(rows.shape[:2], bool)
    return Linked(Gaussian(moments, moments), error, accurate)


def _rows_in_line(found: Linked) -> Linked:
    """(K, blocks, m, …) as (K, blocks · m, …)."""
    return jax.tree.map(lambda each: each.reshape(len(each), -1, *each.shape[3:]), found)


def predict_uncertain(
    network: Network, level: int, params: Params, data: Data, at: Gaussian
) -> Linked:
    """Moments (m, P) of a one-layer network where inputs (m, d) are normal: (3) and (4)."""
    nodes, inputs, targets, sites = layer_parts(network, 0, params, (), data)
    n_uncertain = inputs.shape[1]
    scheme = network.solver.schemes(network.layers[0].kernel, n_uncertain)[level]
    links = jax.vmap(network.solver.link, in_axes=(0, None, 0, 0))(nodes, inputs, targets, sites)
    ready = lambda node, link: scheme.prepare(node, link, inputs, n_uncertain)  # noqa: E731
    each: tuple[Node, Array, Any] = (nodes, links.alpha, jax.vmap(ready)(nodes, links))
    rows = Inputs(at, at.mean[:, :0])
    found = lax.map(lambda one: scheme.predict(one[0], one[1], one[2], inputs, rows), each)
    moments = Gaussian(found.moments.mean.T, found.moments.var.T)
    return Linked(moments, jnp.max(found.error, axis=0), jnp.all(found.accurate, axis=0))


def _enter_blocks(
    network: Network,
    params: Params,
    conditioned: Any,
    alpha: Array,
    data: Data,
    at: Points,
    n_blocks: Array,
) -> Entered:
    """`enter` for the first blocks of test points (blocks, m), else zero."""
    (blocks, m), width = at.x.shape[:2], network.layers[0].width
    shapes = (blocks, len(alpha), m, width), (blocks, m, width)
    block = lambda rows: enter(network, params, conditioned, alpha, data, rows)  # noqa: E731
    entered = _first_blocks(block, n_blocks, at, Entered(*map(jnp.zeros, shapes)))
    return Entered(jnp.swapaxes(entered.means, 0, 1), entered.var)


def _first_blocks(block: Callable[[Rows], T], n_blocks: Array, rows: Rows, found: T) -> T:
    """The results of ``block`` for the first blocks of rows; the others keep their values."""

    def at(index: Array, found: T) -> T:
        one = block(jax.tree.map(lambda each: each[index], rows))
        put = lambda whole, part: lax.dynamic_update_index_in_dim(whole, part, index, 0)  # noqa: E731
        return jax.tree.map(put, found, one)

    return lax.fori_loop(0, n_blocks, at, found)
