"""Prediction on chunks of test rows: none of what is cut for speed changes a number."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from deepemu import DGP, load
from deepemu.core import predict
from deepemu.core.distributions import Gaussian
from deepemu.core.nodes.linked import Linked
from deepemu.ensembles import prediction
from deepemu.posterior.stacking import Stacked
from deepemu.runtime import devices


@pytest.fixture(scope="module")
def problem():
    x = np.random.default_rng(0).random((12, 2))
    return x, np.sin(5 * x[:, 0])


@pytest.fixture(scope="module")
def emulator(problem):
    """Three chains with six imputations each."""
    settings = {"n_chains": 3, "n_iter": 2, "n_sweeps": 1, "n_imputations": 6, "n_jobs": 1}
    # Swept from the prior, hidden layers are uncertain, and predictions have several levels.
    return DGP(kernel="squared_exponential", width=1, sweep="node", **settings).fit(*problem)


def test_predictions_do_not_depend_on_the_size_of_chunks(emulator, problem, rng, monkeypatch):
    at = np.vstack([problem[0][:4], rng.random((7, 2))])
    whole = emulator.predict(at, return_std=True)
    monkeypatch.setattr(prediction, "CPU_BLOCKS", (2, 3))
    monkeypatch.setattr(prediction, "CPU_BLOCKS_AGAIN", (2, 2))
    # Weights of the order of 1 / nugget round differently in matrix products of another shape.
    np.testing.assert_allclose(emulator.predict(at, return_std=True), whole, rtol=1e-6)


@pytest.mark.parametrize("blocks", [(64, 16), (2, 2)])
def test_networks_compute_their_inaccurate_rows_again_at_the_next_level(
    emulator, rng, monkeypatch, blocks
):
    """A row is marked as inaccurate at random, network by network; a level adds its number."""
    at, seen = rng.random((40, 2)), []
    chain, _ = emulator.posterior_._chains[0]
    (group,) = chain.groups
    wanted = rng.integers(0, 3, (6, 40))  # the first level that is accurate, or better than others
    run = prediction.Group.run

    def partly_inaccurate(self, function, method, chunk, *others):
        found = run(
            self, function, predict.Method(1 if others[1:] else 0, method.rows), chunk, *others
        )
        found = jax.tree.map(np.array, found)
        rows = others[0].reshape(6, -1) if others[1:] else np.tile(np.arange(1024), (6, 1))
        level = np.take_along_axis(np.pad(wanted, ((0, 0), (0, 1024 - 40))), rows, 1)
        seen.append((method.level, int(np.sum(others[-1]))))
        moments = Gaussian(found.moments.mean + method.level, found.moments.var)
        error = np.where(level == 2, 2.0 - method.level, 1.0 + method.level)
        return Linked(moments, error, level <= method.level)

    with devices.running(devices.Runtime()):
        (plain,) = prediction.predict_chains([chain], at)
    monkeypatch.setattr(prediction.Group, "run", partly_inaccurate)
    monkeypatch.setattr(prediction, "CPU_BLOCKS_AGAIN", blocks)
    monkeypatch.setattr(prediction.predict, "n_levels", lambda network: 3)
    with devices.running(devices.Runtime()):
        (found,) = prediction.predict_chains([chain], at)
    assert len(group.members.alpha) == 6
    # At level one the error is larger than at level zero, unless level two is needed.
    np.testing.assert_allclose(
        (found.mean - plain.mean)[..., 0], np.where(wanted == 2, 2.0, 0.0), atol=1e-6
    )
    again = [sum(n for level, n in seen if level == k) for k in range(3)]
    assert again == [40, int(np.sum(wanted > 0)), int(np.sum(wanted > 1))]


@pytest.mark.parametrize("name", ["format_1_emulator", "format_2_dgp"])
def test_standard_deviations_have_four_digits_far_from_the_runs_too(name):
    """Against the last level, sums over pairs, at rows that cheap methods may misjudge."""
    posterior = load(Path(__file__).parent / "data" / f"{name}.deepemu").posterior_
    x = np.random.default_rng(0).uniform(-0.5, 1.5, (1024, posterior.runs.x.shape[1]))
    with devices.running(devices.Runtime()):
        for chain, _ in posterior._chains[:5]:
            network = chain.imputed.network
            method = predict.Method(predict.n_levels(network) - 1, predict.RowsInside())
            (group,) = chain.groups
            given = predict.Points(x.reshape(*prediction.CPU_BLOCKS, -1)), np.int32(1024)
            sure = jax.tree.map(np.asarray, group.run(predict.predict, method, *given))
            found = prediction._predict_piece(group, x)
            ratio = np.sqrt(found.var / sure.moments.var)[sure.error < 1e-6]
            np.testing.assert_allclose(ratio, 1.0, rtol=1e-4)
            assert ratio.size > 1000 or network.depth == 1


def test_a_level_that_fails_does_not_win(emulator, rng, monkeypatch):
    """NaN at the first level, numbers at the next."""
    (chain, _), *_ = emulator.posterior_._chains
    (group,), run = chain.groups, prediction.Group.run

    def fails_at_first(self, function, method, *rows):
        found = run(self, function, method, *rows)
        if method.level:
            return found
        nan, never = np.full_like(found.error, np.nan), np.zeros_like(found.accurate)
        mean = np.full_like(found.moments.mean, np.nan)
        return Linked(Gaussian(mean, found.moments.var), nan, never)

    monkeypatch.setattr(prediction.Group, "run", fails_at_first)
    with devices.running(devices.Runtime()):
        found = prediction._predict_piece(group, rng.random((5, 2)))
    assert np.all(np.isfinite(found.mean))


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
    at, posterior = rng.random((7, 2)), emulator.posterior_
    together, chain = posterior.moments(at), posterior._chains[0][0]
    one = sum(leaf.nbytes for leaf in jax.tree.leaves(chain.groups[0].members)) // 6
    for room, expected in ((0, 1), (one, 1), (5 * one, 3), (6 * one, 6)):
        monkeypatch.setattr(prediction, "MEMBERS_ROOM", room)
        (again, *_) = prediction.chains_of(chain.imputed)
        sizes = [len(group.members.alpha) for group in again.groups]
        assert sizes == [expected] * (6 // expected)
    monkeypatch.setattr(prediction, "MEMBERS_ROOM", 5 * one)
    apart = dataclasses.replace(posterior).moments(at)
    np.testing.assert_allclose([apart.mean, apart.std], [together.mean, together.std], rtol=1e-9)
