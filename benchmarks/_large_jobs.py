"""Problems of ``large.py`` with any number of runs, and how a fit is timed; NumPy only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from _speed_jobs import Job, Result
from _timing import timed
from problems import PROBLEMS

N_TEST = 1000


def front(x: np.ndarray) -> np.ndarray:
    """A front of changing sharpness across a curved surface; 7 of 8 inputs matter."""
    across = x[:, 0] + 0.5 * x[:, 1] - 0.6 * x[:, 2] * x[:, 3] - 0.5
    sharp = np.tanh(12 * across * (0.5 + 2 * x[:, 4]))
    return sharp + 0.5 * np.sin(3 * x[:, 5]) * x[:, 0] + 0.3 * x[:, 6]


def ridge(x: np.ndarray) -> np.ndarray:
    """A sharp ridge along a curve, in 4 inputs."""
    across = x[:, 0] + 0.4 * np.sin(5 * x[:, 1]) - 0.7
    return np.tanh(25 * across) * (1 + x[:, 2]) + 0.3 * np.sin(12 * x[:, 3] * x[:, 0])


def schaffer(x: np.ndarray) -> np.ndarray:
    """A wave whose frequency grows towards a corner, in 2 inputs."""
    return np.sin(1.0 / ((0.7 * x[:, 0] + 0.3) * (0.7 * x[:, 1] + 0.3)))


def borehole(x: np.ndarray) -> np.ndarray:
    """Water flow through a borehole, in 8 inputs."""
    low = np.array([0.05, 100, 63070, 990, 63.1, 700, 1120, 9855])
    high = np.array([0.15, 50000, 115600, 1110, 116, 820, 1680, 12045])
    rw, r, tu, hu, tl, hl, length, kw = (low + (high - low) * x).T
    ratio = np.log(r / rw)
    resistance = ratio * (1 + 2 * length * tu / (ratio * rw**2 * kw) + tu / tl)
    return 2 * np.pi * tu * (hu - hl) / resistance


FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], int]] = {
    "front": (front, 8),
    "ridge": (ridge, 4),
    "schaffer": (schaffer, 2),
    "borehole": (borehole, 8),
    **{name: (PROBLEMS[name].function, PROBLEMS[name].n_inputs) for name in ("vega", "fived")},
}


def runs(problem: str, n: int, design: int) -> tuple[np.ndarray, ...]:
    """Uniform training inputs and outputs, and test inputs and outputs."""
    function, d = FUNCTIONS[problem]
    generator = np.random.default_rng([design, n])
    x, at = generator.random((n, d)), generator.random((N_TEST, d))
    return x, function(x), at, function(at)


def answer(fit: Callable, job: Job) -> Result:
    """Moments at the test points, and seconds of fit and prediction."""
    x, y, at, _ = runs(job["problem"], job["n"], job["design"])
    predict, fit_s, fit_cpu_s = timed(lambda: fit(x, y))
    (mean, std), predict_s, _ = timed(lambda: predict(at))
    return {
        "mean": np.asarray(mean).tolist(), "std": np.asarray(std).tolist(),
        "fit_s": fit_s, "fit_cpu_s": fit_cpu_s, "predict_s": predict_s,
    }  # fmt: skip
