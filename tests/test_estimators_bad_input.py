"""Data and settings that cannot be used, or only just: the error says what to change."""

import copy
import warnings

import numpy as np
import pytest
from builders import KINDS
from sklearn.exceptions import NotFittedError

from deepemu import DGP, GP, DataWarning, InputError, Layer


def with_value(values, value):
    changed = np.array(values, dtype=object if isinstance(value, str) else float)
    changed.flat[3] = value
    return changed


# --- data ----------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (with_value(x, np.nan), y), "X contains NaN"),
        (lambda x, y: (with_value(x, np.inf), y), "X contains infinity"),
        (lambda x, y: (x, with_value(y, np.nan)), "y contains NaN"),
        (lambda x, y: (x, with_value(y, -np.inf)), "y contains infinity"),
        (lambda x, y: (x[:, 0], y), "Expected 2D array, got 1D array"),
        (lambda x, y: (x[None], y), "Found array with dim 3"),
        (lambda x, y: (x, np.zeros((12, 2, 2))), "Found array with dim 3"),
        (lambda x, y: (x, y[:-1]), r"inconsistent numbers of samples: \[12, 11\]"),
        (lambda x, y: (x[:0], y[:0]), "0 sample"),
        (lambda x, y: (x[:, :0], y), "0 feature"),
        (lambda x, y: (x[:1], y[:1]), r"1 sample\(s\).*minimum of 2"),
        (lambda x, y: (with_value(x, "tall"), y), "could not convert string to float: 'tall'"),
        (lambda x, y: (x, with_value(y, "tall")), "could not convert string to float: 'tall'"),
        (lambda x, y: (x, None), "requires y to be passed"),
        (lambda x, y: (x + 1j, y), "Complex data not supported"),
        (lambda x, y: (x[[0] * 12], y), "All 12 rows of X are equal"),
    ],
)
def test_data_that_cannot_be_used_are_refused(make, problem, change, message):
    with pytest.raises(ValueError, match=message):
        make().fit(*change(*problem))


def test_rows_that_are_all_equal_are_the_users_to_change(problem):
    with pytest.raises(InputError, match="at least 2 different input rows"):
        GP().fit(problem[0][[0] * 12], problem[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:, :1], "X has 1 features, but .* is expecting 2"),
        (lambda x: np.hstack([x, x]), "X has 4 features, but .* is expecting 2"),
        (lambda x: x[0], "Expected 2D array, got 1D array"),
        (lambda x: with_value(x, np.nan), "X contains NaN"),
        (lambda x: x[:0], "0 sample"),
    ],
)
@pytest.mark.parametrize("method", ["predict", "sample_y"])
def test_test_rows_that_cannot_be_used_are_refused(either, problem, method, change, message):
    with pytest.raises(ValueError, match=message):
        getattr(either, method)(change(problem[0]))


@KINDS
@pytest.mark.parametrize(
    "use",
    [
        lambda emulator, x, y: emulator.predict(x),
        lambda emulator, x, y: emulator.sample_y(x),
        lambda emulator, x, y: emulator.score(x, y),
        lambda emulator, x, y: emulator.update(x, y),
        lambda emulator, x, y: emulator.loo(),
    ],
    ids=["predict", "sample_y", "score", "update", "loo"],
)
@pytest.mark.parametrize("tried", [False, True], ids=["no fit", "a failed fit"])
def test_an_emulator_without_a_fit_says_so(make, problem, use, tried):
    emulator = make()
    if tried:
        emulator.set_params(nugget=-1.0)
        with pytest.raises(InputError):
            emulator.fit(*problem)
    with pytest.raises(NotFittedError):
        use(emulator, *problem)


def test_a_failed_fit_leaves_the_one_before_in_use(problem):
    x, y = problem
    emulator = GP().fit(x, y)
    expected = emulator.predict(x)
    with pytest.raises(InputError):
        emulator.set_params(nugget=-1.0).fit(x[:5], np.column_stack([y, y])[:5])
    np.testing.assert_array_equal(emulator.predict(x), expected)
    emulator.set_params(nugget=1e-6).update(x[:1] + 0.1, y[:1])
    assert emulator.loo()[0].shape == (13,)


