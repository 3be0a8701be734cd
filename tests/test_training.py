"""The host side of training: where chains and ascents start, and what ends them."""

import tracemalloc
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from deepemu import DGP, NumericalError
from deepemu.core.inference import sem
from deepemu.core.inference.m_step import Maximise
from deepemu.core.inference.steps import NodeWise
from deepemu.core.model.network import LayerParams
from deepemu.core.model.observation import Units
from deepemu.core.nodes.dense import Dense
from deepemu.data.sites import SiteData
from deepemu.ensembles import assembly
from deepemu.observations.gaussian import GaussianNoise
from deepemu.runtime import padding
from deepemu.training import blocks, plain, start
from deepemu.training.blocks import Blocks, has_settled
from deepemu.training.chains import average
from deepemu.training.layers import Layer, build_network
from deepemu.training.plan import CHECK_EVERY, Plan


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


NOISE = GaussianNoise()


def network_of(layers, n_inputs, n_outputs=1):
    return build_network(layers, n_inputs, n_outputs, NOISE, Dense())


def sites_at(x):
    """Distinct inputs, at each of which zero was observed once."""
    site, units = np.arange(len(x)), Units(np.zeros(1), np.ones(1))
    return SiteData(x, NOISE.collapse(np.zeros((len(x), 1)), site, units), site, units)


def latents_of(widths, x):
    """The latents of rows in use; padding is zero."""
    network = network_of([*(Layer(width=width) for width in widths), Layer()], x.shape[1])
    latents = [np.asarray(w) for w in start.starting_latents(network, NOISE, sites_at(x))]
    for latent in latents:
        assert len(latent) == padding.bucket(len(x))
        np.testing.assert_array_equal(latent[len(x) :], 0.0)
    return [latent[: len(x)] for latent in latents]


def test_hidden_layers_start_as_the_inputs(rng):
    x = rng.random((5, 3))
    first, second = latents_of([3, 3], x)
    for latent in (first, second):
        np.testing.assert_array_equal(latent, x)


def test_wide_layers_repeat_the_inputs(rng):
    x = rng.random((5, 2))
    (latent,) = latents_of([5], x)
    np.testing.assert_array_equal(latent, x[:, [0, 1, 0, 1, 0]])


@pytest.mark.parametrize("n_rows", [20, 2])
def test_narrow_layers_start_at_principal_components(rng, n_rows):
    along = rng.random(n_rows)
    x = np.column_stack([along, 2 * along, -along]) + 1e-6 * rng.random((n_rows, 3))
    (latent,) = latents_of([2], x)
    assert latent.shape == (n_rows, 2)
    assert latent.min() >= 0 and latent.max() <= 1
    assert abs(np.corrcoef(latent[:, 0], along)[0, 1]) > 0.999


def test_a_narrow_layer_of_many_rows_starts_in_little_memory(rng):
    """Of all left singular vectors there are as many as rows."""
    sites = sites_at(rng.random((2000, 3)))
    network = network_of([Layer(width=2), Layer()], 3)
    tracemalloc.start()
    try:
        start.starting_latents(network, NOISE, sites)
        assert tracemalloc.get_traced_memory()[1] < 20 * sites.x.nbytes
    finally:
        tracemalloc.stop()


def test_constant_inputs_start_at_zero():
    (latent,) = latents_of([1], np.full((4, 3), 7.0))
    np.testing.assert_array_equal(latent, 0.0)


def test_params_start_at_unit_lengthscales():
    network = network_of([Layer(width=2), Layer()], 3)
    hidden, last = start.starting_params(network, [1.0, 4.0], [1e-6, 0.5])
    assert hidden.log_lengthscale.shape == (2, 3)
    assert last.log_lengthscale.shape == (1, 5)
    np.testing.assert_array_equal(hidden.log_lengthscale, 0.0)
    np.testing.assert_allclose(np.exp(last.log_scale), [4.0])
    np.testing.assert_allclose(np.exp(last.log_nugget), [0.5])
    np.testing.assert_allclose(np.exp(hidden.log_nugget), [1e-6, 1e-6])


