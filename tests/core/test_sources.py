"""Layers that read any layers before them, or the inputs alone, against processes one by one."""

import functools

import jax
import numpy as np
import oracles
import pytest
from core.builders import data_of, network_of, params_of, steps
from oracles import Process
from programs import quick_jit as jit

from deepemu.core import ensemble, joint, predict
from deepemu.core.distributions import Gaussian
from deepemu.core.inference import impute
from deepemu.core.model import network

N_ROWS, INF = 7, np.inf
FIRST = [
    Process("matern52", np.array([0.6, 0.9]), 1.2, 0.02),
    Process("matern52", np.array([INF, 0.5]), 0.8, 0.05),
]
MODELS = {  # processes, and the layers that each layer reads, counted back
    "all before": (
        [
            FIRST,
            [Process("squared_exponential", np.array([1.1, 0.9]), 1.5, 0.03)],
            [  # the second layer, the first and the inputs
                Process("squared_exponential", np.array([1.2, 0.9, 1.4, 1.0, INF]), 1.3, 0.02),
                Process("squared_exponential", np.array([INF, INF, 1.0, INF, 0.8]), 0.7, 0.1),
            ],
        ],
        [(), (-1,), (-1, -2)],
    ),
    "inputs alone": (
        [
            FIRST,
            [Process("matern32", np.array([0.7, 1.3]), 1.5, 0.03)],
            [Process("squared_exponential", np.array([1.2, 0.9, 1.4]), 1.3, 0.02)],
        ],
        [(), (), (-2, -1)],
    ),
}


@pytest.fixture(params=MODELS)
def case(request):
    return MODELS[request.param]


@pytest.fixture
def x(rng):
    return rng.uniform(size=(N_ROWS, 2))


@pytest.fixture
def latents(rng):
    return [rng.normal(size=(N_ROWS, 2)), rng.normal(size=(N_ROWS, 1))]


@pytest.fixture
def y(rng, case):
    return rng.normal(size=(N_ROWS, len(case[0][-1])))


def columns(case, x, outputs):
    """What each layer reads, written out."""
    _, sources = case
    if sources[1] == ():
        return [x, x, np.hstack(outputs[:2])]
    return [x, outputs[0], np.hstack([outputs[1], outputs[0], x])]


def given(case, x, y, latents):
    """Network, parameters, latents and data."""
    model, sources = case
    net = network_of(model, 2, sources)
    return net, params_of(model), tuple(latents), data_of(x, y)


def log_density(nodes, inputs, targets):
    return sum(p.log_density(inputs, targets[:, i]) for i, p in enumerate(nodes))


def test_who_reads_whom():
    skipping, apart = (network_of(model, 2, sources) for model, sources in MODELS.values())
    assert [skipping.sources(layer) for layer in range(3)] == [(), (0,), (1, 0)]
    assert [skipping.readers(layer) for layer in range(3)] == [(1, 2), (2,), ()]
    assert [skipping.n_hidden(layer) for layer in range(3)] == [0, 2, 3]
    assert [apart.sources(layer) for layer in range(3)] == [(), (), (0, 1)]
    assert [apart.readers(layer) for layer in range(3)] == [(2,), (2,), ()]
    assert [apart.n_hidden(layer) for layer in range(3)] == [0, 0, 3]


@functools.partial(jit, static_argnums=0)
def densities(net, params, latents, data):
    layers = range(net.depth)
    return [network.layer_log_density(net, layer, params, latents, data) for layer in layers]


def test_inputs_and_densities(case, x, y, latents):
    net, params, hidden, data = given(case, x, y, latents)
    found, inputs = densities(net, params, hidden, data), columns(case, x, latents)
    for layer, targets in enumerate([*latents, y]):
        at = network.layer_inputs(net, layer, data.x, hidden)
        np.testing.assert_array_equal(at, inputs[layer])
        expected = log_density(case[0][layer], inputs[layer], targets)
        np.testing.assert_allclose(found[layer], expected, rtol=1e-10)


# --- the likelihood of a sweep ------------------------------------------------------------------


@functools.partial(jit, static_argnums=(0, 1, 5))
def sweep_likelihood(net, layer, params, latents, data, block, first, moved):
    """As a sweep has it: at the columns of a layer that move, the others staying."""
    every = range(1, net.depth)
    fixed = impute.Fixed(
        net, steps(1), params, data, None,
        tuple(impute._from_inputs(net, above, params, data) for above in every),
    )  # fmt: skip
    likelihood = impute._likelihood_of_block(fixed, layer, latents, latents[layer], first, block)
    return likelihood(moved)


