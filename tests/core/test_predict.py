"""Prediction through the layers against the GP formula, Monte Carlo and quadrature."""

import functools

import jax
import numpy as np
import oracles
import pytest
from core.builders import data_of, network_of, params_of
from oracles import Process
from programs import quick_jit as jit

from deepemu.core import ensemble, joint, predict
from deepemu.core.distributions import Gaussian, mixture
from deepemu.core.ensemble import Imputed
from deepemu.core.nodes.linked import TOLERANCE

N_ROWS = 8
build_member = jit(ensemble.build_member, static_argnums=0)
conditional_mean = jit(ensemble.conditional_mean, static_argnums=0)
leave_one_out = jit(ensemble.leave_one_out)


@functools.partial(jit, static_argnums=(0, 1))
def propagate_by(method, net, params, member, data, x):
    conditioned = ensemble.conditioned(net, params, data)
    entered = predict.enter(net, params, conditioned, member.alpha[None], data, predict.Points(x))
    prepared = predict.prepare(net, method, params, member, data)
    first = Gaussian(entered.means[0], entered.var)
    return predict.propagate(net, method, params, member, prepared, data, predict.Points(x), first)


def propagate(net, *fitted_and_at):
    """By the last level; others where they are accurate, and row by row as on a GPU, agree."""
    inside, outside = predict.RowsInside(), predict.RowsOutside(2)
    *levels, general = range(predict.n_levels(net))
    found = propagate_by(predict.Method(general, inside), net, *fitted_and_at)
    assert np.all(found.accurate)
    for level, rows in ((general, outside), *((level, inside) for level in levels)):
        other = propagate_by(predict.Method(level, rows), net, *fitted_and_at)
        (mean, var), (other_mean, other_var) = (
            (each.moments.mean[other.accurate], each.moments.var[other.accurate])
            for each in (found, other)
        )
        np.testing.assert_allclose(other_mean, mean, rtol=1e-4 if net.depth > 2 else 1e-7)
        np.testing.assert_allclose(other_var, var, rtol=TOLERANCE)
    return found.moments


@functools.partial(jit, static_argnums=(1, 6))
def draws(key, net, params, member, data, x, n_draws):
    conditioned = ensemble.all_conditioned(net, params, member.latents, data)
    one = lambda k: joint.draw(k, net, params, conditioned, member, data, x)  # noqa: E731
    return jax.vmap(one)(jax.random.key_data(jax.random.split(key, n_draws)))


def fit(layers, x, y, latents, sources=None):
    """Network, parameters, member and data of processes given layer by layer."""
    net, params = network_of(layers, x.shape[1], sources), params_of(layers)
    data = data_of(x, y)
    member = build_member(net, params, tuple(latents), data)
    return net, params, member, data


def layer(kernel, *lengthscales, scale=1.2, nugget=0.01):
    """Nodes of slightly different scales; an infinite lengthscale is a column not read."""
    return [
        Process(kernel, np.array(row), scale + 0.3 * p, nugget)
        for p, row in enumerate(lengthscales)
    ]


INF = np.inf
HIDDEN = layer("squared_exponential", [0.6, 0.9], [INF, 0.5])
CONNECTED = layer("matern52", [0.8, 1.5, 1.0, INF], [1.0, INF, INF, 0.7])
# Tests of several layers share two networks, whose programs take most of the time: one of two
# layers, the last one of Matern kernels and connected, and one of three layers that are not Matern.


@pytest.fixture
def x(rng):
    return rng.uniform(size=(N_ROWS, 2))


@pytest.fixture
def y(rng):
    return rng.normal(size=(N_ROWS, 2))


@pytest.fixture
def latents(rng):
    """Two hidden layers of two nodes."""
    return rng.normal(size=(2, N_ROWS, 2))


@pytest.fixture
def at(rng):
    """As many test rows in all tests: a number of rows is a program."""
    return rng.uniform(size=(7, 2))


