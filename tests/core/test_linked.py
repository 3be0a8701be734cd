"""The linked Gaussian process against Monte Carlo, quadrature and the plain one."""

import functools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from core.builders import node_of
from oracles import Process
from programs import quick_jit as jit

from deepemu.core.distributions import Gaussian
from deepemu.core.kernels import families
from deepemu.core.nodes import dense, linked, linked_series
from deepemu.core.nodes.linked import Inputs
from deepemu.core.nodes.node import Sites

N_ROWS = 9


@functools.partial(jit, static_argnums=0)
def predict_by(scheme, node, inputs, target, at):
    """Moments at test points whose first columns are uncertain."""
    link = dense.link(node, inputs, target, Sites(jnp.ones(len(inputs)), jnp.zeros(())))
    prepared = linked.prepare(scheme, node, link, inputs, at.uncertain.mean.shape[1])
    return linked.predict(scheme, node, link.alpha, prepared, inputs, at)


def predict_linked(node, inputs, target, at):
    """By the general scheme; where another one is accurate, it agrees."""
    schemes = linked.schemes(node.kernel, at.uncertain.mean.shape[1])
    *others, general = (predict_by(scheme, node, inputs, target, at) for scheme in schemes)
    assert np.all(general.accurate)
    for other in others:
        accurate = np.asarray(other.accurate)
        np.testing.assert_allclose(
            other.moments.mean[accurate], general.moments.mean[accurate], rtol=1e-9
        )
        np.testing.assert_allclose(
            other.moments.var[accurate], general.moments.var[accurate], rtol=1e-4
        )
    return general.moments


def one_row(mean, var, known) -> Inputs:
    return Inputs(Gaussian(mean[None], var[None]), known[None])


@pytest.fixture(params=oracles.KERNELS)
def process(request):
    """Three columns, of which the second is not read."""
    return Process(request.param, np.array([0.5, np.inf, 0.9]), 1.7, 0.03)


@pytest.fixture
def x(rng):
    return rng.uniform(size=(N_ROWS, 3))


@pytest.fixture
def y(rng):
    return rng.normal(size=N_ROWS)


# Kernels, and how many of three columns are uncertain. Both Matern kernels are the same code, of
# which three columns take long to compile.
COMBINATIONS = pytest.mark.parametrize(
    ("process", "n_uncertain"),
    [*((kernel, 2) for kernel in oracles.KERNELS), ("squared_exponential", 3), ("matern32", 3)],
    indirect=["process"],
)


@COMBINATIONS
def test_moments_against_monte_carlo(rng, process, x, y, n_uncertain):
    mean, var = rng.uniform(size=3)[:n_uncertain], np.array([0.02, 0.3, 0.1])[:n_uncertain]
    known = rng.uniform(size=3 - n_uncertain)
    stated = predict_linked(node_of(process), x, y, one_row(mean, var, known))
    n_draws = 200_000
    drawn = mean + np.sqrt(var) * rng.normal(size=(n_draws, n_uncertain))
    points = np.hstack([drawn, np.broadcast_to(known, (n_draws, 3 - n_uncertain))])
    weights = np.full(n_draws, 1 / n_draws)
    total_mean, total_var, errors = oracles.through_inputs(process, x, y, points, weights)
    assert abs(stated.mean[0] - total_mean) < 5 * errors[0]
    assert abs(stated.var[0] - total_var) < 5 * errors[1]


@COMBINATIONS
def test_inputs_of_variance_zero_are_known(rng, process, x, y, n_uncertain):
    """The sums over pairs lose a few digits that the form for known inputs keeps."""
    at = rng.uniform(size=3)
    expected = process.predict(x, y, at[None])
    certain = one_row(at[:n_uncertain], np.zeros(n_uncertain), at[n_uncertain:])
    moments = predict_linked(node_of(process), x, y, certain)
    np.testing.assert_allclose(moments.mean, expected[0], rtol=1e-10)
    np.testing.assert_allclose(moments.var, expected[1][0], rtol=1e-9)


def test_variance_is_never_below_the_nugget(process, x):
    """At a training point with a nugget of 1e-8, where the sums are round-off."""
    small = replace(process, lengthscale=3 * process.lengthscale, nugget=1e-8)
    inputs = one_row(x[0, :2], np.zeros(2), x[0, 2:])
    floor = small.scale * small.nugget
    for scheme in linked.schemes(node_of(small).kernel, 2):
        assert predict_by(scheme, node_of(small), x, np.sin(x[:, 0]), inputs).moments.var >= floor


# --- the series for small variances -----------------------------------------------------------


def in_one_column(process, n_rows):
    """A response over one hidden column and one known one."""
    x = np.random.default_rng(4).uniform(size=(n_rows, 2))
    return replace(process, lengthscale=np.array([0.3, 0.8])), x, np.sin(6 * x[:, 0]) + x[:, 1]


def rows_of(variances, mean, known) -> Inputs:
    var = np.asarray(variances)[:, None]
    return Inputs(Gaussian(np.full_like(var, mean), var), np.full_like(var, known))


