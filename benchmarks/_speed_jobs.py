"""What both sides of ``speed.py`` share: the data, and how a job is read and answered.

A job is a JSON object in the first argument, its field ``kind`` says what to measure; the answer
is one JSON line. Needs NumPy only, because dgpsi's environment imports it too.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
from _timing import best_seconds, peak_mb, with_peak_mb

N_INPUTS = 3
N_WARM_UP = 3
PACKAGES = ("deepemu", "dgpsi", "jax", "jaxlib", "numba", "numpy", "scipy", "scikit-learn")

Job = dict[str, Any]
Result = dict[str, Any]
Predict = Callable[[np.ndarray], Any]


def response(x: np.ndarray) -> np.ndarray:
    """A ridge that steepens along the first input: smooth, with a cliff."""
    return np.tanh(12.0 * (x[:, 0] - 0.3 - 0.4 * x[:, 1])) + np.sin(5.0 * x[:, 1]) * x[:, 2]


def standardised(y: np.ndarray) -> np.ndarray:
    return (y - y.mean()) / y.std()


def design(n: int) -> tuple[np.ndarray, np.ndarray]:
    """``n`` points in the unit cube and standardised outputs."""
    x = np.random.default_rng(n).random((n, N_INPUTS))
    return x, standardised(response(x))


def test_points(n_test: int) -> np.ndarray:
    return np.random.default_rng(0).random((n_test, N_INPUTS))


def predicted(predict: Predict, job: Job) -> Result:
    """Best seconds for all test points, and the peak of memory meanwhile.

    A prediction of three points comes first: it compiles or loads what the others use.
    """
    x = test_points(job["n_test"])
    predict(x[:N_WARM_UP])
    seconds, peak = with_peak_mb(lambda: best_seconds(lambda: predict(x)))
    return {"seconds": seconds, "predict_peak_mb": peak}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions(job: Job | None = None) -> Result:
    """Python and the packages that matter here, as far as they are installed."""
    found = {package: _version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **{k: v for k, v in found.items() if v}}


def serve(kinds: dict[str, Callable[[Job], Result]]) -> None:
    """Do the job of the command line and print its result, with the peak of memory."""
    job = json.loads(sys.argv[1])
    result = {"versions": versions, **kinds}[job["kind"]](job)
    print(json.dumps({**result, "peak_mb": peak_mb()}))
