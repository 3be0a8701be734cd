"""Normal noise whose variance differs: with the inputs, or as it is known of each row.

Replicates count by their number, mean and squares alone, so a hundred cost what one costs. Given
the variances the likelihood of the mean is normal, and the moves of its node are exact draws.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from deepemu._types import Array, record
from deepemu.core.distributions import Gaussian
from deepemu.core.model.observation import Units
from deepemu.data.sites import sum_by_site
from deepemu.observations import quadrature
from deepemu.observations.gaussian import LOG_2PI, GaussianNoise, SiteMeans, site_means
from deepemu.observations.model import Observation
from deepemu.observations.quadrature import Nodes

NORMAL = GaussianNoise()
# Of the log of the noise's variance, in that of the outputs.
CENTRE = -2.5
# A variance that is known to be zero is this share of that of the outputs: the arithmetic's own.
LEAST_KNOWN = 1e-8


class _Normal(Observation):
    """y = f + ε with normal ε of any variance."""

    imputed: ClassVar[bool] = True
    spacing: ClassVar[float | None] = None

    def units(self, y: np.ndarray, site: np.ndarray, known: np.ndarray | None = None) -> Units:
        return NORMAL.units(y, site)


@dataclass(frozen=True)
class HeteroscedasticNoise(_Normal):
    """y = f(x) + ε with ε ~ N(0, exp g(x)): the latents are f and g of each output."""

    def n_latents(self, n_outputs: int) -> int:
        return 2 * n_outputs

    def collapse(self, y: np.ndarray, site: np.ndarray, units: Units) -> SiteMeans:
        return NORMAL.collapse(y, site, units)

    def starting_latents(self, observed: SiteMeans) -> np.ndarray:
        """Site means, and the centre of the log variance."""
        return np.concatenate([observed.y, np.zeros_like(observed.y)], axis=1)

    def log_density(self, observed: SiteMeans, latents: Array, used: Array) -> Array:
        """−½ Σ_i [n_i (g_i + log 2π) + (n_i (ȳ_i − f_i)² + S_i) exp(−g_i)] over sites with n_i
        outputs of mean ȳ_i and squares S_i about it: that of all outputs."""
        f, g = _apart(latents)
        squares = observed.counts * (observed.y - f) ** 2 + observed.squares
        return -0.5 * jnp.sum(observed.counts * (g + LOG_2PI) + squares * jnp.exp(-g))

    def function_moments(self, latents: Gaussian, units: Units) -> Gaussian:
        return _moments_apart(latents)[0]

    def moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """E y = E f and Var y = Var f + E exp g."""
        f, g = _moments_apart(latents)
        return Gaussian(f.mean, f.var + jnp.exp(g.mean + 0.5 * g.var))

    def log_density_of(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """log E_g N(y; μ, σ² + exp g), by Gauss-Hermite."""
        found, rule = self._given_noise(latents)
        each = NORMAL.log_density_of(y, found, units)
        return np.logaddexp.reduce(each + np.log(rule.weights), axis=0)

    def cdf(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """E_g Φ((y − μ)/(σ² + exp g)^½)."""
        found, rule = self._given_noise(latents)
        return np.sum(rule.weights * NORMAL.cdf(y, found, units), axis=0)

    def _given_noise(self, latents: Gaussian) -> tuple[Gaussian, Nodes]:
        """Moments of outputs at the points of a rule over g."""
        f, g = _moments_apart(latents)
        rule = quadrature.smooth(g, quadrature.N_FURTHER)
        return Gaussian(np.asarray(f.mean), f.var + np.exp(rule.at)), rule

    def draw(self, generator: np.random.Generator, latents: np.ndarray, units: Units) -> np.ndarray:
        f, g = _apart(latents)
        return f + np.exp(0.5 * g) * generator.standard_normal(f.shape)


def _apart(latents: Array) -> tuple[Any, Any]:
    """f and g (…, q) of latents (…, 2q)."""
    q = latents.shape[-1] // 2
    return latents[..., :q], CENTRE + latents[..., q:]


def _moments_apart(latents: Gaussian) -> tuple[Gaussian, Gaussian]:
    q, (f, g) = latents.var.shape[-1] // 2, _apart(latents.mean)
    return Gaussian(f, latents.var[..., :q]), Gaussian(g, latents.var[..., q:])


@record
class Weighted:
    """Means of the outputs of each site with weights 1/v, and the sums of these, (n, q) each."""

    y: Array
    precision: Array


@dataclass(frozen=True)
class KnownNoise(_Normal):
    """y = f(x) + ε with ε ~ N(0, v) and the variance v of each output given. A new output has no
    noise, unless its variance is given too: then predictions are of the function."""

    known: ClassVar[str | None] = "noise_variance"

    def units_of_rows(self, units: Units, known: np.ndarray) -> Units:
        return Units(units.shift, units.size, known / units.size**2)

    def collapse(self, y: np.ndarray, site: np.ndarray, units: Units) -> Weighted:
        variance = np.broadcast_to(np.asarray(units.noise), y.shape)
        weights = 1.0 / np.maximum(variance, LEAST_KNOWN)
        (means, _), precision = site_means(y, site), sum_by_site(weights, site)
        beside = sum_by_site(weights * (y - means[site]), site) / precision
        return Weighted(means + beside, precision)

    def starting_latents(self, observed: Weighted) -> np.ndarray:
        return np.asarray(observed.y)

    def log_density(self, observed: Weighted, latents: Array, used: Array) -> Array:
        """−½ Σ_i (ȳ_i − f_i)² Σ_k 1/v_ik, but for what does not depend on latents."""
        return -0.5 * jnp.sum(observed.precision * (observed.y - latents) ** 2)

    def function_moments(self, latents: Gaussian, units: Units) -> Gaussian:
        return latents

    def moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """E y = E f and Var y = Var f + v."""
        return latents if units.noise is None else Gaussian(latents.mean, latents.var + units.noise)

    def log_density_of(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        return NORMAL.log_density_of(y, self.moments(latents, units), units)

    def cdf(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        return NORMAL.cdf(y, self.moments(latents, units), units)

    def draw(self, generator: np.random.Generator, latents: np.ndarray, units: Units) -> np.ndarray:
        std = 0.0 if units.noise is None else np.sqrt(units.noise)
        return latents + std * generator.standard_normal(latents.shape)
