"""Frames and series of pandas, polars and pyarrow: the same numbers, names and complaints."""

import datetime
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from deepemu import GP, InputError
from deepemu.data import frames

FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}
SERIES = {
    "pandas": lambda name, values: pd.Series(values, name=name),
    "polars": pl.Series,
    "pyarrow": lambda name, values: pa.chunked_array([values]),  # has no name
}
LIBRARIES = pytest.mark.parametrize("library", list(FRAMES))
X = np.random.default_rng(0).random((9, 2))
Y = np.sin(3 * X[:, 0]) + X[:, 1]
COLUMNS = {"width": X[:, 0], "depth": X[:, 1]}


@pytest.fixture(scope="module")
def of_arrays():
    return GP().fit(X, Y)


@LIBRARIES
def test_a_series_is_the_array_of_its_values(library, of_arrays):
    frame = FRAMES[library](COLUMNS)
    emulator = GP().fit(frame, SERIES[library]("force", Y))
    assert emulator.input_names == ("width", "depth")
    assert emulator.output_names == (("y",) if library == "pyarrow" else ("force",))
    found = emulator.predict(frame)
    assert found.shape == (9,)
    np.testing.assert_array_equal(found, of_arrays.predict(X))


@LIBRARIES
def test_a_frame_of_two_columns_is_two_outputs(library):
    frame, outputs = FRAMES[library](COLUMNS), FRAMES[library]({"force": Y, "mass": 2 - Y})
    emulator = GP(nugget=1e-6).fit(frame, outputs)
    assert emulator.output_names == ("force", "mass")
    expected = GP(nugget=1e-6).fit(X, np.column_stack([Y, 2 - Y])).predict(X)
    np.testing.assert_array_equal(emulator.predict(frame), expected)


@LIBRARIES
def test_a_frame_of_one_column_has_a_name_and_two_dimensions(library):
    emulator = GP().fit(X, FRAMES[library]({"force": Y}))
    assert emulator.output_names == ("force",)
    assert emulator.predict(X).shape == (9, 1)


@LIBRARIES
def test_rows_can_be_added_and_scored(library):
    frame, outputs = FRAMES[library](COLUMNS), SERIES[library]("force", Y)
    emulator = GP().fit(frame, outputs)
    more = FRAMES[library]({"width": [0.3, 0.9], "depth": [1.1, 1.2]})
    emulator.update(more, SERIES[library]("force", [1.9, 1.6]))
    assert emulator.training_outputs[:, 0].tolist() == [*Y, 1.9, 1.6]
    mean = emulator.predict(X_named(library))
    expected = 1 - np.sum((Y - mean) ** 2) / np.sum((Y - Y.mean()) ** 2)
    assert emulator.score(frame, outputs) == pytest.approx(expected, rel=1e-12)


def X_named(library):
    return FRAMES[library](COLUMNS)


@LIBRARIES
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"depth": X[:, 1], "width": X[:, 0]}, "must be in the same order as they were in fit"),
        ({"width": X[:, 0]}, "now missing:\n- depth"),
        ({"width": X[:, 0], "height": X[:, 1]}, "unseen at fit time:\n- height"),
    ],
)
@pytest.mark.parametrize("method", ["predict", "sample_y"])
def test_the_names_of_new_rows_are_checked(library, method, changed, message):
    emulator = GP().fit(X_named(library), Y)
    with pytest.raises(ValueError, match=message):
        getattr(emulator, method)(FRAMES[library](changed))


@LIBRARIES
def test_names_that_are_given_after_the_fit_are_compared_too(library):
    """As `deepemu fit` does, which fits arrays; names of other columns altogether say nothing."""
    emulator = GP().fit(X, Y).name_columns(["width", "depth"], ["force"])
    right, swapped = X_named(library), FRAMES[library]({"depth": X[:, 1], "width": X[:, 0]})
    with warnings.catch_warnings(action="error"):
        np.testing.assert_array_equal(emulator.predict(right), emulator.predict(X))
    np.testing.assert_array_equal(
        emulator.posterior_.moments(right).mean[:, 0], emulator.predict(X)
    )
    for refuses in (emulator.predict, emulator.posterior_.moments):
        with pytest.raises(InputError, match=r"X has the columns \['depth', 'width'\]; they must"):
            refuses(swapped)
    other = FRAMES[library]({"a": X[:, 0], "b": X[:, 1]})
    assert emulator.posterior_.moments(other).mean.shape == (len(X), 1)


