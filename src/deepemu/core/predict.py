"""Prediction: a Gaussian pushed through the layers of imputed networks (Algorithm 1)."""

from dataclasses import field

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import dense
from deepemu.core.dense import Factor, Inputs
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
    """One imputed network, ready to predict: parameters, latents and factors of all layers."""

    params: Params
    latents: Latents
    factors: tuple[Factor, ...]


@record
class Ensemble:
    """Imputed networks of all chains, stacked along the first axis, with mixture weights."""

    network: Network = field(metadata={"static": True})
    data: Data
    members: Member
    weights: Array


def build_member(network: Network, params: Params, latents: Latents, data: Data) -> Member:
    """Factorise every node of a network whose hidden layers are imputed: a linked GP."""
    factors = []
    for layer, spec in enumerate(network.layers):
        nodes = layer_nodes(spec, params[layer])
        inputs = layer_inputs(network, layer, data.x, latents)
        targets = layer_targets(network, layer, data, latents)
        sites = layer_sites(network, layer, data)
        factors.append(
            jax.vmap(dense.factorise, in_axes=(0, None, 0, 0))(nodes, inputs, targets.T, sites)
        )
    return Member(params, latents, tuple(factors))


def propagate(network: Network, member: Member, data: Data, x: Array) -> Gaussian:
    """Moments of the outputs at one test point x (d,), layer by layer.

    Each layer's outputs are treated as independent normals that feed the next layer, which makes
    the network a linked GP (section 2.2 of the paper).
    """
    nothing = jnp.zeros(0, x.dtype)
    below = Gaussian(nothing, nothing)
    for layer, spec in enumerate(network.layers):
        inputs = layer_inputs(network, layer, data.x, member.latents)
        known = x[: spec.n_columns - below.mean.shape[0]]
        nodes = layer_nodes(spec, member.params[layer])
        below = jax.vmap(dense.predict, in_axes=(0, 0, None, None))(
            nodes, member.factors[layer], inputs, Inputs(below, known)
        )
    return below


def propagate_rows(network: Network, member: Member, data: Data, x: Array) -> Gaussian:
    """`propagate` for each row of x (m, d): moments (m, q)."""
    return jax.vmap(lambda row: propagate(network, member, data, row))(x)


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
