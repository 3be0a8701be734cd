"""R-hat and effective sample sizes against slow loops, ArviZ, autoregressive theory and draws."""

import statistics
import sys
import types
import warnings

import numpy as np
import pytest
from scipy import stats

from deepemu import convergence
from deepemu.errors import InputError


@pytest.fixture
def arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its coming version, at the first import
        return pytest.importorskip("arviz")


def autoregressive(rng, rho, shape):
    """Draws x_t = rho x_{t-1} + e_t of variance one, along axis 1."""
    draws = rng.normal(size=shape)
    for t in range(1, shape[1]):
        draws[:, t] = rho * draws[:, t - 1] + np.sqrt(1 - rho**2) * draws[:, t]
    return draws


def mixed_bag(rng):
    """Entries that agree, differ in place, in spread, drift, and have heavy tails."""
    draws = autoregressive(rng, 0.5, (3, 61, 5))
    draws[0, :, 1] += 1.5
    draws[1, :, 2] *= 4.0
    draws[:, :, 3] += np.linspace(0, 2, 61)
    draws[:, :, 4] = rng.standard_cauchy((3, 61))
    return draws


def cut(chains):
    n = len(chains[0]) // 2
    return [list(c[:n]) for c in chains] + [list(c[len(c) - n :]) for c in chains]


def rhat_by_loops(chains):
    n = len(chains[0])
    between = n * statistics.variance([statistics.fmean(c) for c in chains])
    within = statistics.fmean([statistics.variance(c) for c in chains])
    return (((n - 1) / n * within + between / n) / within) ** 0.5


def ess_by_loops(chains):
    """Geyer's sequence lag by lag, as Stan's reference manual words it."""
    n, m = len(chains[0]), len(chains)
    means = [statistics.fmean(c) for c in chains]
    within = statistics.fmean([statistics.variance(c) for c in chains])
    total = (n - 1) / n * within + statistics.variance(means)

    def rho(t):
        lagged = [
            sum((c[i] - mu) * (c[i + t] - mu) for i in range(n - t)) / n
            for c, mu in zip(chains, means, strict=True)
        ]
        return 1.0 if t == 0 else 1 - (within - statistics.fmean(lagged)) / total

    tau, lowest, t = -1.0, float("inf"), 0
    while t + 1 < n and rho(t) + rho(t + 1) > 0:
        lowest = min(lowest, rho(t) + rho(t + 1))
        tau += 2 * lowest
        t += 2
    if t + 1 < n:
        tau += max(rho(t), 0)
    return m * n / max(tau, 1 / np.log10(m * n))


def test_split_rhat_is_that_of_loops(rng):
    draws = mixed_bag(rng)
    expected = [rhat_by_loops(cut(draws[..., k])) for k in range(5)]
    np.testing.assert_allclose(convergence.split_rhat(draws), expected, rtol=1e-12)


def test_effective_sample_size_is_that_of_loops(rng):
    draws = mixed_bag(rng)
    expected = [ess_by_loops(cut(draws[..., k])) for k in range(5)]
    np.testing.assert_allclose(convergence.effective_sample_size(draws), expected, rtol=1e-10)


@pytest.mark.parametrize("rho", [0.0, 0.5, -0.5, 0.8])
@pytest.mark.parametrize("shape", [(2, 200), (4, 401)])
def test_the_same_numbers_as_arviz(rng, arviz, rho, shape):
    """Of chains longer than their memory: ArviZ leaves out the last lags, where that matters."""
    draws = autoregressive(rng, rho, shape)
    ours = {
        "split": convergence.split_rhat(draws),
        "rank": convergence.rank_rhat(draws),
        "mean": convergence.effective_sample_size(draws),
    }
    theirs = {method: arviz.rhat(draws, method=method) for method in ("split", "rank")}
    theirs["mean"] = arviz.ess(draws, method="mean")
    assert ours == pytest.approx({name: float(theirs[name]) for name in ours}, rel=1e-10)


def test_rhat_by_hand():
    """Halves (0, 2), (4, 6): n = 2, W = 2, B = var(1, 5) = 8."""
    assert convergence.split_rhat([[0.0, 2.0, 4.0, 6.0]]) == pytest.approx(np.sqrt(0.5 + 4))
    assert convergence.split_rhat([[0.0, 2.0, 99.0, 4.0, 6.0]]) == pytest.approx(np.sqrt(4.5))


