"""Checks of user data, replicates, and scaling to and from the units of the core."""

import warnings
from dataclasses import dataclass
from typing import Any

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
    size = np.where(size > _round_off(y), size, 0.0)
    spread = np.where(size > 0, size, 1.0)
    std = spread * np.where(size > 0, ((y - mean) / spread).std(axis=0), 1.0)
    return Scaling(low, np.where(span > 0, span, 1.0), mean, std)


def _round_off(y: Floats) -> Floats:
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
        return np.flatnonzero(np.ptp(y, axis=0) <= _round_off(y))


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


@dataclass(frozen=True)
class Replicates:
    """Distinct rows of X in order of first appearance, and the outputs observed at each.

    ``squares`` (sites, q) are sums of squares about the site means.
    """

    x: Floats
    y: Floats
    counts: Floats
    squares: Floats
    site_of_row: Floats


def collapse_replicates(x: Floats, y: Floats) -> Replicates:
    """Equal rows of X become one site with mean output, count and squares about the mean."""
    _, first, site = np.unique(x, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    site = np.argsort(order)[site.ravel()]
    first = first[order]
    counts = np.bincount(site).astype(float)
    # Means are taken of differences from a site's first output: equal outputs keep every digit.
    means = y[first] + _sum_by_site(y - y[first][site], site) / counts[:, None]
    squares = _sum_by_site((y - means[site]) ** 2, site)
    return Replicates(x[first], means, counts, squares, site)


def _sum_by_site(values: Floats, site: Floats) -> Floats:
    sums = np.zeros((site.max() + 1, values.shape[1]))
    np.add.at(sums, site, values)
    return sums


def site_means(x: Floats, y: Floats) -> Floats:
    """Mean outputs at the distinct rows of X."""
    with np.errstate(over="ignore", invalid="ignore"):
        return collapse_replicates(x, y).y


def require_numbers(values: Any, name: str) -> None:
    """Text and dates convert to doubles without complaint; neither is what the user means."""
    dtype = values.dtype if hasattr(values, "dtype") else np.asarray(values).dtype
    if dtype.kind in "mMSU":
        raise InputError(f"{name} has dtype {dtype}; convert it to numbers first.")


def names_of_outputs(y: Any, n_outputs: int) -> tuple[str, ...]:
    """The columns of a DataFrame, the name of a Series; otherwise y, or y1, y2, …"""
    if hasattr(y, "columns"):
        return tuple(str(name) for name in y.columns)
    if getattr(y, "name", None) is not None:
        return (str(y.name),)
    return ("y",) if n_outputs == 1 else numbered("y", n_outputs)


def numbered(letter: str, count: int) -> tuple[str, ...]:
    return tuple(f"{letter}{place + 1}" for place in range(count))


def require_varied_columns(x_old: Floats, x_new: Floats) -> None:
    """A column without spread at the first fit has no scale that could be kept."""
    fixed = np.ptp(x_old, axis=0) == 0
    moved = np.flatnonzero(fixed & np.any(x_new != x_old[:1], axis=0))
    if moved.size:
        raise InputError(
            f"column(s) {moved.tolist()} of X_new vary, but were constant when the emulator was "
            "fitted; call fit with all rows instead of update."
        )


def require_two_sites(replicates: Replicates, n_rows: int) -> None:
    if replicates.x.shape[0] < 2:  # noqa: PLR2004
        raise InputError(
            f"All {n_rows} rows of X are equal (n_samples=1 distinct row); "
            "an emulator needs at least 2 different input rows."
        )


def differing_replicates(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether equal rows of x have different rows of y."""
    return len(np.unique(np.hstack([x, y]), axis=0)) > len(np.unique(x, axis=0))


def without_spread(replicates: Replicates) -> Replicates:
    """For an interpolating emulator: one observation a site, its mean, with a word of warning."""
    n_spread = int(np.sum(np.any(replicates.squares > 0, axis=1)))
    if n_spread:
        warnings.warn(
            f"{n_spread} input row(s) occur more than once with different y: an interpolating "
            "emulator uses their mean; pass nugget='estimate' to model the spread as noise.",
            DataWarning,
            stacklevel=4,
        )
    return Replicates(
        replicates.x,
        replicates.y,
        np.ones_like(replicates.counts),
        np.zeros_like(replicates.squares),
        replicates.site_of_row,
    )
