"""Noise: nuggets that are estimated, given or left to the arithmetic, and replicated runs."""

import numpy as np
import pytest
from oracles import Process
from poisson_model import Poisson
from sklearn.base import clone

from deepemu import DGP, GP, DataWarning, Emulator, InputError, Layer
from deepemu.core.model.priors import Flat, Gamma, Independent, Power
from deepemu.training.layers import prior_of, sampled_layers
from deepemu.training.structures import noise_variance


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
    interpolating = clone(stacked).set_params(nugget=1e-6).fit(x, y)
    doubled, noise = np.repeat(x, 2, axis=0), np.tile([0.3, -0.3], 12)
    with pytest.warns(DataWarning, match="occur more than once"):
        spread = clone(interpolating).fit(doubled, np.repeat(y, 2) + noise)
    # The means are the outputs up to round-off, which a few iterations do not enlarge by much.
    np.testing.assert_allclose(spread.weights_, interpolating.weights_, atol=1e-5)
    stretches = (each.posterior_.stacked.stretch for each in (spread, interpolating))
    np.testing.assert_allclose(*stretches, atol=1e-5)


# --- a nugget that is found ---------------------------------------------------------------------

WAVY = np.linspace(0, 1, 40)[:, None]


def wave(noise):
    return np.sin(5 * WAVY[:, 0]) + noise * np.random.default_rng(1).normal(size=40)


@pytest.mark.parametrize("kernel", ["matern52", "squared_exponential"])
def test_a_smooth_function_keeps_the_smallest_nugget(kernel):
    emulator = GP(kernel).fit(WAVY, wave(0.0))
    np.testing.assert_allclose(emulator.trace_["nugget"][0], 1e-8, rtol=0.05)
    assert emulator.summary().lines[0].noise < 2e-3


@pytest.mark.parametrize("noise", [1e-3, 0.1])
@pytest.mark.parametrize("kernel", ["matern52", "squared_exponential"])
def test_noise_of_any_size_is_found(kernel, noise):
    emulator = GP(kernel).fit(WAVY, wave(noise))
    assert noise_sd(emulator, wave(noise)) == pytest.approx(noise, rel=0.4)
    found, shown = noise_sd(emulator, wave(noise)), emulator.summary().lines[0].noise
    assert shown == pytest.approx(found / wave(noise).std())


def test_runs_that_repeat_and_differ_are_noise_by_default(runs_with_replicates):
    emulator = GP().fit(*runs_with_replicates)
    assert noise_sd(emulator, runs_with_replicates[1]) == pytest.approx(0.3, rel=0.2)


@pytest.mark.parametrize("round_off", [0.0, 1e-15, 1e-6])
def test_repeated_runs_that_agree_are_copies(round_off):
    """Each run five times. As observations of their own they would drown the function."""
    x, rng = np.repeat(WAVY, 5, axis=0), np.random.default_rng(0)
    y = np.sin(5 * x[:, 0]) + round_off * rng.normal(size=200)
    often, once = GP().fit(x, y), GP().fit(WAVY, wave(0.0))
    for name in ("lengthscale", "scale"):
        np.testing.assert_allclose(often.trace_[name][0], once.trace_[name][0], rtol=0.1)
    at = WAVY[:-1] + 0.01
    np.testing.assert_allclose(often.predict(at), once.predict(at), atol=1e-5)


def test_an_output_with_copies_stands_beside_a_noisy_one(runs_with_replicates):
    x, noisy = runs_with_replicates
    both = GP().fit(x, np.column_stack([noisy, np.sin(5 * x[:, 0])]))
    alone = GP().fit(x[::10], np.sin(5 * x[::10, 0]))
    scales = both.trace_["scale"][0].ravel()[1], alone.trace_["scale"][0].item()
    np.testing.assert_allclose(*scales, rtol=0.01)


def labels(emulator):
    return [each.structure.label for each in emulator.posterior_.structures]


