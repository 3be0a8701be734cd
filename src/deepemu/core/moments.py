"""The prediction as one pure function, for `jax.jit`, `jax.vmap` and derivatives."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from deepemu._types import Array
from deepemu.core.differentiation import differentiable
from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.ensemble import Ensemble, Imputed, Member, member_weights
from deepemu.core.model.network import Data, Network, Params
from deepemu.core.model.observation import output_moments, stretched_mixture
from deepemu.core.nodes.linked import Linked, better_of
from deepemu.core.predict import Method, Points, RowsInside, enter, n_levels, through, with_near


def moments(ensemble: Ensemble, x: Array) -> Gaussian:
    """Mean and variance (q,) of a new output at inputs (d,), or (m, q) at (m, d), in user units.

    The mixture over all imputed networks. Call it inside ``jax.enable_x64(True)``. Derivatives are
    with respect to x alone, to any order and in both modes.
    """
    if jnp.result_type(float) != jnp.float64:
        raise TypeError("moments needs double precision; call it inside jax.enable_x64(True).")
    x, d = jnp.asarray(x), len(ensemble.low)
    if x.ndim not in (1, 2) or x.shape[-1] != d:
        raise ValueError(f"x has the shape {x.shape}; it must be ({d},) or (m, {d}).")
    rows = (jnp.atleast_2d(x) - ensemble.low[None]) / ensemble.span[None]
    parts = [_all_latents(imputed, rows) for imputed in ensemble.structures]
    latents = jax.tree.map(lambda *each: jnp.concatenate(each), *parts)
    of_chains = list(map(member_weights, ensemble.structures, map(jnp.asarray, ensemble.weights)))
    weights = jnp.repeat(jnp.concatenate(of_chains)[:, None], len(rows), axis=1)
    observation = ensemble.structures[0].network.observation
    stretched = stretched_mixture(observation, Mixture(latents, weights), ensemble.stretch)
    mixed = output_moments(observation, stretched, ensemble.units)
    shift, size = ensemble.units.shift[None], ensemble.units.size[None]
    found = Gaussian(shift + size * mixed.mean, size**2 * mixed.var)
    return found if x.ndim > 1 else jax.tree.map(lambda each: each[0], found)


def gradients(ensemble: Ensemble, x: Array) -> Gaussian:
    """Derivatives (m, q, d) of the mean and of the variance in each input, at rows x (m, d)."""

    def along(direction: Array) -> Gaussian:
        directions = jnp.broadcast_to(direction, x.shape)
        return jax.jvp(functools.partial(moments, ensemble), (x,), (directions,))[1]

    each = jax.vmap(along)(jnp.eye(x.shape[1], dtype=x.dtype))
    return jax.tree.map(lambda slopes: jnp.moveaxis(slopes, 0, -1), each)


def _all_latents(imputed: Imputed, x: Array) -> Gaussian:
    """Moments (members, m, P) of the last layer by each imputed network of a structure."""
    network, data = imputed.network, imputed.data
    n_sets = imputed.params[0].log_scale.shape[1]
    by_set = lambda each: each.reshape(-1, each.shape[1] // n_sets, *each.shape[2:])  # noqa: E731
    flat = lambda each: each.reshape(-1, *each.shape[2:])  # noqa: E731
    shared = jax.tree.map(flat, (imputed.params, imputed.conditioned))
    members = jax.tree.map(by_set, imputed.members)
    found = lax.map(lambda one: _latents_at(network, x, (*one, data)), (*shared, members))
    return jax.tree.map(flat, found)


Arrays = tuple[Params, Any, Member, Data]
"""Parameters, what the solver needs of the first layer, the networks that share both, data."""


@differentiable()
def _latents(network: Network, x: Array, arrays: Arrays) -> Gaussian:
    """Moments (K, m, P) of the last layer by networks of equal parameters, each at the first level
    that is accurate for it."""
    params, _, members, data = arrays
    at = with_near(network, params, members, data, x)
    found = _at_level(network, 0, at, arrays)
    for level in range(1, n_levels(network)):
        found = lax.cond(
            jnp.all(found.accurate),
            lambda found, *_: found,
            functools.partial(_improved, network, level),
            found, at, arrays,
        )  # fmt: skip
    return found.moments


_latents_at = jax.custom_jvp(_latents, nondiff_argnums=(0,))


@_latents_at.defjvp
def _slopes(
    network: Network, primals: tuple[Array, Arrays], tangents: tuple[Array, Arrays]
) -> tuple[Gaussian, Gaussian]:
    """Linear in the tangent, so that reverse mode need not run loops of unknown length backwards.

    Rows do not depend on each other: the Jacobian is d directional derivatives.
    """
    x, arrays = primals

    def along(direction: Array) -> Gaussian:
        at = lambda x: _latents(network, x, arrays)  # noqa: E731
        return jax.jvp(at, (x,), (jnp.broadcast_to(direction, x.shape),))[1]

    jacobian = lax.map(along, jnp.eye(x.shape[1], dtype=x.dtype))
    tangent = jax.tree.map(lambda each: jnp.einsum("dkmp,md->kmp", each, tangents[0]), jacobian)
    return _latents_at(network, x, arrays), tangent


def _improved(network: Network, level: int, found: Linked, at: Points, arrays: Arrays) -> Linked:
    """With the rows that were not accurate at another level."""
    return better_of(found, _at_level(network, level, at, arrays))


def _at_level(network: Network, level: int, at: Points, arrays: Arrays) -> Linked:
    params, conditioned, members, data = arrays
    method = Method(level, RowsInside())
    entered = enter(network, params, conditioned, members.alpha, data, at)

    def of_member(one: tuple[Member, Array]) -> Linked:
        member, mean = one
        return through(network, method, params, member, data)(at, Gaussian(mean, entered.var))

    return lax.map(of_member, (members, entered.means))
