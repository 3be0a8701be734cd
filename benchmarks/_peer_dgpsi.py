"""dgpsi's side of ``peers.py``, run by the interpreter of its environment; see ``_peer_jobs``."""

from __future__ import annotations

import numpy as np
from _peer_jobs import SEED, Moments, Predict, serve_fits
from _speed_dgpsi import N_IMPUTATIONS, load_numba
from dgpsi import combine, dgp, emulator, gp, kernel

NUGGET = 1e-6
GP_STARTS = (0.1, 1.0)  # either alone stays far below the other on some design
MOST_INPUTS, FEWER_NODES = 8, 6  # beyond so many inputs the hidden layer has only so many nodes


def n_nodes(n_inputs: int) -> int:
    """Width of the hidden layer: dgpsi's default, one node per input, up to eight inputs."""
    return n_inputs if n_inputs <= MOST_INPUTS else FEWER_NODES


def network(n_inputs: int) -> list:
    """dgpsi's default network but for the width: the second layer reads the inputs as well."""
    first = [kernel(length=np.ones(1), nugget=NUGGET) for _ in range(n_nodes(n_inputs))]
    last = kernel(length=np.ones(1), nugget=NUGGET, scale_est=True, connect=np.arange(n_inputs))
    return combine(first, [last])


def moments(model: emulator | gp, X: np.ndarray) -> Moments:
    mean, variance = model.predict(X, method="mean_var")
    return mean[:, 0], np.sqrt(variance[:, 0])


def fit_deep(X: np.ndarray, y: np.ndarray) -> Predict:
    """Default training (500 iterations, the first three quarters burn-in), then imputations."""
    np.random.seed(SEED)  # noqa: NPY002 - dgpsi draws from the global generator
    model = dgp(X, y[:, None], network(X.shape[1]))
    model.train(disable=True)
    imputed = emulator(model.estimate(), N=N_IMPUTATIONS)
    return lambda X_test: moments(imputed, X_test)


def trained_gp(X: np.ndarray, y: np.ndarray, start: float) -> gp:
    """dgpsi climbs once, from the given lengthscale in all directions."""
    correlation = kernel(
        length=np.full(X.shape[1], start),
        name="matern2.5",
        prior_name="ref",
        nugget=NUGGET,
        scale_est=True,
    )
    model = gp(X, y[:, None], correlation)
    model.train()
    return model


def objective(model: gp) -> float:
    """What its training minimises: minus the log posterior density of the lengthscales."""
    return model.kernel.llik(model.kernel.log_t())[0].item()


def fit_gp(X: np.ndarray, y: np.ndarray) -> Predict:
    """The mode of the lengthscales under the reference prior: the better of two starts."""
    model = min((trained_gp(X, y, start) for start in GP_STARTS), key=objective)
    return lambda X_test: moments(model, X_test)


if __name__ == "__main__":
    load_numba()
    serve_fits("dgpsi", {"dgpsi-si-ic": fit_deep, "dgpsi-gp": fit_gp})
