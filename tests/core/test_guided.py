"""Anchored hidden layers: their posterior, and the moves that are guided by it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.builders import data_of, layer_of, params_of, steps
from oracles import Process
from programs import quick_jit as jit

from deepemu.core.distributions import Gaussian
from deepemu.core.inference import guided, impute
from deepemu.core.inference.hidden_posterior import HiddenPosterior
from deepemu.core.inference.steps import Guided
from deepemu.core.kernels.families import by_name
from deepemu.core.model.network import Network
from deepemu.core.nodes import anchored, dense
from deepemu.core.nodes.anchored import Anchored
from deepemu.core.nodes.linked import Inputs
from deepemu.core.nodes.node import Node, Sites
from deepemu.core.nodes.over_anchors import DenseOverAnchors
from deepemu.core.nodes.vecchia import Vecchia
from deepemu.data.neighbours import grouped
from deepemu.observations.gaussian import GaussianNoise

N, M, OWN = 12, 4, 3


def process(*lengthscale, scale=1.0, nugget=1e-4):
    return Process("matern52", np.array(lengthscale), scale, nugget)


TWO = [[process(0.7), process(0.4)], [process(0.8, 1.1, 0.9, scale=0.7, nugget=1e-2)]]
THREE = [TWO[0], [process(0.9, 1.3, 0.6)], [process(0.8, 0.9, scale=0.7, nugget=1e-2)]]
MODELS = pytest.mark.parametrize("model", [TWO, THREE], ids=["two", "three"])


def problem(model, n_near=5, seed=0, solver=None):
    """A network with anchors, its parameters and data."""
    rng = np.random.default_rng(seed)
    x, y = np.sort(rng.random((N, 1)), axis=0), rng.standard_normal(N)
    sources = [(-1,)] * len(model)
    layers = tuple(layer_of(nodes, of) for nodes, of in zip(model, sources, strict=True))
    network = Network(1, layers, GaussianNoise(), solver or Vecchia(n_near, N, OWN), Anchored())
    groups = grouped(x, np.ones(N), n_near, OWN)
    anchors = jnp.array([0, 4, 7, 11])
    data = dataclasses.replace(data_of(jnp.array(x), jnp.array(y)), groups=groups, anchors=anchors)
    return network, params_of(model), jax.tree.map(jnp.asarray, data)


def whites_of(model, seed=1):
    rng = np.random.default_rng(seed)
    return tuple(jnp.array(rng.standard_normal((len(nodes), M))) for nodes in model[:-1])


def flat(whites):
    return np.concatenate([np.asarray(each).ravel() for each in whites])


def shaped(vector, like):
    ends = np.cumsum([each.size for each in like])[:-1]
    parts = jnp.split(jnp.asarray(vector), ends)
    return tuple(part.reshape(each.shape) for part, each in zip(parts, like, strict=True))


@MODELS
def test_layers_are_carried_from_their_anchors(model):
    """Layer by layer with NumPy's algebra, and back."""
    network, params, data = problem(model)
    whites = whites_of(model)
    found = jit(lambda v: HiddenPosterior.of(network, params, data).carry(v))(whites)
    below = np.asarray(data.x)
    for layer, (nodes, latent) in enumerate(zip(model, found, strict=False)):
        inputs = below if layer == 0 else np.hstack([below, np.asarray(data.x)])
        at = inputs[np.asarray(data.anchors)]
        for k, node in enumerate(nodes):
            lower = np.linalg.cholesky(node.correlation(at, at) + 1e-10 * np.eye(M))
            expected = node.correlation(inputs, at) @ np.linalg.solve(lower.T, whites[layer][k])
            np.testing.assert_allclose(latent[:, k], np.sqrt(node.scale) * expected, rtol=1e-6)
        below = np.asarray(latent)
    back = jit(lambda w: HiddenPosterior.of(network, params, data).whiten(w))(found)
    for one, other in zip(back, whites, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@MODELS
def test_slopes_are_those_of_the_posterior(model):
    network, params, data = problem(model)
    whites = whites_of(model)
    value = jit(
        lambda x: HiddenPosterior.of(network, params, data).log_posterior(shaped(x, whites))
    )
    at = flat(whites)
    found, slopes = jit(lambda v: HiddenPosterior.of(network, params, data).slopes(v))(whites)
    np.testing.assert_allclose(found, value(at), rtol=1e-11)
    differences = [(value(at + step) - value(at - step)) / 2e-5 for step in 1e-5 * np.eye(at.size)]
    np.testing.assert_allclose(flat(slopes), differences, rtol=1e-5, atol=1e-6)


def near_rows_given(network, node, inputs, y, sites):
    """Residuals and variances of all rows, given those near them."""
    found = network.solver.factor(node, inputs, sites)
    rows = jnp.maximum(sites.groups.rows, 0)
    values = jnp.where(sites.groups.rows >= 0, y[rows], 0.0)
    white = jnp.einsum("ktb,kt->kb", found.a, values)
    return (white * jnp.sqrt(found.variance)).ravel(), found.variance.ravel()


def all_rows_given(network, node, inputs, y, sites):
    """Each row given those before it, from the textbook covariance."""
    exact = process(*1 / node.inverse_lengthscale, nugget=float(node.nugget))
    covariance, y = exact.covariance(np.asarray(inputs)), np.asarray(y)
    residuals, variances = [], []
    for i in range(len(y)):
        weights = np.linalg.solve(covariance[:i, :i], covariance[:i, i])
        residuals.append(y[i] - weights @ y[:i])
        variances.append(covariance[i, i] - weights @ covariance[:i, i])
    return np.array(residuals), np.array(variances)


@pytest.mark.parametrize(
    ("solver", "given"), [(None, near_rows_given), (DenseOverAnchors(), all_rows_given)]
)
def test_information_is_that_of_residuals_and_variances(solver, given):
    """JᵀJ with slopes by differences, for two layers."""
    network, params, data = problem(TWO, solver=solver)
    whites = whites_of(TWO)
    posterior = functools.partial(HiddenPosterior.of, network, params)
    node = jax.tree.map(lambda each: each[0], _last_node(network, params))
    sites = Sites(jnp.ones(N), jnp.zeros(()), jax.tree.map(jnp.array, data.groups))
    inputs_at = jit(lambda x: jnp.hstack([posterior(data).carry(shaped(x, whites))[-1], data.x]))
    terms_at = lambda x: given(network, node, inputs_at(x), data.observed.y[:, 0], sites)  # noqa: E731

    at = flat(whites)
    _, variance = terms_at(at)
    columns = []
    for step in 1e-5 * np.eye(at.size):
        up, down = terms_at(at + step), terms_at(at - step)
        e, s = ((np.asarray(a) - np.asarray(b)) / 2e-5 for a, b in zip(up, down, strict=True))
        columns.append(np.concatenate([e / np.sqrt(node.scale * variance), s / variance / 2**0.5]))
    jacobian = np.array(columns).T
    found = jit(lambda v: posterior(data).information(posterior(data).carry(v)))(whites)
    np.testing.assert_allclose(found, jacobian.T @ jacobian, rtol=1e-4, atol=1e-4)


def _last_node(network, params):
    from deepemu.core.model.network import layer_nodes

    return layer_nodes(network.layers[-1], params[-1])


def test_information_of_three_layers_knows_both():
    network, params, data = problem(THREE)
    posterior = HiddenPosterior.of(network, params, data)
    found = np.asarray(jit(lambda v: posterior.information(posterior.carry(v)))(whites_of(THREE)))
    assert found.shape == (3 * M, 3 * M)
    assert np.all(np.linalg.eigvalsh(found) > -1e-8 * np.abs(found).max())
    assert np.all(np.diagonal(found) > 0.0)


def test_moves_leave_the_joint_distribution_invariant():
    """From exact draws of v and y, frozen moves lead to draws of the same distribution (Geweke):
    in means and covariances of v and of its products with y."""
    network, params, data = problem(TWO)
    n_chains = 4000
    whites = whites_of(TWO)
    reference = jit(lambda v: HiddenPosterior.of(network, params, data).carry(v))(whites)
    node = jax.tree.map(lambda each: each[0], _last_node(network, params))
    sites = Sites(jnp.ones(N), jnp.zeros(()), jax.tree.map(jnp.array, data.groups))

    def draw(key):
        key_v, key_y, key_move = jax.random.split(key, 3)
        v = tuple(jax.random.normal(key_v, each.shape) for each in whites)
        latents = HiddenPosterior.of(network, params, data).carry(v)
        inputs = jnp.concatenate([latents[-1], data.x], axis=1)
        factor = network.solver.factor(node, inputs, sites)
        y = network.solver.draw_prior(factor, node, sites, jax.random.normal(key_y, (N,)))
        observed = dataclasses.replace(data.observed, y=y[:, None])
        drawn = dataclasses.replace(data, observed=observed)
        began = impute.start_guided(latents, 16.0)
        guide = impute.Guide(reference, jnp.array(0.8))
        began = dataclasses.replace(began, guide=guide, sweeps=jnp.array(99, jnp.int32))
        frozen = steps(1, moves=Guided())
        end = guided.sweeps(key_move, network, frozen, params, began, drawn)
        moved = HiddenPosterior.of(network, params, drawn)
        return moved.whiten(latents)[0].ravel(), moved.whiten(end.latents)[0].ravel(), y

    before, after, y = jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), n_chains))
    assert np.mean(np.any(np.abs(after - before) > 1e-3, axis=1)) > 0.95  # they do move

    def statistics(v):
        products = v[:, :, None] * np.asarray(y)[:, None, ::4]
        squares = v[:, :, None] * v[:, None]
        return np.hstack([v, squares.reshape(n_chains, -1), products.reshape(n_chains, -1),
                          (products**2).reshape(n_chains, -1)])  # fmt: skip

    change = statistics(np.asarray(after)) - statistics(np.asarray(before))
    error = change.std(axis=0) / np.sqrt(n_chains)
    z = change.mean(axis=0) / np.maximum(error, 1e-12)
    assert np.max(np.abs(z)) < 4.5
    assert np.mean(np.abs(z) > 2.0) < 0.12