@pytest.mark.parametrize("layer", [0, 1])
def test_moving_columns_are_seen_by_all_that_read_them(rng, case, x, y, latents, layer):
    """Node by node and all at once: the sum of the readers' densities with the columns moved."""
    net, *at = given(case, x, y, latents)
    width = latents[layer].shape[1]
    blocks = {(1, first) for first in range(width)} | {(width, 0)}
    for block, first in sorted(blocks):
        outputs = [w.copy() for w in latents]
        outputs[layer][:, first : first + block] = rng.normal(size=(N_ROWS, block))
        inputs, targets = columns(case, x, outputs), [*outputs, y]
        readers = [2] if layer == 1 or case[1][1] == () else [1, 2]
        expected = sum(log_density(case[0][r], inputs[r], targets[r]) for r in readers)
        moved = outputs[layer][:, first : first + block]
        found = sweep_likelihood(net, layer, *at, block, first, moved)
        np.testing.assert_allclose(found, expected, rtol=1e-10)


# --- prediction -----------------------------------------------------------------------------------


@functools.partial(jit, static_argnums=0)
def predicted(net, params, latents, data, x):
    """Moments by each level, and hidden layers at their conditional means."""
    member = ensemble.build_member(net, params, latents, data)
    conditioned = ensemble.conditioned(net, params, data)
    at = predict.Points(x)
    entered = predict.enter(net, params, conditioned, member.alpha[None], data, at)
    first = Gaussian(entered.means[0], entered.var)
    found = []
    for level in range(predict.n_levels(net)):
        method = predict.Method(level, predict.RowsInside())
        ready = predict.prepare(net, method, params, member, data)
        found.append(predict.propagate(net, method, params, member, ready, data, at, first))
    return found, ensemble.conditional_mean(net, params, member, data, x)


def by_quadrature(case, x, y, latents, point, order=30):
    """Mean and variance of the last layer, those below being independent normals."""
    inputs, outputs = columns(case, x, latents), []
    for layer, (nodes, targets) in enumerate(zip(case[0], [*latents, y], strict=True)):
        hidden = [outputs[layer + back] for back in case[1][layer]]
        mean, var = np.hstack(hidden) if hidden else np.zeros((2, 0))
        known = point[: inputs[layer].shape[1] - len(mean)]
        points, weights = oracles.gauss_hermite(mean, var, known, order)
        each = [
            oracles.through_inputs(node, inputs[layer], targets[:, p], points, weights)[:2]
            for p, node in enumerate(nodes)
        ]
        outputs.append(np.array(each).T)
    return outputs[-1]


def test_moments_against_quadrature(rng, case, x, y, latents):
    """Where nothing is correlated, as for two layers that read the inputs alone, they are exact."""
    at = rng.uniform(size=(3, 2))
    net, *fitted = given(case, x, y, latents)
    levels, means = predicted(net, *fitted, at)
    assert np.all(levels[-1].accurate)
    for row, point in enumerate(at):
        mean, var = by_quadrature(case, x, y, latents, point)
        for found in levels:
            if found.accurate[row]:
                np.testing.assert_allclose(found.moments.mean[row], mean, rtol=1e-6)
                np.testing.assert_allclose(found.moments.var[row], var, rtol=1e-5)
    inputs, reached = columns(case, x, latents), []
    for layer in range(2):
        there = columns(case, at, [*reached, np.zeros((3, 1))][: layer + 1] + [np.zeros((3, 1))])
        each = [
            p.predict(inputs[layer], latents[layer][:, i], there[layer])[0]
            for i, p in enumerate(case[0][layer])
        ]
        reached.append(np.stack(each, axis=1))
        np.testing.assert_allclose(means[layer], reached[layer], rtol=1e-9)


@functools.partial(jit, static_argnums=1)
def draws(words, net, params, latents, data, at):
    member = ensemble.build_member(net, params, latents, data)
    conditioned = ensemble.all_conditioned(net, params, latents, data)
    one = lambda key: joint.draw(key, net, params, conditioned, member, data, at)  # noqa: E731
    return jax.vmap(one)(words)


def test_draws_have_the_moments_of_independent_layers(rng, x, latents):
    """Of a network whose hidden layers read the inputs alone, for which moments are exact."""
    case, y, at = MODELS["inputs alone"], rng.normal(size=(N_ROWS, 1)), rng.uniform(size=(2, 2))
    net, params, hidden, data = given(case, x, y, latents)

    keys = jax.random.key_data(jax.random.split(jax.random.key(0), 20_000))
    drawn = np.asarray(draws(keys, net, params, hidden, data, at))[..., 0]
    mean, var = np.array([by_quadrature(case, x, y, latents, point) for point in at])[..., 0].T
    assert np.abs(oracles.in_standard_errors(drawn, mean)).max() < 5
    assert np.abs(oracles.in_standard_errors((drawn - mean) ** 2, var)).max() < 5
