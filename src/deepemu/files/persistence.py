"""Emulators in files: `save` and `load`."""

import dataclasses
from collections.abc import Callable
from typing import Any

from sklearn.utils.validation import check_is_fitted

from deepemu.ensembles import assembly
from deepemu.errors import FileError, InputError
from deepemu.estimators.base import BaseEmulator
from deepemu.estimators.dgp import DGP
from deepemu.estimators.emulator import Emulator
from deepemu.estimators.gp import GP
from deepemu.files import archive, codec
from deepemu.files.atomic import PathLike
from deepemu.files.integrity import require_sound
from deepemu.posterior.stacking import Part
from deepemu.runtime import devices

FORMAT = "deepemu emulator"
VERSION = 1
KINDS: dict[str, type[BaseEmulator]] = {kind.__name__: kind for kind in (GP, DGP, Emulator)}
# Settings that describe the machine of a fit, not the emulator.
OF_THE_MACHINE = ("device", "n_jobs")


def save(emulator: BaseEmulator, path: PathLike) -> None:
    """Write a fitted emulator to one file, from which `load` makes it again.

    The file holds numbers and names, nothing that runs: it can be opened from a stranger. It takes
    the place of an older one only when it is complete.
    """
    if type(emulator) not in KINDS.values():
        raise InputError(
            f"emulator is a {type(emulator).__name__}; only {', '.join(KINDS)} can be saved."
        )
    check_is_fitted(emulator, "ensembles_")
    arrays: list[Any] = []
    header = {
        "format": FORMAT,
        "version": VERSION,
        "emulator": codec.encode(_state(emulator), arrays),
    }
    archive.write(path, header, arrays)


def load(path: PathLike) -> BaseEmulator:
    """The emulator that `save` wrote: it predicts, samples, scores and grows as the original.

    A file that is damaged, or that something else wrote, raises a `FileError`.
    """
    header, arrays = archive.read(path)
    if header.get("format") != FORMAT:
        raise FileError(f"{path} is no file of an emulator; write one with deepemu.save.")
    if header.get("version") != VERSION:
        raise FileError(
            f"{path} has format {header.get('version')!r}, but this deepemu reads format "
            f"{VERSION}; install the version of deepemu that wrote it, or a later one."
        )
    runtime = devices.choose("auto", None, worth_a_gpu=False)  # no fault of the file if it fails
    try:
        return _restored(codec.decode(header["emulator"], arrays), runtime)
    except Exception as error:  # whatever a made-up state breaks
        raise FileError(f"{path} is damaged ({error}); fetch or write it again.") from error


def _state(emulator: BaseEmulator) -> dict[str, Any]:
    return {
        "kind": type(emulator).__name__,
        "settings": _of_the_emulator(emulator.get_params(deep=False)),
        "data": emulator._data,
        "parts": [_light(part) for part in emulator._parts],
        "stacked": emulator._stacked,
        "report": emulator._report,
    }


def _of_the_emulator(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in OF_THE_MACHINE}


def _light(part: Part) -> Part:
    """The part without the factors of its networks, which are large and can be computed again."""
    return _with_ensemble(part, assembly.without_factors)


def _whole(part: Part) -> Part:
    return _with_ensemble(part, assembly.with_factors)


def _with_ensemble(part: Part, change: Callable[[Any], Any]) -> Part:
    trained = part.trained
    changed = dataclasses.replace(trained, ensemble=change(trained.ensemble))
    return dataclasses.replace(part, trained=changed)


def _restored(state: dict[str, Any], runtime: devices.Runtime) -> BaseEmulator:
    emulator = KINDS[state["kind"]](**_of_the_emulator(state["settings"]))
    data, parts, stacked, report = (state[each] for each in ("data", "parts", "stacked", "report"))
    require_sound(data, parts, stacked, report)
    with devices.running(runtime):
        parts = [_whole(part) for part in parts]
    return emulator._restore(data, parts, stacked, report)
