"""Prediction: a Gaussian pushed through the layers of imputed networks (Algorithm 1)."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import dense, pairs
from deepemu.core import keys as random_keys
from deepemu.core.dense import Factor, Inputs, Link, Linked, Node, Sites
from deepemu.core.gaussian import Gaussian, mixture
from deepemu.core.network import (
    Data,
    Latents,
    Network,
    Params,
    layer_inputs,
    layer_nodes,
    layer_sites,
    layer_targets,
)


@record
class Member:
    """One imputed network, ready to predict: parameters, latents, α of the first layer, and links
    of the others."""

    params: Params
    latents: Latents
    alpha: Array
    links: tuple[Link, ...]


@record
class Ensemble:
    """Imputed networks of all chains, stacked along the first axis, with mixture weights.

    ``whitening`` (chains, P, n, n) holds L⁻¹ of the first layer's nodes. It depends on x and the
    parameters only, so the imputations of a chain share it; ``chain`` says whose a member is.
    """

    network: Network = field(metadata={"static": True})
    data: Data
    members: Member
    chain: Array
    whitening: Array
    weights: Array


def whitening(network: Network, params: Params, data: Data) -> Array:
    """L⁻¹ (P, n, n) of the nodes of the first layer."""
    nodes, sites = layer_nodes(network.layers[0], params[0]), layer_sites(network, 0, data)
    return jax.vmap(dense.whitening, in_axes=(0, None, 0))(nodes, data.x, sites)


def build_member(network: Network, params: Params, latents: Latents, data: Data) -> Member:
    """Factorise every node of a network whose hidden layers are imputed: a linked GP."""
    alpha = jax.vmap(dense.precision_times_target, in_axes=(0, None, 0, 0))(
        *_layer(network, 0, params, latents, data)
    )
    links = []
    for layer in range(1, network.depth):
        link = functools.partial(dense.link, n_uncertain=network.layers[layer - 1].width)
        links.append(
            jax.vmap(link, in_axes=(0, None, 0, 0))(*_layer(network, layer, params, latents, data))
        )
    return Member(params, latents, alpha, tuple(links))


def factors(network: Network, member: Member, data: Data) -> tuple[Factor, ...]:
    """L⁻¹ and α of all nodes, layer by layer: what joint draws need."""
    factorise = jax.vmap(dense.factorise, in_axes=(0, None, 0, 0))
    return tuple(
        factorise(*_layer(network, layer, member.params, member.latents, data))
        for layer in range(network.depth)
    )


def _layer(
    network: Network, layer: int, params: Params, latents: Latents, data: Data
) -> tuple[Node, Array, Array, Sites]:
    """Nodes, inputs (n, D), targets (P, n) and sites of a layer."""
    return (
        layer_nodes(network.layers[layer], params[layer]),
        layer_inputs(network, layer, data.x, latents),
        layer_targets(network, layer, data, latents).T,
        layer_sites(network, layer, data),
    )


CHEAPEST, GENERAL = 0, -1  # places of a kernel's pair forms


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
    """How sums over pairs are computed: in which form of J, and in which order."""

    form: int
    rows: RowsInside | RowsOutside


def propagate(
    network: Network, method: Method, member: Member, whitening: Array, data: Data, x: Array
) -> Linked:
    """Moments (m, q) of the outputs at test points x (m, d), layer by layer.

    Each layer's outputs are treated as independent normals that feed the next layer, which makes
    the network a linked GP (section 2.2 of the paper). Nodes are visited one by one, so that the
    working memory is one node's.
    """
    nodes = layer_nodes(network.layers[0], member.params[0])
    first = lambda node: dense.predict(node[0], Factor(node[1], node[2]), data.x, x)  # noqa: E731
    moments = jax.lax.map(first, (nodes, whitening, member.alpha))
    suited = jnp.ones(len(x), bool)
    for layer, links in enumerate(member.links, 1):
        below = Gaussian(moments.mean.T, moments.var.T)
        linked = _propagate_layer(network, method, layer, member, data, x, links, below)
        moments, suited = linked.moments, suited & jnp.all(linked.suited, axis=0)
    return Linked(Gaussian(moments.mean.T, moments.var.T), suited)


def _propagate_layer(
    network: Network,
    method: Method,
    layer: int,
    member: Member,
    data: Data,
    x: Array,
    links: Link,
    below: Gaussian,
) -> Linked:
    """Moments (P, m) of a layer's outputs, given those (m, .) of the layer below."""
    spec = network.layers[layer]
    inputs = layer_inputs(network, layer, data.x, member.latents)
    at = Inputs(below, x[:, : spec.n_columns - below.mean.shape[1]])

    def one(node: tuple[Node, Link]) -> Linked:
        predict = lambda rows: dense.predict_linked(*node, inputs, rows, method.form)  # noqa: E731
        return method.rows.map(predict, at)

    return jax.lax.map(one, (layer_nodes(spec, member.params[layer]), links))


