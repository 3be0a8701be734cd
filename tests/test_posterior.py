"""`Posterior`: moments, members, quantiles, densities, joint predictions and uncertain inputs."""

import dataclasses
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from oracles import Process, gauss_hermite, in_standard_errors, through_inputs
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm

from deepemu import DGP, GP, ConvergenceWarning, Emulator, InputError
from deepemu.posterior import components
from deepemu.posterior.inputs import equally_likely, for_moments

SHORT = {"n_iter": 4, "width": 1, "verbose": False}
FEW = {"width": 2, "n_chains": 2, "n_sweeps": 2, "n_imputations": 2, "stacking": False}
MAKERS = {
    "gp": lambda: GP("squared_exponential", nugget=1e-4),
    "stacked": lambda: DGP(n_chains=4, **SHORT),  # one of the networks of the emulator
    "unconnected": lambda: DGP(connect_input=False, **(SHORT | FEW)),
    "emulator": lambda: Emulator(n_chains=4, **SHORT),
}  # fmt: skip
LEVELS = (0.01, 0.3, 0.5, 0.975)
MOST_ERRORS = 5.0  # standard errors of a Monte Carlo estimate


def curve(x):
    """So smooth that what uncertain inputs spread is more than what an emulator does not know."""
    return 50.0 + 30.0 * np.sin(2.5 * x[:, 0]) + 4.0 * x[:, 1]


@pytest.fixture(scope="module")
def runs():
    rng = np.random.default_rng(0)
    x = rng.random((14, 2)) * [1.0, 4.0] - [0.0, 2.0]
    return x, np.column_stack([curve(x), np.cos(4 * x[:, 0]) + 1e-2 * x[:, 1]])


@pytest.fixture(scope="module")
def at():
    """Some rows between the runs and one outside."""
    inside = np.random.default_rng(1).random((3, 2)) * [1.0, 4.0] - [0.0, 2.0]
    return np.vstack([inside, [1.3, 2.5]])


@pytest.fixture(scope="module")
def emulators(runs):
    """One fit of each kind; the unconnected one has two outputs."""
    x, y = runs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        outputs = {name: y if name == "unconnected" else y[:, 0] for name in MAKERS}
        found = {name: make().fit(x, outputs[name]) for name, make in MAKERS.items()}
    # Whatever the weights are, plain and deep structures have weights.
    posterior = found["emulator"].posterior_
    n_chains = len(posterior.stacked.weights)
    equal = dataclasses.replace(posterior.stacked, weights=np.full(n_chains, 1 / n_chains))
    found["emulator"].posterior_ = dataclasses.replace(posterior, stacked=equal)
    return found


@pytest.fixture(params=list(MAKERS))
def fitted(request, emulators):
    return emulators[request.param]


def mixed(means, variances, weights):
    """Mean and variance of a mixture along the first axis."""
    weights = weights.reshape(-1, *[1] * (means.ndim - 1))
    mean = np.sum(weights * means, axis=0)
    return mean, np.sum(weights * (variances + (means - mean) ** 2), axis=0)


def parts(posterior, x):
    """Means and standard deviations (K, m, q) of the members, and their weights."""
    members = posterior.members(x)
    return SimpleNamespace(
        mean=members.outputs.mean, std=np.sqrt(members.outputs.var), weights=members.weights
    )


# --- moments and members ---------------------------------------------------------------------


def test_the_kinds_of_fits_differ_in_what_they_ask_of_a_posterior(emulators):
    for name in ("stacked", "emulator"):
        assert np.all(np.abs(emulators[name].posterior_.stacked.stretch - 1.0) > 0.05)
    assert np.all(emulators["unconnected"].posterior_.stacked.stretch == 1.0)
    depths = {
        each.structure.network.depth
        for each, weights in emulators["emulator"].posterior_.weights
        if np.any(weights > 0.0)
    }
    assert depths == {1, 2}


