"""Stationary kernels: correlation k and its Gaussian expectations I and J, one dimension at a time.

A kernel works in scaled units: distances are divided by the lengthscale, variances by its square.
Every one-dimensional function returns a pair (factor, exponent) that stands for
factor * exp(-exponent), so that a product over dimensions costs one exponential per entry.

The Matern expectations break at the design points w_i and w_j.  Whatever needs exp or erfc has one
index and is computed per point (`pair_features`); the pair stage is arithmetic and selection.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from deepemu.core.exponential import exp_negative
from deepemu.core.moments import (
    SMALLEST_VARIANCE,
    density_slopes,
    dot,
    half_moments,
    two_point_weights,
)

Parts = tuple[Array, Array]
"""(factor, exponent), standing for factor * exp(-exponent); a factor of one may be a scalar."""

NAMES = ("squared_exponential", "matern52", "matern32")

# Moments between two design points: up to _NEAR = (gap / length on which the density varies)^2
# from derivatives of the density at either end, beyond from differences of tail moments.
# Truncation and cancellation meet at 1e-11 there (scanned over var 3..1e4, means up to 30 sd away).
_NEAR = 3.0


class Kernel(Protocol):
    """Functions of one dimension in scaled units; frozen and hashable, a static argument."""

    def correlation(self, r: Array) -> Parts:
        """k(r), r = (u - w) / gamma."""

    def log_slope(self, r: Array) -> Array:
        """d log k / d log gamma = -r d log k / dr."""

    def expectation(self, delta: Array, var: Array) -> Parts:
        """I = E[k(W - w)], W ~ N(m, v), delta = (m - w) / gamma, var = v / gamma^2."""

    def pair_features(self, delta: Array, var: Array) -> Any:
        """What J has to know about one design point, a pytree of arrays."""

    def pair_from_features(self, i: Any, j: Any) -> Parts:
        """J from the features of two design points: arithmetic and selection only."""

    def pair_expectation(self, delta_i: Array, delta_j: Array, var: Array) -> Parts:
        """J = E[k(W - w_i) k(W - w_j)], W ~ N(m, v)."""
        i, j = self.pair_features(delta_i, var), self.pair_features(delta_j, var)
        return self.pair_from_features(i, j)


class _SquaredExponentialPoint(NamedTuple):
    """A design point as J of the squared exponential sees it."""

    delta: Array
    shrink: Array  # 1 / (1 + 4 var)


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

    def pair_features(self, delta: Array, var: Array) -> _SquaredExponentialPoint:
        """The point itself; nothing here needs an exponential."""
        delta, shrink = jnp.broadcast_arrays(delta, 1.0 / (1.0 + 4.0 * var))
        return _SquaredExponentialPoint(delta, shrink)

    def pair_from_features(self, i: _SquaredExponentialPoint, j: _SquaredExponentialPoint) -> Parts:
        """J = (1+4v)^(-1/2) exp(-(d_i + d_j)^2 / (2 (1+4v)) - (d_i - d_j)^2 / 2)."""
        exponent = 0.5 * ((i.delta + j.delta) ** 2 * i.shrink + (i.delta - j.delta) ** 2)
        return jnp.broadcast_to(jnp.sqrt(i.shrink), exponent.shape), exponent


class _MaternPoint(NamedTuple):
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
class _Matern(Kernel):
    """k(r) = p(|r|) exp(-a |r|), with p a polynomial of degree 1 or 2."""

    rate: ClassVar[float]
    degree: ClassVar[int]

    @abstractmethod
    def _coefficients(self) -> tuple[float, ...]:
        """Those of p."""

    @abstractmethod
    def _taylor(self, t: Array) -> tuple[Array, ...]:
        """p^(n)(t) / n!, n = 0..degree."""

    @abstractmethod
    def _between(self, gap: Array) -> tuple[Array, ...]:
        """q_k(D) in p(t) p(D-t) = sum_k q_k(D) (t (D-t))^k, k = 0..degree."""

    def correlation(self, r: Array) -> Parts:
        """k = p(|r|) exp(-a |r|)."""
        distance = jnp.abs(r)
        return self._taylor(distance)[0], self.rate * distance

    def expectation(self, delta: Array, var: Array) -> Parts:
        """I = E[p(t) exp(-at); t > 0] + E[p(-t) exp(at); t < 0], t = W - w ~ N(delta, v)."""
        above = half_moments(delta, var, self.rate, self.degree)
        below = half_moments(-delta, var, self.rate, self.degree)
        value = dot(self._coefficients(), above) + dot(self._coefficients(), below)
        return value, jnp.zeros_like(value)

    def pair_features(self, delta: Array, var: Array) -> _MaternPoint:
        """Everything in J that needs exp or erfc; see `_MaternPoint`."""
        order = 2 * self.degree
        delta, var = jnp.broadcast_arrays(delta, var)
        sd = jnp.sqrt(jnp.maximum(var, SMALLEST_VARIANCE))
        z = delta / sd

        def one_side(sign: Array) -> tuple[tuple[Array, ...], ...]:
            moments = half_moments(sign * delta, var, 2.0 * self.rate, order)
            mass = half_moments(sign * delta, var, 0.0, order)
            return self._weighted(moments), mass, density_slopes(z)

        # A loop, because XLA would fuse the n feature evaluations into the n^2 pair stage; on the
        # CPU it ignores optimization_barrier.
        moments, mass, slopes = jax.lax.map(one_side, jnp.array([1.0, -1.0], delta.dtype))
        return _MaternPoint(
            delta=delta,
            above=tuple(f[0] for f in moments),
            below=tuple(f[1] for f in moments),
            mass_above=tuple(f[0] for f in mass),
            mass_below=tuple(f[1] for f in mass),
            slopes=tuple(f[0] for f in slopes),
            steepness=3.0 + z**2,
            inverse_sd=1.0 / sd,
        )

    def pair_from_features(self, i: _MaternPoint, j: _MaternPoint) -> Parts:
        """J exp(aD) = sum_n p^(n)(D)/n! (above_n(w_hi) + below_n(w_lo)) + sum_k q_k(D) C_k.

        D = w_hi - w_lo, and C_k are the moments between the points, where with t = W - w_lo
        p(t) p(D - t) = sum_k q_k(D) (t (D - t))^k, a sum of positive terms.
        """
        gap = jnp.abs(i.delta - j.delta)
        i_is_high = i.delta < j.delta
        outside = [
            jnp.where(i_is_high, ia + jb, ja + ib)
            for ia, ib, ja, jb in zip(i.above, i.below, j.above, j.below, strict=True)
        ]
        outer = dot(self._taylor(gap), outside)
        inner = dot(self._between(gap), _central_moments(i, j, gap, self.degree))
        return outer + inner, self.rate * gap

    def _weighted(self, moments: Sequence[Array]) -> tuple[Array, ...]:
        """Moments of t^n p(t) from moments of t^n."""
        p = self._coefficients()
        return tuple(dot(p, moments[n : n + len(p)]) for n in range(len(p)))


@dataclass(frozen=True)
class Matern52(_Matern):
    """k(r) = (1 + a|r| + a^2 r^2 / 3) exp(-a|r|), a = sqrt(5)."""

    rate: ClassVar[float] = math.sqrt(5.0)
    degree: ClassVar[int] = 2

    def log_slope(self, r: Array) -> Array:
        """d log k / d log lengthscale = a^2 r^2 (1 + a|r|) / (3 p(|r|))."""
        t = jnp.abs(r)
        return (5.0 / 3.0) * t**2 * (1.0 + self.rate * t) / self._taylor(t)[0]

    def _coefficients(self) -> tuple[float, ...]:
        """p(t) = 1 + at + (5/3) t^2."""
        return 1.0, self.rate, 5.0 / 3.0

    def _taylor(self, t: Array) -> tuple[Array, ...]:
        """p(t), p'(t), p''(t)/2."""
        return (
            1.0 + t * (self.rate + (5.0 / 3.0) * t),
            self.rate + (10.0 / 3.0) * t,
            jnp.full_like(t, 5.0 / 3.0),
        )

    def _between(self, gap: Array) -> tuple[Array, ...]:
        """p(t) p(D-t) = p(D) + b (1 + aD) s + b^2 s^2, s = t (D-t), b = a^2 / 3."""
        return (
            self._taylor(gap)[0],
            (5.0 / 3.0) * (1.0 + self.rate * gap),
            jnp.full_like(gap, 25.0 / 9.0),
        )


