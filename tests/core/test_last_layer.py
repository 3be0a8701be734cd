"""Moves of an imputed last layer whose rows are conditioned on near rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from core.builders import layer_of, params_of, steps
from oracles import Process
from poisson_model import Poisson
from programs import quick_jit as jit

from deepemu.core import linalg
from deepemu.core.inference import guided, impute, last_layer
from deepemu.core.inference.hidden_posterior import HiddenPosterior
from deepemu.core.inference.steps import Guided
from deepemu.core.model.network import (
    Data,
    Network,
    layer_log_density,
    layer_parts,
    log_likelihood,
)
from deepemu.core.nodes import roots, vecchia
from deepemu.core.nodes.anchored import JITTER, Anchored
from deepemu.core.nodes.dense import Dense
from deepemu.core.nodes.vecchia import Vecchia
from deepemu.data.neighbours import grouped

N, M, PADDING, OWN = 12, 4, 2, 3


def process(*lengthscale, scale=1.0, nugget=1e-4):
    return Process("matern52", np.array(lengthscale), scale, nugget)


ONE = [[process(0.3, scale=1.5, nugget=1e-2), process(0.6, scale=0.7)]]
TWO = [[process(0.7)], [process(0.8, 0.9, scale=0.7, nugget=1e-2), process(0.6, 1.2)]]


def problem(model, n=N, n_near=5, solver=None, padding=PADDING, seed=0):
    """A network of counts with near rows and anchors, its parameters and data with padded rows."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.random((n, 1)), axis=0)
    layers = tuple(layer_of(nodes) for nodes in model)
    hidden = Anchored() if len(model) > 1 and solver is None else None
    network = Network(1, layers, Poisson(), solver or Vecchia(n_near, n, OWN), hidden)
    used = (np.arange(n) < n - padding).astype(float)
    groups, anchors = grouped(x, used, n_near, OWN), np.linspace(0, n - 1, M).astype(int)
    shape = n, len(model[-1])
    counts = rng.poisson(4.0, shape) * used[:, None]
    observed = {"y": counts / 4.0, "weights": 4.0 * used[:, None] * np.ones(shape)}
    data = Data(x, used, observed, None if solver else groups, None if solver else anchors)
    return network, params_of(model), jax.tree.map(jnp.asarray, data)


def root_of(network, params, latents, data, k=0):
    nodes, inputs, _, sites = layer_parts(network, network.depth - 1, params, latents, data)
    node, own = jax.tree.map(lambda each: each[k], (nodes, sites))
    return roots.root(vecchia.factor(node, inputs, own), node, own)


# --- the root, and solutions with it --------------------------------------------------------------


