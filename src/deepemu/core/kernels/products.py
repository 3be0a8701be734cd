"""Products of a kernel's one-dimensional functions over the columns that a node reads."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core.kernels.exponential import exp_negative
from deepemu.core.kernels.kernel import Kernel, Parts, Slopes, Two


def parts(kernel: Kernel, a: Array, b: Array, inverse_lengthscale: Array) -> Parts:
    """Factor and exponent (n, m) of prod_d k(a_d / gamma_d, b_d / gamma_d).

    Two sets of columns combine as factor_1 * factor_2 and exponent_1 + exponent_2; an empty set
    has factor 1 and exponent 0.
    """
    if a.shape[1] == 0:
        return jnp.ones((), a.dtype), jnp.zeros((len(a), len(b)), a.dtype)

    def one(d: int) -> Parts:
        return kernel.at(Two.of(a[:, None, d], b[None, :, d], inverse_lengthscale[d]))

    return _product(one, a.shape[1])


def combine(factor: Array, exponent: Array) -> Array:
    """factor * exp(-exponent); zero where the exponential is, though the factor may overflow."""
    return jnp.minimum(factor, jnp.finfo(exponent.dtype).max) * exp_negative(exponent)


def correlation_matrix(kernel: Kernel, a: Array, b: Array, inverse_lengthscale: Array) -> Array:
    """R_ij = prod_d k(a_id / gamma_d, b_jd / gamma_d), (n, m)."""
    return combine(*parts(kernel, a, b, inverse_lengthscale))


def variance(kernel: Kernel, at: Array, inverse_lengthscale: Array) -> Array | float:
    """prod_d k(a_d / gamma_d, a_d / gamma_d), the variance of the prior at the rows of (m, D)."""
    return variance_of_columns(kernel, (at * inverse_lengthscale[None]).T)


def variance_of_columns(kernel: Kernel, u: Array) -> Array | float:
    """prod_d k(u_d, u_d) over columns (D, m) in lengthscales."""
    return math.prod((kernel.variance(column) for column in u), start=1.0)


def expected_variance(kernel: Kernel, two: Two, var: Array) -> Array | float:
    """prod_d E[k(U_d, U_d)] (m,), U_d ~ N(u_d, v_d), over u and var (D, 1, m)."""
    columns = zip(two.u[:, 0], var[:, 0], strict=True)
    return math.prod((kernel.expected_variance(*column) for column in columns), start=1.0)


def expectation_matrix(kernel: Kernel, two: Two, var: Array) -> Array:
    """I = prod_d E[k(U_d, w_d)], U_d ~ N(u_d, v_d), over two points (D, n, m) and var (D, 1, m)."""
    # A loop: half-line moments of a Matern kernel take long to compile.
    factors, exponents = jax.lax.map(lambda column: kernel.expectation_at(*column), (two, var))
    return combine(jnp.prod(factors, axis=0), jnp.sum(exponents, axis=0))


def expectation_and_slopes(kernel: Kernel, delta: Array, var: Array) -> tuple[Array, Slopes]:
    """I (n, m) over delta (D, n, m), and its derivatives in each delta, relative to it."""
    of_column = lambda column: kernel.expectation_and_slopes(*column)  # noqa: E731
    (factors, exponents), slopes = jax.lax.map(of_column, (delta, var))
    return combine(jnp.prod(factors, axis=0), jnp.sum(exponents, axis=0)), slopes


def scaled(w: Array, mean: Array, var: Array, inverse_lengthscale: Array) -> tuple[Two, Array]:
    """m/gamma (D, 1, m) and w/gamma (D, n, 1), and v/gamma^2 (D, 1, m).

    Given design points w (n, D) and means and variances m and v (m, D).
    """
    inverse = inverse_lengthscale[:, None, None]
    two = Two.of(mean.T[:, None, :], w.T[:, :, None], inverse)
    return two, var.T[:, None, :] * inverse**2


def _product(one: Callable[[int], Parts], dimensions: int) -> Parts:
    """Multiply factors and add exponents; unrolled, so that no (n, m, D) array exists."""
    factor, exponent = one(0)
    for d in range(1, dimensions):
        next_factor, next_exponent = one(d)
        factor, exponent = factor * next_factor, exponent + next_exponent
    return factor, exponent
