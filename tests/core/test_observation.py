"""Outputs that are not normal given the last layer: its latents are imputed like the others."""

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from core.builders import network_of, params_of, steps
from oracles import Process
from programs import jit

from deepemu.core.inference import impute
from deepemu.core.model import network
from deepemu.core.model.network import Data
from deepemu.core.model.observation import Likelihood


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts whose rates are the exponentials of the latents."""

    imputed: ClassVar[bool] = True

    def log_density(self, observed, latents, used):
        each = observed * latents - jnp.exp(latents)
        return jnp.sum(jnp.where(used[:, None] > 0, each, 0.0))


X, COUNTS = np.array([[0.0], [0.4]]), np.array([4.0, 1.0])
LAST = [Process("matern52", np.array([0.9]), 1.4, 0.1)]
MODELS = {
    "one layer": [LAST],
    "two layers": [[Process("squared_exponential", np.array([0.7]), 1.0, 0.05)], LAST],
}
N_DRAWS, N_BATCHES = 20_000, 50


def data_of_counts():
    """Two rows, and one of padding."""
    rows = lambda values: jnp.asarray(np.append(values, 0.0))  # noqa: E731
    return Data(rows(X)[:, None], rows(np.ones(2)), rows(COUNTS)[:, None])


@functools.partial(jit, static_argnums=1)
def chain(key, net, params, latents, data):
    """Latents after each of many iterations of three sweeps."""

    def one(state, key):
        state = impute.sweeps(key, net, steps(3), params, state, data)
        return state, state.latents

    begin = impute.start(latents, 16.0)
    return jax.lax.scan(one, begin, jax.random.split(key, N_DRAWS))[1]


def moments(latents):
    """First and second moments of all latents at the rows in use, (draws, k)."""
    flat = np.concatenate([w[:, :2, 0] for w in latents], axis=1)
    products = np.einsum("ki,kj->kij", flat, flat)[:, *np.triu_indices(flat.shape[1])]
    return np.hstack([flat, products])


def by_quadrature(model, spacing):
    """Posterior expectations of `moments`, on a grid of the normals that each layer is made of.

    Of a smooth integrand with the tails of a normal, a plain sum over a grid is very accurate.
    """
    points = np.arange(-5.5, 5.5 + spacing, spacing)
    normals = np.stack(np.meshgrid(*[points] * (2 * len(model)), indexing="ij"), axis=-1)
    normals = normals.reshape(-1, 2 * len(model))
    weights = np.exp(-0.5 * np.sum(normals**2, axis=1))
    below, drawn = np.broadcast_to(X, (len(normals), 2, 1)), []
    for layer, (process,) in enumerate(model):
        root = np.linalg.cholesky(process.covariance(below))
        below = root @ normals[:, 2 * layer : 2 * layer + 2, None]
        drawn.append(below)
    rates = below[..., 0]
    log_likelihood = np.sum(COUNTS * rates - np.exp(rates), axis=1)
    weights = weights * np.exp(log_likelihood - log_likelihood.max())
    return weights @ moments(drawn) / weights.sum()


@pytest.mark.parametrize("name", MODELS)
def test_sweeps_sample_the_posterior_of_counts(name):
    model, data = MODELS[name], data_of_counts()
    net = network_of(model, 1, observation=Poisson())
    start = tuple(jnp.asarray([[0.5], [0.2], [0.0]]) for _ in model)
    found = chain(jax.random.key(0), net, params_of(model), start, data)
    spacings = (0.25, 0.3) if len(model) == 1 else (0.45, 0.5)
    expected, coarser = (by_quadrature(model, spacing) for spacing in spacings)
    for latent in found:
        np.testing.assert_array_equal(latent[:, 2], 0.0)
    drawn = moments([np.asarray(w) for w in found])
    batches = oracles.batch_means(drawn, N_BATCHES)
    assert np.abs(oracles.in_standard_errors(batches, expected)).max() < 4
    # The test has power: the rule has converged, and standard errors are small.
    errors = batches.std(axis=0, ddof=1) / np.sqrt(N_BATCHES)
    assert np.all(np.abs(expected - coarser) < 0.1 * errors)
    assert np.all(errors < 0.05 * drawn.std(axis=0))


def test_latents_of_all_layers_are_targets():
    model, data = MODELS["two layers"], data_of_counts()
    net = network_of(model, 1, observation=Poisson())
    latents = tuple(jnp.asarray([[a], [1.0], [0.0]]) for a in (0.5, -2.0))
    assert net.n_imputed == 2
    for layer in range(2):
        target = network.layer_targets(net, layer, data, latents)
        np.testing.assert_array_equal(target, latents[layer])
        sites = network.layer_sites(net, layer, data)
        np.testing.assert_array_equal(sites.counts, [[1.0, 1.0, 0.0]])
        np.testing.assert_array_equal(sites.squares, [0.0])
    expected = 4.0 * -2.0 - np.exp(-2.0) + 1.0 - np.e
    np.testing.assert_allclose(network.log_likelihood(net, latents, data), expected, rtol=1e-14)
