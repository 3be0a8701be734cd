"""Counts of many runs: an imputed last layer with near rows, through the public estimators."""

import numpy as np
import pytest
from builders import brief_plain_gps
from poisson_model import Poisson

from deepemu import GP, Emulator, load, save
from deepemu.core.nodes.solvers import SOLVERS
from deepemu.core.nodes.vecchia import Vecchia
from deepemu.ensembles.prediction import chain_latents, chains_of
from deepemu.estimators.base import solvers_of
from deepemu.files import codec
from deepemu.observations.gaussian import GaussianNoise
from deepemu.runtime import devices
from deepemu.training.plan import SCORING_OF_LATENTS

# Fewer near rows than by default are compiled in half of the time.
LARGE = {"observation": Poisson(), "solver": Vecchia(12, 16, 6)}
FEW = LARGE | {"n_chains": 4, "n_iter": 4}
N = 30


def rates(x):
    """Of two kinds of events."""
    log_rate = 1.2 + 0.8 * np.sin(4 * x[:, 0]) + 0.5 * x[:, 1]
    return np.exp(np.column_stack([log_rate, 3.5 - log_rate]))


def counts(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((n, 2))
    return x, rng.poisson(rates(x)).astype(float)


@pytest.fixture(scope="module")
def plain():
    x, y = counts(200)
    with brief_plain_gps(16):
        return GP(**LARGE).fit(x, y[:, 0])


@pytest.fixture(scope="module")
def deep():
    with brief_plain_gps(4):
        return Emulator(**FEW, effort="quick").fit(*counts(N))


def test_recovers_a_rate(plain):
    """The log rate of 200 counts lies in its own intervals, which are narrow."""
    at, posterior = counts(100, seed=1)[0], plain.posterior_
    with devices.float64():
        latents = chain_latents(
            chains_of(posterior.structures[0].imputed), posterior.runs.rows_of(at)
        )
    mean, var = (np.asarray(each).reshape(-1, len(at)) for each in (latents.mean, latents.var))
    std = np.sqrt(var.mean(axis=0) + mean.var(axis=0))
    true = np.log(rates(at)[:, 0] / posterior.runs.sites.units.size)
    z = (mean.mean(axis=0) - true) / std
    assert np.mean(np.abs(z) < 1.96) > 0.85
    assert np.sqrt(np.mean(z**2)) < 1.5
    assert np.median(std) < 0.25


def test_parameters_leave_their_start(plain, deep):
    """Several scoring steps: a single one from the first values can fail in all iterations."""
    for trained in (*plain.posterior_.structures, *deep.posterior_.structures):
        plan = trained.structure.plan
        assert plan.is_guided and plan.n_scoring == SCORING_OF_LATENTS
    path = plain.posterior_.structures[0].trace.params[-1].log_lengthscale
    assert np.all(np.abs(path[:, 0]) > 0.01)


def test_steps_on_ellipses_are_long(plain):
    chains = plain.posterior_.structures[0].chains
    assert min(chain.imputation.angles[-1].min() for chain in chains) > np.pi / 4


def test_a_deep_emulator_predicts_two_kinds_of_counts(deep):
    at, _ = counts(40, seed=1)
    mean, std = deep.predict(at, return_std=True)
    for k in range(2):
        assert np.corrcoef(np.log(mean[:, k]), np.log(rates(at)[:, k]))[0, 1] > 0.7
    assert np.all(std > 0.7 * np.sqrt(mean))
    drawn = deep.sample_y(at[:4], 300)
    assert np.all(drawn == np.round(drawn))
    np.testing.assert_allclose(drawn.mean(axis=2), mean[:4], rtol=0.3)


def test_held_out_counts_are_predicted(deep):
    """Every row, by chains that were trained without it."""
    _, y = counts(N)
    mean, std = deep.loo()
    assert np.mean(np.abs(y - mean) < 3 * std) > 0.9


def test_files_hold_chains_and_new_counts_join_them(deep, tmp_path, monkeypatch):
    """Once the model has a name there. Latents of new rows start where others predict them."""
    monkeypatch.setitem(codec.NAMES, Poisson, ("poisson", {}))
    monkeypatch.setitem(codec.KINDS, "poisson", (Poisson, {}))
    x, y = counts(N + 2)
    save(deep, tmp_path / "a.deepemu")
    again = load(tmp_path / "a.deepemu")
    np.testing.assert_allclose(again.predict(x), deep.predict(x), rtol=1e-9)
    last = lambda emulator: [  # noqa: E731
        chain.imputation.latents[-1] for chain in emulator.posterior_.structures[-1].chains
    ]
    assert np.all(np.asarray(last(again))[:, N:] == 0.0)
    trained = again.update(x[N:], y[N:])
    assert np.all(np.asarray(last(trained))[:, : N + 2] != 0.0)
    assert np.all(np.isfinite(trained.predict(x)))


def test_plain_processes_of_counts_have_near_rows_early():
    """As many latents are imputed as in a deep network."""
    dense, vecchia = SOLVERS["dense"], SOLVERS["vecchia"]
    of = solvers_of("auto")
    assert of(399, Poisson()) == (dense, dense)
    assert of(400, Poisson()) == (vecchia, vecchia)
    assert of(400, GaussianNoise()) == (vecchia, dense)


def test_an_emulator_weighs_counts(deep):
    posterior = deep.posterior_
    labels = [each.structure.label for each in posterior.structures]
    assert any(label.startswith("DGP") for label in labels)
    assert any(label.startswith("GP") for label in labels)
    assert posterior.stacked.held_out is not None