def test_short_trajectories_keep_their_energy():
    """Four leaps of length h err by the order of h³, one with a wrong kick by that of h."""
    network, params, data = problem(TWO)
    posterior = HiddenPosterior.of(network, params, data)
    at, root = jnp.asarray(flat(whites_of(TWO))), jnp.eye(2 * M)

    def slopes(x):
        value, gradient = posterior.slopes(shaped(x, whites_of(TWO)))
        return value, jnp.concatenate([each.ravel() for each in gradient])

    def error(length):
        momentum = jax.random.normal(jax.random.key(1), at.shape)
        zero, no = jnp.zeros(()), jnp.zeros((), bool)
        leap = guided._Leap(at, at, momentum, length, no, zero, zero, jnp.zeros((), int), no)
        end = jax.lax.while_loop(
            lambda leap: ~leap.ends, lambda leap: guided._leap(slopes, root, leap), leap
        )
        return end.value - end.first - 0.5 * (jnp.sum(end.momentum**2) - jnp.sum(momentum**2))

    errors = np.abs(jit(jax.vmap(error))(jnp.array([0.02, 0.01, 0.005])))
    assert np.all(errors[1:] < errors[:-1] / 3.5) and errors[0] > 1e-9


@MODELS
def test_ascents_raise_the_posterior(model):
    network, params, data = problem(model)
    whites = whites_of(model)
    posterior = HiddenPosterior.of(network, params, data)
    began = impute.start_guided(jit(posterior.carry)(whites), 16.0)
    adapting = steps(1, moves=Guided(), adapt=True)
    run = jit(
        lambda state: guided.sweeps(jax.random.key(0), network, adapting, params, state, data)
    )
    value = jit(lambda w: posterior.log_posterior(posterior.whiten(w)))
    values, state = [value(began.latents)], began
    for _ in range(guided.N_ASCENTS):
        state = run(state)
        values.append(value(state.latents))
    assert np.all(np.diff(values) >= -1e-9) and values[-1] > values[0] + 1.0


