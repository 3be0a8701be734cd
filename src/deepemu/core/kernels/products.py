"""Products of a kernel's one-dimensional functions over the columns that a node reads."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core.kernels.exponential import exp_negative
from deepemu.core.kernels.families import Kernel, Parts, Slopes


def parts(kernel: Kernel, a: Array, b: Array, inverse_lengthscale: Array) -> Parts:
    """Factor and exponent (n, m) of prod_d k((a_d - b_d) / gamma_d).

    Two sets of columns combine as factor_1 * factor_2 and exponent_1 + exponent_2; an empty set
    has factor 1 and exponent 0.
    """
    if a.shape[1] == 0:
        return jnp.ones((), a.dtype), jnp.zeros((len(a), len(b)), a.dtype)

    def one(d: int) -> Parts:
        return kernel.correlation((a[:, None, d] - b[None, :, d]) * inverse_lengthscale[d])

    return _product(one, a.shape[1])


def combine(factor: Array, exponent: Array) -> Array:
    """factor * exp(-exponent); zero where the exponential is, though the factor may overflow."""
    return jnp.minimum(factor, jnp.finfo(exponent.dtype).max) * exp_negative(exponent)


def correlation_matrix(kernel: Kernel, a: Array, b: Array, inverse_lengthscale: Array) -> Array:
    """R_ij = prod_d k((a_id - b_jd) / gamma_d), (n, m)."""
    return combine(*parts(kernel, a, b, inverse_lengthscale))


def expectation_matrix(kernel: Kernel, delta: Array, var: Array) -> Array:
    """I = prod_d E[k(W_d - w_d)] over delta (D, n, m) and var (D, 1, m), (n, m)."""
    # A loop: half-line moments of a Matern kernel take long to compile.
    factors, exponents = jax.lax.map(lambda column: kernel.expectation(*column), (delta, var))
    return combine(jnp.prod(factors, axis=0), jnp.sum(exponents, axis=0))


def expectation_and_slopes(kernel: Kernel, delta: Array, var: Array) -> tuple[Array, Slopes]:
    """I (n, m) as above, and its derivatives in each delta (D, n, m), relative to it."""
    of_column = lambda column: kernel.expectation_and_slopes(*column)  # noqa: E731
    (factors, exponents), slopes = jax.lax.map(of_column, (delta, var))
    return combine(jnp.prod(factors, axis=0), jnp.sum(exponents, axis=0)), slopes


def scaled(w: Array, mean: Array, var: Array, inverse_lengthscale: Array) -> tuple[Array, Array]:
    """(m - w)/gamma as (D, n, m) and v/gamma^2 as (D, 1, m), at w (n, D) and m, v (m, D)."""
    inverse = inverse_lengthscale[:, None, None]
    return (mean.T[:, None, :] - w.T[:, :, None]) * inverse, var.T[:, None, :] * inverse**2


def _product(one: Callable[[int], Parts], dimensions: int) -> Parts:
    """Multiply factors and add exponents; unrolled, so that no (n, m, D) array exists."""
    factor, exponent = one(0)
    for d in range(1, dimensions):
        next_factor, next_exponent = one(d)
        factor, exponent = factor * next_factor, exponent + next_exponent
    return factor, exponent