def test_moments_are_what_the_estimator_predicts(fitted, at):
    mean, std = fitted.predict(at, return_std=True)
    found = fitted.posterior_.moments(at)
    assert found.mean.shape == found.var.shape == (4, fitted.n_outputs_)
    np.testing.assert_array_equal(np.ravel(mean), np.ravel(found.mean))
    np.testing.assert_allclose(np.ravel(std) ** 2, np.ravel(found.var), rtol=1e-12)


def test_members_mix_to_the_moments(fitted, at):
    members, moments = parts(fitted.posterior_, at), fitted.posterior_.moments(at)
    assert members.mean.shape == (len(members.weights), 4, fitted.n_outputs_)
    assert members.weights.sum() == pytest.approx(1.0) and members.weights.min() > 0.0
    mean, var = mixed(members.mean, members.std**2, members.weights)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(moments.var, var, rtol=1e-9)


def test_a_plain_process_has_one_member(emulators, at):
    assert parts(emulators["gp"].posterior_, at).weights.tolist() == [1.0]
    # Two imputations of each of two chains.
    np.testing.assert_allclose(parts(emulators["unconnected"].posterior_, at).weights, 0.25)


# --- quantiles and densities -----------------------------------------------------------------


def distribution(members, row, output, value):
    """P(output <= value) of the mixture."""
    of_each = norm.cdf(value, members.mean[:, row, output], members.std[:, row, output])
    return members.weights @ of_each


def root(members, row, output, level):
    low = np.min(members.mean - 10 * members.std)
    high = np.max(members.mean + 10 * members.std)
    return brentq(
        lambda value: distribution(members, row, output, value) - level, low, high, xtol=1e-12
    )


def test_quantiles_are_roots_of_the_mixtures_distribution_function(fitted, at):
    posterior, members = fitted.posterior_, parts(fitted.posterior_, at)
    found = posterior.quantiles(at, LEVELS)
    assert found.shape == (len(LEVELS), 4, fitted.n_outputs_)
    std = np.sqrt(posterior.moments(at).var)
    for place, level in enumerate(LEVELS):
        for row, output in np.ndindex(found.shape[1:]):
            expected = root(members, row, output, level)
            assert abs(found[place, row, output] - expected) < 1e-7 * std[row, output]


def test_intervals_are_central_quantiles(fitted, at):
    low, high = fitted.posterior_.interval(at, 0.8)
    np.testing.assert_allclose([low, high], fitted.posterior_.quantiles(at, [0.1, 0.9]), rtol=1e-12)
    ends = fitted.interval(at, 0.8)
    np.testing.assert_array_equal([np.ravel(end) for end in ends], [low.ravel(), high.ravel()])


def test_a_mixture_is_not_taken_for_a_normal(emulators, at):
    """Otherwise the roots above would be those of the moments too."""
    posterior = emulators["stacked"].posterior_
    moments = posterior.moments(at)
    normal = norm.ppf(0.975, moments.mean, np.sqrt(moments.var))
    apart = np.abs(posterior.quantiles(at, 0.975)[0] - normal) / np.sqrt(moments.var)
    assert apart.max() > 0.01


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, np.nan])
def test_levels_lie_between_zero_and_one(emulators, at, level):
    posterior = emulators["gp"].posterior_
    for ask in (
        lambda: posterior.quantiles(at, [0.5, level]),
        lambda: posterior.interval(at, level),
    ):
        with pytest.raises(InputError, match="level is .*; it must be between 0 and 1"):
            ask()


def test_log_densities_are_those_of_the_members_mixed(fitted, at):
    posterior, members = fitted.posterior_, parts(fitted.posterior_, at)
    moments = posterior.moments(at)
    for shift in (-2.0, 0.3, 4.0):
        y = moments.mean + shift * np.sqrt(moments.var)
        each = norm.logpdf(y, members.mean, members.std).sum(axis=2)
        expected = logsumexp(each + np.log(members.weights)[:, None], axis=0)
        found = posterior.log_density(at, y)
        assert found.shape == (4,)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gp", "stacked"])
