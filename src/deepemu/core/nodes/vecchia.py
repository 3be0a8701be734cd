"""Vecchia's approximation: each row is conditioned on a few near rows before it.

log p(y) = Σ_i log p(y_i | y_near(i)) with at most m rows in near(i), all of them before row i:
exact with all rows before it, and O(n m³) instead of O(n³) (Vecchia 1988; Katzfuss and Guinness
2021).
A prediction is conditioned on the nearest rows of the test point. Which rows are near is given for
densities, in ``Sites.near``, and found here for predictions.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from deepemu._types import Array, record
from deepemu.core.distributions import Gaussian
from deepemu.core.kernels.kernel import Kernel
from deepemu.core.nodes import dense, linked, near_rows, nearest, terms
from deepemu.core.nodes.anchored import Anchored
from deepemu.core.nodes.linked import Link, Scheme
from deepemu.core.nodes.near_rows import (
    Observed,
    Regression,
    at_rows,
    gathered,
    in_lengthscales,
    own_last,
)
from deepemu.core.nodes.nearest import ByNeighbours, Nearby
from deepemu.core.nodes.node import Derivatives, Fit, Joint, Node, Sites
from deepemu.core.nodes.solver import Solver


def factor(node: Node, inputs: Array, sites: Sites) -> Regression:
    """b = K⁻¹k over the rows near each row, and s²."""
    of, scaled = near_rows.observed(node, sites), in_lengthscales(node, inputs)
    return near_rows.regression(node, own_last(near_rows.near_of(sites)), scaled, of)


def log_density(found: Regression, node: Node, target: Array, sites: Sites) -> Array:
    """log N of y (n,), with residuals e = y − b y_near."""
    near = near_rows.near_of(sites)
    residual = target - jnp.sum(found.weights * at_rows(target, near).T, axis=1)
    return _log_density(residual, found.variance, node, sites)


def _log_density(residual: Array, variance: Array, node: Node, sites: Sites) -> Array:
    """−½ [Σ e²/(σ²s²) + Σ log s²] and what does not depend on R."""
    quadratic, log_volume = _sums(residual, variance, sites)
    constant = dense.log_constant(node.scale, node.nugget, sites)
    return -0.5 * (quadratic / node.scale + log_volume) + constant


def _sums(residual: Array, variance: Array, sites: Sites) -> tuple[Array, Array]:
    """Σ e²/s² and Σ log s² over the rows in use."""
    variance = jnp.where(sites.used, variance, 1.0)
    return jnp.sum(jnp.where(sites.used, residual**2 / variance, 0.0)), jnp.sum(jnp.log(variance))


def draw_prior(found: Regression, node: Node, sites: Sites, normals: Array) -> Array:
    """w_i = b_iᵀw_near + σ s_i ε_i, row after row."""
    near = near_rows.near_of(sites)

    def row(i: Array, drawn: Array) -> Array:
        index, weights = near[i], found.weights[i]
        given = jnp.sum(weights * jnp.where(index >= 0, drawn[jnp.maximum(index, 0)], 0.0))
        own = jnp.sqrt(node.scale * found.variance[i]) * normals[i]
        return lax.dynamic_update_index_in_dim(
            drawn, jnp.where(sites.used[i], given + own, 0.0), i, 0
        )

    return lax.fori_loop(0, len(near), row, jnp.zeros_like(normals))


def fit(node: Node, inputs: Array, target: Array, sites: Sites, free_scale: Array | bool) -> Fit:
    """Log density at the node's parameters, with the scale profiled out where it is free."""
    resting = in_lengthscales(node, inputs)
    return _fit(*_residuals(node, resting, target, sites), node, sites, free_scale)


def _residuals(node: Node, scaled: Array, target: Array, sites: Sites) -> tuple[Array, Array]:
    def of_chunk(index: Array, scaled: Array, target: Array, of: Observed) -> tuple[Array, Array]:
        return terms.residuals(gathered(node, index, scaled, of), at_rows(target, index))

    index = own_last(near_rows.near_of(sites))
    return terms.in_chunks(of_chunk, index, scaled, target, near_rows.observed(node, sites))


