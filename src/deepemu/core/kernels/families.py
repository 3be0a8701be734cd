"""Stationary kernels: correlation k and its Gaussian expectation I, one dimension at a time.

A kernel works in scaled units: distances are divided by the lengthscale, variances by its square.
Every one-dimensional function returns a pair (factor, exponent) that stands for
factor * exp(-exponent), so that a product over dimensions costs one exponential per entry.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core.kernels.half_line import dot, half_moments, rough_half_moments

Parts = tuple[Array, Array]
"""(factor, exponent), standing for factor * exp(-exponent); a factor of one may be a scalar."""


class Hermite(NamedTuple):
    """E[k(W - w) h_j(W)] for j = 0..3: c_0 = value * exp(-exponent), and the others over c_0.

    h_j is the Hermite polynomial of (W - m) / sqrt(v), of norm one under N(m, v), so that
    c_j = v^(j/2) / sqrt(j!) times the j-th derivative of I in m.
    """

    value: Array
    exponent: Array
    first: Array
    second: Array
    third: Array


NAMES = ("squared_exponential", "matern52", "matern32")


class Kernel(Protocol):
    """Functions of one dimension in scaled units; frozen and hashable, a static argument."""

    def correlation(self, r: Array) -> Parts:
        """k(r), r = (u - w) / gamma."""

    def log_slope(self, r: Array) -> Array:
        """d log k / d log gamma = -r d log k / dr."""

    def expectation(self, delta: Array, var: Array) -> Parts:
        """I = E[k(W - w)], W ~ N(m, v), delta = (m - w) / gamma, var = v / gamma^2."""

    def hermite(self, delta: Array, var: Array) -> Hermite:
        """Coefficients of k(W - w) as a function of W, to absolute precision for v < 1."""

    def hermite_tails(self, var: Array) -> tuple[Array, Array, Array]:
        """Bounds on the squared norm of the remainder after terms of total degree 0..1, 0..2 and
        0..3.

        Of a product of kernels over columns, along the first axis, in the kernels' own Hilbert
        space, where k(W - .) has norm one and degree j takes t_j = v^j / j! |I^(j)|^2 of it.
        """


@dataclass(frozen=True)
class SquaredExponential(Kernel):
    """k(r) = exp(-r^2)."""

    def correlation(self, r: Array) -> Parts:
        """k = exp(-r^2)."""
        return jnp.ones((), r.dtype), r**2

    def log_slope(self, r: Array) -> Array:
        """d log k / d log lengthscale = 2 r^2."""
        return 2.0 * r**2

    def expectation(self, delta: Array, var: Array) -> Parts:
        """I = (1 + 2v)^(-1/2) exp(-delta^2 / (1 + 2v))."""
        spread = 1.0 + 2.0 * var
        exponent = delta**2 / spread
        return jnp.broadcast_to(spread**-0.5, exponent.shape), exponent

    def hermite(self, delta: Array, var: Array) -> Hermite:
        """Derivatives of I: -2u, 4u^2 - 2s and 12su - 8u^3 times I, u = s delta, s = 1/(1 + 2v)."""
        narrower = 1.0 / (1.0 + 2.0 * var)
        u, twice = delta * narrower, 2.0 * var * narrower
        first = (-2.0 * jnp.sqrt(var)) * u
        second = (first**2 - twice) * math.sqrt(1 / 2)
        third = first * (first**2 - 3.0 * twice) * math.sqrt(1 / 6)
        return Hermite(jnp.sqrt(narrower), delta * u, first, second, third)

    def hermite_tails(self, var: Array) -> tuple[Array, Array, Array]:
        """The terms of total degree two, three and four, by t_j < C(2j, j) v^j.

        Those of degree n add up to h_n in sum_n h_n x^n = prod_d (1 - 4 v_d x)^(-1/2), where
        n h_n = sum_k p_k h_(n-k) with p_k = sum_d (4 v_d)^k / 2.
        """
        p1, p2, p3, p4 = (0.5 * jnp.sum((4.0 * var) ** k, axis=0) for k in range(1, 5))
        two = (p1 * p1 + p2) / 2.0
        three = (p1 * two + p2 * p1 + p3) / 3.0
        return two, three, (p1 * three + p2 * two + p3 * p1 + p4) / 4.0


@dataclass(frozen=True)
class Matern(Kernel):
    """k(r) = p(|r|) exp(-a |r|), with p a polynomial of degree 1 or 2."""

    rate: ClassVar[float]
    degree: ClassVar[int]

    @abstractmethod
    def coefficients(self) -> tuple[float, ...]:
        """Those of p."""

    @abstractmethod
    def taylor(self, t: Array) -> tuple[Array, ...]:
        """p^(n)(t) / n!, n = 0..degree."""

    @abstractmethod
    def between(self, gap: Array) -> tuple[Array, ...]:
        """q_k(D) in p(t) p(D-t) = sum_k q_k(D) (t (D-t))^k, k = 0..degree."""

    def correlation(self, r: Array) -> Parts:
        """k = p(|r|) exp(-a |r|)."""
        distance = jnp.abs(r)
        return self.taylor(distance)[0], self.rate * distance

    def expectation(self, delta: Array, var: Array) -> Parts:
        """I = E[p(t) exp(-at); t > 0] + E[p(-t) exp(at); t < 0], t = W - w ~ N(delta, v)."""
        # Both half lines in one array: half as much to compile.
        both = half_moments(jnp.stack([delta, -delta]), var[None], self.rate, self.degree)
        value = jnp.sum(dot(self.coefficients(), both), axis=0)
        return value, jnp.zeros_like(value)

    def hermite(self, delta: Array, var: Array) -> Hermite:
        """Derivatives of I as half-line moments of p, q = p' - ap, q' - aq, ...: k' = q exp(-at).

        Those of odd order have the sign of t. A variance above one counts as one.
        """
        var = jnp.minimum(var, 1.0)
        both = rough_half_moments(jnp.stack([delta, -delta]), var[None], self.rate, self.degree)
        p = self.coefficients()
        value = jnp.sum(dot(p, both), axis=0)
        scale, ratios = 1.0 / jnp.maximum(value, jnp.finfo(value.dtype).tiny), []
        for order in range(1, 4):
            p, scale = self._differentiated(p), scale * jnp.sqrt(var / order)
            above, below = dot(p, both)
            ratios.append(scale * (above - below if order % 2 else above + below))
        return Hermite(value, jnp.zeros_like(value), *ratios)

    def _differentiated(self, p: Sequence[float]) -> tuple[float, ...]:
        """Coefficients of p' - a p."""
        slopes = [n * c for n, c in enumerate(p)][1:] + [0.0]
        return tuple(slope - self.rate * c for slope, c in zip(slopes, p, strict=True))