def test_densities_integrate_to_one(emulators, at, name):
    posterior, row = emulators[name].posterior_, at[-1:]
    members = parts(posterior, row)
    low, high = np.min(members.mean - 9 * members.std), np.max(members.mean + 9 * members.std)
    grid = np.linspace(low, high, 2001)
    assert members.std.min() > grid[1] - grid[0]  # no member falls between the points
    density = np.exp(posterior.log_density(np.repeat(row, len(grid), axis=0), grid))
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-6)


def test_outputs_of_another_shape_have_no_density(emulators, at):
    with pytest.raises(
        InputError, match=r"y has the shape \(3,\); it must have the shape \(4, 2\)"
    ):
        emulators["unconnected"].posterior_.log_density(at, np.zeros(3))


# --- joint predictions -----------------------------------------------------------------------


def process_of(emulator):
    """The plain process that was fitted, and its runs in core units."""
    trace, posterior = emulator.trace_, emulator.posterior_
    of = {name: trace[name][0][0, 0, 0] for name in ("lengthscale", "scale", "nugget")}
    x, y = emulator.training_inputs, emulator.training_outputs[:, 0]
    low, span = x.min(axis=0), x.max(axis=0) - x.min(axis=0)
    assert len(posterior.structures) == 1
    process = Process("squared_exponential", of["lengthscale"], of["scale"], of["nugget"])
    return process, (x - low) / span, (y - y.mean()) / y.std(), lambda at: (at - low) / span


def test_the_joint_prediction_of_a_plain_process_is_the_closed_form(emulators, at):
    emulator = emulators["gp"]
    process, x, y, to_core = process_of(emulator)
    mean, covariance = process.predict(x, y, to_core(at))
    unit, centre = emulator.training_outputs.std(), emulator.training_outputs.mean()
    found = emulator.posterior_.joint(at)
    np.testing.assert_allclose(found.mean, [centre + unit * mean], rtol=1e-7)
    size = unit**2 * np.abs(covariance).max()
    np.testing.assert_allclose(found.covariance, [unit**2 * covariance], atol=1e-6 * size)


def correlations(covariances):
    std = np.sqrt(np.einsum("...ii->...i", covariances))
    return covariances / (std[..., :, None] * std[..., None, :])


def test_joint_correlations_of_a_deep_emulator_are_those_of_draws(emulators, at):
    """Both are Monte Carlo estimates: batches of draws and keys tell their errors."""
    posterior = emulators["unconnected"].posterior_
    draws = posterior.sample(at, 3000, key=7).reshape(10, 300, 4, 2)
    batches = correlations(np.array([[np.cov(of[..., q].T) for q in (0, 1)] for of in draws]))
    joints = [posterior.joint(at, n_draws=128, key=key) for key in range(4)]
    found = correlations(np.array([each.covariance for each in joints]))
    errors = [each.std(axis=0, ddof=1) / np.sqrt(len(each)) for each in (batches, found)]
    beside = ~np.eye(4, dtype=bool)
    typical = np.sqrt(np.mean(np.square(errors)[..., beside], axis=(1, 2)))
    assert np.hypot(*typical) < 0.03  # or nothing would be seen
    apart = np.abs(batches.mean(axis=0) - found.mean(axis=0))[:, beside]
    assert apart.max() < MOST_ERRORS * np.hypot(*typical)
    assert np.abs(found.mean(axis=0)[:, beside]).max() > 0.2


@pytest.mark.parametrize("name", ["stacked", "unconnected"])
def test_joint_predictions_have_the_moments_on_their_diagonal(emulators, at, name):
    posterior = emulators[name].posterior_
    found, moments = posterior.joint(at, n_draws=4), posterior.moments(at)
    np.testing.assert_allclose(found.mean.T, moments.mean, rtol=1e-12)
    np.testing.assert_allclose(np.einsum("qii->iq", found.covariance), moments.var, rtol=1e-10)
    np.testing.assert_allclose(found.covariance, np.swapaxes(found.covariance, 1, 2), rtol=1e-10)
    assert np.linalg.eigvalsh(correlations(found.covariance)).min() > -1e-8


