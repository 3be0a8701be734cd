"""The linear kernel, prod_d (1 + a_d b_d / γ_d²): its moments by quadrature, its slopes where it is
zero, and linked variances that have no error but round-off."""

import functools
from itertools import product

import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from core.builders import node_of
from core.test_kernels import expectation_vector, pair_expectation_matrix
from core.test_linked import by_all, predict_by
from oracles import Process
from programs import quick_jit as jit

from deepemu.core.distributions import Gaussian
from deepemu.core.kernels import families, products
from deepemu.core.nodes import dense, linked
from deepemu.core.nodes.linked import Inputs
from deepemu.core.nodes.node import Sites

LINEAR = families.by_name("linear")


def once(n):
    return Sites(jnp.ones(n), jnp.zeros(()))


def quadrature(function, mean, var):
    """E[function(W)], W ~ N(mean, var) with independent columns; exact up to degree nine."""
    points, weights = oracles.gauss_hermite(mean, var, np.zeros(0), 5)
    return np.tensordot(weights, np.array([function(point) for point in points]), axes=1)


@pytest.mark.parametrize("var", [[0.0, 0.0], [1e-8, 0.3], [4.0, 900.0]])
def test_expectations_are_those_of_quadrature(rng, var):
    w, mean, inverse = rng.normal(size=(7, 2)), rng.normal(size=2), np.array([1.5, 0.4])
    var = np.array(var)
    k = lambda x: np.prod(1 + x * w * inverse**2, axis=1)  # noqa: E731
    found = expectation_vector(LINEAR, w, mean, var, inverse)
    np.testing.assert_allclose(found, quadrature(k, mean, var), rtol=1e-9, atol=1e-9)
    found = pair_expectation_matrix(LINEAR, w, mean, var, inverse)
    expected = quadrature(lambda x: np.outer(k(x), k(x)), mean, var)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    two, scaled = products.scaled(w, mean[None], var[None], inverse)
    expected = quadrature(lambda x: np.prod(1 + (x * inverse) ** 2), mean, var)
    assert products.expected_variance(LINEAR, two, scaled)[0] == pytest.approx(expected)


@functools.partial(jit, static_argnums=4)
def derivatives(node, x, y, sites, free_scale):
    return dense.derivatives(node, x, y, sites, free_scale)


@pytest.mark.parametrize("free_scale", [False, True])
def test_slopes_are_right_where_the_kernel_is_zero(rng, free_scale):
    """Points -1, 1 and 2, -1/2 of lengthscale one: every other k is zero, of both columns."""
    x = np.array([[-1.0, -1.0], [1.0, 1.0], [2.0, 2.0], [-0.5, -0.5], [0.3, 0.7]])
    y, process = rng.normal(size=5), Process("linear", np.ones(2), 1.7, 0.03)
    assert np.sum(process.correlation(x, x) == 0) == 4
    found = derivatives(node_of(process), x, y, once(5), free_scale)

    def log_density(parameters):
        at = process.at(parameters)
        return (at.best_scale(x, y) if free_scale else at).log_density(x, y)

    expected = oracles.central_difference(log_density, process.parameters())
    np.testing.assert_allclose(found.gradient, expected, rtol=1e-6)


@pytest.mark.parametrize("n_columns", [1, 2, 3])
def test_linked_moments_have_no_error(rng, n_columns):
    """At any spread, by both schemes; one column more is known, and the design is larger than the
    rank of the kernel."""
    x = rng.normal(size=(30, n_columns + 1))
    process = Process("linear", rng.uniform(0.5, 2, n_columns + 1), 1.3, 1e-3)
    y = process.draw(rng, x)
    mean, known = rng.normal(size=(6, n_columns)), rng.normal(size=(6, 1))
    var = np.outer(10.0 ** np.arange(-4, 2), rng.uniform(0.5, 1.5, n_columns))
    rows = zip(mean, var, known, strict=True)
    points, weights = zip(*(oracles.gauss_hermite(*row, 3) for row in rows), strict=True)
    expected = oracles.in_long_double(process, x, y, np.stack(points), weights[0])
    by_corners, by_pairs = by_all(node_of(process), x, y, Inputs(Gaussian(mean, var), known))
    for found, rtol in ((by_corners, 1e-10), (by_pairs, 1e-6)):
        assert np.all(found.accurate)
        np.testing.assert_allclose(found.moments.mean, expected[0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.moments.var, expected[1], rtol=rtol)


def test_targets_that_no_line_explains_cost_no_digits(rng):
    """With the smallest nugget their α is as large as its inverse."""
    x, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    process = Process("linear", np.ones(2), 1.0, 1e-8).best_scale(x, y)
    mean, var = rng.normal(size=(1, 2)), np.array([[0.3, 0.01]])
    scheme, _ = linked.schemes(LINEAR, 2)
    found = predict_by(
        scheme, node_of(process), x, y, Inputs(Gaussian(mean, var), np.zeros((1, 0)))
    )
    points, weights = oracles.gauss_hermite(mean[0], var[0], np.zeros(0), 3)
    expected = oracles.in_long_double(process, x, y, points[None], weights)
    np.testing.assert_allclose(found.moments.mean, expected[0], rtol=1e-5)
    np.testing.assert_allclose(found.moments.var, expected[1], rtol=1e-4)


def test_many_columns_go_by_pairs(rng):
    """Eleven of them, against all 2048 corners in NumPy."""
    x = rng.normal(size=(20, 11))
    process = Process("linear", np.full(11, 2.0), 1.0, 1e-2)
    y, mean, var = process.draw(rng, x), rng.normal(size=11), rng.uniform(size=11)
    (scheme,) = linked.schemes(LINEAR, 11)
    at = Inputs(Gaussian(mean[None], var[None]), np.zeros((1, 0)))
    found = predict_by(scheme, node_of(process), x, y, at).moments
    corners = mean + np.sqrt(var) * np.array(list(product([-1, 1], repeat=11)))
    expected = oracles.through_inputs(process, x, y, corners, np.full(2048, 1 / 2048))
    assert found.mean[0] == pytest.approx(expected[0], rel=1e-9)
    assert found.var[0] == pytest.approx(expected[1], rel=1e-8)