@LIBRARIES
def test_a_posterior_compares_names_of_any_frame(library):
    posterior = GP().fit(X_named(library), Y).posterior_
    expected = posterior.moments(X).mean
    np.testing.assert_array_equal(posterior.moments(X_named(library)).mean, expected)
    with pytest.raises(InputError, match=r"X.columns is \['depth', 'width'\]; it must be"):
        posterior.moments(FRAMES[library]({"depth": X[:, 1], "width": X[:, 0]}))


@LIBRARIES
def test_outputs_in_another_order_are_refused(library):
    both = {"u": Y, "v": 100 + Y}
    right, swapped = (FRAMES[library]({k: both[k] for k in order}) for order in ("uv", "vu"))
    emulator = GP().fit(X, right)
    posterior, score = emulator.posterior_, emulator.score(X, right)
    assert score > 0.99 and posterior.log_density(X, right).shape == (len(X),)
    more = X + 0.01
    for refuses in (emulator.score, posterior.log_density, posterior.compared):
        with pytest.raises(InputError, match=r"y has the columns \['v', 'u'\]; they must be"):
            refuses(X, swapped)
    for refuses in (emulator.update, posterior.condition_on):
        with pytest.raises(InputError, match=r"y has the columns \['v', 'u'\]; they must be"):
            refuses(more, swapped)


@LIBRARIES
def test_rows_without_names_are_noted(library):
    emulator = GP().fit(X_named(library), Y)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        emulator.predict(X)


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_libraries_can_be_mixed(library, of_arrays):
    emulator = GP().fit(pd.DataFrame(COLUMNS), SERIES[library]("force", Y))
    np.testing.assert_array_equal(emulator.predict(X_named(library)), of_arrays.predict(X))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (pd.Series(pd.date_range("2020", periods=9)), "y has dtype Datetime.*; convert it to"),
        (np.ma.array(Y, mask=[1] + [0] * 8), "y has masked values; fill them in"),
        ([str(each) for each in Y], "y has dtype <U.*; convert it to numbers first"),
        (0.5, r"y has the shape \(\); it must have the shape \(9, 1\)"),
    ],
)
def test_outputs_beside_predictions_are_numbers(given, message, of_arrays):
    for refuses in (of_arrays.posterior_.log_density, of_arrays.posterior_.condition_on):
        with pytest.raises(InputError, match=message):
            refuses(X, given)


@pytest.mark.parametrize("given", ["0.1", np.ma.array([0.1, 0.2], mask=[0, 1])])
def test_deviations_of_inputs_are_numbers(given, of_arrays):
    with pytest.raises(InputError, match="input_std has"):
        of_arrays.predict(X, input_std=given)


UNUSABLE = {
    "text": ([*"abcdefghi"], "String"),
    "numbers written out": ([*"123456789"], "String"),
    "times": ([datetime.datetime(2024, 1, day) for day in range(1, 10)], "Datetime"),
    "durations": ([datetime.timedelta(hours=day) for day in range(1, 10)], "Duration"),
}


@LIBRARIES
@pytest.mark.parametrize("kind", UNUSABLE)
def test_text_and_times_are_refused_by_name(library, kind):
    values, dtype = UNUSABLE[kind]
    with pytest.raises(InputError, match=f"^Column 'depth' of X has dtype {dtype}.*; convert it"):
        GP().fit(FRAMES[library]({"width": X[:, 0], "depth": values}), Y)
    with pytest.raises(InputError, match=f"^y has dtype {dtype}.*; convert it to numbers first"):
        GP().fit(X, SERIES[library]("force", values))
    with pytest.raises(InputError, match=f"^Column 'mass' of y has dtype {dtype}"):
        GP().fit(X, FRAMES[library]({"force": Y, "mass": values}))
    emulator = GP().fit(X_named(library), Y)
    with pytest.raises(InputError, match=f"^Column 'width' of X has dtype {dtype}"):
        emulator.predict(FRAMES[library]({"width": values, "depth": X[:, 1]}))


def test_text_in_an_array_is_refused_at_predict_too(of_arrays):
    with pytest.raises(InputError, match="X has dtype <U3; convert it"):
        of_arrays.predict(np.array([["0.1", "0.2"]]))


