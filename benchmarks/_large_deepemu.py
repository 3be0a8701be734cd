"""Our side of ``large.py``."""

from __future__ import annotations

from functools import partial

import numpy as np
from _large_jobs import answer
from _speed_jobs import Job, Result, serve

import deepemu


def fitted(settings: dict, X: np.ndarray, y: np.ndarray):
    kinds = {"emulator": deepemu.Emulator, "dgp": deepemu.DGP, "gp": deepemu.GP}
    kind, *words = settings["method"].split("-")
    changes = {"solver": words[0]} if words else {}
    emulator = kinds[kind](random_state=settings["trial"], **changes)
    emulator.fit(X, y)
    return lambda at: emulator.predict(at, return_std=True)


def run(job: Job) -> Result:
    return answer(partial(fitted, job), job)


if __name__ == "__main__":
    deepemu.use_compilation_cache()
    serve({"deepemu": run})
