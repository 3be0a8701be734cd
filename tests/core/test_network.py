"""What a layer reads and how densities add up, against processes computed one by one."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from core import builders
from core.builders import data_of
from oracles import Process
from programs import quick_jit

from deepemu.core.kernels import families
from deepemu.core.model import network
from deepemu.core.model.network import LayerParams, LayerSpec
from deepemu.core.model.priors import Independent

N_ROWS = 7


def layer(kernel, reads, shared_lengthscale=False):
    reads = tuple(tuple(bool(c) for c in row) for row in reads)
    return LayerSpec(
        families.by_name(kernel), reads, Independent(), shared_lengthscale, True, False
    )


NETWORK = builders.network(
    2,
    layer("squared_exponential", [[1, 1], [0, 1], [1, 0]]),
    layer("matern32", [[1, 0, 1, 0, 1], [1, 1, 1, 1, 1]]),  # reads x as well
    layer("matern52", [[1, 1], [0, 1]]),  # does not
)
COUNTS, SQUARES = np.array([1, 2, 1, 1, 3, 1, 1]), np.array([0.3, 0.1])


def numbers(rng, net):
    """Random parameters, and the same as a process for each node."""
    params, processes = [], []
    for spec in net.layers:
        lengthscale = rng.uniform(0.4, 1.5, (spec.width, spec.n_columns))
        scale, nugget = rng.uniform(0.5, 2.0, spec.width), rng.uniform(0.01, 0.1, spec.width)
        params.append(LayerParams(*(jnp.log(v) for v in (lengthscale, scale, nugget))))
        name = {families.by_name(k): k for k in oracles.KERNELS}[spec.kernel]
        read = np.where(spec.reads, lengthscale, np.inf)
        processes.append([Process(name, *row) for row in zip(read, scale, nugget, strict=True)])
    return tuple(params), processes


@pytest.fixture
def data(rng):
    x, y = rng.uniform(size=(N_ROWS, 2)), rng.normal(size=(N_ROWS, 2))
    return data_of(x, y, COUNTS.astype(float), SQUARES)


@pytest.fixture
def latents(rng):
    return tuple(jnp.asarray(rng.normal(size=(N_ROWS, spec.width))) for spec in NETWORK.layers[:-1])


@functools.partial(quick_jit, static_argnums=(0, 1))
def layer_log_density(net, index, params, latents, data):
    return network.layer_log_density(net, index, params, latents, data)


def test_shape_of_the_network():
    assert (NETWORK.depth, NETWORK.n_imputed, NETWORK.layers[-1].width) == (3, 2, 2)
    assert [(s.width, s.n_columns) for s in NETWORK.layers] == [(3, 2), (2, 5), (2, 2)]


def test_inputs_of_each_layer(data, latents):
    at = [network.layer_inputs(NETWORK, i, data.x, latents) for i in range(3)]
    np.testing.assert_array_equal(at[0], data.x)
    np.testing.assert_array_equal(at[1], np.hstack([latents[0], data.x]))
    np.testing.assert_array_equal(at[2], latents[1])


def test_targets_of_each_layer(data, latents):
    at = [network.layer_targets(NETWORK, i, data, latents) for i in range(3)]
    for target, expected in zip(at, (*latents, data.observed.y), strict=True):
        np.testing.assert_array_equal(target, expected)


def test_hidden_densities_are_sums_over_nodes_with_the_kernel_of_the_layer(rng, data, latents):
    params, processes = numbers(rng, NETWORK)
    inputs = (data.x, np.hstack([latents[0], data.x]))
    for index in range(2):
        expected = sum(
            process.log_density(np.asarray(inputs[index]), np.asarray(latents[index])[:, node])
            for node, process in enumerate(processes[index])
        )
        value = layer_log_density(NETWORK, index, params, latents, data)
        np.testing.assert_allclose(value, expected, rtol=1e-10)


def test_nodes_that_share_a_kernel_have_one_factor(rng, data, latents):
    """The density is still a sum over processes of equal lengthscales and nuggets, whose scales
    differ; and no factor is computed in a loop over nodes."""
    own = layer("matern52", [[1, 1, 1, 1, 1]] * 2)
    nets = [
        replace(NETWORK, layers=(NETWORK.layers[0], spec, NETWORK.layers[2]))
        for spec in (own, replace(own, shares_kernel=True))
    ]
    params, _ = numbers(rng, nets[0])
    equal = [jnp.tile(of[:1], (2,) + (1,) * (of.ndim - 1)) for of in jax.tree.leaves(params[1])]
    middle = replace(params[1], log_lengthscale=equal[0], log_nugget=equal[2])
    params = (params[0], middle, params[2])
    inputs = np.hstack([latents[0], data.x])
    expected = sum(
        Process("matern52", *(np.exp(np.asarray(of))[node] for of in jax.tree.leaves(middle)))
        .log_density(inputs, np.asarray(latents[1])[:, node])
        for node in range(2)
    )  # fmt: skip
    for net, loops in zip(nets, (True, False), strict=True):
        value = layer_log_density(net, 1, params, latents, data)
        np.testing.assert_allclose(value, expected, rtol=1e-10)
        trace = jax.make_jaxpr(functools.partial(network.layer_log_density, net, 1))
        assert ("scan" in str(trace(params, latents, data))) == loops


def test_density_of_several_outputs_with_replicates(rng, data, latents):
    """Replicates whose means and squares are those of the data, one column of rows per output."""
    params, processes = numbers(rng, NETWORK)
    rows = np.repeat(np.asarray(latents[1]), COUNTS, axis=0)
    y = np.repeat(np.asarray(data.observed.y), COUNTS, axis=0)
    # Rows 1 (twice) and 4 (three times) are spread about their means by ±e.
    spread = np.sqrt(SQUARES / 4)
    y[[1, 2]] += np.array([1.0, -1.0])[:, None] * spread
    y[[5, 6, 7]] += np.array([1.0, 0.0, -1.0])[:, None] * spread
    expected = sum(
        process.log_density(rows, y[:, node]) for node, process in enumerate(processes[2])
    )
    value = layer_log_density(NETWORK, 2, params, latents, data)
    np.testing.assert_allclose(value, expected, rtol=1e-10)


def test_a_column_that_is_not_read_has_no_influence(rng, data, latents):
    net = builders.network(2, layer("matern52", [[1, 0], [1, 0]]))
    params, _ = numbers(rng, net)

    def value(x, params):
        return layer_log_density(net, 0, params, (), replace(data, x=jnp.asarray(x)))

    other_x = np.array(data.x)
    other_x[:, 1] = rng.normal(size=N_ROWS)
    other_lengthscale = np.array(params[0].log_lengthscale)
    other_lengthscale[:, 1] += 1.0
    other = (
        LayerParams(jnp.asarray(other_lengthscale), params[0].log_scale, params[0].log_nugget),
    )
    assert value(other_x, params) == value(data.x, params)
    assert value(data.x, other) == value(data.x, params)
    other_x[:, 0] += 0.1 * rng.normal(size=N_ROWS)
    assert value(other_x, params) != value(data.x, params)


def test_replicates_are_known_to_the_last_layer_only(data):
    hidden, last = (network.layer_sites(NETWORK, i, data) for i in (0, 2))
    np.testing.assert_array_equal(hidden.counts, np.ones((3, N_ROWS)))
    np.testing.assert_array_equal(hidden.squares, np.zeros(3))
    np.testing.assert_array_equal(last.counts, np.tile(COUNTS, (2, 1)))
    np.testing.assert_array_equal(last.squares, SQUARES)


def test_geometry_of_a_layer(rng):
    inputs, used = rng.normal(size=(6, 3)), np.array([True, True, True, True, False, False])
    inputs[4:] = 1e6  # padded rows have no range
    reads = [[1, 1, 0], [1, 1, 1]]
    own = network.geometry(layer("matern52", reads), jnp.asarray(inputs), jnp.asarray(used))
    np.testing.assert_allclose(own.span, np.tile(np.ptp(inputs[:4], axis=0), (2, 1)))
    np.testing.assert_array_equal(own.weight, reads)
    np.testing.assert_array_equal(own.n_rows, [4, 4])
    spec = layer("matern52", reads, shared_lengthscale=True)
    shared = network.geometry(spec, jnp.asarray(inputs), jnp.asarray(used))
    np.testing.assert_allclose(shared.weight, [[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
