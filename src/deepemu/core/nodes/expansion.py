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
from deepemu.core.kernels.kernel import Kernel, Smoothness, Two
from deepemu.core.linalg import Triangle
from deepemu.core.nodes.cubature import SAFETY, SMALLEST_VARIANCE, TINY
from deepemu.core.nodes.node import Known, Node

# Expectations with kinks cost as much as the few points of a cubature of fewer columns.
FEWEST_COLUMNS_WITH_KINKS = 3


def applies(kernel: Kernel, n_columns: int) -> bool:
    """Whether the kernel has the derivatives that the bound on the remainder needs, and it pays."""
    if kernel.smoothness is Smoothness.KINKED and n_columns < FEWEST_COLUMNS_WITH_KINKS:
        return False
    return kernel.derivatives_at_zero is not None


def moments(
    node: Node, root: Triangle, alpha: Array, two: Two, var: Array, known: Known
) -> tuple[Array, Array, Array]:
    """Mean, variance and its error (m,), at means and design points (D, n, m) and var (D, 1, m).

    g_0 is E[r]. With D_d = √v_d ∂_d, that of degree one in column d is D_d g_0, those of degree two
    are D_d D_e g_0 or D_d² g_0 / √2, and of degree three D_d² D_e g_0 / √2 or D_d³ g_0 / √6. (Three
    different columns are left out of the error.)
    """
    var = jnp.maximum(var, SMALLEST_VARIANCE)
    expected, derivatives = products.expectation_and_slopes(node.kernel, two.r, var)
    powers = zip((0.5, 1.0, 1.5), derivatives, strict=True)
    first, second, third = (var**power * relative for power, relative in powers)
    centre, is_column = expected * known.factor, jnp.eye(len(var), dtype=bool)

    def along(column: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        """Of column d: |L⁻¹g_d|², αᵀD_d g_0, and αᵀD_d D_e g_0 and αᵀD_d² D_e g_0 for all e."""
        one, two, three, is_own = column
        vectors = one * centre
        pairs, triples = (
            jnp.where(
                is_own[:, None], alpha @ (own * centre), _with_each(alpha, of * centre, first)
            )
            for of, own in ((one, two), (two, three))
        )
        return linalg.squared_norms(root, vectors), alpha @ vectors, pairs, triples

    explained, single, pairs, triples = jax.lax.map(along, (first, second, third, is_column))
    left = 1.0 + node.nugget - linalg.squared_norms(root, centre) - jnp.sum(explained, axis=0)
    linear, quadratic, cubic = _variances_of_mean(single, pairs, triples, is_column)
    total = node.scale * jnp.maximum(left, node.nugget) + linear + quadratic
    beyond = jnp.maximum(cubic, _extrapolated(node.kernel, var[:, 0], linear, quadratic))
    return alpha @ centre, total, node.scale * remainder(node.kernel, var[:, 0]) + SAFETY * beyond


def _with_each(alpha: Array, vectors: Array, first: Array) -> Array:
    """αᵀ(g ∘ first_e) of all columns e, (D, m)."""
    return jnp.sum((alpha[:, None] * vectors)[None] * first, axis=1)


def _variances_of_mean(
    single: Array, pairs: Array, triples: Array, is_column: Array
) -> tuple[Array, Array, Array]:
    """The terms (αᵀg_β)² of degrees one, two and three, (m,) each, given (D, m), (D, D, m) and
    (D, D, m). Both orders of two columns are among the pairs."""
    of_triples = jnp.where(is_column[:, :, None], 1.0 / 6.0, 0.5)
    every = (single**2)[None], 0.5 * pairs**2, of_triples * triples**2
    linear, quadratic, cubic = (jnp.sum(each, axis=(0, 1)) for each in every)
    return linear, quadratic, cubic


def remainder(kernel: Kernel, var: Array) -> Array:
    """A bound (m,) on the terms |L⁻¹g_β|² of degree two and more, given var (D, m):
    ½ [(k''''(0) − k''(0)²) sum v² + k''(0)² (sum v)²].

    In the kernel's Hilbert space gᵀR⁻¹g is at most |g|². There E|r''(W)|², over all pairs of
    columns, is the sum of k (k − 1) times the terms of degree k, so half of it bounds those of
    degree two and more. Second derivatives have squared norms of k''''(0) in one column and of
    k''(0)² in two.
    """
    second, fourth = kernel.derivatives_at_zero  # type: ignore[misc]
    of_one, of_two = jnp.sum(var**2, axis=0), jnp.sum(var, axis=0) ** 2
    return 0.5 * ((fourth - second**2) * of_one + second**2 * of_two)


def _extrapolated(kernel: Kernel, var: Array, linear: Array, quadratic: Array) -> Array:
    """The terms of degree three of the mean's variance, had they the ratio of those before them,
    which is taken to be at least that of a draw from the prior."""
    second, fourth = kernel.derivatives_at_zero  # type: ignore[misc]
    least = 0.5 * fourth / second * jnp.sum(var, axis=0) * linear
    return jnp.maximum(quadratic, least) ** 2 / jnp.maximum(linear, TINY)
