"""Conditionals of single rows given a few others, many at once: the terms of Vecchia's density.

A term has m rows to condition on and the row itself, last. Arrays have the terms along the last
axis, so that a CPU's vector units and a GPU's threads each work on a term of their own.
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

T = TypeVar("T")
# Terms at once: what a core's cache holds, and what fills a GPU.
ON_CPU, ON_GPU = 64, 8192
# Columns of a factor that are computed with rows of one range: fewer would take longer to compile.
COLUMNS = 8


@record
class Terms:
    """Rows (m + 1, D, B) in lengthscales, the noise of each (m + 1, B), and which there are."""

    kernel: Kernel = field(metadata={"static": True})
    rows: Array
    noise: Array
    used: Array

    @property
    def n_given(self) -> int:
        return self.rows.shape[0] - 1


@record
class Conditional:
    """Residual e and variance s² (B,) of the last row given the others, in units of the scale; and
    vectors a = (−K⁻¹k, 1) and b = (K⁻¹y, 0), (m + 1, B), with e = aᵀy."""

    residual: Array
    variance: Array
    a: Array
    b: Array


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

    return lax.platform_dependent(index, *shared, cpu=by(ON_CPU), default=by(ON_GPU))


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
    """L of K + noise, with rows L⁻¹y below for right-hand sides y (k, m + 1, B): columns
    (m + 1, m + 1 + k, B).

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
    """Residual e and variance s² (B,) of the last row of y (m + 1, B) given the others."""
    columns, last = factor(terms, target[None]), terms.n_given
    pivot = columns[last, last]
    return columns[last, last + 1] * pivot, pivot**2


def conditional(terms: Terms, target: Array) -> Conditional:
    """The same, with the vectors behind it."""
    columns, last = factor(terms, target[None]), terms.n_given
    pivot = columns[last, last]
    right = jnp.stack([columns[:last, last], columns[:last, last + 1]], axis=1)
    solved = solve_transposed(columns[:last, :last], right)
    nothing = jnp.zeros_like(pivot)[None]
    a = jnp.concatenate([-solved[:, 0], nothing + 1.0])
    b = jnp.concatenate([solved[:, 1], nothing])
    return Conditional(columns[last, last + 1] * pivot, pivot**2, a, b)


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


def slopes(terms: Terms, found: Conditional) -> tuple[Array, Array]:
    """∂e and ∂s² with respect to the rows in lengthscales, (m + 1, D, B) each.

    With K the correlations of the term, ∂s² = aᵀ∂K a and ∂e = −bᵀ∂K a: no factor is differentiated.
    """

    def of_row(j: Array, both: tuple[Array, Array]) -> tuple[Array, Array]:
        of_j = lambda each: lax.dynamic_index_in_dim(each, j, 0)  # noqa: E731
        slope = terms.kernel.slope_at(between(of_j(terms.rows), terms.rows))
        weight = correlations(terms, j)[:, None] * slope
        of_e = of_j(found.b) * found.a + of_j(found.a) * found.b
        e = -jnp.sum(of_e[:, None] * weight, axis=0, keepdims=True)
        of_s = 2.0 * of_j(found.a) * found.a
        s = jnp.sum(of_s[:, None] * weight, axis=0, keepdims=True)
        put = lambda whole, part: lax.dynamic_update_index_in_dim(whole, part, j, 0)  # noqa: E731
        return put(both[0], e), put(both[1], s)

    nothing = jnp.zeros_like(terms.rows)
    return lax.fori_loop(0, terms.n_given + 1, of_row, (nothing, nothing))


def of_noise(terms: Terms, found: Conditional) -> tuple[Array, Array]:
    """∂e and ∂s² (B,) with respect to the logarithm of the nugget."""
    noise = terms.noise * terms.used
    return -jnp.sum(noise * found.a * found.b, axis=0), jnp.sum(noise * found.a**2, axis=0)
