"""Imputed networks that are ready to predict."""

from dataclasses import field

import jax
from jax import lax

from deepemu._types import Array, record
from deepemu.core.distributions import Gaussian, mixture
from deepemu.core.model.network import (
    Data,
    Latents,
    Network,
    Params,
    layer_inputs,
    layer_nodes,
    layer_sites,
    layer_targets,
)
from deepemu.core.nodes import dense, linked
from deepemu.core.nodes.dense import Factor
from deepemu.core.nodes.linked import Link
from deepemu.core.nodes.node import Node, Sites


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

    ``whitening`` (sets, P, n, n) holds L⁻¹ of the first layer's nodes. It depends on x and the
    parameters only, so members with the same set of parameters share it. ``chain`` says whose a
    member is, ``params_of`` which set of parameters it has.
    """

    network: Network = field(metadata={"static": True})
    data: Data
    members: Member
    chain: Array
    params_of: Array
    whitening: Array
    weights: Array


def whitening(network: Network, params: Params, data: Data) -> Array:
    """L⁻¹ (P, n, n) of the nodes of the first layer."""
    nodes, sites = layer_nodes(network.layers[0], params[0]), layer_sites(network, 0, data)
    return jax.vmap(dense.whitening, in_axes=(0, None, 0))(nodes, data.x, sites)


def build_member(network: Network, params: Params, latents: Latents, data: Data) -> Member:
    """Factorise every node of a network whose hidden layers are imputed: a linked GP."""
    alpha = jax.vmap(dense.precision_times_target, in_axes=(0, None, 0, 0))(
        *layer_parts(network, 0, params, latents, data)
    )
    links = []
    for layer in range(1, network.depth):
        link = jax.vmap(linked.link, in_axes=(0, None, 0, 0))
        links.append(link(*layer_parts(network, layer, params, latents, data)))
    return Member(params, latents, alpha, tuple(links))


def factors(network: Network, member: Member, data: Data) -> tuple[Factor, ...]:
    """L⁻¹ and α of all nodes, layer by layer: what joint draws need."""
    factorise = jax.vmap(dense.factorise, in_axes=(0, None, 0, 0))
    return tuple(
        factorise(*layer_parts(network, layer, member.params, member.latents, data))
        for layer in range(network.depth)
    )


def layer_parts(
    network: Network, layer: int, params: Params, latents: Latents, data: Data
) -> tuple[Node, Array, Array, Sites]:
    """Nodes, inputs (n, D), targets (P, n) and sites of a layer."""
    return (
        layer_nodes(network.layers[layer], params[layer]),
        layer_inputs(network, layer, data.x, latents),
        layer_targets(network, layer, data, latents).T,
        layer_sites(network, layer, data),
    )


def leave_one_out(ensemble: Ensemble) -> Gaussian:
    """Mixture over members of the last layer's closed-form leave-one-out moments (n, q).

    Exact for one layer. With hidden layers it conditions on latents that were imputed with the
    left-out point present, so it is optimistic.
    """
    network, data = ensemble.network, ensemble.data

    def per_member(member: Member) -> Gaussian:
        last = layer_parts(network, network.depth - 1, member.params, member.latents, data)
        each = jax.vmap(dense.leave_one_out, in_axes=(0, None, 0, 0))(*last)
        return Gaussian(each.mean.T, each.var.T)

    return mixture(lax.map(per_member, ensemble.members), ensemble.weights)


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
