"""The linked variance where inputs are nearly known: a series in the inputs' variances.

In Hermite polynomials h_β of W ~ N(m, v), orthonormal, r(W) = k(W - w) has coefficients
ρ_β = E[r(W) h_β(W)], products over columns of what `Kernel.hermite` gives, so that
sum_ij A_ij f_i f_j J_ij = E[(f∘r)ᵀA(f∘r)] = sum_β (f∘ρ_β)ᵀA(f∘ρ_β).
Degrees up to two take a matrix product a term, where sums over pairs take an exponential a pair.

What is left out is bounded in the kernel's Hilbert space, because fᵀR⁻¹f is at most the squared
norm of f: relative to σ², it is at most `Kernel.hermite_tails`.
"""

import itertools

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import kernels, linalg
from deepemu.core.kernels import Kernel
from deepemu.core.linalg import Halves

# The error of the variance in nuggets: no variance is below one nugget.
TOLERANCE = 1e-3
MOST_TERMS = 66  # of ten columns; beyond, degree two costs more than sums over pairs


def highest_degree(n_columns: int) -> int:
    """Two, or one where degree two had too many terms."""
    return 2 if (n_columns + 1) * (n_columns + 2) // 2 <= MOST_TERMS else 1


@record
class Terms:
    """f∘ρ_β, taken apart: term t is ``common * factors[i] * factors[j]``, with i, j = pairs[t]."""

    common: Array  # (n, m), the term of degree zero
    factors: Array  # (1 + D + D, n, m): one, and c_1 / c_0 and c_2 / c_0 of each column


def terms(kernel: Kernel, delta: Array, var: Array, factor: Array) -> Terms:
    """At delta (D, n, m), var (D, 1, m), with factors f (n, m)."""
    # A loop, because XLA would compute half-line moments anew for each of their uses.
    each = jax.lax.map(lambda column: kernel.hermite(*column), (delta, var))
    common = factor * kernels.combine(jnp.prod(each.value, axis=0), jnp.sum(each.exponent, axis=0))
    return Terms(common, jnp.concatenate([jnp.ones_like(delta[:1]), each.first, each.second]))


def factor_pairs(n_columns: int) -> list[tuple[int, int]]:
    """Places in `Terms.factors` for all β of degree zero, one and, unless too many, two."""
    first, second = range(1, n_columns + 1), range(n_columns + 1, 2 * n_columns + 1)
    upto_one = [(0, 0), *((0, d) for d in first)]
    if highest_degree(n_columns) == 1:
        return upto_one
    return [*upto_one, *itertools.combinations(first, 2), *((0, d) for d in second)]


def degree_needed(kernel: Kernel, var: Array, nugget: Array) -> Array:
    """The degree (m,) that leaves out less than the tolerance; three where two is not enough."""
    after_one, after_two = kernel.hermite_tails(var[:, 0])
    allowed = TOLERANCE * nugget
    return jnp.where(after_one <= allowed, 1, jnp.where(after_two <= allowed, 2, 3))


def expected_sum(weights: Halves, terms: Terms, degree: Array) -> Array:
    """sum_β (f∘ρ_β)ᵀA(f∘ρ_β) (m,) up to each test point's degree (m,); none beyond the highest.

    A point's sum does not depend on the degrees of the others, which only make it take longer.
    """
    n_columns = (len(terms.factors) - 1) // 2
    pairs = jnp.array(factor_pairs(n_columns))
    suited = degree <= highest_degree(n_columns)
    n_terms = jnp.where(suited, jnp.where(degree < 2, 1 + n_columns, len(pairs)), 0)

    def add(index: Array, total: Array) -> Array:
        i, j = pairs[index]
        vectors = terms.common * terms.factors[i] * terms.factors[j]
        value = linalg.quadratic_forms(weights, vectors)
        return total + jnp.where(index < n_terms, value, 0.0)

    return jax.lax.fori_loop(0, jnp.max(n_terms), add, jnp.zeros_like(terms.common[0]))
