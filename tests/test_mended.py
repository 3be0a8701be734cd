"""Behaviour that was once wrong, each with the test that would have shown it."""

import dataclasses
import os
import signal
import warnings

import numpy as np
import pytest

from deepemu import (
    DGP,
    GP,
    ConvergenceWarning,
    DataWarning,
    Emulator,
    InputError,
    InterruptedFitWarning,
    Layer,
)
from deepemu.ensembles import assembly, prediction
from deepemu.runtime import devices, padding, programs
from deepemu.training import candidates, chains, imputations
from deepemu.training.chains import _warmed_up

SMALL = {"n_chains": 2, "n_iter": 6, "n_sweeps": 2, "n_imputations": 3, "verbose": False}

pytestmark = pytest.mark.usefixtures("quick_programs")


@pytest.fixture(scope="module")
def problem():
    x = np.random.default_rng(0).random((12, 2))
    return x, np.sin(5 * x[:, 0]) + x[:, 1]


def test_a_failed_refit_leaves_the_data_of_the_last_fit(problem):
    x, y = problem
    emulator = GP().fit(x, y)
    with pytest.raises(InputError, match="All 5 rows of X are equal"):
        emulator.fit(np.ones((5, 2)), np.arange(5.0))
    emulator.update([[0.5, 0.5]], [np.sin(2.5) + 0.5])
    np.testing.assert_allclose(emulator.predict(x), y, atol=5e-3)


