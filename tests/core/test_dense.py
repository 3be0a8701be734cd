"""The exact Gaussian-process node against SciPy, finite differences, Monte Carlo and refits."""

from dataclasses import replace

import jax
import numpy as np
import oracles
import pytest
from core.builders import node_of
from oracles import Process
from programs import quick_jit as jit

from deepemu.core.nodes import dense
from deepemu.core.nodes.node import Sites
from deepemu.runtime.trees import to_numpy

predict = jit(dense.predict)
leave_one_out = jit(dense.leave_one_out)
draw_posterior = jit(jax.vmap(dense.draw_posterior, in_axes=(None,) * 5 + (0,)))
draw_prior = jit(jax.vmap(dense.draw_prior, in_axes=(None, None, None, 0)))


@jit
def solved(node, inputs, target, sites):
    """What predictions need: L⁻¹ and α."""
    return dense.condition(node, inputs, sites), dense.alpha(node, inputs, target, sites)


@jit
def derivatives(*arguments):
    """With the scale held and with it free: in one program, which takes half as long to compile."""
    return dense.derivatives(*arguments, False), dense.derivatives(*arguments, True)


@jit
def many_derivatives(node, inputs, targets, sites):
    each = lambda target, site: dense.derivatives(node, inputs, target, site, False)  # noqa: E731
    return jax.vmap(each, (0, Sites(None, 0)))(targets, sites)


@jit
def log_density(node, inputs, target, sites):
    return dense.log_density(dense.factor(node, inputs, sites), node, target, sites)


@jit
def profiled_scale(node, inputs, target, sites):
    return dense.fit(node, inputs, target, sites, True).scale


def once(n: int) -> Sites:
    """One observation a row."""
    return Sites(np.ones(n), np.zeros(()))


def reduced(x, y):
    """Inputs, targets and `Sites` of data with repeated rows."""
    sites, means, counts, squares = oracles.reduce_replicates(x, y)
    return sites, means, Sites(counts, squares)


@pytest.fixture(params=oracles.KERNELS)
def process(request):
    """Three columns, of which the second is not read."""
    return Process(request.param, np.array([0.5, np.inf, 0.9]), 1.7, 0.03)


@pytest.fixture
def x(rng):
    return rng.uniform(size=(9, 3))


@pytest.fixture
def y(rng):
    return rng.normal(size=9)


@pytest.fixture(params=["single", "replicated"])
def rows(request, rng, x):
    """All observations of a design with and without repeated rows."""
    repeated = np.repeat(x, [1, 3, 1, 2, 1, 1, 4, 1, 1], axis=0) if "rep" in request.param else x
    return repeated, rng.normal(size=len(repeated))


# --- density and its derivatives -------------------------------------------------------------


def test_log_density(process, rows):
    """With replicates: site means, counts and squares hold all of the density of every row."""
    expected = process.log_density(*rows)
    np.testing.assert_allclose(log_density(node_of(process), *reduced(*rows)), expected, rtol=1e-11)


def test_profiled_scale_maximises_the_density(process, rows):
    best = profiled_scale(node_of(process), *reduced(*rows))
    np.testing.assert_allclose(best, process.best_scale(*rows).scale, rtol=1e-11)
    at = [replace(process, scale=float(best * f)).log_density(*rows) for f in (0.99, 1.0, 1.01)]
    assert at[1] > max(at[0], at[2])


def test_a_target_of_zeros_has_a_positive_scale(process, x):
    assert profiled_scale(node_of(process), x, np.zeros(9), once(9)) > 0


@pytest.mark.parametrize("free_scale", [False, True])
def test_gradient_is_the_slope_of_the_density(process, rows, free_scale):
    def value(parameters):
        moved = process.at(parameters)
        return (moved.best_scale(*rows) if free_scale else moved).log_density(*rows)

    of = to_numpy(derivatives(node_of(process), *reduced(*rows))[free_scale])
    slope = oracles.central_difference(value, process.parameters())
    np.testing.assert_allclose(of.fit.value, value(process.parameters()), rtol=1e-11)
    np.testing.assert_allclose(of.gradient[np.array([0, 2, 3])], slope, rtol=1e-6, atol=1e-7)
    assert of.gradient[1] == 0.0
    scale = process.best_scale(*rows).scale if free_scale else process.scale
    np.testing.assert_allclose(of.fit.scale, scale, rtol=1e-11)


