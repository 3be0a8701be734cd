"""Scaling and its inverse, replicates, and the warnings about data."""

import warnings

import numpy as np
import pytest

from deepemu.data.scaling import scaling_of, warn_if_constant
from deepemu.data.sites import collapse_replicates, require_two_sites, without_spread
from deepemu.errors import DataWarning, InputError


@pytest.fixture
def data(rng):
    x = rng.normal(size=(20, 3)) * [1e-8, 1.0, 1e8] + [5.0, 0.0, -1e9]
    return x, rng.normal(size=(20, 2)) * [1e-5, 1e7] + [1.0, -1e6]


def test_inputs_are_scaled_to_the_unit_cube(data):
    x, y = data
    core = scaling_of(x, y).x_to_core(x)
    np.testing.assert_array_equal(core.min(axis=0), 0.0)
    np.testing.assert_array_equal(core.max(axis=0), 1.0)


def test_outputs_are_standardised(data):
    x, y = data
    core = scaling_of(x, y).y_to_core(y)
    np.testing.assert_allclose(core.mean(axis=0), 0.0, atol=1e-10)
    np.testing.assert_allclose(core.std(axis=0), 1.0, rtol=1e-10)


def test_outputs_come_back(data):
    x, y = data
    scaling = scaling_of(x, y)
    np.testing.assert_allclose(scaling.mean_to_user(scaling.y_to_core(y)), y, rtol=1e-12)
    np.testing.assert_allclose(scaling.std_to_user(np.ones(2)), y.std(axis=0), rtol=1e-10)


def test_constant_columns_become_zero():
    x, y = np.column_stack([np.arange(4.0), np.full(4, 7.0)]), np.full((4, 1), 0.1)
    scaling = scaling_of(x, y)
    np.testing.assert_array_equal(scaling.x_to_core(x)[:, 1], 0.0)
    np.testing.assert_allclose(scaling.y_to_core(y), 0.0, atol=1e-16)
    np.testing.assert_allclose(scaling.mean_to_user(np.zeros((1, 1))), 0.1)
    assert np.all(scaling.y_std == 1.0)


def test_large_and_small_outputs_are_scaled_alike():
    x, y = np.arange(4.0)[:, None], np.array([[0.0], [1.0], [2.0], [5.0]])
    expected = scaling_of(x, y).y_to_core(y)
    for size in (1e300, 1e-300):  # their squares are no doubles
        np.testing.assert_allclose(scaling_of(x, size * y).y_to_core(size * y), expected)


def test_a_span_that_is_no_double_is_refused():
    wide, fine = np.array([[-1.5e308], [1.5e308]]), np.array([[0.0], [1.0]])
    with pytest.raises(InputError, match="^X spans more than the largest double"):
        scaling_of(wide, fine)
    with pytest.raises(InputError, match="^y spans more than the largest double"):
        scaling_of(fine, np.array([[1.6e308], [1.7e308]]))  # their sum is no double
    np.testing.assert_allclose(scaling_of(fine, wide).y_to_core(wide), [[-1.0], [1.0]])


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


# --- replicates ----------------------------------------------------------------------------------


def test_sites_are_in_order_of_first_appearance():
    x = np.array([[3.0, 0], [1, 0], [3, 0], [2, 0], [1, 0], [3, 0]])
    y = np.array([[1.0], [10], [2], [100], [20], [6]])
    sites = collapse_replicates(x, y)
    np.testing.assert_array_equal(sites.x, [[3, 0], [1, 0], [2, 0]])
    np.testing.assert_allclose(sites.y, [[3], [15], [100]])
    np.testing.assert_array_equal(sites.counts, [3, 2, 1])
    np.testing.assert_allclose(sites.squares, [[4 + 1 + 9], [25 + 25], [0]])
    np.testing.assert_array_equal(sites.site_of_row, [0, 1, 0, 2, 1, 0])


def test_rows_appended_later_come_later(rng):
    """An update relies on it."""
    x, y = rng.random((9, 2)), rng.random((9, 1))
    x[4], x[8] = x[1], x[5]
    before, after = collapse_replicates(x[:6], y[:6]), collapse_replicates(x, y)
    np.testing.assert_array_equal(after.x[: len(before.x)], before.x)
    np.testing.assert_array_equal(after.site_of_row[:6], before.site_of_row)


def test_squares_are_those_of_each_output(rng):
    x, y = np.repeat(rng.random((4, 2)), 5, axis=0), rng.random((20, 3))
    sites = collapse_replicates(x, y)
    grouped = y.reshape(4, 5, 3)
    np.testing.assert_allclose(sites.y, grouped.mean(axis=1))
    np.testing.assert_allclose(sites.squares, 5 * grouped.var(axis=1))


def test_distinct_rows_are_left_as_they_are(rng):
    x, y = rng.random((9, 2)), rng.random((9, 1))
    sites = collapse_replicates(x, y)
    np.testing.assert_array_equal(sites.x, x)
    np.testing.assert_array_equal(sites.y, y)
    np.testing.assert_array_equal(sites.squares, 0.0)


@pytest.mark.parametrize("n_copies", [2, 3, 7, 10])
def test_equal_outputs_have_no_spread(rng, n_copies):
    """The mean of equal numbers is that number, whatever its rounding."""
    x, y = rng.random((30, 2)), rng.random((30, 1))
    sites = collapse_replicates(np.tile(x, (n_copies, 1)), np.tile(y, (n_copies, 1)))
    np.testing.assert_array_equal(sites.y, y)
    np.testing.assert_array_equal(sites.squares, 0.0)


def test_an_interpolator_takes_means_and_warns():
    sites = collapse_replicates(np.array([[0.0], [0], [1]]), np.array([[1.0], [3], [5]]))
    with pytest.warns(DataWarning, match=r"1 input row\(s\) occur more than once"):
        means = without_spread(sites)
    np.testing.assert_array_equal(means.y, [[2], [5]])
    np.testing.assert_array_equal(means.counts, [1, 1])
    np.testing.assert_array_equal(means.squares, [[0], [0]])
    np.testing.assert_array_equal(means.site_of_row, [0, 0, 1])


def test_one_site_is_too_few():
    sites = collapse_replicates(np.zeros((3, 1)), np.arange(3.0)[:, None])
    with pytest.raises(InputError, match="All 3 rows of X are equal"):
        require_two_sites(sites, 3)
    require_two_sites(collapse_replicates(np.arange(2.0)[:, None], np.zeros((2, 1))), 2)
