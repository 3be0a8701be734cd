"""A kernel from outside the package: the squared exponential in other units, exp(-r²/2)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from deepemu.core.kernels.families import Stationary
from deepemu.core.kernels.kernel import PairForm, Smoothness

SHORTER = math.sqrt(0.5)
"""Its lengthscale, for the kernel exp(-r²) of lengthscale one."""


@dataclass(frozen=True)
class Normal(Stationary):
    smoothness: ClassVar[Smoothness] = Smoothness.SMOOTH
    derivatives_at_zero: ClassVar[tuple[float, float]] = (1.0, 3.0)

    def correlation(self, r):
        return jnp.ones((), r.dtype), 0.5 * r**2

    def slope(self, r):
        return -r

    def expectation(self, delta, var):
        exponent = 0.5 * delta**2 / (1.0 + var)
        return jnp.broadcast_to((1.0 + var) ** -0.5, exponent.shape), exponent

    def expectation_and_slopes(self, delta, var):
        c = 1.0 / (1.0 + var)
        s = -c * delta
        return self.expectation(delta, var), (s, s**2 - c, s * (s**2 - 3.0 * c))

    def pair_forms(self):
        return (NormalPairs(),)


@dataclass(frozen=True)
class NormalPairs(PairForm):
    """J = (1+2v)^(-1/2) exp(-(m - c)² / (1+2v) - (w_i - w_j)² / 4), c the middle of w_i and w_j."""

    cheap_to_read: ClassVar[bool] = True

    def is_accurate(self, var):
        return jnp.ones(var.shape[-1], bool)

    def common(self, var):
        return jnp.prod((1.0 + 2.0 * var) ** -0.5, axis=0)

    def decay(self, gap):
        return 0.25 * gap**2

    def features(self, two, var):
        return 0.5 * two.r / jnp.sqrt(1.0 + 2.0 * var)

    def product(self, i, j, gap):
        return jnp.exp(-sum((a + b) ** 2 for a, b in zip(i, j, strict=True)))
