"""What the peers of ``peers.py`` share: a run is fitted, predicted and timed the same way for all.

Needs NumPy only, because the peers' environments import it too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import NamedTuple

import numpy as np
from _speed_jobs import Job, Result, serve, standardised
from _timing import timed
from problems import load_design

SEED = 0

Moments = tuple[np.ndarray, np.ndarray]  # mean and standard deviation, one each for a point


class Quantiles(NamedTuple):
    """Predictions that are not normal: quantiles (levels, points)."""

    levels: np.ndarray
    values: np.ndarray


Predict = Callable[[np.ndarray], Moments | Quantiles]
Fit = Callable[[np.ndarray, np.ndarray], Predict]


def answer(fit: Fit, package: str, job: Job) -> Result:
    """Predictions at the test points of the job, in the units of the outputs, and the seconds.

    The fit gets standardised outputs and gives the function that predicts them.
    """
    data = load_design(job["problem"], job["design"])
    predict, fit_s, fit_cpu_s = timed(lambda: fit(data.X, standardised(data.y)))
    found, predict_s, predict_cpu_s = timed(lambda: predict(data.X_test))
    return {
        **in_units(found, data.y.mean(), data.y.std()),
        "fit_s": fit_s,
        "predict_s": predict_s,
        "fit_cpu_s": fit_cpu_s,
        "predict_cpu_s": predict_cpu_s,
        "version": f"{package} {metadata.version(package)}",
    }


def in_units(found: Moments | Quantiles, shift: float, size: float) -> Result:
    """Mean and standard deviation, or levels and quantiles, in the units of the outputs."""
    if isinstance(found, Quantiles):
        values = shift + size * found.values
        return {"levels": found.levels.tolist(), "quantiles": values.tolist()}
    mean, std = found
    return {"mean": (shift + size * mean).tolist(), "std": (size * std).tolist()}


def serve_fits(package: str, fits: dict[str, Fit]) -> None:
    """Do the job of the command line with the fit that its method names."""
    serve({method: partial(answer, fit, package) for method, fit in fits.items()})
