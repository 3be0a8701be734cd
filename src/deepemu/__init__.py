"""Deep and linked Gaussian-process emulators by stochastic imputation."""

from deepemu._runtime import use_compilation_cache
from deepemu.automatic import Emulator
from deepemu.errors import (
    ConvergenceWarning,
    DataWarning,
    DeepemuError,
    DeepemuWarning,
    FileError,
    InputError,
    InterruptedFitWarning,
    NumericalError,
)
from deepemu.estimators import DGP, GP
from deepemu.layers import Layer
from deepemu.persistence import load, save

__version__ = "0.1.0"

__all__ = [
    "DGP",
    "GP",
    "ConvergenceWarning",
    "DataWarning",
    "DeepemuError",
    "DeepemuWarning",
    "Emulator",
    "FileError",
    "InputError",
    "InterruptedFitWarning",
    "Layer",
    "NumericalError",
    "load",
    "save",
    "use_compilation_cache",
]
