"""Prediction: a Gaussian pushed through the layers of imputed networks (Algorithm 1)."""

import dataclasses
import functools
from dataclasses import field

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import dense, pairs
from deepemu.core.dense import Factor, Inputs, Link
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
    """One imputed network, ready to predict: parameters, latents, factors of all layers, and links
    of all but the first one."""

    params: Params
    latents: Latents
    factors: tuple[Factor, ...]
    links: tuple[Link, ...]


@record
class Ensemble:
    """Imputed networks of all chains, stacked along the first axis, with mixture weights."""

    network: Network = field(metadata={"static": True})
    data: Data
    members: Member
    weights: Array


def build_member(network: Network, params: Params, latents: Latents, data: Data) -> Member:
    """Factorise every node of a network whose hidden layers are imputed: a linked GP."""
    factors, links = [], []
    for layer, spec in enumerate(network.layers):
        nodes = layer_nodes(spec, params[layer])
        inputs = layer_inputs(network, layer, data.x, latents)
        targets = layer_targets(network, layer, data, latents)
        sites = layer_sites(network, layer, data)
        factors.append(
            jax.vmap(dense.factorise, in_axes=(0, None, 0, 0))(nodes, inputs, targets.T, sites)
        )
        if layer:
            link = functools.partial(dense.link, n_uncertain=network.layers[layer - 1].width)
            links.append(jax.vmap(link, in_axes=(0, 0, None))(nodes, factors[layer], inputs))
    return Member(params, latents, tuple(factors), tuple(links))


def propagate(network: Network, member: Member, data: Data, x: Array) -> Gaussian:
    """Moments (m, q) of the outputs at test points x (m, d), layer by layer.

    Each layer's outputs are treated as independent normals that feed the next layer, which makes
    the network a linked GP (section 2.2 of the paper). Nodes are visited one by one, so that the
    working memory is one node's.
    """
    nodes = layer_nodes(network.layers[0], member.params[0])
    first = lambda node: dense.predict(node[0], node[1], data.x, x)  # noqa: E731
    moments = jax.lax.map(first, (nodes, member.factors[0]))
    for layer, links in enumerate(member.links, 1):
        moments = _propagate_layer(
            network, layer, member, data, x, links, Gaussian(moments.mean.T, moments.var.T)
        )
    return Gaussian(moments.mean.T, moments.var.T)


def _propagate_layer(
    network: Network, layer: int, member: Member, data: Data, x: Array, links: Link, below: Gaussian
) -> Gaussian:
    """Moments (P, m) of a layer's outputs, given those (m, .) of the layer below."""
    spec = network.layers[layer]
    inputs = layer_inputs(network, layer, data.x, member.latents)
    at = Inputs(below, x[:, : spec.n_columns - below.mean.shape[1]])
    one = lambda node: dense.predict_linked(node[0], node[1], inputs, at)  # noqa: E731
    return jax.lax.map(one, (layer_nodes(spec, member.params[layer]), links))


def propagate_blocks(
    network: Network, member: Member, data: Data, x: Array, n_blocks: Array
) -> Gaussian:
    """`propagate` for the first blocks of x (blocks, m, d): moments (blocks, m, q), else zero."""

    def block(index: Array, moments: Gaussian) -> Gaussian:
        one = propagate(network, member, data, x[index])
        return jax.tree.map(lambda whole, part: whole.at[index].set(part), moments, one)

    nothing = jnp.zeros((*x.shape[:2], network.n_outputs), x.dtype)
    return jax.lax.fori_loop(0, n_blocks, block, Gaussian(nothing, nothing))


def mix_in(
    network: Network,
    members: Member,
    shares: Array,
    data: Data,
    x: Array,
    n_blocks: Array,
    mixed: Gaussian,
    n_tiles: int,
) -> Gaussian:
    """The mixture after some more members, stacked, given the mixture of those before them.

    A member's share is its weight over the sum of the weights up to its own. Sums over pairs of
    design points take ``n_tiles`` tiles of them at a time.
    """

    def add(mixed: Gaussian, step: tuple[Member, Array]) -> tuple[Gaussian, None]:
        member, share = step
        one = propagate_blocks(network, _with_tiles(member, n_tiles), data, x, n_blocks)
        both = jax.tree.map(lambda *parts: jnp.stack(parts), mixed, one)
        return mixture(both, jnp.stack([1.0 - share, share])), None

    return jax.lax.scan(add, mixed, (members, shares))[0]


def _with_tiles(member: Member, n_tiles: int) -> Member:
    group = jax.vmap(lambda link: Link(link.alpha, pairs.grouped(link.pairs, n_tiles)))
    return dataclasses.replace(member, links=tuple(map(group, member.links)))


def draw(key: Array, network: Network, member: Member, data: Data, x: Array) -> Array:
    """One joint draw (m, q) of the outputs at known inputs (m, d), through drawn hidden layers."""
    below: tuple[Array, ...] = ()
    for layer, spec in enumerate(network.layers):
        inputs = layer_inputs(network, layer, data.x, member.latents)
        at = layer_inputs(network, layer, x, below)
        nodes = layer_nodes(spec, member.params[layer])
        keys = jax.random.split(jax.random.fold_in(key, layer), spec.width)
        normals = jax.vmap(lambda k: jax.random.normal(k, x.shape[:1], x.dtype))(keys)
        drawn = jax.vmap(dense.draw_posterior, in_axes=(0, 0, None, None, 0))(
            nodes, member.factors[layer], inputs, at, normals
        )
        below = (*below, drawn.T)
    return below[-1]


def leave_one_out(ensemble: Ensemble) -> Gaussian:
    """Mixture over members of the last layer's closed-form leave-one-out moments (n, q).

    Exact for one layer. With hidden layers it conditions on latents that were imputed with the
    left-out point present, so it is optimistic.
    """
    network, data = ensemble.network, ensemble.data
    sites = layer_sites(network, network.depth - 1, data)

    def per_member(member: Member) -> Gaussian:
        nodes = layer_nodes(network.layers[-1], member.params[-1])
        each = jax.vmap(dense.leave_one_out)(nodes, member.factors[-1], data.y.T, sites)
        return Gaussian(each.mean.T, each.var.T)

    return mixture(jax.vmap(per_member)(ensemble.members), ensemble.weights)


def conditional_mean(network: Network, member: Member, data: Data, x: Array) -> Latents:
    """Hidden layers at new inputs (m, d), each at its conditional mean given the imputation."""
    below: tuple[Array, ...] = ()
    for layer, spec in enumerate(network.layers[:-1]):
        inputs = layer_inputs(network, layer, data.x, member.latents)
        at = layer_inputs(network, layer, x, below)
        nodes = layer_nodes(spec, member.params[layer])
        mean = jax.vmap(dense.posterior_mean, in_axes=(0, 0, None, None))(
            nodes, member.factors[layer], inputs, at
        )
        below = (*below, mean.T)
    return below
