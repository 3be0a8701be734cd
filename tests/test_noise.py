"""Noise: nuggets that are estimated, given or left to the arithmetic, and replicated runs."""

import numpy as np
import pytest
from oracles import Process
from sklearn.base import clone

from deepemu import GP, DataWarning


def noise_sd(emulator, y):
    scale, nugget = (emulator.trace_[name][0][0, -1, 0] for name in ("scale", "nugget"))
    return np.sqrt(scale * nugget) * y.std()


@pytest.mark.parametrize("n_replicates", [1, 4])
def test_an_estimated_nugget_recovers_the_noise(n_replicates):
    rng = np.random.default_rng(5)
    x = np.repeat(np.linspace(0, 1, 48 // n_replicates), n_replicates)[:, None]
    y = 10 * np.sin(6 * x[:, 0]) + rng.normal(0, 1.5, 48)
    emulator = GP(nugget="estimate").fit(x, y)
    assert noise_sd(emulator, y) == pytest.approx(1.5, rel=0.3)
    mean, std = emulator.predict(x, return_std=True)
    np.testing.assert_allclose(mean, 10 * np.sin(6 * x[:, 0]), atol=2.0)
    assert np.all(std > 1.0)  # of an observation, so the noise is part of it


@pytest.fixture
def runs_with_replicates(rng):
    sites = np.linspace(0, 1, 8)
    x = np.repeat(sites, 10)[:, None]
    return x, np.sin(5 * x[:, 0]) + 0.3 * rng.normal(size=80)


def test_a_nugget_that_is_given_is_noise_of_every_replicate(runs_with_replicates):
    """Their means once counted as single runs. The oracle is the process of all 80 rows."""
    x, y = runs_with_replicates
    emulator = GP(nugget=0.1).fit(x, y)
    new = np.linspace(0.05, 0.95, 7)
    mean, std = emulator.predict(new[:, None], return_std=True)
    lengthscale, scale = (
        float(np.ravel(emulator.trace_[name][0])[0]) for name in ("lengthscale", "scale")
    )
    process = Process("matern52", np.array([lengthscale]), scale, 0.1)
    centre, spread = y.mean(), y.std()
    expected, covariance = process.predict(x, (y - centre) / spread, new[:, None])
    np.testing.assert_allclose(mean, centre + spread * expected, rtol=1e-6)
    np.testing.assert_allclose(std, spread * np.sqrt(np.diag(covariance)), rtol=1e-5)


@pytest.mark.parametrize("nugget", [1e-8, 1e-6])
def test_a_nugget_of_the_arithmetic_takes_the_means_of_replicates(runs_with_replicates, nugget):
    with pytest.warns(DataWarning, match="more than once with different y"):
        GP(nugget=nugget).fit(*runs_with_replicates)


def test_replicates_that_differ_are_judged_by_what_an_interpolating_emulator_saw(stacked, line):
    """Their means: their spread would pass for errors of the emulator."""
    x, y = line
    doubled, noise = np.repeat(x, 2, axis=0), np.tile([0.3, -0.3], 12)
    with pytest.warns(DataWarning, match="occur more than once"):
        spread = clone(stacked).fit(doubled, np.repeat(y, 2) + noise)
    # The means are the outputs up to round-off, which a few iterations do not enlarge by much.
    np.testing.assert_allclose(spread.weights_, stacked.weights_, atol=1e-5)
    stretches = (each.posterior_.stacked.stretch for each in (spread, stacked))
    np.testing.assert_allclose(*stretches, atol=1e-5)
