"""Rows that chains are trained without: which they are, that they stay unseen, their return."""

import copy
import dataclasses
from unittest import mock

import jax
import numpy as np
import pytest
from oracles import Process
from programs import quick_jit

from deepemu import DGP, InputError
from deepemu.core.distributions import Gaussian
from deepemu.core.inference import impute, sem
from deepemu.core.inference.m_step import InTurn
from deepemu.core.inference.multistart import best_ascent
from deepemu.core.model.observation import Units
from deepemu.core.nodes.dense import Dense
from deepemu.data.names import numbered
from deepemu.data.sites import SiteData, first_rows, pack, pack_without, sites_of
from deepemu.ensembles import assembly, prediction
from deepemu.observations.gaussian import GaussianNoise, Interpolated
from deepemu.runtime import devices, padding
from deepemu.training import chains as chains_module
from deepemu.training import folds, growth, plain
from deepemu.training.layers import Layer, build_network
from deepemu.training.start import starting_params
from deepemu.training.structures import PlainGP, Problem

pytestmark = [
    # Few rows and iterations: error bars are not what is asked about here.
    pytest.mark.filterwarnings("ignore::deepemu.ConvergenceWarning"),
]


@pytest.fixture(autouse=True)
def double_precision():
    with devices.running(devices.Runtime()):
        yield


NOISE = GaussianNoise()
# One network for all chains, and one plain process beside them: each is compiled once.
SMOOTH = {"kernel": "squared_exponential"}
SMALL = {"n_chains": 4, "n_iter": 6, "n_sweeps": 2, **SMOOTH}
ascent = quick_jit(best_ascent, static_argnames=("network", "nodes"))


def network_of(layers, n_inputs, observation=NOISE):
    return build_network(layers, n_inputs, 1, observation, Dense())


def units_of(n_outputs):
    return Units(np.zeros(n_outputs), np.ones(n_outputs))


def data_of(x, y, n_copies=1, rng=None):
    """Each row ``n_copies`` times, with noise if there are several."""
    x, y = np.repeat(x, n_copies, axis=0), np.repeat(y, n_copies, axis=0)
    noise = 0.0 if n_copies == 1 else 0.1 * rng.normal(size=y.shape)
    site, units = sites_of(x), units_of(y.shape[1])
    return SiteData(x[first_rows(site)], NOISE.collapse(y + noise, site, units), site, units)


def some(sites, rows):
    """Sites as if the others had never been there."""
    observed = jax.tree.map(lambda each: np.asarray(each)[rows], sites.observed)
    return SiteData(sites.x[rows], observed, np.arange(int(rows.sum())), sites.units)


def predicted(imputed, at):
    """Moments (chains, imputations, m, P) by each imputed network."""
    return prediction.chain_latents(prediction.chains_of(imputed), at)


def imputation_of(latents, bracket):
    return impute.start(latents, np.float64(bracket))


