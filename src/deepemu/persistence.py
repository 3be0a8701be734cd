"""Emulators in files: `save` and `load`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from deepemu import _runtime, archive, codec, imputation
from deepemu._atomic import PathLike
from deepemu.automatic import Emulator
from deepemu.emulator import BaseEmulator, Fitted
from deepemu.errors import FileError, NumericalError
from deepemu.estimators import DGP, GP
from deepemu.stacking import Part, Stacked

FORMAT = "deepemu emulator"
VERSION = 1
KINDS: dict[str, type[BaseEmulator]] = {kind.__name__: kind for kind in (GP, DGP, Emulator)}
# Settings that describe the machine of a fit, not the emulator.
OF_THE_MACHINE = ("device", "n_jobs")
DAMAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


def save(emulator: BaseEmulator, path: PathLike) -> None:
    """Write a fitted emulator to one file, from which `load` makes it again.

    The file holds numbers and names, nothing that runs: it can be opened from a stranger. It takes
    the place of an older one only when it is complete.
    """
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
    try:
        return _restored(codec.decode(header["emulator"], arrays))
    except (*DAMAGE, NumericalError) as error:
        raise FileError(f"{path} is damaged ({error}); fetch or write it again.") from error


def _state(emulator: BaseEmulator) -> dict[str, Any]:
    settings = emulator.get_params(deep=False)
    return {
        "kind": type(emulator).__name__,
        "settings": {name: settings[name] for name in settings if name not in OF_THE_MACHINE},
        "data": emulator._data,
        "parts": [_light(part) for part in emulator._parts],
        "stacked": emulator._stacked,
        "report": emulator._report,
    }


def _light(part: Part) -> Part:
    """The part without the factors of its networks, which are large and can be computed again."""
    return _with_ensemble(part, imputation.without_factors)


def _whole(part: Part) -> Part:
    return _with_ensemble(part, imputation.with_factors)


def _with_ensemble(part: Part, change: Callable[[Any], Any]) -> Part:
    trained = part.trained
    changed = dataclasses.replace(trained, ensemble=change(trained.ensemble))
    return dataclasses.replace(part, trained=changed)


def _restored(state: dict[str, Any]) -> BaseEmulator:
    emulator = KINDS[state["kind"]](**state["settings"])
    _require_consistent(state["data"], state["stacked"])
    with _runtime.running(_runtime.Runtime()):
        parts = [_whole(part) for part in state["parts"]]
    return emulator._restore(state["data"], parts, state["stacked"], state["report"])


def _require_consistent(data: Fitted, stacked: Stacked) -> None:
    """Shapes and values that nothing would complain about before a prediction is wrong."""
    (n, d), (_, q) = data.x.shape, data.y.shape
    scaling = data.scaling
    shapes = {
        "y": (data.y, (n, q)),
        "x_low": (scaling.x_low, (d,)),
        "x_span": (scaling.x_span, (d,)),
        "y_mean": (scaling.y_mean, (q,)),
        "y_std": (scaling.y_std, (q,)),
        "scale": (stacked.scale, (q,)),
        "site_of_row": (data.sites.site_of_row, (n,)),
        "weights": (stacked.weights, stacked.weights.shape[:1]),
    }
    for name, (array, shape) in shapes.items():
        if array.shape != shape or not np.all(np.isfinite(array)):
            raise ValueError(f"{name} is not {shape} finite numbers")
    if len(data.output_names) != q or len(data.input_names) != d:
        raise ValueError("names and columns differ in number")
    if not (np.all(stacked.weights >= 0.0) and np.isclose(stacked.weights.sum(), 1.0)):
        raise ValueError("weights do not add up to one")
