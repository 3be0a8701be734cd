"""Scores of predictions against held-out outputs.

Every function takes the observed outputs first and the predictive mean (and standard deviation)
next, all of the same shape, and averages over all entries.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from deepemu.errors import InputError

__all__ = ["coverage", "crps", "normalised_crps", "nrmsep", "scores"]

_INV_SQRT_PI = 1.0 / np.sqrt(np.pi)
_INV_SQRT_2PI = 1.0 / np.sqrt(2.0 * np.pi)


def nrmsep(y: ArrayLike, mean: ArrayLike) -> float:
    """Root mean squared error of the mean, divided by the range of the outputs.

    NRMSEP = sqrt(mean_i (y_i - mu_i)^2) / (max_i y_i - min_i y_i)
    """
    y, mean = _checked(y=y, mean=mean)
    return float(np.sqrt(np.mean((y - mean) ** 2)) / _output_range(y))


def crps(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Continuous ranked probability score of normal predictions, averaged over points.

    CRPS = sigma [z (2 Phi(z) - 1) + 2 phi(z) - 1/sqrt(pi)],  z = (y - mu) / sigma

    Lower is better, in the units of y (Gneiting and Raftery 2007, equation 21). Where sigma = 0
    the prediction is a point and the score its absolute error.
    """
    y, mean, std = _checked(y=y, mean=mean, std=std)
    return float(np.mean(_normal_crps(y - mean, std)))


def normalised_crps(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """The CRPS divided by the range of the outputs, max_i y_i - min_i y_i."""
    y, mean, std = _checked(y=y, mean=mean, std=std)
    return crps(y, mean, std) / _output_range(y)


def coverage(y: ArrayLike, mean: ArrayLike, std: ArrayLike, level: float = 0.95) -> float:
    """Share of outputs inside the central normal interval of probability ``level``.

    |y_i - mu_i| <= z sigma_i,  z = Phi^{-1}((1 + level) / 2)
    """
    if not 0.0 < level < 1.0:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    y, mean, std = _checked(y=y, mean=mean, std=std)
    return float(np.mean(np.abs(y - mean) <= ndtri((1.0 + level) / 2.0) * std))


def scores(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> dict[str, float]:
    """All scores of this module by name, the coverage at level 0.95."""
    y, mean, std = _checked(y=y, mean=mean, std=std)
    return {
        "nrmsep": nrmsep(y, mean),
        "crps": crps(y, mean, std),
        "normalised_crps": normalised_crps(y, mean, std),
        "coverage": coverage(y, mean, std),
    }


def _normal_crps(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """The formula of :func:`crps`, written as |e| + correction.

    With a = |e| it is a + 2 [sigma phi(a/sigma) - a Phi(-a/sigma)] - sigma/sqrt(pi): every term
    but the first vanishes with sigma, so that sigma = 0 needs a guard for the ratio only.
    """
    size = np.abs(error)
    # Past 40 standard deviations the correction is zero in float64; larger squares may overflow.
    ratio = np.minimum(size / np.where(std > 0.0, std, 1.0), 40.0)
    density = _INV_SQRT_2PI * np.exp(-0.5 * ratio**2)
    correction = 2.0 * (std * density - size * ndtr(-ratio)) - std * _INV_SQRT_PI
    return size + np.where(std > 0.0, correction, 0.0)


def _output_range(y: np.ndarray) -> float:
    spread = np.ptp(y)
    if spread == 0.0:
        raise InputError("the outputs are all equal, so no score can be relative to their range")
    return spread


def _checked(**arrays: ArrayLike) -> tuple[np.ndarray, ...]:
    """The arguments as float64 arrays of one shape, finite, not empty, with no negative std."""
    checked = {name: _real_array(name, value) for name, value in arrays.items()}
    shapes = {name: array.shape for name, array in checked.items()}
    if len(set(shapes.values())) > 1:
        raise InputError(f"the arguments must have the same shape, got {_listed(shapes)}")
    for name, array in checked.items():
        _check_values(name, array)
    return tuple(checked.values())


def _real_array(name: str, value: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of real numbers") from error


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _check_values(name: str, array: np.ndarray) -> None:
    if array.size == 0:
        raise InputError(f"{name} is empty")
    if not np.all(np.isfinite(array)):
        raise InputError(f"{name} contains NaN or infinite values")
    if name == "std" and np.any(array < 0.0):
        raise InputError("std contains negative values")
