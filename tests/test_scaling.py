"""Scaling and its inverse, and the warnings about constant outputs."""

import warnings

import numpy as np
import pytest

from deepemu.data.names import numbered
from deepemu.data.runs import Columns, runs_of
from deepemu.data.scaling import warn_if_constant
from deepemu.errors import DataWarning, InputError
from deepemu.observations.gaussian import GaussianNoise


def scaled(x, y):
    """The runs, in core units inside."""
    columns = Columns(numbered("x", x.shape[1]), numbered("y", y.shape[1]), False, False)
    return runs_of(x, y, columns, GaussianNoise())


@pytest.fixture
def data(rng):
    x = rng.normal(size=(20, 3)) * [1e-8, 1.0, 1e8] + [5.0, 0.0, -1e9]
    return x, rng.normal(size=(20, 2)) * [1e-5, 1e7] + [1.0, -1e6]


def test_inputs_are_scaled_to_the_unit_cube(data):
    x, y = data
    core = scaled(x, y).scale.to_core(x)
    np.testing.assert_array_equal(core.min(axis=0), 0.0)
    np.testing.assert_array_equal(core.max(axis=0), 1.0)


def test_outputs_are_standardised(data):
    x, y = data
    core = scaled(x, y).sites.units.to_core(y)
    np.testing.assert_allclose(core.mean(axis=0), 0.0, atol=1e-10)
    np.testing.assert_allclose(core.std(axis=0), 1.0, rtol=1e-10)


def test_outputs_come_back(data):
    x, y = data
    runs = scaled(x, y)
    np.testing.assert_allclose(runs.sites.units.to_user(runs.sites.units.to_core(y)), y, rtol=1e-12)
    np.testing.assert_allclose(runs.sites.units.size, y.std(axis=0), rtol=1e-10)


def test_inputs_come_back(data):
    x, y = data
    runs = scaled(x, y)
    np.testing.assert_allclose(runs.scale.to_user(runs.scale.to_core(x)), x, rtol=1e-12)
    np.testing.assert_allclose(runs.site_inputs, x, rtol=1e-12)


def test_constant_columns_become_zero():
    x, y = np.column_stack([np.arange(4.0), np.full(4, 7.0)]), np.full((4, 1), 0.1)
    runs = scaled(x, y)
    np.testing.assert_array_equal(runs.scale.to_core(x)[:, 1], 0.0)
    np.testing.assert_allclose(runs.sites.units.to_core(y), 0.0, atol=1e-16)
    np.testing.assert_allclose(runs.sites.units.to_user(np.zeros((1, 1))), 0.1)
    assert np.all(runs.sites.units.size == 1.0)


def test_large_and_small_outputs_are_scaled_alike():
    x, y = np.arange(4.0)[:, None], np.array([[0.0], [1.0], [2.0], [5.0]])
    expected = scaled(x, y).sites.units.to_core(y)
    for size in (1e300, 1e-300):  # their squares are no doubles
        np.testing.assert_allclose(scaled(x, size * y).sites.units.to_core(size * y), expected)


def test_a_span_that_is_no_double_is_refused():
    wide, fine = np.array([[-1.5e308], [1.5e308]]), np.array([[0.0], [1.0]])
    with pytest.raises(InputError, match="^X spans more than the largest double"):
        scaled(wide, fine)
    with pytest.raises(InputError, match="^y spans more than the largest double"):
        scaled(fine, np.array([[1.6e308], [1.7e308]]))  # their sum is no double
    np.testing.assert_allclose(scaled(fine, wide).sites.units.to_core(wide), [[-1.0], [1.0]])


# --- constant outputs ----------------------------------------------------------------------------


def test_constant_outputs_are_found():
    with pytest.warns(DataWarning, match="y is constant over the 3 training rows"):
        warn_if_constant(np.full((3, 1), 0.1))
    with pytest.warns(DataWarning, match=r"column\(s\) \[0, 2\] of y are constant"):
        warn_if_constant(np.column_stack([np.zeros(3), np.arange(3.0), np.full(3, 1e9)]))


@pytest.mark.parametrize("size", [1e-300, 1.0, 1e300])
def test_small_differences_are_not_constant(size):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_constant(size * (1 + 1e-12 * np.arange(3.0)[:, None]))


def test_outputs_at_both_ends_of_the_doubles_are_not_constant():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_constant(np.array([[-1.5e308], [1.5e308]]))
