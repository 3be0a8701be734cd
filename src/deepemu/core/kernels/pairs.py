"""J = E[k(W, w_i) k(W, w_j)], W ~ N(m, v), for all pairs of design points, in scaled units.

A `PairForm` computes as much as possible per point (everything with erfc, and for a Matern kernel
everything with exp), so that little remains per pair.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core.kernels.exponential import exp_negative
from deepemu.core.kernels.half_line import (
    SMALLEST_VARIANCE,
    density_slopes,
    dot,
    half_moments,
    opposite_moments,
    two_point_weights,
)
from deepemu.core.kernels.kernel import PairForm, Two

# Moments between two design points: up to _NEAR = (gap / length on which the density varies)^2
# from derivatives of the density at either end, beyond from differences of tail moments.
# Truncation and cancellation meet at 1e-11 there (scanned over var 3..1e4, means up to 30 sd away).
_NEAR = 3.0
# Input variance, in squared lengthscales, up to which half-line moments of a polynomial may be
# subtracted from each other whatever the gap: the relative error of J, 2e-12 there, grows as var^2.
_NARROW = 4.0


@dataclass(frozen=True)
class SquaredExponentialPairs(PairForm):
    """J = (1+4v)^(-1/2) exp(-(d_i + d_j)^2 / (2 (1+4v)) - (d_i - d_j)^2 / 2), d = delta."""

    cheap_to_read: ClassVar[bool] = True

    def is_accurate(self, var: Array) -> Array:
        return jnp.ones(var.shape[-1], bool)

    def common(self, var: Array) -> Array:
        """prod_d (1+4v)^(-1/2)."""
        return functools.reduce(jnp.multiply, 1.0 / jnp.sqrt(1.0 + 4.0 * var))

    def decay(self, gap: Array) -> Array:
        """(w_i - w_j)^2 / 2."""
        return 0.5 * gap**2

    def features(self, two: Two, var: Array) -> Array:
        """d / sqrt(1+4v)."""
        return two.r / jnp.sqrt(1.0 + 4.0 * var)

    def product(self, i: Sequence[Array], j: Sequence[Array], gap: Sequence[Array]) -> Array:
        """One exponential of a sum of squares: no term cancels."""
        squares = [(a + b) ** 2 for a, b in zip(i, j, strict=True)]
        return exp_negative(0.5 * functools.reduce(jnp.add, squares))


_LinearPoint = tuple[Array, Array]


@dataclass(frozen=True)
class LinearPairs(PairForm):
    """J = (1 + m w_i) (1 + m w_j) + v w_i w_j.

    Targets that no line explains have large α, whose sums over pairs cancel: for few columns a
    cubature is exact.
    """

    cheap_to_read: ClassVar[bool] = True

    def is_accurate(self, var: Array) -> Array:
        return jnp.ones(var.shape[-1], bool)

    def common(self, var: Array) -> Array:
        return jnp.ones_like(var[0])

    def decay(self, gap: Array) -> Array:
        return jnp.zeros_like(gap)

    def features(self, two: Two, var: Array) -> _LinearPoint:
        """1 + m w and w sqrt(v)."""
        return 1.0 + two.u * two.w, two.w * jnp.sqrt(var)

    def product(
        self, i: Sequence[_LinearPoint], j: Sequence[_LinearPoint], gap: Sequence[Array]
    ) -> Array:
        """prod_d (a_i a_j + b_i b_j) of the features a and b."""
        each = [p[0] * q[0] + p[1] * q[1] for p, q in zip(i, j, strict=True)]
        return functools.reduce(jnp.multiply, each)


class PolynomialExponential(Protocol):
    """k(r) = p(|r|) exp(-a |r|), with p a polynomial of degree 1 or 2."""

    rate: ClassVar[float]
    degree: ClassVar[int]

    def coefficients(self) -> tuple[float, ...]:
        """Those of p."""

    def taylor(self, t: Array) -> tuple[Array, ...]:
        """p^(n)(t) / n!, n = 0..degree."""

    def between(self, gap: Array) -> tuple[Array, ...]:
        """q_k(D) in p(t) p(D-t) = sum_k q_k(D) (t (D-t))^k, k = 0..degree."""


@dataclass(frozen=True)
class _MaternPairs(PairForm):
    """Base class of the forms of a Matern kernel."""

    kernel: PolynomialExponential

    cheap_to_read: ClassVar[bool] = False

    def common(self, var: Array) -> Array:
        return jnp.ones_like(var[0])

    def decay(self, gap: Array) -> Array:
        """a |w_i - w_j|, taken out of both points' exponentials."""
        return self.kernel.rate * jnp.abs(gap)


class _NarrowMaternPoint(NamedTuple):
    """A design point's share of J exp(aD), as coefficients of powers of the gap D."""

    delta: Array  # negative above the mean
    high: tuple[Array, ...]  # as the upper point of the pair
    low_upward: tuple[Array, ...]  # as the lower one, if the upper one is above the mean
    low_downward: tuple[Array, ...]  # if the upper one is not


