"""`Emulator`: the structures it tries, what it decides, and that it is an emulator like others."""

import dataclasses
import functools
import math
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from builders import curve
from eigen_solver import ByEigenvalues
from sklearn.base import clone

from deepemu import GP, ConvergenceWarning, Emulator, InputError
from deepemu.core.distributions import Gaussian
from deepemu.core.model.observation import Units
from deepemu.core.nodes.dense import Dense
from deepemu.ensembles import prediction
from deepemu.estimators import race as race_module
from deepemu.estimators.race import Race, Rules, _copies
from deepemu.observations.gaussian import Interpolated
from deepemu.posterior.stacking import Judged
from deepemu.runtime import devices
from deepemu.training.folds import HeldOut
from deepemu.training.structures import DeepGP, PlainGP, Problem

pytestmark = [
    # Few rows and iterations: error bars are not what is asked about here.
    pytest.mark.filterwarnings("ignore::deepemu.ConvergenceWarning"),
]

SMALL = {"n_iter": 6, "n_chains": 4, "width": 1, "verbose": False}
TWO_INPUTS = Problem(1, Interpolated(), Dense(), ("x1", "x2"))


def fit(x, y, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return Emulator(**(SMALL | changes)).fit(x, y)


@pytest.fixture(scope="module")
def fitted(problem):
    return fit(*problem)


# --- an emulator like others -----------------------------------------------------------------


def test_weights_sum_to_one_and_plain_processes_are_in(fitted):
    lines = fitted.summary().lines
    labels = [line.label for line in lines]
    assert labels[:2] == ["GP, matern52", "GP, squared exponential"]
    assert any(label.startswith("DGP, 2 layers") for label in labels)
    assert labels[-1] == "mixture"
    assert sum(line.weight for line in lines[:-1]) == pytest.approx(1.0)
    by_structure = [weights for _, weights in fitted.posterior_.weights]
    assert sum(map(np.sum, by_structure)) == pytest.approx(1.0)


def test_predictions_are_the_mixture_of_its_structures(fitted, elsewhere):
    mean, std = fitted.predict(elsewhere, return_std=True)
    posterior, first, second = fitted.posterior_, 0.0, 0.0
    core = posterior.runs.scale.to_core(elsewhere)
    with devices.running(devices.Runtime()):
        for trained, weights in posterior.weights:
            chains = prediction.chains_of(trained.imputed)
            for weight, found in zip(weights, prediction.predict_chains(chains, core), strict=True):
                m, v = found.mean, found.var
                first = first + weight * m.mean(axis=0)
                second = second + weight * (v + m**2).mean(axis=0)
    y = posterior.runs.y
    unscaled = np.sqrt(second - first**2)[:, 0] * y.std()
    np.testing.assert_allclose(mean, first[:, 0] * y.std() + y.mean(), rtol=1e-9)
    np.testing.assert_allclose(std / unscaled, posterior.stacked.stretch[0], rtol=1e-4)


def test_outputs_have_their_shapes(fitted, elsewhere):
    assert fitted.predict(elsewhere).shape == (12,)
    assert fitted.sample_y(elsewhere, 3).shape == (12, 3)
    mean, std = fitted.loo()
    assert mean.shape == std.shape == (12,) and np.all(std > 0)


def test_a_clone_has_the_parameters_and_no_fit(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert copy.get_params()["n_iter"] == 6
    assert not hasattr(copy, "posterior_")


def test_the_same_seed_gives_the_same_emulator(fitted, problem, elsewhere):
    again, other = fit(*problem), fit(*problem, random_state=1)
    for mine, theirs in zip(
        fitted.predict(elsewhere, return_std=True),
        again.predict(elsewhere, return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert str(again.summary()) == str(fitted.summary())
    assert np.any(other.predict(elsewhere) != fitted.predict(elsewhere))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_depth": 0}, "max_depth is 0"),
        ({"max_depth": 4}, "max_depth is 4; it must be at most 3"),
        ({"max_depth": 2.5}, "max_depth is 2.5"),
        ({"n_chains": 2}, "n_chains is 2; it must be at least 4"),
        ({"n_iter": 0}, "n_iter is 0"),
        ({"effort": "much"}, "effort is 'much'; it must be one of quick, default, thorough"),
        ({"effort": None}, "effort is None"),
        ({"time_limit": 0}, "time_limit is 0; it must be a positive number of seconds or None"),
        ({"time_limit": "1 h"}, "time_limit is '1 h'"),
        ({"width": 0}, "width"),
        ({"nugget": -1.0}, "nugget"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(problem, wrong, message):
    emulator = Emulator(**(SMALL | wrong))
    with pytest.raises(InputError, match=message):
        emulator.fit(*problem)
    assert not hasattr(emulator, "posterior_")


def test_a_smooth_function_is_emulated_as_well_as_by_a_gp():
    """A quadratic of two inputs: depth has nothing to add, and must not cost much."""
    rng = np.random.default_rng(2)
    x, at = rng.random((16, 2)), rng.random((50, 2))

    def quadratic(x):
        return (x[:, 0] - 0.3) ** 2 + x[:, 0] * x[:, 1]

    error, of_gp = (
        np.sqrt(np.mean((each.predict(at) - quadratic(at)) ** 2))
        for each in (fit(x, quadratic(x), n_iter=20), GP(nugget=1e-6).fit(x, quadratic(x)))
    )
    assert error < 1.2 * of_gp


def test_a_very_smooth_function_gets_a_smaller_nugget():
    """Eight inputs that enter almost linearly: the process variance is far above that of y, and a
    nugget of a millionth of it is a visible error."""
    rng = np.random.default_rng(5)
    x, at = rng.random((80, 8)), rng.random((200, 8))

    def smooth(x):
        return np.log(1.0 + x[:, 0]) * (1.0 + 0.1 * x[:, 1] * x[:, 2]) + 0.1 * x[:, 3:].sum(axis=1)

    error, of_gp = (
        np.sqrt(np.mean((each.predict(at) - smooth(at)) ** 2))
        for each in (fit(x, smooth(x), max_depth=1), GP(nugget=1e-6).fit(x, smooth(x)))
    )
    assert error < 0.5 * of_gp


@pytest.mark.parametrize(
    ("given", "of_plain"), [(1e-6, 1e-8), (1e-7, 1e-8), (1e-3, 1e-3), (2e-6, 2e-6)]
)
def test_a_nugget_that_says_how_much_noise_there_is_is_taken_at_its_word(given, of_plain):
    for structure in Emulator(nugget=given)._structures(TWO_INPUTS, 20):
        np.testing.assert_allclose(np.exp(structure.start[0].log_nugget), of_plain)
        assert not structure.network.layers[0].free_nugget
    for structure in Emulator(nugget="estimate")._structures(TWO_INPUTS, 20):
        assert structure.network.layers[0].free_nugget


@pytest.mark.parametrize("n", [2, 3, 7])
def test_few_rows_get_plain_processes_only(n):
    x = np.column_stack([np.linspace(0, 1, n), np.linspace(1, 0, n)])
    emulator = fit(x, x[:, 0] ** 2)
    assert len(emulator.posterior_.structures) == 2
    mean, _ = emulator.loo()
    assert mean.shape == (n,)
    assert np.all(np.abs(mean - x[:, 0] ** 2) > 1e-9)
    np.testing.assert_allclose(emulator.predict(x), x[:, 0] ** 2, atol=5e-3)


def test_a_depth_of_one_is_plain_processes(problem):
    emulator = fit(*problem, max_depth=1)
    assert {each.structure.network.depth for each in emulator.posterior_.structures} == {1}
    assert emulator.summary().decisions == ()


# --- growth ----------------------------------------------------------------------------------


def test_an_update_predicts_new_rows_before_it_adds_them(problem, elsewhere):
    (x, y), new = problem, elsewhere[:4]
    emulator = fit(x, y)
    posterior = emulator.posterior_
    core = posterior.runs.scale.to_core(new)
    deep = [each.structure.network.depth > 1 for each in posterior.structures]
    assert any(deep)
    with devices.running(devices.Runtime()):
        before = [
            np.mean(
                [
                    found.mean.mean(axis=0)
                    for found in prediction.predict_chains(prediction.chains_of(each.imputed), core)
                ],
                axis=0,
            )
            for each in posterior.structures
        ]
    emulator.update(new, curve(new))
    for is_deep, mean, trained in zip(deep, before, emulator.posterior_.structures, strict=True):
        held_out = trained.held_out
        assert held_out.mask.shape[1] == 12 + 4
        if is_deep:
            found = held_out.latents.mean[:, :, 12:].mean(axis=(0, 1))
            np.testing.assert_allclose(found, mean, rtol=1e-9)
    assert emulator.loo()[0].shape == (16,)
    np.testing.assert_allclose(emulator.predict(new), curve(new), atol=0.02)
    assert "Gain of two layers" not in str(emulator.summary())  # that was of fewer rows


# --- the race --------------------------------------------------------------------------------


def race_with(
    monkeypatch, errors, better="matern52", copying=False, found=None, by_noise=1.0, **settings
):
    """A race in which structures of a depth predict with these errors, halved for the better
    kernel where they are deep; returns depth, chains, width and kernel of those that ran.

    Plain processes have found noise of the variance ``found``. Errors of deep structures that have
    it are multiplied by ``by_noise``."""
    noise, x = (
        np.random.default_rng(3).normal(size=(40, 1)),
        np.random.default_rng(1).random((40, 2)),
    )
    latents = np.column_stack([np.sin(6 * x[:, 0]), 1 - 3 * x[:, 1] if copying else x.sum(axis=1)])
    ran = []

    def train(structure, *_):
        network, label = structure.network, structure.label
        n_chains = structure.plan.n_chains if isinstance(structure, DeepGP) else 1
        kernel = label.split(", ")[1 if network.depth == 1 else 2].replace(" ", "_")
        has_noise = structure.start[-1].log_nugget[0] > np.log(1e-5)
        name = f"{kernel} with noise" if has_noise else kernel
        ran.append((network.depth, n_chains, network.layers[0].width, name))
        error = errors[network.depth] * (0.5 if network.depth > 1 and kernel == better else 1.0)
        error *= by_noise if has_noise else 1.0
        mean = np.tile(error * noise, (n_chains, 1, 1, 1))
        moments = Gaussian(mean, np.full(mean.shape, error**2))
        members = SimpleNamespace(latents=(latents[None, None],) if network.depth > 1 else ())
        data = SimpleNamespace(used=np.ones(40), x=x)
        return SimpleNamespace(
            structure=structure,
            held_out=HeldOut(moments, np.ones((n_chains, 40), int)),
            chains=[None] * n_chains,
            interrupted=False,
            imputed=SimpleNamespace(members=members, data=data),
        )

    monkeypatch.setattr(PlainGP, "train", train)
    monkeypatch.setattr(DeepGP, "train", train)
    if found is not None:
        is_plain = lambda each: each.structure.network.depth == 1  # noqa: E731
        monkeypatch.setattr(race_module, "found_noise", is_plain)
        monkeypatch.setattr(race_module, "noise_variance", lambda _: np.array([found]))
    emulator = Emulator(**({"n_chains": 6, "max_depth": 3, "nugget": 1e-6} | settings))
    rules = Rules(
        emulator._effort(Dense()),
        emulator.time_limit or math.inf,
        False,
        functools.partial(emulator._deep, TWO_INPUTS),
    )
    units = Units(np.zeros(1), np.ones(1))
    judged = Judged(1e-6 * noise, np.arange(40), Interpolated(), units)
    race = Race(rules, 0, SimpleNamespace(x=x), judged)
    race.run(emulator._structures(TWO_INPUTS, 40))
    assert len(race.trained) == len(ran)
    return ran, race.decisions


PLAIN = [(1, 1, 1, "matern52"), (1, 1, 1, "squared_exponential")]
TWO = [(2, 4, 2, "matern52"), (2, 4, 2, "squared_exponential")]


def test_depth_that_clearly_loses_ends_the_race(monkeypatch):
    ran, decisions = race_with(monkeypatch, {1: 0.1, 2: 1.0}, better=None)
    assert ran == PLAIN + TWO
    assert len(decisions) == 1 and ": -2.30 " in decisions[0]  # log 0.1


def test_depth_that_clearly_wins_gets_three_layers(monkeypatch):
    ran, decisions = race_with(monkeypatch, {1: 1.0, 2: 0.1, 3: 0.1}, better=None)
    more = [(2, 2, 2, "matern52"), (2, 2, 2, "squared_exponential")]
    assert ran == [*PLAIN, *TWO, *more, (3, 4, 2, "matern52")]
    assert ": +2.30 " in decisions[0] and ": +2.30 " in decisions[-1]


@pytest.mark.parametrize("better", ["matern52", "squared_exponential"])
def test_the_rest_of_the_chains_have_the_better_kernel(monkeypatch, better):
    ran, _ = race_with(monkeypatch, {1: 1.0, 2: 0.1, 3: 0.1}, better)
    assert ran == [*PLAIN, *TWO, (2, 2, 2, better), (3, 4, 2, better)]


@pytest.mark.parametrize(("max_depth", "weight"), [(2, 0.9), (3, 0.4)])
def test_no_third_layer_where_it_is_not_allowed_or_not_earned(monkeypatch, max_depth, weight):
    monkeypatch.setattr(Race, "_weight_of_deep", lambda _: weight)
    ran, _ = race_with(monkeypatch, {1: 1.0, 2: 0.1}, better=None, max_depth=max_depth)
    assert ran[4:] == [(2, 2, 2, "matern52"), (2, 2, 2, "squared_exponential")]


def test_nodes_that_copy_are_left_out_of_later_chains(monkeypatch):
    ran, decisions = race_with(monkeypatch, {1: 1.0, 2: 0.1, 3: 0.1}, copying=True)
    assert ran == [*PLAIN, *TWO, (2, 2, 1, "matern52"), (3, 4, 1, "matern52")]
    assert any("1 of 2 hidden nodes only copied an input" in each for each in decisions)


WITH_NOISE = "matern52 with noise"
TRIAL = (2, 4, 2, WITH_NOISE)


@pytest.mark.parametrize(("by_noise", "kernel"), [(0.5, WITH_NOISE), (2.0, "matern52")])
def test_later_chains_have_the_noise_of_plain_processes_if_it_helps(monkeypatch, by_noise, kernel):
    errors = {1: 1.0, 2: 0.1, 3: 0.1}
    ran, decisions = race_with(monkeypatch, errors, found=1e-4, by_noise=by_noise)
    assert ran == [*PLAIN, *TWO, TRIAL, (2, 2, 2, kernel), (3, 4, 2, kernel)]
    gain = f"{-np.log(by_noise):+.2f}"
    assert any("with the least noise" in each and gain in each for each in decisions)


def test_noise_is_not_tried_where_errors_are_smaller(monkeypatch):
    """Deep structures have errors of sd 0.05: noise of sd 0.1 there is none."""
    errors = {1: 1.0, 2: 0.1, 3: 0.1}
    ran, _ = race_with(monkeypatch, errors, found=1e-2, by_noise=0.5)
    assert ran == [*PLAIN, *TWO, (2, 2, 2, "matern52"), (3, 4, 2, "matern52")]


def test_noise_of_one_of_two_outputs_is_tried(monkeypatch):
    judged = SimpleNamespace()
    errors = np.array([[0.1, 0.1], [0.2, 0.2], [0.3, 0.3]])
    monkeypatch.setattr(race_module.stacking, "held_out_errors", lambda *_: errors)
    race = Race(SimpleNamespace(seconds=math.inf), 0, None, judged)
    np.testing.assert_allclose(race._possible(np.array([0.08, 0.1]), None), [0.08, 1e-8])


def test_with_four_chains_nothing_is_added(monkeypatch):
    ran, _ = race_with(monkeypatch, {1: 1.0, 2: 0.1, 3: 0.1}, n_chains=4)
    assert ran == [*PLAIN, *TWO, (3, 4, 2, "matern52")]


def test_depth_that_loses_on_few_rows_goes_on_if_it_has_the_weight(monkeypatch):
    gain = race_module.stacking.Gain(-3.0, 0.1)
    monkeypatch.setattr(race_module.stacking, "gain", lambda *_: gain)
    ran, _ = race_with(monkeypatch, {1: 1.0, 2: 0.1}, max_depth=2)
    assert [each[:2] for each in ran][2:] == [(2, 4), (2, 4), (2, 2)]


# --- effort and time ----------------------------------------------------------------------------


def test_little_effort_is_one_kernel(monkeypatch):
    """That of the plain process which predicts better; both are equally good here."""
    ran, decisions = race_with(
        monkeypatch, {1: 1.0, 2: 0.1}, n_chains=None, max_depth=None, effort="quick"
    )
    assert [each[:2] for each in ran] == [(1, 1), (1, 1), (2, 4)]
    assert decisions[0].startswith("Gain of plain matern52 over squared exponential")


def test_much_effort_is_more_chains_and_three_layers(monkeypatch):
    errors = {1: 1.0, 2: 0.1, 3: 0.1}
    ran, _ = race_with(monkeypatch, errors, n_chains=None, max_depth=None, effort="thorough")
    assert [each[:2] for each in ran][2:] == [(2, 4), (2, 4), (2, 4), (3, 8)]


def test_three_layers_have_both_kernels_in_play(monkeypatch):
    errors, much = {1: 1.0, 2: 0.1, 3: 0.1}, {"max_depth": None, "effort": "thorough"}
    ran, _ = race_with(monkeypatch, errors, better=None, n_chains=4, **much)
    assert ran[4:] == [(3, 4, 2, "matern52"), (3, 4, 2, "squared_exponential")]


def test_three_layers_are_long_where_they_are_swept():
    deep_of = Emulator(effort="thorough")._deep
    swept = dataclasses.replace(TWO_INPUTS, solver=ByEigenvalues())  # it has no guided moves
    settings = lambda plan: (plan.n_chains, plan.n_iter, plan.n_sweeps, plan.stops_early)  # noqa: E731
    cases = [
        (swept, 3, [True, True, False], (4, 500, 10, False)),
        (swept, 2, [False, False], (4, 200, 5, True)),
        (TWO_INPUTS.guided, 3, [False, False, False], (4, 80, 1, True)),
        (TWO_INPUTS.guided, 2, [False, False], (4, 80, 1, True)),
    ]
    for problem, depth, shares, expected in cases:
        deep = deep_of(problem, depth, "matern52", 4, None)
        assert [spec.shares_kernel for spec in deep.network.layers] == shares
        assert settings(deep.plan) == expected


def test_guided_moves_have_efforts_of_their_own():
    for name, n_chains in (("quick", 8), ("default", 8), ("thorough", 16)):
        effort = Emulator(effort=name)._effort(TWO_INPUTS.guided.solver)
        assert (effort.n_chains, effort.n_iter) == (n_chains, 80)
    assert Emulator(effort="thorough")._effort(TWO_INPUTS.solver).n_iter_of_three == 500


def test_numbers_replace_those_of_the_effort():
    effort = Emulator(effort="quick", n_iter=7, n_chains=6)._effort(Dense())
    assert (effort.n_iter, effort.n_chains, effort.max_depth) == (7, 6, 2)
    assert effort.n_iter_of_three == 7


def test_time_that_is_left_is_used_for_more_chains(monkeypatch):
    monkeypatch.setattr(race_module, "MOST_CHAINS", 26)
    ran, _ = race_with(monkeypatch, {1: 1.0, 2: 0.1, 3: 0.1}, time_limit=1e6)
    deep = [each[:2] for each in ran[2:]]
    assert deep == [(2, 4), (2, 4), (2, 2), (3, 4), (2, 4), (3, 4), (2, 4)]


@pytest.mark.parametrize("effort", ["default", "quick"])
def test_nothing_is_begun_after_the_time(monkeypatch, effort):
    ran, _ = race_with(monkeypatch, {1: 1.0, 2: 0.1, 3: 0.1}, time_limit=1e-9, effort=effort)
    assert [each[:2] for each in ran] == [(1, 1)], "one is better than none"


def test_a_time_limit_ends_a_fit_and_its_chains(problem):
    """Enough iterations for an hour; what is there after two seconds predicts."""
    fit(*problem, max_depth=1)  # compiles what would take the two seconds
    began = time.monotonic()
    emulator = Emulator(n_iter=10**6, width=1, time_limit=2.0, verbose=False).fit(*problem)
    assert time.monotonic() - began < 60.0
    deep = [each for each in emulator.posterior_.structures if each.structure.network.depth > 1]
    assert deep and all(each.trace.log_density.shape[1] < 10**5 for each in deep)
    assert all(each.held_out is not None and not each.interrupted for each in deep)
    assert np.all(np.isfinite(emulator.predict(problem[0], return_std=True)))


def test_progress_shows_the_held_out_score(problem, capsys):
    emulator = Emulator(**SMALL | {"verbose": True, "max_depth": 1}).fit(*problem)
    *_, last = [line for line in capsys.readouterr().err.splitlines() if "CRPS" in line]
    assert last == f"held-out CRPS {emulator.summary().lines[-1].crps:.4g} sd of the output"


# --- nodes that copy an input ----------------------------------------------------------------


def made_up(x, *members, n_padding=3):
    """Imputed networks of one chain with these first hidden layers (n, P)."""
    pad = lambda values: np.concatenate([values, np.zeros((n_padding, values.shape[1]))])  # noqa: E731
    used = np.append(np.ones(len(x)), np.zeros(n_padding))
    return SimpleNamespace(
        data=SimpleNamespace(x=pad(x), used=used),
        members=SimpleNamespace(latents=(np.stack([pad(w) for w in members])[None],)),
    )


def test_straight_lines_in_one_input_are_copies(rng):
    x = rng.random((30, 2))
    line, other_line = 3 - 2 * x[:, 1], 0.1 * x[:, 0] + 5
    bent = np.sin(6 * x[:, 0])
    both = x[:, 0] + x[:, 1]
    latents = np.column_stack([line, bent, both, other_line])
    np.testing.assert_array_equal(_copies(made_up(x, latents)), [True, False, False, True])


def test_a_copy_must_be_one_in_all_members(rng):
    x = rng.random((30, 2))
    line, bent = 3 - 2 * x[:, 1], np.sin(6 * x[:, 0])
    first, second = np.column_stack([line, line]), np.column_stack([-x[:, 0], bent])
    np.testing.assert_array_equal(_copies(made_up(x, first, second)), [True, False])


def test_a_bound_of_99_percent_of_the_variance_separates_copies(rng):
    x = rng.random((2000, 1))
    noise = rng.normal(size=2000) * x.std()
    noise -= np.polyval(np.polyfit(x[:, 0], noise, 1), x[:, 0])
    noise *= x.std() / noise.std()
    for share, expected in ((0.992, True), (0.988, False)):
        latents = np.sqrt(share) * x[:, 0] + np.sqrt(1 - share) * noise
        np.testing.assert_array_equal(_copies(made_up(x, latents[:, None])), [expected])


def test_a_node_that_is_constant_is_no_copy(rng):
    x = rng.random((10, 1))
    np.testing.assert_array_equal(_copies(made_up(x, np.ones((10, 1)))), [False])


def test_a_ctrl_c_ends_the_race(rng, monkeypatch):
    """What is trained by then is stacked; no other structure begins."""
    x = rng.random((16, 2))
    train, ran = DeepGP.train, []

    def interrupted(self, *arguments):
        ran.append(self.label)
        return dataclasses.replace(train(self, *arguments), interrupted=True)

    monkeypatch.setattr(DeepGP, "train", interrupted)
    emulator = Emulator(**SMALL).fit(x, np.sign(x[:, 0] - 0.5))
    assert len(ran) == 1
    assert len(emulator.posterior_.structures) == 3
    assert emulator.weights_.shape == (1 + 1 + 4,)
    assert np.all(np.isfinite(emulator.predict(x)))


@pytest.mark.parametrize("n_chains", [5, 6])
def test_later_chains_of_a_race_leave_out_a_quarter_too(rng, n_chains):
    x = rng.random((16, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        emulator = Emulator(n_chains=n_chains, n_iter=4, width=1).fit(x, np.sign(x[:, 0] - 0.5))
    for trained in emulator.posterior_.structures:
        if trained.structure.network.depth > 1:
            np.testing.assert_array_equal(trained.held_out.mask.sum(axis=1), 4)


def test_deep_structures_may_have_the_smallest_nugget():
    Emulator(nugget=1e-8)._structures(TWO_INPUTS, 20)
    with pytest.raises(InputError, match="nugget of layer 2 is 9e-09"):
        Emulator(nugget=9e-9)._structures(TWO_INPUTS, 20)
