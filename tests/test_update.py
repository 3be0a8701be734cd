"""Emulators that grow by rows: what an update adds, what it keeps, and what it refuses."""

import copy

import numpy as np
import pytest
from builders import FOUR_CHAINS, KINDS, closed_form_loo, curve
from sklearn.base import clone

from deepemu import DGP, GP, InputError
from deepemu.ensembles import prediction
from deepemu.runtime import devices, padding


@KINDS
def test_update_adds_rows_and_loses_none(make, problem):
    x, y = problem
    emulator = make().fit(x[:9], y[:9])
    uncertain = emulator.predict(x[9:], return_std=True)[1]
    assert emulator.update(x[9:], y[9:]) is emulator
    assert closed_form_loo(emulator)[0].shape == (12,)
    np.testing.assert_allclose(emulator.predict(x), y, atol=5e-3 * y.std())
    assert np.all(emulator.predict(x[9:], return_std=True)[1] < uncertain)


def test_an_updated_gp_is_the_gp_fitted_to_all_rows(gp, problem, elsewhere):
    """Up to the scaling, which an update keeps: so the rows that set it come first."""
    x, y = problem
    order = np.argsort(-np.abs(x - 0.5).max(axis=1))
    x, y = x[order], y[order]
    grown = GP().fit(x[:9], y[:9]).update(x[9:], y[9:])
    np.testing.assert_allclose(grown.predict(elsewhere), gp.predict(elsewhere), atol=0.05 * y.std())


def test_updating_with_a_row_that_is_there_changes_little(either, problem, elsewhere):
    x, y = problem
    emulator = copy.deepcopy(either)
    before = emulator.predict(elsewhere)
    emulator.update(x[:1], y[:1])
    assert closed_form_loo(emulator)[0].shape == (13,)
    assert len(emulator.posterior_.structures[0].imputed.data.x) == 16
    np.testing.assert_allclose(emulator.predict(x), y, atol=5e-3 * y.std())
    np.testing.assert_allclose(emulator.predict(elsewhere), before, atol=0.3 * y.std())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:, :1], y), "1 features, but .* expecting 2"),
        (lambda x, y: (x, np.column_stack([y, y])), "2 column"),
        (lambda x, y: (x, y[:-1]), "inconsistent numbers of samples"),
        (lambda x, y: (x * np.nan, y), "NaN"),
        (lambda x, y: (x, y + [np.inf, *[0] * 11]), "infinity"),
        (lambda x, y: (x[:0], y[:0]), "minimum of 1"),
    ],
)
def test_a_refused_update_changes_nothing(either, elsewhere, change, message):
    emulator = copy.deepcopy(either)
    before = emulator.predict(elsewhere, return_std=True)
    with pytest.raises(ValueError, match=message):
        emulator.update(*change(elsewhere, curve(elsewhere)))
    np.testing.assert_array_equal(emulator.predict(elsewhere, return_std=True), before)
    assert closed_form_loo(emulator)[0].shape == (12,)


def test_an_update_that_breaks_off_changes_nothing(either, elsewhere, monkeypatch):
    emulator = copy.deepcopy(either)
    before = emulator.predict(elsewhere, return_std=True)

    def break_off(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(emulator.posterior_.structures[0].structure), "resume", break_off)
        with pytest.raises(KeyboardInterrupt):
            emulator.update(elsewhere, curve(elsewhere))
    np.testing.assert_array_equal(emulator.predict(elsewhere, return_std=True), before)
    assert closed_form_loo(emulator)[0].shape == (12,)
    emulator.update(elsewhere[:2], curve(elsewhere[:2]))
    assert closed_form_loo(emulator)[0].shape == (14,)


@pytest.mark.parametrize(
    "rows",
    [lambda x: x + 0.05, lambda x: x],
    ids=["new inputs", "inputs that are there"],
)
def test_an_update_draws_anew(dgp, problem, monkeypatch, rows):
    """With an integer random_state, training must not see the seed of the fit again: not if the
    number of distinct inputs stays either."""
    seeds = []
    keys = padding.keys
    monkeypatch.setattr(padding, "keys", lambda *a: seeds.append(a[1]) or keys(*a))
    x, y = problem
    emulator = clone(dgp).fit(x, y)
    for row in (slice(0, 1), slice(1, 2)):
        emulator.update(rows(x[row]), y[row])
    assert len(set(seeds)) == 3


def test_a_column_that_was_constant_cannot_vary_in_an_update(problem):
    x, y = problem
    emulator = GP().fit(x * [1, 0], y)
    with pytest.raises(InputError, match=r"column\(s\) \[1\] of X_new vary.*call fit"):
        emulator.update([[0.5, 1e-6]], [1.0])


def test_plain_processes_predict_new_rows_of_an_update_before_they_see_them(line):
    """As deep ones do: both are judged by the same knowledge."""
    x, y = line
    emulator = DGP(**FOUR_CHAINS).fit(x[:10], y[:10])
    posterior = emulator.posterior_
    plain, runs = posterior.structures[1], posterior.runs
    with devices.running(devices.Runtime()):
        (found,) = prediction.predict_chains(
            prediction.chains_of(plain.imputed), runs.scale.to_core(x[10:])
        )
    old = plain.held_out.latents.mean
    emulator.update(x[10:], y[10:])
    now = emulator.posterior_.structures[1].held_out.latents.mean
    np.testing.assert_allclose(now[0, 0, 10:], found.mean[0], rtol=1e-9)
    np.testing.assert_array_equal(now[:, :, :10], old)
