"""Cubature rules against the moments of normals."""

import itertools
import math

import numpy as np
import pytest

from deepemu.core.nodes.cubature import GRIDS, PRODUCTS, DegreeFive, corners


def moment(powers):
    """E of a product of powers of independent standard normals."""
    return math.prod(0.0 if p % 2 else math.prod(range(1, p, 2)) for p in powers)


def monomials(n_columns, degree):
    """Powers of up to four columns, which is all that degree five can need, and of five alone."""
    for columns in itertools.combinations_with_replacement(range(n_columns), degree):
        yield [columns.count(d) for d in range(n_columns)]


@pytest.mark.parametrize("n_columns", range(1, 11))
def test_polynomials_of_degree_five_are_exact(n_columns):
    rule = DegreeFive()
    points = np.array(rule.points(n_columns))
    # A product of five different columns is the one that a fraction of the corners may miss.
    every = [p for degree in range(6) for p in monomials(n_columns, degree)]
    wanted = [p for p in every if not (n_columns in PRODUCTS and max(p) == 1 and sum(p) == 5)]
    values = np.stack([np.prod(points**p, axis=1) for p in wanted], axis=1)
    found, _ = rule.estimate(values, n_columns)
    np.testing.assert_allclose(found, [moment(p) for p in wanted], atol=1e-12)
    assert len(points) <= 1 + 2 * n_columns + 128


@pytest.mark.parametrize("n_columns", PRODUCTS)
def test_corners_of_many_columns_are_a_design(n_columns):
    signs = np.array(corners(n_columns))
    assert len(set(map(tuple, signs))) == len(signs) < 2**n_columns
    np.testing.assert_array_equal(signs.T @ signs, len(signs) * np.eye(n_columns))


@pytest.mark.parametrize("n_columns", GRIDS)
def test_grids_integrate_what_is_smooth_and_see_what_is_not(n_columns):
    rule = GRIDS[n_columns]
    total = np.array(rule.points(n_columns)).sum(axis=1)
    values = np.stack([np.ones_like(total), np.exp(0.5 * total), np.abs(total)], axis=1)
    found, error = map(np.asarray, rule.estimate(values, n_columns))
    exact = [1.0, np.exp(0.125 * n_columns), np.sqrt(2 * n_columns / np.pi)]
    assert np.all(np.abs(found / exact - 1) < [1e-12, 1e-5, 0.05])
    assert error[0] < 1e-15 and error[2] > 1e-4


def test_the_error_of_degree_five_is_that_of_the_next_degree():
    rule = DegreeFive()
    at = np.array(rule.points(2))
    for size in (0.05, 0.1, 0.2):
        values = np.exp(size * (at[:, 0] - 0.5 * at[:, 1]))[:, None]
        found, error = map(float, map(np.squeeze, rule.estimate(values, 2)))
        true = abs(found - np.exp(0.5 * size**2 * 1.25))
        assert 0.1 * true < error < 300 * true
    constant = rule.estimate(np.full((len(at), 1), 3.0), 2)
    np.testing.assert_allclose(constant, [[3.0], [0.0]], atol=1e-14)
