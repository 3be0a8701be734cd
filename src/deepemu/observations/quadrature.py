"""Expectations over normal latents by Gauss rules.

A density or a distribution function of counts, as a function of the latent, has a peak or a step
that may be far narrower than the latent's distribution, or far wider. The rule for it cuts the
range there. Smooth functions need a plain Gauss-Hermite rule.
"""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.polynomial.legendre import leggauss
from scipy import special

from deepemu._types import Array, record
from deepemu.core.distributions import Gaussian

# The normal beyond this many standard deviations is left out, 1e-13 of it; and a function is smooth
# so many of its widths away from its peak or step.
REACH, BESIDE = 7.5, 7.0
N_PANEL = 40
# Trapezia under the density of a logistic variable.
FARTHEST, STEP = 40.0, 0.75
N_SMOOTH, N_FURTHER = 40, 15
SMALLEST_STD = 1e-10


class Functions:
    """The functions that a formula is made of, of NumPy and SciPy or, where JAX traces it, of
    JAX: a formula is written once, with these as an argument."""

    def __init__(self, numpy: ModuleType, special: ModuleType) -> None:
        self.exp, self.log, self.log1p = numpy.exp, numpy.log, numpy.log1p
        self.where, self.logaddexp = numpy.where, numpy.logaddexp
        self.minimum, self.maximum = numpy.minimum, numpy.maximum
        self.gammaln, self.expit, self.ndtr = special.gammaln, special.expit, special.ndtr

    def log_expit(self, x: Any) -> Any:
        """log 1/(1 + e⁻ˣ)."""
        return -self.logaddexp(0.0, -x)


HOST, TRACED = Functions(np, special), Functions(jnp, jax.scipy.special)


@record
class Nodes:
    """Points (J, …) and weights (J, …), which add up to one."""

    at: np.ndarray
    weights: np.ndarray


def across(latent: Gaussian, centre: np.ndarray, width: np.ndarray) -> Nodes:
    """A rule for f ~ N(μ, σ²) and functions that change within some ``width`` of ``centre``, all of
    one shape: Gauss-Legendre on the three panels between μ ± 7.5σ and centre ± 7 width, in order.

    A peak far from μ has a panel too: an output may be many standard deviations off.
    """
    mean, std = np.asarray(latent.mean), np.sqrt(np.maximum(latent.var, SMALLEST_STD**2))
    cuts = [(centre + sign * BESIDE * width - mean) / std for sign in (-1, 1)]
    ends = [np.full_like(cuts[0], sign * REACH) for sign in (-1, 1)]
    edges = np.sort(np.stack([*ends, *cuts]), axis=0)
    z, weights = [], []
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        points, shares = (of.reshape(-1, *[1] * low.ndim) for of in leggauss(N_PANEL))
        half = 0.5 * (high - low)
        z.append(low + half * (1.0 + points))
        weights.append(half * shares * np.exp(-0.5 * z[-1] ** 2))
    every = np.concatenate(weights)
    return Nodes(mean + std * np.concatenate(z), every / every.sum(axis=0))


def smooth(latent: Gaussian, count: int) -> Nodes:
    """A Gauss-Hermite rule for f ~ N(μ, σ²)."""
    points, shares = hermegauss(count)
    shape = (-1, *[1] * np.ndim(latent.mean))
    at = np.asarray(latent.mean) + np.sqrt(latent.var) * points.reshape(shape)
    return Nodes(at, (shares / shares.sum()).reshape(shape))


def expected_share(of: Functions, latent: Gaussian, power: int = 1) -> Array:
    """E pᵏ for p = 1/(1 + e⁻ᶠ) and f ~ N(μ, σ²).

    By Gauss-Hermite up to σ = 1. Beyond, where pᵏ is steep for such a rule, by trapezia: with the
    density of pᵏ as a distribution function, E pᵏ = ∫ k p(t)ᵏ (1 − p(t)) Φ((μ − t)/σ) dt.
    """
    std = latent.var**0.5
    points, shares = hermegauss(N_SMOOTH)
    narrow = sum(
        share * of.expit(latent.mean + point * of.minimum(std, 1.0)) ** power
        for point, share in zip(points, shares / shares.sum(), strict=True)
    )
    wide, spread = 0.0, of.maximum(std, 1.0)
    for t in np.arange(-FARTHEST, FARTHEST + STEP, STEP):
        p = HOST.expit(t)
        wide = wide + STEP * power * p**power * (1.0 - p) * of.ndtr((latent.mean - t) / spread)
    return of.where(std > 1.0, wide, narrow)
