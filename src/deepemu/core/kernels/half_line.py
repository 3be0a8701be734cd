"""Moments of a normal variable over half lines, and the density's derivatives."""

import functools
import math
import operator
from collections.abc import Sequence

import jax.numpy as jnp
from jax.scipy.special import erfc

from deepemu._types import Array

# A known input (v = 0) gets this variance where a formula divides by it: an error of order v.
SMALLEST_VARIANCE = 1e-24
# Moments G_n(z) of a Gaussian tail: the forward recursion below the switch (it loses z^n), the
# backward one above (it converges the faster the larger z is).
_SWITCH = 2.5
_BACKWARD_STEPS = 32
_LARGEST_EXPONENT = 700.0  # finite, so that its product with an erfc of zero is zero
# Derivatives of the density at either end of an interval; see `two_point_weights`.
SLOPES = 6


def dot(coefficients: Sequence[Array | float], terms: Sequence[Array]) -> Array:
    """sum_n c_n x_n, unrolled."""
    return functools.reduce(jnp.add, map(operator.mul, coefficients, terms))


def half_moments(delta: Array, var: Array, rate: Array | float, order: int) -> tuple[Array, ...]:
    """E[t^n exp(-ct); t > 0], t ~ N(delta, v), n = 0..order.

    = v^(n/2) / sqrt(2 pi) exp(-delta^2 / 2v) G_n(z), z = c sqrt(v) - delta / sqrt(v),
    with G_n(z) = int_0^inf s^n exp(-zs - s^2/2) ds; delta^n exp(-c delta) [delta > 0] if v = 0.
    """
    v, known = jnp.maximum(var, SMALLEST_VARIANCE), var <= 0.0
    sd, positive = jnp.sqrt(v), jnp.maximum(delta, 0.0)
    z, gauss = rate * sd - delta / sd, jnp.exp(-0.5 * delta**2 / v)
    # exp(-delta^2/2v) G_n overflows piecewise for z << 0.  What it tends to is exp(-c delta + c^2
    # v/2), the exponents of the two parts added up by hand.
    near, far = jnp.minimum(z, _SWITCH), jnp.maximum(z, _SWITCH)
    tilt = jnp.where(known, positive, delta - 0.5 * rate * v)
    tilt = jnp.exp(-rate * jnp.where(z > _SWITCH, 0.0, tilt))
    inner = _near_integrals(near, gauss, tilt, order)
    outer = _far_integrals(far, gauss, order)
    side = tilt * jnp.heaviside(delta, 0.5)

    def moment(n: int) -> Array:
        uncertain = jnp.where(z > _SWITCH, outer[n], inner[n]) * (sd**n * math.sqrt(0.5 / math.pi))
        return jnp.where(known, side * positive**n, uncertain)

    return tuple(moment(n) for n in range(order + 1))


def opposite_moments(moments: Sequence[Array], delta: Array, var: Array) -> list[Array]:
    """E[t^n; t > 0], t ~ N(delta, v), from the moments of the other half line, E[(-t)^n; t < 0].

    The moments of the whole line are M_{n+1} = delta M_n + n v M_{n-1}; nothing is lost if
    delta > 0, where the other half line is a tail.
    """
    whole = [jnp.ones_like(delta), delta]
    for n in range(1, len(moments) - 1):
        whole.append(delta * whole[n] + n * var * whole[n - 1])
    return [whole[n] - (-1) ** n * moment for n, moment in enumerate(moments)]


def _near_integrals(z: Array, gauss: Array, tilt: Array, order: int) -> list[Array]:
    """gauss * G_n(z), given gauss * exp(z^2/2) = tilt.

    G_0 = sqrt(2 pi) Phi(-z) exp(z^2/2), G_1 = 1 - z G_0, G_{n+1} = n G_{n-1} - z G_n: to relative
    precision up to z = _SWITCH, to absolute precision beyond.
    """
    integrals = [tilt * (math.sqrt(0.5 * math.pi) * erfc(z * math.sqrt(0.5)))]
    before = gauss
    for n in range(order):
        integrals.append(before - z * integrals[n])
        before = (n + 1) * integrals[n]
    return integrals


def _far_integrals(z: Array, gauss: Array, order: int) -> list[Array]:
    """gauss * G_n(z), z > _SWITCH, by g_{n-1} = g_n + (n+1) g_{n+1} / z^2, g_0 + g_1 / z^2 = 1.

    G_n = n! / z^(n+1) g_n.  Backwards (Miller) from a large n, where G_{n+1} / G_n has an
    expansion.
    """
    x = 1.0 / z**2
    u = jnp.sqrt(_BACKWARD_STEPS + 0.5 + 0.25 * z**2)
    ratio = u - 0.5 * z + (0.125 * z + 0.0625 / u) / u**2
    after, g = ratio * z / (_BACKWARD_STEPS + 1), jnp.ones_like(z)
    for n in range(_BACKWARD_STEPS, order, -1):
        after, g = g, g + (n + 1) * x * after
    # XLA computes a sum anew for each of its uses, but a quotient once: g_order becomes 1.
    wanted = [after / g, jnp.ones_like(z)]
    for n in range(order, 0, -1):
        wanted.append(wanted[-1] + (n + 1) * x * wanted[-2])
    scale = gauss / (z * (wanted[-1] + x * wanted[-2]))
    inverse = 1.0 / z
    return [math.factorial(n) * scale * inverse**n * wanted[-1 - n] for n in range(order + 1)]


def density_slopes(z: Array) -> tuple[Array, ...]:
    """phi^(n)(-z) = He_n(z) phi(z), He_{n+1} = z He_n - n He_{n-1}, n = 0..SLOPES-1."""
    phi = jnp.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    slopes = [phi, z * phi]
    for n in range(1, SLOPES - 1):
        slopes.append(z * slopes[n] - n * slopes[n - 1])
    return tuple(slopes)


def two_point_weights(k: int) -> list[float]:
    """h_n = int_0^1 (s (1-s))^k s^n/n! (1-s)^M sum_{l < M-n} C(M-1+l, l) s^l ds, M = SLOPES."""
    return [
        sum(
            math.comb(SLOPES - 1 + m, m) * _beta(k + n + m, k + SLOPES) / math.factorial(n)
            for m in range(SLOPES - n)
        )
        for n in range(SLOPES)
    ]


def _beta(p: int, q: int) -> float:
    """int_0^1 s^p (1-s)^q ds = p! q! / (p+q+1)!."""
    return math.factorial(p) * math.factorial(q) / math.factorial(p + q + 1)