def test_rhat_sees_a_drift_that_all_chains_share(rng):
    steady = rng.normal(size=(4, 500))
    drifting = steady + np.linspace(0, 3, 500)
    assert convergence.split_rhat(steady) < 1.01
    assert convergence.split_rhat(drifting) > 1.2


def test_rank_rhat_sees_a_difference_of_spread_that_split_rhat_does_not(rng):
    draws = rng.normal(size=(4, 2000))
    draws[0] *= 5.0
    assert convergence.split_rhat(draws) < 1.01
    assert convergence.rank_rhat(draws) > 1.1


def test_rank_rhat_of_a_location_is_untouched_by_a_monotone_transformation(rng):
    """Ranks of x and exp(x) are the same; here the location differs more than the spread."""
    draws = rng.normal(size=(4, 300)) + np.array([[0.0], [0.0], [0.0], [1.0]])
    assert convergence.rank_rhat(draws) == pytest.approx(convergence.rank_rhat(np.exp(draws)))


def test_rank_normalised_by_hand():
    draws = np.array([[3.0, 1.0, 1.0], [2.0, -7.0, 9.0]])
    ranks = np.array([[5.0, 2.5, 2.5], [4.0, 1.0, 6.0]])
    expected = stats.norm.ppf((ranks - 3 / 8) / 6.25)
    np.testing.assert_allclose(convergence.rank_normalised(draws), expected, rtol=1e-13)
    both = np.stack([draws, -draws], axis=-1)  # entries are ranked apart
    np.testing.assert_allclose(convergence.rank_normalised(both)[..., 1], -expected, rtol=1e-13)


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9, -0.4])
def test_effective_sample_size_of_an_autoregression(rng, rho):
    """The variance of its mean is (1 + rho) / (1 - rho) times that of independent draws."""
    draws = autoregressive(rng, rho, (4, 20_000, 3))
    theory = 80_000 * (1 - rho) / (1 + rho)
    np.testing.assert_allclose(convergence.effective_sample_size(draws), theory, rtol=0.08)


def test_effective_sample_size_predicts_the_error_of_the_mean(rng):
    """Over many repetitions, var(mean) = var(x) / ESS."""
    draws = autoregressive(rng, 0.7, (4, 500, 400))
    sizes = convergence.effective_sample_size(draws)
    error = np.var(draws.mean(axis=(0, 1)))
    assert 1 / error == pytest.approx(np.mean(sizes), rel=0.2)


def test_alternating_chains_get_limited_credit(rng):
    draws = autoregressive(rng, -0.98, (4, 1000))
    size = 4000 * np.log10(4000)
    assert convergence.effective_sample_size(draws) == pytest.approx(size, rel=1e-12)