@dataclass(frozen=True)
class NarrowMaternPairs(_MaternPairs):
    """J exp(aD) as a polynomial in the gap D, whose coefficients are sums of two points' shares.

    k k' is exp(-aD) p(t) p(D+t) exp(-2at) at a distance t outside the two points, and
    exp(-aD) p(t) p(D-t) between them.  The integral between them is that from one point to
    infinity less that from the other one.  The half lines run away from the mean where both points
    are on one side of it, or else 1 - 1 would be left of a tail.
    """

    def is_accurate(self, var: Array) -> Array:
        return jnp.all(var <= _NARROW, axis=(0, 1))

    def features(self, two: Two, var: Array) -> _NarrowMaternPoint:
        order, rate = 2 * self.kernel.degree, 2.0 * self.kernel.rate
        delta, var = jnp.broadcast_arrays(two.r, var)
        above_mean = delta < 0.0

        def moments(column: tuple[Array, Array]) -> tuple[Array, ...]:
            d, v = column
            rates = jnp.array([rate, rate, 0.0]).reshape(-1, *[1] * d.ndim)
            return half_moments(jnp.stack([d, -d, -jnp.abs(d)]), v[None], rates, order)

        # A loop, because XLA would compute the moments anew for each of their uses.
        every = jax.lax.map(moments, (delta, var))
        above, below, away = (tuple(moment[:, k] for moment in every) for k in range(3))
        upward = [
            jnp.where(above_mean, tail, rest)
            for tail, rest in zip(away, opposite_moments(away, jnp.abs(delta), var), strict=True)
        ]
        outside_high, outside_low = self._powers(above, 1, 1), self._powers(below, 1, 1)
        between, beyond = self._powers(away, 1, -1), self._powers(away, -1, 1)
        return _NarrowMaternPoint(
            delta,
            high=tuple(
                o + jnp.where(above_mean, -p, q)
                for o, p, q in zip(outside_high, beyond, between, strict=True)
            ),
            low_upward=tuple(map(jnp.add, outside_low, self._powers(upward, 1, -1))),
            low_downward=tuple(map(jnp.subtract, outside_low, beyond)),
        )

    def product(
        self, i: Sequence[_NarrowMaternPoint], j: Sequence[_NarrowMaternPoint], gap: Sequence[Array]
    ) -> Array:
        return functools.reduce(jnp.multiply, map(self._polynomial, i, j, gap))

    def _polynomial(self, i: _NarrowMaternPoint, j: _NarrowMaternPoint, gap: Array) -> Array:
        """sum_k D^k (high_k + low_k)."""
        i_is_high, distance = gap > 0.0, jnp.abs(gap)

        def coefficient(k: int) -> Array:
            j_is_low = jnp.where(i.delta < 0.0, j.low_upward[k], j.low_downward[k])
            i_is_low = jnp.where(j.delta < 0.0, i.low_upward[k], i.low_downward[k])
            return jnp.where(i_is_high, i.high[k] + j_is_low, j.high[k] + i_is_low)

        total = coefficient(self.kernel.degree)
        for k in range(self.kernel.degree - 1, -1, -1):
            total = total * distance + coefficient(k)
        return total

    def _powers(self, moments: Sequence[Array], own: int, other: int) -> tuple[Array, ...]:
        """Coefficients of D^k in E[p(own t) p(D + other t)], given the moments of t.

        sum_m C(k+m, k) c_(k+m) other^m sum_a c_a own^a E[t^(m+a)].
        """
        c = self.kernel.coefficients()
        weighted = [
            dot([a * own**n for n, a in enumerate(c)], moments[m : m + len(c)])
            for m in range(len(c))
        ]
        return tuple(
            dot([math.comb(k + m, k) * c[k + m] * other**m for m in range(len(c) - k)], weighted)
            for k in range(len(c))
        )


class _WideMaternPoint(NamedTuple):
    """A design point w as J of a Matern kernel sees it, W ~ N(m, v); tuples run over orders n."""

    delta: Array  # m - w
    above: tuple[Array, ...]  # E[t^n p(t) exp(-2at); t > 0], t = W - w
    below: tuple[Array, ...]  # the same with t = w - W
    mass_above: tuple[Array, ...]  # E[t^n; t > 0], t = W - w
    mass_below: tuple[Array, ...]
    slopes: tuple[Array, ...]  # sd^(n+1) times the n-th derivative of the density of W at w
    steepness: Array  # (sd / length on which the density of W varies at w)^2
    inverse_sd: Array


