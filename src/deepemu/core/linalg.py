"""Cholesky factors and triangular solves, one matrix at a time where that is better.

jaxlib hands a batch of matrices to LAPACK by tasks for the thread pool that also runs the programs
themselves, and waits for them: two programs in flight on two cores wait for each other forever.
Without batches, programs may run in as many threads as there are cores.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax.linalg import triangular_solve

from deepemu._types import Array
from deepemu.core.differentiation import needs_derivatives
from deepemu.core.platforms import by_platform

LARGE = 1500
SMALLEST_SPLIT = 100  # smaller halves gain nothing and take longer to compile
SMALLEST_HALVED = 256  # products with smaller blocks cost more than the zeros
N_SPLITS = 2  # leave 5/8 of the matrix


def _one_at_a_time(function: Callable[..., Array]) -> Callable[..., Array]:
    """``function``, whose batches are loops on a CPU, and on a GPU where matrices are large.

    A GPU's batched routines are made for small matrices. Right-hand sides of one matrix are no
    batch: JAX puts them side by side.
    """
    looped = jax.custom_batching.custom_vmap(function)
    in_turn = jax.custom_batching.sequential_vmap(function)

    @looped.def_vmap
    def rule(_: int, batched: list[bool], *given: Array) -> tuple[Array, bool]:
        of_batch = in_turn if batched[0] else function
        return jax.vmap(of_batch, in_axes=[0 if each else None for each in batched])(*given), True

    def call(matrix: Array, *right: Array) -> Array:
        if needs_derivatives():
            return function(matrix, *right)
        elsewhere = looped if matrix.shape[-1] >= LARGE else function
        return by_platform(looped, elsewhere, matrix, *right)

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


def conjugate_gradients(
    product: Callable[[Array], Array], right: Array, tolerance: float, n_most: int
) -> Array:
    """A⁻¹B for columns of B (n, k), given products Ax of a positive definite A with all of them.

    Until each residual is ``tolerance`` times its column, or after ``n_most`` products.
    """
    squares = lambda x: jnp.sum(x**2, axis=0, keepdims=True)  # noqa: E731
    wanted = tolerance**2 * squares(right)

    def goes_on(carry: Any) -> Array:
        _, residual, _, count = carry
        return jnp.any(squares(residual) > wanted) & (count < n_most)

    def step(carry: Any) -> Any:
        x, residual, direction, count = carry
        ahead, before = product(direction), squares(residual)
        length = _ratio(before, jnp.sum(direction * ahead, axis=0, keepdims=True))
        left = residual - length * ahead
        turned = left + _ratio(squares(left), before) * direction
        return x + length * direction, left, turned, count + 1

    start = jnp.zeros_like(right), right, right, jnp.zeros((), jnp.int32)
    return lax.while_loop(goes_on, step, start)[0]


def _ratio(above: Array, below: Array) -> Array:
    """Zero where both are: a column that is solved stays as it is."""
    return jnp.where(below > 0.0, above / jnp.where(below > 0.0, below, 1.0), 0.0)


# --- triangular matrices in halves -----------------------------------------------------------

Triangle = Array | tuple["Triangle", Array, "Triangle"]
"""A lower triangular matrix: the whole of it, or [[first, 0], [corner, last]] without the zeros.

Where it is whole, any root of R⁻¹ will do."""


def in_halves(lower: Array, n_splits: int = N_SPLITS) -> Triangle:
    """A large lower triangular matrix without most of its zeros."""
    n = lower.shape[-1]
    if n_splits == 0 or n < SMALLEST_HALVED:
        return lower
    first, last = lower[: n // 2, : n // 2], lower[n // 2 :, n // 2 :]
    halved = (in_halves(half, n_splits - 1) for half in (first, last))
    return (next(halved), lower[n // 2 :, : n // 2], next(halved))


def whole(triangle: Triangle) -> Array:
    """The matrix that was given to `in_halves`."""
    if not isinstance(triangle, tuple):
        return triangle
    first, corner, last = triangle
    return jnp.block([[whole(first), jnp.zeros_like(corner.T)], [corner, whole(last)]])


def squared_norms(triangle: Triangle, vectors: Array) -> Array:
    """|Bf|² (m,) for the columns f of (n, m)."""
    first, *others = (jnp.sum(rows**2, axis=0) for rows in _times(triangle, vectors))
    return sum(others, start=first)


def _times(triangle: Triangle, vectors: Array) -> list[Array]:
    """The rows of BF, in pieces."""
    if not isinstance(triangle, tuple):
        return [triangle @ vectors]
    first, corner, last = triangle
    upper, lower = jnp.split(vectors, [corner.shape[1]])
    below, pieces = corner @ upper, _times(last, lower)
    ends = list(itertools.accumulate(len(piece) for piece in pieces))[:-1]
    added = zip(pieces, jnp.split(below, ends), strict=True)
    return [*_times(first, upper), *(piece + part for piece, part in added)]