# Of some of these the mean, or the mean of means, is not the number itself.
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 2.3, -1e12 / 7])
@pytest.mark.parametrize("shape", [(1, 4), (3, 7), (7, 21), (4, 1001)])
def test_equal_draws_agree(value, shape):
    draws = np.full(shape, value)
    n_used = 2 * shape[0] * (shape[1] // 2)
    assert convergence.split_rhat(draws) == 1.0
    assert convergence.rank_rhat(draws) == 1.0
    assert convergence.effective_sample_size(draws) == n_used


def test_constant_chains_that_differ_disagree():
    draws = np.repeat([[0.1], [1 / 3], [0.7]], 101, axis=1)
    assert convergence.split_rhat(draws) == np.inf
    assert convergence.rank_rhat(draws) == np.inf
    assert convergence.effective_sample_size(draws) == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize(
    "statistic",
    [convergence.split_rhat, convergence.rank_rhat, convergence.effective_sample_size],
)
class TestNothingCanBeSaid:
    @pytest.mark.parametrize("n", [0, 1, 3])
    def test_of_fewer_than_four_draws(self, statistic, n, rng):
        result = statistic(rng.normal(size=(4, n, 2)))
        np.testing.assert_array_equal(result, [np.nan, np.nan])
        assert np.isfinite(statistic(rng.normal(size=(4, 4, 2)))).all()

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_of_draws_that_are_not_finite_while_other_entries_are_untouched(
        self, statistic, bad, rng
    ):
        draws = rng.normal(size=(4, 50, 3))
        clean = statistic(draws)
        draws[2, 25, 1] = bad
        np.testing.assert_array_equal(statistic(draws), [clean[0], np.nan, clean[2]])

    def test_of_draws_without_chains(self, statistic):
        with pytest.raises(
            InputError, match=r"draws has the shape \(5,\); it must be \(chains, iterations, ...\)"
        ):
            statistic(np.zeros(5))

    def test_trailing_axes_are_kept(self, statistic, rng):
        draws = rng.normal(size=(2, 20, 3, 4))
        result = statistic(draws)
        assert result.shape == (3, 4)
        assert result[2, 1] == pytest.approx(float(statistic(draws[:, :, 2, 1])))


class TestPredictiveRhat:
    def test_by_hand(self):
        assert convergence.predictive_rhat([[0.0], [2.0]], [[0.5], [1.5]]) == np.sqrt(3.0)

    def test_is_the_limit_of_rhat_of_many_draws(self, rng):
        means = np.array([[0.0, 1.0], [0.7, 1.0], [-0.2, 2.5]])
        stds = np.array([[1.0, 0.3], [2.0, 0.5], [0.5, 0.2]])
        draws = rng.normal(means[:, None], stds[:, None], size=(3, 40_000, 2))
        whole = [rhat_by_loops(list(draws[..., k])) for k in range(2)]
        result = convergence.predictive_rhat(means, stds**2)
        np.testing.assert_allclose(result, whole, rtol=0.01)
        halved = np.sqrt(1 + (result**2 - 1) * 4 / 5)  # 2 (K - 1) / (2 K - 1)
        np.testing.assert_allclose(convergence.split_rhat(draws), halved, rtol=0.01)

    def test_spread_between_chains_is_unbiased_for_any_weights(self, rng):
        """Means drawn with variance 4 beside W = 0.5 + 0.25 * 2 have E[B] = 4."""
        means = rng.normal(3.0, 2.0, size=(3, 200_000))
        variances = np.array([[1.0], [2.0], [0.0]]) * np.ones(200_000)
        rhat = convergence.predictive_rhat(means, variances, weights=[4.0, 2.0, 2.0])
        assert np.mean(rhat**2 - 1) == pytest.approx(4.0, rel=0.01)

    def test_equal_weights_are_the_default(self, rng):
        means, variances = rng.normal(size=(4, 5, 2)), rng.uniform(size=(4, 5, 2))
        plain = convergence.predictive_rhat(means, variances)
        between, within = np.var(means, axis=0, ddof=1), np.mean(variances, axis=0)
        np.testing.assert_allclose(plain, np.sqrt(1 + between / within), rtol=1e-12)
        np.testing.assert_allclose(
            convergence.predictive_rhat(means, variances, np.full(4, 0.1)), plain, rtol=1e-12
        )

    def test_a_chain_of_weight_zero_is_as_if_absent(self, rng):
        means, variances = rng.normal(size=(4, 6)), rng.uniform(size=(4, 6))
        np.testing.assert_allclose(
            convergence.predictive_rhat(means, variances, [1.0, 0.0, 1.0, 1.0]),
            convergence.predictive_rhat(means[[0, 2, 3]], variances[[0, 2, 3]]),
            rtol=1e-12,
        )

    def test_without_spread_within(self):
        means = np.full((5, 2), 0.1)  # whose rounded mean is another number
        means[1, 1] = 0.2
        result = convergence.predictive_rhat(means, np.zeros((5, 2)))
        np.testing.assert_array_equal(result, [1.0, np.inf])

    @pytest.mark.parametrize(("chains", "weights"), [(1, None), (2, [0.0, 3.0])])
    def test_of_one_chain_is_unknown(self, chains, weights):
        result = convergence.predictive_rhat(np.ones((chains, 3)), np.ones((chains, 3)), weights)
        np.testing.assert_array_equal(result, [np.nan] * 3)

    @pytest.mark.parametrize(
        ("means", "variances", "weights", "message"),
        [
            (np.zeros((2, 3)), np.zeros((2, 1)), None, "same shape"),
            (np.zeros(()), np.zeros(()), None, "one row per component"),
            (np.zeros((2, 3)), -np.ones((2, 3)), None, "variances contains negative"),
            ([[np.nan], [0.0]], [[1.0], [1.0]], None, "means contains NaN"),
            (
                np.zeros((2, 3)),
                np.ones((2, 3)),
                [1.0, 1.0, 1.0],
                r"weights has the shape \(3,\); it must be \(2,\)",
            ),
            (np.zeros((2, 3)), np.ones((2, 3)), [1.0, -1.0], "weights contains negative"),
            (np.zeros((2, 3)), np.ones((2, 3)), [0.0, 0.0], "all zero"),
        ],
    )
    def test_wrong_inputs_are_refused(self, means, variances, weights, message):
        with pytest.raises(InputError, match=message):
            convergence.predictive_rhat(means, variances, weights)


class TestInferenceData:
    def test_arviz_gets_all_groups(self, arviz, rng):
        scale, pointwise, y = rng.normal(size=(2, 30, 3)), rng.normal(size=(2, 30, 7)), np.arange(7)
        data = convergence.inference_data({"scale": scale}, {"y": pointwise}, {"y": y})
        np.testing.assert_array_equal(data["posterior"]["scale"], scale)
        assert data["posterior"]["scale"].dims[:2] == ("chain", "draw")
        np.testing.assert_array_equal(data["log_likelihood"]["y"], pointwise)
        np.testing.assert_array_equal(data["observed_data"]["y"], y)
        expected = [rhat_by_loops(cut(scale[..., k])) for k in range(3)]
        split = arviz.rhat(data, method="split")["scale"]
        np.testing.assert_allclose(split, expected)

    def test_groups_not_given_are_absent(self, arviz, rng):
        data = convergence.inference_data({"scale": rng.normal(size=(2, 30))})
        assert "posterior" in data
        assert "log_likelihood" not in data
        assert "observed_data" not in data

    @pytest.mark.parametrize("version", ["0.23.4", "1.0.0", "1.3.0rc1"])
    def test_both_interfaces_of_arviz_are_met(self, monkeypatch, version):
        """One dictionary of groups from version 1 on, keywords before it."""
        fake = types.SimpleNamespace(
            __version__=version, from_dict=lambda *groups, **group: (*groups, group)
        )
        monkeypatch.setitem(sys.modules, "arviz", fake)
        scale, y = np.zeros((2, 5)), np.zeros(3)
        groups = {"posterior": {"scale": scale}, "observed_data": {"y": y}}
        expected = (groups, {}) if version.startswith("1") else (groups,)
        assert convergence.inference_data({"scale": scale}, observed={"y": y}) == expected

    def test_without_arviz_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "arviz", None)
        with pytest.raises(ImportError, match=r"pip install 'deepemu\[arviz\]'"):
            convergence.inference_data({"scale": np.zeros((2, 5))})

    @pytest.mark.parametrize("shape", [(2, 31, 4), (3, 30), (2,)])
    def test_chains_of_other_lengths_are_refused(self, arviz, shape):
        with pytest.raises(InputError, match=r"all must begin with \(chains, iterations\)"):
            convergence.inference_data({"scale": np.zeros((2, 30))}, {"y": np.zeros(shape)})

    def test_paths_of_a_deep_emulator_are_variables(self, arviz, dgp):
        """What is held is left out: nugget and scale of the hidden layer."""
        posterior = dgp.to_arviz()["posterior"]
        trace = dgp.trace_
        expected = {
            "lengthscale_1": trace["lengthscale"][0],
            "lengthscale_2": trace["lengthscale"][1],
            "scale_2": trace["scale"][1],
            "nugget_2": trace["nugget"][1],
            "log_density": trace["log_density"],
        }
        assert set(posterior.data_vars) == set(expected)
        for name, path in expected.items():
            np.testing.assert_array_equal(posterior[name], path)

    @pytest.mark.filterwarnings("ignore:More chains")  # ArviZ takes that for a wrong shape
    def test_iterations_that_leave_rows_out_are_no_draws(self, arviz, stacked):
        """The last 30 % of four have all rows: one."""
        found = stacked.to_arviz()["posterior"]["log_density"]
        np.testing.assert_array_equal(found, stacked.trace_["log_density"][:, -1:])