def test_categories_are_refused():
    with pytest.raises(InputError, match="Column 'depth' of X has dtype Categorical"):
        GP().fit(pd.DataFrame({"width": X[:, 0], "depth": pd.Categorical([1, 2, 3] * 3)}), Y)


@LIBRARIES
@pytest.mark.parametrize("values", [[None, *Y[1:]], [None, *range(8)], [None] * 8 + [0.5]])
def test_missing_values_are_refused_as_nan(library, values):
    with pytest.raises(ValueError, match="Input X contains NaN"):
        GP().fit(FRAMES[library]({"width": X[:, 0], "depth": values}), Y)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        GP().fit(X, SERIES[library]("force", values))
    with pytest.raises(ValueError, match="Input y contains NaN"):
        GP().fit(X, FRAMES[library]({"force": Y, "mass": values}))


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_a_column_of_nothing_is_refused_as_nan(library):
    with pytest.raises(ValueError, match="Input X contains NaN"):
        GP().fit(FRAMES[library]({"width": X[:, 0], "depth": [None] * 9}), Y)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        GP().fit(X, SERIES[library]("force", [None] * 9))


def test_none_in_an_array_of_objects_is_refused_as_nan():
    with pytest.raises(ValueError, match="Input y contains NaN"):
        GP().fit(X, np.array([None, *Y[1:]], dtype=object))


@LIBRARIES
def test_integers_and_truth_values_are_numbers(library):
    flags, counts = [True, False, True] * 3, list(range(9))
    found = GP().fit(FRAMES[library]({"on": flags, "count": counts}), SERIES[library]("n", counts))
    np.testing.assert_array_equal(found.training_inputs, np.column_stack([flags, counts]))
    np.testing.assert_array_equal(found.training_outputs[:, 0], counts)


def test_decimals_are_numbers():
    y = pl.Series("force", [f"{value:.3f}" for value in Y]).cast(pl.Decimal(8, 3))
    emulator = GP().fit(X, y)
    np.testing.assert_allclose(emulator.training_outputs[:, 0], np.round(Y, 3), rtol=1e-15)


def test_a_lazy_frame_is_not_collected_unasked():
    with pytest.raises(InputError, match=r"lazy LazyFrame; call its collect\(\) first"):
        GP().fit(pl.LazyFrame(COLUMNS), Y)


@LIBRARIES
def test_a_series_is_not_a_table_of_inputs(library):
    with pytest.raises(ValueError, match="Expected (a )?2-?(D|dimensional)"):
        GP().fit(SERIES[library]("width", X[:, 0]), Y)


def test_two_columns_of_one_name_are_refused():
    twice = pd.DataFrame(np.column_stack([Y, Y]), columns=["force", "force"])
    with pytest.raises(InputError, match="Two columns have the same name"):
        GP().fit(X, twice)


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (pd.Series(Y), ("y",)),
        (pd.Series(Y, name=0), ("0",)),
        (pl.Series(Y), ("y",)),
        (pd.DataFrame({1: Y, 2: Y}), ("1", "2")),
        (Y, ("y",)),
        (np.column_stack([Y, Y]), ("y1", "y2")),
    ],
)
def test_outputs_without_a_name_are_numbered(y, names):
    assert GP().fit(X, y).output_names == names


@pytest.mark.parametrize("data", [X, X.tolist(), tuple(Y), None, 3.0])
def test_what_is_no_frame_is_left_alone(data):
    assert frames.array_of(data) is data
    assert frames.names_of(data) == ()


def test_narwhals_is_imported_for_frames_only():
    """Where scikit-learn does not import it anyway."""
    code = (
        "import sys, importlib.util as u, types\n"
        "import numpy as np\n"
        "from deepemu.data import frames\n"
        "for name in [each for each in sys.modules if each.startswith('narwhals')]:\n"
        "    del sys.modules[name]\n"
        "frames.require_numbers(np.zeros((2, 1)), 'X'); frames.names_of([1.0, 2.0])\n"
        "assert 'narwhals' not in sys.modules\n"
        "import pandas as pd\n"
        "assert frames.names_of(pd.Series([1.0], name='a')) == ('a',)\n"
        "assert 'narwhals' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