# --- who does without what -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_sites", "n_chains"), [(8, 4), (12, 4), (13, 8), (30, 6), (9, 5), (3, 4), (2, 8)]
)
def test_folds_partition_the_sites(n_sites, n_chains):
    rows = folds.held_out_sites(3, n_sites, n_chains, 4)
    n_folds = min(4, n_sites)
    assert rows.shape == (n_chains, n_sites)
    for chain in range(n_folds, n_chains):
        np.testing.assert_array_equal(rows[chain], rows[chain % n_folds])
    np.testing.assert_array_equal(rows[:n_folds].sum(axis=0), 1)
    sizes = rows.sum(axis=1)
    assert sizes.min() >= 1 and sizes.max() - sizes.min() <= 1
    times = rows.sum(axis=0)
    assert set(times) <= {n_chains // n_folds, -(-n_chains // n_folds)}


def test_folds_follow_the_seed():
    first, again, other = (folds.held_out_sites(seed, 40, 4, 4) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert np.any(first[0] != (np.arange(40) % 4 == 0))  # drawn at random


# --- rows turned into padding ----------------------------------------------------------------


@pytest.mark.parametrize("n_copies", [1, 3])
def test_padding_rows_is_as_if_they_had_not_been_there(rng, n_copies):
    """In the ascent of the parameters, with their noise, and in predictions with those found."""
    x = rng.random((11, 2))
    sites = data_of(x, np.sin(5 * x[:, :1]) + x[:, 1:], n_copies, rng)
    rows = np.isin(np.arange(11), [0, 4, 5, 9])
    network = network_of([Layer(nugget="estimate", prior="reference")], 2)
    (start,) = starting_params(network, [1.0], [1e-3])
    starts = plain._gp_starts(start, 0)
    padded, absent = pack_without(sites, rows), pack(some(sites, ~rows))
    counts = np.asarray(padded.observed.counts)[:11, 0]
    np.testing.assert_array_equal(counts, np.where(rows, 0, n_copies))
    squares = [np.sum(data.observed.squares, axis=0) for data in (padded, absent)]
    np.testing.assert_allclose(*squares, rtol=1e-12)
    (found, value), (expected, expected_value) = (
        ascent(network, InTurn(), starts, data, 3, 5, 1e-7) for data in (padded, absent)
    )
    np.testing.assert_allclose(value, expected_value, rtol=1e-8)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, expected)

    at = rng.random((6, 2))
    chain = sem.Chain((expected,), plain.NOTHING_IMPUTED)
    moments = predicted(assembly.as_they_are(network, padded, [chain]), at)
    process = Process(
        "matern52",
        np.exp(np.asarray(expected.log_lengthscale))[0],
        float(np.exp(expected.log_scale)[0]),
        float(np.exp(expected.log_nugget)[0]),
    )
    mean, cov = process.predict(x[~rows], sites.observed.y[~rows, 0], at, n_copies)
    np.testing.assert_allclose(moments.mean[0, 0, :, 0], mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(moments.var[0, 0, :, 0], np.diag(cov), rtol=1e-5)


def test_packing_without_rows_changes_nothing_else(rng):
    sites = data_of(rng.random((5, 2)), rng.normal(size=(5, 2)), 2, rng)
    before = copy.deepcopy(sites)
    data = pack_without(sites, np.array([False, True, False, False, True]))
    np.testing.assert_array_equal(np.asarray(data.x)[:5], sites.x)
    np.testing.assert_array_equal(np.asarray(data.used)[:5], [1, 0, 1, 1, 0])
    for name in ("y", "counts", "squares"):
        packed, given = (np.asarray(getattr(of.observed, name)) for of in (data, sites))
        np.testing.assert_array_equal(packed[[0, 2, 3]], given[[0, 2, 3]])
        np.testing.assert_array_equal(packed[[1, 4]], 0.0)
    for field in dataclasses.fields(sites):
        both = (getattr(of, field.name) for of in (sites, before))
        jax.tree.map(np.testing.assert_array_equal, *both)


def deep_chain(rng, x, size, width=2):
    """A chain of one hidden layer with parameters and hidden variables of no fit."""
    network = network_of([Layer(width=width), Layer()], x.shape[1])
    params = tuple(
        jax.tree.map(lambda leaf: np.asarray(leaf) + 0.3 * rng.normal(size=np.shape(leaf)), each)
        for each in starting_params(network, [1.0, 1.0], [1e-4, 1e-4])
    )
    latents = (np.asarray(padding.pad_rows(rng.normal(size=(len(x), width)), size)),)
    return network, sem.Chain(params, imputation_of(latents, 16.0))


def without_latents(chain, rows):
    """The chain with zeros for the latents of some sites."""
    kept, latents = np.flatnonzero(~rows), chain.imputation.latents
    size = len(latents[0])
    back = folds.scattered(folds.gathered(latents, kept, size), kept, size)
    return growth.with_latents(chain, back)


@pytest.mark.parametrize("size", [4, 7])
def test_rows_are_gathered_and_scattered(rng, size):
    whole = {"one": rng.random((16, 2)), "other": rng.random(16)}
    rows = np.array([1, 2, 4, 5])
    few = folds.gathered(whole, rows, size)
    back = folds.scattered(few, rows, 16)
    for name, values in whole.items():
        np.testing.assert_array_equal(few[name][:4], values[rows])
        np.testing.assert_array_equal(few[name][4:], 0.0)
        np.testing.assert_array_equal(back[name][rows], values[rows])
        np.testing.assert_array_equal(np.delete(back[name], rows, axis=0), 0.0)


def test_chains_are_trained_on_few_or_on_padded_rows_alike(rng):
    """Whatever the program's size, what a chain holds out changes nothing, nor does padding."""
    x = rng.random((24, 2))
    y = np.sin(5 * x[:, 0]) + x[:, 1]
    settings = {"n_chains": 4, "n_iter": 4, "n_sweeps": 2, "n_imputations": 1, "width": 1}
    found = []
    for work in (0.0, np.inf):
        with mock.patch.object(chains_module, "ONE_PROGRAM", work):
            found.append(DGP(kernel="squared_exponential", **settings).fit(x, y))
    few, padded = (emulator.trace_["log_density"] for emulator in found)
    np.testing.assert_allclose(few, padded, rtol=1e-6)
    np.testing.assert_allclose(found[0].predict(x[:3]), found[1].predict(x[:3]), rtol=1e-5)


# --- and their return ------------------------------------------------------------------------


def hidden_mean(chain, x, latents, at):
    """k(at, x) (K + nugget I)^-1 w for each hidden node."""
    params = chain.params[0]
    columns = []
    for node in range(latents.shape[1]):
        process = Process(
            "matern52", np.exp(params.log_lengthscale[node]), 1.0, np.exp(params.log_nugget[node])
        )
        columns.append(process.predict(x, latents[:, node], at)[0])
    return np.stack(columns, axis=1)


def test_rows_come_back_at_their_conditional_mean(rng):
    x, y = rng.random((9, 2)), rng.normal(size=(9, 1))
    network, chain = deep_chain(rng, x, 16)
    left_out = np.zeros((2, 9), bool)
    left_out[0, [1, 4]], left_out[1, [0, 5, 8]] = True, True
    chains = [without_latents(chain, rows) for rows in left_out]
    data = [pack_without(data_of(x, y), rows) for rows in left_out]
    filled = growth.fill_in(network, chains, data, x, left_out)
    whole = chain.imputation.latents[0][:9]
    for got, rows in zip(filled, left_out, strict=True):
        (latents,) = got.imputation.latents
        np.testing.assert_array_equal(latents[:9][~rows], whole[~rows])
        expected = hidden_mean(chain, x[~rows], whole[~rows], x[rows])
        np.testing.assert_allclose(latents[:9][rows], expected, rtol=1e-8, atol=1e-10)
        np.testing.assert_array_equal(latents[9:], 0.0)


def test_new_rows_start_at_their_conditional_mean(rng):
    """Also where they do not fit into the padding."""
    x, y = rng.random((20, 2)), rng.normal(size=(20, 1))
    network, chain = deep_chain(rng, x[:14], 16)
    old, grown = pack(data_of(x[:14], y[:14])), pack(data_of(x, y))
    (got,) = growth.extend_chains(network, [chain], old, grown, 14, 6)
    (before,), (latents,) = chain.imputation.latents, got.imputation.latents
    assert latents.shape == (32, 2)
    np.testing.assert_array_equal(latents[:14], before[:14])
    expected = hidden_mean(chain, x[:14], before[:14], x[14:])
    np.testing.assert_allclose(latents[14:20], expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(latents[20:], 0.0)


# --- honesty ---------------------------------------------------------------------------------


def train(x, y, n_chains=4, inference="imputation", seed=5):
    changes = {"n_chains": n_chains, "inference": inference, "early_stopping": False}
    settings = DGP(**(SMALL | changes), verbose=False)
    problem = Problem(1, Interpolated(), Dense(), numbered("x", x.shape[1]))
    return settings.structure(problem, 4).train(seed, data_of(x, y), False)


@pytest.mark.parametrize("inference", ["imputation", "full_bayes"])
def test_a_chain_does_not_see_the_outputs_that_it_predicts(rng, inference):
    """Not in a single bit. Others, which are given those outputs, change."""
    x = rng.random((12, 1))
    y = np.sin(5 * x)
    first = train(x, y, inference=inference).held_out
    hidden = first.mask[0]
    assert 0 < hidden.sum() < 12
    second = train(x, np.where(hidden[:, None], -7.0, y), inference=inference).held_out
    np.testing.assert_array_equal(first.mask, second.mask)
    for a, b in (
        (first.latents.mean, second.latents.mean),
        (first.latents.var, second.latents.var),
    ):
        np.testing.assert_array_equal(a[0], b[0])
        for k in range(1, 4):
            assert np.all(a[k][:, first.mask[k]] != b[k][:, first.mask[k]])


def test_held_out_moments_stand_at_unseen_sites_only(rng):
    x = rng.random((10, 1))
    trained = train(x, np.sin(6 * x), n_chains=5)
    held_out = trained.held_out
    assert held_out.latents.mean.shape == (5, 5, 10, 1)
    for imputation in range(5):
        found = held_out.latents.mean[:, imputation], held_out.latents.var[:, imputation]
        np.testing.assert_array_equal(found[1][..., 0] > 0, held_out.mask)
        np.testing.assert_array_equal(found[0][~held_out.mask], 0.0)
    np.testing.assert_array_equal(held_out.n_imputations, 5 * held_out.mask)
    np.testing.assert_array_equal(held_out.mask.sum(axis=0) >= 1, True)
    # Chains 0 and 4 leave out the same rows, but draw their own numbers.
    same = held_out.mask[0]
    np.testing.assert_array_equal(same, held_out.mask[4])
    mean = held_out.latents.mean
    assert np.all(mean[0][:, same] != mean[4][:, same])
    assert np.all(mean[0, 0, same] != mean[0, 1, same])  # imputations are apart


def test_in_the_end_all_chains_have_all_rows(rng):
    x = rng.random((10, 1))
    y = np.sin(6 * x)
    trained = train(x, y)
    moments = predicted(trained.imputed, x)
    np.testing.assert_allclose(moments.mean, np.broadcast_to(y, (4, 5, 10, 1)), atol=0.02)
    assert trained.trace.log_density.shape == (4, 6)


def test_new_sites_may_have_another_number_of_imputations(rng):
    """Places that a site does not fill have no share, whatever stands in them."""
    old = folds.HeldOut(
        Gaussian(rng.normal(size=(2, 2, 3, 1)), rng.random((2, 2, 3, 1))),
        np.array([[2, 0, 2], [0, 2, 2]]),
    )
    new = Gaussian(rng.normal(size=(2, 3, 4, 1)), rng.random((2, 3, 4, 1)))
    grown = folds.with_new_sites(old, new)
    assert grown.latents.mean.shape == (2, 3, 7, 1)
    np.testing.assert_array_equal(grown.n_imputations[:, 3:], 3)
    np.testing.assert_array_equal(grown.latents.mean[:, :2, :3], old.latents.mean)
    np.testing.assert_array_equal(grown.latents.var[:, :, 3:], new.var)
    np.testing.assert_allclose(grown.shares[0, :, 0], [0.5, 0.5, 0.0])
    np.testing.assert_array_equal(grown.shares[0, :, 1], 0.0)
    np.testing.assert_allclose(grown.shares[:, :, 3:], 1 / 3)
    both = folds.join([old, grown_alone(new)])
    assert both.latents.mean.shape == (4, 3, 3, 1) and both.mask.shape == (4, 3)
    np.testing.assert_allclose(both.shares.sum(axis=1), both.mask)


def grown_alone(new):
    """The first three sites of predictions that are there for all."""
    cut = jax.tree.map(lambda each: each[:, :, :3], new)
    return folds.HeldOut(cut, np.full((2, 3), 3))


# --- plain Gaussian processes ----------------------------------------------------------------


def train_plain(sites, seed, n_folds):
    network = network_of([Layer(prior="reference", **SMOOTH)], 1, Interpolated())
    start = starting_params(network, [1.0], [1e-6])
    return PlainGP("plain", network, start, n_folds).train(seed, sites, False)


def test_a_gp_predicts_folds_as_if_fitted_without_them():
    x = np.linspace(0, 1, 14)[:, None]
    sites = data_of(x, np.sin(7 * x) + x)
    trained = train_plain(sites, 3, 4)
    held_out = trained.held_out
    assert held_out.mask.shape == (1, 14) and held_out.mask.all()
    for rows in folds.held_out_sites(3, 14, 4, 4):
        alone = train_plain(some(sites, ~rows), 0, 0)
        (params,) = alone.chains[0].params
        process = Process("squared_exponential", np.exp(params.log_lengthscale)[0],
                          np.exp(params.log_scale)[0], np.exp(params.log_nugget)[0])  # fmt: skip
        mean, cov = process.predict(x[~rows], sites.observed.y[~rows, 0], x[rows])
        std = np.sqrt(np.diag(cov))
        assert np.all(np.abs(held_out.latents.mean[0, 0, rows, 0] - mean) < 1e-3 * std)
        np.testing.assert_allclose(np.sqrt(held_out.latents.var[0, 0, rows, 0]), std, rtol=1e-3)


def test_a_gp_does_not_see_the_outputs_that_it_predicts(rng):
    """Not in a single bit: not by where the ascents start either."""
    x = rng.random((14, 1))
    y = np.sin(7 * x) + x
    hidden = folds.held_out_sites(3, 14, 4, 4)[1]
    first, second = (
        train_plain(data_of(x, outputs), 3, 4).held_out.latents
        for outputs in (y, np.where(hidden[:, None], -7.0, y))
    )
    np.testing.assert_array_equal(first.mean[0, 0, hidden], second.mean[0, 0, hidden])
    np.testing.assert_array_equal(first.var[0, 0, hidden], second.var[0, 0, hidden])
    assert np.all(first.mean[0, 0, ~hidden] != second.mean[0, 0, ~hidden])


@pytest.mark.parametrize("n_sites", [2, 3, 5])
def test_few_sites_are_each_predicted_once(n_sites):
    """Fewer sites than folds: one fold a site."""
    x = np.linspace(0, 1, n_sites)[:, None]
    held_out = train_plain(data_of(x, x**2), 0, 4).held_out
    assert held_out.latents.mean.shape == (1, 1, n_sites, 1)
    assert held_out.mask.shape == (1, n_sites)
    assert np.all(np.abs(held_out.latents.mean[0, 0] - x**2) > 1e-6)


# --- through the estimator -------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"n_chains": 3}, {"stacking": False}, {}], ids=["chains", "off", "rows"]
)
def test_without_stacking_there_is_one_mixture_of_equal_members(rng, change):
    n = 12 if change else 7
    x = rng.random((n, 1))
    emulator = DGP(**(SMALL | change)).fit(x, np.sin(5 * x[:, 0]))
    ((_, weights),) = emulator.posterior_.weights
    np.testing.assert_allclose(weights, 1 / len(weights))
    members = emulator.posterior_.members(x[:1])
    np.testing.assert_allclose(members.weights, 1 / (5 * len(weights)))
    np.testing.assert_array_equal(emulator.posterior_.stacked.stretch, 1.0)
    with pytest.raises(InputError, match="No rows were held out"):
        emulator.loo()
    assert emulator.loo(conditional=True)[0].shape == (n,)
    first, *_ = emulator.plot_diagnostics().axes
    assert first.get_title(loc="left").startswith("Conditional leave-one-out predictions")


@pytest.fixture(scope="module")
def replicated():
    """Twenty rows of ten inputs, and two noisy outputs."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.random((10, 1)), 2, axis=0)
    y = np.sin(5 * x + np.arange(2)) + 0.01 * rng.normal(size=(20, 2))
    return DGP(**SMALL, nugget="estimate").fit(x, 1e3 * y + 7)


@pytest.mark.parametrize("shape", [(12,), (12, 1), (20, 2)])
def test_held_out_predictions_have_the_shape_of_y(rng, shape, request):
    if shape == (20, 2):
        emulator = request.getfixturevalue("replicated")
    else:
        x = rng.random((12, 1))
        emulator = DGP(**SMALL).fit(x, 1e3 * np.sin(5 * x).reshape(shape) + 7)
    y = (emulator.training_outputs.reshape(shape) - 7) / 1e3
    mean, std = emulator.loo()
    assert mean.shape == std.shape == shape
    assert np.all(std > 0) and np.all(std < 1e4)
    assert np.sqrt(np.mean((mean - 1e3 * y - 7) ** 2)) < 1e3 * y.std()
    assert np.all(np.abs(mean - 1e3 * y - 7) > 1e-6)  # not simply read off
    assert sum(np.sum(of) for _, of in emulator.posterior_.weights) == pytest.approx(1.0)
    assert len(emulator.posterior_.structures) == 3


def test_replicates_are_held_out_together(replicated):
    for found in replicated.loo():
        assert found.shape == (20, 2)
        assert len(np.unique(found[:, 0])) == len(np.unique(found[:, 1])) == 10


def test_few_distinct_inputs_are_not_left_out(rng):
    """Twelve rows of three inputs: fewer inputs than folds."""
    x = np.repeat(rng.random((3, 1)), 4, axis=0)
    y = np.hstack([x, x**2]) + 0.01 * rng.normal(size=(12, 2))
    emulator = DGP(**SMALL, nugget="estimate").fit(x, y)
    assert len(emulator.posterior_.structures) == 1
    with pytest.raises(InputError, match="No rows were held out"):
        emulator.loo()


def test_an_update_predicts_new_rows_before_it_adds_them(rng):
    x = rng.random((14, 1))
    y = np.sin(5 * x[:, 0])
    emulator = DGP(**SMALL).fit(x[:11], y[:11])
    deep = emulator.posterior_.structures[0]
    before = predicted(deep.imputed, emulator.posterior_.runs.scale.to_core(x[11:])).mean
    old = deep.held_out.latents.mean
    emulator.update(x[11:], y[11:])
    held_out = emulator.posterior_.structures[0].held_out
    assert held_out.mask.shape == (4, 14) and held_out.mask[:, 11:].all()
    np.testing.assert_allclose(held_out.latents.mean[:, :, 11:], before, rtol=1e-9)
    np.testing.assert_array_equal(held_out.latents.mean[:, :, :11], old)
    mean, std = emulator.loo()
    assert mean.shape == std.shape == (14,) and np.all(std > 0)
    assert np.all(np.abs(mean[11:] - y[11:]) > 1e-6)
    np.testing.assert_allclose(emulator.predict(x), y, atol=0.02)


def test_an_update_with_known_inputs_keeps_the_held_out_predictions(rng):
    x = rng.random((12, 1))
    y = np.sin(5 * x[:, 0])
    emulator = DGP(**SMALL).fit(x, y)
    before = emulator.posterior_.structures[0].held_out
    emulator.update(x[:2], y[:2])
    after = emulator.posterior_.structures[0].held_out
    np.testing.assert_array_equal(before.latents.mean, after.latents.mean)
    assert emulator.loo()[0].shape == (14,)