def test_draws_have_the_moments(fitted, at):
    moments = fitted.posterior_.moments(at)
    draws = fitted.posterior_.sample(at, 2000, key=3)
    assert draws.shape == (2000, 4, fitted.n_outputs_)
    assert np.abs(in_standard_errors(draws, moments.mean)).max() < MOST_ERRORS
    squares = (draws - moments.mean) ** 2
    assert np.abs(in_standard_errors(squares, moments.var)).max() < MOST_ERRORS


def test_the_same_key_gives_the_same_draws(fitted, at):
    posterior = fitted.posterior_
    first, again, other = (posterior.sample(at, 3, key=key) for key in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)
    with pytest.raises(InputError, match="n is 0; it must be a positive integer"):
        posterior.sample(at, 0)


# --- a posterior does not change -------------------------------------------------------------


def test_nothing_can_be_assigned(emulators):
    posterior = emulators["stacked"].posterior_
    records = (posterior, posterior.runs, posterior.stacked, posterior.report,
               posterior.structures[0], posterior.structures[0].imputed)  # fmt: skip
    for each in records:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(each, dataclasses.fields(each)[0].name, None)


def test_no_array_of_a_fit_can_be_written_to(emulators):
    posterior = emulators["emulator"].posterior_
    held = [emulators["emulator"].training_inputs, posterior.runs.y, posterior.stacked.weights]
    held += [each.imputed.members.alpha for each in posterior.structures]
    for array in held:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0.0


def test_an_update_makes_another_posterior(runs, at):
    x, y = runs[0].copy(), runs[1][:, 0].copy()
    emulator = GP().fit(x[:12], y[:12])
    before = emulator.posterior_
    moments, n_rows = before.moments(at), len(before.runs.x)
    emulator.update(x[12:], y[12:])
    assert emulator.posterior_ is not before
    assert np.all(emulator.posterior_.moments(at).mean != moments.mean)
    x[:], y[:] = 0.0, 0.0  # nor do arrays of the user reach it
    after = before.moments(at)
    np.testing.assert_array_equal(after.mean, moments.mean)
    np.testing.assert_array_equal(after.var, moments.var)
    assert len(before.runs.x) == n_rows == 12


def test_other_names_are_those_of_another_posterior(emulators):
    posterior = emulators["gp"].posterior_
    renamed = posterior.renamed(["a", "b"], ["c"])
    assert renamed.runs.columns.inputs == ("a", "b") and renamed.runs.columns.outputs == ("c",)
    assert posterior.runs.columns.inputs == ("x1", "x2")


# --- uncertain inputs ------------------------------------------------------------------------

SPREAD = np.array([0.12, 0.5])


def drawn_inputs(at, spread, n_draws):
    """Normal about each row: (rows, draws, d)."""
    normals = np.random.default_rng(5).normal(size=(len(at), n_draws, at.shape[1]))
    return at[:, None, :] + spread * normals


@pytest.mark.parametrize("spread", [SPREAD, np.array([0.2, 0.0])], ids=["both", "one"])
def test_moments_at_uncertain_inputs_are_those_of_drawn_inputs(fitted, at, spread):
    """The law of total variance over predictions at known inputs."""
    at = at[:2]
    rows = drawn_inputs(at, spread, 1500)
    mean, std = fitted.predict(np.concatenate(rows), return_std=True)
    means, variances = (each.reshape(2, 1500, -1) for each in (mean, std**2))
    found_mean, found_std = fitted.predict(at, return_std=True, input_std=spread)
    for row in range(2):
        expected = np.reshape(found_mean[row], -1)
        assert np.abs(in_standard_errors(means[row], expected)).max() < MOST_ERRORS
        total = variances[row] + (means[row] - expected) ** 2
        var = np.reshape(found_std[row], -1) ** 2
        assert np.abs(in_standard_errors(total, var)).max() < MOST_ERRORS
        # The draws can tell the answer from that at known inputs.
        known = fitted.posterior_.moments(at[row : row + 1])
        assert np.all(np.abs(in_standard_errors(total, known.var[0])) > MOST_ERRORS)


