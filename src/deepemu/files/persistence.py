"""Emulators in files: `save` and `load`."""

from typing import Any

import numpy as np

from deepemu.data.checks import require_fitted
from deepemu.errors import FileError, InputError
from deepemu.estimators.base import BaseEmulator
from deepemu.estimators.classifier import Classifier, DGPClassifier, GPClassifier
from deepemu.estimators.dgp import DGP
from deepemu.estimators.emulator import Emulator
from deepemu.estimators.gp import GP
from deepemu.files import archive, codec
from deepemu.files.atomic import PathLike
from deepemu.files.format_1 import state_of_format_1
from deepemu.files.format_2 import state_of_format_2
from deepemu.files.integrity import require_sound
from deepemu.files.state import State, posterior_of, runs_of_state, state_of
from deepemu.runtime import devices

FORMAT = "deepemu emulator"
VERSION = 3
READERS = {1: state_of_format_1, 2: state_of_format_2, 3: codec.decode}
KINDS: dict[str, type[BaseEmulator]] = {
    "GP": GP,
    "DGP": DGP,
    "Emulator": Emulator,
    "GPClassifier": GPClassifier,
    "DGPClassifier": DGPClassifier,
}
# Settings that describe the machine of a fit, not the emulator.
OF_THE_MACHINE = ("device", "n_jobs", "checkpoint")


def save(emulator: BaseEmulator, path: PathLike) -> None:
    """Write a fitted emulator to one file, which `load` reads.

    The file holds numbers and names and no code, so it is safe to open from any source. It replaces
    an older one only when it is complete.
    """
    names = {kind: name for name, kind in KINDS.items()}
    if type(emulator) not in names:
        raise InputError(
            f"emulator is a {type(emulator).__name__}; only {', '.join(KINDS)} can be saved."
        )
    require_fitted(emulator)
    settings = _of_the_emulator(emulator.get_params(deep=False))
    state = {"kind": names[type(emulator)], "settings": settings, **state_of(emulator.posterior_)}
    if isinstance(emulator, Classifier):
        state["classes"] = emulator.classes_.tolist()
    arrays: list[Any] = []
    header = {"format": FORMAT, "version": VERSION, "emulator": codec.encode(state, arrays)}
    archive.write(path, header, arrays)


def load(path: PathLike) -> BaseEmulator:
    """The emulator that `save` wrote: it predicts, samples, scores and updates as the original.

    A file that is damaged, or that something else wrote, raises a `FileError`.
    """
    header, arrays = archive.read(path)
    if header.get("format") != FORMAT:
        raise FileError(f"{path} is not a deepemu file; write one with deepemu.save.")
    version = header.get("version")
    reader = READERS.get(version) if type(version) is int else None
    if reader is None:
        raise FileError(
            f"{path} has format {version!r}, but this deepemu reads formats up to "
            f"{VERSION}; install the version of deepemu that wrote it, or a later one."
        )
    runtime = devices.choose("auto", None, worth_a_gpu=False)  # not a fault of the file if it fails
    try:
        return _restored(reader(header["emulator"], arrays), runtime)
    except Exception as error:  # a forged state may raise anything
        raise FileError(f"{path} is damaged ({error}); fetch or write it again.") from error


def _of_the_emulator(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in OF_THE_MACHINE}


def _restored(state: State, runtime: devices.Runtime) -> BaseEmulator:
    emulator = KINDS[state["kind"]](**_of_the_emulator(state["settings"]))
    with devices.running(runtime):
        runs = runs_of_state(state)
        require_sound(state, runs)
        posterior = posterior_of(state, runs)
    if isinstance(emulator, Classifier):
        emulator.classes_ = np.array(state["classes"])
    return emulator._restore(posterior)
