"""Scores against quadrature, Monte Carlo and values worked out by hand."""

import math

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
    found = diagnostics.scores(y, mean, std)
    assert all(type(value) is float for value in found.values())
    assert found == {
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
    with pytest.raises(InputError, match="level is .*; it must be between 0 and 1"):
        diagnostics.coverage([0.0], [0.0], [1.0], level)


def test_standardised_errors_by_hand():
    y, mean, std = [3.0, 1.0, 2.0, 2.0, 2.0], [1.0, 2.0, 2.0, 1.0, 3.0], [4.0, 0.5, 0.0, 0.0, 0.0]
    errors = diagnostics.standardised_errors(y, mean, std)
    np.testing.assert_array_equal(errors, [0.5, -2.0, 0.0, np.inf, -np.inf])
    assert diagnostics.standardised_errors(np.ones((4, 2)), *np.ones((2, 4, 2))).shape == (4, 2)


def test_standardised_errors_past_the_largest_double_are_infinite():
    assert diagnostics.standardised_errors([-1e300], [0.0], [1e-300]) == -np.inf


def test_pit_is_the_integral_of_the_density():
    y, mean, std = np.array([0.3, -1.0, 4.0]), np.array([0.0, 1.0, 3.5]), np.array([1.0, 0.7, 2.0])
    expected = [
        integrate.quad(stats.norm(m, s).pdf, m - 12 * s, at)[0]
        for at, m, s in zip(y, mean, std, strict=True)
    ]
    np.testing.assert_allclose(diagnostics.pit(y, mean, std), expected, rtol=1e-7)
    np.testing.assert_array_equal(
        diagnostics.pit([2.0, 2.0, 2.0], [1.0, 2.0, 3.0], np.zeros(3)), [1.0, 0.5, 0.0]
    )


def test_pit_of_right_predictions_is_uniform(rng):
    mean, std = rng.normal(size=4000), rng.uniform(0.1, 2.0, size=4000)
    right = diagnostics.pit(rng.normal(mean, std), mean, std)
    narrow = diagnostics.pit(rng.normal(mean, 1.3 * std), mean, std)
    assert stats.kstest(right, "uniform").pvalue > 0.01
    assert stats.kstest(narrow, "uniform").pvalue < 1e-6


def test_log_score_is_the_mean_log_density(rng):
    y, mean, std = rng.normal(size=20), rng.normal(size=20), rng.uniform(0.1, 2.0, size=20)
    expected = np.mean(stats.norm(mean, std).logpdf(y))
    assert diagnostics.log_score(y, mean, std) == pytest.approx(expected, rel=1e-13)
    tiny = diagnostics.log_score([2e-200], [0.0], [1e-200])
    assert tiny == pytest.approx(stats.norm.logpdf(2.0) + 200 * np.log(10), rel=1e-13)


@pytest.mark.parametrize(
    ("y", "score"),
    [([1.0, 5.0, 9.0], np.inf), ([2.0, 5.0, 9.0], -np.inf), ([2.0, 6.0, 9.0], -np.inf)],
)
def test_log_score_of_points(y, score):
    """Of which all hit, one misses, both miss, beside a normal prediction."""
    assert diagnostics.log_score(y, [1.0, 5.0, 8.0], [0.0, 0.0, 1.0]) == score


def test_mixture_log_density_is_the_log_of_a_sum(rng):
    y, means = rng.normal(size=(6, 2)), rng.normal(size=(3, 6, 2))
    variances, weights = rng.uniform(0.5, 2.0, size=(3, 6, 2)), np.array([0.2, 0.5, 0.3])
    density = sum(
        w * stats.norm(m, np.sqrt(v)).pdf(y)
        for w, m, v in zip(weights, means, variances, strict=True)
    )
    for scale in (1.0, 7.0):  # weights need not sum to one
        result = diagnostics.mixture_log_density(y, means, variances, scale * weights)
        np.testing.assert_allclose(result, np.log(density), rtol=1e-11)


def test_mixture_log_density_weights_components_equally_unless_told(rng):
    y, means, variances = rng.normal(size=5), rng.normal(size=(4, 5)), np.ones((4, 5))
    density = np.mean(stats.norm(means, 1.0).pdf(y), axis=0)
    result = diagnostics.mixture_log_density(y, means, variances)
    np.testing.assert_allclose(result, np.log(density), rtol=1e-12)


def test_mixture_log_density_far_out_does_not_underflow():
    """At 100 standard deviations of the nearer component, whose density is exp(-5000)."""
    result = diagnostics.mixture_log_density([100.0], [[0.0], [-50.0]], np.ones((2, 1)))
    expected = stats.norm.logpdf(100.0) + np.log(0.5)
    np.testing.assert_allclose(result, expected, rtol=1e-14)


def test_mixture_log_density_of_points():
    y, means = [0.0, 1.0, 2.0], np.array([[0.0] * 3, [1.0] * 3])
    variances = np.array([[0.0] * 3, [1.0] * 3])
    normal = np.log(0.5) + stats.norm.logpdf([0.0, 1.0], 0.0, 1.0)
    np.testing.assert_allclose(
        diagnostics.mixture_log_density(y, means, variances, [1.0, 1.0]), [np.inf, *normal]
    )
    np.testing.assert_allclose(  # without the point
        diagnostics.mixture_log_density(y, means, variances, [0.0, 1.0]),
        stats.norm.logpdf(y, 1.0, 1.0),
    )
    np.testing.assert_array_equal(  # without the normal
        diagnostics.mixture_log_density(y, means, variances, [2.0, 0.0]), [np.inf, -np.inf, -np.inf]
    )


@pytest.mark.parametrize(
    ("means", "variances", "weights", "message"),
    [
        (
            np.zeros((2, 4)),
            np.ones((2, 4)),
            None,
            r"means has the shape \(2, 4\); it must be \(K, \*\(3,\)\)",
        ),
        (np.zeros((2, 3)), np.ones((3, 3)), None, "same shape"),
        (np.zeros((2, 3)), -np.ones((2, 3)), None, "variances contains negative"),
        (
            np.zeros((2, 3)),
            np.ones((2, 3)),
            [1.0],
            r"weights has the shape \(1,\); it must be \(2,\)",
        ),
        (np.zeros((2, 3)), np.ones((2, 3)), [-1.0, 2.0], "weights contains negative"),
    ],
)
def test_wrong_mixtures_are_refused(means, variances, weights, message):
    with pytest.raises(InputError, match=message):
        diagnostics.mixture_log_density(np.zeros(3), means, variances, weights)


@pytest.mark.parametrize(("n_inside", "n", "level"), [(0, 5, 0.5), (3, 5, 0.8), (5, 5, 0.95)])
def test_coverage_test_adds_up_the_probabilities(n_inside, n, level):
    chance = [math.comb(n, k) * level**k * (1 - level) ** (n - k) for k in range(n + 1)]
    tails = diagnostics.coverage_test(n_inside, n, level)
    assert tails.lower == pytest.approx(sum(chance[: n_inside + 1]), rel=1e-12)
    assert tails.upper == pytest.approx(sum(chance[n_inside:]), rel=1e-12)


def test_coverage_test_keeps_its_promise():
    """Right intervals are called too narrow, or too wide, at 0.025 no more often than that."""
    chance = [math.comb(200, k) * 0.9**k * 0.1 ** (200 - k) for k in range(201)]
    tails = np.array([diagnostics.coverage_test(k, 200, 0.9) for k in range(201)])
    false_alarms = np.array(chance) @ (tails < 0.025)
    assert np.all((0.01 < false_alarms) & (false_alarms < 0.025))


@pytest.mark.parametrize(("n_inside", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(n_inside, n):
    with pytest.raises(InputError, match="n_inside is .*; it must be between 0 and n"):
        diagnostics.coverage_test(n_inside, n, 0.9)


def test_coverage_table_counts_by_hand():
    y = np.array([[0.0, 1.9, 2.0], [-1.95, -3.0, 0.5]])
    table = diagnostics.coverage_table(y, np.zeros((2, 3)), np.ones((2, 3)), levels=[0.5, 0.95])
    assert (table.levels, table.n_inside, table.n) == ((0.5, 0.95), (2, 4), 6)
    assert table.shares == (2 / 6, 4 / 6)
    assert table.tails[1] == diagnostics.coverage_test(4, 6, 0.95)
    assert str(table) == (
        "nominal  observed  P(as few)  P(as many)\n"
        "    0.5     0.333       0.34        0.89\n"
        "   0.95     0.667      0.033           1"
    )


def test_coverage_table_has_the_usual_levels(rng):
    y = rng.normal(size=1001)
    table = diagnostics.coverage_table(y, np.zeros(1001), np.ones(1001))
    assert table.levels == (0.5, 0.8, 0.9, 0.95, 0.99)
    reach = (0.6744897501960817, 1.2815515655446004, 1.6448536269514722, 1.959963984540054)
    assert table.n_inside[:4] == tuple(np.count_nonzero(np.abs(y) <= z) for z in reach)