@dataclass(frozen=True)
class Matern52(Matern):
    """k(r) = (1 + a|r| + a^2 r^2 / 3) exp(-a|r|), a = sqrt(5)."""

    rate: ClassVar[float] = math.sqrt(5.0)
    degree: ClassVar[int] = 2

    def hermite_tails(self, var: Array) -> tuple[Array, Array, Array]:
        """By t_1 < 5/3 v, t_2 < 25/2 v^2, and what is left after t_2 and t_3, 17 and 3 v^(5/2).

        The first two derivatives of k have squared norms 5/3 and 25, and the third has none.
        """
        total, squares, powers = (jnp.sum(var**power, axis=0) for power in (1, 2, 2.5))
        return (
            1.4 * total**2 + 11.1 * squares,
            17.0 * powers + 7.0 * total**3,
            (3.0 + 24.0 * total) * powers + 26.0 * total**4,
        )

    def log_slope(self, r: Array) -> Array:
        """d log k / d log lengthscale = a^2 r^2 (1 + a|r|) / (3 p(|r|))."""
        t = jnp.abs(r)
        return (5.0 / 3.0) * t**2 * (1.0 + self.rate * t) / self.taylor(t)[0]

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

    def hermite_tails(self, var: Array) -> tuple[Array, Array, Array]:
        """By t_1 < 3 v, t_2 < 3 v^(3/2), and what is left after each, 4, 1 and 1/2 v^(3/2)."""
        total, powers = (jnp.sum(var**power, axis=0) for power in (1, 1.5))
        crossed = total * powers
        return (
            4.0 * powers + 4.5 * total**2,
            powers + 9.0 * crossed + 4.5 * total**3,
            (0.5 + 3.0 * total + 4.5 * powers + 13.5 * total**2) * powers + 3.5 * total**4,
        )

    def log_slope(self, r: Array) -> Array:
        """d log k / d log lengthscale = a^2 r^2 / (1 + a|r|)."""
        return 3.0 * r**2 / (1.0 + self.rate * jnp.abs(r))

    def coefficients(self) -> tuple[float, ...]:
        """p(t) = 1 + at."""
        return 1.0, self.rate

    def taylor(self, t: Array) -> tuple[Array, ...]:
        """p(t), p'(t)."""
        return 1.0 + self.rate * t, jnp.full_like(t, self.rate)

    def between(self, gap: Array) -> tuple[Array, ...]:
        """p(t) p(D-t) = p(D) + a^2 s, s = t (D-t)."""
        return 1.0 + self.rate * gap, jnp.full_like(gap, 3.0)


def by_name(name: str) -> Kernel:
    """The kernel called name, one of `NAMES`."""
    if name not in NAMES:
        raise ValueError(f"unknown kernel {name!r}; choose one of {', '.join(NAMES)}")
    kernels: tuple[Kernel, ...] = (SquaredExponential(), Matern52(), Matern32())
    return kernels[NAMES.index(name)]
