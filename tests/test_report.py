"""The report of a fit: its numbers by hand, its words, and when it complains."""

import dataclasses
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from deepemu import DGP, GP, ConvergenceWarning, DataWarning, InputError, convergence
from deepemu.core.distributions import Gaussian
from deepemu.core.model.observation import Units
from deepemu.observations.gaussian import GaussianNoise
from deepemu.posterior import stacking, summary
from deepemu.posterior.stacking import Judged
from deepemu.training.folds import HeldOut

SMALL = {
    "kernel": "squared_exponential",
    "n_chains": 5,
    "n_iter": 30,
    "n_sweeps": 2,
    "n_imputations": 4,
}


@pytest.fixture(scope="module")
def problem():
    x = np.random.default_rng(0).random((24, 2))
    return x, 1e3 * (np.sin(5 * x[:, 0]) + x[:, 1]) - 40


@pytest.fixture(scope="module")
def fitted(problem):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return DGP(**SMALL).fit(*problem)


def normal_crps(y, mean, std):
    """The mean of |X - y| less half that of |X - X'|, by quadrature of (F - 1{x >= y})^2."""
    x = np.linspace(-30, 30, 200_001)
    scores = []
    for each_y, each_mean, each_std in zip(y, mean, std, strict=True):
        z = (each_y - each_mean) / each_std
        scores.append(each_std * np.trapezoid((stats.norm.cdf(x) - (x >= z)) ** 2, x))
    return np.mean(scores)


# --- numbers ---------------------------------------------------------------------------------


def held_out_components(fitted):
    """Means, standard deviations and weights (K, n) at the rows, in core units."""
    found = fitted.posterior_.stacked.held_out
    return found.latents.mean[..., 0], np.sqrt(found.latents.var[..., 0]), found.weights


def test_the_line_of_the_mixture_is_the_score_of_held_out_predictions(fitted, problem):
    """Of the mixture itself, by quadrature of its distribution function."""
    y = (problem[1] - problem[1].mean()) / problem[1].std()
    line = fitted.summary().lines[-1]
    assert line.label == "mixture"
    assert line.n_chains == 5 + 2
    away = np.geomspace(1e-7, 40.0, 20_001)
    from_y = np.concatenate([-away[::-1], away])  # close together where the integrand jumps
    crps, log_density, inside = [], [], []
    for i, (means, stds, weights) in enumerate(
        zip(*(each.T for each in held_out_components(fitted)), strict=True)
    ):
        t = y[i] + from_y
        F = sum(w * stats.norm.cdf(t, m, s) for w, m, s in zip(weights, means, stds, strict=True))
        crps.append(np.trapezoid((F - (from_y > 0.0)) ** 2, t))
        log_density.append(np.log(weights @ stats.norm.pdf(y[i], means, stds)))
        inside.append(0.025 <= weights @ stats.norm.cdf(y[i], means, stds) <= 0.975)
    assert line.crps == pytest.approx(np.mean(crps), rel=1e-3)
    assert line.log_score == pytest.approx(np.mean(log_density), rel=1e-9)
    assert line.coverage == pytest.approx(np.mean(inside))


def test_loo_gives_the_moments_of_the_mixture(fitted, problem):
    means, stds, weights = held_out_components(fitted)
    centre, size = problem[1].mean(), problem[1].std()
    mean = np.sum(weights * means, axis=0)
    var = np.sum(weights * (stds**2 + means**2), axis=0) - mean**2
    np.testing.assert_allclose(fitted.loo()[0], centre + size * mean, rtol=1e-9)
    np.testing.assert_allclose(fitted.loo()[1], size * np.sqrt(var), rtol=1e-6)