def test_a_failed_refit_leaves_the_data_of_the_last_fit(problem):
    x, y = problem
    emulator = GP().fit(x, y)
    with pytest.raises(InputError, match="All 5 rows of X are equal"):
        emulator.fit(np.ones((5, 2)), np.arange(5.0))
    emulator.update([[0.5, 0.5]], [np.sin(2.5) + 0.5])
    np.testing.assert_allclose(emulator.predict(x), y, atol=5e-3)


def test_a_refit_that_fails_in_stacking_changes_nothing(gp, problem, monkeypatch):
    x, y = problem
    emulator = copy.deepcopy(gp)
    before = emulator.predict(x, return_std=True)

    def fail(*arguments):
        raise RuntimeError("no weights")

    monkeypatch.setattr("deepemu.estimators.base.stack", fail)
    with pytest.raises(RuntimeError, match="no weights"):
        emulator.fit(x, 1000 * y + 5)
    np.testing.assert_array_equal(emulator.predict(x, return_std=True), before)


@pytest.mark.parametrize("kind", ["datetime64[D]", "timedelta64[s]", "U8"])
def test_dates_and_text_are_not_numbers(problem, kind):
    x, _ = problem
    with pytest.raises(InputError, match="y has dtype .*convert it to numbers"):
        GP().fit(x, np.arange(12).astype(kind))


# --- data that can be used, but only just --------------------------------------------------------


@KINDS
@pytest.mark.parametrize("value", [0.0, 0.1, -7e8, 1e-300])
def test_constant_outputs_are_returned_with_a_warning(make, problem, value):
    x, _ = problem
    with pytest.warns(DataWarning, match="y is constant over the 12 training rows") as caught:
        emulator = make().fit(x, np.full(12, value))
    assert len(caught) == 1
    mean, std = emulator.predict(x + 0.3, return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-12)
    assert np.all(std < 1e-4) and np.all(np.isfinite(std))


def test_the_constant_column_is_named(problem):
    x, y = problem
    with pytest.warns(DataWarning, match=r"column\(s\) \[1\] of y are constant"):
        emulator = GP().fit(x, np.column_stack([y, np.full(12, 3.0)]))
    mean = emulator.predict(x)
    np.testing.assert_allclose(mean[:, 0], y, atol=3e-3)
    np.testing.assert_allclose(mean[:, 1], 3.0)


@KINDS
def test_a_constant_input_changes_nothing_of_interest(make, problem):
    x, _ = problem
    y = np.sin(5 * x[:, 0])
    emulator = make().fit(np.column_stack([x[:, 0], np.full(12, 3.0)]), y)
    at = np.linspace(x[:, 0].min(), x[:, 0].max(), 9)
    mean, std = emulator.predict(np.column_stack([at, np.full(9, 3.0)]), return_std=True)
    np.testing.assert_allclose(mean, np.sin(5 * at), atol=0.1)
    assert np.all(np.isfinite(std))


@KINDS
def test_two_rows_are_enough(make):
    emulator = make().fit([[0.0, 1.0], [1.0, 3.0]], [5.0, 9.0])
    mean, std = emulator.predict([[0.0, 1.0], [1.0, 3.0], [0.5, 2.0]], return_std=True)
    np.testing.assert_allclose(mean[:2], [5.0, 9.0], atol=1e-3)
    assert mean[2] == pytest.approx(7.0, abs=0.2)
    assert std[2] > std[:2].max()


def equal_outputs(n_copies):
    x = np.random.default_rng(0).random((12, 2))
    y = np.random.default_rng(1).random(12)
    return np.tile(x, (n_copies, 1)), np.tile(y, n_copies)


@KINDS
@pytest.mark.parametrize("n_copies", [2, 3, 10])
def test_rows_given_several_times_change_nothing(make, n_copies):
    """Every row as often as every other. A warning would be an error."""
    x, y = equal_outputs(1)
    once, often = make().fit(x, y), make().fit(*equal_outputs(n_copies))
    np.testing.assert_allclose(often.predict(x + 0.1), once.predict(x + 0.1), atol=1e-6)
    loo = often.loo() if isinstance(often, GP) else often.loo(conditional=True)
    assert loo[0].shape == (12 * n_copies,)


