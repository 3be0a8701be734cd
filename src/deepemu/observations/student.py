"""Outputs with errors of Student's t distribution: now and then one is far off."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from scipy.special import stdtr

from deepemu.core.distributions import Gaussian
from deepemu.core.model.observation import Units
from deepemu.observations.gaussian import GaussianNoise
from deepemu.observations.imputed import Imputed
from deepemu.observations.quadrature import Functions

LOG_PI = float(np.log(np.pi))
# The median distance from the median is this share of a normal standard deviation.
MEDIAN_OF_NORMAL = 0.6745
# Of the log of the errors' size, in that of the outputs, and of the log of ν − 2.
SIZE, HEAVINESS = (-2.0, 1.5), (1.5, 1.0)


@dataclass(frozen=True)
class StudentT(Imputed):
    """y = f + s t, with t of ν > 2 degrees of freedom; s and ν are common to all rows, and found
    from the data."""

    spacing: ClassVar[float | None] = None
    priors: ClassVar[tuple[tuple[float, float], ...]] = (SIZE, HEAVINESS)

    def units(self, y: np.ndarray, site: np.ndarray) -> Units:
        """Median, and standard deviation of normal outputs with the same median distance from it;
        those of all outputs where most are equal."""
        middle = np.median(y, axis=0)
        size = np.median(np.abs(y - middle), axis=0) / MEDIAN_OF_NORMAL
        of_all = GaussianNoise().units(y, site)
        varies = size > 0.0
        shift = np.where(varies, middle, of_all.shift)
        return Units(shift, np.where(varies, size, of_all.size))

    def in_core(self, y: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
        return y, np.ones(y.shape)

    def start(self, y: np.ndarray, size: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """A middle output of each site."""
        place = (np.sum(weights > 0.0, axis=1, keepdims=True) - 1) // 2
        return np.take_along_axis(y, place, axis=1)[:, 0]

    def log_p(self, of: Functions, y: Any, size: Any, f: Any, *further: Any) -> Any:
        """log Γ((ν+1)/2) − log Γ(ν/2) − ½ log νπ − log s − ½(ν+1) log(1 + (y − f)²/(νs²))."""
        log_s, log_beyond_two = further
        nu = 2.0 + of.exp(log_beyond_two)
        half = 0.5 * (nu + 1.0)
        constant = of.gammaln(half) - of.gammaln(0.5 * nu) - 0.5 * (of.log(nu) + LOG_PI) - log_s
        return constant - half * of.log1p((y - f) ** 2 * of.exp(-2.0 * log_s) / nu)

    def given(
        self, y: np.ndarray, size: np.ndarray, f: np.ndarray, *further: np.ndarray
    ) -> np.ndarray:
        log_s, log_beyond_two = further
        return stdtr(2.0 + np.exp(log_beyond_two), (y - f) * np.exp(-log_s))

    def peak(self, y: np.ndarray, size: np.ndarray, *further: np.ndarray) -> tuple[Any, Any]:
        """y, within s."""
        return y, np.exp(further[0])

    def function_moments(self, latents: Gaussian, units: Units) -> Gaussian:
        return self.moments_apart(latents)[0]

    def moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """E y = E f and Var y = Var f + E s² E ν/(ν − 2), where ν/(ν − 2) = 1 + 2/(ν − 2)."""
        f, log_s, log_beyond_two = self.moments_apart(latents)
        square = jnp.exp(2.0 * log_s.mean + 2.0 * log_s.var)
        heavier = 1.0 + 2.0 * jnp.exp(-log_beyond_two.mean + 0.5 * log_beyond_two.var)
        return Gaussian(f.mean, f.var + square * heavier)

    def draw(self, generator: np.random.Generator, latents: np.ndarray, units: Units) -> np.ndarray:
        f, log_s, log_beyond_two = self.apart(latents)
        return f + np.exp(log_s) * generator.standard_t(2.0 + np.exp(log_beyond_two))
