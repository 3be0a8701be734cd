"""Scores against quadrature, Monte Carlo and values worked out by hand."""

import numpy as np
import pytest
from scipy import integrate, stats

from deepemu import diagnostics
from deepemu.errors import InputError

CASES = [(0.0, 0.0, 1.0), (1.3, 0.2, 0.5), (-2.0, 1.0, 0.3), (5.0, 4.9, 3.0), (1e-3, 0.0, 1e-4)]


def crps_by_quadrature(y, mean, std):
    """The definition: the integral of (F(t) - 1{t >= y})^2."""
    cdf = stats.norm(mean, std).cdf
    reach = 40 * std + abs(y - mean)
    below = integrate.quad(lambda t: cdf(t) ** 2, mean - reach, y, points=[mean], limit=400)[0]
    above = integrate.quad(lambda t: (1 - cdf(t)) ** 2, y, mean + reach, points=[mean], limit=400)
    return below + above[0]


@pytest.mark.parametrize(("y", "mean", "std"), CASES)
def test_crps_is_the_integral_that_defines_it(y, mean, std):
    np.testing.assert_allclose(
        diagnostics.crps([y], [mean], [std]), crps_by_quadrature(y, mean, std), rtol=1e-6
    )


def test_crps_is_the_energy_form_by_monte_carlo():
    """CRPS = E|X - y| - E|X - X'| / 2 for independent X, X' from the prediction."""
    rng = np.random.default_rng(0)
    y, mean, std = 0.7, 0.1, 0.8
    first, second = rng.normal(mean, std, size=(2, 400_000))
    estimate = np.mean(np.abs(first - y)) - np.mean(np.abs(first - second)) / 2
    assert diagnostics.crps([y], [mean], [std]) == pytest.approx(estimate, abs=3e-3)


def test_crps_by_hand_at_the_mean():
    expected = 2.0 * (np.sqrt(2) - 1) / np.sqrt(np.pi)  # sigma (2 phi(0) - 1/sqrt(pi)), sigma = 2
    assert diagnostics.crps([3.0], [3.0], [2.0]) == pytest.approx(expected, rel=1e-14)


def test_crps_without_spread_is_the_absolute_error():
    assert diagnostics.crps([1.0, 2.0], [0.0, 4.0], [0.0, 0.0]) == 1.5


def test_crps_tends_to_the_absolute_error():
    almost = diagnostics.crps([1.0, 2.0], [0.0, 4.0], [1e-200, 1e-12])
    assert almost == pytest.approx(1.5, rel=1e-11)


def test_crps_rewards_the_true_spread():
    """A proper score is lowest, on average, for the distribution the outputs come from."""
    y = np.random.default_rng(1).normal(0.0, 1.0, size=20_000)
    zero = np.zeros_like(y)
    by_std = {std: diagnostics.crps(y, zero, np.full_like(y, std)) for std in (0.5, 1.0, 2.0)}
    assert min(by_std, key=by_std.get) == 1.0


def test_nrmsep_by_hand():
    assert diagnostics.nrmsep([0.0, 4.0], [3.0, 4.0]) == pytest.approx(np.sqrt(4.5) / 4)


def test_normalised_crps_is_free_of_units():
    rng = np.random.default_rng(2)
    y, mean, std = rng.normal(size=50), rng.normal(size=50), rng.uniform(0.1, 1.0, size=50)
    plain = diagnostics.normalised_crps(y, mean, std)
    assert diagnostics.normalised_crps(7 * y + 3, 7 * mean + 3, 7 * std) == pytest.approx(plain)
    assert plain == pytest.approx(diagnostics.crps(y, mean, std) / np.ptp(y))


def test_coverage_by_hand():
    y = np.array([0.0, 1.9, 2.0, -1.95, -3.0])  # 1.96 lies between 1.95 and 2
    zero, one = np.zeros(5), np.ones(5)
    assert diagnostics.coverage(y, zero, one) == 0.6
    assert diagnostics.coverage(y, zero, one, level=0.999) == 1.0
    assert diagnostics.coverage(y, zero, one, level=0.5) == 0.2


def test_coverage_of_calibrated_predictions_is_the_level():
    y = np.random.default_rng(3).normal(2.0, 3.0, size=100_000)
    mean, std = np.full_like(y, 2.0), np.full_like(y, 3.0)
    for level in (0.5, 0.9, 0.95):
        assert diagnostics.coverage(y, mean, std, level) == pytest.approx(level, abs=0.005)


def test_scores_collects_all_of_them():
    y, mean, std = [0.0, 1.0, 2.0], [0.1, 0.9, 2.5], [0.1, 0.2, 0.1]
    assert diagnostics.scores(y, mean, std) == {
        "nrmsep": diagnostics.nrmsep(y, mean),
        "crps": diagnostics.crps(y, mean, std),
        "normalised_crps": diagnostics.normalised_crps(y, mean, std),
        "coverage": diagnostics.coverage(y, mean, std),
    }


@pytest.mark.parametrize(
    ("y", "mean", "std", "message"),
    [
        (np.zeros(3), np.zeros((3, 1)), np.ones(3), "same shape"),  # would broadcast to (3, 3)
        (np.zeros(3), np.zeros(3), 1.0, "same shape"),
        ([0.0, np.nan], [0.0, 0.0], [1.0, 1.0], "y contains NaN"),
        ([0.0, 1.0], [0.0, 0.0], [1.0, -1.0], "negative"),
        ([], [], [], "empty"),
        (["a"], ["b"], ["c"], "real numbers"),
    ],
)
def test_wrong_inputs_are_refused(y, mean, std, message):
    with pytest.raises(InputError, match=message):
        diagnostics.scores(y, mean, std)


def test_a_range_of_zero_is_refused():
    with pytest.raises(InputError, match="all equal"):
        diagnostics.nrmsep([1.0, 1.0], [0.0, 2.0])


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_a_level_outside_the_unit_interval_is_refused(level):
    with pytest.raises(InputError, match="level"):
        diagnostics.coverage([0.0], [0.0], [1.0], level)
