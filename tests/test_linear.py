"""Emulators with the linear kernel: Bayesian regression, linear hidden layers, files."""

from itertools import combinations

import numpy as np
import pytest
from eigen_solver import ByEigenvalues

import deepemu
from deepemu import DGP, GP, Layer

SHORT = {"n_iter": 6, "n_chains": 2, "n_imputations": 2, "stacking": False, "verbose": False}


@pytest.fixture(scope="module")
def plane():
    """Runs of a function that is linear in each of two inputs, with noise."""
    rng = np.random.default_rng(5)
    x = rng.uniform(size=(25, 2))
    y = 1 + 2 * x[:, 0] - x[:, 1] + 3 * x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=25)
    return x, y


def features(x, lengthscale):
    """Products of the columns of each subset, those of none included, in lengthscales."""
    u = x / lengthscale
    subsets = [s for size in range(3) for s in combinations(range(2), size)]
    return np.stack([np.prod(u[:, list(s)], axis=1) for s in subsets], axis=1)


def test_a_plain_process_is_bayesian_linear_regression(plane):
    """Coefficients N(0, σ²) and noise N(0, σ²η): the posterior of the coefficients, in NumPy."""
    x, y = plane
    gp = GP("linear", nugget="estimate").fit(x, y)
    lengthscale, scale, nugget = (
        gp.trace_[name][0][0, -1, 0] for name in ("lengthscale", "scale", "nugget")
    )
    low, span, size = x.min(axis=0), np.ptp(x, axis=0), y.std()
    in_core = lambda at: features((at - low) / span, lengthscale)  # noqa: E731
    precision = (np.eye(4) + in_core(x).T @ in_core(x) / nugget) / scale
    coefficients = np.linalg.solve(precision, in_core(x).T @ (y - y.mean()) / size / nugget / scale)
    at = np.random.default_rng(6).uniform(-1, 2, size=(9, 2))
    mean, std = gp.predict(at, return_std=True)
    np.testing.assert_allclose(mean, y.mean() + size * in_core(at) @ coefficients, rtol=1e-7)
    spread = np.einsum("ij,jk,ik->i", in_core(at), np.linalg.inv(precision), in_core(at))
    np.testing.assert_allclose(std, size * np.sqrt(spread + scale * nugget), rtol=1e-7)
    truth = 1 + 2 * at[:, 0] - at[:, 1] + 3 * at[:, 0] * at[:, 1]
    assert np.all(np.abs(mean - truth) < 4 * std)


def test_a_line_is_continued_far_outside_the_runs():
    x = np.linspace(0, 1, 6)[:, None]
    gp = GP("linear", nugget=1e-8).fit(x, 3 - 2 * x[:, 0])
    np.testing.assert_allclose(gp.predict([[10.0], [-5.0]]), [-17.0, 13.0], rtol=1e-4)


LAYERS = {
    "all layers": {"kernel": "linear", "depth": 3},
    "a hidden layer": {"layers": [Layer(2, kernel="linear"), Layer(kernel="matern52")]},
    "the last layer": {"layers": [Layer(2), Layer(kernel="linear")]},
    "without inputs": {"kernel": "linear", "connect_input": False},
}


@pytest.mark.parametrize("settings", LAYERS.values(), ids=LAYERS)
def test_deep_networks_train_and_predict(plane, settings):
    """Standard deviations are those of joint draws, slopes those of differences."""
    x, y = plane
    dgp = DGP(**settings, **SHORT, nugget=1e-3, random_state=3).fit(x, y)
    at = np.random.default_rng(7).uniform(size=(4, 2))
    mean, std = dgp.predict(at, return_std=True)
    assert np.all(np.isfinite(mean)) and np.all(std > 0)
    assert np.sqrt(np.mean((dgp.predict(x) - y) ** 2)) < 0.5 * y.std()
    draws = dgp.sample_y(at, 2000, random_state=1)
    np.testing.assert_allclose(draws.std(axis=1), std, rtol=0.15)
    slopes, _ = dgp.gradient(at)
    steps = 1e-5 * np.eye(2)
    differences = [(dgp.predict(at + s) - dgp.predict(at - s)) / 2e-5 for s in steps]
    np.testing.assert_allclose(slopes, np.stack(differences, axis=1), rtol=1e-3, atol=1e-4)


def test_another_solver_gives_the_same_emulator(plane):
    settings = SHORT | {"kernel": "linear", "nugget": 1e-2, "n_iter": 3, "n_scoring": 20}
    ours, other = (
        DGP(**settings, random_state=1, solver=solver).fit(*plane)
        for solver in ("dense", ByEigenvalues())
    )
    at = np.array([[0.2, 0.3], [0.9, 0.1]])
    for a, b in zip(
        ours.predict(at, return_std=True), other.predict(at, return_std=True), strict=True
    ):
        np.testing.assert_allclose(b, a, rtol=5e-2)


def test_files_keep_the_kernel(plane, tmp_path):
    dgp = DGP(kernel="linear", **SHORT, nugget=1e-3, random_state=3).fit(*plane)
    deepemu.save(dgp, tmp_path / "emulator.deepemu")
    loaded = deepemu.load(tmp_path / "emulator.deepemu")
    assert loaded.kernel == "linear"
    np.testing.assert_array_equal(loaded.predict(plane[0]), dgp.predict(plane[0]))
