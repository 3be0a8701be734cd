"""The linked variance where inputs are nearly known: an expansion in Hermite polynomials.

In polynomials h_β of W ~ N(m, v), orthonormal, the correlations r(W) have coefficients
g_β = E[r(W) h_β(W)], so that E|L⁻¹r(W)|² = sum_β |L⁻¹g_β|², and the variance of the mean
αᵀr(W) is the sum of (αᵀg_β)² but for β = 0. The first takes one product with L⁻¹ per term and goes
up to degree one; the second is cheap and goes up to degree two. Kernels need four derivatives.
"""

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core import linalg
from deepemu.core.kernels import products
from deepemu.core.kernels.families import Kernel
from deepemu.core.linalg import Triangle
from deepemu.core.nodes.cubature import SAFETY, SMALLEST_VARIANCE, TINY
from deepemu.core.nodes.node import Node


def applies(kernel: Kernel) -> bool:
    """Whether the kernel has the derivatives that the bound on the remainder needs."""
    return kernel.at_zero is not None


def moments(
    node: Node, root: Triangle, alpha: Array, delta: Array, var: Array, factor: Array
) -> tuple[Array, Array, Array]:
    """Mean, variance and its error (m,), at delta (D, n, m), var (D, 1, m) and factors (n, m).

    g_0 is E[r], that of degree one in column d is √v_d ∂_d g_0, and those of degree two are
    √(v_d v_e) ∂_d ∂_e g_0, or v_d ∂_d² g_0 / √2.
    """
    var = jnp.maximum(var, SMALLEST_VARIANCE)
    expected, (first, second) = products.expectation_and_slopes(node.kernel, delta, var)
    centre, slopes, curvatures = expected * factor, jnp.sqrt(var) * first, var * second
    mean, is_column = alpha @ centre, jnp.eye(len(var), dtype=bool)

    def along(column: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """The column's terms: |L⁻¹g_d|², (αᵀg_d)², and αᵀg_de of all e (D, m), √2 αᵀg_dd of d."""
        slope, curvature, is_own = column
        vectors = slope * centre
        across = jnp.einsum("n,nm,enm->em", alpha, vectors, slopes)
        own = alpha @ (curvature * centre)
        mixed = jnp.where(is_own[:, None], own[None], across)
        return linalg.squared_norms(root, vectors), (alpha @ vectors) ** 2, mixed

    explained, linear, mixed = jax.lax.map(along, (slopes, curvatures, is_column))
    left = 1.0 + node.nugget - linalg.squared_norms(root, centre) - jnp.sum(explained, axis=0)
    # Both orders of two columns are in the sum, and twice the square of one column's term.
    of_mean = jnp.sum(linear, axis=0), 0.5 * jnp.sum(mixed**2, axis=(0, 1))
    total = node.scale * jnp.maximum(left, node.nugget) + sum(of_mean)
    error = node.scale * remainder(node.kernel, var[:, 0]) + _next(node.kernel, var[:, 0], *of_mean)
    return mean, total, error


def remainder(kernel: Kernel, var: Array) -> Array:
    """A bound (m,) on the terms |L⁻¹g_β|² of degree two and more, given var (D, m):
    ½ [(k''''(0) − k''(0)²) sum v² + k''(0)² (sum v)²].

    In the kernel's Hilbert space gᵀR⁻¹g is at most |g|². There E|r''(W)|², over all pairs of
    columns, is the sum of k (k − 1) times the terms of degree k, so half of it bounds those of
    degree two and more. Second derivatives have squared norms of k''''(0) in one column and of
    k''(0)² in two.
    """
    second, fourth = _at_zero(kernel)
    of_one, of_two = jnp.sum(var**2, axis=0), jnp.sum(var, axis=0) ** 2
    return 0.5 * ((fourth - second**2) * of_one + second**2 * of_two)


def _next(kernel: Kernel, var: Array, linear: Array, quadratic: Array) -> Array:
    """The terms of degree three of the mean's variance, had they the ratio of those before them,
    which is taken to be at least that of a draw from the prior."""
    second, fourth = _at_zero(kernel)
    least = 0.5 * fourth / second * jnp.sum(var, axis=0) * linear
    return SAFETY * jnp.maximum(quadratic, least) ** 2 / jnp.maximum(linear, TINY)


def _at_zero(kernel: Kernel) -> tuple[float, float]:
    if kernel.at_zero is None:
        raise TypeError("the expansion needs a kernel with four derivatives")
    return kernel.at_zero