def test_a_plain_process_at_uncertain_inputs_is_that_of_quadrature(emulators, at):
    emulator = emulators["gp"]
    process, x, y, to_core = process_of(emulator)
    unit, centre = emulator.training_outputs.std(), emulator.training_outputs.mean()
    mean, std = emulator.predict(at, return_std=True, input_std=SPREAD)
    variances = (to_core(SPREAD) - to_core(np.zeros(2))) ** 2
    for row, one in enumerate(to_core(at)):
        points, weights = gauss_hermite(one, variances, np.zeros(0), 40)
        expected_mean, expected_var, _ = through_inputs(process, x, y, points, weights)
        assert mean[row] == pytest.approx(centre + unit * expected_mean, rel=1e-6)
        assert std[row] == pytest.approx(unit * np.sqrt(expected_var), rel=1e-4)


@pytest.mark.parametrize("name", ["gp", "unconnected"])
def test_quantiles_at_uncertain_inputs_are_those_of_drawn_inputs(emulators, at, name):
    """Also where predictions are sharp: hidden layers with values at anchors have no variance."""
    posterior, row = emulators[name].posterior_, at[:1]
    found = posterior.quantiles(row, [0.1, 0.8], input_std=SPREAD)[:, 0]
    members = parts(posterior, drawn_inputs(row, SPREAD, 1500)[0])
    for level, ends in zip((0.1, 0.8), found, strict=True):
        below = norm.cdf(ends, members.mean, members.std)
        of_draws = np.tensordot(members.weights, below, axes=1)
        assert np.abs(in_standard_errors(of_draws, level)).max() < MOST_ERRORS
    low, high = posterior.interval(row, 0.6, input_std=SPREAD)
    expected = posterior.quantiles(row, [0.2, 0.8], input_std=SPREAD)
    np.testing.assert_allclose([low, high], expected, rtol=1e-12)


def test_no_spread_means_known_inputs(fitted, at):
    known = fitted.predict(at, return_std=True)
    for nothing in (0.0, [0.0, 0.0], np.zeros((4, 2))):
        found = fitted.predict(at, return_std=True, input_std=nothing)
        np.testing.assert_array_equal(found, known)
    nearly = fitted.predict(at, return_std=True, input_std=1e-7)
    np.testing.assert_allclose(nearly, known, rtol=1e-4)


