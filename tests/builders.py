"""Small problems and settings that tests share: what has the same shape is compiled once."""

import contextlib
import dataclasses

import numpy as np
import pytest

from deepemu import DGP, GP
from deepemu.data.scaling import InputScale
from deepemu.training import structures
from deepemu.training.structures import Problem

SMALL = {
    "n_chains": 2,
    "n_iter": 6,
    "n_sweeps": 2,
    "n_imputations": 2,
    "stacking": False,  # two chains leave no rows out
}
FOUR_CHAINS = {"n_chains": 4, "n_iter": 4, "n_sweeps": 1, "n_imputations": 1}  # enough for stacking
KINDS = pytest.mark.parametrize("make", [GP, lambda: DGP(**SMALL)], ids=["GP", "DGP"])


def curve(x: np.ndarray) -> np.ndarray:
    """A smooth function of two inputs."""
    return np.sin(5 * x[:, 0]) + x[:, 1]


def step(x: np.ndarray) -> np.ndarray:
    """From -1 to 1 at 0.5, a function of one input."""
    return np.where(x < 0.5, -1.0, 1.0)


def closed_form_loo(emulator: GP | DGP) -> tuple[np.ndarray, np.ndarray]:
    """The closed form is all that a GP has, and for a DGP it must be asked for."""
    return emulator.loo() if isinstance(emulator, GP) else emulator.loo(conditional=True)


def as_many_inputs(monkeypatch, n_inputs):
    """Behind the inputs of a problem, the core gets constant ones up to this number."""
    to_core, to_user, network = InputScale.to_core, InputScale.to_user, Problem.network

    def padded(scale, x):
        return np.pad(to_core(scale, x), [(0, 0), (0, n_inputs - x.shape[1])])

    def cut(scale, x):
        return to_user(scale, x[:, : len(scale.low)])

    def with_constants(problem, layers):
        constants = tuple(f"constant{n}" for n in range(problem.n_inputs, n_inputs))
        names = problem.input_names + constants
        return network(dataclasses.replace(problem, input_names=names), layers)

    monkeypatch.setattr(InputScale, "to_core", padded)
    monkeypatch.setattr(InputScale, "to_user", cut)
    monkeypatch.setattr(Problem, "network", with_constants)


@contextlib.contextmanager
def brief_plain_gps(n_iter):
    """Plain processes with imputed latents have so few iterations, where users have 80."""
    brief = dataclasses.replace(structures.GUIDED_PLAIN, n_iter=n_iter, n_chains=4, n_imputations=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structures, "GUIDED_PLAIN", brief)
        yield
