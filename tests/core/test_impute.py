"""Sweeps over the hidden layers: the distribution they leave invariant, and their bookkeeping."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from core.builders import Model, data_of, network_of, params_of, steps
from oracles import Process
from programs import jit, quick_jit

from deepemu.core.inference import impute
from deepemu.core.inference.impute import Imputation, start
from deepemu.core.inference.steps import LayerWise, NodeWise

N_ROWS, N_CHAINS, N_TRANSITIONS, N_SWEEPS = 5, 4000, 2, 4
X = np.linspace(0, 1, N_ROWS)[:, None] ** np.array([1.0, 2.0])
COUNTS = np.array([1.0, 3.0, 1.0, 1.0, 2.0])

TWO_LAYERS: Model = [
    [
        Process("squared_exponential", np.array([0.6, 1.0]), 1.5, 0.02),
        Process("squared_exponential", np.array([np.inf, 0.8]), 0.7, 0.3),
    ],
    [  # two outputs; the second reads one latent and one input
        Process("matern52", np.array([1.2, 1.0, 0.8, 2.0]), 1.3, 0.03),
        Process("matern52", np.array([np.inf, 0.7, np.inf, 1.0]), 0.6, 0.2),
    ],
]
THREE_LAYERS: Model = [
    [
        Process("matern32", np.array([0.6, 1.0]), 1.5, 0.02),
        Process("matern32", np.array([0.9, np.inf]), 0.7, 0.05),
    ],
    [  # no input connection
        Process("squared_exponential", np.array([1.5, 1.0]), 1.2, 0.05),
        Process("squared_exponential", np.array([np.inf, 0.9]), 0.8, 0.1),
    ],
    [Process("matern52", np.array([1.2, 0.8, 1.0, np.inf]), 1.3, 0.05)],
]


ONE_KERNEL: Model = [  # nodes of the hidden layers differ by their scales alone
    [Process("matern52", np.array([0.6, 0.6]), scale, 0.02) for scale in (1.5, 0.7)],
    [Process("squared_exponential", np.full(4, 1.1), scale, 0.05) for scale in (1.2, 0.8)],
    [Process("matern52", np.array([1.2, 0.8, 1.0, np.inf]), 1.3, 0.05)],
]


def net_of(model):
    net = network_of(model, 2)
    if model is not ONE_KERNEL:
        return net
    hidden = [replace(spec, shares_kernel=True) for spec in net.layers[:-1]]
    return replace(net, layers=(*hidden, net.layers[-1]))


def inputs_of(nodes, below):
    """What a layer reads: the outputs below it, and x where it has columns for that."""
    x = np.broadcast_to(X, (len(below), *X.shape))
    connected = len(nodes[0].lengthscale) > below.shape[-1]
    return np.concatenate([below, x], axis=-1) if connected else below


def draw_layer(rng, nodes, below, counts=1.0):
    """Outputs (chains, n, P) of a layer given the outputs of the layer below."""
    inputs = inputs_of(nodes, below)
    return np.stack([node.draw(rng, inputs, counts) for node in nodes], axis=-1)


def draw_joint(rng, model):
    """Latents and site means y from the model: the marginal-conditional simulator."""
    below, drawn = np.zeros((N_CHAINS, N_ROWS, 0)), []
    for nodes in model[:-1]:
        below = draw_layer(rng, nodes, below)
        drawn.append(below)
    return drawn, draw_layer(rng, model[-1], below, COUNTS)


@functools.partial(jit, static_argnames=("net", "moves"))
def sweep_all(key, net, moves, params, latents, y, angle, factor):
    """Sweeps of every chain, each given its own outputs; brackets are held."""

    def one(chain):
        key, latents, y = chain
        angles = tuple(jnp.full(w.shape[1], angle) for w in latents)
        state = Imputation(latents, angles, *jnp.zeros(2, jnp.int32))
        data = data_of(X, y, COUNTS, 0.4)  # squares say nothing about the latents
        each = steps(N_SWEEPS, moves=moves, bracket=factor)
        return impute.sweeps(key, net, each, params, state, data).latents

    return jax.lax.map(one, (jax.random.split(key, N_CHAINS), latents, y))


def statistics(model, latents, y):
    """Scales, correlations between rows, and dependence between layers; (chains, k)."""
    every = [*latents, y]
    columns = [layer[..., p] for layer in every for p in range(layer.shape[-1])]
    found = []
    for column in columns:
        found += [column.mean(1), (column**2).mean(1), column[:, 0] * column[:, 1]]
    steps = [np.diff(layer, axis=1) ** 2 for layer in every]
    for low, high in zip(steps, steps[1:], strict=False):
        found.append((low.sum(-1) * high.sum(-1)).mean(1))
    found.append(latents[0][:, 2, 0] * latents[0][:, 2, 1] * y[:, 2, 0])
    for nodes, below, above in zip(model[1:], every, every[1:], strict=False):
        counts = COUNTS if above is y else 1.0
        for p, node in enumerate(nodes):
            covariance = node.covariance(inputs_of(nodes, below), counts)
            whole = np.linalg.solve(covariance, above[..., p, None])[..., 0]
            found += [(whole * above[..., p]).sum(1), np.linalg.slogdet(covariance)[1]]
    return np.stack(found, axis=1)


@pytest.mark.parametrize(
    ("model", "moves", "bracket"),
    [
        (TWO_LAYERS, NodeWise(), np.inf),
        (THREE_LAYERS, NodeWise(), 1.0),
        (THREE_LAYERS, LayerWise(), np.inf),
        (ONE_KERNEL, NodeWise(), 1.0),
    ],
    ids=[
        "two-nodewise-full",
        "three-nodewise-short",
        "three-layerwise-full",
        "one-kernel-per-layer",
    ],
)
def test_the_joint_distribution_is_invariant(model, moves, bracket):
    """Geweke (2004): sweeps given y, then y given latents, leave the joint distribution alone.

    Chains start from independent exact draws, so that ends are independent exact draws as well
    and no autocorrelation blurs the comparison; ends and starts of a chain are compared in pairs.
    The last thing that moves is the latents: a fresh y would hide what they do to its likelihood.
    """
    rng, net, params = np.random.default_rng(5), net_of(model), params_of(model)
    latents, y = draw_joint(rng, model)
    at_start, first = statistics(model, latents, y), latents
    for transition, key in enumerate(jax.random.split(jax.random.key(6), N_TRANSITIONS)):
        if transition > 0:
            y = draw_layer(rng, model[-1], latents[-1], COUNTS)
        latents = sweep_all(key, net, moves, params, tuple(latents), y, 0.1, 10.0 * bracket)
        latents = [np.asarray(w) for w in latents]
    end = statistics(model, latents, y)
    assert np.abs(oracles.in_standard_errors(end - at_start, 0.0)).max() < 4.5
    # Standing still would pass so far: every latent value has moved, and far.
    for before, after in zip(first, latents, strict=True):
        assert np.all(before != after)
        assert np.corrcoef(before[:, 2, 0], after[:, 2, 0])[0, 1] < 0.9


def test_one_kernel_is_the_same_sweep_as_equal_ones(rng):
    """Node by node or at once, the draws are those of the same random numbers."""
    latents = tuple(rng.normal(size=(N_ROWS, 2)) for _ in range(2))
    data, key = data_of(X, rng.normal(size=(N_ROWS, 1)), COUNTS), jax.random.key(1)
    state, each, params = start(latents, 16.0), steps(3), params_of(ONE_KERNEL)
    own, common = (
        compiled_sweeps(key, net, each, params, state, data).latents
        for net in (network_of(ONE_KERNEL, 2), net_of(ONE_KERNEL))
    )
    for one, two, before in zip(own, common, latents, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-8)
        assert np.all(one != before)


# --- bookkeeping -----------------------------------------------------------------------------


compiled_sweeps = quick_jit(impute.sweeps, static_argnames="network")


def sweeps(key, moves, state, data, n_sweeps, factor, adapt):
    each = steps(n_sweeps, moves=moves, bracket=factor, adapt=adapt)
    return compiled_sweeps(key, network_of(TWO_LAYERS, 2), each, params_of(TWO_LAYERS), state, data)


@pytest.fixture
def data(rng):
    return data_of(X, rng.normal(size=(N_ROWS, 2)), COUNTS)


@pytest.fixture
def latents(rng):
    return (rng.normal(size=(N_ROWS, 2)),)


def test_the_same_key_gives_the_same_draws(data, latents):
    state = start(latents, 16.0)
    first, again, other = (
        sweeps(jax.random.key(seed), NodeWise(), state, data, 3, 16.0, True) for seed in (0, 0, 1)
    )
    jax.tree.map(np.testing.assert_array_equal, first, again)
    for one, two in zip(first.latents, other.latents, strict=True):
        assert np.all(one != two)


def test_brackets_follow_the_angles_only_when_told_to(data, latents):
    state = start(latents, 16.0)
    for moves in (NodeWise(), LayerWise()):
        held = sweeps(jax.random.key(0), moves, state, data, 3, 16.0, False)
        jax.tree.map(np.testing.assert_array_equal, held.angles, state.angles)
        adapted = sweeps(jax.random.key(0), moves, state, data, 3, 16.0, True)
        for before, after in zip(state.angles, adapted.angles, strict=True):
            assert np.all((after != before) & (after > 0) & (after <= np.pi))


@pytest.mark.parametrize(("done", "share"), [(0, 0.5), (3, 0.2), (100, 0.05)])
def test_the_means_follow_quickly_at_first(data, latents, done, share):
    """One sweep of one block: the mean goes part of the way to an angle in the circle."""
    state = replace(start(latents, 16.0), sweeps=np.int32(done))
    adapted = sweeps(jax.random.key(0), LayerWise(), state, data, 1, 16.0, True)
    for before, after, w, moved in zip(
        state.angles, adapted.angles, latents, adapted.latents, strict=True
    ):
        angle = before + (after - before) / share
        assert np.all((angle > 0) & (angle < impute.FULL_CIRCLE))
        np.testing.assert_allclose(angle, angle[0])
        assert np.all(w != moved)


def test_evaluations_are_counted_and_no_sweeps_change_nothing(data, latents):
    state = start(latents, 16.0)
    none, two, five = (
        sweeps(jax.random.key(0), NodeWise(), state, data, n, 16.0, False) for n in (0, 2, 5)
    )
    jax.tree.map(np.testing.assert_array_equal, none, state)
    assert 2 * 2 <= two.evaluations < five.evaluations  # two nodes a sweep


@pytest.mark.parametrize("factor", [16.0, 3.0, np.inf])
def test_the_first_brackets_are_the_full_circle(data, latents, factor):
    """So that sweeps from the start equal those whose bracket is the circle by hand."""
    started = start(latents, factor)
    by_hand = Imputation(
        latents, tuple(jnp.full(2, impute.FULL_CIRCLE, float) for _ in latents),
        started.evaluations, started.sweeps,
    )  # fmt: skip
    key = jax.random.key(0)
    ours = sweeps(key, NodeWise(), started, data, 2, factor, False)
    circle = sweeps(key, NodeWise(), by_hand, data, 2, 1.0, False)
    for before, one, two in zip(latents, ours.latents, circle.latents, strict=True):
        assert np.all(before != one)
        np.testing.assert_allclose(one, two, rtol=1e-9)


def test_one_layer_has_nothing_to_impute(data):
    net, state = network_of(TWO_LAYERS[:1], 2), start((), 16.0)
    assert impute.sweeps(jax.random.key(0), net, steps(3), (), state, data) is state
