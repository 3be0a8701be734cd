"""deepemu's side of ``speed.py``; see ``_speed_jobs``. ``gpu.py`` uses some of it too."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from _speed_jobs import Job, Result, design, predicted, serve
from _timing import best_seconds, finished, timed
from problems import load_design

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
IMPUTATION_STEPS = ("BURN_STEPS", "THIN_STEPS")
N_PAIRS = 3
KERNEL_NUGGET = 1e-6


@contextmanager
def counted_compilations() -> Iterator[list[float]]:
    """A list that receives the seconds of every XLA compilation inside the block."""
    from jax import monitoring

    seconds: list[float] = []
    active = True

    def listen(event: str, duration: float, **_) -> None:
        if active and event == COMPILE_EVENT:
            seconds.append(duration)

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seconds
    finally:
        active = False  # there is no public way to take a listener out again


def compiling(call: Callable[[], Any]) -> Result:
    """Wall and cpu seconds of the call, with the number and seconds of compilations in it."""
    with counted_compilations() as compilations:
        _, wall, cpu = timed(call)
    return {
        "fit_s": wall,
        "fit_cpu_s": cpu,
        "compilations": len(compilations),
        "compile_s": sum(compilations),
    }


def emulator_in_full(device: str = "cpu", **settings: Any):
    """A ``DGP`` that runs all its iterations, on the device, where its version has a say in it."""
    from deepemu import DGP

    wanted = {"early_stopping": False, "stacking": False, "device": device, "nugget": 1e-6}
    known = DGP().get_params()
    return DGP(
        **{name: value for name, value in wanted.items() if name in known},
        **{"verbose": False, "random_state": 0, **settings},
    )


def fitted(job: Job, **changes: Any):
    """One chain with the structure and sweeps of the job."""
    names = ("depth", "kernel", "lengthscale", "sweep", "n_sweeps")
    settings = {name: job[name] for name in names if name in job}
    return emulator_in_full(n_chains=1, **settings, **changes).fit(*design(job["n"]))


@contextmanager
def no_imputation() -> Iterator[None]:
    """Fits inside keep the state that training ends with, and skip the sweeps that follow it.

    Two fits then differ by their SEM iterations and nothing else. In a version that does not name
    those sweeps so, they are run, and the difference is noisier.
    """
    from deepemu.training import plan

    with ExitStack() as stack:
        for name in IMPUTATION_STEPS:
            if hasattr(plan, name):
                stack.enter_context(mock.patch.object(plan, name, 0))
        yield


def n_evaluations(emulator) -> int:
    """Slice evaluations of all updates since the start of the fit."""
    chains = emulator.posterior_.structures[0].chains
    return int(sum(chain.imputation.evaluations for chain in chains))


def timed_training(job: Job) -> Result:
    """Slice evaluations per SEM iteration, and the seconds of two warm fits that differ by some.

    The shorter one settles the brackets. Each is the best of three, in turn; the difference is not
    taken here, because the least of several differences would favour a disturbed shorter fit.
    """
    short, long = job["settle"], job["settle"] + job["n_iter"]
    best = dict.fromkeys((short, long), np.inf)
    ended: dict[int, int] = {}
    with no_imputation():
        fitted(job, n_iter=1, n_imputations=1)  # compiles
        for _ in range(N_PAIRS):
            for n_iter in (short, long):
                emulator, wall, _ = timed(lambda k=n_iter: fitted(job, n_iter=k, n_imputations=1))
                best[n_iter] = min(best[n_iter], wall)
                ended[n_iter] = n_evaluations(emulator)
    return {
        "short_s": best[short],
        "long_s": best[long],
        "evaluations": (ended[long] - ended[short]) / job["n_iter"],
    }


def timed_prediction(job: Job) -> Result:
    """Mean and standard deviation at the test points; the networks are hardly trained."""
    quick = {**job, "n_sweeps": 1}
    emulator = fitted(quick, n_iter=job["n_iter"], n_imputations=job["n_imputations"])
    return predicted(lambda x: emulator.predict(x, return_std=True), job)


def timed_effort(job: Job, data, effort: dict[str, int]) -> Result:
    """Compiling apart: seconds of a fit with this effort, and its NRMSEP."""
    from deepemu import DGP
    from deepemu.diagnostics import nrmsep

    def fit(n_iter: int):
        settings = {**effort, "n_iter": n_iter, "random_state": job["seed"], "verbose": False}
        return DGP(**settings).fit(data.X, data.y)

    first = compiling(lambda: fit(1))
    emulator, seconds, cpu_seconds = timed(lambda: fit(effort["n_iter"]))
    return {
        **effort,
        "seconds": seconds,
        "cpu_s": cpu_seconds,
        "compile_s": first["compile_s"],
        "nrmsep": float(nrmsep(data.y_test, emulator.predict(data.X_test))),
    }


def timed_accuracy(job: Job) -> Result:
    """Every effort of the job, in one process."""
    data = load_design(job["problem"], 0)
    efforts = [timed_effort(job, data, effort) for effort in job["efforts"]]
    return {"efforts": efforts, "compile_s": sum(effort["compile_s"] for effort in efforts)}


def first_prediction(job: Job) -> Result:
    """The step function with three layers and defaults: when its first prediction was there."""
    _, imported, _ = timed(_import_deepemu)
    from deepemu import DGP

    data = load_design("step", 0)
    emulator = DGP(depth=job["depth"])
    with counted_compilations() as compilations:
        emulator.fit(data.X, data.y).predict(data.X_test, return_std=True)
        ended = finished()
    return {
        **ended,
        "import_s": imported,
        "compilations": len(compilations),
        "compile_s": sum(compilations),
    }


def first_command(job: Job) -> Result:
    """``deepemu fit`` of a table of runs: when its emulator was there."""
    from deepemu.cli.main import main

    x, y = design(job["n"])
    with tempfile.TemporaryDirectory() as folder:
        runs, emulator = Path(folder) / "runs.csv", Path(folder) / "runs.deepemu"
        np.savetxt(runs, np.column_stack([x, y]), delimiter=",", header="a,b,c,y", comments="")
        if main(["fit", str(runs), "--output", "y", "-o", str(emulator)]):
            raise SystemExit("deepemu fit has failed")
        return finished()


def _fit_vega(**settings: Any) -> Result:
    from deepemu import DGP

    data = load_design("vega", 0)
    return compiling(lambda: DGP(random_state=0, **settings).fit(data.X, data.y))


def default_compilations(job: Job) -> Result:
    """What a default fit compiles; the number of iterations is no part of the programs."""
    return _fit_vega(n_iter=1)


def timed_default(job: Job) -> Result:
    """Two default fits in this process, the first with everything still to be compiled."""
    _, imported, _ = timed(_import_deepemu)
    first, second = (_fit_vega() for _ in range(2))
    return {"import_s": imported, **first, **{f"second_{k}": v for k, v in second.items()}}


def _import_deepemu() -> None:
    import deepemu  # noqa: F401


def factorisations(evaluations: float, n_iter: int, width: int, n_outputs: int = 1) -> float:
    """Cholesky factorisations that SEM of two layers cannot do without.

    Each slice evaluation needs the density of every node of the layer above, which is the observed
    one. Each iteration needs one per hidden node, to draw from its prior, and two per node of both
    layers in the M-step: at the present parameters and at the proposed ones.
    """
    return evaluations * n_outputs + n_iter * (width + 2 * (width + n_outputs))


def kernel_matrix(n: int) -> np.ndarray:
    """A squared-exponential correlation matrix of the design, with nugget, as LAPACK stores it."""
    x, _ = design(n)
    distances = np.sum((x[:, None, :] - x[None, :, :]) ** 2, axis=-1)
    return np.asfortranarray(np.exp(-4.0 * distances) + KERNEL_NUGGET * np.eye(n))


def lapack_seconds(n: int, times: int = 10) -> float:
    """Best time of ``dpotrf`` on a kernel matrix; the copy that it overwrites is not timed."""
    from scipy.linalg.lapack import dpotrf

    matrix, seconds = kernel_matrix(n), []
    for _ in range(times):
        copy = matrix.copy(order="F")
        call = lambda a=copy: dpotrf(a, lower=1, clean=0, overwrite_a=1)  # noqa: E731
        seconds.append(best_seconds(call, times=1))
    return min(seconds)


def timed_floor(job: Job) -> Result:
    """Training next to the LAPACK time of its factorisations, before and after it."""
    lapack = lapack_seconds(job["n"])
    result = timed_training(job)
    lapack = min(lapack, lapack_seconds(job["n"]))
    count = factorisations(result["evaluations"], 1, design(2)[0].shape[1])
    return {**result, "factorisations": count, "dpotrf_s": lapack}


if __name__ == "__main__":
    serve(
        {
            "train": timed_training,
            "predict": timed_prediction,
            "accuracy": timed_accuracy,
            "start": first_prediction,
            "command": first_command,
            "compile": default_compilations,
            "floor": timed_floor,
            "default": timed_default,
        }
    )