def propagate_blocks(
    network: Network,
    method: Method,
    member: Member,
    whitening: Array,
    data: Data,
    x: Array,
    n_blocks: Array,
) -> Linked:
    """`propagate` for the first blocks of x (blocks, m, d): moments (blocks, m, q), else zero."""

    def block(index: Array, found: Linked) -> Linked:
        one = propagate(network, method, member, whitening, data, x[index])
        return jax.tree.map(lambda whole, part: whole.at[index].set(part), found, one)

    nothing = jnp.zeros((*x.shape[:2], network.n_outputs), x.dtype)
    start = Linked(Gaussian(nothing, nothing), jnp.ones(x.shape[:2], bool))
    return jax.lax.fori_loop(0, n_blocks, block, start)


def mix_in(
    network: Network,
    method: Method,
    members: Member,
    chain: Array,
    shares: Array,
    whitening: Array,
    data: Data,
    x: Array,
    n_blocks: Array,
    mixed: Linked,
) -> Linked:
    """The mixture after some more members, stacked, given the mixture of those before them.

    A member's share is its weight over the sum of the weights up to its own; its ``chain`` is the
    place of its ``whitening`` among those given.
    """

    def add(mixed: Linked, step: tuple[Member, Array, Array]) -> tuple[Linked, None]:
        member, chain, share = step
        member = _with_tiles(member, method.rows.n_tiles)
        one = propagate_blocks(network, method, member, whitening[chain], data, x, n_blocks)
        both = jax.tree.map(lambda *parts: jnp.stack(parts), mixed.moments, one.moments)
        moments = mixture(both, jnp.stack([1.0 - share, share]))
        return Linked(moments, mixed.suited & one.suited), None

    return jax.lax.scan(add, mixed, (members, chain, shares))[0]


def _with_tiles(member: Member, n_tiles: int) -> Member:
    group = jax.vmap(lambda link: Link(link.alpha, pairs.grouped(link.pairs, n_tiles)))
    return dataclasses.replace(member, links=tuple(map(group, member.links)))


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
        key_layer = jax.random.fold_in(random_keys.from_words(key), layer)
        keys = jax.random.split(key_layer, spec.width)
        normals = jax.vmap(lambda k: jax.random.normal(k, x.shape[:1], x.dtype))(keys)
        drawn = jax.vmap(dense.draw_posterior, in_axes=(0, 0, None, None, 0))(
            nodes, factors[layer], inputs, at, normals
        )
        below = (*below, drawn.T)
    return below[-1]


def leave_one_out(ensemble: Ensemble) -> Gaussian:
    """Mixture over members of the last layer's closed-form leave-one-out moments (n, q).

    Exact for one layer. With hidden layers it conditions on latents that were imputed with the
    left-out point present, so it is optimistic.
    """
    network, data = ensemble.network, ensemble.data

    def per_member(member: Member) -> Gaussian:
        last = _layer(network, network.depth - 1, member.params, member.latents, data)
        each = jax.vmap(dense.leave_one_out, in_axes=(0, None, 0, 0))(*last)
        return Gaussian(each.mean.T, each.var.T)

    return mixture(jax.lax.map(per_member, ensemble.members), ensemble.weights)


def conditional_mean(network: Network, member: Member, data: Data, x: Array) -> Latents:
    """Hidden layers at new inputs (m, d), each at its conditional mean given the imputation."""
    below: tuple[Array, ...] = ()
    alphas = (member.alpha, *(link.alpha for link in member.links))
    for layer, spec in enumerate(network.layers[:-1]):
        inputs = layer_inputs(network, layer, data.x, member.latents)
        at = layer_inputs(network, layer, x, below)
        nodes = layer_nodes(spec, member.params[layer])
        mean = jax.vmap(dense.posterior_mean, in_axes=(0, 0, None, None))(
            nodes, alphas[layer], inputs, at
        )
        below = (*below, mean.T)
    return below