def test_products_with_the_root_and_its_transpose():
    """LLᵀ is the covariance of all rows where all are near, and Lᵀ is that of L."""
    network, params, data = problem(ONE, n_near=N)
    root = root_of(network, params, (jnp.zeros((N, 2)),), data)
    lower = np.asarray(jit(roots.times)(root, jnp.eye(N)))
    back = np.asarray(jit(roots.times_transposed)(root, jnp.eye(N)))
    x, used = np.asarray(data.x), np.asarray(data.used) > 0
    node = ONE[0][0]
    covariance = node.scale * (node.correlation(x, x) + node.nugget * np.eye(N))
    expected = np.where(used[:, None] & used, covariance, 0.0)
    np.testing.assert_allclose(lower @ lower.T, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(back, lower.T, rtol=1e-12, atol=1e-14)


def test_conjugate_gradients_solve_each_column():
    """Columns of very different sizes, and one of zeros."""
    rng = np.random.default_rng(0)
    square = rng.standard_normal((20, 20))
    matrix = square @ square.T + np.eye(20)
    sizes = np.array([1e6, 1e-6, 0.0])
    right = rng.standard_normal((20, 3))
    solve = jit(lambda b: linalg.conjugate_gradients(lambda x: matrix @ x, b, 1e-10, 200))
    expected = np.linalg.solve(matrix, right) * sizes
    atol = 1e-8 * np.abs(expected).max(axis=0)
    assert np.all(np.abs(np.asarray(solve(right * sizes)) - expected) <= atol)


def test_mean_and_draws_are_those_of_the_normal():
    """(Σ⁻¹ + W)⁻¹ and its product with b, by NumPy."""
    network, params, data = problem(ONE, padding=0)
    root = root_of(network, params, (jnp.zeros((N, 2)),), data)
    rng = np.random.default_rng(1)
    normal = last_layer.Normal(jnp.array(rng.random(N) * 5), jnp.array(rng.standard_normal(N)))
    draw = jit(lambda key: last_layer.mean_and_draws(key, root, normal, 20_000))
    mean, draws = map(np.asarray, draw(jax.random.key(0)))
    lower = np.asarray(roots.times(root, jnp.eye(N)))
    precision = np.linalg.inv(lower @ lower.T) + np.diag(normal.weights)
    covariance = np.linalg.inv(precision)
    np.testing.assert_allclose(mean, covariance @ np.asarray(normal.pull), rtol=1e-6, atol=1e-9)
    sd = np.sqrt(np.diagonal(covariance))
    error = (np.cov(draws) - covariance) / np.outer(sd, sd)
    assert np.max(np.abs(error)) < 4.5 * np.sqrt(2 / 20_000)
    assert np.max(np.abs(draws.mean(axis=1)) / sd) < 4.5 / np.sqrt(20_000)


def test_the_normal_touches_the_likelihood():
    """Of counts: equal slopes, and curvatures, at the reference; it says nothing where a likelihood
    is not concave."""
    counts, at = jnp.array([0.0, 3.0, 7.0]), jnp.array([-1.0, 0.4, 2.0])
    normal = last_layer.normal_near(lambda f: jnp.sum(counts * f - jnp.exp(f)), at)
    np.testing.assert_allclose(normal.weights, np.exp(at), rtol=1e-12)
    slope = normal.pull - normal.weights * at
    np.testing.assert_allclose(slope, counts - np.exp(at), rtol=1e-12)
    convex = last_layer.normal_near(lambda f: jnp.sum(f**2), at)
    np.testing.assert_array_equal(convex.weights, 0.0)


# --- the moves ------------------------------------------------------------------------------------


def started(network, latents, reference, sweeps=99):
    began = impute.start_guided(latents, 16.0)
    guide = impute.Guide(reference, jnp.array(0.3))
    return dataclasses.replace(began, guide=guide, sweeps=jnp.array(sweeps, jnp.int32))


def drawn_layers(key, network, params, data, whites):
    """Layers from their prior."""
    key_hidden, key_last = jax.random.split(key)
    hidden = ()
    if network.depth > 1:
        v = tuple(jax.random.normal(key_hidden, each.shape) for each in whites)
        hidden = HiddenPosterior.of(network, params, data).carry(v)
    width = network.layers[-1].width
    normals = jax.random.normal(key_last, (N, width))
    blank = (*hidden, jnp.zeros((N, width)))
    last = [
        roots.times(root_of(network, params, blank, data, k), normals[:, k, None])
        for k in range(width)
    ]
    return (*hidden, jnp.concatenate(last, axis=1))


def test_moves_leave_the_joint_distribution_invariant():
    """From exact draws of all layers and of counts, frozen moves lead to draws of the same
    distribution (Geweke): in means and covariances, also with the counts, and in the log densities,
    which tell best of all whether moves are too bold or too timid."""
    network, params, data = problem(TWO)
    n_chains = 2000
    whites = tuple(jnp.zeros((len(nodes), M)) for nodes in TWO[:-1])
    fixed = functools.partial(drawn_layers, network=network, params=params, data=data)
    reference = jit(lambda key: fixed(key, whites=whites))(jax.random.key(7))

    def draw(key):
        key_layers, key_counts, key_move = jax.random.split(key, 3)
        layers = fixed(key_layers, whites=whites)
        counts = jax.random.poisson(key_counts, data.observed["weights"] * jnp.exp(layers[-1]))
        shares = jnp.where(data.used[:, None] > 0, counts / 4.0, 0.0)
        drawn = dataclasses.replace(data, observed=data.observed | {"y": shares})
        frozen = steps(1, moves=Guided())
        began = started(network, layers, reference)
        end = guided.sweeps(key_move, network, frozen, params, began, drawn)
        flat = lambda latents: jnp.concatenate([each[::3].ravel() for each in latents])  # noqa: E731
        of = lambda latents: (flat(latents), densities(latents, drawn))  # noqa: E731
        return *of(layers), *of(end.latents), shares[::4].ravel()

    def densities(latents, data):
        last = layer_log_density(network, network.depth - 1, params, latents, data)
        return jnp.stack([last, log_likelihood(network, latents, data)])

    before, densities_before, after, densities_after, y = map(
        np.asarray, jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), n_chains))
    )
    moves = np.abs(after - before) > 1e-3
    assert np.all(np.mean(moves, axis=0)[np.any(before != 0, axis=0)] > 0.9)

    def statistics(v, densities):
        squares = v[:, :, None] * v[:, None]
        products = v[:, :, None] * y[:, None]
        more = (each.reshape(n_chains, -1) for each in (squares, products, products**2))
        return np.hstack([densities, v, *more])

    change = statistics(after, densities_after) - statistics(before, densities_before)
    error = change.std(axis=0) / np.sqrt(n_chains)
    z = change.mean(axis=0)[error > 0] / error[error > 0]
    assert np.max(np.abs(z[:2])) < 3.0  # of the log densities
    assert np.max(np.abs(z)) < 4.5
    assert np.mean(np.abs(z) > 2.0) < 0.12


