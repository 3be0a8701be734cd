"""The linked variance where inputs are nearly known: an expansion in Hermite polynomials.

In polynomials h_β of W ~ N(m, v), orthonormal, the correlations r(W) have coefficients
g_β = E[r(W) h_β(W)], so that E|L⁻¹r(W)|² = sum_β |L⁻¹g_β|², and the variance of the mean
αᵀr(W) is the sum of (αᵀg_β)² but for β = 0. The first takes one product with L⁻¹ per term and goes
up to degree one; the second is cheap and goes up to degree two.
"""

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core import linalg
from deepemu.core.kernels import products
from deepemu.core.kernels.families import Kernel, SquaredExponential
from deepemu.core.linalg import Triangle
from deepemu.core.nodes.cubature import SAFETY, SMALLEST_VARIANCE, TINY
from deepemu.core.nodes.node import Node

CURVATURE = 4.0  # a term is to the one before about as this times the variance, or less


def applies(kernel: Kernel) -> bool:
    """Whether the kernel has the derivatives that the bound on the remainder needs."""
    return isinstance(kernel, SquaredExponential)


def moments(
    node: Node, root: Triangle, alpha: Array, delta: Array, var: Array, factor: Array
) -> tuple[Array, Array, Array]:
    """Mean, variance and its error (m,), at delta (D, n, m), var (D, 1, m) and factors (n, m)."""
    var = jnp.maximum(var, SMALLEST_VARIANCE)
    centre = products.expectation_matrix(node.kernel, delta, var) * factor
    # g_d over g_0, for the polynomial of degree one in column d.
    slopes = -2.0 * jnp.sqrt(var) / (1.0 + 2.0 * var) * delta
    mean = alpha @ centre

    def along(column: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        """The column's terms: |L⁻¹g_d|², (αᵀg_d)², and the αᵀ(g_d g_e / g_0) of all e (D, m)."""
        slope, less = column
        vectors = slope * centre
        second = jnp.einsum("n,nm,enm->em", alpha, vectors, slopes) - less * mean[None]
        return linalg.squared_norms(root, vectors), (alpha @ vectors) ** 2, second

    # g_dd = (slope_d² − 2v/(1 + 2v)) g_0 / √2, and g_de = slope_d slope_e g_0 apart from it.
    less = (
        jnp.eye(len(var), dtype=var.dtype)[:, :, None] * (2.0 * var / (1.0 + 2.0 * var))[None, :, 0]
    )
    explained, first, second = jax.lax.map(along, (slopes, less))
    left = 1.0 + node.nugget - linalg.squared_norms(root, centre) - jnp.sum(explained, axis=0)
    linear, quadratic = jnp.sum(first, axis=0), 0.5 * jnp.sum(second**2, axis=(0, 1))
    total = node.scale * jnp.maximum(left, node.nugget) + linear + quadratic
    error = node.scale * remainder(var[:, 0]) + _next(linear, quadratic, var[:, 0])
    return mean, total, error


def remainder(var: Array) -> Array:
    """A bound (m,) on the terms |L⁻¹g_β|² of degree two and more: 2 (sum v)² + 4 sum v².

    In the kernel's Hilbert space gᵀR⁻¹g is at most |g|². There E|r''(W)|², over all pairs of
    columns, is the sum of k (k − 1) times the terms of degree k, so half of it bounds those of
    degree two and more. Second derivatives have squared norms of 12 in one column and 4 in two.
    """
    return 2.0 * jnp.sum(var, axis=0) ** 2 + 4.0 * jnp.sum(var**2, axis=0)


def _next(linear: Array, quadratic: Array, var: Array) -> Array:
    """The terms of degree three of the mean's variance, had they the ratio of those before them."""
    least = CURVATURE * jnp.sum(var, axis=0) * linear
    return SAFETY * jnp.maximum(quadratic, least) ** 2 / jnp.maximum(linear, TINY)
