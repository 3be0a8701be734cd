"""Distinct inputs and what was observed at each: replicates, their means and spread."""

import dataclasses
import warnings
from dataclasses import dataclass

import numpy as np

from deepemu.core.model.network import Data
from deepemu.data.scaling import Floats
from deepemu.errors import DataWarning, InputError
from deepemu.runtime import padding


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


def pack(sites: Replicates) -> Data:
    """Sites as the core takes them: replicates' squares matter only in sum."""
    return padding.pack(sites.x, sites.y, sites.counts, sites.squares.sum(axis=0))


def pack_without(sites: Replicates, rows: np.ndarray) -> Data:
    """The data with some sites turned into padding."""
    kept = np.where(rows, 0.0, 1.0)
    return pack(
        dataclasses.replace(
            sites,
            y=sites.y * kept[:, None],
            counts=sites.counts * kept,
            squares=sites.squares * kept[:, None],
        )
    )
