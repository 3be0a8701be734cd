"""The vectorised exponential against the C library's."""

import jax
import jax.numpy as jnp
import numpy as np

from deepemu.core.kernels.exponential import exp_negative


def test_it_is_the_exponential_to_the_last_digits():
    """Compiled: a compiler that reorders sums would break the rounding inside."""
    exponent = np.concatenate([np.linspace(-700, 708, 200_001), np.geomspace(1e-300, 1, 1000)])
    expected = np.exp(-exponent)
    for value in (exp_negative(jnp.asarray(exponent)), jax.jit(exp_negative)(exponent)):
        np.testing.assert_allclose(value, expected, rtol=5e-16, atol=0)


def test_it_is_zero_far_out():
    far = jnp.array([708.1, 745.0, 1e3, 1e308, jnp.inf])
    np.testing.assert_array_equal(jax.jit(exp_negative)(far), 0.0)


def test_what_is_not_a_number_stays_so():
    """Whatever bits it is made of."""
    bits = np.array([0x7FF8000000000000, 0x7FFFFFFFFFFFFFFF, 0xFFF8000000000001], np.uint64)
    assert np.all(np.isnan(jax.jit(exp_negative)(bits.view(float))))
