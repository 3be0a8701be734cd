"""A second observation model: counts, y ~ Poisson(ȳ exp f), with f imputed at each site."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from scipy.stats import poisson

from deepemu.core.distributions import Gaussian
from deepemu.core.model.observation import Units
from deepemu.observations.gaussian import site_means
from deepemu.observations.model import Observation

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(30)


@dataclass(frozen=True)
class Poisson(Observation):
    """In core units counts are y / ȳ."""

    imputed: ClassVar[bool] = True
    spacing: ClassVar[float] = 1.0

    def units(self, y, site):
        return Units(np.zeros(y.shape[1]), y.mean(axis=0))

    def collapse(self, y, site, units):
        means, counts = site_means(y, site)
        return {"y": means, "weights": counts[:, None] * units.size}

    def starting_latents(self, observed):
        return np.log(observed["y"] + 0.5 / observed["weights"])

    def log_density(self, observed, latents, used):
        """Σ_i n_i ȳ (y_i f_i − exp f_i); padded rows weigh nothing."""
        return jnp.sum(observed["weights"] * (observed["y"] * latents - jnp.exp(latents)))

    def moments(self, latents, units):
        mean = jnp.exp(latents.mean + 0.5 * latents.var)
        return Gaussian(mean, mean / units.size + mean**2 * jnp.expm1(latents.var))

    def _expected(self, function, y, latents, units):
        """E[function(count, rate)] over a normal log rate, by Gauss-Hermite quadrature."""
        shape = (-1, *[1] * np.ndim(latents.mean))
        rates = np.exp(latents.mean + np.sqrt(latents.var) * NODES.reshape(shape))
        each = function(np.round(y * units.size, 6), rates * units.size)
        return np.average(each, axis=0, weights=np.broadcast_to(WEIGHTS.reshape(shape), each.shape))

    def log_density_of(self, y, latents, units):
        return np.log(self._expected(poisson.pmf, y, latents, units))

    def cdf(self, y, latents, units):
        return self._expected(poisson.cdf, y, latents, units)

    def draw(self, generator, latents, units):
        return generator.poisson(units.size * np.exp(latents)) / units.size
