"""Distinct inputs, the outputs at each, and the warnings about outputs that differ."""

import numpy as np
import pytest

from deepemu.core.model.observation import Units
from deepemu.data.sites import SiteData, first_rows, require_two_sites, sites_of
from deepemu.errors import DataWarning, InputError
from deepemu.observations.gaussian import GaussianNoise, Interpolated

NOISE = GaussianNoise()


def collapsed(x, y, observation=NOISE):
    """What an emulator keeps of the rows, in units of y."""
    site, units = sites_of(x), Units(np.zeros(y.shape[1]), np.ones(y.shape[1]))
    return SiteData(x[first_rows(site)], observation.collapse(y, site, units), site, units)


def test_sites_are_in_order_of_first_appearance():
    x = np.array([[3.0, 0], [1, 0], [3, 0], [2, 0], [1, 0], [3, 0]])
    y = np.array([[1.0], [10], [2], [100], [20], [6]])
    sites = collapsed(x, y)
    np.testing.assert_array_equal(sites.x, [[3, 0], [1, 0], [2, 0]])
    np.testing.assert_allclose(sites.observed.y, [[3], [15], [100]])
    np.testing.assert_array_equal(sites.observed.counts, [[3], [2], [1]])
    np.testing.assert_allclose(sites.observed.squares, [[4 + 1 + 9], [25 + 25], [0]])
    np.testing.assert_array_equal(sites.site_of_row, [0, 1, 0, 2, 1, 0])


def test_rows_appended_later_come_later(rng):
    """An update relies on it."""
    x, y = rng.random((9, 2)), rng.random((9, 1))
    x[4], x[8] = x[1], x[5]
    before, after = collapsed(x[:6], y[:6]), collapsed(x, y)
    np.testing.assert_array_equal(after.x[: len(before.x)], before.x)
    np.testing.assert_array_equal(after.site_of_row[:6], before.site_of_row)


def test_squares_are_those_of_each_output(rng):
    x, y = np.repeat(rng.random((4, 2)), 5, axis=0), rng.random((20, 3))
    sites = collapsed(x, y)
    grouped = y.reshape(4, 5, 3)
    np.testing.assert_allclose(sites.observed.y, grouped.mean(axis=1))
    np.testing.assert_allclose(sites.observed.squares, 5 * grouped.var(axis=1))


def test_distinct_rows_are_left_as_they_are(rng):
    x, y = rng.random((9, 2)), rng.random((9, 1))
    sites = collapsed(x, y)
    np.testing.assert_array_equal(sites.x, x)
    np.testing.assert_array_equal(sites.observed.y, y)
    np.testing.assert_array_equal(sites.observed.squares, 0.0)


@pytest.mark.parametrize("n_copies", [2, 3, 7, 10])
def test_equal_outputs_have_no_spread(rng, n_copies):
    """The mean of equal numbers is that number, whatever its rounding."""
    x, y = rng.random((30, 2)), rng.random((30, 1))
    sites = collapsed(np.tile(x, (n_copies, 1)), np.tile(y, (n_copies, 1)))
    np.testing.assert_array_equal(sites.observed.y, y)
    np.testing.assert_array_equal(sites.observed.squares, 0.0)


def test_an_interpolator_takes_means_and_warns():
    x, y = np.array([[0.0], [0], [1]]), np.array([[1.0], [3], [5]])
    with pytest.warns(DataWarning, match=r"1 input row\(s\) occur more than once"):
        means = collapsed(x, y, Interpolated())
    np.testing.assert_array_equal(means.observed.y, [[2], [5]])
    np.testing.assert_array_equal(means.observed.counts, [[1], [1]])
    np.testing.assert_array_equal(means.observed.squares, [[0], [0]])
    np.testing.assert_array_equal(means.site_of_row, [0, 0, 1])


def test_one_site_is_too_few():
    with pytest.raises(InputError, match="All 3 rows of X are equal"):
        require_two_sites(sites_of(np.zeros((3, 1))))
    require_two_sites(sites_of(np.arange(2.0)[:, None]))