@pytest.mark.parametrize("free_scale", [False, True])
def test_information_is_that_of_all_rows(process, rows, free_scale):
    """The average information of the unreduced model, with the scale profiled out or held."""
    at_scale = process.best_scale(*rows) if free_scale else process
    whole = at_scale.average_information(*rows)
    expected = oracles.profile_out_last(whole) if free_scale else whole[:-1, :-1]
    of = to_numpy(derivatives(node_of(process), *reduced(*rows))[free_scale])
    read = np.array([0, 2, 3])
    np.testing.assert_allclose(of.information[read][:, read], expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(of.information[1], 0.0)
    np.testing.assert_array_equal(of.information, of.information.T)
    assert np.linalg.eigvalsh(of.information).min() > -1e-12


def test_average_information_has_the_mean_of_the_fisher_information(rng, rows):
    """E[H] = ½ tr(V⁻¹V_pV⁻¹V_q), which is also the covariance of the gradient; its mean is 0."""
    process = Process("matern52", np.array([0.5, np.inf, 0.9]), 1.7, 0.03)
    root = np.linalg.cholesky(process.covariance(rows[0]))
    draws = root @ rng.normal(size=(len(root), 4000))
    sites, means, counts, squares = oracles.reduce_replicates(rows[0], draws)
    counted = Sites(counts, squares)
    of = many_derivatives(node_of(process), sites, means.T, counted)
    read = np.array([0, 2, 3])
    gradient = np.asarray(of.gradient)[:, read]
    information = np.asarray(of.information)[:, read][:, :, read]
    expected = process.fisher_information(rows[0])[:-1, :-1]
    assert np.abs(oracles.in_standard_errors(gradient, 0.0)).max() < 5
    products = np.einsum("kp,kq->kpq", gradient, gradient)
    assert np.abs(oracles.in_standard_errors(products, expected)).max() < 5
    assert np.abs(oracles.in_standard_errors(information, expected)).max() < 5


# --- draws and prediction --------------------------------------------------------------------


def test_prior_draws_are_a_root_of_the_covariance(process, x):
    """Draws are linear in the normals, so unit vectors give the root, and no sampling is needed."""
    counts = np.array([1.0, 2.0, 1.0, 1.0, 5.0, 1.0, 1.0, 1.0, 1.0])
    sites, node = Sites(counts, np.zeros(())), node_of(process)
    lower = jit(dense.factor)(node, x, sites)
    root = np.asarray(draw_prior(lower, node, sites, np.eye(9)))
    np.testing.assert_allclose(root.T @ root, process.covariance(x, counts), rtol=1e-12)


def test_posterior_draws_are_a_root_of_the_covariance(rng, process, x, y):
    at, node = rng.uniform(size=(4, 3)), node_of(process)
    given = solved(node, x, y, once(9))
    draws = np.asarray(draw_posterior(node, *given, x, at, np.vstack([np.zeros(4), np.eye(4)])))
    mean, covariance = process.predict(x, y, at)
    np.testing.assert_allclose(draws[0], mean, rtol=1e-10)
    root = draws[1:] - draws[0]
    np.testing.assert_allclose(root.T @ root, covariance, rtol=1e-9, atol=1e-11)


def test_posterior_draws_have_the_stated_moments(x, y):
    process = Process("matern52", np.array([0.5, np.inf, 0.9]), 1.7, 0.03)
    at, node = np.random.default_rng(1).uniform(size=(3, 3)), node_of(process)
    normals = np.random.default_rng(2).normal(size=(40_000, 3))
    given = solved(node, x, y, once(9))
    draws = np.asarray(draw_posterior(node, *given, x, at, normals))
    mean, covariance = process.predict(x, y, at)
    assert np.abs(oracles.in_standard_errors(draws, mean)).max() < 5
    products = np.einsum("ki,kj->kij", draws - mean, draws - mean)
    assert np.abs(oracles.in_standard_errors(products, covariance)).max() < 5


@pytest.mark.parametrize("kernel", oracles.KERNELS)
def test_posterior_draws_are_finite_where_the_posterior_is_degenerate(kernel):
    """A smooth process at the smallest nugget, drawn at its 60 training points and between them."""
    x = np.linspace(0, 1, 60)[:, None]
    node = node_of(Process(kernel, np.array([1.0]), 1.0, 1e-8))
    truth = (lambda t: 1 - 2 * t) if kernel == "linear" else (lambda t: np.sin(3 * t))
    given = solved(node, x, truth(x[:, 0]), once(60))
    at = np.concatenate([x, x + 1e-9, x + 0.003])
    draws = draw_posterior(node, *given, x, at, np.random.default_rng(2).normal(size=(4, 180)))
    assert np.all(np.isfinite(draws))
    np.testing.assert_allclose(draws, truth(np.tile(at.T, (4, 1))), atol=2e-3)


def test_prediction_at_known_inputs(rng, process, rows):
    at = rng.uniform(size=(5, 3))
    sites, means, counted = reduced(*rows)
    node = node_of(process)
    given = solved(node, sites, means, counted)
    mean, covariance = process.predict(*rows, at)
    moments = predict(node, *given, sites, at)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(moments.var, np.diag(covariance), rtol=1e-10)


def test_variance_is_never_below_the_nugget(process, x):
    """At a training point with a nugget of 1e-8, where the sums are round-off."""
    small = replace(process, lengthscale=3 * process.lengthscale, nugget=1e-8)
    node, y = node_of(small), np.sin(x[:, 0])
    floor = small.scale * small.nugget
    assert predict(node, *solved(node, x, y, once(9)), x, x[:1]).var[0] >= floor


def test_several_targets_share_the_variance(rng, process, x):
    at, targets = rng.uniform(size=(5, 3)), rng.normal(size=(4, 9))
    each = [solved(node_of(process), x, target, once(9)) for target in targets]
    together = np.stack([alpha for _, alpha in each])
    moments = predict(node_of(process), each[0][0], together, x, at)
    for given, mean in zip(each, moments.mean, strict=True):
        alone = predict(node_of(process), *given, x, at)
        np.testing.assert_allclose(mean, alone.mean, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(moments.var, alone.var)


# --- leave-one-out ---------------------------------------------------------------------------


def test_leave_one_out_against_refits(process, rows):
    """Every observation of a site is left out, and one new observation there is predicted."""
    sites, means, counted = reduced(*rows)
    node = node_of(process)
    loo = leave_one_out(node, sites, means, counted)
    for i, site in enumerate(sites):
        kept = (rows[0] != site).any(axis=1)
        mean, covariance = process.predict(rows[0][kept], rows[1][kept], site[None])
        np.testing.assert_allclose(loo.mean[i], mean[0], rtol=1e-9)
        np.testing.assert_allclose(loo.var[i], covariance[0, 0], rtol=1e-9)
