"""Behaviour that was once wrong, each with the test that would have shown it."""

import os
import signal

import numpy as np
import pytest

from deepemu import DGP, GP, InputError, InterruptedFitWarning, _boundary, _runtime

SMALL = {"n_chains": 2, "n_iter": 6, "n_sweeps": 2, "n_imputations": 3, "verbose": False}


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
    build = _boundary.build_members

    def build_and_interrupt(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return build(*arguments)

    monkeypatch.setattr(_boundary, "build_members", build_and_interrupt)
    with pytest.warns(InterruptedFitWarning, match="after 1 of 3 imputations"):
        emulator = DGP(**SMALL).fit(*problem)
    assert len(emulator.ensemble_.weights) == 2
    assert emulator.trace_["log_density"].shape == (2, 6)
    assert np.all(np.isfinite(emulator.predict(problem[0])))


def test_an_update_draws_anew(problem, monkeypatch):
    """With an integer random_state, training must not see the seed of the fit again."""
    seeds = []
    keys = _boundary.keys
    monkeypatch.setattr(_boundary, "keys", lambda *a: seeds.append(a[0]) or keys(*a))
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


@pytest.mark.parametrize("nugget", [1e-8, 1e-14])
def test_nuggets_below_round_off_are_refused(problem, nugget):
    with pytest.raises(InputError, match="nugget of layer 1 is .*at least 1e-07"):
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
    keys = _boundary.keys
    monkeypatch.setattr(_boundary, "keys", lambda *a: seeds.append(a[0]) or keys(*a))
    x, y = problem
    DGP(**SMALL).fit(x, y).update(x[:1], y[:1]).update(x[:1], y[:1])
    assert len(set(seeds)) == 3


def test_an_option_that_this_version_of_xla_lacks_is_noticed():
    assert not _runtime._are_known({"xla_no_such_option": False})