def test_spreads_hold_for_all_rows_or_for_each(fitted, at):
    expected = fitted.predict(at[:2], return_std=True, input_std=np.full((2, 2), 0.1))
    for same in (0.1, [0.1, 0.1]):
        found = fitted.predict(at[:2], return_std=True, input_std=same)
        np.testing.assert_array_equal(found, expected)
    apart = fitted.predict(at[:2], return_std=True, input_std=[[0.1, 0.1], [0.0, 0.0]])
    known = fitted.predict(at[:2], return_std=True)
    for each, uncertain, certain in zip(apart, expected, known, strict=True):
        np.testing.assert_allclose(each[0], uncertain[0], rtol=1e-8)
        np.testing.assert_allclose(each[1], certain[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.ones(3), r"input_std has the shape \(3,\); it must be a number, or have the shape"),
        (np.ones((2, 2)), r"input_std has the shape \(2, 2\); it must be .* \(2,\) or \(4, 2\)"),
        ([0.1, -0.1], "input_std has entries that are negative or not finite"),
        (np.nan, "input_std has entries that are negative or not finite"),
        (np.inf, "input_std has entries that are negative or not finite"),
        ("wide", "input_std has dtype <U4; convert it to numbers first"),
    ],
)
def test_spreads_that_cannot_be_are_refused_in_one_sentence(emulators, at, wrong, message):
    with pytest.raises(InputError, match=message) as caught:
        emulators["gp"].predict(at, input_std=wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ask", ["moments", "members", "sample", "joint", "gradient"])
@pytest.mark.parametrize("wrong", [np.zeros((2, 3)), np.zeros(2), [[0.0, np.nan]]])
def test_rows_that_cannot_be_are_refused(emulators, ask, wrong):
    with pytest.raises(InputError, match="^X "):
        getattr(emulators["gp"].posterior_, ask)(wrong)


def test_a_frame_must_have_the_columns_of_the_fit(runs):
    x, y = runs
    frame = pd.DataFrame(x, columns=["a", "b"])
    posterior = GP("squared_exponential", nugget=1e-4).fit(frame, y[:, 0]).posterior_
    assert np.all(posterior.moments(frame).mean == posterior.moments(x).mean)
    for ask in (posterior.moments, posterior.gradient, posterior.sample):
        with pytest.raises(InputError, match=r"X.columns is \['b', 'a'\]; it must be \['a', 'b'\]"):
            ask(frame[["b", "a"]])


def test_every_set_of_parameters_counts_at_uncertain_inputs(runs, at):
    """A plain process with sampled parameters is a mixture: no closed form of one of them."""
    settings = {"depth": 1, "inference": "full_bayes", "kernel": "squared_exponential"}
    few = {"n_chains": 2, "n_iter": 4, "n_imputations": 3, "stacking": False, "nugget": 1e-4}
    posterior = DGP(**settings, **few).fit(runs[0], runs[1][:, 0]).posterior_
    known, nearly = posterior.moments(at), posterior.moments(at, input_std=1e-9)
    np.testing.assert_allclose(nearly.mean, known.mean, rtol=1e-6)
    np.testing.assert_allclose(nearly.std, known.std, rtol=1e-4)


def test_the_smallest_nugget_keeps_its_digits_at_uncertain_inputs():
    """Against the law of total variance with predictions at many known inputs."""
    x = np.linspace(0, 1, 25)[:, None]
    posterior = GP("squared_exponential", nugget=1e-8).fit(x, np.sin(3 * x[:, 0])).posterior_
    at, spread = np.array([[0.33], [0.71]]), 1e-4
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    weights = (weights / weights.sum())[:, None, None]
    each = [posterior.moments(at + spread * node) for node in nodes]
    mean, std = (np.stack([getattr(of, name) for of in each]) for name in ("mean", "std"))
    centre = np.sum(weights * mean, axis=0)
    expected = np.sqrt(np.sum(weights * (std**2 + (mean - centre) ** 2), axis=0))
    np.testing.assert_allclose(posterior.moments(at, spread).std, expected, rtol=1e-4)


def test_a_row_does_not_depend_on_what_is_uncertain_in_others(emulators, at):
    posterior = emulators["emulator"].posterior_
    spread = np.array([[0.0, 0.0], [0.05, 0.0], [0.05, 0.3], [0.0, 0.3]])
    together = posterior.moments(at, spread)
    for row in range(4):
        alone = posterior.moments(at[row : row + 1], spread[row])
        np.testing.assert_allclose(alone.mean[0], together.mean[row], rtol=1e-9)
        np.testing.assert_allclose(alone.std[0], together.std[row], rtol=1e-7)
    known = posterior.moments(at[:1])
    np.testing.assert_allclose(together.std[0], known.std[0], rtol=1e-9)
    assert together.std[2] > known.std[0] / 1e3


def test_gradients_of_many_rows_come_in_parts(emulators, at, monkeypatch):
    posterior = emulators["gp"].posterior_
    many = np.repeat(at, 10, axis=0)
    whole = posterior.gradient(many)
    monkeypatch.setattr(components, "ROWS_OF_GRADIENTS", 16)
    for name in ("mean", "var"):
        parts = getattr(posterior.gradient(many), name)
        assert parts.shape == (40, 1, 2)
        np.testing.assert_allclose(parts, getattr(whole, name), rtol=1e-6)


def test_what_cannot_be_asked_is_said_in_one_sentence(emulators, at):
    posterior = emulators["unconnected"].posterior_
    with pytest.raises(InputError, match="levels is \\[\\]; it must be a list of numbers"):
        posterior.quantiles(at, [])
    with pytest.raises(InputError, match="key is -1; it must be an integer of at least 0"):
        posterior.sample(at, key=-1)
    with pytest.raises(InputError, match="n_draws is 1; it must be an integer of at least 2"):
        posterior.joint(at, n_draws=1)
    assert emulators["gp"].posterior_.joint(at, n_draws=1).covariance.shape == (1, 4, 4)


def test_posteriors_are_compared_by_identity(emulators):
    posterior = emulators["gp"].posterior_
    assert posterior != dataclasses.replace(posterior)
    assert len({posterior, posterior}) == 1


@pytest.mark.parametrize("n", [1, 3, 5, 8])
def test_cubature_rules_have_the_moments_of_normals(n):
    """Of one known input beside n uncertain ones; beyond four a quasi-random rule."""
    rule = for_moments(np.arange(n + 1) > 0)
    points = rule.points(np.zeros((1, n + 1)), np.full((1, n + 1), 2.0))[:, 0]
    assert rule.weights.sum() == pytest.approx(1.0, abs=1e-12) and np.all(points[:, 0] == 0.0)
    np.testing.assert_allclose(rule.weights @ points, 0.0, atol=1e-12)
    covariance = (points.T * rule.weights) @ points
    np.testing.assert_allclose(covariance[1:, 1:], 4.0 * np.eye(n), atol=1e-9 if n < 5 else 0.3)


@pytest.mark.parametrize("width", [0.05, 0.2, 1.0])
def test_a_step_in_one_uncertain_input_is_seen(width):
    """Mean and standard deviation of a step from -1 to 1, a share of a deviation wide, at several
    places, against fine sums."""
    fine = np.linspace(-9.0, 9.0, 200_001)
    mass = norm.pdf(fine) / norm.pdf(fine).sum()
    rule = for_moments(np.array([True]))
    for place in (0.0, 0.31, 1.2):
        step = lambda z, place=place: np.tanh((z - place) / width)  # noqa: E731
        of_rule, exact = (
            (weights @ step(z), weights @ step(z) ** 2)
            for z, weights in ((rule.offsets[:, 0], rule.weights), (fine, mass))
        )
        np.testing.assert_allclose(of_rule, exact, atol=1e-4)


def test_quantiles_of_sharp_predictions_come_from_equally_likely_points():
    """The distribution function of the input itself, at every place."""
    rule = equally_likely(np.array([True]))
    points = np.sort(rule.points(np.zeros((1, 1)), np.ones((1, 1)))[:, 0, 0])
    np.testing.assert_allclose(norm.cdf(points), (np.arange(512) + 0.5) / 512, rtol=1e-9)


def test_a_posterior_is_shown_without_its_arrays(gp):
    assert len(repr(gp.posterior_)) < 100


def test_all_arrays_of_a_fit_are_read_only(dgp):
    sites = dgp.posterior_.runs.sites
    for array in (sites.site_of_row, sites.observed.y, sites.observed.counts, sites.x):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda p: p.quantiles([[0.1, 0.2]], "a"), "levels is a str; it must be an array of real"),
        (
            lambda p: p.quantiles([[0.1, 0.2]], [[0.5, 0.1]]),
            "levels is .*a list of numbers between",
        ),
        (lambda p: p.quantiles([[0.1, 0.2]], []), "levels is .*a list of numbers between"),
        (lambda p: p.joint([[0.1, 0.2]], key=-1), "key is -1; it must be an integer of at least 0"),
        (
            lambda p: p.sample([[0.1, 0.2]], key=-1),
            "key is -1; it must be an integer of at least 0",
        ),
    ],
)
def test_questions_that_cannot_be_answered_are_told_in_a_sentence(gp, ask, message):
    with pytest.raises(InputError, match=message):
        ask(gp.posterior_)


def test_masked_values_are_refused():
    x = np.ma.masked_greater(np.linspace(0, 1, 8)[:, None], 0.9)
    with pytest.raises(InputError, match="X has masked values; fill them in or leave out"):
        GP().fit(x, np.arange(8.0))
    fitted = GP().fit(x.data, np.arange(8.0))
    for ask in (fitted.predict, fitted.gradient, fitted.posterior_.moments):
        with pytest.raises(InputError, match="X has masked values; fill them in or leave out"):
            ask(x)
    with pytest.raises(InputError, match="X is complex; it must be an array of real"):
        fitted.posterior_.moments(x.data + 1j)