def test_chains_start_alike_with_the_full_circle(rng):
    network = network_of([Layer(width=2), Layer()], 2)
    params = start.starting_params(network, [1.0, 1.0], [1e-6, 1e-6])
    latents = start.starting_latents(network, NOISE, sites_at(rng.random((4, 2))))
    for bracket in (0.5, 16.0, np.inf):
        plan = Plan(
            NodeWise(), Maximise(), n_chains=3, n_iter=5, burn_in=0.75, n_sweeps=1, n_scoring=1,
            n_imputations=1, bracket=bracket, stops_early=False, n_folds=0,
        )  # fmt: skip
        chains = start.start_chains(plan, params, latents)
        assert len(chains) == 3
        for chain in chains:
            assert chain.imputation.latents[0].shape == (16, 2)
            assert chain.params[1].log_lengthscale.shape == (1, 4)
            angles = np.asarray(chain.imputation.angles[0])
            assert np.all(angles > 0)  # or inf times zero would be no bracket
            assert np.all(angles * bracket >= 2 * np.pi * (1 - 1e-12))


def test_ascents_start_at_the_given_point_and_others(rng):
    network = network_of([Layer()], 3, 2)
    (params,) = start.starting_params(network, [1.0], [1e-6])
    starts = plain._gp_starts(params, 0)
    n_starts = 1 + len(plain.GP_STARTS) + 2
    assert starts.log_lengthscale.shape == (n_starts, 2, 3)
    assert starts.log_scale.shape == starts.log_nugget.shape == (n_starts, 2)
    np.testing.assert_array_equal(starts.log_lengthscale[0], 0.0)
    lengthscales = np.exp(starts.log_lengthscale[1:])
    assert lengthscales.min() >= 0.05 - 1e-12 and lengthscales.max() <= 3 + 1e-12
    again, other = plain._gp_starts(params, 0), plain._gp_starts(params, 1)
    np.testing.assert_array_equal(again.log_lengthscale, starts.log_lengthscale)
    assert np.any(np.asarray(other.log_lengthscale) != np.asarray(starts.log_lengthscale))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_density_that_is_not_finite_is_an_error(bad):
    with pytest.raises(NumericalError, match="raise the nugget"):
        assembly.require_finite(np.array([[0.0, bad]]))
    assembly.require_finite(np.array([[0.0, -1e9]]))


def test_average_is_the_mean_on_the_natural_scale(rng):
    path = rng.normal(size=(2, 7, 3))
    expected = np.log([[np.exp(path[k, :, d]).sum() / 7 for d in range(3)] for k in range(2)])
    np.testing.assert_allclose(average(path), expected, rtol=1e-12)


# --- blocks and early stopping ---------------------------------------------------------------


def paths(n_chains, n_iter, rise=0.0, drift=0.0, seed=0):
    """A trace whose log density and lengthscales are noise about lines."""
    rng = np.random.default_rng(seed)
    time = np.arange(n_iter)[None, :]
    noise = lambda *shape: rng.normal(size=(n_chains, n_iter, *shape))  # noqa: E731
    params = LayerParams(
        noise(2, 3) + drift * time[..., None, None], np.zeros((n_chains, n_iter, 2)), noise(2)
    )
    return sem.Trace((params,), noise() + rise * time)


def share_settled(**of):
    return np.mean([has_settled(paths(seed=seed, **of)) for seed in range(40)])


@pytest.mark.parametrize("n_chains", [4, 5, 8, 32])
def test_paths_that_go_nowhere_have_settled(n_chains):
    """Chance makes the density rise by a standard error one time in six."""
    assert share_settled(n_chains=n_chains, n_iter=100) > 0.5


def test_equal_chains_settle_once_they_stand_still():
    """Chains of one layer draw nothing: they have no spread over chains."""
    time = np.arange(100.0)
    for path, settled in ((np.exp(-time), True), (time, False)):
        alike = np.tile(path, (8, 1))
        params = LayerParams(alike[..., None, None], 0 * alike[..., None], alike[..., None])
        assert has_settled(sem.Trace((params,), alike)) is settled


def test_one_layer_of_many_chains_stops_early(rng):
    x = rng.random((9, 2))
    settings = {"depth": 1, "n_iter": 400, "n_imputations": 1, "stacking": False}
    emulator = DGP(**settings).fit(x, np.sin(3 * x[:, 0]))
    assert emulator.trace_["log_density"].shape[1] < 400