def test_one_layer_is_a_gaussian_process(x, y, at):
    nodes = layer("matern32", [0.5, 0.8], [INF, 0.4])
    moments = propagate(*fit([nodes], x, y, []), at)
    for p, process in enumerate(nodes):
        mean, covariance = process.predict(x, y[:, p], at)
        np.testing.assert_allclose(moments.mean[:, p], mean, rtol=1e-10)
        np.testing.assert_allclose(moments.var[:, p], np.diag(covariance), rtol=1e-10)


def test_two_layers_against_monte_carlo_through_the_hidden_layer(rng, x, y, latents, at):
    """Exact but for sampling error: given x the hidden outputs are independent normals."""
    w, n_draws = latents[0], 200_000
    moments = propagate(*fit([HIDDEN, CONNECTED], x, y, [w]), at)
    for row, point in enumerate(at[:3]):
        drawn = []
        for p, process in enumerate(HIDDEN):
            mean, covariance = process.predict(x, w[:, p], point[None])
            drawn.append(mean[0] + np.sqrt(covariance[0, 0]) * rng.normal(size=n_draws))
        drawn += [np.full(n_draws, c) for c in point]
        points, weights = np.stack(drawn, axis=1), np.full(n_draws, 1 / n_draws)
        for p, process in enumerate(CONNECTED):
            mean, var, errors = oracles.through_inputs(
                process, np.hstack([w, x]), y[:, p], points, weights
            )
            assert abs(moments.mean[row, p] - mean) < 5 * errors[0]
            assert abs(moments.var[row, p] - var) < 5 * errors[1]


def test_three_layers_match_moments_layer_by_layer(x, y, latents, at):
    """By quadrature over the normals that stand for each hidden layer."""
    first, second = HIDDEN, layer("squared_exponential", [1.2, 0.9], [INF, 1.0])
    last = layer("squared_exponential", [0.9, 1.4, 1.0, INF], [1.0, INF, INF, 1.1])
    moments = propagate(*fit([first, second, last], x, y, latents), at)
    nothing = np.zeros(0)
    for row, point in enumerate(at[:3]):
        mean, var = np.array(
            [
                [m[0], c[0, 0]]
                for m, c in (
                    p.predict(x, latents[0][:, i], point[None]) for i, p in enumerate(first)
                )
            ]
        ).T
        for nodes, inputs, targets, known in (
            (second, latents[0], latents[1], nothing),
            (last, np.hstack([latents[1], x]), y, point),
        ):
            points, weights = oracles.gauss_hermite(mean, var, known, 120)
            mean, var = np.array(
                [
                    oracles.through_inputs(process, inputs, targets[:, i], points, weights)[:2]
                    for i, process in enumerate(nodes)
                ]
            ).T
        np.testing.assert_allclose(moments.mean[row], mean, rtol=1e-6)
        np.testing.assert_allclose(moments.var[row], var, rtol=1e-6)


SMOOTH = layer("squared_exponential", [2.0, 3.0], [INF, 2.5], nugget=1e-6)
NEARLY_KNOWN = {
    "two layers": [
        SMOOTH,
        layer("matern52", [3.0, 4.0, 2.0, INF], [3.0, INF, INF, 2.0], nugget=1e-3),
    ],
    "three layers": [
        SMOOTH,
        layer("squared_exponential", [3.0, 4.0], [INF, 3.0], nugget=1e-5),
        layer("squared_exponential", [3.0, 4.0, 2.0, INF], [3.0, INF, INF, 2.0], nugget=1e-3),
    ],
}


@pytest.mark.parametrize("name", NEARLY_KNOWN)
def test_levels_agree_where_hidden_layers_are_nearly_known(x, name):
    """Smooth layers with small nuggets, at the design and right beside it."""
    lower = np.stack([x[:, 0] + 0.3 * x[:, 1], np.sin(x[:, 1])], axis=1)
    upper = np.stack([lower[:, 0] ** 2, lower[:, 1] - lower[:, 0]], axis=1)
    y = np.stack([np.cos(upper[:, 0]), upper[:, 1] + x[:, 1]], axis=1)
    layers = NEARLY_KNOWN[name]
    fitted = fit(layers, x, y, [lower, upper][: len(layers) - 1])
    at = np.vstack([x[:3], x[:3] + 1e-4, [[3.0, -2.0]]])
    cheapest = propagate_by(predict.Method(0, predict.RowsInside()), *fitted, at)
    assert np.all(cheapest.accurate[:3])
    assert not cheapest.accurate[-1]
    propagate(*fitted, at)


