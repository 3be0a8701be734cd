"""Sums over pairs of design points, at many test points at once.

The linked variance needs sum_ij A_ij f_i f_j J_ij for each test point. J and A are symmetric, so
tiles on and below the diagonal are enough. A few tiles are computed at a time: their values at the
test points fill the cache of a CPU, or keep a GPU busy, for any number of design points.
"""

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core.kernels.kernel import PairForm, Two

BLOCK = 16


@record
class Pairs:
    """Pairs of design points with their weights, in tiles of two blocks of points."""

    rows: Array  # (steps, tiles), the block of the first points
    columns: Array  # (steps, tiles), that of the second ones
    weights: Array  # (steps, tiles, BLOCK, BLOCK)
    n_steps: Array  # all tiles behind these have weight zero
    points: Array  # (D, blocks, BLOCK), in lengthscales


def tiled(form: PairForm, weights: Array, points: Array) -> Pairs:
    """Pairs with symmetric weights (n, n), among design points (n, D) in lengthscales.

    The part of J that does not depend on the test point goes into the weights, and so does the
    factor 2 of the tiles below the diagonal. The last block is padded with points of weight zero.
    """
    points = _in_blocks(points.T[..., None])[..., 0]
    n_blocks = points.shape[1]
    missing = (0, n_blocks * BLOCK - weights.shape[0])
    by_block = jnp.pad(weights, (missing, missing)).reshape(n_blocks, BLOCK, n_blocks, BLOCK)
    rows, columns = jnp.tril_indices(n_blocks)
    decay = jnp.sum(form.decay(_gaps(points, rows, columns)), axis=0)
    times = jnp.where(rows == columns, 1.0, 2.0)[:, None, None]
    tiles = times * by_block[rows, :, columns, :] * jnp.exp(-decay)
    last = jnp.max(jnp.where(jnp.any(tiles != 0.0, axis=(1, 2)), jnp.arange(len(rows)), 0))
    return Pairs(rows[:, None], columns[:, None], tiles[:, None], last + 1, points)


def grouped(pairs: Pairs, n_together: int) -> Pairs:
    """The same pairs, with the tiles of several steps in one."""

    def regroup(tiles: Array) -> Array:
        padding = [(0, -len(tiles) % n_together)] + [(0, 0)] * (tiles.ndim - 1)
        return jnp.pad(tiles, padding).reshape(-1, n_together, *tiles.shape[2:])

    n_steps = -(-pairs.n_steps // n_together)
    rows, columns, weights = map(regroup, (pairs.rows, pairs.columns, pairs.weights))
    return Pairs(rows, columns, weights, n_steps, pairs.points)


def expected_sum(form: PairForm, pairs: Pairs, two: Two, var: Array, factor: Array) -> Array:
    """sum_ij A_ij f_i f_j J_ij (m,), with J in the given form."""
    every = form.features(two, var)
    features = [jax.tree.map(lambda f, d=d: _in_blocks(f[d]), every) for d in range(len(var))]
    factor = _in_blocks(factor)

    def add_tiles(step: Array, total: Array) -> Array:
        i, j, weights = pairs.rows[step], pairs.columns[step], pairs.weights[step]
        rows = jax.tree.map(lambda f: f[i][..., None, :], features)
        columns = jax.tree.map(lambda f: f[j][..., None, :, :], features)
        values = form.product(rows, columns, list(_gaps(pairs.points, i, j)[..., None]))
        values = values * factor[i][..., None, :] * factor[j][..., None, :, :]
        return total + weights.reshape(-1) @ values.reshape(weights.size, -1)

    start = jnp.zeros(factor.shape[-1], factor.dtype)
    return form.common(var)[0] * jax.lax.fori_loop(0, pairs.n_steps, add_tiles, start)


def _gaps(points: Array, i: Array, j: Array) -> Array:
    """w_i - w_j in lengthscales for the points of two blocks, (D, ..., BLOCK, BLOCK)."""
    return points[:, i][..., :, None] - points[:, j][..., None, :]


def _in_blocks(values: Array) -> Array:
    """(..., n, m) to (..., blocks, BLOCK, m), zeros appended."""
    *leading, n, m = values.shape
    padding = [(0, 0)] * len(leading) + [(0, -n % BLOCK), (0, 0)]
    return jnp.pad(values, padding).reshape(*leading, -1, BLOCK, m)
