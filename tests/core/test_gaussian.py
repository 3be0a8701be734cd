"""Mixtures against sampling, the law of total variance, and cancellation."""

import jax.numpy as jnp
import numpy as np
import oracles

from deepemu.core.distributions import Gaussian, mixture


def test_mixture_has_the_moments_of_its_samples(rng):
    mean, var = rng.normal(size=(3, 2)), rng.uniform(0.1, 2.0, (3, 2))
    weights = np.array([0.2, 0.5, 0.3])
    mixed = mixture(Gaussian(jnp.asarray(mean), jnp.asarray(var)), jnp.asarray(weights))
    picks = rng.choice(3, 200_000, p=weights)
    draws = mean[picks] + np.sqrt(var[picks]) * rng.normal(size=(200_000, 2))
    assert np.abs(oracles.in_standard_errors(draws, mixed.mean)).max() < 5
    squares = (draws - np.asarray(mixed.mean)) ** 2
    assert np.abs(oracles.in_standard_errors(squares, mixed.var)).max() < 5


def test_two_components_by_hand():
    """Halves N(−1, 1) and N(3, 9): mean 1, variance (1 + 9)/2 + 2² = 9."""
    mixed = mixture(Gaussian(jnp.array([-1.0, 3.0]), jnp.array([1.0, 9.0])), jnp.array([0.5, 0.5]))
    np.testing.assert_allclose((mixed.mean, mixed.var), (1.0, 9.0), rtol=1e-15)


def test_one_component_is_itself(rng):
    mean, var = rng.normal(size=(1, 4)), rng.uniform(size=(1, 4))
    mixed = mixture(Gaussian(jnp.asarray(mean), jnp.asarray(var)), jnp.ones(1))
    np.testing.assert_array_equal(mixed.mean, mean[0])
    np.testing.assert_array_equal(mixed.var, var[0])


def test_a_large_offset_leaves_the_variance():
    """At 1e8 a double resolves 1.5e-8: Σ μ² − μ² would have lost all digits of a spread of 1e-3."""
    mean = np.array([-1e-3, 0.0, 1e-3])
    mixed = mixture(Gaussian(jnp.asarray(1e8 + mean), jnp.full(3, 1e-8)), jnp.full(3, 1 / 3))
    np.testing.assert_allclose(mixed.mean, 1e8, rtol=1e-15)
    np.testing.assert_allclose(mixed.var, 1e-8 + 2e-6 / 3, rtol=1e-4)
