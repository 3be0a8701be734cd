"""`Emulator`: the structures it tries, what it decides, and that it is an emulator like others."""

import dataclasses
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone

from deepemu import GP, ConvergenceWarning, Emulator, InputError
from deepemu.core.distributions import Gaussian
from deepemu.ensembles import prediction
from deepemu.estimators.race import Race, _copies
from deepemu.posterior.stacking import Observed
from deepemu.runtime import devices
from deepemu.training.candidates import Deep, Shallow
from deepemu.training.folds import HeldOut

pytestmark = [
    pytest.mark.usefixtures("quick_programs"),
    # Few rows and iterations: error bars are not what is asked about here.
    pytest.mark.filterwarnings("ignore::deepemu.ConvergenceWarning"),
]

SMALL = {"n_iter": 6, "n_chains": 4, "width": 1, "verbose": False}


def curve(x):
    return np.sin(4 * x[:, 0]) + x[:, 1]


@pytest.fixture(scope="module")
def problem():
    x = np.random.default_rng(0).random((12, 2))
    return x, curve(x)


@pytest.fixture(scope="module")
def elsewhere():
    return np.random.default_rng(1).random((9, 2))


def fit(x, y, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return Emulator(**(SMALL | changes)).fit(x, y)


@pytest.fixture(scope="module")
def fitted(quick_programs, problem):
    return fit(*problem)


# --- an emulator like others -----------------------------------------------------------------


def test_votes_sum_to_one_and_plain_processes_are_in(fitted):
    lines = fitted.summary().lines
    labels = [line.label for line in lines]
    assert labels[:2] == ["GP, matern52", "GP, squared exponential"]
    assert any(label.startswith("DGP, 2 layers") for label in labels)
    assert labels[-1] == "mixture"
    assert sum(line.weight for line in lines[:-1]) == pytest.approx(1.0)
    assert sum(np.sum(each.weights) for each in fitted.ensembles_) == pytest.approx(1.0)


def test_predictions_are_the_mixture_of_its_ensembles(fitted, elsewhere):
    mean, std = fitted.predict(elsewhere, return_std=True)
    first = second = 0.0
    with devices.running(devices.Runtime()):
        for ensemble in fitted.ensembles_:
            share = np.sum(ensemble.weights)
            if share > 0:
                m, v = prediction.predict_mixture([ensemble], fitted._to_core(elsewhere))
                first, second = first + share * m, second + share * (v + m**2)
    y = fitted._data.y
    unscaled = np.sqrt(second - first**2)[:, 0] * y.std()
    np.testing.assert_allclose(mean, first[:, 0] * y.std() + y.mean(), rtol=1e-9)
    np.testing.assert_allclose(std / unscaled, fitted._stacked.scale[0], rtol=1e-4)


def test_outputs_have_their_shapes(fitted, elsewhere):
    assert fitted.predict(elsewhere).shape == (9,)
    assert fitted.sample_y(elsewhere, 3).shape == (9, 3)
    mean, std = fitted.loo()
    assert mean.shape == std.shape == (12,) and np.all(std > 0)


def test_a_clone_has_the_parameters_and_no_fit(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert copy.get_params()["n_iter"] == 6
    assert not hasattr(copy, "ensembles_")


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
        ({"width": 0}, "width"),
        ({"nugget": -1.0}, "nugget"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(problem, wrong, message):
    emulator = Emulator(**(SMALL | wrong))
    with pytest.raises(InputError, match=message):
        emulator.fit(*problem)
    assert not hasattr(emulator, "ensembles_")


def test_a_smooth_function_is_emulated_as_well_as_by_a_gp():
    """A quadratic of two inputs: depth has nothing to add, and must not cost much."""
    rng = np.random.default_rng(2)
    x, at = rng.random((20, 2)), rng.random((50, 2))

    def quadratic(x):
        return (x[:, 0] - 0.3) ** 2 + x[:, 0] * x[:, 1]

    error, of_gp = (
        np.sqrt(np.mean((each.predict(at) - quadratic(at)) ** 2))
        for each in (fit(x, quadratic(x)), GP().fit(x, quadratic(x)))
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
        for each in (fit(x, smooth(x), max_depth=1), GP().fit(x, smooth(x)))
    )
    assert error < 0.5 * of_gp


@pytest.mark.parametrize(
    ("given", "of_plain"), [(1e-6, 1e-8), (1e-7, 1e-8), (1e-3, 1e-3), (2e-6, 2e-6)]
)
def test_a_nugget_that_says_how_much_noise_there_is_is_taken_at_its_word(given, of_plain):
    for candidate in Emulator(nugget=given)._candidates(2, 1, 20):
        np.testing.assert_allclose(np.exp(candidate.start[0].log_nugget), of_plain)
        assert not candidate.network.layers[0].free_nugget
    for candidate in Emulator(nugget="estimate")._candidates(2, 1, 20):
        assert candidate.network.layers[0].free_nugget


@pytest.mark.parametrize("n", [2, 3, 7])
def test_few_rows_get_plain_processes_only(n):
    x = np.linspace(0, 1, n)[:, None]
    emulator = fit(x, x[:, 0] ** 2)
    assert len(emulator.ensembles_) == 2
    mean, _ = emulator.loo()
    assert mean.shape == (n,)
    assert np.all(np.abs(mean - x[:, 0] ** 2) > 1e-9)
    np.testing.assert_allclose(emulator.predict(x), x[:, 0] ** 2, atol=5e-3)


def test_a_depth_of_one_is_plain_processes(problem):
    emulator = fit(*problem, max_depth=1)
    assert {part.candidate.network.depth for part in emulator._parts} == {1}
    assert emulator.summary().decisions == ()


# --- growth ----------------------------------------------------------------------------------


def test_an_update_predicts_new_rows_before_it_adds_them(problem, elsewhere):
    x, y = problem
    emulator = fit(x, y)
    core = emulator._data.scaling.x_to_core(elsewhere)
    deep = [part.candidate.network.depth > 1 for part in emulator._parts]
    assert any(deep)
    before = []
    with devices.running(devices.Runtime()):
        for part in emulator._parts:
            ensemble = part.trained.ensemble
            n = len(ensemble.weights)
            equal = dataclasses.replace(ensemble, weights=np.full(n, 1 / n))
            before.append(prediction.predict_mixture([equal], core)[0])
    emulator.update(elsewhere, curve(elsewhere))
    for is_deep, mean, part in zip(deep, before, emulator._parts, strict=True):
        held_out = part.trained.held_out
        assert held_out.unseen.shape[1] == 12 + 9
        if is_deep:
            np.testing.assert_allclose(held_out.moments.mean[:, 12:].mean(axis=0), mean, rtol=1e-9)
    assert emulator.loo()[0].shape == (21,)
    np.testing.assert_allclose(emulator.predict(elsewhere), curve(elsewhere), atol=0.02)
    assert "Gain of two layers" not in str(emulator.summary())  # that was of fewer rows


# --- the race --------------------------------------------------------------------------------


def race_with(monkeypatch, errors, better="matern52", copying=False, **settings):
    """A race in which structures of a depth predict with these errors, halved for the better
    kernel where they are deep; returns depth, chains, width and kernel of those that ran."""
    noise, x = (
        np.random.default_rng(3).normal(size=(40, 1)),
        np.random.default_rng(1).random((40, 2)),
    )
    latents = np.column_stack([np.sin(6 * x[:, 0]), 1 - 3 * x[:, 1] if copying else x.sum(axis=1)])
    ran = []

    def train(candidate, *_):
        network, n_chains = candidate.network, getattr(candidate, "n_chains", 1)
        kernel = candidate.label.rpartition(", ")[2].replace(" ", "_")
        ran.append((network.depth, n_chains, network.layers[0].width, kernel))
        error = errors[network.depth] * (0.5 if network.depth > 1 and kernel == better else 1.0)
        mean = np.tile(error * noise, (n_chains, 1, 1))
        moments = Gaussian(mean, np.full(mean.shape, error**2))
        members = SimpleNamespace(latents=(latents[None],) if network.depth > 1 else ())
        data = SimpleNamespace(counts=np.ones(40), x=x)
        return SimpleNamespace(
            held_out=HeldOut(moments, np.ones((n_chains, 40), bool)),
            chains=[None] * n_chains,
            interrupted=False,
            ensemble=SimpleNamespace(members=members, data=data),
        )

    monkeypatch.setattr(Shallow, "train", train)
    monkeypatch.setattr(Deep, "train", train)
    emulator = Emulator(**({"n_chains": 6, "max_depth": 3} | settings))
    race = Race(
        emulator, 0, SimpleNamespace(x=x, y=1e-6 * noise), Observed(1e-6 * noise, np.arange(40))
    )
    race.run(emulator._candidates(2, 1, 40))
    assert len(race.parts) == len(ran)
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


@pytest.mark.parametrize("change", [{"max_depth": 2}, {"errors": {1: 1.0, 2: 1.0}}])
def test_no_third_layer_where_it_is_not_allowed_or_not_earned(monkeypatch, change):
    settings = {"errors": {1: 1.0, 2: 0.1}, "better": None} | change
    ran, _ = race_with(monkeypatch, **settings)
    assert ran[4:] == [(2, 2, 2, "matern52"), (2, 2, 2, "squared_exponential")]


def test_nodes_that_copy_are_left_out_of_later_chains(monkeypatch):
    ran, decisions = race_with(monkeypatch, {1: 1.0, 2: 0.1, 3: 0.1}, copying=True)
    assert ran == [*PLAIN, *TWO, (2, 2, 1, "matern52"), (3, 4, 1, "matern52")]
    assert any("1 of 2 hidden nodes only copied an input" in each for each in decisions)


def test_with_four_chains_nothing_is_added(monkeypatch):
    ran, _ = race_with(monkeypatch, {1: 1.0, 2: 0.1, 3: 0.1}, n_chains=4)
    assert ran == [*PLAIN, *TWO, (3, 4, 2, "matern52")]


# --- nodes that copy an input ----------------------------------------------------------------


def made_up(x, *members, n_padding=3):
    """An ensemble with these first hidden layers (n, P)."""
    pad = lambda values: np.concatenate([values, np.zeros((n_padding, values.shape[1]))])  # noqa: E731
    counts = np.append(np.ones(len(x)), np.zeros(n_padding))
    return SimpleNamespace(
        data=SimpleNamespace(x=pad(x), counts=counts),
        members=SimpleNamespace(latents=(np.stack([pad(w) for w in members]),)),
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


def test_a_ctrl_c_ends_the_race(monkeypatch):
    """What is trained by then is stacked; no other structure begins."""
    x = np.linspace(0, 1, 20)[:, None]
    train, ran = Deep.train, []

    def interrupted(self, *arguments):
        ran.append(self.label)
        return dataclasses.replace(train(self, *arguments), interrupted=True)

    monkeypatch.setattr(Deep, "train", interrupted)
    emulator = Emulator(**SMALL).fit(x, np.sign(x[:, 0] - 0.5))
    assert len(ran) == 1
    assert len(emulator.ensembles_) == 3
    assert emulator.weights_.shape == (1 + 1 + 4,)
    assert np.all(np.isfinite(emulator.predict(x)))