def test_processes_that_found_noise_compete_with_others_without():
    plain = ["GP, matern52", "GP, squared exponential"]
    settings = {"max_depth": 1}
    assert labels(Emulator(**settings).fit(WAVY, wave(0.0))) == plain
    noisy = Emulator(**settings).fit(WAVY, wave(0.3))
    assert labels(noisy) == [*plain, *(f"{each}, 1e-8" for each in plain)]
    nuggets = [each.chains[0].params[0].log_nugget for each in noisy.posterior_.structures]
    np.testing.assert_allclose(np.exp(nuggets[2:]), 1e-8)
    assert noisy.weights_[:2].sum() > 0.8, "held-out runs see the noise"
    lines = noisy.summary().lines
    assert lines[0].noise > 0.2 and lines[2].noise is None


@pytest.mark.filterwarnings("ignore::deepemu.ConvergenceWarning")
@pytest.mark.parametrize(("noise", "is_given"), [(0.05, True), (0.3, False)])
def test_deep_structures_have_small_noise_from_the_plain_ones(noise, is_given):
    """Noise that is large may be a function that plain processes cannot follow."""
    emulator = Emulator(n_iter=2, n_chains=4, width=1).fit(WAVY, wave(noise))
    plain, deep = emulator.posterior_.structures[0], emulator.posterior_.structures[4]
    spec, nugget = deep.structure.network.layers[-1], deep.chains[0].params[-1].log_nugget
    assert spec.free_nugget != is_given
    assert ("DGP, 2 layers, matern52" == deep.structure.label) != is_given
    assert "Gain of plain processes with noise over none" in str(emulator.summary())
    if is_given:
        np.testing.assert_allclose(np.exp(nugget), noise_variance(plain))
        assert emulator.summary().lines[4].noise == pytest.approx(noise, rel=2.0)


def test_repeated_runs_leave_no_doubt_about_noise():
    x, y = np.repeat(WAVY, 2, axis=0), np.repeat(wave(0.0), 2) + np.tile([0.1, -0.1], 40)
    assert len(labels(Emulator(max_depth=1).fit(x, y))) == 2
    doubtful = Emulator(max_depth=1).fit(WAVY, wave(0.3))
    assert len(labels(doubtful)) == 4
    assert len(labels(doubtful.update(WAVY[:5], wave(0.0)[:5]))) == 2


def test_contradictions_are_told_where_the_noise_is_kept():
    posterior = GP().fit(WAVY, wave(0.0)).posterior_
    with pytest.warns(DataWarning, match="repeat others with different outputs"):
        posterior.condition_on(WAVY[7:8], wave(0.0)[7:8] + 1.0)
    posterior.condition_on(WAVY[7:8], wave(0.0)[7:8])  # a warning would be an error


def test_the_noise_of_counts_is_no_nugget():
    assert (
        DGP(depth=1, n_chains=2, n_iter=2, stacking=False, observation=Poisson())
        .fit(WAVY, np.round(np.exp(wave(0.0)) * 5))
        .summary()
        .lines[0]
        .noise
        is None
    )


def test_a_reference_prior_is_one_of_the_nugget_already():
    layer = Layer(prior="reference", nugget="estimate")
    assert sampled_layers([layer]) == [layer]
    with pytest.raises(InputError, match="nugget"):
        DGP(nugget=[1], inference="full_bayes").fit(WAVY, wave(0.0))


def test_a_prior_of_the_nugget_that_is_given_is_kept():
    given = Independent(Gamma(), nugget=Gamma(2.0, 100.0))
    layers = [Layer(prior=given, nugget=word) for word in ("auto", "estimate")]
    assert [prior_of(layer).nugget for layer in layers] == [given.nugget] * 2
    assert prior_of(Layer(nugget="auto")).nugget == Power(0.5)
    assert prior_of(Layer(nugget="estimate")).nugget == Flat()


def test_another_word_is_refused():
    with pytest.raises(InputError, match="nugget of layer 1 is 'none'; it must be .*'auto' or 'es"):
        GP(nugget="none").fit(WAVY, wave(0.0))
