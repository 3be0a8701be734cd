"""Scores of predictions against held-out outputs.

Every function takes the observed outputs first and the predictive mean (and standard deviation)
next, all of the same shape. A score is averaged over all entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, logsumexp, ndtr, ndtri

from deepemu.data.checks import check_level, checked, components, require_value, shares
from deepemu.errors import InputError

__all__ = [
    "CoverageTable",
    "CoverageTails",
    "coverage",
    "coverage_table",
    "coverage_test",
    "crps",
    "log_score",
    "mixture_crps",
    "mixture_log_density",
    "normalised_crps",
    "nrmsep",
    "pit",
    "scores",
    "standardised_errors",
]
LEVEL = 0.95
INTERVAL_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
_INV_SQRT_PI = 1.0 / np.sqrt(np.pi)
_INV_SQRT_2PI = 1.0 / np.sqrt(2.0 * np.pi)
_LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)


def nrmsep(y: ArrayLike, mean: ArrayLike) -> float:
    """Root mean squared error of the mean, divided by the range of the outputs.

    ``NRMSEP = sqrt(mean_i (y_i - mu_i)^2) / (max_i y_i - min_i y_i)``
    """
    y, mean = checked(y=y, mean=mean)
    return float(np.sqrt(np.mean((y - mean) ** 2)) / _output_range(y))


def crps(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Continuous ranked probability score of normal predictions, averaged over points.

    ``CRPS = sigma [z (2 Phi(z) - 1) + 2 phi(z) - 1/sqrt(pi)],  z = (y - mu) / sigma``

    Lower is better, in the units of y (Gneiting and Raftery 2007, equation 21). Where sigma = 0
    the prediction is a point and the score its absolute error.
    """
    y, mean, std = checked(y=y, mean=mean, std=std)
    return float(np.mean(_normal_crps(y - mean, std)))