def test_weights_are_weights(fitted):
    found = fitted.summary()
    *structures, mixture = found.lines
    assert [line.n_chains for line in structures] == [5, 1, 1]
    assert sum(line.weight for line in structures) == pytest.approx(1.0)
    assert mixture.weight == pytest.approx(1.0, abs=1e-15)
    of_chain = [w for _, weights in fitted.posterior_.weights for w in weights]
    assert found.effective_chains == pytest.approx(1 / sum(w**2 for w in of_chain))
    for line, (_, weights) in zip(structures, fitted.posterior_.weights, strict=True):
        assert line.weight == pytest.approx(np.sum(weights), abs=1e-12)


def test_the_line_of_a_structure_is_the_score_of_its_chains_alone(fitted, problem):
    """Also of one that has lost its weight: it is scored, but never asked."""
    y = (problem[1] - problem[1].mean()) / problem[1].std()
    for place in (1, 2):  # a plain GP: one chain, no mixture
        moments = fitted.posterior_.structures[place].held_out.latents
        expected = normal_crps(y, moments.mean[0, 0, :, 0], np.sqrt(moments.var[0, 0, :, 0]))
        assert fitted.summary().lines[place].crps == pytest.approx(expected, rel=1e-3)


def test_the_mixing_of_a_deep_structure_is_reported(fitted):
    (mixing,) = fitted.summary().mixing
    assert mixing.label == fitted.summary().lines[0].label
    assert mixing.n_iterations == 30
    # Nine iterations have all rows, and the last four of them count.
    late = [
        np.log(path)[:, -4:] for kind in ("lengthscale", "scale") for path in fitted.trace_[kind]
    ]
    found = [convergence.split_rhat(path) for path in late if np.ptp(path) > 0]
    assert mixing.rhat == pytest.approx(max(np.max(each) for each in found))
    assert mixing.effective > 0
    assert 0 < mixing.angle <= 2 * np.pi and mixing.evaluations >= 1


def test_chains_that_were_added_have_a_line_of_their_own(fitted):
    trained = fitted.posterior_.structures[0]
    first, added = summary._mixings([trained, trained])
    assert added.label == f"{first.label}, chains added"
    assert dataclasses.replace(added, label=first.label) == first


@pytest.mark.parametrize("n_iter", [1, 2, 3])
def test_short_paths_are_reported_without_a_warning(problem, n_iter):
    """Too short for R-hat; a warning would be an error."""
    found = DGP(**(SMALL | {"n_iter": n_iter, "n_chains": 2})).fit(*problem).summary()
    (mixing,) = found.mixing
    assert np.isnan(mixing.rhat) and np.isnan(mixing.effective)
    assert mixing.n_iterations == n_iter


# --- words -----------------------------------------------------------------------------------


def test_the_text_has_a_row_for_each_structure(fitted):
    found = fitted.summary()
    text = str(found)
    assert repr(found) == text
    for line in found.lines:
        (row,) = [each for each in text.splitlines() if re.match(rf"{line.label} +\d", each)]
        noise = "-" if line.noise is None else f"{line.noise:.1g}"
        assert row.split()[-6:] == [
            str(line.n_chains), f"{line.weight:.2f}", f"{line.crps:.4f}",
            f"{line.log_score:.2f}", f"{line.coverage:.1%}", noise,
        ]  # fmt: skip
    for words in ("GP, matern52", "GP, squared exponential", "mixture"):
        assert words in text
    assert "DGP, 2 layers, squared exponential" in text
    assert f"multiplied by {found.scale[0]:.2f}" in text
    assert "24 rows" in text


def test_without_held_out_predictions_the_report_says_so(problem):
    for emulator in (GP(), DGP(**(SMALL | {"n_chains": 2}))):
        found = emulator.fit(*problem).summary()
        assert found.prediction_rhat is None and found.troubles == ()
        assert found.lines[-1].crps is None
        assert "Nothing was held out" in str(found)


def test_decisions_stand_in_the_text(fitted):
    base = fitted.summary()
    changed = summary.Report(**{**vars(base), "decisions": ("It was decided.",)})
    assert "It was decided." in str(changed).splitlines()


# --- troubles --------------------------------------------------------------------------------


