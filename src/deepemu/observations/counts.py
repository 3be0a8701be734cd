"""Counts: y = 0, 1, 2, … of a rate that is the exponential of a latent, times an exposure.

With few runs a dispersion, or a probability of zeros, is better found as one number than as a
function of the inputs: it is common to all rows, unless the model is told that it is ``varying``.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from scipy.special import betainc, gammaincc, gammaln

from deepemu._types import Array
from deepemu.core.distributions import Gaussian
from deepemu.core.model.observation import Units
from deepemu.data.checks import require
from deepemu.observations import quadrature
from deepemu.observations.imputed import Imputed
from deepemu.observations.quadrature import TRACED, Functions

HALF = 0.5
# In core units a count of zero is less than this, and a count of one is more.
ZERO = 1e-12
# Of the log of a dispersion, and of the logit of a probability of zeros.
DISPERSION, ZEROS = (-1.0, 1.5), (-1.5, 1.5)


def require_counts(y: np.ndarray) -> None:
    negative, fractional = np.sum(y < 0.0), np.sum(y != np.round(y))
    require(not negative, f"y has {negative} negative value(s); counts are 0, 1, 2, …")
    require(not fractional, f"y has {fractional} value(s) with a fraction; counts are 0, 1, 2, …")


class Counts(Imputed):
    """μ = e · exp f with the exposure e. In core units counts are y / (ȳ e), where ȳ is the mean
    count of an exposure of one."""

    spacing: ClassVar[float | None] = 1.0
    known: ClassVar[str | None] = "exposure"

    def check(self, y: np.ndarray, known: np.ndarray | None = None) -> None:
        require_counts(y)

    def units(self, y: np.ndarray, site: np.ndarray, known: np.ndarray | None = None) -> Units:
        size = y.sum(axis=0) / (np.ones_like(y) if known is None else known).sum(axis=0)
        zero = np.flatnonzero(size == 0.0).tolist()
        which = "y" if y.shape[1] == 1 else f"column(s) {zero} of y"
        require(not zero, f"All counts of {which} are zero; a rate needs at least one that is not.")
        return Units(np.zeros_like(size), size)

    def units_of_rows(self, units: Units, known: np.ndarray) -> Units:
        return Units(units.shift, units.size * known)

    def in_core(self, y: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
        size = np.broadcast_to(units.size, y.shape)
        return np.round(y * size, 6), size

    def start(self, y: np.ndarray, size: np.ndarray, weights: np.ndarray) -> np.ndarray:
        counts, exposures = (np.sum(weights * each, axis=1) for each in (y, size))
        return np.log((counts + HALF) / exposures)

    def peak(self, y: np.ndarray, size: np.ndarray, *further: np.ndarray) -> tuple[Any, Any]:
        """log (y + ½)/e, within (y + ½)^(−½)."""
        y = np.maximum(y, 0.0) + HALF
        return np.log(y / size), y**-0.5

    def log_constant(self, y: np.ndarray, size: np.ndarray) -> Any:
        """−log y!, and impossible below zero and between counts."""
        possible = (y >= 0.0) & (y == np.round(y))
        return np.where(possible, -gammaln(np.maximum(y, 0.0) + 1.0), -np.inf)

    def draw(self, generator: np.random.Generator, latents: np.ndarray, units: Units) -> np.ndarray:
        f, *further = self.apart(latents)
        return self.drawn(generator, units.size * np.exp(f), *further) / units.size

    @abstractmethod
    def drawn(self, generator: np.random.Generator, mean: np.ndarray, *further: Any) -> np.ndarray:
        """Counts with these means."""

    def function_moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """Those of exp f, a log-normal variable: E = exp(μ + σ²/2) and Var = E² (exp σ² − 1)."""
        f = self.moments_apart(latents)[0]
        mean = jnp.exp(f.mean + 0.5 * f.var)
        return Gaussian(mean, mean**2 * jnp.expm1(f.var))


@dataclass(frozen=True)
class Poisson(Counts):
    """y ~ Poisson(e exp f)."""

    adds_up: ClassVar[bool] = True

    def log_p(self, of: Functions, y: Any, size: Any, f: Any, *further: Any) -> Any:
        """y log μ − μ."""
        return y * (f + of.log(size)) - size * of.exp(f)

    def given(
        self, y: np.ndarray, size: np.ndarray, f: np.ndarray, *further: np.ndarray
    ) -> np.ndarray:
        """Q(y + 1, μ), the upper incomplete gamma function."""
        found = gammaincc(np.floor(np.maximum(y, 0.0)) + 1.0, size * np.exp(f))
        return np.where(y < 0.0, 0.0, found)

    def moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """E y = E μ and Var y = E μ + Var μ."""
        rate = self.function_moments(latents, units)
        return Gaussian(rate.mean, rate.mean / units.size + rate.var)

    def drawn(self, generator: np.random.Generator, mean: np.ndarray, *further: Any) -> np.ndarray:
        return generator.poisson(mean).astype(float)


@dataclass(frozen=True)
class NegativeBinomial(Counts):
    """Counts with mean μ = e exp f and variance μ + a μ², where log a is the further latent."""

    priors: ClassVar[tuple[tuple[float, float], ...]] = (DISPERSION,)
    varying: bool = False

    def log_p(self, of: Functions, y: Any, size: Any, f: Any, *further: Any) -> Any:
        """log Γ(y + r) − log Γ(r) + r log r + y log μ − (y + r) log(r + μ), with r = 1/a."""
        (log_a,) = further
        r, log_mean = of.exp(-log_a), f + of.log(size)
        both = of.logaddexp(-log_a, log_mean)
        return of.gammaln(y + r) - of.gammaln(r) - r * (log_a + both) + y * (log_mean - both)

    def given(
        self, y: np.ndarray, size: np.ndarray, f: np.ndarray, *further: np.ndarray
    ) -> np.ndarray:
        """I_p(r, y + 1) with p = r/(r + μ), the incomplete beta function."""
        r = np.exp(-further[0])
        p = r / (r + size * np.exp(f))
        found = betainc(r, np.floor(np.maximum(y, 0.0)) + 1.0, p)
        return np.where(y < 0.0, 0.0, found)

    def peak(self, y: np.ndarray, size: np.ndarray, *further: np.ndarray) -> tuple[Any, Any]:
        """As of Poisson counts, wider by the dispersion: (1/(y + ½) + a)^½."""
        centre, width = super().peak(y, size)
        return centre, np.sqrt(width**2 + np.exp(further[0]))

    def moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """E y = E μ and Var y = E μ + E a E μ² + Var μ."""
        a = log_normal_mean(self.moments_apart(latents)[1])
        rate = self.function_moments(latents, units)
        square = rate.var + rate.mean**2
        return Gaussian(rate.mean, rate.mean / units.size + a * square + rate.var)

    def drawn(self, generator: np.random.Generator, mean: np.ndarray, *further: Any) -> np.ndarray:
        """Poisson counts whose rates are gamma variables."""
        a = np.exp(further[0])
        return generator.poisson(mean * a * generator.gamma(1.0 / a, size=mean.shape)).astype(float)


def log_normal_mean(latent: Gaussian) -> Array:
    """E exp f = exp(μ + σ²/2)."""
    return jnp.exp(latent.mean + 0.5 * latent.var)


class ZeroInflated(Counts):
    """Counts of a model, or zero with a probability π whose logit is the last latent."""

    varying: bool = False

    @property
    @abstractmethod
    def inside(self) -> Counts:
        """The model of counts that are no such zeros."""

    def _halves(self, latents: Gaussian) -> tuple[Gaussian, Gaussian]:
        """The latents of the counts, and the logit of π."""
        zeros = self.moments_apart(latents)[-1]
        n_last = zeros.mean.shape[-1]
        return Gaussian(latents.mean[..., :-n_last], latents.var[..., :-n_last]), zeros

    def log_p(self, of: Functions, y: Any, size: Any, f: Any, *further: Any) -> Any:
        """log((1 − π) p(y)), and log(π + (1 − π) p(0)) of a zero."""
        *own, logit = further
        count = of.log_expit(-logit) + self.inside.log_p(of, y, size, f, *own)
        return of.where(y == 0.0, of.logaddexp(of.log_expit(logit), count), count)

    def given(
        self, y: np.ndarray, size: np.ndarray, f: np.ndarray, *further: np.ndarray
    ) -> np.ndarray:
        raise TypeError("the probability of zeros and that of counts are averaged apart")

    def log_density_of(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """Of `log_p`, averaged: π and the counts are independent given an imputed network."""
        own, logit = self._halves(latents)
        share, count = _share(logit), self.inside.log_density_of(y, own, units)
        count = np.log1p(-share) + count
        return np.where(np.abs(y) < ZERO, np.logaddexp(np.log(share), count), count)

    def cdf(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """π 1{y ≥ 0} + (1 − π) F(y)."""
        own, logit = self._halves(latents)
        share = _share(logit)
        return share * (y >= 0.0) + (1.0 - share) * self.inside.cdf(y, own, units)

    def moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """E y = (1 − π) E y' and E y² = (1 − π) E y'² of the counts y'."""
        own, logit = self._halves(latents)
        counts = self.inside.moments(own, units)
        rest = quadrature.expected_share(TRACED, _opposite(logit))
        square = rest * (counts.var + counts.mean**2)
        mean = rest * counts.mean
        return Gaussian(mean, square - mean**2)

    def function_moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """Of (1 − π) exp f, a product of independent variables."""
        own, logit = self._halves(latents)
        rate = self.inside.function_moments(own, units)
        rest, square = (
            quadrature.expected_share(TRACED, _opposite(logit), power) for power in (1, 2)
        )
        mean = rest * rate.mean
        var = square * (rate.var + rate.mean**2) - mean**2
        return Gaussian(mean, TRACED.maximum(var, 0.0))

    def drawn(self, generator: np.random.Generator, mean: np.ndarray, *further: Any) -> np.ndarray:
        *own, logit = further
        counts = self.inside.drawn(generator, mean, *own)
        return np.where(generator.random(mean.shape) < quadrature.HOST.expit(logit), 0.0, counts)


def _share(logit: Gaussian) -> np.ndarray:
    """E π."""
    return np.asarray(quadrature.expected_share(quadrature.HOST, logit))


def _opposite(logit: Gaussian) -> Gaussian:
    """The logit of 1 − π."""
    return Gaussian(-logit.mean, logit.var)


@dataclass(frozen=True)
class ZeroInflatedPoisson(ZeroInflated):
    """Poisson counts, or zero with a probability π."""

    priors: ClassVar[tuple[tuple[float, float], ...]] = (ZEROS,)
    varying: bool = False

    @property
    def inside(self) -> Poisson:
        return Poisson()


@dataclass(frozen=True)
class ZeroInflatedNegativeBinomial(ZeroInflated):
    """Counts with a dispersion, or zero with a probability π."""

    priors: ClassVar[tuple[tuple[float, float], ...]] = (DISPERSION, ZEROS)
    varying: bool = False

    @property
    def inside(self) -> NegativeBinomial:
        return NegativeBinomial(self.varying)
