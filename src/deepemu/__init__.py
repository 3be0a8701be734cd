"""Emulators of computer models: plain and deep Gaussian processes, by stochastic imputation."""

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
from deepemu.estimators.classifier import DGPClassifier, GPClassifier
from deepemu.estimators.dgp import DGP
from deepemu.estimators.emulator import Emulator
from deepemu.estimators.gp import GP
from deepemu.files.persistence import load, save
from deepemu.runtime.cache import use_compilation_cache
from deepemu.training.layers import Layer

__version__ = "0.1.0"

__all__ = [
    "DGP",
    "GP",
    "ConvergenceWarning",
    "DGPClassifier",
    "DataWarning",
    "DeepemuError",
    "DeepemuWarning",
    "Emulator",
    "FileError",
    "GPClassifier",
    "InputError",
    "InterruptedFitWarning",
    "Layer",
    "NumericalError",
    "load",
    "save",
    "use_compilation_cache",
]
