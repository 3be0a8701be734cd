"""Prediction on chunks of test rows: none of what is cut for speed changes a number."""

import dataclasses

import jax
import numpy as np
import pytest

from deepemu import DGP
from deepemu.core.distributions import Gaussian
from deepemu.core.predict import Predicted
from deepemu.ensembles import prediction
from deepemu.posterior.stacking import Stacked


@pytest.fixture(scope="module")
def problem():
    x = np.random.default_rng(0).random((12, 2))
    return x, np.sin(5 * x[:, 0])


@pytest.fixture(scope="module")
def emulator(problem):
    """Three chains with six imputations each."""
    settings = {"n_chains": 3, "n_iter": 2, "n_sweeps": 1, "n_imputations": 6, "n_jobs": 1}
    return DGP(kernel="squared_exponential", width=1, **settings).fit(*problem)


def test_chunks_cover_all_rows_in_order():
    x = np.arange(10.0)[:, None]
    chunks = prediction._chunks(x, (2, 3))
    assert [int(n) for _, n in chunks] == [6, 4]
    assert all(rows.shape == (2, 3, 1) for rows, _ in chunks)
    np.testing.assert_array_equal(np.concatenate([of.reshape(-1, 1)[:n] for of, n in chunks]), x)
    assert [int(n) for _, n in prediction._chunks(x[:7], (2, 3))] == [6, 1]


def test_predictions_do_not_depend_on_the_size_of_chunks(emulator, problem, rng, monkeypatch):
    at = np.vstack([problem[0][:4], rng.random((7, 2))])
    whole = emulator.predict(at, return_std=True)
    monkeypatch.setattr(prediction, "CPU_BLOCKS", (2, 3))
    # Weights of the order of 1 / nugget round differently in matrix products of another shape.
    np.testing.assert_allclose(emulator.predict(at, return_std=True), whole, rtol=1e-6)


def test_rows_that_a_level_does_not_suit_go_on_to_the_next(emulator, rng, monkeypatch):
    at, seen = rng.random((40, 2)), []
    runs = emulator.posterior_.runs
    unsuited = {tuple(each) for each in runs.scale.to_core(at)[::3]}
    at_level = prediction._at_level

    def partly_unsuited(group, units, level, rows):
        found = at_level(group, units, 1, rows)
        seen.append((level, len(rows)))
        accurate = np.array([level == 2 or tuple(each) not in unsuited for each in rows])
        shifted = Gaussian(found.outputs.mean + level, found.outputs.var)
        error = np.full(len(rows), 3.0 - level)
        return Predicted(found.latents, shifted, error[None], accurate[None])

    expected = emulator.predict(at)
    monkeypatch.setattr(prediction.predict, "n_levels", lambda network: 3)
    monkeypatch.setattr(prediction, "_at_level", partly_unsuited)
    shifted = (emulator.predict(at) - expected) / runs.sites.units.size[0]
    np.testing.assert_allclose(shifted, np.where(np.arange(40) % 3 == 0, 2.0, 0.0), atol=1e-7)
    assert seen == [(0, 40), (1, 14), (2, 14)] * 3


def test_chains_without_weight_do_not_count(emulator, rng):
    at, weights = rng.random((7, 2)), np.array([0.75, 0.0, 0.25])

    def weighted(of_chains):
        stacked = Stacked(of_chains, np.ones(1), None)
        return dataclasses.replace(emulator.posterior_, stacked=stacked)

    mixed = weighted(weights).moments(at)
    alone = [weighted(only).moments(at) for only in np.eye(3)[weights > 0]]
    means, variances = (np.stack([getattr(of, k) for of in alone]) for k in ("mean", "var"))
    w = weights[weights > 0][:, None, None]
    np.testing.assert_allclose(mixed.mean, (w * means).sum(0), rtol=1e-12)
    second = (w * (variances + means**2)).sum(0)
    np.testing.assert_allclose(mixed.var, second - mixed.mean**2, rtol=1e-9)
    assert len(weighted(weights).members(at).weights) == 12  # six imputations of two chains


def test_members_go_to_the_device_in_equal_parts(emulator, rng, monkeypatch):
    at = rng.random((7, 2))
    together = emulator.predict(at, return_std=True)
    (group,), *_ = (of.groups for of, _ in emulator.posterior_._chains)
    one = sum(leaf.nbytes for leaf in jax.tree.leaves(group.members)) // 6
    for room, expected in ((0, 1), (one, 1), (5 * one, 3), (6 * one, 6)):
        monkeypatch.setitem(prediction.MEMBERS_ROOM, "cpu", room)
        assert [len(part.alpha) for part in group.parts] == [expected] * (6 // expected)
    monkeypatch.setitem(prediction.MEMBERS_ROOM, "cpu", 5 * one)
    np.testing.assert_allclose(emulator.predict(at, return_std=True), together, rtol=1e-9)