def report_of(y, std, chains=1):
    """Of predictions of zero, with this standard deviation, of outputs (n, q)."""
    shape = (chains, 1, *y.shape)
    moments = Gaussian(np.zeros(shape), np.full(shape, std**2))
    held_out = HeldOut(moments, np.ones((chains, len(y)), int))
    layers = (SimpleNamespace(free_nugget=False),)
    network = SimpleNamespace(depth=1, n_imputed=0, n_inputs=1, layers=layers)
    start = (SimpleNamespace(log_nugget=np.log([1e-8])),)
    structure = SimpleNamespace(
        label="made up", network=network, start=start, observation=GaussianNoise()
    )
    trained = SimpleNamespace(structure=structure, chains=[None] * chains, held_out=held_out)
    units = Units(np.zeros(y.shape[1]), np.ones(y.shape[1]))
    judged = Judged(y, np.arange(len(y)), GaussianNoise(), units)
    return summary.report_on([trained], stacking.stack([trained], judged), judged, ())


@pytest.mark.parametrize("seed", range(5))
def test_right_error_bars_are_no_trouble(seed):
    y = np.random.default_rng(seed).normal(size=(60, 2))
    found = report_of(y, 1.0)
    assert found.troubles == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.warn()


@pytest.mark.parametrize("seed", range(5))
def test_error_bars_that_are_too_small_are_trouble(seed):
    """By ten: the scale may grow to three at most, so intervals stay too narrow."""
    y = np.random.default_rng(seed).normal(size=(60, 2))
    found = report_of(y, 0.1)
    narrow, far_off = found.troubles
    # The scale of a group of 12 rows comes from the other 48.
    inside = np.mean(np.abs(y) <= 1.959963984540054 * 0.1 * 3 ** (48 / (48 + 20)))
    np.testing.assert_allclose(
        found.scale, 3 ** (60 / (60 + 20)), rtol=1e-5
    )  # the search ends there
    assert inside < 0.6
    assert found.lines[-1].coverage == pytest.approx(inside)
    assert f"only {inside:.0%} of 120 held-out" in narrow
    assert f"{max(found.scale):.1f} times" in far_off
    with pytest.warns(ConvergenceWarning) as caught:
        found.warn()
    assert [str(each.message) for each in caught] == [narrow, far_off]
    assert all(trouble in str(found) for trouble in found.troubles)


def test_error_bars_too_small_by_two_are_mended_and_told():
    y = np.random.default_rng(0).normal(size=(200, 1))
    (trouble,) = report_of(y, 0.45).troubles
    assert "multiplied by that" in trouble


def test_an_output_far_away_from_its_prediction_is_trouble():
    """Two of sixty outside is no bad coverage, and one of them at 5000 standard deviations."""
    y = np.random.default_rng(0).normal(size=(60, 1))
    y[17] = 5000.0
    (trouble,) = report_of(y, 1.0).troubles
    assert "standard deviations from its prediction" in trouble
    assert int(re.search(r"lies (\d+) standard", trouble)[1]) > 1000


def test_too_few_rows_for_the_inputs_are_trouble():
    y = np.random.default_rng(0).normal(size=(9, 1))
    (trouble,) = report_of(y, 1.0).troubles
    assert (
        trouble.startswith("9 distinct runs of 1 inputs are too few") and "10 would do" in trouble
    )


def test_agreeing_chains_have_an_rhat_of_one():
    y = np.random.default_rng(0).normal(size=(30, 1))
    assert report_of(y, 1.0, chains=3).prediction_rhat == pytest.approx(1.0)
    assert report_of(y, 1.0).prediction_rhat is None


def test_a_single_voice_is_not_taken_for_nothing_held_out():
    """With all the weights there is no R-hat, but there are scores, weights and a scale."""
    y = np.random.default_rng(0).normal(size=(30, 1))
    text = str(report_of(y, 1.0))
    assert "Nothing was held out" not in text
    assert "30 rows" in text and "worth 1.0 equal chains" in text


