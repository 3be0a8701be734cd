"""Kernels k and their Gaussian expectations I, one dimension at a time."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core.kernels.half_line import dot, half_moments
from deepemu.core.kernels.kernel import Kernel, PairForm, Parts, Slopes, Smoothness, Two
from deepemu.core.kernels.pairs import (
    LinearPairs,
    NarrowMaternPairs,
    PolynomialExponential,
    SquaredExponentialPairs,
    WideMaternPairs,
)


@dataclass(frozen=True)
class Stationary(Kernel):
    """A function of r = u - w alone, which is one at zero."""

    unit_variance: ClassVar[bool] = True

    @abstractmethod
    def correlation(self, r: Array) -> Parts:
        """k(r)."""

    @abstractmethod
    def slope(self, r: Array) -> Array:
        """d log k / dr."""

    @abstractmethod
    def expectation(self, delta: Array, var: Array) -> Parts:
        """I = E[k(W - w)], W ~ N(m, v), delta = (m - w) / gamma, var = v / gamma^2."""

    def at(self, two: Two) -> Parts:
        return self.correlation(two.r)

    def log_slope_at(self, two: Two) -> Array:
        """d log k / d log gamma = -r d log k / dr."""
        return -two.r * self.slope(two.r)

    def slope_at(self, two: Two) -> Array:
        return self.slope(two.r)

    def expectation_at(self, two: Two, var: Array) -> Parts:
        return self.expectation(two.r, var)

    def variance(self, u: Array) -> float:
        return 1.0

    def expected_variance(self, u: Array, var: Array) -> float:
        return 1.0


@dataclass(frozen=True)
class SquaredExponential(Stationary):
    """k(r) = exp(-r^2)."""

    smoothness: ClassVar[Smoothness] = Smoothness.SMOOTH
    derivatives_at_zero: ClassVar[tuple[float, float] | None] = (2.0, 12.0)

    def correlation(self, r: Array) -> Parts:
        """k = exp(-r^2)."""
        return jnp.ones((), r.dtype), r**2

    def slope(self, r: Array) -> Array:
        """d log k / dr = -2 r."""
        return -2.0 * r

    def expectation(self, delta: Array, var: Array) -> Parts:
        """I = (1 + 2v)^(-1/2) exp(-delta^2 / (1 + 2v))."""
        spread = 1.0 + 2.0 * var
        exponent = delta**2 / spread
        return jnp.broadcast_to(spread**-0.5, exponent.shape), exponent

    def expectation_and_slopes(self, delta: Array, var: Array) -> tuple[Parts, Slopes]:
        """With s = I'/I = -2 delta / (1 + 2v) and c = 2 / (1 + 2v): s, s^2 - c, s^3 - 3cs."""
        curvature = 2.0 / (1.0 + 2.0 * var)
        slope = -curvature * delta
        second, third = slope**2 - curvature, slope * (slope**2 - 3.0 * curvature)
        return self.expectation(delta, var), (slope, second, third)

    def pair_forms(self) -> tuple[PairForm, ...]:
        return (SquaredExponentialPairs(),)


@dataclass(frozen=True)
class Matern(PolynomialExponential, Stationary):
    """k(r) = p(|r|) exp(-a |r|), with p a polynomial of degree 1 or 2."""

    smoothness: ClassVar[Smoothness] = Smoothness.KINKED

    def correlation(self, r: Array) -> Parts:
        """k = p(|r|) exp(-a |r|)."""
        distance = jnp.abs(r)
        return self.taylor(distance)[0], self.rate * distance

    def expectation(self, delta: Array, var: Array) -> Parts:
        """I = E[p(t) exp(-at); t > 0] + E[p(-t) exp(at); t < 0], t = W - w ~ N(delta, v)."""
        value = jnp.sum(dot(self.coefficients(), self._on_both_sides(delta, var)), axis=0)
        return value, jnp.zeros_like(value)

    def pair_forms(self) -> tuple[PairForm, ...]:
        return NarrowMaternPairs(self), WideMaternPairs(self)

    def _on_both_sides(self, delta: Array, var: Array) -> tuple[Array, ...]:
        """E[|t|^n exp(-a|t|); t > 0] and the same of t < 0, stacked: half as much to compile."""
        return half_moments(jnp.stack([delta, -delta]), var[None], self.rate, self.degree)


