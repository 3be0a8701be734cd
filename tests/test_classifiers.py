"""Classifiers: scikit-learn's own checks, probabilities, labels, files."""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
from builders import as_many_inputs, brief_plain_gps
from scipy.integrate import quad
from scipy.special import expit, softmax
from sklearn.utils import estimator_checks

from deepemu import DGPClassifier, GPClassifier, InputError, load, save
from deepemu.core.distributions import Gaussian
from deepemu.observations.categorical import Categorical, ClassCounts, probabilities
from deepemu.runtime import devices, padding
from deepemu.training import plain, structures

KERNEL = "squared_exponential"


# --- the model ------------------------------------------------------------------------------------


def test_two_classes_have_the_logistic_average():
    """softmax of two independent normals is logistic in their difference: by quadrature."""
    mean, var = np.array([0.7, -0.4]), np.array([0.5, 1.3])
    spread = np.sqrt(var.sum())
    density = lambda z: np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)  # noqa: E731
    expected = quad(lambda z: expit(1.1 + spread * z) * density(z), -9, 9)[0]
    np.testing.assert_allclose(probabilities(mean, var), [expected, 1 - expected], rtol=1e-6)


def test_probabilities_are_averages_of_the_softmax(rng):
    mean, var = np.array([[0.5, -1.0, 2.0], [3.0, 3.0, 3.0]]), np.array([0.3, 2.0, 4.0])
    drawn = mean[:, None] + np.sqrt(var) * rng.standard_normal((2, 400_000, 3))
    each = softmax(drawn, axis=-1)
    error = each.std(axis=1) / np.sqrt(400_000)
    found = probabilities(mean, np.broadcast_to(var, mean.shape))
    assert np.all(np.abs(found - each.mean(axis=1)) < 4 * error)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    known = probabilities(mean, np.full(mean.shape, 1e-14))
    np.testing.assert_allclose(known, softmax(mean, axis=-1), rtol=1e-6)


def test_the_model_speaks_of_the_number_of_a_class(rng):
    model = Categorical(3)
    latents = Gaussian(np.array([[[0.5, -1.0, 1.0]]]), np.array([[[0.3, 2.0, 1.0]]]))
    p = probabilities(latents.mean, latents.var)[0, 0]
    units = model.units(np.zeros((2, 1)), np.arange(2))
    y = np.arange(3.0).reshape(3, 1, 1)
    np.testing.assert_allclose(np.exp(model.log_density_of(y, latents, units)).ravel(), p)
    np.testing.assert_allclose(model.cdf(y, latents, units).ravel(), np.cumsum(p))
    with devices.float64():
        moments = model.moments(latents, units)
    np.testing.assert_allclose(moments.mean.item(), p @ np.arange(3), rtol=1e-6)
    np.testing.assert_allclose(
        moments.var.item(), p @ (np.arange(3) - moments.mean.item()) ** 2, rtol=1e-5
    )
    at = latents.mean[0] + np.sqrt(latents.var[0]) * rng.standard_normal((50_000, 3))
    shares = np.bincount(model.draw(rng, at, units)[:, 0].astype(int)) / 50_000
    assert np.max(np.abs(shares - p)) < 4 * 0.5 / np.sqrt(50_000)


def test_the_likelihood_of_replicates_is_that_of_all_labels(rng):
    model, site = Categorical(3), np.array([0, 0, 1, 2, 2, 2])
    y, f = np.array([0, 2, 1, 1, 1, 0.0])[:, None], rng.standard_normal((3, 3))
    observed = model.collapse(y, site, model.units(y, site))
    with devices.float64():
        found = model.log_density(observed, jnp.asarray(f), None).item()
    rows = np.log(softmax(f, axis=1))[site, y[:, 0].astype(int)]
    np.testing.assert_allclose(found, rows.sum(), rtol=1e-12)
    assert isinstance(observed, ClassCounts)
    start = model.starting_latents(observed)
    assert np.argmax(start[2]) == 1 and np.all(np.isfinite(start))


# --- the estimators -------------------------------------------------------------------------------


@pytest.fixture
def short_checks(monkeypatch):
    """The checks ask about the interface: a few iterations will do, one bucket of rows and one
    number of inputs."""
    monkeypatch.setattr(plain, "GP_STARTS", (1.0,))
    monkeypatch.setattr(plain, "GP_SCOUT_STEPS", 1)
    monkeypatch.setattr(plain, "GP_STEPS", 3)
    monkeypatch.setattr(padding, "SMALLEST_BUCKET", 100)
    as_many_inputs(monkeypatch, 10)
    few = dataclasses.replace(structures.GUIDED_PLAIN, n_iter=12, n_chains=1, n_imputations=2)
    monkeypatch.setattr(structures, "GUIDED_PLAIN", few)
    blobs = estimator_checks.make_blobs
    few_blobs = lambda **given: blobs(**given | {"n_samples": min(given["n_samples"], 60)})  # noqa: E731
    monkeypatch.setattr(estimator_checks, "make_blobs", few_blobs)
    irises = tuple(each[::5] for each in estimator_checks.load_iris(return_X_y=True))
    monkeypatch.setattr(estimator_checks, "load_iris", lambda return_X_y: irises)


