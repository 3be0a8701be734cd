"""Stationary kernels: correlation k and its Gaussian expectation I, one dimension at a time.

A kernel works in scaled units: distances are divided by the lengthscale, variances by its square.
Every one-dimensional function returns a pair (factor, exponent) that stands for
factor * exp(-exponent), so that a product over dimensions costs one exponential per entry.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core.kernels.half_line import dot, half_moments

Parts = tuple[Array, Array]
"""(factor, exponent), standing for factor * exp(-exponent); a factor of one may be a scalar."""


NAMES = ("squared_exponential", "matern52", "matern32")


class Kernel(Protocol):
    """Functions of one dimension in scaled units; frozen and hashable, a static argument."""

    def correlation(self, r: Array) -> Parts:
        """k(r), r = (u - w) / gamma."""

    def log_slope(self, r: Array) -> Array:
        """d log k / d log gamma = -r d log k / dr."""

    def expectation(self, delta: Array, var: Array) -> Parts:
        """I = E[k(W - w)], W ~ N(m, v), delta = (m - w) / gamma, var = v / gamma^2."""


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


@dataclass(frozen=True)
class Matern52(Matern):
    """k(r) = (1 + a|r| + a^2 r^2 / 3) exp(-a|r|), a = sqrt(5)."""

    rate: ClassVar[float] = math.sqrt(5.0)
    degree: ClassVar[int] = 2

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
