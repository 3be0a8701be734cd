"""Conditionals of a few rows given a few others, many at once: the terms of Vecchia's density.

A term has T rows. Its own rows come last, and each is given all those of the term before it.
Arrays have the terms along the last axis, so that a CPU's vector units and a GPU's threads each
work on a term of their own.
"""

from collections.abc import Callable
from dataclasses import field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from deepemu._types import Array, record
from deepemu.core.kernels import products
from deepemu.core.kernels.kernel import Kernel, Two
from deepemu.core.platforms import by_platform

T = TypeVar("T")
# Terms at once: what a core's cache holds, and what fills a GPU.
ON_CPU, ON_GPU = 16, 8192
# Columns of a factor that are computed with rows of one range: fewer would take longer to compile.
COLUMNS = 16


@record
class Terms:
    """Rows (T, D, B) in lengthscales, their places among all rows, the noise of each (T, B), and
    which there are; the last ``n_own`` of them are a term's own."""

    kernel: Kernel = field(metadata={"static": True})
    n_own: int = field(metadata={"static": True})
    rows: Array
    places: Array
    noise: Array
    used: Array

    @property
    def n_given(self) -> int:
        return self.rows.shape[0] - self.n_own


@record
class Conditional:
    """Own rows (b, B) given those before: z = e/s of a residual e with variance s², in units of the
    scale; vectors a (T, b, B) with z = aᵀy; and c = K⁻¹y (T, B) over the rows that are given."""

    white: Array
    variance: Array
    a: Array
    c: Array

    @property
    def before(self) -> Array:
        """K⁻¹y (T, b, B) over all rows before each own one: c + Σ a z of those own ones."""
        every = self.a * self.white[None]
        return self.c[:, None] + jnp.cumsum(every, axis=1) - every


def in_chunks(function: Callable[..., T], index: Array, *shared: Any) -> T:
    """``function(chunk of index, *shared)`` for all of ``index`` (n, …), whose results have the
    terms along their first axis."""

    def by(size: int) -> Callable[..., T]:
        def run(index: Array, *shared: Any) -> T:
            n = len(index)
            chunks = padded(index, size).reshape(-1, min(size, n), *index.shape[1:])
            found = lax.map(lambda chunk: function(chunk, *shared), chunks)
            return jax.tree.map(lambda each: each.reshape(-1, *each.shape[2:])[:n], found)

        return run

    return by_platform(by(ON_CPU), by(ON_GPU), index, *shared)


def padded(index: Array, size: int) -> Array:
    """The last row repeated up to a multiple of ``size``; as it is where there are fewer."""
    size = min(size, len(index))
    missing = -len(index) % size
    return jnp.concatenate([index, jnp.repeat(index[-1:], missing, axis=0)])


def correlations(terms: Terms, j: Array, first: int = 0) -> Array:
    """Correlations (rows, B) of row j with the rows from the ``first`` on; zero for rows that there
    are not."""
    of_j = lambda each: lax.dynamic_index_in_dim(each, j, 0)  # noqa: E731
    two = between(terms.rows[first:], of_j(terms.rows))
    factor, exponent = terms.kernel.at(two)
    factor = jnp.prod(jnp.broadcast_to(factor, two.r.shape), axis=1)
    both = terms.used[first:] * of_j(terms.used)
    return products.combine(factor, jnp.sum(exponent, axis=1)) * both


def between(rows: Array, row: Array) -> Two:
    """Two points in lengthscales."""
    return Two(rows, row, rows - row)


def factor(terms: Terms, right: Array) -> Array:
    """L of K + noise, with rows L⁻¹y below for right-hand sides y (k, T, B): columns (T, T + k, B).

    Column by column, from those before it; in ranges of columns, so that loops are short and
    shapes static.
    """
    n_rows, n_right = terms.rows.shape[0], right.shape[0]
    diagonal = jnp.where(terms.used > 0.0, terms.noise, 1.0)
    columns = jnp.zeros((n_rows, n_rows + n_right, terms.rows.shape[2]), terms.rows.dtype)
    for first in range(0, n_rows, COLUMNS):
        last = min(first + COLUMNS, n_rows)
        place = jnp.arange(first, n_rows + n_right)

        def column(j: Array, part: Array, first: int = first, place: Array = place) -> Array:
            of_j = lambda each, axis=0: lax.dynamic_index_in_dim(each, j, axis)  # noqa: E731
            own = jnp.where(place[: n_rows - first, None] == j, of_j(diagonal), 0.0)
            below = of_j(right, 1)[:, 0]
            whole = jnp.concatenate([correlations(terms, j, first) + own, below])
            before = lax.dynamic_index_in_dim(part, j - first, 1)
            left = whole - jnp.sum(part * before, axis=0)
            pivot = jnp.sqrt(lax.dynamic_index_in_dim(left, j - first, 0))
            scaled = jnp.where(place[:, None] >= j, left / pivot, 0.0)
            return lax.dynamic_update_index_in_dim(part, scaled, j, 0)

        part = lax.fori_loop(first, last, column, columns[:last, first:])
        columns = columns.at[:last, first:].set(part)
    return columns


def residuals(terms: Terms, target: Array) -> tuple[Array, Array]:
    """z and s² (b, B) of own rows, for values y (T, B)."""
    return _own(terms, factor(terms, target[None]))