@pytest.mark.parametrize(
    "of",
    [
        {"n_chains": 8, "n_iter": 100, "rise": 0.05},
        {"n_chains": 8, "n_iter": 100, "drift": 0.05},
        {"n_chains": 3, "n_iter": 100},
        {"n_chains": 8, "n_iter": 59},
    ],
)
def test_paths_that_rise_or_drift_or_are_few_or_short_have_not(of):
    assert share_settled(**of) < 0.05


@pytest.mark.parametrize("seconds", [1e-9, 0.2, 1e3])
def test_blocks_fill_the_iterations_whatever_they_take(seconds):
    blocks, lengths = Blocks(50, False), []
    while n_next := blocks.n_next:
        lengths.append(n_next)
        blocks.add(paths(2, n_next), seconds * n_next)
    assert sum(lengths) == blocks.n_done == 50
    assert max(lengths) <= CHECK_EVERY
    assert blocks.trace.log_density.shape == (2, 50)
    assert (max(lengths) == 1) == (seconds > 1)


def test_training_ends_at_the_first_check_that_finds_it_settled():
    whole = paths(8, 200, seed=3)
    ends = [n for n in range(20, 201, 20) if has_settled(head(whole, n))]
    blocks = Blocks(200, True)
    while n_next := blocks.n_next:
        piece = jax.tree.map(
            lambda path: path[:, blocks.n_done : blocks.n_done + n_next],  # noqa: B023
            whole,
        )
        blocks.add(piece, 0.01)
    assert blocks.n_done == ends[0] < 200


@pytest.mark.parametrize(("seed", "stops_early"), [(3, True), (3, False)])
def test_blocks_go_on_from_their_state(seed, stops_early):
    """At any place, with blocks of the same lengths and to the same end."""
    found = []
    for go_on in (lambda blocks: blocks, lambda blocks: resumed(blocks, stops_early)):
        whole, blocks, lengths = paths(8, 200, seed=seed), Blocks(200, stops_early, True), []
        while n_next := blocks.n_next:
            lengths.append((n_next, blocks.searches))
            piece = slice(blocks.n_done, blocks.n_done + n_next)
            blocks.add(jax.tree.map(lambda path: path[:, piece], whole), 0.01)  # noqa: B023
            blocks = go_on(blocks)
        np.testing.assert_array_equal(
            blocks.trace.log_density, whole.log_density[:, : blocks.n_done]
        )
        found.append(lengths)
    assert found[0] == found[1] and (sum(n for n, _ in found[0]) < 200) == stops_early


def resumed(blocks, stops_early):
    again = Blocks(200, stops_early, True)
    again.resume(blocks.state)
    return again


def test_blocks_that_the_time_has_ended_do_not_go_on():
    blocks, again = Blocks(50, False), Blocks(50, False)
    blocks.add(paths(2, 1), 0.01)
    blocks.end()
    again.resume(blocks.state)
    assert again.n_next == 0 and again.n_done == 1


def head(trace, n):
    return jax.tree.map(lambda path: path[:, :n], trace)


def test_an_easy_problem_stops_early_and_only_if_allowed(rng):
    """A straight line leaves nothing to learn."""
    x = np.linspace(0, 1, 6)[:, None]
    settings = {"n_chains": 8, "n_sweeps": 1, "n_imputations": 1, "n_iter": 200}
    stopped, in_full = (
        DGP(**settings, early_stopping=early).fit(x, x[:, 0]) for early in (True, False)
    )
    n_done = stopped.trace_["log_density"].shape[1]
    assert n_done < 200 and n_done % CHECK_EVERY == 0
    assert in_full.trace_["log_density"].shape == (8, 200)
    np.testing.assert_array_equal(
        stopped.trace_["log_density"], in_full.trace_["log_density"][:, :n_done]
    )


def test_a_chain_that_is_not_finite_is_named_after_its_block():
    fine, lost = (
        SimpleNamespace(params=np.array([value]), imputation=SimpleNamespace(latents=()))
        for value in (1.0, np.nan)
    )
    with pytest.raises(NumericalError, match=r"Chain 2 is not finite after iteration 30\..*nugget"):
        blocks._require_numbers([fine, lost], 30)
    assert blocks._require_numbers([fine, fine], 30) is None
