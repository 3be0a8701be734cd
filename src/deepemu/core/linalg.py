"""Cholesky factors and triangular solves, one matrix at a time where that is better.

jaxlib hands a batch of matrices to LAPACK by tasks for the thread pool that also runs the programs
themselves, and waits for them: two programs in flight on two cores wait for each other forever.
Without batches, programs may run in as many threads as there are cores.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax.linalg import triangular_solve

from deepemu._types import Array

LARGE = 1500
SMALLEST_SPLIT = 100  # smaller halves gain nothing and take longer to compile
SMALLEST_HALVED = 256  # products with smaller blocks cost more than the symmetry saves
N_SPLITS = 2  # leave 5/8 of the matrix


def _one_at_a_time(function: Callable[..., Array]) -> Callable[..., Array]:
    """``function``, whose batches are loops on a CPU, and on a GPU where matrices are large.

    A GPU's batched routines are made for small matrices.
    """
    looped = jax.custom_batching.sequential_vmap(function)

    def call(matrix: Array, *right: Array) -> Array:
        elsewhere = looped if matrix.shape[-1] >= LARGE else function
        return lax.platform_dependent(matrix, *right, cpu=looped, default=elsewhere)

    return call


# LAPACK wants columns to be contiguous. The transpose of a symmetric matrix says so without moving
# a number; without it XLA computes the matrix itself across its rows, at several times the cost.
cholesky = _one_at_a_time(lambda matrix: lax.linalg.cholesky(matrix.T, symmetrize_input=False))
"""Lower factor L of a symmetric R = LLᵀ; NaN where R is not positive definite."""

solve = _one_at_a_time(
    lambda lower, right: triangular_solve(lower, right, left_side=True, lower=True)
)
"""L⁻¹B."""

solve_transposed = _one_at_a_time(
    lambda lower, right: triangular_solve(
        lower, right, left_side=True, lower=True, transpose_a=True
    )
)
"""L⁻ᵀB."""

solve_from_right = _one_at_a_time(
    lambda lower, left: triangular_solve(lower, left, left_side=False, lower=True)
)
"""BL⁻¹."""


def solve_vector(lower: Array, target: Array) -> Array:
    """L⁻¹y."""
    return solve(lower, target[:, None])[:, 0]


def solve_positive(matrix: Array, target: Array) -> Array:
    """R⁻¹y for a positive definite R."""
    lower = cholesky(matrix)
    return solve_transposed(lower, solve(lower, target[:, None]))[:, 0]


def inverse(lower: Array) -> Array:
    """R⁻¹ = L⁻ᵀL⁻¹ by halves, with less than half the operations of two solves with the identity.

    With L = [[A, 0], [C, B]] and G = B⁻¹CA⁻¹, R⁻¹ = [[(AAᵀ)⁻¹ + GᵀG, ·], [-B⁻ᵀG, (BBᵀ)⁻¹]].
    """
    n = lower.shape[-1]
    if n < SMALLEST_SPLIT:
        inverse_lower = solve(lower, jnp.eye(n, dtype=lower.dtype))
        return inverse_lower.T @ inverse_lower
    a, b, c = lower[: n // 2, : n // 2], lower[n // 2 :, n // 2 :], lower[n // 2 :, : n // 2]
    g = solve(b, solve_from_right(a, c))
    corner = -solve_transposed(b, g)
    return jnp.block([[inverse(a) + g.T @ g, corner.T], [corner, inverse(b)]])


# --- symmetric matrices in halves ------------------------------------------------------------

Halves = Array | tuple["Halves", Array, "Halves"]
"""A symmetric matrix: the whole of it, or [[first, ·], [corner, last]] without the upper corner."""


def in_halves(matrix: Array, n_splits: int = N_SPLITS) -> Halves:
    """A large symmetric matrix without most of its redundant half."""
    n = matrix.shape[-1]
    if n_splits == 0 or n < SMALLEST_HALVED:
        return matrix
    first, last = matrix[: n // 2, : n // 2], matrix[n // 2 :, n // 2 :]
    halved = (in_halves(half, n_splits - 1) for half in (first, last))
    return (next(halved), matrix[n // 2 :, : n // 2], next(halved))


def whole(halves: Halves) -> Array:
    """The matrix that was given to `in_halves`."""
    if not isinstance(halves, tuple):
        return halves
    first, corner, last = halves
    return jnp.block([[whole(first), corner.T], [corner, whole(last)]])


def quadratic_forms(halves: Halves, vectors: Array) -> Array:
    """fᵀAf (m,) for the columns f of (n, m)."""
    if not isinstance(halves, tuple):
        return jnp.sum(vectors * (halves @ vectors), axis=0)
    first, corner, last = halves
    upper, lower = jnp.split(vectors, [corner.shape[1]])
    mixed = jnp.sum(lower * (corner @ upper), axis=0)
    return quadratic_forms(first, upper) + 2.0 * mixed + quadratic_forms(last, lower)