@dataclass(frozen=True)
class Matern52(Matern):
    """k(r) = (1 + a|r| + a^2 r^2 / 3) exp(-a|r|), a = sqrt(5)."""

    rate: ClassVar[float] = math.sqrt(5.0)
    degree: ClassVar[int] = 2
    derivatives_at_zero: ClassVar[tuple[float, float] | None] = (5.0 / 3.0, 25.0)

    def slope(self, r: Array) -> Array:
        """d log k / dr = -a^2 r (1 + a|r|) / (3 p(|r|))."""
        t = jnp.abs(r)
        return -(5.0 / 3.0) * r * (1.0 + self.rate * t) / self.taylor(t)[0]

    def expectation_and_slopes(self, delta: Array, var: Array) -> tuple[Parts, Slopes]:
        """Expectations of the derivatives of k, which are odd, even and odd functions: for t > 0

        -(5/3) exp(-at) times t (1 + at), 1 + at - 5 t^2 and 5 t (at - 3).
        """
        both = self._on_both_sides(delta, var)
        value = jnp.sum(dot(self.coefficients(), both), axis=0)
        # Where all of them underflow, nothing is left to be differentiated.
        relative = -(5.0 / 3.0) / jnp.where(value > 0.0, value, jnp.inf)
        odd = lambda sides: relative * (sides[0] - sides[1])  # noqa: E731
        first, third = (odd(dot(p, both[1:])) for p in ((1.0, self.rate), (-15.0, 5.0 * self.rate)))
        second = relative * jnp.sum(dot((1.0, self.rate, -5.0), both), axis=0)
        return (value, jnp.zeros_like(value)), (first, second, third)

    def coefficients(self) -> tuple[float, ...]:
        """p(t) = 1 + at + (5/3) t^2."""
        return 1.0, self.rate, 5.0 / 3.0

    def taylor(self, t: Array) -> tuple[Array, ...]:
        """p(t), p'(t), p''(t)/2."""
        return (
            1.0 + t * (self.rate + (5.0 / 3.0) * t),
            self.rate + (10.0 / 3.0) * t,
            jnp.full_like(t, 5.0 / 3.0),
        )

    def between(self, gap: Array) -> tuple[Array, ...]:
        """p(t) p(D-t) = p(D) + b (1 + aD) s + b^2 s^2, s = t (D-t), b = a^2 / 3."""
        return (
            self.taylor(gap)[0],
            (5.0 / 3.0) * (1.0 + self.rate * gap),
            jnp.full_like(gap, 25.0 / 9.0),
        )


@dataclass(frozen=True)
class Matern32(Matern):
    """k(r) = (1 + a|r|) exp(-a|r|), a = sqrt(3)."""

    rate: ClassVar[float] = math.sqrt(3.0)
    degree: ClassVar[int] = 1

    def slope(self, r: Array) -> Array:
        """d log k / dr = -a^2 r / (1 + a|r|)."""
        return -3.0 * r / (1.0 + self.rate * jnp.abs(r))

    def coefficients(self) -> tuple[float, ...]:
        """p(t) = 1 + at."""
        return 1.0, self.rate

    def taylor(self, t: Array) -> tuple[Array, ...]:
        """p(t), p'(t)."""
        return 1.0 + self.rate * t, jnp.full_like(t, self.rate)

    def between(self, gap: Array) -> tuple[Array, ...]:
        """p(t) p(D-t) = p(D) + a^2 s, s = t (D-t)."""
        return 1.0 + self.rate * gap, jnp.full_like(gap, 3.0)


# In the place of a k that is zero, so that it has a logarithmic slope; below all round-off.
NEARLY_ZERO = 1e-30


@dataclass(frozen=True)
class Linear(Kernel):
    """k(u, w) = 1 + u w: a straight line, whose value at zero and slope are standard normal.

    The product over columns is a process that is linear in each of them.
    """

    smoothness: ClassVar[Smoothness] = Smoothness.LINEAR

    def at(self, two: Two) -> Parts:
        """k = 1 + u w, or nearly zero where it is zero."""
        k = 1.0 + two.u * two.w
        return jnp.where(k == 0.0, NEARLY_ZERO, k), jnp.zeros_like(k)

    def log_slope_at(self, two: Two) -> Array:
        """d log k / d log lengthscale = -2 u w / k."""
        return -2.0 * two.u * two.w / self.at(two)[0]

    def slope_at(self, two: Two) -> Array:
        """d log k / du = w / k."""
        return two.w / self.at(two)[0]

    def expectation_at(self, two: Two, var: Array) -> Parts:
        """I = 1 + u w."""
        return self.at(two)

    def variance(self, u: Array) -> Array:
        """k(u, u) = 1 + u^2."""
        return 1.0 + u**2

    def expected_variance(self, u: Array, var: Array) -> Array:
        """E[k(U, U)] = 1 + u^2 + v."""
        return 1.0 + u**2 + var

    def pair_forms(self) -> tuple[PairForm, ...]:
        return (LinearPairs(),)


KERNELS: dict[str, Kernel] = {
    "squared_exponential": SquaredExponential(),
    "matern52": Matern52(),
    "matern32": Matern32(),
    "linear": Linear(),
}
"""Every kernel, by the name that a user gives."""


def by_name(name: str) -> Kernel:
    """The kernel called name, one of `KERNELS`."""
    if name not in KERNELS:
        raise ValueError(f"unknown kernel {name!r}; choose one of {', '.join(KERNELS)}")
    return KERNELS[name]