def test_series_against_quadrature_up_to_its_limit(process):
    """Where it says that it suits, it errs by less than a thousandth of the nugget's variance."""
    process, x, y = in_one_column(replace(process, nugget=1e-5), 20)
    at, var = np.array([0.37, 0.6]), 0.09 * 10.0 ** np.arange(-9, 0, 0.5)
    found = predict_by(linked.BySeries(), node_of(process), x, y, rows_of(var, *at))
    accurate = np.asarray(found.accurate)
    assert accurate[0], "a standard deviation of 3e-5 lengthscales is small"
    assert not accurate[-1], "one of a third of a lengthscale is not"
    assert np.all(np.diff(accurate.astype(int)) <= 0)
    allowed = 1e-3 * process.nugget * process.scale
    for k in np.flatnonzero(accurate):
        points, weights = oracles.gauss_hermite(at[:1], var[k : k + 1], at[1:], 120)
        mean, total, _ = oracles.through_inputs(process, x, y, points, weights)
        np.testing.assert_allclose(found.moments.mean[k], mean, rtol=1e-8)
        assert abs(found.moments.var[k] - total) < allowed + 1e-9 * total


degrees_needed = jit(linked_series.degrees_needed, static_argnums=0)


@pytest.mark.parametrize("n_uncertain", [2, 3])
def test_series_in_several_columns_against_quadrature(process, n_uncertain):
    """At points near the design and a small distance away, where degree one and two are needed."""
    x = np.random.default_rng(5).uniform(size=(25, 3))
    process = Process(process.kernel, np.array([0.5, 0.7, 0.9]), 1.7, 1e-4)
    y = np.sin(5 * x[:, 0]) * x[:, 1] + x[:, 2] ** 2
    limit = {"squared_exponential": 1e-4, "matern52": 4e-5, "matern32": 3e-7}[process.kernel]
    at, degrees = np.array([0.52, 0.41, 0.63]), set()
    for size in (1e-2, 0.3, 1.0):
        var = size * limit * np.array([1.0, 0.6, 0.3])[:n_uncertain]
        rows = one_row(at[:n_uncertain], var, at[n_uncertain:])
        found = predict_by(linked.BySeries(), node_of(process), x, y, rows)
        points, weights = oracles.gauss_hermite(at[:n_uncertain], var, at[n_uncertain:], 9)
        mean, total, _ = oracles.through_inputs(process, x, y, points, weights)
        assert bool(found.accurate[0])
        np.testing.assert_allclose(found.moments.mean[0], mean, rtol=1e-8)
        assert abs(found.moments.var[0] - total) < 2e-3 * process.nugget * process.scale
        scaled = (var / process.lengthscale[:n_uncertain] ** 2)[:, None, None]
        evidence = y @ np.linalg.solve(process.covariance(x), y)
        needed = degrees_needed(node_of(process).kernel, scaled, 1e-4, evidence)
        degrees.add(int(needed.of_weights[0]))
    assert degrees == {1, 2} or (process.kernel == "matern32" and degrees == {1})


@pytest.mark.parametrize("response", ["bump", "cubic"])
def test_series_where_all_of_the_response_is_in_one_place(process, response):
    """The mean's share of what is left out grows with the number of rows: yᵀR⁻¹y = nσ²."""
    n_rows, x0 = 400, 40.1
    x, z = np.linspace(0, 80, n_rows)[:, None], np.linspace(0, 80, n_rows) - x0
    y = np.exp(-(z**2)) if response == "bump" else z**3 * np.exp(-1.2 * z**2)
    process = Process(process.kernel, np.ones(1), 1.0, 1e-6).best_scale(x, y)
    var = 10.0 ** np.arange(-8, -2, 0.25)
    rows = Inputs(Gaussian(np.full((len(var), 1), x0), var[:, None]), np.zeros((len(var), 0)))
    found = predict_by(linked.BySeries(), node_of(process), x, y, rows)
    assert np.sum(np.asarray(found.accurate)) >= (1 if process.kernel == "matern32" else 6)
    for k in np.flatnonzero(found.accurate):
        points, weights = oracles.gauss_hermite(np.array([x0]), var[k : k + 1], np.zeros(0), 60)
        _, total, _ = oracles.through_inputs(process, x, y, points, weights)
        error = abs(found.moments.var[k] - total) / (process.nugget * process.scale)
        # Weights of up to 1e6 leave a round-off of 2e-3 nuggets in sums, whatever the variance.
        assert error < 1e-2, (var[k], error)


def test_wide_layers_have_no_series():
    kernel = families.Matern52()
    assert linked.schemes(kernel, 11) == linked.schemes(kernel, 10)[1:]


def test_a_row_has_the_same_moments_whatever_stands_beside_it(process):
    """A neighbour that needs a higher degree does not add to it."""
    process, x, y = in_one_column(replace(process, nugget=1e-3), 20)
    small, larger, large = 0.09 * 1e-6, 0.09 * 1e-3, 0.09
    scheme, node = linked.BySeries(), node_of(process)
    each = [small, larger, large] * 6
    alone = predict_by(scheme, node, x, y, rows_of([small] * len(each), 0.4, 0.6))
    beside = predict_by(scheme, node, x, y, rows_of(each, 0.4, 0.6))
    assert alone.moments.var[0] == beside.moments.var[0]
    assert bool(beside.accurate[0])
    assert not bool(beside.accurate[2])
