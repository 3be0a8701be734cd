"""Sums over pairs against a double loop over them."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from programs import quick_jit

from deepemu.core.kernels import families, products
from deepemu.core.nodes import pair_sums


def loop(weights, w, mean, var, inverse, factor):
    """Of the squared exponential, pair by pair, with J in its textbook form."""
    total = 0.0
    for i, w_i in enumerate(w):
        for j, w_j in enumerate(w):
            spread = 1 + 4 * var * inverse**2
            middle = (0.5 * (w_i + w_j) - mean) * inverse
            exponent = 2 * middle**2 / spread + 0.5 * ((w_i - w_j) * inverse) ** 2
            expectation = np.prod(np.exp(-exponent) / np.sqrt(spread))
            total += weights[i, j] * factor[i] * factor[j] * expectation
    return total


@functools.partial(quick_jit, static_argnums=0)
def expected_sums(n_together, weights, w, mean, var, inverse, factor):
    kernel = families.SquaredExponential()
    delta, scaled = products.scaled(w, mean, var, inverse)
    (form,) = kernel.pair_forms()
    tiles = pair_sums.grouped(pair_sums.tiled(form, weights, w * inverse[None]), n_together)
    return pair_sums.expected_sum(form, tiles, delta, scaled, factor)


@pytest.mark.parametrize("n", [1, 12, 16, 37])
@pytest.mark.parametrize(
    ("inverse", "var"),
    [
        ([1.0, 0.5], [0.1, 0.3]),
        ([1e3, 1e-3], [1e-8, 10.0]),
        ([1e3, 1.0], [1e4, 0.0]),
        ([0.0, 2.0], [1.0, 1e-20]),
    ],
)
def test_against_a_double_loop(rng, n, inverse, var):
    w, mean, inverse = rng.random((n, 2)), rng.random((5, 2)), np.array(inverse)
    var = np.array(var) * rng.uniform(0.5, 1.5, (5, 2))
    factor, square = rng.random((n, 5)), rng.normal(size=(n, n))
    weights = 1e6 * (square + square.T)
    got = expected_sums(
        1 if n < 16 else 4, *map(jnp.asarray, (weights, w, mean, var, inverse, factor))
    )
    expected = [loop(weights, w, mean[t], var[t], inverse, factor[:, t]) for t in range(5)]
    largest = [loop(np.abs(weights), w, mean[t], var[t], inverse, factor[:, t]) for t in range(5)]
    # An exponent of up to 700 is known to 700 eps, in the loop as well.
    assert np.all(np.abs(got - np.array(expected)) <= 1e-12 * np.array(largest))
