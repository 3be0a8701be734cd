"""Imputed networks that are ready to predict."""

from collections.abc import Callable
from dataclasses import field
from typing import Any

import jax
from jax import lax

from deepemu._types import Array, record
from deepemu.core.distributions import Gaussian
from deepemu.core.model.network import (
    Data,
    Latents,
    Network,
    Params,
    layer_inputs,
    layer_nodes,
    layer_parts,
    layer_sites,
    map_nodes,
)
from deepemu.core.model.observation import Units
from deepemu.core.nodes.linked import Link


@record
class Member:
    """One imputed network: latents, α of the first layer's nodes, and links of the others'."""

    latents: Latents
    alpha: Array
    links: tuple[Link, ...]

    @property
    def alphas(self) -> tuple[Array, ...]:
        """α (P, n) of each layer."""
        return (self.alpha, *(link.alpha for link in self.links))


@record
class Imputed:
    """The imputed networks of one structure.

    ``members`` have leading axes (chains, imputations). ``params`` and ``conditioned``, the
    solver's conditioned nodes of the first layer, have (chains, sets): one set that all imputations
    of a chain share, or one for each. The latter depends on x and the parameters only.
    """

    network: Network = field(metadata={"static": True})
    data: Data
    params: Params
    conditioned: Any
    members: Member


@record
class Ensemble:
    """The mixture behind a prediction: structures, weights (chains,) of each, and units.

    A core input is (x - low) / span. Standard deviations are multiplied by ``stretch`` (q,),
    estimated from held-out errors.
    """

    structures: tuple[Imputed, ...]
    weights: tuple[Array, ...]
    low: Array
    span: Array
    units: Units
    stretch: Array


def member_weights(imputed: Imputed, weights: Array) -> Array:
    """Each chain's weight in equal parts for its imputations, chain after chain."""
    n_members = imputed.members.alpha.shape[1]
    return (weights / n_members).repeat(n_members)


def conditioned(network: Network, params: Params, data: Data) -> Any:
    """The solver's conditioned nodes of the first layer, the same for all imputations."""
    nodes, sites = layer_nodes(network.layers[0], params[0]), layer_sites(network, 0, data)
    return jax.vmap(network.solver_of(0).condition, in_axes=(0, None, 0))(nodes, data.x, sites)


def build_member(network: Network, params: Params, latents: Latents, data: Data) -> Member:
    """Solve for every node of a network whose hidden layers are imputed: a linked GP."""

    def solved(solve: Callable[..., Any], layer: int) -> Any:
        nodes, inputs, targets, sites = layer_parts(network, layer, params, latents, data)
        of_node = lambda node, sites, target: solve(node, inputs, target, sites)  # noqa: E731
        return map_nodes(network.layers[layer], of_node, nodes, sites, targets)

    links = (solved(network.solver_of(layer).link, layer) for layer in range(1, network.depth))
    return Member(latents, solved(network.solver_of(0).alpha, 0), tuple(links))


def all_conditioned(
    network: Network, params: Params, latents: Latents, data: Data
) -> list[tuple[Any, Array]]:
    """For draws at known inputs, layer by layer: all nodes conditioned, and their α (P, n)."""
    found = []
    for layer in range(network.depth):
        solver = network.solver_of(layer)
        nodes, inputs, targets, sites = layer_parts(network, layer, params, latents, data)
        ready = jax.vmap(solver.condition, in_axes=(0, None, 0))(nodes, inputs, sites)
        found.append((ready, jax.vmap(solver.alpha_of)(ready, targets)))
    return found


def leave_one_out(imputed: Imputed) -> Gaussian:
    """Closed-form leave-one-out moments (chains, imputations, n, P) of the last layer.

    Exact for one layer. With hidden layers it conditions on latents that were imputed with the
    point present, so it is optimistic.
    """
    network, data = imputed.network, imputed.data

    def of_member(params: Params, latents: Latents) -> Gaussian:
        last = layer_parts(network, network.depth - 1, params, latents, data)
        each = jax.vmap(network.solver.leave_one_out, in_axes=(0, None, 0, 0))(*last)
        return Gaussian(each.mean.T, each.var.T)

    def of_chain(chain: tuple[Params, Latents]) -> Gaussian:
        params, latents = chain
        n_members = imputed.members.alpha.shape[1]
        repeated = jax.tree.map(lambda of: of.repeat(n_members // of.shape[0], axis=0), params)
        return lax.map(lambda one: of_member(*one), (repeated, latents))

    return lax.map(of_chain, (imputed.params, imputed.members.latents))


def conditional_mean(
    network: Network, params: Params, member: Member, data: Data, x: Array
) -> Latents:
    """Imputed layers at new inputs (m, d), each at its conditional mean given the imputation."""
    below: tuple[Array, ...] = ()
    for layer in range(network.n_imputed):
        inputs = layer_inputs(network, layer, data.x, member.latents)
        at = layer_inputs(network, layer, x, below)
        nodes = layer_nodes(network.layers[layer], params[layer])
        mean = jax.vmap(network.solver_of(layer).mean, in_axes=(0, 0, None, None, 0))(
            nodes, member.alphas[layer], inputs, at, layer_sites(network, layer, data)
        )
        below = (*below, mean.T)
    return below
