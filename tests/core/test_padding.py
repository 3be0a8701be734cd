"""Padded rows stand for nothing, whatever their inputs hold.

Two claims. Other garbage in the padded rows changes no bit: everything that touches them is
selected away or multiplied by an exact zero. And padded results equal those of the arrays as they
are, up to the round-off of factorising another shape, which a nugget of 1e-6 amplifies: the
correlation matrix has a condition number of about 1e7, so of 16 digits 9 are left, less a few.
Targets in padded rows are zero by contract; `draw_prior` keeps latents so.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core import builders
from core.builders import data_of
from programs import quick_jit as jit

from deepemu.core import ensemble, joint, predict
from deepemu.core.distributions import Gaussian
from deepemu.core.inference import impute, sem
from deepemu.core.kernels import families
from deepemu.core.model import network
from deepemu.core.model.network import LayerParams, LayerSpec
from deepemu.core.model.priors import Reference
from deepemu.core.nodes import dense, linked
from deepemu.core.nodes.linked import Inputs
from deepemu.core.nodes.node import Node, Sites

N_ROWS, N_PADDED = 10, 13
ROUND_OFF = {"rtol": 1e-7, "atol": 1e-9}


def padded(values, garbage=None):
    """Rows appended: zeros, or normals from a seed, which lie among the true rows and beyond."""
    shape = (N_PADDED - N_ROWS, *values.shape[1:])
    fill = np.zeros(shape) if garbage is None else np.random.default_rng(garbage).normal(size=shape)
    return np.concatenate([values, fill])


def assert_padding_is_silent(plain, one, two):
    """``one`` and ``two`` are padded with different garbage."""
    for a, b, c in zip(*(jax.tree.leaves(tree) for tree in (plain, one, two)), strict=True):
        np.testing.assert_array_equal(b, c)
        np.testing.assert_allclose(a, b, **ROUND_OFF)


LEVELS = [predict.Method(level, predict.RowsInside()) for level in range(2)]


def without_padding(tree):
    return jax.tree.map(lambda rows: rows[:N_ROWS], tree)


# --- one node --------------------------------------------------------------------------------


@jit
def everything(node, inputs, target, sites, at):
    """All that a node is asked at known inputs, but what leads with rows."""
    inverse_lower = dense.condition(node, inputs, sites)
    alpha = dense.alpha(node, inputs, target, sites)
    two = jnp.stack([at, at + 0.1])
    return (
        dense.log_density(dense.factor(node, inputs, sites), node, target, sites),
        dense.fit(node, inputs, target, sites, True),
        dense.derivatives(node, inputs, target, sites, True),
        dense.predict(node, inverse_lower, alpha, inputs, at[None]),
        dense.mean(node, alpha, inputs, two),
        dense.joint(node, inverse_lower, alpha, inputs, two),
        dense.draw_posterior(node, inverse_lower, alpha, inputs, two, jnp.array([0.3, -1.0])),
    )


@jit
def by_every_scheme(node, inputs, target, sites, at):
    """Moments where the first two inputs are uncertain."""

    def linked_by(scheme, link):
        var = jnp.array([[0.1, 0.0]])
        prepared = scheme.prepare(node, link, inputs, 2)
        uncertain = Inputs(Gaussian(at[None, :2], var), at[None, 2:])
        return scheme.predict(node, link.alpha, prepared, inputs, uncertain)

    link = dense.link(node, inputs, target, sites)
    return [linked_by(each, link) for each in linked.schemes(node.kernel, 2)]


@jit
def row_by_row(node, inputs, target, sites, normals):
    return (
        dense.draw_prior(dense.factor(node, inputs, sites), node, sites, normals),
        dense.leave_one_out(node, inputs, target, sites),
    )


def nodes(rng, kernel):
    """The arguments of a node as they are, and padded with two kinds of garbage."""
    nugget = 1e-2 if kernel == "linear" else 1e-6  # no line explains targets without a nugget
    inverse = np.array([1.5, 0.0, 0.8])
    node = Node(families.by_name(kernel), inverse, np.array(1.7), np.array(nugget))
    x, y = rng.uniform(size=(N_ROWS, 3)), rng.normal(size=N_ROWS)
    counts, squares = rng.integers(1, 4, N_ROWS).astype(float), np.array(1e-5)
    return (
        (node, x, y, Sites(counts, squares)),
        *((node, padded(x, seed), padded(y), Sites(padded(counts), squares)) for seed in (1, 2)),
    )


@pytest.mark.parametrize("kernel", ["squared_exponential", "linear"])
def test_a_node_does_not_see_padded_rows(rng, kernel):
    """A stationary kernel as good as any: padded rows have an exponent of their own."""
    plain, one, two = nodes(rng, kernel)
    at, normals = rng.uniform(size=3), rng.normal(size=N_ROWS)
    assert_padding_is_silent(*(everything(*each, at) for each in (plain, one, two)))
    results = (
        row_by_row(*plain, normals),
        row_by_row(*one, padded(normals, 3)),
        row_by_row(*two, padded(normals, 4)),
    )
    assert_padding_is_silent(*map(without_padding, results))
    np.testing.assert_array_equal(results[1][0][N_ROWS:], 0.0)


@pytest.mark.parametrize("kernel", ["squared_exponential", "matern32", "linear"])
def test_a_node_with_uncertain_inputs_does_not_see_padded_rows(rng, kernel):
    """Here features of padded rows are computed, by each kernel in its way."""
    given, at = nodes(rng, kernel), rng.uniform(size=3)
    assert_padding_is_silent(*(by_every_scheme(*each, at) for each in given))


# --- a network -------------------------------------------------------------------------------


def layer(width, columns, free_scale):
    """With the prior that depends on the inputs; layers of one kind, which compile fast."""
    kernel, reads = families.by_name("squared_exponential"), ((True,) * columns,) * width
    return LayerSpec(kernel, reads, Reference(), False, free_scale, True)


NETWORK = builders.network(
    2,
    layer(2, 2, free_scale=False),
    layer(1, 4, free_scale=True),
)
PARAMS = tuple(
    LayerParams(
        np.zeros((spec.width, spec.n_columns)),
        np.full(spec.width, 0.2),
        np.full(spec.width, np.log(1e-4)),
    )
    for spec in NETWORK.layers
)


@pytest.fixture
def arrays(rng):
    x = rng.uniform(size=(N_ROWS, 2))
    y = np.sin(5 * x[:, :1]) + 0.1 * rng.normal(size=(N_ROWS, 1))
    return x, y, np.sin(3 * x) + 0.1 * rng.normal(size=x.shape)


def variants(arrays, garbage_in_latents):
    """(data, latents) as they are, and padded with two kinds of garbage."""
    x, y, latent = arrays
    found = [(data_of(x, y), (latent,))]
    for seed in (1, 2):
        data = data_of(padded(x, seed), padded(y), padded(np.ones(N_ROWS)))
        found.append((data, (padded(latent, seed if garbage_in_latents else None),)))
    return found


@jit
def densities(params, data, latents):
    return [network.layer_log_density(NETWORK, index, params, latents, data) for index in range(2)]


def test_densities_do_not_see_padded_rows(arrays):
    """Garbage in latents is garbage in the inputs of the last layer: that one may have it."""
    quiet = variants(arrays, garbage_in_latents=False)
    assert_padding_is_silent(*(densities(PARAMS, *each) for each in quiet))
    loud = variants(arrays, garbage_in_latents=True)
    assert_padding_is_silent(*(densities(PARAMS, *each)[1] for each in loud))


@jit
def train(key, params, data, latents, n_scoring):
    """Three iterations of three sweeps each; without scoring steps, nine sweeps.

    The last layer reads x, so its M-step has garbage among its inputs.
    """
    chain = sem.Chain(params, impute.start(latents, 16.0))
    steps = builders.steps(3, n_scoring, adapt=True, block=3)
    return sem.train_block(key, NETWORK, steps, chain, data, 0, 3)


@pytest.mark.parametrize("garbage_in_latents", [False, True])
def test_sweeps_do_not_see_padded_rows(arrays, garbage_in_latents):
    """Draws do not depend on the bucket either: the same key gives the same latents.

    Garbage in latents only turns with the ellipse; zeros stay zeros.
    """
    plain, one, two = (
        train(np.array([0, 4], np.uint32), PARAMS, data, latents, 0)[0].imputation
        for data, latents in variants(arrays, garbage_in_latents)
    )
    assert np.all(plain.latents[0] != arrays[2])
    assert_padding_is_silent(
        *((without_padding(end.latents), end.angles, end.evaluations) for end in (plain, one, two))
    )
    if not garbage_in_latents:
        np.testing.assert_array_equal(one.latents[0][N_ROWS:], 0.0)


def test_training_and_prediction_do_not_see_padded_rows(rng, arrays):
    at = rng.uniform(size=(4, 2))
    outcomes = []
    for data, latents in variants(arrays, garbage_in_latents=False):
        chain, trace = train(np.array([0, 4], np.uint32), PARAMS, data, latents, 2)
        np.testing.assert_array_equal(chain.imputation.latents[0][N_ROWS:], 0.0)
        outcomes.append((trace, predicted(chain, data, at)))
    assert_padding_is_silent(*outcomes)


@jit
def predicted(chain, data, at):
    params, latents = chain.params, chain.imputation.latents
    member = ensemble.build_member(NETWORK, params, latents, data)
    conditioned = ensemble.all_conditioned(NETWORK, params, latents, data)
    entered = predict.enter(
        NETWORK,
        params,
        ensemble.conditioned(NETWORK, params, data),
        member.alpha[None],
        data,
        predict.Points(at),
    )
    prepared = [predict.prepare(NETWORK, method, params, member, data) for method in LEVELS]
    first = Gaussian(entered.means[0], entered.var)
    return (
        entered,
        [
            predict.propagate(NETWORK, method, params, member, one, data, predict.Points(at), first)
            for method, one in zip(LEVELS, prepared, strict=True)
        ],
        joint.draw(jnp.array([0, 5], jnp.uint32), NETWORK, params, conditioned, member, data, at),
        ensemble.conditional_mean(NETWORK, params, member, data, at),
    )