N_DRAWS = 30_000


def test_draws_have_the_stated_moments(x, y, latents, at):
    fitted = fit([HIDDEN, CONNECTED], x, y, latents[:1])
    drawn = np.asarray(draws(jax.random.key(0), *fitted, at, N_DRAWS))
    moments = propagate(*fitted, at)
    assert np.abs(oracles.in_standard_errors(drawn, moments.mean)).max() < 5
    squares = (drawn - np.asarray(moments.mean)) ** 2
    assert np.abs(oracles.in_standard_errors(squares, moments.var)).max() < 5


def test_draws_are_joint_over_rows(x, y, latents):
    """At a small nugget, equal rows agree, near rows almost, and distant ones do not."""
    hidden = layer("squared_exponential", [0.3, 0.3], [INF, 0.3], nugget=1e-6)
    last = layer("matern52", [0.8, 1.5, 1.0, INF], [1.0, INF, INF, 0.7], nugget=1e-6)
    fitted = fit([hidden, last], x, y, latents[:1])
    at = np.array([[1.3, 1.3], [1.3, 1.3], [1.302, 1.3], *[[-0.6, 2.0]] * 4])
    drawn = np.asarray(draws(jax.random.key(1), *fitted, at, N_DRAWS))[..., 0]
    correlation = np.corrcoef(drawn.T)
    assert np.all(drawn[:, 0] != drawn[:, 1])  # the nugget
    np.testing.assert_allclose(drawn[:, 0], drawn[:, 1], atol=0.03 * drawn[:, 0].std())
    assert correlation[0, 2] > 0.999
    assert abs(correlation[0, 3]) < 0.5


def test_conditional_mean_is_that_of_each_hidden_layer(x, y, latents, at):
    second = layer("matern32", [1.2, 0.9, INF, 0.4], [INF, 1.0, 1.0, 1.0])
    last = layer("squared_exponential", [0.8, 1.5], [INF, 1.0])
    fitted = fit([HIDDEN, second, last], x, y, latents)
    means = conditional_mean(*fitted, at)
    below = np.stack([p.predict(x, latents[0][:, i], at)[0] for i, p in enumerate(HIDDEN)], axis=1)
    np.testing.assert_allclose(means[0], below, rtol=1e-9)
    inputs, reached = np.hstack([latents[0], x]), np.hstack([below, at])
    above = [p.predict(inputs, latents[1][:, i], reached)[0] for i, p in enumerate(second)]
    np.testing.assert_allclose(means[1], np.stack(above, axis=1), rtol=1e-9)


def test_leave_one_out_is_a_mixture_of_refits(x, y):
    """Two chains of one layer, with weights of 1/4 and 3/4."""
    members = [layer("matern32", [0.5, 0.8], [INF, 0.4]), layer("matern32", [1.0, 0.3], [INF, 0.9])]
    fitted = [fit([nodes], x, y, []) for nodes in members]
    stack = lambda *each: np.stack(each)[:, None]  # noqa: E731
    params, of_member = (jax.tree.map(stack, *(each[part] for each in fitted)) for part in (1, 2))
    weights = np.array([0.25, 0.75])
    net, *_, data = fitted[0]
    each = leave_one_out(Imputed(net, data, params, None, of_member))
    assert each.mean.shape == (2, 1, N_ROWS, 2)
    loo = jit(mixture)(jax.tree.map(lambda of: np.asarray(of)[:, 0], each), weights)
    for i, p in np.ndindex(N_ROWS, 2):
        kept = np.arange(N_ROWS) != i
        each = [nodes[p].predict(x[kept], y[kept, p], x[[i]]) for nodes in members]
        means, variances = (np.array([m[0] for m, _ in each]), np.array([c[0, 0] for _, c in each]))
        mean = weights @ means
        np.testing.assert_allclose(loo.mean[i, p], mean, rtol=1e-8)
        expected = weights @ (variances + (means - mean) ** 2)
        np.testing.assert_allclose(loo.var[i, p], expected, rtol=1e-8)