CHEAP = DGPClassifier(
    kernel=KERNEL, width=1, n_chains=1, n_iter=12, n_imputations=2, stacking=False
)
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=r"Estimator \w+ does not inherit from")
    CHECKS_OF_GP = estimator_checks.parametrize_with_checks([GPClassifier(kernel=KERNEL)])
    CHECKS_OF_DGP = estimator_checks.parametrize_with_checks([CHEAP])


@CHECKS_OF_GP
def test_scikit_learns_own_checks(estimator, check, short_checks):
    check(estimator)


@pytest.mark.slow
@CHECKS_OF_DGP
@pytest.mark.filterwarnings("ignore::deepemu.ConvergenceWarning")
def test_scikit_learns_own_checks_of_deep_ones(estimator, check, short_checks):
    check(estimator)


# --- labels and files -----------------------------------------------------------------------------

AT = np.array([[0.1], [0.5], [0.9]])


@pytest.fixture(scope="module")
def colours():
    """Three classes of one input, twelve runs at each of 15 sites."""
    x = np.repeat(np.linspace(0, 1, 15), 12)[:, None]
    logits = np.column_stack([3 - 9 * x[:, 0], np.zeros(180), 9 * x[:, 0] - 6])
    p = softmax(logits, axis=1)
    numbers = [np.random.default_rng(k).choice(3, p=row) for k, row in enumerate(p)]
    return x, np.array(["blue", "green", "red"])[numbers]


@pytest.fixture(scope="module")
def fitted(colours):
    return GPClassifier(kernel=KERNEL).fit(*colours)


def test_probabilities_are_recovered(fitted):
    true = softmax(np.column_stack([3 - 9 * AT[:, 0], np.zeros(3), 9 * AT[:, 0] - 6]), axis=1)
    found = fitted.predict_proba(AT)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert np.max(np.abs(found - true)) < 0.2
    assert fitted.predict(AT).tolist() == ["blue", "green", "red"]
    np.testing.assert_allclose(
        fitted.log_density(AT, fitted.predict(AT)), np.log(found.max(axis=1))
    )


@pytest.mark.parametrize("kind", [pd.Series, pl.Series, np.array, list])
def test_labels_that_look_like_numbers_stay_words(kind):
    x, labels = np.linspace(0, 1, 12)[:, None], kind(["1", "10"] * 6)
    with brief_plain_gps(4):
        classifier = GPClassifier(kernel=KERNEL).fit(x, labels)
    assert classifier.classes_.tolist() == ["1", "10"]
    assert set(classifier.predict(x)) <= {"1", "10"}


def test_a_fit_that_fails_leaves_the_classes(fitted):
    classes = fitted.classes_.copy()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.fit(np.zeros((5, 1)), ["u", "v"] * 3)
    np.testing.assert_array_equal(fitted.classes_, classes)


def test_files_hold_labels(fitted, tmp_path):
    save(fitted, tmp_path / "a.deepemu")
    again = load(tmp_path / "a.deepemu")
    assert again.classes_.tolist() == ["blue", "green", "red"]
    np.testing.assert_array_equal(again.predict_proba(AT), fitted.predict_proba(AT))
    again.update([[0.35]], ["green"])
    assert again.predict([[0.35]]).tolist() == ["green"]


def test_two_classes_have_one_latent(colours):
    x, labels = colours
    two = GPClassifier(kernel=KERNEL).fit(x, labels == "red")
    assert two.posterior_.structures[0].imputed.network.layers[-1].width == 1
    assert two.classes_.tolist() == [False, True]
    assert np.all(np.diff(two.predict_proba(AT)[:, 1]) > 0)


def test_what_cannot_be_is_refused(fitted):
    with pytest.raises(InputError, match="one class only, 'blue'; a classifier needs at least two"):
        GPClassifier().fit(AT, ["blue"] * 3)
    with pytest.raises(InputError, match="class.* 'grey', which the classifier was not fitted to"):
        fitted.update(AT, ["blue", "grey", "red"])
    with pytest.raises(InputError, match="'grey'"):
        fitted.log_density(AT, ["blue", "grey", "red"])
