"""The linked variance as an expectation over the inputs, W ~ N(m, v), by cubature.

By the law of total variance it is E[F(W)] with F(W) = s²(W) + (μ(W) − μ̄)², where μ and
s² = σ² (k(W, W) + η − |L⁻¹r|²) are the mean and variance at known inputs and μ̄ = E[μ(W)]. Every
point of a rule takes one product with L⁻¹. R⁻¹ is never formed: sums with it lose the digits of a
small variance.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core import linalg
from deepemu.core.kernels import products
from deepemu.core.kernels.kernel import Kernel, Smoothness, Two
from deepemu.core.linalg import Triangle
from deepemu.core.nodes.node import Known, Node

# In lengthscales, below all round-off. A column that is not read has variance zero, where the root
# of the variance has no slope.
SMALLEST_VARIANCE = 1e-30
TINY = 1e-300
SAFETY = 2.0
Estimate = tuple[Array, Array]
"""E[F(W)] (m,), and an estimate of its error."""


class Rule(Protocol):
    """A cubature rule for standard normals; hashable.

    ``largest``: variance in squared lengthscales, over all columns, up to which estimates of the
    error can be believed.
    """

    largest: float

    def points(self, n_columns: int) -> Sequence[tuple[float, ...]]:
        """Points, each with one coordinate per column."""

    def estimate(self, values: Array, n_columns: int) -> Estimate:
        """From values (points, m) of F."""


def variance(
    rule: Rule,
    node: Node,
    root: Triangle,
    alpha: Array,
    mean: Array,
    two: Two,
    var: Array,
    known: Known,
) -> Estimate:
    """E[F(W)] and its error, given L⁻¹, α and μ̄ (m,), at means and design points (D, n, m) and var
    (D, 1, m)."""
    deviation = jnp.sqrt(jnp.maximum(var, SMALLEST_VARIANCE))

    def at(point: Array) -> Array:
        moved = two.moved(point[:, None, None] * deviation)
        scales, exponents = (jnp.broadcast_to(p, two.r.shape) for p in node.kernel.at(moved))
        between = products.combine(jnp.prod(scales, axis=0), jnp.sum(exponents, axis=0))
        vectors = between * known.factor
        prior = known.variance * products.variance_of_columns(node.kernel, moved.u[:, 0])
        left = prior + node.nugget - linalg.squared_norms(root, vectors)
        return node.scale * jnp.maximum(left, node.nugget) + (alpha @ vectors - mean) ** 2

    values = jax.lax.map(at, jnp.array(rule.points(len(var)), var.dtype))
    total, error = rule.estimate(values, len(var))
    return total, jnp.where(jnp.sum(var[:, 0], axis=0) <= rule.largest, error, jnp.inf)


# Standard deviations of the points of `DegreeFive`, for which all weights are positive up to ten
# columns.
AXIS, CORNER = math.sqrt(6.0), math.sqrt(1.5)
# Signs of the last columns as products of earlier ones: fractional factorial designs of resolution
# five, in which no product of four columns or fewer is constant.
PRODUCTS = {
    5: ((0, 1, 2, 3),),
    6: ((0, 1, 2, 3, 4),),
    7: ((0, 1, 2, 3, 4, 5),),
    8: ((0, 1, 2, 3), (0, 1, 4, 5)),
    9: ((0, 2, 3, 5, 6), (1, 2, 4, 5, 6)),
    10: ((0, 1, 2, 6), (1, 2, 3, 4), (0, 2, 3, 5)),
}


@dataclass(frozen=True)
class DegreeFive(Rule):
    """Exact for polynomials of degree five: the centre, two points along each column, and corners.

    For a function that is smooth on the scale of W's spread. The points along columns are a rule
    of degree three, and so are the corners: the part q of E[F] that they miss is to the next one as
    the part that they find is to q, which gives the error.
    """

    largest: float = 0.018

    def points(self, n_columns: int) -> list[tuple[float, ...]]:
        unit = [tuple(float(d == e) for e in range(n_columns)) for d in range(n_columns)]
        along = [tuple(sign * AXIS * u for u in each) for each in unit for sign in (1.0, -1.0)]
        across = [tuple(CORNER * sign for sign in signs) for signs in corners(n_columns)]
        return [(0.0,) * n_columns, *along, *across]

    def estimate(self, values: Array, n_columns: int) -> Estimate:
        """Corners have the weight 4/9 together, points along columns 1/36 each, the centre the
        rest."""
        (centre,), axes, beyond = jnp.split(values, [1, 1 + 2 * n_columns])
        along = (axes[0::2] + axes[1::2] - 2.0 * centre[None]) / (2.0 * AXIS**2)
        total = (5.0 / 9.0 - n_columns / 18.0) * centre + jnp.sum(axes, axis=0) / 36.0
        corner = jnp.mean(beyond, axis=0)
        total = total + 4.0 / 9.0 * corner
        of_degree_three = jnp.sum(along, axis=0), (corner - centre) / CORNER**2
        missed = [jnp.abs(total - centre - found) for found in of_degree_three]
        most = jnp.maximum(*missed)
        # Where F is constant, zero over zero: nothing was missed.
        found = jnp.maximum(jnp.sum(jnp.abs(along), axis=0) + most, TINY)
        return total, SAFETY * most**2 / found


def corners(n_columns: int) -> list[tuple[float, ...]]:
    """Signs of all corners, or of a design of them in which pairs of columns are orthogonal."""
    made = PRODUCTS.get(n_columns, ())
    free = itertools.product((1.0, -1.0), repeat=n_columns - len(made))
    of_product = lambda signs, of: math.prod(signs[k] for k in of)  # noqa: E731
    return [(*signs, *(of_product(signs, of) for of in made)) for signs in free]


@dataclass(frozen=True)
class Grid(Rule):
    """The trapezoidal rule on a grid, for few columns and functions with kinks.

    Every other point is a rule too, and halving the step gains more than a digit.
    """

    step: float
    n_steps: int  # on either side, an even number
    largest: float = 1.0

    def points(self, n_columns: int) -> list[tuple[float, ...]]:
        line = [self.step * k for k in range(-self.n_steps, self.n_steps + 1)]
        return list(itertools.product(line, repeat=n_columns))

    def estimate(self, values: Array, n_columns: int) -> Estimate:
        points = jnp.array(self.points(n_columns), values.dtype)
        density = jnp.exp(-0.5 * jnp.sum(points**2, axis=1))
        coarse = jnp.all(jnp.round(points / self.step) % 2.0 == 0.0, axis=1) * density
        total, rough = (weights @ values / jnp.sum(weights) for weights in (density, coarse))
        return total, 0.1 * jnp.abs(total - rough)


@dataclass(frozen=True)
class Corners(Rule):
    """One standard deviation to either side in each column: exact where F has degree two in each,
    as it has for a linear kernel."""

    largest: float = math.inf

    def points(self, n_columns: int) -> list[tuple[float, ...]]:
        return list(itertools.product((1.0, -1.0), repeat=n_columns))

    def estimate(self, values: Array, n_columns: int) -> Estimate:
        return jnp.mean(values, axis=0), jnp.zeros_like(values[0])


GRIDS = {1: Grid(0.3, 20), 2: Grid(0.7, 8)}
"""Where a rule of degree five misses what happens between design points that lie densely."""
MOST_COLUMNS = 10
# Kinks at the design points, which points farther apart may all miss.
DEGREE_FIVE_WITH_KINKS, GRID_WITH_KINKS = 0.002, 0.03


def rules(kernel: Kernel, n_columns: int) -> tuple[Rule, ...]:
    """Rules for this number of columns, the cheapest first; none where columns are many."""
    if n_columns > MOST_COLUMNS:
        return ()
    if kernel.smoothness is Smoothness.LINEAR:
        return (Corners(),)
    few = DegreeFive()
    each: tuple[DegreeFive | Grid, ...] = (few, GRIDS[n_columns]) if n_columns in GRIDS else (few,)
    if kernel.smoothness is Smoothness.SMOOTH:
        return each
    limits = DEGREE_FIVE_WITH_KINKS, GRID_WITH_KINKS
    return tuple(replace(rule, largest=most) for rule, most in zip(each, limits, strict=False))
