"""dgpsi's side of ``speed.py``, run by the interpreter of its environment; see ``_speed_jobs``."""

from __future__ import annotations

import numpy as np
from _speed_jobs import Job, Result, design, predicted, serve, standardised
from _timing import finished, timed
from problems import load_design

KERNELS = {"squared_exponential": "sexp", "matern52": "matern2.5"}
N_IMPUTATIONS = 50


def network(n_inputs: int, job: Job):
    """Hidden layers of one node per input; every later layer reads the inputs as well."""
    from dgpsi import combine, kernel

    def node(first: bool, last: bool):
        n_columns = n_inputs if first else 2 * n_inputs
        return kernel(
            length=np.ones(n_columns if job["lengthscale"] == "ard" else 1),
            name=KERNELS[job["kernel"]],
            nugget=1e-6,
            scale_est=last,
            connect=None if first else np.arange(n_inputs),
        )

    hidden = [[node(k == 0, False) for _ in range(n_inputs)] for k in range(job["depth"] - 1)]
    return combine(*hidden, [node(False, True)])


def untrained(job: Job):
    from dgpsi import dgp

    x, y = design(job["n"])
    return dgp(x, y[:, None], network(x.shape[1], job), block=job["sweep"] == "layer")


def train(model, n_iter: int, job: Job) -> None:
    """Training with the sweeps of the job; dgpsi runs one more than its ``ess_burn``."""
    model.train(N=n_iter, ess_burn=job["n_sweeps"] - 1, disable=True)


def load_numba(job: Job | None = None) -> float:
    """Seconds of a short training, which loads (or builds) numba's compiled code."""
    from dgpsi import dgp

    x, y = design(12)
    layers = () if job is None else (network(x.shape[1], job),)
    return timed(lambda: dgp(x, y[:, None], *layers).train(N=2, disable=True))[1]


def timed_training(job: Job) -> Result:
    """Seconds per SEM iteration, once others have loaded numba's code and settled the chain."""
    model = untrained(job)
    train(model, job["settle"], job)
    return {"seconds": timed(lambda: train(model, job["n_iter"], job))[1] / job["n_iter"]}


def timed_prediction(job: Job) -> Result:
    """Mean and variance at the test points."""
    from dgpsi import emulator

    model = untrained(job)
    train(model, job["n_iter"], job)
    imputed = emulator(model.estimate(), N=job["n_imputations"], block=job["sweep"] == "layer")
    return predicted(lambda x: imputed.predict(x, method="mean_var"), job)


def timed_accuracy(job: Job) -> Result:
    """Default network and training, 50 imputations: seconds of both, and the NRMSEP they give."""
    from dgpsi import dgp, emulator

    load_numba()
    data = load_design(job["problem"], 0)
    np.random.seed(job["seed"])  # noqa: NPY002 - dgpsi draws from the global generator

    def fitted():
        model = dgp(data.X, standardised(data.y)[:, None])
        model.train(N=job["n_iter"], disable=True)
        return emulator(model.estimate(), N=N_IMPUTATIONS)

    imputed, seconds, cpu_seconds = timed(fitted)
    mean, _ = imputed.predict(data.X_test, method="mean_var")
    error = mean[:, 0] * data.y.std() + data.y.mean() - data.y_test
    score = np.sqrt(np.mean(error**2)) / np.ptp(data.y_test)
    return {"seconds": seconds, "cpu_s": cpu_seconds, "nrmsep": float(score)}


def first_prediction(job: Job) -> Result:
    """The step function with three layers: when its first prediction was there."""
    dgp, imported, _ = timed(_imported)
    from dgpsi import emulator

    data = load_design("step", 0)
    model = dgp(data.X, data.y[:, None], network(1, job))
    model.train(N=job["n_iter"], disable=True)
    emulator(model.estimate()).predict(data.X_test, method="mean_var")
    return {**finished(), "import_s": imported}


def timed_default(job: Job) -> Result:
    """Default training of the network that ``deepemu.DGP()`` has, on Vega, design 0."""
    (dgp, imported, _) = timed(_imported)
    data = load_design("vega", 0)
    warm_up = load_numba(job)

    def fit():
        layers = network(data.X.shape[1], job)
        dgp(data.X, standardised(data.y)[:, None], layers).train(N=job["n_iter"], disable=True)

    _, wall, cpu = timed(fit)
    return {"import_s": imported, "warm_up_s": warm_up, "fit_s": wall, "fit_cpu_s": cpu}


def _imported():
    from dgpsi import dgp

    return dgp


if __name__ == "__main__":
    serve(
        {
            "train": timed_training,
            "predict": timed_prediction,
            "accuracy": timed_accuracy,
            "start": first_prediction,
            "default": timed_default,
        }
    )