def test_a_constant_output_is_no_trouble(problem):
    x, _ = problem
    with pytest.warns(DataWarning, match="constant") as caught:
        emulator = DGP(**SMALL).fit(x, np.full(24, 7.5))
    assert not [each for each in caught if issubclass(each.category, ConvergenceWarning)]
    mean, std = emulator.predict(x[:3] + 0.1, return_std=True)
    np.testing.assert_allclose(mean, 7.5, rtol=1e-8)
    assert np.all(np.isfinite(std)) and np.all(std < 1e-3)
    found = emulator.summary()
    assert sum(line.weight for line in found.lines[:-1]) == pytest.approx(1.0)
    assert found.lines[-1].coverage == 1.0


def test_the_intervals_are_counted_at_several_levels(fitted, problem):
    y = (problem[1] - problem[1].mean()) / problem[1].std()
    means, stds, weights = held_out_components(fitted)
    rank = np.sum(weights * stats.norm.cdf(y, means, stds), axis=0)
    table = fitted.summary().intervals
    assert table.n == 24 and table.levels == (0.5, 0.8, 0.9, 0.95, 0.99)
    for level, inside in zip(table.levels, table.n_inside, strict=True):
        assert inside == np.sum(np.abs(rank - 0.5) <= level / 2)
    assert f"{table.shares[1]:.1%} (of 80%)" in str(fitted.summary())


@pytest.mark.parametrize("few", [{"n_chains": 3}, {"n_iter": 1}, {"rows": 7}])
def test_a_fit_that_cannot_be_checked_says_so(few):
    """Unless that was asked for."""
    x = np.linspace(0, 1, few.pop("rows", 10))[:, None]
    settings = SMALL | {"n_chains": 4, "n_iter": 2, "n_sweeps": 1, "verbose": False} | few
    with pytest.warns(ConvergenceWarning, match="No rows can be held out.*stacking=False"):
        emulator = DGP(**settings).fit(x, x[:, 0] ** 2)
    assert "nothing checks the intervals" in str(emulator.summary())
    DGP(**settings, stacking=False).fit(x, x[:, 0] ** 2)


def test_predictions_of_chains_are_compared_point_by_point(problem):
    """Against R-hat and effective sample size of means that the members give one at a time."""
    at = problem[0][:3] + 0.01
    fitted = DGP(**SMALL, stacking=False).fit(*problem)
    found = fitted.prediction_convergence(at)
    members = fitted.posterior_.members(at)
    # R-hat and effective sample size do not depend on the units.
    draws = np.reshape(members.outputs.mean[..., 0], (5, 4, 3))  # chains, imputations, rows
    np.testing.assert_allclose(found["rhat"], convergence.split_rhat(draws), rtol=1e-6)
    expected = convergence.effective_sample_size(draws)
    np.testing.assert_allclose(found["effective_sample_size"], expected, rtol=1e-6)
    with pytest.raises(InputError, match="No chain with imputed layers has a weight"):
        GP().fit(*problem).prediction_convergence(at)


@pytest.mark.parametrize("verbose", ["x", 1, 0.0])
def test_verbose_is_a_truth_value_or_none(problem, verbose):
    with pytest.raises(InputError, match="verbose is .*; it must be True, False or None"):
        DGP(verbose=verbose).fit(*problem)


def test_evaluations_of_whole_layers_are_counted_a_layer(problem):
    """Not a node: a slice needs one evaluation at least."""
    x = problem[0][:12]
    settings = SMALL | {"n_chains": 1, "n_sweeps": 4, "sweep": "layer"}
    emulator = DGP(**settings).fit(x, np.sin(5 * x[:, 0]))
    (mixing,) = emulator.summary().mixing
    state = emulator.posterior_.structures[0].chains[0].imputation
    assert mixing.evaluations == pytest.approx(float(state.evaluations) / float(state.sweeps))
    assert mixing.evaluations >= 1.0