def test_ctrl_c_between_imputations_keeps_those_that_are_there(problem, monkeypatch):
    build = assembly.build_members

    def build_and_interrupt(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return build(*arguments)

    monkeypatch.setattr(imputations, "build_members", build_and_interrupt)
    with pytest.warns(InterruptedFitWarning, match="after 1 of 3 imputations"):
        emulator = DGP(**SMALL).fit(*problem)
    assert len(emulator.ensembles_[0].weights) == 2
    assert emulator.trace_["log_density"].shape == (2, 6)
    assert np.all(np.isfinite(emulator.predict(problem[0])))


def test_an_update_draws_anew(problem, monkeypatch):
    """With an integer random_state, training must not see the seed of the fit again."""
    seeds = []
    keys = padding.keys
    monkeypatch.setattr(chains, "keys", lambda *a: seeds.append(a[1]) or keys(*a))
    x, y = problem
    DGP(**SMALL).fit(x, y).update([[0.5, 0.5]], [1.0]).update([[0.2, 0.7]], [1.0])
    assert len(set(seeds)) == 3


def test_joint_draws_do_not_depend_on_rows_that_follow(problem):
    x, y = problem
    emulator = DGP(**SMALL).fit(x, y)
    at = np.random.default_rng(1).random((20, 2))
    few, many = (emulator.sample_y(at[:n], 3, random_state=5) for n in (4, 20))
    np.testing.assert_allclose(many[:4], few, rtol=1e-6)


def test_a_column_that_was_constant_cannot_vary_in_an_update(problem):
    x, y = problem
    emulator = GP().fit(x * [1, 0], y)
    with pytest.raises(InputError, match=r"column\(s\) \[1\] of X_new vary.*call fit"):
        emulator.update([[0.5, 1e-6]], [1.0])


@pytest.mark.parametrize("nugget", [9e-9, 1e-14])
def test_nuggets_below_round_off_are_refused(problem, nugget):
    with pytest.raises(InputError, match="nugget of layer 1 is .*at least 1e-08"):
        GP(nugget=nugget).fit(*problem)


@pytest.mark.parametrize("kind", ["datetime64[D]", "timedelta64[s]", "U8"])
def test_dates_and_text_are_not_numbers(problem, kind):
    x, _ = problem
    with pytest.raises(InputError, match="y has dtype .*convert it to numbers"):
        GP().fit(x, np.arange(12).astype(kind))


@pytest.mark.parametrize("emulator", [GP(), DGP(**SMALL)], ids=["gp", "dgp"])
def test_predictions_far_away_are_those_of_the_prior(problem, emulator):
    x, y = problem
    mean, std = emulator.fit(x, y).predict(x[:3] * 1e100, return_std=True)
    assert np.all(np.isfinite(mean)) and np.all(std > 0.1)


def test_updates_that_add_no_new_input_draw_anew_too(problem, monkeypatch):
    """The number of distinct inputs stays; the seed must not."""
    seeds = []
    keys = padding.keys
    monkeypatch.setattr(chains, "keys", lambda *a: seeds.append(a[1]) or keys(*a))
    x, y = problem
    DGP(**SMALL).fit(x, y).update(x[:1], y[:1]).update(x[:1], y[:1])
    assert len(set(seeds)) == 3


def test_an_option_that_this_version_of_xla_lacks_is_noticed():
    assert not programs._are_known({"xla_no_such_option": False})


@pytest.fixture
def few_chains(rng):
    x = rng.random((12, 1))
    settings = {"n_chains": 4, "n_iter": 4, "n_sweeps": 1, "n_imputations": 1}
    return x, np.sin(5 * x[:, 0]), settings


def test_conditional_leave_one_out_with_a_structure_that_lost_its_vote(few_chains):
    """Its weights sum to zero, and once made all of it NaN."""
    x, y, settings = few_chains
    emulator = DGP(**settings).fit(x, y)
    first, second, third = emulator.ensembles_
    lost = dataclasses.replace(first, weights=np.zeros_like(first.weights))
    emulator.ensembles_ = (lost, second, third)
    assert np.all(np.isfinite(emulator.loo(conditional=True)))


def test_a_refit_that_fails_in_stacking_changes_nothing(few_chains, monkeypatch):
    x, y, settings = few_chains
    emulator = DGP(**settings).fit(x, y)
    before = emulator.predict(x, return_std=True)

    def fail(*arguments):
        raise RuntimeError("no votes")

    monkeypatch.setattr("deepemu.posterior.stacking.stack_parts", fail)
    with pytest.raises(RuntimeError, match="no votes"):
        emulator.fit(x, 1000 * y + 5)
    np.testing.assert_array_equal(emulator.predict(x, return_std=True), before)


def test_replicates_that_differ_are_judged_by_what_an_interpolating_emulator_saw(few_chains):
    """Their means: their spread would pass for errors of the emulator."""
    x, y, settings = few_chains
    doubled, noise = np.repeat(x, 2, axis=0), np.tile([0.3, -0.3], 12)
    with pytest.warns(DataWarning, match="occur more than once"):
        spread = DGP(**settings).fit(doubled, np.repeat(y, 2) + noise)
    plain = DGP(**settings).fit(x, y)
    # The means are the outputs up to round-off, which a few iterations do not enlarge by much.
    np.testing.assert_allclose(spread.weights_, plain.weights_, atol=1e-5)
    np.testing.assert_allclose(spread._stacked.scale, plain._stacked.scale, atol=1e-5)


def test_plain_processes_predict_new_rows_of_an_update_before_they_see_them(few_chains):
    """As deep ones do: both are judged by the same knowledge."""
    x, y, settings = few_chains
    emulator = DGP(**settings).fit(x[:10], y[:10])
    plain = emulator._parts[1].trained
    core = emulator._data.scaling.x_to_core(x[10:])
    with devices.running(devices.Runtime()):
        expected, _ = prediction.predict_mixture([plain.ensemble], core)
    old = plain.held_out.moments.mean
    emulator.update(x[10:], y[10:])
    now = emulator._parts[1].trained.held_out.moments.mean
    np.testing.assert_allclose(now[0, 10:], expected, rtol=1e-9)
    np.testing.assert_array_equal(now[:, :10], old)


def test_evaluations_of_whole_layers_are_counted_a_layer(rng):
    """Not a node: a slice needs one evaluation at least."""
    x = rng.random((12, 3))
    settings = {"n_chains": 1, "n_iter": 30, "n_sweeps": 4, "sweep": "layer"}
    emulator = DGP(**settings).fit(x, np.sin(5 * x[:, 0]))
    (mixing,) = emulator.summary().mixing
    state = emulator._parts[0].trained.chains[0].imputation
    assert mixing.evaluations == pytest.approx(float(state.evaluations) / float(state.sweeps))
    assert mixing.evaluations >= 1.0


@pytest.mark.parametrize("n_chains", [5, 6])
def test_later_chains_of_a_race_leave_out_a_quarter_too(rng, n_chains):
    x = rng.random((20, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        emulator = Emulator(n_chains=n_chains, n_iter=4, width=1).fit(x, np.sign(x[:, 0] - 0.5))
    for part in emulator._parts:
        if part.candidate.network.depth > 1:
            np.testing.assert_array_equal(part.trained.held_out.unseen.sum(axis=1), 5)


def test_a_sampled_nugget_does_not_drift_into_noise(rng):
    """Flat in the nugget, all mass lies where everything is noise."""
    x = np.linspace(0, 1, 10)[:, None]
    y = np.sin(4 * x[:, 0]) + 0.1 * rng.normal(size=10)
    settings = {"depth": 1, "n_chains": 2, "n_iter": 200, "inference": "full_bayes"}
    emulator = DGP(**settings, nugget="estimate").fit(x, y)
    assert np.median(emulator.trace_["nugget"][0][:, 100:]) < 1.0
    assert np.corrcoef(emulator.predict(x), np.sin(4 * x[:, 0]))[0, 1] > 0.9


def test_a_hidden_scale_cannot_be_sampled():
    layers = [Layer(1, scale="estimate"), Layer()]
    with pytest.raises(InputError, match="scale of a hidden layer"):
        DGP(layers=layers, inference="full_bayes").fit([[0.0], [0.5], [1.0]], [0.0, 1.0, 0.0])


def test_a_last_layer_whose_width_is_written_out_is_no_hidden_one():
    layers = [Layer(2), Layer(1, scale="estimate")]
    candidate = DGP(layers=layers, inference="full_bayes").candidate(2, 1, 0)
    assert [spec.free_scale for spec in candidate.network.layers] == [False, True]


def test_one_layer_may_have_the_nugget_of_one_layer():
    Emulator(max_depth=1, nugget=1e-8)._candidates(2, 1, 20)
    with pytest.raises(InputError, match="nugget of layer 2 is 1e-08"):
        Emulator(nugget=1e-8)._candidates(2, 1, 20)


@pytest.fixture
def runs_with_replicates(rng):
    sites = np.linspace(0, 1, 8)
    x = np.repeat(sites, 10)[:, None]
    return x, np.sin(5 * x[:, 0]) + 0.3 * rng.normal(size=80)


def matern52(a, b, lengthscale):
    r = np.sqrt(5) * np.abs(a[:, None] - b[None, :]) / lengthscale
    return (1 + r + r**2 / 3) * np.exp(-r)


def test_a_nugget_that_is_given_is_noise_of_every_replicate(runs_with_replicates):
    """Their means once counted as single runs. The oracle is the process of all 80 rows."""
    x, y = runs_with_replicates
    emulator = GP(nugget=0.1).fit(x, y)
    new = np.linspace(0.05, 0.95, 7)
    mean, std = emulator.predict(new[:, None], return_std=True)
    lengthscale, scale = (
        float(np.ravel(emulator.trace_[name][0])[0]) for name in ("lengthscale", "scale")
    )
    rows = matern52(x[:, 0], x[:, 0], lengthscale) + 0.1 * np.eye(80)
    across = matern52(new, x[:, 0], lengthscale)
    centre, spread = y.mean(), y.std()
    expected = centre + spread * across @ np.linalg.solve(rows, (y - centre) / spread)
    explained = np.sum(across * np.linalg.solve(rows, across.T).T, axis=1)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    np.testing.assert_allclose(std, spread * np.sqrt(scale * (1.1 - explained)), rtol=1e-5)


@pytest.mark.parametrize("nugget", [1e-8, 1e-6])
def test_a_nugget_of_the_arithmetic_takes_the_means_of_replicates(runs_with_replicates, nugget):
    with pytest.warns(DataWarning, match="more than once with different y"):
        GP(nugget=nugget).fit(*runs_with_replicates)


@pytest.mark.parametrize("seed", [1, 7, 16])
def test_a_single_chain_does_not_take_a_step_for_noise(seed):
    """Fitted to hidden layers that still were copies of the inputs, the scale went to 1e5."""
    x = np.linspace(0, 1, 10)[:, None]
    emulator = DGP.paper(depth=3, random_state=seed, n_iter=150, n_imputations=5, verbose=False)
    emulator.fit(x, np.where(x[:, 0] < 0.5, -1.0, 1.0))
    at = np.concatenate([np.linspace(0.05, 0.4, 20), np.linspace(0.6, 0.95, 20)])
    error = emulator.predict(at[:, None]) - np.where(at < 0.5, -1.0, 1.0)
    assert np.abs(error).max() < 0.3


def ends_of(monkeypatch, x, y, seed=0, **settings):
    """The chains' parameters and hidden layers right after the sweeps before the first M-step."""
    found = []

    def keep(run, part, blocks, chains, data):
        found.extend(chains)
        raise KeyError

    monkeypatch.setattr(chains, "_trained", keep)
    with pytest.raises(KeyError):
        DGP(depth=2, random_state=seed, **(SMALL | settings)).fit(x, y)
    return found


@pytest.mark.parametrize("inference", ["imputation", "full_bayes"])
def test_sweeps_before_the_first_m_step_move_layers_and_no_parameters(
    problem, monkeypatch, inference
):
    x, _ = problem
    with monkeypatch.context() as patch:
        first, second = ends_of(patch, *problem, stacking=False, inference=inference)
    for chain in (first, second):
        assert all(np.all(np.asarray(leaf.log_lengthscale) == 0.0) for leaf in chain.params)
        assert int(chain.imputation.sweeps) == candidates.SWEEPS_BEFORE_FIRST_M_STEP
    latents = [np.asarray(chain.imputation.latents[0])[: len(x)] for chain in (first, second)]
    assert np.all(np.ptp(latents, axis=0) > 0.0)  # chains have streams of their own


def test_sites_that_are_left_out_stay_out_of_the_sweeps_before(problem, monkeypatch):
    x, y = problem
    chains = ends_of(monkeypatch, x, y, n_chains=4, stacking=True)
    for chain in chains:
        latents = np.asarray(chain.imputation.latents[0])
        assert np.any(np.all(latents[: len(x)] == 0.0, axis=1)), "padding in the place of a fold"


def test_an_update_goes_on_without_sweeps_before(problem, monkeypatch):
    x, y = problem
    emulator = DGP(depth=2, **(SMALL | {"stacking": False})).fit(x[:-2], y[:-2])
    asked = []
    warmed_up = _warmed_up
    monkeypatch.setattr(
        chains, "_warmed_up", lambda run, *of: asked.append(run.n_warm_up) or warmed_up(run, *of)
    )
    emulator.update(x[-2:], y[-2:])
    assert asked == [0]
