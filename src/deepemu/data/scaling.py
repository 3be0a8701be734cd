"""Scaling of inputs and outputs to the units of the core, and back."""

import warnings
from dataclasses import dataclass

import numpy as np

from deepemu.errors import DataWarning, InputError

Floats = np.ndarray


@dataclass(frozen=True)
class Scaling:
    """Inputs to [0, 1] over the training data, outputs to mean 0 and standard deviation 1."""

    x_low: Floats
    x_span: Floats
    y_mean: Floats
    y_std: Floats

    def x_to_core(self, x: Floats) -> Floats:
        return (x - self.x_low) / self.x_span

    def y_to_core(self, y: Floats) -> Floats:
        return (y - self.y_mean) / self.y_std

    def mean_to_user(self, mean: Floats) -> Floats:
        return mean * self.y_std + self.y_mean

    def std_to_user(self, std: Floats) -> Floats:
        return std * self.y_std


def scaling_of(x: Floats, y: Floats) -> Scaling:
    """Scaling that maps constant columns to zero; outputs are first divided by their size.

    Dividing before squaring keeps outputs near the largest doubles from overflowing.
    """
    low, high = x.min(axis=0), x.max(axis=0)
    with np.errstate(over="ignore"):
        span = high - low
        mean = y.mean(axis=0)
        size = np.abs(y - mean).max(axis=0)
    _require_finite_span(span, "X")
    _require_finite_span(np.append(mean, size), "y")
    size = np.where(size > round_off(y), size, 0.0)
    spread = np.where(size > 0, size, 1.0)
    std = spread * np.where(size > 0, ((y - mean) / spread).std(axis=0), 1.0)
    return Scaling(low, np.where(span > 0, span, 1.0), mean, std)


def round_off(y: Floats) -> Floats:
    """Differences that come from the rounding of a mean of equal numbers."""
    return 4.0 * np.finfo(float).eps * np.abs(y).max(axis=0)


def _require_finite_span(span: Floats, name: str) -> None:
    if not np.all(np.isfinite(span)):
        raise InputError(
            f"{name} spans more than the largest double ({np.finfo(float).max:.1e}); "
            f"rescale {name} before fitting."
        )


def constant_columns(y: Floats) -> np.ndarray:
    """The places of columns whose entries are equal up to round-off."""
    with np.errstate(over="ignore"):
        return np.flatnonzero(np.ptp(y, axis=0) <= round_off(y))


def warn_if_constant(y: Floats) -> None:
    constant = constant_columns(y)
    if constant.size:
        which = "y is" if y.shape[1] == 1 else f"column(s) {constant.tolist()} of y are"
        warnings.warn(
            f"{which} constant over the {y.shape[0]} training rows: the emulator returns that "
            "constant with almost no uncertainty; check that the inputs were varied.",
            DataWarning,
            stacklevel=3,
        )
