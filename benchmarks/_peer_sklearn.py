"""scikit-learn's Gaussian process for ``peers.py``; see ``_peer_jobs``."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
from _peer_jobs import SEED, Predict, serve_fits
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern


def matern(n_inputs: int) -> Kernel:
    return Matern(np.ones(n_inputs), nu=2.5)


def rbf(n_inputs: int) -> Kernel:
    return RBF(np.ones(n_inputs))


def fit(correlation, X: np.ndarray, y: np.ndarray) -> Predict:
    """Maximum likelihood from the default start and five random ones, within default bounds."""
    model = GaussianProcessRegressor(
        ConstantKernel() * correlation(X.shape[1]),
        alpha=1e-6,
        normalize_y=True,
        n_restarts_optimizer=5,
        random_state=SEED,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return partial(model.predict, return_std=True)


if __name__ == "__main__":
    serve_fits(
        "scikit-learn",
        {"sklearn-matern": partial(fit, matern), "sklearn-rbf": partial(fit, rbf)},
    )