def test_moves_go_far_with_many_rows():
    """Half of a quarter turn, where slice steps from the prior turn by a fiftieth of one."""
    network, params, data = problem(ONE, n=400, n_near=10, padding=0, seed=2)
    start = jnp.log(data.observed["y"] + 0.1)
    began = impute.start_guided((start,), 16.0)
    adapting = steps(12, moves=Guided(), adapt=True)
    run = jit(lambda key: guided.sweeps(key, network, adapting, params, began, data))
    end = run(jax.random.key(0))
    assert np.all(np.asarray(end.angles[-1]) > np.pi / 4)
    assert np.all(np.asarray(end.evaluations) < 12 * 2 * last_layer.N_SLICES * 4)


def test_padded_rows_change_nothing():
    """Garbage in padded rows changes no bit, and padded latents are zero."""
    network, params, data = problem(TWO)
    width = [len(nodes) for nodes in TWO]
    used = np.asarray(data.used)[:, None] > 0

    @jit
    def moved(x, latents):
        given = dataclasses.replace(data, x=x)
        began = started(network, latents, latents, sweeps=10)
        end = guided.sweeps(
            jax.random.key(1), network, steps(1, moves=Guided(), adapt=True), params, began, given
        )
        return end.latents[-1], end.angles[-1]

    rng = np.random.default_rng(4)
    latents = [rng.standard_normal((N, p)) for p in width]
    anchors = np.asarray(data.anchors)[:-1]
    data = dataclasses.replace(data, anchors=jnp.asarray(anchors))
    one, angles = moved(data.x, tuple(latents))
    garbage = [np.where(used, each, 77.0) for each in latents]
    other, same = moved(jnp.where(used, data.x, 9.0), tuple(garbage))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(angles, same)
    assert np.all(np.asarray(one)[~used[:, 0]] == 0.0)


def test_all_rows_as_neighbours_and_anchors_are_the_exact_network():
    """The density of all layers and counts."""
    model = [[process(0.7, nugget=JITTER)], [process(0.8, 1.1, scale=0.7, nugget=1e-2)]]
    rng = np.random.default_rng(5)
    latents = tuple(jnp.array(rng.standard_normal((N, 1))) for _ in model)

    def density(network, params, data):
        layers = range(network.depth)
        parts = [layer_log_density(network, k, params, latents, data) for k in layers]
        return jnp.sum(jnp.stack(parts)) + log_likelihood(network, latents, data)

    network, params, data = problem(model, n_near=N, padding=0)
    data = dataclasses.replace(data, anchors=jnp.arange(N))
    ours = jit(functools.partial(density, network))(params, data)
    network, params, data = problem(model, solver=Dense(), padding=0)
    exact = jit(functools.partial(density, network))(params, data)
    np.testing.assert_allclose(ours, exact, rtol=1e-9)