@dataclass(frozen=True)
class Matern32(_Matern):
    """k(r) = (1 + a|r|) exp(-a|r|), a = sqrt(3)."""

    rate: ClassVar[float] = math.sqrt(3.0)
    degree: ClassVar[int] = 1

    def log_slope(self, r: Array) -> Array:
        """d log k / d log lengthscale = a^2 r^2 / (1 + a|r|)."""
        return 3.0 * r**2 / (1.0 + self.rate * jnp.abs(r))

    def _coefficients(self) -> tuple[float, ...]:
        """p(t) = 1 + at."""
        return 1.0, self.rate

    def _taylor(self, t: Array) -> tuple[Array, ...]:
        """p(t), p'(t)."""
        return 1.0 + self.rate * t, jnp.full_like(t, self.rate)

    def _between(self, gap: Array) -> tuple[Array, ...]:
        """p(t) p(D-t) = p(D) + a^2 s, s = t (D-t)."""
        return 1.0 + self.rate * gap, jnp.full_like(gap, 3.0)


# --- products over dimensions -------------------------------------------------------------------


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


def expectation_vector(
    kernel: Kernel, w: Array, mean: Array, var: Array, inverse_lengthscale: Array
) -> Array:
    """I_i = prod_d E[k((W_d - w_id) / gamma_d)], W_d ~ N(mean_d, var_d), (n,)."""
    delta, var = _scaled(w, mean, var, inverse_lengthscale)
    return combine(*_product(lambda d: kernel.expectation(delta[d], var[d]), w.shape[1]))