def test_a_row_given_twice_changes_nothing(problem):
    """The emulator is a function of the distinct rows: their copies have nothing to add."""
    x, y = problem
    once, twice = GP().fit(x, y), GP().fit(np.vstack([x, x[:3]]), np.append(y, y[:3]))
    np.testing.assert_allclose(twice.predict(x), once.predict(x), atol=1e-5)
    np.testing.assert_allclose(twice.predict(x + 0.3), once.predict(x + 0.3), atol=1e-6)


@KINDS
def test_unequal_outputs_at_equal_rows_are_averaged_with_a_warning(make, problem):
    x, y = problem
    again = np.vstack([x, x[:2]]), np.concatenate([y, y[:2] + 0.2])
    with pytest.warns(DataWarning, match=r"2 input row\(s\) occur more than once") as caught:
        emulator = make().set_params(nugget=1e-6).fit(*again)
    assert len(caught) == 1
    np.testing.assert_allclose(emulator.predict(x[:2]), y[:2] + 0.1, atol=5e-3)
    np.testing.assert_allclose(emulator.predict(x[2:]), y[2:], atol=5e-3)


def test_the_row_with_two_outputs_is_counted_alone(problem):
    """Copies with equal outputs are not part of the complaint."""
    x, y = problem
    again = np.vstack([x, x[:3]]), np.concatenate([y, y[:2], y[2:3] + 0.2])
    with pytest.warns(DataWarning, match=r"\b1 input row\(s\) occur more than once"):
        GP(nugget=1e-6).fit(*again)


@pytest.mark.parametrize("nugget", ["auto", "estimate"])
def test_noise_is_modelled_without_a_warning(problem, nugget):
    x, y = problem
    again = np.vstack([x, x]), np.concatenate([y, y + 0.2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        emulator = GP(nugget=nugget).fit(*again)
    np.testing.assert_allclose(emulator.predict(x), y + 0.1, atol=0.1)


@KINDS
@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_outputs_near_the_ends_of_the_doubles(make, problem, size):
    x, y = problem
    mean, std = make().fit(x, size * y).predict(x, return_std=True)
    np.testing.assert_allclose(mean / size, y, atol=5e-3)
    assert np.all(std / size < 0.05) and np.all(std > 0)


@KINDS
def test_inputs_of_very_different_size(make, problem):
    x, y = problem
    wild = x * [1e-8, 1e8] + [1e-6, -1e10]
    np.testing.assert_allclose(make().fit(wild, y).predict(wild), y, atol=5e-3)


def test_a_range_beyond_the_doubles_is_refused(problem):
    x, y = problem
    wide = np.column_stack([[1.2e308, -1.2e308, *np.zeros(10)], x[:, 0]])
    with pytest.raises(InputError, match="X spans more than the largest double"):
        GP().fit(wide, y)
    with pytest.raises(InputError, match="y spans more than the largest double"):
        GP().fit(x, 1.7e308 - 1e307 * x[:, 0])


def test_outputs_at_both_ends_of_the_doubles(problem):
    x, _ = problem
    y = np.array([1.2e308, -1.2e308, *np.zeros(10)])
    np.testing.assert_allclose(GP().fit(x, y).predict(x) / 1e308, y / 1e308, atol=0.01)


@pytest.mark.parametrize("distance", [1e3, 1e12, 1e200])
def test_far_from_the_data_the_prior_is_returned(either, problem, distance):
    x, y = problem
    mean, std = either.predict(x + distance, return_std=True)
    np.testing.assert_allclose(mean, y.mean(), atol=1e-6)
    assert np.all(std > 0.1 * y.std()) and np.all(np.isfinite(std))


# --- settings ------------------------------------------------------------------------------------

NOT_WHOLE = [0, -1, 1.5, True, "2", None, np.nan]
NOT_POSITIVE = [0, 0.0, -1e-6, np.nan, np.inf, True, None, "small", [1e-6]]

BAD_FOR_BOTH = [
    *[("kernel", value) for value in ("rbf", None, 1, ["matern52"])],
    *[("lengthscale", value) for value in ("both", None, 1.0)],
    *[("prior", value) for value in ("flat", None, 0.3)],
    *[("nugget", value) for value in NOT_POSITIVE],
]
BAD_FOR_DGP = [
    *[("depth", value) for value in NOT_WHOLE],
    *[("width", value) for value in NOT_WHOLE if value is not None],
    *[("n_chains", value) for value in NOT_WHOLE],
    *[("n_iter", value) for value in NOT_WHOLE if value is not None],
    *[("n_sweeps", value) for value in NOT_WHOLE if value is not None],
    *[("n_imputations", value) for value in NOT_WHOLE],
    *[("n_scoring", value) for value in NOT_WHOLE],
    *[("burn_in", value) for value in (-0.1, 1, 1.5, np.nan, True, "most", None)],
    *[("bracket", value) for value in (0.0, -1, np.nan, True, "wide", None)],
    *[("sweep", value) for value in ("all", None, 1, ["node"])],
    *[("connect_input", value) for value in ("no", 2)],
]


@pytest.fixture
def no_training(monkeypatch):
    """Training is out of reach: what is wrong must be found before."""

    def train(*_):
        raise AssertionError("training began")

    monkeypatch.setattr("deepemu.training.structures.train", train)
    monkeypatch.setattr("deepemu.training.structures.train_plain", train)


def assert_one_sentence(error, name, value):
    message = str(error.value)
    assert name in message
    assert repr(value) in message
    assert message.endswith(".") and ". " not in message


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *[(GP, *case) for case in BAD_FOR_BOTH],
        *[(DGP, *case) for case in BAD_FOR_BOTH + BAD_FOR_DGP],
    ],
)
def test_a_setting_that_makes_no_sense_is_named(kind, name, value, problem, no_training):
    with pytest.raises(InputError, match=f"{name}.* is ") as error:
        kind(**{name: value}).fit(*problem)
    assert_one_sentence(error, name, value)


