"""What a kernel is: functions of one dimension, a product of which over columns is the kernel.

A kernel works in scaled units: points are divided by the lengthscale, variances by its square.
Every one-dimensional function returns a pair (factor, exponent) that stands for
factor * exp(-exponent), so that a product over dimensions costs one exponential per entry.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple, Protocol

from deepemu._types import Array

Parts = tuple[Array, Array]
"""(factor, exponent), standing for factor * exp(-exponent); a factor of one may be a scalar."""
Slopes = tuple[Array, Array, Array]
"""First, second and third derivative of a function, relative to the function."""


class Two(NamedTuple):
    """Points u and w in lengthscales, and r = u - w, which has all digits where they are close."""

    u: Array
    w: Array
    r: Array

    @classmethod
    def of(cls, a: Array, b: Array, inverse_lengthscale: Array) -> "Two":
        return cls(a * inverse_lengthscale, b * inverse_lengthscale, (a - b) * inverse_lengthscale)

    def moved(self, by: Array) -> "Two":
        """With u + by in the place of u."""
        return Two(self.u + by, self.w, self.r + by)


class Smoothness(Enum):
    """How k(u, w) depends on u, which decides how moments at uncertain inputs are computed."""

    LINEAR = auto()
    """A straight line."""
    SMOOTH = auto()
    """It has all derivatives."""
    KINKED = auto()
    """It has a kink at u = w, and expectations that cost more than an exponential."""


class PairForm(Protocol):
    """J = E[k(W, w_i) k(W, w_j)], W ~ N(m, v), from features of each design point.

    Arrays have dimensions along their first axis; `product` takes one entry for each.
    """

    cheap_to_read: ClassVar[bool]
    """Whether a point has few features, so that reading them costs little."""

    def is_accurate(self, var: Array) -> Array:
        """Whether the form is accurate at each test point (m,), given variances (D, 1, m)."""

    def common(self, var: Array) -> Array:
        """The factor of prod_d J that all pairs share."""

    def decay(self, gap: Array) -> Array:
        """Exponent of the part of J that the input's distribution leaves alone."""

    def features(self, two: Two, var: Array) -> Any:
        """The features of a design point that J needs, a pytree; m and w are the two points."""

    def product(self, i: Sequence[Any], j: Sequence[Any], gap: Sequence[Array]) -> Array:
        """prod_d J exp(decay(gap)) less the common factor, gap = (w_i - w_j) / gamma."""


class Kernel(Protocol):
    """Functions of one dimension in scaled units; frozen and hashable, a static argument."""

    smoothness: ClassVar[Smoothness]
    unit_variance: ClassVar[bool] = False
    """Whether k(u, u) is one for all u."""

    def at(self, two: Two) -> Parts:
        """k(u, w)."""

    def log_slope_at(self, two: Two) -> Array:
        """d log k / d log gamma."""

    def slope_at(self, two: Two) -> Array:
        """d log k / du."""

    def expectation_at(self, two: Two, var: Array) -> Parts:
        """I = E[k(U, w)], U ~ N(u, var)."""

    def variance(self, u: Array) -> Array | float:
        """k(u, u)."""

    def expected_variance(self, u: Array, var: Array) -> Array | float:
        """E[k(U, U)], U ~ N(u, var)."""

    def pair_forms(self) -> tuple[PairForm, ...]:
        """Forms of J, the cheapest first; the last one is always accurate."""

    derivatives_at_zero: ClassVar[tuple[float, float] | None] = None
    """-k''(0) and k''''(0), if k is a function of r that has four derivatives."""

    def expectation_and_slopes(self, delta: Array, var: Array) -> tuple[Parts, Slopes]:
        """I with its derivatives in delta relative to it, if k has four derivatives."""
        raise TypeError("this kernel has fewer than four derivatives")
