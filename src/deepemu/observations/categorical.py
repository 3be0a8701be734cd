"""One of several classes, each of which has a latent."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from deepemu._types import Array, record
from deepemu.core.distributions import Gaussian
from deepemu.core.model.observation import Units
from deepemu.data.sites import sum_by_site
from deepemu.observations.model import Observation

HALF = 0.5
# Gumbel variables are above the first of these and, but for 1e-11 of them, below the second.
LOWEST, HIGHEST = -5.0, 25.0
N_POINTS, N_NODES, REACH = 120, 32, 6.5
# The smallest probability: its logarithm is finite.
LEAST = 1e-300


def probabilities(mean: Array, var: Array, of: ModuleType = np) -> Array:
    """E softmax(f) (…, C) of independent latents f_c ~ N(μ_c, σ_c²), without a draw.

    The class of the largest f_c + G_c, with standard Gumbel variables G_c, has the probabilities
    softmax(f). With F_c the distribution function of f_c + G_c, an average of exp(−exp(f − t)) over
    f, class c has the probability ∫ F_c'(t) Π_{j≠c} F_j(t) dt: a sum of trapezia, whose error is
    negligible for σ up to 5 because all derivatives vanish at both ends; for σ = 10 it is some .01.
    JAX may trace it.
    """
    points, shares = hermegauss(N_NODES)
    std, shares = var[..., None] ** 0.5, shares / shares.sum()
    at, widest = mean[..., None] + std * points, of.max(std, axis=-2)
    centre = of.max(mean, axis=-1, keepdims=True)
    low, high = centre + LOWEST - REACH * widest, centre + HIGHEST + REACH * widest
    total: Any = 0.0
    for share in np.linspace(0.0, 1.0, N_POINTS):
        apart = at - (low + share * (high - low))[..., None]
        beyond = of.exp(of.minimum(apart, -LOWEST * 2.0))
        given = of.exp(-beyond)
        below = of.sum(shares * given, axis=-1)
        density = of.sum(shares * beyond * given, axis=-1)
        every = of.prod(below, axis=-1, keepdims=True)
        total = total + density * every / of.maximum(below, LEAST)
    return total / of.sum(total, axis=-1, keepdims=True)


@record
class ClassCounts:
    """How often each class occurred at each site, (n, C)."""

    counts: Array


@dataclass(frozen=True)
class Categorical(Observation):
    """P(class c) = softmax(f)_c; the output is the number of the class, from 0."""

    n_classes: int

    imputed: ClassVar[bool] = True
    spacing: ClassVar[float | None] = 1.0

    def n_latents(self, n_outputs: int) -> int:
        return self.n_classes

    def units(self, y: np.ndarray, site: np.ndarray) -> Units:
        return Units(np.zeros(1), np.ones(1))

    def collapse(self, y: np.ndarray, site: np.ndarray, units: Units) -> ClassCounts:
        return ClassCounts(sum_by_site(self._indicators(y), site))

    def _indicators(self, y: np.ndarray) -> np.ndarray:
        return (np.round(y) == np.arange(self.n_classes)).astype(float)

    def starting_latents(self, observed: ClassCounts) -> np.ndarray:
        """Logarithms of the classes' shares, about their mean."""
        logs = np.log(np.asarray(observed.counts) + HALF)
        return logs - logs.mean(axis=1, keepdims=True)

    def log_density(self, observed: ClassCounts, latents: Array, used: Array) -> Array:
        """Σ_i [Σ_c n_ic f_ic − n_i log Σ_c exp f_ic]."""
        highest = jnp.max(latents, axis=1, keepdims=True)
        log_total = highest[:, 0] + jnp.log(jnp.sum(jnp.exp(latents - highest), axis=1))
        counts = observed.counts
        return jnp.sum(counts * latents) - jnp.sum(jnp.sum(counts, axis=1) * log_total)

    def class_probabilities(self, latents: Gaussian) -> np.ndarray:
        """Probabilities (…, C) of the classes."""
        return np.asarray(probabilities(np.asarray(latents.mean), np.asarray(latents.var)))

    def log_density_of(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        found = self._indicators(y) * self.class_probabilities(latents)
        with np.errstate(divide="ignore"):
            return np.log(found.sum(axis=-1, keepdims=True))

    def cdf(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        up_to = np.floor(y) >= np.arange(self.n_classes)
        return np.sum(up_to * self.class_probabilities(latents), axis=-1, keepdims=True)

    def moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """Of the number of the class."""
        found, number = probabilities(latents.mean, latents.var, jnp), jnp.arange(self.n_classes)
        mean = jnp.sum(number * found, axis=-1, keepdims=True)
        square = jnp.sum(number**2 * found, axis=-1, keepdims=True)
        return Gaussian(mean, square - mean**2)

    def draw(self, generator: np.random.Generator, latents: np.ndarray, units: Units) -> np.ndarray:
        """The class of the largest latent plus Gumbel variable."""
        above = latents + generator.gumbel(size=latents.shape)
        return np.argmax(above, axis=-1)[..., None].astype(float)