def normalised_crps(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """The CRPS divided by the range of the outputs, max_i y_i - min_i y_i."""
    y, mean, std = checked(y=y, mean=mean, std=std)
    return crps(y, mean, std) / _output_range(y)


def coverage(y: ArrayLike, mean: ArrayLike, std: ArrayLike, level: float = LEVEL) -> float:
    """Share of outputs inside the central normal interval of probability ``level``.

    ``|y_i - mu_i| <= z sigma_i,  z = Phi^{-1}((1 + level) / 2)``
    """
    check_level(level)
    y, mean, std = checked(y=y, mean=mean, std=std)
    return float(np.mean(np.abs(y - mean) <= ndtri((1.0 + level) / 2.0) * std))


def tails(level: float) -> tuple[float, float]:
    """The levels of the quantiles that are the ends of the central interval."""
    return (1.0 - level) / 2.0, (1.0 + level) / 2.0


class CoverageTails(NamedTuple):
    """Probabilities of as few or as many outputs inside, if the intervals are calibrated."""

    lower: float
    upper: float


def coverage_test(n_inside: int, n: int, level: float) -> CoverageTails:
    """Whether ``n_inside`` of ``n`` outputs in intervals of probability ``level`` is plausible.

    lower = P(X <= n_inside),  upper = P(X >= n_inside),  X ~ binomial(n, level)

    A small ``lower`` (below 0.025, say) means that the intervals are too narrow, a small
    ``upper`` that they are too wide. Outputs are taken as independent; errors of neighbouring
    points are not, so that held-out points that lie close together count for fewer.
    """
    check_level(level)
    is_count = 0 <= n_inside <= n and n > 0
    require_value(is_count, "n_inside", n_inside, f"between 0 and n, and n ({n}) positive")
    return CoverageTails(
        lower=_binomial_tail(n - n_inside, n, 1.0 - level),
        upper=_binomial_tail(n_inside, n, level),
    )


def _binomial_tail(k: int, n: int, p: float) -> float:
    """P(X >= k) = I_p(k, n - k + 1),  X ~ binomial(n, p)."""
    return 1.0 if k == 0 else float(betainc(k, n - k + 1, p))


@dataclass(frozen=True)
class CoverageTable:
    """How many of ``n`` outputs lie inside the intervals of each level; printed as a table."""

    levels: tuple[float, ...]
    n_inside: tuple[int, ...]
    n: int

    @property
    def shares(self) -> tuple[float, ...]:
        return tuple(inside / self.n for inside in self.n_inside)

    @property
    def tails(self) -> tuple[CoverageTails, ...]:
        """:func:`coverage_test` of each level."""
        counts = zip(self.n_inside, self.levels, strict=True)
        return tuple(coverage_test(inside, self.n, level) for inside, level in counts)

    def __str__(self) -> str:
        rows = zip(self.levels, self.shares, self.tails, strict=True)
        title = f"{'nominal':>7}  {'observed':>8}  {'P(as few)':>9}  {'P(as many)':>10}"
        lines = [
            f"{level:7.3g}  {share:8.3f}  {tails.lower:9.2g}  {tails.upper:10.2g}"
            for level, share, tails in rows
        ]
        return "\n".join([title, *lines])


def coverage_table(
    y: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    levels: Sequence[float] = INTERVAL_LEVELS,
) -> CoverageTable:
    """:func:`coverage` at several levels, with the number of outputs it rests on."""
    y, mean, std = checked(y=y, mean=mean, std=std)
    inside = tuple(round(coverage(y, mean, std, level) * y.size) for level in levels)
    return CoverageTable(tuple(levels), inside, y.size)


def standardised_errors(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> np.ndarray:
    """z = (y - mu) / sigma of each entry, standard normal if the predictions are calibrated.

    Where sigma = 0 it is 0 if the prediction is exact and otherwise infinite, with the sign of
    the error.
    """
    y, mean, std = checked(y=y, mean=mean, std=std)
    return _standardised(y - mean, std)


def pit(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> np.ndarray:
    """Probability integral transform Phi((y - mu) / sigma), uniform if the predictions are
    calibrated.

    Values accumulate at 0 and 1 if the predictions are over-confident, in the middle if they are
    too cautious, on one side if they are biased (Gneiting, Balabdaoui and Raftery 2007).
    """
    return ndtr(standardised_errors(y, mean, std))


def log_score(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Logarithm of the normal predictive density at the outputs, averaged; higher is better.

    mean_i [-log(sigma_i sqrt(2 pi)) - (y_i - mu_i)^2 / (2 sigma_i^2)]

    A prediction with sigma = 0 makes it infinite, minus infinity as soon as one of them misses.
    """
    y, mean, std = checked(y=y, mean=mean, std=std)
    log_density = normal_log_density(y - mean, std)
    missed = np.any(np.isneginf(log_density))
    return -np.inf if missed else float(np.mean(log_density))


def mixture_log_density(
    y: ArrayLike, means: ArrayLike, variances: ArrayLike, weights: ArrayLike | None = None
) -> np.ndarray:
    """Logarithm of the density of a mixture of K normals at each entry of y.

    ``log sum_k w_k N(y; m_k, v_k)``

    ``means`` and ``variances`` have the shape ``(K, *y.shape)``; the K weights are scaled to sum to
    one, and are equal unless given. A component of variance zero is a point: it adds infinity
    where y equals its mean and nothing elsewhere.
    """
    y, means, variances, w = _checked_mixture(y, means, variances, weights)
    # Weight zero times density infinity is zero here; in logarithms it would be NaN.
    used = np.flatnonzero(w)
    log_density = normal_log_density(y - means[used], np.sqrt(variances[used]))
    log_w = np.log(w[used]).reshape(-1, *[1] * y.ndim)
    return logsumexp(log_w + log_density, axis=0)


def mixture_crps(
    y: ArrayLike, means: ArrayLike, variances: ArrayLike, weights: ArrayLike | None = None
) -> np.ndarray:
    """CRPS of a mixture of K normals at each entry of y.

    ``sum_k w_k A(y - m_k, v_k) - 1/2 sum_kl w_k w_l A(m_k - m_l, v_k + v_l)``

    with ``A(m, v) = E|X|`` of a normal X with mean m and variance v (Grimit et al. 2006). Shapes
    and weights are those of :func:`mixture_log_density`.
    """
    y, means, variances, w = _checked_mixture(y, means, variances, weights)
    return normal_mixture_crps(y, means, np.sqrt(variances), w.reshape(-1, *[1] * y.ndim))


def _checked_mixture(
    y: ArrayLike, means: ArrayLike, variances: ArrayLike, weights: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The arguments of a score of a mixture, with weights that sum to one."""
    means, variances = components(means, variances)
    (y,) = checked(y=y)
    if means.shape[1:] != y.shape:
        raise InputError(
            f"means has the shape {means.shape}; it must be (K, *{y.shape}), with one row of the "
            "shape of y per component."
        )
    return y, means, variances, shares(weights, len(means))


def scores(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> dict[str, float]:
    """NRMSEP, CRPS, normalised CRPS and the coverage at level 0.95, by name."""
    y, mean, std = checked(y=y, mean=mean, std=std)
    return {
        "nrmsep": nrmsep(y, mean),
        "crps": crps(y, mean, std),
        "normalised_crps": normalised_crps(y, mean, std),
        "coverage": coverage(y, mean, std),
    }


def _normal_crps(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """The formula of :func:`crps`: E|X - y| less sigma/sqrt(pi), half the distance of two draws."""
    return expected_distance(error, std) - std * _INV_SQRT_PI


def expected_distance(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """A(e, sigma^2) = E|X| of a normal X with mean e and standard deviation sigma.

    2 sigma phi(e/sigma) + e (2 Phi(e/sigma) - 1), with a = |e| written as
    a + 2 [sigma phi(a/sigma) - a Phi(-a/sigma)]: every term but the first vanishes with sigma, so
    that sigma = 0 needs a guard for the ratio only.
    """
    size = np.abs(error)
    # Past 40 standard deviations the correction is zero in float64; larger squares may overflow.
    ratio = np.minimum(size / np.where(std > 0.0, std, 1.0), 40.0)
    density = _INV_SQRT_2PI * np.exp(-0.5 * ratio**2)
    correction = 2.0 * (std * density - size * ndtr(-ratio))
    return size + np.where(std > 0.0, correction, 0.0)


def normal_mixture_crps(
    y: np.ndarray, means: np.ndarray, stds: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """The formula of :func:`mixture_crps`; weights broadcast against (K, *y.shape)."""
    distance = np.sum(weights * expected_distance(y - means, stds), axis=0)
    return distance - half_distance(means, stds, weights)


def half_distance(means: np.ndarray, stds: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """1/2 sum_kl w_k w_l A(m_k - m_l, v_k + v_l): half the mean distance of two draws.

    One k after the other, so that memory holds the components once and not their pairs.
    """
    return 0.5 * sum(
        w * np.sum(weights * expected_distance(means - mean, np.hypot(stds, std)), axis=0)
        for mean, std, w in zip(means, stds, weights, strict=True)
    )


def _standardised(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """The formula of :func:`standardised_errors`."""
    exact = error == 0.0
    with np.errstate(over="ignore", divide="ignore"):
        return np.where(exact, 0.0, error) / np.where(exact, 1.0, std)


def normal_log_density(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """The formula of :func:`log_score`; of a point, infinite at it and minus infinity elsewhere."""
    point = std == 0.0
    log_std = np.log(np.where(point, 1.0, std))
    with np.errstate(over="ignore"):
        of_normal = -0.5 * _standardised(error, std) ** 2 - _LOG_SQRT_2PI - log_std
    return np.where(point & (error == 0.0), np.inf, of_normal)


def _output_range(y: np.ndarray) -> float:
    spread = float(np.ptp(y))
    if spread == 0.0:
        raise InputError("The outputs are all equal; a score relative to their range needs two.")
    return spread
