"""Moves of the last layer under the package's observation models, with the exact solver."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.builders import layer_of, params_of, steps
from oracles import Process
from programs import quick_jit as jit

from deepemu.core.inference import guided, impute, last_layer
from deepemu.core.inference.hidden_posterior import HiddenPosterior
from deepemu.core.inference.steps import Guided
from deepemu.core.model.network import Data, Network, layer_log_density, log_likelihood
from deepemu.core.model.observation import Units
from deepemu.core.nodes import roots
from deepemu.core.nodes.anchored import Anchored
from deepemu.core.nodes.over_anchors import DenseOverAnchors
from deepemu.observations.binomial import Binomial
from deepemu.observations.counts import NegativeBinomial, ZeroInflatedNegativeBinomial
from deepemu.observations.noise import HeteroscedasticNoise, KnownNoise
from deepemu.observations.student import StudentT

N_SITES, N, N_CHAINS = 4, 5, 2000
X = np.append(np.linspace(0.0, 1.0, N_SITES), 0.0)[:, None]
SITE = np.array([0, 0, 1, 2, 3, 3])  # two sites have replicates
UNITS = Units(np.zeros(1), np.array([4.0]))
MODELS = {
    "negative binomial": NegativeBinomial(),
    "zero inflated": ZeroInflatedNegativeBinomial(),
    "binomial": Binomial(),
    "student": StudentT(),
    "heteroscedastic": HeteroscedasticNoise(),
    "known": KnownNoise(),
}


def problem(model):
    """A node that varies, and others that are common to all rows where the model says so."""
    varying = Process("matern52", np.array([0.5]), 1.3, 1e-2)
    common = Process("matern52", np.array([np.inf]), 1.0, 1e-6)
    nodes = [common if one else varying for one in model.common(1)]
    network = Network(1, (layer_of(nodes),), model, DenseOverAnchors())
    return network, params_of([nodes]), nodes


def units_of(model):
    if model.known == "noise_variance":
        return model.units_of_rows(UNITS, np.full((len(SITE), 1), 4.0))
    return UNITS


def drawn(model, nodes, rng):
    """Latents (chains, n, P) from their prior, outputs given them, and what is kept of these."""
    x, units = X[:N_SITES], units_of(model)
    normals = rng.standard_normal((len(nodes), N_CHAINS, N_SITES))
    each = [
        z @ np.linalg.cholesky(node.covariance(x)).T for node, z in zip(nodes, normals, strict=True)
    ]
    latents = np.stack(each, axis=-1)
    y = [model.draw(rng, of[SITE], units) for of in latents]
    observed = [model.collapse(each, SITE, units) for each in y]
    most = jax.tree.map(lambda *of: max(np.shape(each)[1] for each in of), *observed)
    stacked = jax.tree.map(
        lambda width, *of: np.stack([padded(each, width) for each in of]), most, *observed
    )
    return np.pad(latents, [(0, 0), (0, 1), (0, 0)]), np.array(y)[..., 0], stacked


def padded(values, width):
    """A row of padding, and room for as many outputs as any site of any chain has."""
    more = [(0, 1), (0, width - values.shape[1]), *[(0, 0)] * (values.ndim - 2)]
    return np.pad(values, more)


@pytest.mark.parametrize("name", MODELS)
def test_moves_leave_the_joint_distribution_invariant(name):
    """From exact draws of latents and of outputs, moves lead to draws of the same distribution
    (Geweke): in the log densities, in means and covariances, and in those with the outputs."""
    model, rng = MODELS[name], np.random.default_rng(0)
    network, params, nodes = problem(model)
    latents, y, observed = drawn(model, nodes, rng)
    reference = (jnp.asarray(latents[7]),)
    used = jnp.asarray((np.arange(N) < N_SITES).astype(float))

    def densities(at, data):
        of_layer = layer_log_density(network, 0, params, (at,), data)
        return jnp.stack([of_layer, log_likelihood(network, (at,), data)])

    def moved(key, start, of_chain):
        data = Data(jnp.asarray(X), used, of_chain)
        began = impute.start_guided((start,), 16.0)
        guide = impute.Guide(reference, jnp.array(0.3))
        began = dataclasses.replace(began, guide=guide, sweeps=jnp.array(99, jnp.int32))
        end = guided.sweeps(key, network, steps(1, moves=Guided()), params, began, data)
        return end.latents[0], densities(start, data), densities(end.latents[0], data)

    keys = jax.random.split(jax.random.key(0), N_CHAINS)
    given = jax.tree.map(jnp.asarray, (latents, observed))
    after, before_p, after_p = map(np.asarray, jit(jax.vmap(moved))(keys, *given))
    assert np.all(after[:, N_SITES:] == 0.0)
    assert np.mean(np.abs(after - latents)[:, :N_SITES] > 1e-3) > 0.9

    def statistics(at, of_densities):
        v = at[:, :N_SITES].reshape(N_CHAINS, -1)
        bounded = np.tanh(y - np.median(y, axis=0))  # outputs may have heavy tails
        squares, products = v[:, :, None] * v[:, None], v[:, :, None] * bounded[:, None]
        flat = (each.reshape(N_CHAINS, -1) for each in (squares, products))
        return np.hstack([of_densities, v, *flat])

    change = statistics(after, after_p) - statistics(latents, before_p)
    z = change.mean(axis=0) / (change.std(axis=0) / np.sqrt(N_CHAINS))
    assert np.max(np.abs(z[:2])) < 3.5  # of the log densities
    assert np.max(np.abs(z)) < 4.5


def test_moves_of_a_mean_are_draws_from_its_posterior():
    """Given the noise the likelihood is normal: mean and covariance by linear algebra, from any
    start and any reference."""
    model = KnownNoise()
    network, params, (node,) = problem(model)
    rng = np.random.default_rng(1)
    y, units = rng.standard_normal((len(SITE), 1)), units_of(model)
    observed = jax.tree.map(
        lambda each: jnp.asarray(padded(each, 1)), model.collapse(y, SITE, units)
    )
    used = jnp.asarray((np.arange(N) < N_SITES).astype(float))
    data, start = Data(jnp.asarray(X), used, observed), jnp.full((N, 1), 3.0)

    @functools.partial(jax.vmap)
    def draw(key):
        began = impute.start_guided((start,), 16.0)
        end = guided.sweeps(key, network, steps(8, moves=Guided()), params, began, data)
        return end.latents[0][:N_SITES, 0]

    found = np.asarray(jit(draw)(jax.random.split(jax.random.key(1), 4000)))
    precision = np.bincount(SITE) / np.asarray(units.noise)[0]
    covariance = np.linalg.inv(np.linalg.inv(node.covariance(X[:N_SITES])) + np.diag(precision))
    means = np.bincount(SITE, y[:, 0]) / np.bincount(SITE)
    sd = np.sqrt(np.diagonal(covariance))
    assert np.max(np.abs(found.mean(axis=0) - covariance @ (precision * means)) / sd) < 0.08
    assert np.max(np.abs(np.cov(found.T) - covariance) / np.outer(sd, sd)) < 0.1


def test_a_triangle_solves_as_conjugate_gradients_do():
    rng = np.random.default_rng(2)
    lower = jnp.asarray(np.tril(rng.standard_normal((N, N))))
    weights, right = jnp.asarray(rng.random(N)), jnp.asarray(rng.standard_normal((N, 3)))
    found = roots.solved(roots.Triangular(lower), weights, right)
    precision = np.eye(N) + lower.T @ np.diag(weights) @ lower
    np.testing.assert_allclose(found, np.linalg.solve(precision, right), rtol=1e-9)


def test_weights_are_minus_the_curvature():
    """Of counts with a dispersion, by finite differences."""
    model = NegativeBinomial()
    network, _, _ = problem(model)
    y = np.array([3.0, 0.0, 7.0, 2.0, 2.0, 5.0])[:, None] / 4.0
    observed = jax.tree.map(
        lambda each: jnp.asarray(padded(each, each.shape[1])), model.collapse(y, SITE, UNITS)
    )
    data = Data(jnp.asarray(X), jnp.ones(N), observed)
    at = np.random.default_rng(3).standard_normal((N, 2))
    found = np.asarray(
        jit(last_layer.weights_near, static_argnums=0)(network, jnp.asarray(at), data)
    )
    value = lambda at: float(model.log_density(observed, jnp.asarray(at), None))  # noqa: E731
    for row in range(N_SITES):
        step = np.zeros((N, 2))
        step[row, 0] = 1e-4
        curvature = (value(at + step) - 2.0 * value(at) + value(at - step)) / 1e-8
        np.testing.assert_allclose(found[row, 0], -curvature, rtol=1e-4, atol=1e-5)


def test_hidden_layers_do_not_ask_nodes_that_do_not_read_them():
    """Their log posterior changes as the densities of all nodes of the last layer do."""
    model, rng = NegativeBinomial(), np.random.default_rng(4)
    hidden = [Process("matern52", np.array([0.7]), 1.0, 1e-4)]
    last = [
        Process("matern52", np.array([0.8, 0.9]), 1.3, 1e-2),
        Process("matern52", np.array([np.inf, np.inf]), 1.0, 1e-6),
    ]
    layers, params = (layer_of(hidden), layer_of(last)), params_of([hidden, last])
    network = Network(1, layers, model, DenseOverAnchors(), Anchored())
    used, anchors = jnp.asarray((np.arange(N) < N_SITES).astype(float)), jnp.arange(3)
    data = Data(jnp.asarray(X), used, None, None, anchors)
    values = jnp.asarray(rng.standard_normal((N, 2))) * used[:, None]
    posterior = HiddenPosterior.of(network, params, data, (values,))
    whites = [(jnp.asarray(rng.standard_normal((1, 3))),) for _ in range(2)]

    def in_full(v):
        latents = (*posterior.carry(v), values)
        return layer_log_density(network, 1, params, latents, data) - 0.5 * jnp.sum(v[0] ** 2)

    change = [posterior.log_posterior(v) for v in whites]
    expected = [in_full(v) for v in whites]
    np.testing.assert_allclose(change[1] - change[0], expected[1] - expected[0], rtol=1e-9)
    nodes, *_ = posterior._last(posterior.carry(whites[0]))
    assert nodes.scale.shape == (1,)
