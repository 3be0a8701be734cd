"""Hermite coefficients of the kernels and the bounds on what they leave out."""

import functools
import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial import hermite_e
from programs import quick_jit as jit

from deepemu.core.kernels import families, products
from deepemu.core.nodes import linked_series

NAMES = ["squared_exponential", "matern52", "matern32"]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


def k(name, r):
    t = np.abs(r)
    if name == "squared_exponential":
        return np.exp(-t * t)
    if name == "matern52":
        return (1 + np.sqrt(5) * t + 5 * t**2 / 3) * np.exp(-np.sqrt(5) * t)
    return (1 + np.sqrt(3) * t) * np.exp(-np.sqrt(3) * t)


def normal_expectation(function, kink):
    """E[function(Z)], Z ~ N(0, 1), by Gauss-Legendre on panels that end at the kink."""
    breaks = np.unique(np.clip([*np.linspace(-12, 12, 25), kink], -12, 12))
    middle, half = 0.5 * (breaks[1:] + breaks[:-1]), 0.5 * np.diff(breaks)
    z = middle[:, None] + half[:, None] * NODES
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return np.sum(half[:, None] * WEIGHTS * function(z) * density)


@functools.partial(jit, static_argnums=0)
def coefficients(kernel, delta, var):
    found = kernel.hermite(delta, var)
    value = products.combine(jnp.broadcast_to(found.value, delta.shape), found.exponent)
    return value, value * found.first, value * found.second, value * found.third


@pytest.mark.parametrize("name", NAMES)
def test_coefficients_are_expectations_of_hermite_polynomials(name):
    delta, var = (
        a.ravel()
        for a in np.meshgrid([-4.0, -0.3, -0.01, 0.0, 1e-4, 0.2, 2.5], [1e-8, 1e-4, 0.01, 0.5])
    )
    found = coefficients(families.by_name(name), delta, var)
    for d, v, *got in zip(delta, var, *found, strict=True):
        for j, value in enumerate(got):
            polynomial = np.eye(4)[j] / math.sqrt(math.factorial(j))

            def integrand(z, d=d, v=v, c=polynomial):
                return k(name, d + np.sqrt(v) * z) * hermite_e.hermeval(z, c)

            expected = normal_expectation(integrand, -d / np.sqrt(v))
            np.testing.assert_allclose(value, expected, atol=1e-15, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_coefficients_are_finite_at_the_extremes(name):
    distances, variances = [0.0, 1e-300, 1e-8, 1.0, -30.0, 1e3, -1e8], [0.0, 1e-300, 1e-9, 1.0, 1e6]
    delta, var = np.meshgrid(distances, variances)
    for values in coefficients(families.by_name(name), delta, var):
        assert np.all(np.isfinite(values))


def left_out(name, variances, degree):
    """1 - sum over β up to the degree of prod_d t_j(v_d), t_j = E[k(W - W') h_j(W) h_j(W')].

    W - W' = sqrt(2v) X; given X, the expectation of h_j h_j is (-1)^j He_2j(X) / (2^j j!).
    """

    def integrand(x, v, j):
        given_difference = hermite_e.hermeval(x, np.eye(7)[2 * j]) / ((-2) ** j * math.factorial(j))
        return k(name, np.sqrt(2 * v) * x) * given_difference

    t = [
        [normal_expectation(functools.partial(integrand, v=v, j=j), 0.0) for j in range(4)]
        for v in variances
    ]
    return 1 - sum(
        math.prod(t[d][j] for d, j in enumerate(beta))
        for beta in itertools.product(range(4), repeat=len(variances))
        if sum(beta) <= degree
    )


@functools.partial(jit, static_argnums=0)
def tails(kernel, variances):
    return kernel.hermite_tails(variances)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variances", [[1.0], [0.5, 0.5], [0.9, 0.1], [0.4, 0.35, 0.25]])
def test_tails_bound_what_is_left_out(name, variances):
    for total in 10.0 ** np.arange(-3, 0.1, 0.5):
        bounds = tails(families.by_name(name), total * np.array(variances))
        for degree, bound in enumerate(bounds, 1):
            rest = left_out(name, total * np.array(variances), degree)
            assert -1e-13 < rest <= bound
            if total < 2e-3 and degree < 3:
                assert bound < 2 * rest, "a bound that is far off would cost time"


def test_terms_are_those_of_the_product(rng):
    """All of degree up to three, in three columns, against products of one-dimensional ones."""
    kernel, (n_columns, n, m) = families.Matern52(), (3, 5, 4)
    delta, var = rng.normal(size=(n_columns, n, m)), rng.uniform(0, 1e-2, (n_columns, 1, m))
    factor = rng.random((n, m))
    parts = jit(linked_series.terms, static_argnums=0)(kernel, delta, var, factor)
    each = [coefficients(kernel, delta[d], np.broadcast_to(var[d], (n, m))) for d in range(3)]
    one = [[np.asarray(value) for value in values] for values in each]
    common, factors = np.asarray(parts.common), np.asarray(parts.factors)
    order = lambda arrays: sorted(np.asarray(a).ravel().tolist() for a in arrays)  # noqa: E731
    for degree, places in enumerate(linked_series.factor_places(n_columns)):
        found = [common * math.prod(factors[i] for i in place) for place in places]
        expected = [
            factor * math.prod(one[d][j] for d, j in enumerate(beta))
            for beta in itertools.product(range(4), repeat=3)
            if sum(beta) == degree
        ]
        assert len(found) == len(expected) == (1, 3, 6, 10)[degree]
        np.testing.assert_allclose(order(found), order(expected), rtol=1e-12)


@pytest.mark.parametrize("n_columns", [1, 2, 10])
def test_there_is_a_term_for_every_multi_index(n_columns):
    for degree, places in enumerate(linked_series.factor_places(n_columns)):
        assert len(set(places)) == math.comb(n_columns + degree - 1, degree)