@functools.partial(jit, static_argnums=0)
def of_process(solver, node, x, w, sites, at):
    """Derivatives, log density, and the predicted mean in all ways that both solvers have."""
    derivatives = [solver.derivatives(node, x, w, sites, free) for free in (True, False)]
    density = solver.log_density(solver.factor(node, x, sites), node, w, sites)
    ready, alpha = solver.condition(node, x, sites), solver.alpha(node, x, w, sites)
    means = (
        solver.predict(node, ready, alpha, x, at).mean,
        solver.mean(node, alpha, x, at, sites),
        solver.joint(node, ready, alpha, x, at).mean,
    )
    return derivatives, density, means


@jit
def of_anchors_only(node, x, w, sites, at):
    """Means of draws and by the scheme for known inputs; variances and covariances."""
    ours, nothing = Anchored(), Gaussian(jnp.zeros((5, 0)), jnp.zeros((5, 0)))
    (scheme,), link = ours.schemes(node.kernel, 0), ours.link(node, x, w, sites)
    prepared = scheme.prepare(node, link, x, 0)
    by_scheme = scheme.predict(node, link.alpha, prepared, x, Inputs(nothing, at)).moments
    ready = ours.condition(node, x, sites)
    drawn = ours.draw_posterior(node, ready, ours.alpha_of(ready, w), x, at, jnp.zeros(5))
    var = ours.predict(node, ready, link.alpha, x, at).var
    return (drawn, by_scheme.mean), (var, ours.joint(node, ready, link.alpha, x, at).covariance)


def test_all_rows_as_anchors_are_the_exact_process():
    """Its density, slopes, and predicted mean."""
    rng = np.random.default_rng(3)
    x, w, at = rng.random((N, 2)), rng.standard_normal(N), rng.random((5, 2))
    node = Node(by_name("matern52"), jnp.array([2.0, 0.7]), jnp.array(1.7), jnp.array(1e-10))
    plain = Sites(jnp.ones(N), jnp.zeros(()))
    sites = dataclasses.replace(plain, anchors=jnp.arange(N))
    derivatives, density, means = of_process(Anchored(), node, x, w, sites, at)
    exact = of_process(dense.Dense(), node, x, w, plain, at)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), derivatives, exact[0]
    )
    np.testing.assert_allclose(density, exact[1], rtol=1e-12)
    others, spreads = of_anchors_only(node, x, w, sites, at)
    for found in (*means, *others):
        np.testing.assert_allclose(found, exact[2][1], rtol=1e-10)
    assert all(np.all(np.asarray(spread) == 0.0) for spread in spreads)


def test_what_anchored_layers_do_not_have():
    node = Node(by_name("matern52"), jnp.ones(1), jnp.array(1.0), jnp.array(1e-2))
    with pytest.raises(TypeError, match="no anchors"):
        anchored.conditioned(node, jnp.ones((3, 1)), Sites(jnp.ones(3), jnp.zeros(())))
    with pytest.raises(TypeError, match="hidden, and move all at once"):
        Anchored().log_density_moving(node, None, None, None, None)
    with pytest.raises(TypeError, match="known inputs only"):
        Anchored().schemes(node.kernel, 1)