def pair_expectation_matrix(
    kernel: Kernel, w: Array, mean: Array, var: Array, inverse_lengthscale: Array
) -> Array:
    """J_ij = prod_d E[k((W_d - w_id) / gamma_d) k((W_d - w_jd) / gamma_d)], (n, n)."""
    points = kernel.pair_features(*_scaled(w, mean, var, inverse_lengthscale))

    def one(d: int) -> Parts:
        rows = jax.tree.map(lambda f: f[d, :, None], points)
        columns = jax.tree.map(lambda f: f[d, None, :], points)
        return kernel.pair_from_features(rows, columns)

    return combine(*_product(one, w.shape[1]))


def by_name(name: str) -> Kernel:
    """The kernel called name, one of `NAMES`."""
    if name not in NAMES:
        raise ValueError(f"unknown kernel {name!r}; choose one of {', '.join(NAMES)}")
    kernels: tuple[Kernel, ...] = (SquaredExponential(), Matern52(), Matern32())
    return kernels[NAMES.index(name)]


def _scaled(w: Array, mean: Array, var: Array, inverse_lengthscale: Array) -> tuple[Array, Array]:
    """(m - w)/gamma as (D, n) and v/gamma^2 as (D, 1): dimensions lead, so a slice is a row."""
    inverse = inverse_lengthscale[:, None]
    return (mean[:, None] - w.T) * inverse, var[:, None] * inverse**2


def _product(one: Callable[[int], Parts], dimensions: int) -> Parts:
    """Multiply factors and add exponents; unrolled, so that no (n, m, D) array exists."""
    factor, exponent = one(0)
    for d in range(1, dimensions):
        next_factor, next_exponent = one(d)
        factor, exponent = factor * next_factor, exponent + next_exponent
    return factor, exponent


# --- moments between two design points ---------------------------------------------------------


def _central_moments(i: _MaternPoint, j: _MaternPoint, gap: Array, degree: int) -> list[Array]:
    """C_k = E[(t (D-t))^k; 0 < t < D], t = W - w_lo, k = 0..degree."""
    wide = _differences(i, j, gap, degree)
    ratio = (i.delta - j.delta) * i.inverse_sd
    near = ratio**2 * (i.steepness + j.steepness) < _NEAR
    return wide[:1] + [
        jnp.where(near, _two_point(i, j, gap, ratio, k), wide[k]) for k in range(1, degree + 1)
    ]


def _differences(i: _MaternPoint, j: _MaternPoint, gap: Array, degree: int) -> list[Array]:
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


def _two_point(i: _MaternPoint, j: _MaternPoint, gap: Array, ratio: Array, k: int) -> Array:
    """C_k with the density replaced by its two-point Taylor (Hermite) interpolant.

    C_k = D^(2k+1) sum_n h_n D^n (N^(n)(w_lo) + (-1)^n N^(n)(w_hi)); exact as D -> 0, where the
    differences of half-line moments cancel.
    """
    total = jnp.zeros_like(gap)
    for n, weight in reversed(list(enumerate(two_point_weights(k)))):
        pair = i.slopes[n] - j.slopes[n] if n % 2 else i.slopes[n] + j.slopes[n]
        total = total * ratio + weight * pair
    return jnp.abs(ratio) * gap ** (2 * k) * total
