"""Outputs beside their predictive distributions: of a fit, in figures, and of counts."""

import warnings

import numpy as np
import pytest
from poisson_model import Poisson
from scipy.stats import norm

from deepemu import DGP, GP, ConvergenceWarning, InputError

SMALL = {"n_chains": 4, "n_iter": 6, "width": 1, "kernel": "squared_exponential"}


@pytest.fixture(scope="module")
def runs():
    x = np.random.default_rng(0).random((16, 1))
    return x, 40.0 + 5.0 * np.sign(x[:, 0] - 0.5) + np.sin(9 * x[:, 0])


@pytest.fixture(scope="module")
def fitted(runs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return DGP(**SMALL).fit(*runs)


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(3)
    x = np.repeat(np.linspace(0, 1, 10), 3)[:, None]
    return GP(observation=Poisson()).fit(x, rng.poisson(np.exp(1.0 + 2.0 * x[:, 0])).astype(float))


def of_members(members, i):
    """Weights, means and standard deviations at one row."""
    return members.weights, members.outputs.mean[:, i, 0], members.outputs.std[:, i, 0]


def draws_crps(rng, y, weights, means, stds):
    which = rng.choice(len(weights), (2, 200_000), p=weights / weights.sum())
    first, second = rng.normal(means[which], stds[which])
    return np.mean(np.abs(first - y)) - 0.5 * np.mean(np.abs(first - second))


def test_known_outputs_are_compared_with_the_mixture(fitted, rng):
    at, y = np.array([[0.2], [0.5], [0.7]]), np.array([34.0, 40.0, 47.0])
    posterior = fitted.posterior_
    found, members = posterior.compared(at, y), posterior.members(at)
    moments, (low, high) = posterior.moments(at), posterior.interval(at)
    np.testing.assert_allclose(found.mean, moments.mean, rtol=1e-10)
    np.testing.assert_allclose(found.std, moments.std, rtol=1e-8)
    np.testing.assert_allclose([found.low, found.high], [low, high], rtol=1e-10)
    np.testing.assert_allclose(found.y[:, 0], y, rtol=1e-12)
    for i in range(3):
        weights, means, stds = of_members(members, i)
        below = weights @ norm.cdf(y[i], means, stds)
        assert posterior.cdf(at, y)[i, 0] == pytest.approx(below, rel=1e-8)
        assert found.rank.pit[i, 0] == pytest.approx(below, rel=1e-8)
        expected = draws_crps(rng, y[i], weights, means, stds)
        assert found.crps[i, 0] == pytest.approx(expected, rel=0.02)


def test_bands_are_moments_and_interval(fitted):
    at = np.array([[0.1], [0.5]])
    found, moments = fitted.posterior_.bands(at, 0.8), fitted.posterior_.moments(at)
    np.testing.assert_allclose(found.mean, moments.mean, rtol=1e-12)
    np.testing.assert_allclose(found.std, moments.std, rtol=1e-10)
    np.testing.assert_array_equal([found.low, found.high], fitted.posterior_.interval(at, 0.8))
    with pytest.raises(InputError, match="level is 2"):
        fitted.posterior_.bands(at, 2.0)


def test_the_runs_are_compared_with_held_out_predictions(fitted, runs):
    found, (mean, std) = fitted.compared_runs(), fitted.loo()
    np.testing.assert_allclose(found.mean[:, 0], mean, rtol=1e-12)
    np.testing.assert_allclose(found.std[:, 0], std, rtol=1e-10)
    np.testing.assert_allclose(found.y[:, 0], runs[1], rtol=1e-12)
    line = fitted.summary().lines[-1]
    assert np.mean(found.crps) / runs[1].std() == pytest.approx(line.crps, rel=1e-9)
    assert np.mean(found.rank.inside()) == pytest.approx(line.coverage)
    with pytest.raises(InputError, match="No rows were held out"):
        DGP(**SMALL, stacking=False).fit(*runs).compared_runs()


def test_the_figure_of_a_fit_has_the_ranks_and_intervals_of_the_mixture(fitted):
    shown = fitted.compared_runs()
    predictions, _, ranks, coverage, *_ = fitted.plot_diagnostics().axes
    ends = np.concatenate([each.get_segments() for each in predictions.collections])[..., 1]
    np.testing.assert_allclose(np.sort(ends[:, 0]), np.sort(shown.low[:, 0]), rtol=1e-10)
    np.testing.assert_allclose(np.sort(ends[:, 1]), np.sort(shown.high[:, 0]), rtol=1e-10)
    heights = [bar.get_height() for bar in ranks.containers[0]]
    pit = shown.rank.pit[:, 0]
    np.testing.assert_array_equal(heights, np.histogram(pit, 10, (0.0, 1.0))[0])
    (line,) = [each for each in coverage.lines if each.get_label() == "observed"]
    central = np.abs(2.0 * pit - 1.0)
    np.testing.assert_allclose(
        line.get_ydata(), [np.mean(central <= at) for at in line.get_xdata()]
    )


def test_counts_are_compared_with_their_own_distribution(counts):
    """Intervals end at counts, and a count has a probability."""
    found, every = counts.compared_runs(), np.arange(60.0)
    assert np.all(found.low == np.round(found.low)) and np.all(found.high == np.round(found.high))
    inside = (found.low <= found.y) & (found.y <= found.high)
    np.testing.assert_array_equal(found.rank.inside(), inside)
    at = np.full((60, 1), 0.4)
    mass = np.exp(counts.posterior_.log_density(at, every))
    F = counts.posterior_.cdf(at, every)[:, 0]
    np.testing.assert_allclose(F, np.cumsum(mass), atol=1e-8)
    seen = counts.posterior_.compared(at, every)
    expected = [np.sum((F - (every >= y)) ** 2) for y in every[:20]]
    np.testing.assert_allclose(seen.crps[:20, 0], expected, rtol=2e-3)
    np.testing.assert_allclose(seen.rank.pit[:, 0], np.cumsum(mass) - 0.5 * mass, atol=1e-8)
    assert len(counts.plot_diagnostics().axes) >= 4


def test_the_traced_moments_of_counts_are_those_of_the_posterior(counts):
    """Stretched by the model, which does not: not by a factor of the variance."""
    import jax  # noqa: PLC0415

    from deepemu.core.moments import moments  # noqa: PLC0415

    at = np.array([[0.3], [0.8]])
    with jax.enable_x64(True):
        found = moments(counts.posterior_.ensemble, at)
    expected = counts.posterior_.moments(at)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(found.var, expected.var, rtol=1e-6)