def _own(terms: Terms, columns: Array) -> tuple[Array, Array]:
    n = terms.rows.shape[0]
    own = jnp.arange(terms.n_given, n)
    return columns[own, n], columns[own, own] ** 2


def conditional(terms: Terms, target: Array) -> Conditional:
    """The same, with the vectors behind it: a = L⁻ᵀe of own rows, and c = L⁻ᵀL⁻¹y of the others."""
    columns, n = factor(terms, target[None]), terms.rows.shape[0]
    is_given = (jnp.arange(n) < terms.n_given)[:, None]
    given = jnp.where(is_given, columns[:, n], 0.0)[:, None]
    own = jnp.eye(n, dtype=columns.dtype)[:, terms.n_given :, None]
    own = jnp.broadcast_to(own, (*own.shape[:2], columns.shape[2]))
    solved = solve_transposed(columns[:, :n], jnp.concatenate([own, given], axis=1))
    return Conditional(*_own(terms, columns), solved[:, :-1], solved[:, -1])


def solve_transposed(columns: Array, right: Array) -> Array:
    """L⁻ᵀx for x (m, k, B), given the columns (m, m, B) of L."""
    n = columns.shape[0]

    def row(count: Array, solved: Array) -> Array:
        j = n - 1 - count
        column = lax.dynamic_index_in_dim(columns, j, 0, keepdims=False)
        mine = lax.dynamic_index_in_dim(right, j, 0, keepdims=False)
        left = mine - jnp.sum(column[:, None] * solved, axis=0)
        pivot = lax.dynamic_index_in_dim(column, j, 0)
        return lax.dynamic_update_index_in_dim(solved, left / pivot, j, 0)

    return lax.fori_loop(0, n, row, jnp.zeros_like(right))


# --- slopes: with K the correlations of a term, no factor is differentiated -----------------------


def row_by_row(terms: Terms, of_row: Callable[[Array, Array], T]) -> T:
    """``of_row(k, ∂K)`` for all rows k, stacked, with the slopes (T, D, B) in row k of its
    correlations with all rows."""

    def at(k: Array) -> T:
        of_k = lax.dynamic_index_in_dim(terms.rows, k, 0)
        slope = terms.kernel.slope_at(between(of_k, terms.rows))
        return of_row(k, correlations(terms, k)[:, None] * slope)

    return lax.map(at, jnp.arange(terms.rows.shape[0]))


def slopes_of_each(terms: Terms, found: Conditional) -> tuple[Array, Array]:
    """∂e/s and ∂s²/s² of each own row with respect to the rows in lengthscales, (T, D, b, B).

    ∂e = −s cᵀ∂K a and ∂s² = s² aᵀ∂K a, with c over all rows before the own one.
    """
    a, c = found.a, found.before

    def of_row(k: Array, slope: Array) -> tuple[Array, Array]:
        of_e = _at(c, k)[None] * a + _at(a, k)[None] * c
        of_s = 2.0 * _at(a, k)[None] * a
        weighted = lambda by: jnp.sum(slope[:, :, None] * by[:, None], axis=0)  # noqa: E731
        return -weighted(of_e), weighted(of_s)

    return row_by_row(terms, of_row)


def slopes_of_sums(terms: Terms, found: Conditional) -> tuple[Array, Array]:
    """∂Σz² and ∂Σ log s² over own rows, likewise, (T, D, B).

    With u = Σ a z, ∂Σz² = −uᵀ∂K (u + 2c), and ∂Σ log s² = tr(A Aᵀ∂K) for A with the columns a.
    """
    u, both = _moved(found)

    def of_row(k: Array, slope: Array) -> tuple[Array, Array]:
        of_squares = _at(u, k)[None] * both + _at(both, k)[None] * u
        of_volume = 2.0 * jnp.sum(_at(found.a, k)[None] * found.a, axis=1)
        weighted = lambda by: jnp.sum(slope * by[:, None], axis=0)  # noqa: E731
        return -weighted(of_squares), weighted(of_volume)

    return row_by_row(terms, of_row)


def noise_of_each(terms: Terms, found: Conditional) -> tuple[Array, Array]:
    """∂e/s and ∂s²/s² (b, B) with respect to the logarithm of the nugget."""
    noise = (terms.noise * terms.used)[:, None]
    return -jnp.sum(noise * found.a * found.before, axis=0), jnp.sum(noise * found.a**2, axis=0)


def noise_of_sums(terms: Terms, found: Conditional) -> tuple[Array, Array]:
    """∂Σz² and ∂Σ log s² (B,) likewise."""
    noise, (u, both) = terms.noise * terms.used, _moved(found)
    of_volume = jnp.sum(noise * jnp.sum(found.a**2, axis=1), axis=0)
    return -jnp.sum(noise * u * both, axis=0), of_volume


def _moved(found: Conditional) -> tuple[Array, Array]:
    """u = Σ a z and u + 2c (T, B)."""
    u = jnp.sum(found.a * found.white[None], axis=1)
    return u, u + 2.0 * found.c


def _at(values: Array, k: Array) -> Array:
    return lax.dynamic_index_in_dim(values, k, 0, keepdims=False)