def _fit(
    residual: Array, variance: Array, node: Node, sites: Sites, free_scale: Array | bool
) -> Fit:
    quadratic, _ = _sums(residual, variance, sites)
    best = dense.profiled_scale(quadratic, node.nugget, sites)
    scaled = replace(node, scale=jnp.where(free_scale, best, node.scale))
    return Fit(_log_density(residual, variance, scaled, sites), scaled.scale)


@record
class Slopes:
    """Residual e and variance s² (n,), and their slopes (n, D + 1) in (log γ, log η)."""

    residual: Array
    variance: Array
    of_residual: Array
    of_variance: Array


def derivatives(
    node: Node, inputs: Array, target: Array, sites: Sites, free_scale: Array | bool
) -> Derivatives:
    """Log density, gradient and expected information in θ = (log γ_1 … log γ_D, log η).

    Of a term −½ [e²/(σ²s²) + log s²] the gradient is −e ∂e/(σ²s²) − ½ (1 − e²/(σ²s²)) ∂s²/s², and
    the information ∂e ∂eᵀ/(σ²s²) + ½ ∂s² ∂s²ᵀ/s⁴. With the scale free it loses t tᵀ/(2N) with
    t = Σ ∂s²/s², the part that a change of scale explains. Replicates add S/(ησ²) to what the
    nugget explains.
    """
    found = _parameter_slopes(node, inputs, target, sites)
    now = _fit(found.residual, found.variance, node, sites, free_scale)
    variance = jnp.where(sites.used, found.variance, 1.0)
    squared = jnp.where(sites.used, found.residual**2 / (now.scale * variance), 0.0)
    of_variance = jnp.where(sites.used[:, None], found.of_variance, 0.0) / variance[:, None]
    of_residual = jnp.where(sites.used[:, None], found.of_residual, 0.0)
    of_residual = of_residual / jnp.sqrt(now.scale * variance)[:, None]
    pull = found.residual / jnp.sqrt(now.scale * variance)
    gradient = -pull @ of_residual - 0.5 * jnp.sum((1.0 - squared)[:, None] * of_variance, axis=0)
    information = of_residual.T @ of_residual + 0.5 * of_variance.T @ of_variance
    is_nugget = (jnp.arange(len(gradient)) == len(gradient) - 1).astype(gradient.dtype)
    replicates = sites.squares / (node.nugget * now.scale)
    free = sites.n_observations - sites.n_sites
    gradient += 0.5 * is_nugget * (replicates - free)
    of_scale = jnp.sum(of_variance, axis=0) + is_nugget * free
    information += 0.5 * jnp.diag(is_nugget * free)
    joint = 0.5 * jnp.outer(of_scale, of_scale) / sites.n_observations
    return Derivatives(now, gradient, information - jnp.where(free_scale, joint, 0.0))


def _parameter_slopes(node: Node, inputs: Array, target: Array, sites: Sites) -> Slopes:
    """∂/∂log γ_d = −Σ z_d ∂/∂z_d over the rows z of a term."""

    def of_chunk(index: Array, scaled: Array, target: Array, of: Observed) -> Slopes:
        these = gathered(node, index, scaled, of)
        found = terms.conditional(these, at_rows(target, index))
        own = terms.of_noise(these, found)
        both = [
            jnp.concatenate([-jnp.sum(these.rows * each, axis=0), noise[None]]).T
            for each, noise in zip(terms.slopes(these, found), own, strict=True)
        ]
        return Slopes(found.residual, found.variance, *both)

    index, scaled = own_last(near_rows.near_of(sites)), in_lengthscales(node, inputs)
    return terms.in_chunks(of_chunk, index, scaled, target, near_rows.observed(node, sites))


def input_slopes(node: Node, inputs: Array, target: Array, sites: Sites) -> tuple[Array, Array]:
    """Log density, and its gradient (n, D) in the inputs: each term pulls at its own rows."""
    index, scaled = own_last(near_rows.near_of(sites)), in_lengthscales(node, inputs)

    def of_chunk(index: Array, *given: Any) -> tuple[Array, Array, Array]:
        scaled, target, of = given
        these = gathered(node, index, scaled, of)
        found = terms.conditional(these, at_rows(target, index))
        of_residual, of_variance = terms.slopes(these, found)
        variance, used = found.variance, these.used[-1]
        squared = found.residual**2 / (node.scale * variance)
        by_e = -used * found.residual / (node.scale * variance)
        by_s = -0.5 * used * (1.0 - squared) / variance
        pull = by_e[None, None] * of_residual + by_s[None, None] * of_variance
        return found.residual, variance, jnp.moveaxis(pull, 2, 0)

    of = near_rows.observed(node, sites)
    residual, variance, pulls = terms.in_chunks(of_chunk, index, scaled, target, of)
    rows = jnp.where(index >= 0, index, len(inputs))
    total = jnp.zeros((len(inputs) + 1, inputs.shape[1]), inputs.dtype).at[rows].add(pulls)
    gradient = in_lengthscales(node, total[:-1])
    return _log_density(residual, variance, node, sites), gradient


