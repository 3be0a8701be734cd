"""The linked variance where inputs are nearly known: a series in the inputs' variances.

In Hermite polynomials h_β of W ~ N(m, v), orthonormal, r(W) = k(W - w) has coefficients
ρ_β = E[r(W) h_β(W)], products over columns of the values of `Kernel.hermite`, so that
sum_ij A_ij f_i f_j J_ij = E[(f∘r)ᵀA(f∘r)] = sum_β g_βᵀA g_β with g_β = f∘ρ_β.
It takes one matrix product per term, where sums over pairs take one exponential per pair.
A = ααᵀ - σ²R⁻¹, and the terms (αᵀg_β)² alone are nearly free: they go up to degree three, those
with R⁻¹ up to two.

The remainder is bounded in the kernel's Hilbert space, where gᵀR⁻¹g is at most |g|²: of σ²R⁻¹
it is σ² times `Kernel.hermite_tails` at most, and of ααᵀ that times yᵀR⁻¹y/σ².
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import linalg
from deepemu.core.kernels import products
from deepemu.core.kernels.families import Kernel
from deepemu.core.linalg import Halves

# The error of the variance in nuggets, of each of its two parts: no variance is below one nugget.
TOLERANCE = 1e-3
MOST_COLUMNS = 10  # beyond, terms of degree two cost more than sums over pairs
INACCURATE = 4
# In lengthscales, below all round-off. A column that is not read has variance zero, where the root
# of the variance has no slope.
SMALLEST_VARIANCE = 1e-30


@record
class Terms:
    """g_β as a product of ``common`` and three factors, see `factor_places`."""

    common: Array  # (n, m), the term of degree zero
    factors: Array  # (1 + 3D, n, m): one, and c_1, c_2 and c_3 of each column, over its c_0


def terms(kernel: Kernel, delta: Array, var: Array, factor: Array) -> Terms:
    """At delta (D, n, m), var (D, 1, m), with factors f (n, m)."""
    # A loop, because XLA would compute half-line moments anew for each of their uses.
    variances = jnp.maximum(var, SMALLEST_VARIANCE)
    each = jax.lax.map(lambda column: kernel.hermite(*column), (delta, variances))
    common = factor * products.combine(jnp.prod(each.value, axis=0), jnp.sum(each.exponent, axis=0))
    one = jnp.ones_like(delta[:1])
    return Terms(common, jnp.concatenate([one, each.first, each.second, each.third]))


def factor_places(n_columns: int) -> list[list[tuple[int, int, int]]]:
    """Places in `Terms.factors` of the factors of g_β, for all β of degree zero to three, by
    degree."""
    first, second, third = (range(1 + k * n_columns, 1 + (k + 1) * n_columns) for k in range(3))
    apart = [(0, i, j) for d, i in enumerate(first) for e, j in enumerate(second) if d != e]
    return [
        [(0, 0, 0)],
        [(0, 0, i) for i in first],
        [(0, 0, i) for i in second] + [(0, i, j) for i, j in itertools.combinations(first, 2)],
        [(0, 0, i) for i in third] + apart + list(itertools.combinations(first, 3)),
    ]


@record
class Degrees:
    """Up to which degree a test point needs terms with A, one or two, and from there on terms with
    ααᵀ alone, up to three; both (m,), or `INACCURATE`."""

    of_weights: Array
    of_alpha: Array

    @property
    def accurate(self) -> Array:
        return jnp.maximum(self.of_weights, self.of_alpha) < INACCURATE


def degrees_needed(kernel: Kernel, var: Array, nugget: Array, evidence: Array) -> Degrees:
    """At variances (D, 1, m), given yᵀR⁻¹y/σ²."""
    tails = kernel.hermite_tails(var[:, 0])

    def least(bounds: Sequence[Array]) -> Array:
        fits = jnp.stack([bound <= TOLERANCE * nugget for bound in bounds])
        return jnp.where(jnp.any(fits, axis=0), 1 + jnp.argmax(fits, axis=0), INACCURATE)

    return Degrees(least(tails[:2]), least([evidence * tail for tail in tails]))


def expected_sum(weights: Halves, alpha: Array, parts: Terms, degrees: Degrees) -> Array:
    """sum_β g_βᵀA g_β (m,) up to each test point's first degree, and of (αᵀg_β)² up to its second.

    A point's sum does not depend on the degrees of the others, which only make it take longer; it
    is zero where they are `INACCURATE`.
    """
    by_degree = factor_places((len(parts.factors) - 1) // 3)
    places = jnp.array(list(itertools.chain.from_iterable(by_degree)))
    n_upto = jnp.array([*itertools.accumulate(map(len, by_degree)), 0])
    n_quadratic, n_squares = (
        jnp.where(degrees.accurate, n_upto[degree], 0)
        for degree in (degrees.of_weights, degrees.of_alpha)
    )

    def vectors(index: Array) -> Array:
        i, j, k = places[index]
        return parts.common * parts.factors[i] * parts.factors[j] * parts.factors[k]

    def add_quadratic(index: Array, total: Array) -> Array:
        value = linalg.quadratic_forms(weights, vectors(index))
        return total + jnp.where(index < n_quadratic, value, 0.0)

    def add_square(index: Array, total: Array) -> Array:
        wanted = (n_quadratic <= index) & (index < n_squares)
        return total + jnp.where(wanted, (alpha @ vectors(index)) ** 2, 0.0)

    total = jnp.zeros_like(parts.common[0])
    total = jax.lax.fori_loop(0, jnp.max(n_quadratic), add_quadratic, total)
    return jax.lax.fori_loop(n_upto[1], jnp.max(n_squares), add_square, total)