def hidden(**settings):
    return [Layer(**({"width": 2} | settings)), Layer(scale="estimate")]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "layers is \\[\\]"),
        (hidden(width=None), "width of layer 1 is None"),
        (hidden(width=0), "width of layer 1 is 0"),
        ([Layer(width=2), Layer(width=3)], "last layer has width 3 but y has 1"),
        (hidden(kernel="rbf"), "kernel of layer 1 is 'rbf'"),
        (hidden(lengthscale=1.0), "lengthscale of layer 1 is 1.0"),
        (hidden(scale=0.0), "scale of layer 1 is 0.0"),
        (hidden(nugget=-1), "nugget of layer 1 is -1"),
        (hidden(prior="flat"), "prior.* is 'flat'"),
        (hidden(reads=[[0]]), r"reads of layer 1 names 1 node\(s\) but its width is 2"),
        (hidden(reads=[[0], [2]]), r"reads of layer 1 has \[2\].*between 0 and 1"),
        (hidden(reads=[[0], [-1]]), r"reads of layer 1 has \[-1\]"),
        (hidden(reads=[[0], []]), r"reads of layer 1 has \[\]"),
        (hidden(reads=[[0], [0.5]]), r"reads of layer 1 has \[0.5\]"),
        ([Layer(width=2), Layer(reads=[[4]])], r"reads of layer 2 has \[4\].*between 0 and 3"),
        (
            [Layer(width=2), Layer(reads=[[2]], connect_input=False)],
            r"reads of layer 2 has \[2\].*between 0 and 1",
        ),
        (hidden(reads=[0, 1]), "reads of layer 1"),
        (Layer(), "layers is"),
        ("deep", "layers is"),
        ([2, 1], "layers"),
    ],
)
def test_layers_that_make_no_sense_are_named(layers, message, problem, no_training):
    with pytest.raises(InputError, match=message):
        DGP(layers=layers).fit(*problem)


@pytest.mark.parametrize("nugget", [9e-9, 1e-14])
def test_nuggets_below_round_off_are_refused(problem, nugget):
    with pytest.raises(InputError, match="nugget of layer 1 is .*at least 1e-08"):
        GP(nugget=nugget).fit(*problem)


@pytest.mark.parametrize("name", ["input_names", "output_names", "training_inputs"])
@pytest.mark.parametrize("kind", [GP, DGP])
def test_properties_say_that_nothing_is_fitted(kind, name):
    with pytest.raises(NotFittedError, match=f"This {kind.__name__} instance is not fitted yet"):
        getattr(kind(), name)
    assert not hasattr(kind(), "posterior_")
