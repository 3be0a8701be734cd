"""Densities against SciPy, curvatures against finite differences."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from deepemu.core.model.priors import (
    Flat,
    Gamma,
    Geometry,
    Independent,
    InverseGamma,
    Power,
    Reference,
)

VALUES = np.array([0.02, 0.4, 1.0, 3.0, 50.0])
MARGINALS = [
    (Gamma(), stats.gamma(1.6, scale=1 / 0.3)),
    (Gamma(3.0, 2.0), stats.gamma(3.0, scale=1 / 2.0)),
    (InverseGamma(), stats.invgamma(1.6, scale=0.3)),
    (InverseGamma(4.0, 0.7), stats.invgamma(4.0, scale=0.7)),
]


def geometry(span, weight, n_rows):
    return Geometry(jnp.asarray(span), jnp.asarray(weight), jnp.asarray(n_rows))


def second_difference(function, at, step=1e-3):
    return (function(at + step) - 2 * function(at) + function(at - step)) / step**2


@pytest.mark.parametrize(("prior", "reference"), MARGINALS)
def test_marginal_densities_up_to_a_constant(prior, reference):
    difference = prior.log_density(jnp.log(VALUES)) - reference.logpdf(VALUES)
    np.testing.assert_allclose(difference, difference[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prior", [prior for prior, _ in MARGINALS] + [Flat(), Power()])
def test_marginal_curvature_is_the_second_derivative_in_the_logarithm(prior):
    at = jnp.log(VALUES)
    numeric = -second_difference(prior.log_density, at)
    np.testing.assert_allclose(prior.curvature(at), numeric, rtol=1e-5, atol=1e-7)
    assert np.all(prior.curvature(at) >= 0)


def test_independent_prior_adds_up():
    prior = Independent(Gamma(2.0, 0.5), InverseGamma(3.0, 0.2))
    lengthscale, nugget = np.array([0.3, 2.0, 7.0]), 0.05
    expected = stats.gamma(2.0, scale=2.0).logpdf(lengthscale[:2]).sum() + stats.invgamma(
        3.0, scale=0.2
    ).logpdf(nugget)
    shape = geometry(np.ones(3), [1.0, 1.0, 0.0], 10)  # the third column is not read
    other = stats.gamma(2.0, scale=2.0).logpdf([1.0, 1.0]).sum() + stats.invgamma(
        3.0, scale=0.2
    ).logpdf(1.0)
    value = prior.log_density(jnp.log(lengthscale), jnp.log(nugget), shape)
    at_one = prior.log_density(jnp.zeros(3), jnp.zeros(()), shape)
    np.testing.assert_allclose(value - at_one, expected - other, rtol=1e-12)
    curve = prior.curvature(jnp.log(lengthscale), jnp.log(nugget), shape)
    np.testing.assert_allclose(curve[0], [0.5 * 0.3, 0.5 * 2.0, 0.0])
    np.testing.assert_allclose(curve[1], 0.2 / nugget)


def test_a_shared_lengthscale_counts_once():
    prior, lengthscale = Independent(Gamma(), Flat()), jnp.log(jnp.full(4, 0.6))
    shared = geometry(np.ones(4), [1 / 3, 1 / 3, 0.0, 1 / 3], 10)
    once = prior.lengthscale.log_density(lengthscale[0])
    np.testing.assert_allclose(
        prior.log_density(lengthscale, jnp.zeros(()), shared), once, rtol=1e-14
    )
    curve, _ = prior.curvature(lengthscale, jnp.zeros(()), shared)
    np.testing.assert_allclose(curve.sum(), prior.lengthscale.curvature(lengthscale[0]), rtol=1e-14)


def jointly_robust(a, lengthscale, nugget, span, n):
    """Gu (2019): a log t − b t, t = Σ C/γ + η, C = span/n^(1/D), b = (a + D)/n^(1/D)."""
    dimensions = len(lengthscale)
    per_axis = n ** (1 / dimensions)
    t = np.sum(span / per_axis / lengthscale) + nugget
    return a * np.log(t) - (a + dimensions) / per_axis * t


@pytest.mark.parametrize("exponent", [0.2, 1.3])
def test_reference_prior_against_its_formula(exponent):
    span, lengthscale, nugget = np.array([1.0, 3.0, 9.0]), np.array([0.4, 2.0, 5.0]), 0.03
    prior = Reference(exponent)
    arguments = jnp.log(lengthscale), jnp.log(nugget)
    value = prior.log_density(*arguments, geometry(span, np.ones(3), 30))
    np.testing.assert_allclose(value, jointly_robust(exponent, lengthscale, nugget, span, 30))
    # A column that is not read does not count as a dimension either.
    value = prior.log_density(*arguments, geometry(span, [1.0, 0.0, 1.0], 30))
    read = [0, 2]
    expected = jointly_robust(exponent, lengthscale[read], nugget, span[read], 30)
    np.testing.assert_allclose(value, expected)


def test_reference_curvature_is_nonnegative_and_close_where_the_prior_is_steep():
    """It leaves out a log t, so it is exact in the limit of rough functions, t → ∞."""
    prior, shape = Reference(), geometry(np.ones(2), np.ones(2), 25)
    for log_lengthscale in (-8.0, -3.0, 0.0, 3.0):
        at = jnp.array([log_lengthscale, 1.0]), jnp.log(jnp.array(1e-4))
        curve, curve_nugget = prior.curvature(*at, shape)
        assert np.all(curve >= 0)
        assert curve_nugget >= 0

    def along_first(value):
        return prior.log_density(jnp.stack([value, jnp.ones(())]), at[1], shape)

    numeric = -second_difference(along_first, jnp.array(-8.0))
    curve, _ = prior.curvature(jnp.array([-8.0, 1.0]), at[1], shape)
    np.testing.assert_allclose(curve[0], numeric, rtol=1e-3)


@pytest.mark.parametrize("joint", [Independent(Gamma()), Reference()])
def test_a_power_of_the_nugget_is_a_factor_of_a_joint_prior(joint):
    """p(γ, η) becomes p(γ, η) η^(-1/2), and nothing changes in the lengthscales."""
    given = jnp.log(jnp.array([0.3, 2.0])), geometry([1.0, 1.0], [1.0, 1.0], 20.0)
    favours = replace(joint, nugget=Power(0.5))
    for nugget in (1e-8, 1e-3, 0.2):
        log_nugget = jnp.log(nugget)
        at = given[0], log_nugget, given[1]
        expected = joint.log_density(*at) - 0.5 * np.log(nugget)
        np.testing.assert_allclose(favours.log_density(*at), expected, rtol=1e-12)
        for found, same in zip(favours.curvature(*at), joint.curvature(*at), strict=True):
            np.testing.assert_allclose(found, same)
