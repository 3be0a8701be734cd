"""Small problems and settings that tests share: what has the same shape is compiled once."""

import numpy as np
import pytest

from deepemu import DGP, GP

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
