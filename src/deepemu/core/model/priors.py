"""Prior densities on the lengthscales and the nugget of a Gaussian-process node.

A marginal prior is a density of one positive number; a joint prior is a density of all lengthscales
of a node and its nugget. Densities are up to a constant, are taken with respect to the parameter
itself (not its logarithm, so no Jacobian appears), and are functions of logarithms; `Reference` is,
as published, a density of the inverse lengthscales. A joint prior's ``log_jacobian`` turns it into
a density of the logarithms. Priors enter the M-step only: the density that a hidden node's latent
variables are sampled from does not include the prior of its parameters.
"""

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp

from deepemu._types import Array, record


class Marginal(Protocol):
    """A density of one positive number θ, given log θ."""

    def log_density(self, log_value: Array) -> Array: ...

    def curvature(self, log_value: Array) -> Array:
        """−d² log p / d(log θ)², which is nonnegative for every density below."""
        ...


@dataclass(frozen=True)
class Flat:
    """A flat prior: log p(θ) = 0."""

    def log_density(self, log_value: Array) -> Array:
        return jnp.zeros_like(log_value)

    def curvature(self, log_value: Array) -> Array:
        return jnp.zeros_like(log_value)


@dataclass(frozen=True)
class Gamma:
    """log p(θ) = (a − 1) log θ − b θ."""

    shape: float = 1.6
    rate: float = 0.3

    def log_density(self, log_value: Array) -> Array:
        return (self.shape - 1.0) * log_value - self.rate * jnp.exp(log_value)

    def curvature(self, log_value: Array) -> Array:
        return self.rate * jnp.exp(log_value)


@dataclass(frozen=True)
class InverseGamma:
    """log p(θ) = −(a + 1) log θ − b / θ."""

    shape: float = 1.6
    scale: float = 0.3

    def log_density(self, log_value: Array) -> Array:
        return -(self.shape + 1.0) * log_value - self.scale * jnp.exp(-log_value)

    def curvature(self, log_value: Array) -> Array:
        return self.scale * jnp.exp(-log_value)


@dataclass(frozen=True)
class Power:
    """log p(θ) = −c log θ, which favours the smallest value; proper where θ is bounded."""

    exponent: float = 0.5

    def log_density(self, log_value: Array) -> Array:
        return -self.exponent * log_value

    def curvature(self, log_value: Array) -> Array:
        return jnp.zeros_like(log_value)


@record
class Geometry:
    """Properties of a node's inputs that a prior may depend on: ranges and use of columns, number
    of rows.

    ``weight`` counts how often a column's lengthscale enters as a parameter of its own: 1 for one
    lengthscale per column, 1/D where D columns share one, 0 for a column that is not read.
    """

    span: Array
    weight: Array
    n_rows: Array


@dataclass(frozen=True)
class Independent:
    """log p(γ, η) = Σ_d log p(γ_d) + log p(η)."""

    lengthscale: Marginal = Gamma()
    nugget: Marginal = Flat()

    def log_density(self, log_lengthscale: Array, log_nugget: Array, geometry: Geometry) -> Array:
        terms = self.lengthscale.log_density(log_lengthscale)
        return jnp.sum(geometry.weight * terms) + self.nugget.log_density(log_nugget)

    def log_jacobian(self, log_lengthscale: Array, log_nugget: Array, geometry: Geometry) -> Array:
        """log |∂(γ, η)/∂(log γ, log η)| = Σ_d log γ_d + log η."""
        return jnp.sum(geometry.weight * log_lengthscale) + log_nugget

    def curvature(
        self, log_lengthscale: Array, log_nugget: Array, geometry: Geometry
    ) -> tuple[Array, Array]:
        """Diagonal of −∇² log p with respect to (log γ, log η)."""
        return (
            geometry.weight * self.lengthscale.curvature(log_lengthscale),
            self.nugget.curvature(log_nugget),
        )


@dataclass(frozen=True)
class Reference:
    """Jointly robust prior: log p(γ, η) = a log t − b t with t = Σ_d C_d / γ_d + η.

    C_d = range_d / n^(1/D) and b = (a + D) / n^(1/D) (Gu 2019, Bayesian Analysis 14(3)). It has the
    tails of the reference prior, so the posterior mode is never a flat or a white-noise process.
    Times a density of the nugget alone.
    """

    exponent: float = 0.2
    nugget: Marginal = Flat()

    def log_density(self, log_lengthscale: Array, log_nugget: Array, geometry: Geometry) -> Array:
        roughness = jnp.sum(self._roughness(log_lengthscale, geometry)) + jnp.exp(log_nugget)
        joint = self.exponent * jnp.log(roughness) - self._decay(geometry) * roughness
        return joint + self.nugget.log_density(log_nugget)

    def log_jacobian(self, log_lengthscale: Array, log_nugget: Array, geometry: Geometry) -> Array:
        """log |∂(1/γ, η)/∂(log γ, log η)| = −Σ_d log γ_d + log η."""
        return log_nugget - jnp.sum(geometry.weight * log_lengthscale)

    def curvature(
        self, log_lengthscale: Array, log_nugget: Array, geometry: Geometry
    ) -> tuple[Array, Array]:
        """Diagonal of b t, the convex part of −log p in the logarithms; the rest is small."""
        decay = self._decay(geometry)
        of_nugget = decay * jnp.exp(log_nugget) + self.nugget.curvature(log_nugget)
        return decay * self._roughness(log_lengthscale, geometry), of_nugget

    def _roughness(self, log_lengthscale: Array, geometry: Geometry) -> Array:
        used = geometry.weight > 0
        scaled = geometry.span / _rows_per_dimension(geometry) * jnp.exp(-log_lengthscale)
        return jnp.where(used, scaled, 0.0)

    def _decay(self, geometry: Geometry) -> Array:
        return (self.exponent + _n_used(geometry)) / _rows_per_dimension(geometry)


Prior = Independent | Reference


def _n_used(geometry: Geometry) -> Array:
    return jnp.sum(geometry.weight > 0)


def _rows_per_dimension(geometry: Geometry) -> Array:
    """n^(1/D), the number of points along an axis of a grid with as many points."""
    return geometry.n_rows ** (1.0 / jnp.maximum(_n_used(geometry), 1))
