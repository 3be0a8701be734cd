"""The estimators as scikit-learn sees them: its own checks, pipelines, pickles, data frames."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from builders import as_many_inputs
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

from deepemu import DGP, GP, Emulator
from deepemu.runtime import padding
from deepemu.training import plain, structures

# The squared exponential has the smallest programs.
KERNEL = "squared_exponential"
PLAIN = GP(kernel=KERNEL)
CHEAP = DGP(kernel=KERNEL, width=1, n_chains=1, n_iter=1, n_sweeps=1, n_imputations=1)
SMALL = DGP(kernel=KERNEL, width=1, n_chains=2, n_iter=6, n_sweeps=2, n_imputations=2)
# Structures that are not deep: those are checked by themselves, and would take minutes.
RACE = Emulator(max_depth=1)


@pytest.fixture
def short_checks(monkeypatch):
    """The checks ask about the interface: a few steps will do, one plain process in a race, and a
    fifth of the rows. One bucket and one number of inputs, so that all share their programs."""
    monkeypatch.setattr(plain, "GP_STARTS", (1.0,))
    monkeypatch.setattr(plain, "GP_SCOUT_STEPS", 1)
    monkeypatch.setattr(plain, "GP_STEPS", 3)
    monkeypatch.setattr(structures, "SWEEPS_BEFORE_FIRST_M_STEP", 1)
    monkeypatch.setattr(structures, "KERNELS", (KERNEL,))
    monkeypatch.setattr(padding, "SMALLEST_BUCKET", 100)
    as_many_inputs(monkeypatch, 10)
    x = np.random.default_rng(0).normal(size=(30, 3))
    monkeypatch.setattr(estimator_checks, "REGRESSION_DATASET", (x, x.sum(axis=1)), raising=False)
    irises = tuple(each[::5] for each in estimator_checks.load_iris(return_X_y=True))
    monkeypatch.setattr(estimator_checks, "load_iris", lambda return_X_y: irises)


# No expected failures. check_array_api_input skips itself unless SCIPY_ARRAY_API is set.
# The one warning is that the estimators have the methods of BaseEstimator, not the class.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=r"Estimator \w+ does not inherit from")
    SCIKIT_LEARNS_CHECKS = estimator_checks.parametrize_with_checks([PLAIN, CHEAP, RACE])


@SCIKIT_LEARNS_CHECKS
@pytest.mark.filterwarnings("ignore::deepemu.ConvergenceWarning")
def test_scikit_learns_own_checks(estimator, check, short_checks):
    check(estimator)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(1)
    x = rng.random((12, 2))
    return x, np.sin(5 * x[:, 0]) + x[:, 1]


@pytest.fixture(scope="module", params=[GP(), SMALL], ids=["GP", "DGP"])
def fitted(request, problem):
    return clone(request.param).fit(*problem)


def test_a_clone_has_the_parameters_and_no_fit(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "posterior_")


def test_set_params_and_get_params_are_inverse():
    changed = DGP().set_params(depth=3, n_chains=2, nugget="estimate", bracket=3.0)
    params = changed.get_params()
    assert (params["depth"], params["n_chains"]) == (3, 2)
    assert (params["nugget"], params["bracket"]) == ("estimate", 3.0)
    assert DGP(**params).get_params() == params
    with pytest.raises(ValueError, match="Invalid parameter 'depht'"):
        DGP().set_params(depht=2)


def test_a_set_parameter_takes_effect_at_the_next_fit(problem):
    emulator = GP().fit(*problem)
    emulator.set_params(nugget=0.5).fit(*problem)
    np.testing.assert_allclose(emulator.trace_["nugget"][0], 0.5)


def test_scaling_inputs_in_a_pipeline_changes_nothing(problem):
    """Inputs are scaled inside anyway."""
    x, y = problem
    piped = make_pipeline(StandardScaler(), GP()).fit(x, y)
    assert piped.score(x, y) > 0.999
    at = np.random.default_rng(2).random((5, 2))
    np.testing.assert_allclose(piped.predict(at), GP().fit(x, y).predict(at), rtol=1e-6)


def test_cross_validation_scores_a_smooth_function_well(problem):
    x, y = problem
    scores = cross_val_score(GP(), x, y, cv=3)
    assert scores.shape == (3,)
    assert np.median(scores) > 0.8


def test_a_pickle_predicts_the_same_to_the_last_bit(fitted, problem):
    copy = pickle.loads(pickle.dumps(fitted))
    for mine, theirs in zip(
        fitted.predict(problem[0] + 0.1, return_std=True),
        copy.predict(problem[0] + 0.1, return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)


ELSEWHERE = """
import pickle, sys
import numpy as np
import jax
fitted, x, means, stds = pickle.load(open(sys.argv[1], "rb"))
for emulator, mean, std in zip(fitted, means, stds):
    leaves = jax.tree.leaves([each.imputed for each in emulator.posterior_.structures])
    assert {leaf.dtype for leaf in leaves if leaf.dtype.kind == "f"} == {np.dtype("float64")}
    got_mean, got_std = emulator.predict(x, return_std=True)
    assert got_mean.dtype == np.float64
    np.testing.assert_allclose(got_mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(got_std, std, rtol=1e-4)
assert not jax.config.jax_enable_x64
"""


def test_a_pickle_keeps_double_precision_in_another_process(problem, tmp_path):
    x, y = problem
    fitted = [GP().fit(x, y), clone(SMALL).fit(x, y)]
    at = x + 0.1
    means, stds = zip(*(f.predict(at, return_std=True) for f in fitted), strict=True)
    path = tmp_path / "emulators.pickle"
    path.write_bytes(pickle.dumps((fitted, at, means, stds)))
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_data_frames_keep_their_names(problem):
    x, y = problem
    frame = pd.DataFrame(x, columns=["height", "width"])
    emulator = GP().fit(frame, pd.Series(y))
    assert emulator.feature_names_in_.tolist() == ["height", "width"]
    np.testing.assert_array_equal(emulator.predict(frame), GP().fit(x, y).predict(x))
    emulator.update(frame[:1] + 0.05, y[:1])
    assert emulator.feature_names_in_.tolist() == ["height", "width"]
    for wrong in (frame.rename(columns={"width": "depth"}), frame[["width", "height"]]):
        with pytest.raises(ValueError, match="feature names should match"):
            emulator.predict(wrong)
        with pytest.raises(ValueError, match="feature names should match"):
            emulator.update(wrong, y)


@pytest.mark.parametrize("convert", [np.ndarray.tolist, np.asfortranarray, np.ascontiguousarray])
def test_the_container_of_the_data_does_not_matter(problem, convert):
    x, y = problem
    expected = GP().fit(x, y).predict(x)
    np.testing.assert_array_equal(GP().fit(convert(x), convert(y)).predict(convert(x)), expected)


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint16, np.float32])
def test_other_numbers_are_taken_as_doubles(problem, kind):
    x, y = (np.rint(100 * values).astype(np.int8) for values in problem)
    x, y = np.abs(x).astype(kind), np.abs(y).astype(kind)
    emulator = GP().fit(x, y)
    predictions = emulator.predict(x)
    assert predictions.dtype == np.float64
    doubles = GP().fit(x.astype(float), y.astype(float)).predict(x.astype(float))
    np.testing.assert_array_equal(predictions, doubles)
