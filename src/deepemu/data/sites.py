"""Sites (distinct inputs), and the observations at each."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from deepemu._types import Array
from deepemu.core.model.network import Data
from deepemu.core.model.observation import Units
from deepemu.errors import InputError
from deepemu.runtime import padding


@dataclass(frozen=True)
class SiteData:
    """Sites x (n, d) in core units, and the statistics that the observation model keeps of each.

    ``observed`` is a pytree of arrays (n, …); ``site_of_row`` (N,) numbers the sites of the rows.
    ``anchors`` are those of `Data`, for a network that has some.
    """

    x: np.ndarray
    observed: Any
    site_of_row: np.ndarray
    units: Units
    anchors: Array | None = None

    @property
    def n_sites(self) -> int:
        return len(self.x)


def sites_of(x: np.ndarray) -> np.ndarray:
    """The number (N,) of each row's site, in order of first appearance."""
    _, first, site = np.unique(x, axis=0, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[site.ravel()]


def first_rows(site: np.ndarray) -> np.ndarray:
    """The first row of each site."""
    return np.unique(site, return_index=True)[1]


def sum_by_site(values: np.ndarray, site: np.ndarray) -> np.ndarray:
    sums = np.zeros((site.max() + 1, values.shape[1]))
    np.add.at(sums, site, values)
    return sums


def require_varied_columns(x_old: np.ndarray, x_new: np.ndarray) -> None:
    """Refuse variation in a column that was constant at the first fit: it has no scale."""
    fixed = np.ptp(x_old, axis=0) == 0
    moved = np.flatnonzero(fixed & np.any(x_new != x_old[:1], axis=0))
    if moved.size:
        raise InputError(
            f"column(s) {moved.tolist()} of X_new vary, but were constant when the emulator was "
            "fitted; call fit with all rows instead of update."
        )


def require_two_sites(site: np.ndarray) -> None:
    if site.max() < 1:
        raise InputError(
            f"All {len(site)} rows of X are equal (n_samples=1 distinct row); "
            "an emulator needs at least 2 different input rows."
        )


def pack(sites: SiteData) -> Data:
    """Sites as the core takes them, padded to their bucket."""
    return pack_without(sites, np.zeros(sites.n_sites, bool))


def pack_without(sites: SiteData, rows: np.ndarray) -> Data:
    """The data with some sites (a mask, n) replaced by padding."""
    size, kept = padding.bucket(sites.n_sites), np.where(rows, 0.0, 1.0)

    def of_kept(values: np.ndarray) -> Any:
        scaled = values * kept.reshape(-1, *[1] * (values.ndim - 1))
        return padding.pad_rows(scaled, size)

    observed = jax.tree.map(of_kept, sites.observed)
    x, used = padding.pad_rows(sites.x, size), padding.pad_rows(kept, size)
    return Data(x, used, observed, anchors=sites.anchors)