def at_rest(node: Node, columns: Array, sites: Sites) -> Array:
    """The columns (n, D) in lengthscales."""
    return in_lengthscales(node, columns)


def more_at_rest(node: Node, columns: Array, resting: Array) -> Array:
    return jnp.concatenate([in_lengthscales(node, columns), resting], axis=1)


def log_density_moving(
    node: Node, columns: Array, resting: Array, target: Array, sites: Sites
) -> Array:
    scaled = more_at_rest(node, columns, resting)
    return _log_density(*_residuals(node, scaled, target, sites), node, sites)


@dataclass(frozen=True)
class Vecchia(Solver):
    """Densities given ``n_near`` near rows per row, predictions given ``n_predict``."""

    n_near: int = 25
    n_predict: int = 50

    def for_hidden(self) -> Solver:
        return Anchored()

    factor = staticmethod(factor)
    log_density = staticmethod(log_density)
    draw_prior = staticmethod(draw_prior)
    fit = staticmethod(fit)
    derivatives = staticmethod(derivatives)
    input_slopes = staticmethod(input_slopes)
    at_rest = staticmethod(at_rest)
    more_at_rest = staticmethod(more_at_rest)
    log_density_moving = staticmethod(log_density_moving)

    def condition(self, node: Node, inputs: Array, sites: Sites) -> Observed:
        return near_rows.observed(node, sites)

    def with_near(self, conditioned: Observed, near: Array) -> Observed:
        return replace(conditioned, near=near)

    def alpha(self, node: Node, inputs: Array, target: Array, sites: Sites) -> Array:
        """The target itself: weights depend on the test point."""
        return jnp.where(sites.used, target, 0.0)

    def alpha_of(self, conditioned: Observed, target: Array) -> Array:
        return jnp.where(conditioned.used, target, 0.0)

    def mean(self, node: Node, alpha: Array, inputs: Array, at: Array, sites: Sites) -> Array:
        return self.predict(node, near_rows.observed(node, sites), alpha, inputs, at).mean

    def predict(
        self, node: Node, conditioned: Observed, alpha: Array, inputs: Array, at: Array
    ) -> Gaussian:
        return nearest.predict(self.n_predict, node, conditioned, alpha, inputs, at)

    def joint(
        self, node: Node, conditioned: Observed, alpha: Array, inputs: Array, at: Array
    ) -> Joint:
        mean, root = nearest.joint(
            self.n_predict, node, conditioned, alpha, inputs, at, node.nugget
        )
        return Joint(mean, node.scale * root @ root.T)

    def draw_posterior(
        self,
        node: Node,
        conditioned: Observed,
        alpha: Array,
        inputs: Array,
        at: Array,
        normals: Array,
    ) -> Array:
        jitter = jnp.maximum(node.nugget, dense.SMALLEST_JITTER)
        mean, root = nearest.joint(self.n_predict, node, conditioned, alpha, inputs, at, jitter)
        return mean + jnp.sqrt(node.scale) * (root @ normals)

    def link(self, node: Node, inputs: Array, target: Array, sites: Sites) -> Link:
        return Link(self.alpha(node, inputs, target, sites), near_rows.observed(node, sites))

    def schemes(self, kernel: Kernel, n_uncertain: int) -> tuple[Scheme, ...]:
        if n_uncertain == 0:
            return (ByNeighbours(self.n_predict),)
        every = linked.schemes(kernel, n_uncertain)
        return tuple(Nearby(self.n_predict, scheme) for scheme in every)

    def leave_one_out(self, node: Node, inputs: Array, target: Array, sites: Sites) -> Gaussian:
        return nearest.leave_one_out(self.n_predict, node, inputs, target, sites)
