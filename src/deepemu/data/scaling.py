"""Scaling of inputs and outputs to the units of the core, and back."""

from dataclasses import dataclass

import numpy as np

from deepemu.errors import DataWarning, InputError, warn

Floats = np.ndarray


@dataclass(frozen=True)
class InputScale:
    """Inputs to [0, 1] over the training data."""

    low: Floats
    span: Floats

    def to_core(self, x: Floats) -> Floats:
        return (x - self.low) / self.span

    def to_user(self, x: Floats) -> Floats:
        return self.low + self.span * x


def input_scale_of(x: Floats) -> InputScale:
    """The range of each column; a constant one keeps its units."""
    low, high = x.min(axis=0), x.max(axis=0)
    with np.errstate(over="ignore"):
        span = high - low
    require_finite_span(span, "X")
    return InputScale(low, np.where(span > 0, span, 1.0))


def round_off(y: Floats) -> Floats:
    """The rounding error of a mean of equal numbers."""
    return 4.0 * np.finfo(float).eps * np.abs(y).max(axis=0)


def require_finite_span(span: Floats, name: str) -> None:
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
        warn(
            f"{which} constant over the {y.shape[0]} training rows: the emulator returns that "
            "constant with almost no uncertainty; check that the inputs were varied.",
            DataWarning,
        )