@dataclass(frozen=True)
class WideMaternPairs(_MaternPairs):
    """J exp(aD) from moments outside and between the points that lose nothing at any variance."""

    def is_accurate(self, var: Array) -> Array:
        return jnp.ones(var.shape[-1], bool)

    def features(self, two: Two, var: Array) -> _WideMaternPoint:
        """All of J that needs exp or erfc; see `_WideMaternPoint`."""
        order, rate = 2 * self.kernel.degree, 2.0 * self.kernel.rate
        delta, var = jnp.broadcast_arrays(two.r, var)
        sd = jnp.sqrt(jnp.maximum(var, SMALLEST_VARIANCE))
        z = delta / sd
        rates = jnp.array([rate, rate, 0.0, 0.0]).reshape(-1, *[1] * delta.ndim)
        every = half_moments(jnp.stack([delta, -delta, delta, -delta]), var[None], rates, order)
        above, below, mass_above, mass_below = zip(*every, strict=True)
        return _WideMaternPoint(
            delta=delta,
            above=self._weighted(above),
            below=self._weighted(below),
            mass_above=mass_above,
            mass_below=mass_below,
            slopes=density_slopes(z),
            steepness=3.0 + z**2,
            inverse_sd=1.0 / sd,
        )

    def product(
        self, i: Sequence[_WideMaternPoint], j: Sequence[_WideMaternPoint], gap: Sequence[Array]
    ) -> Array:
        return functools.reduce(jnp.multiply, map(self._expectation, i, j, gap))

    def _expectation(self, i: _WideMaternPoint, j: _WideMaternPoint, gap: Array) -> Array:
        """J exp(aD) = sum_n p^(n)(D)/n! (above_n(w_hi) + below_n(w_lo)) + sum_k q_k(D) C_k.

        D = w_hi - w_lo, and C_k are the moments between the points, where with t = W - w_lo
        p(t) p(D - t) = sum_k q_k(D) (t (D - t))^k, a sum of positive terms.
        """
        i_is_high, distance = gap > 0.0, jnp.abs(gap)
        outside = [
            jnp.where(i_is_high, ia + jb, ja + ib)
            for ia, ib, ja, jb in zip(i.above, i.below, j.above, j.below, strict=True)
        ]
        outer = dot(self.kernel.taylor(distance), outside)
        central = _central_moments(i, j, distance, self.kernel.degree)
        return outer + dot(self.kernel.between(distance), central)

    def _weighted(self, moments: Sequence[Array]) -> tuple[Array, ...]:
        """Moments of t^n p(t) from moments of t^n."""
        p = self.kernel.coefficients()
        return tuple(dot(p, moments[n : n + len(p)]) for n in range(len(p)))


def _central_moments(
    i: _WideMaternPoint, j: _WideMaternPoint, gap: Array, degree: int
) -> list[Array]:
    """C_k = E[(t (D-t))^k; 0 < t < D], t = W - w_lo, k = 0..degree."""
    wide = _differences(i, j, gap, degree)
    ratio = (i.delta - j.delta) * i.inverse_sd
    near = ratio**2 * (i.steepness + j.steepness) < _NEAR
    return wide[:1] + [
        jnp.where(near, _two_point(i, j, gap, ratio, k), wide[k]) for k in range(1, degree + 1)
    ]


def _differences(i: _WideMaternPoint, j: _WideMaternPoint, gap: Array, degree: int) -> list[Array]:
    """C_k from T_n = E[t^n; 0 < t < D] = U_n(w_lo) - (-1)^n U_n(w_hi), U_n the half-line moments.

    Both half lines run away from the mean, or else 1 - 1 would be left of a tail.  That T_n is
    symmetric in i and j saves the question which of them is w_lo.
    """
    upward = i.delta + j.delta < 0.0

    def moment(n: int) -> Array:
        if n % 2:
            return jnp.where(
                upward, i.mass_above[n] + j.mass_above[n], i.mass_below[n] + j.mass_below[n]
            )
        return jnp.abs(
            jnp.where(upward, i.mass_above[n] - j.mass_above[n], i.mass_below[n] - j.mass_below[n])
        )

    t = [moment(n) for n in range(2 * degree + 1)]
    central = [t[0], gap * t[1] - t[2]]
    if degree == 2:
        central.append(gap * (gap * t[2] - 2.0 * t[3]) + t[4])
    return central


def _two_point(i: _WideMaternPoint, j: _WideMaternPoint, gap: Array, ratio: Array, k: int) -> Array:
    """C_k with the density replaced by its two-point Taylor (Hermite) interpolant.

    C_k = D^(2k+1) sum_n h_n D^n (N^(n)(w_lo) + (-1)^n N^(n)(w_hi)); exact as D -> 0, where the
    differences of half-line moments cancel.
    """
    total = jnp.zeros_like(gap)
    for n, weight in reversed(list(enumerate(two_point_weights(k)))):
        pair = i.slopes[n] - j.slopes[n] if n % 2 else i.slopes[n] + j.slopes[n]
        total = total * ratio + weight * pair
    return jnp.abs(ratio) * gap ** (2 * k) * total
