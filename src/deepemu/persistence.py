"""Emulators in files: `save` and `load`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from deepemu import _boundary, _runtime, archive, codec, imputation
from deepemu._atomic import PathLike
from deepemu.automatic import Emulator
from deepemu.emulator import BaseEmulator, Fitted
from deepemu.errors import FileError, InputError
from deepemu.estimators import DGP, GP
from deepemu.report import Report
from deepemu.stacking import Part, Stacked

FORMAT = "deepemu emulator"
VERSION = 1
KINDS: dict[str, type[BaseEmulator]] = {kind.__name__: kind for kind in (GP, DGP, Emulator)}
# Settings that describe the machine of a fit, not the emulator.
OF_THE_MACHINE = ("device", "n_jobs")
# Factors of more sites than that do not fit into a machine's memory.
MOST_SITES = 20_000


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
    try:
        return _restored(codec.decode(header["emulator"], arrays))
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
    return _with_ensemble(part, imputation.without_factors)


def _whole(part: Part) -> Part:
    return _with_ensemble(part, imputation.with_factors)


def _with_ensemble(part: Part, change: Callable[[Any], Any]) -> Part:
    trained = part.trained
    changed = dataclasses.replace(trained, ensemble=change(trained.ensemble))
    return dataclasses.replace(part, trained=changed)


def _restored(state: dict[str, Any]) -> BaseEmulator:
    emulator = KINDS[state["kind"]](**_of_the_emulator(state["settings"]))
    _require_consistent(state["data"], state["stacked"])
    for part in state["parts"]:
        _require_fitting(part, state["data"])
    if len(state["stacked"].weights) != sum(len(part.trained.chains) for part in state["parts"]):
        raise ValueError("weights and chains differ in number")
    _require_words(state["report"])
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
        "x of sites": (data.sites.x, (len(data.sites.x), d)),
        "y of sites": (data.sites.y, (len(data.sites.x), q)),
        "counts": (data.sites.counts, (len(data.sites.x),)),
        "squares": (data.sites.squares, (len(data.sites.x), q)),
    }
    for name, (array, shape) in shapes.items():
        if array.shape != shape or not np.all(np.isfinite(array)):
            raise ValueError(f"{name} is not {shape} finite numbers")
    positive = np.concatenate([scaling.x_span, scaling.y_std, stacked.scale, data.sites.counts])
    if not np.all(positive > 0.0):
        raise ValueError("spans, scales and counts are not all positive")
    if not np.all(np.isin(data.sites.site_of_row, np.arange(len(data.sites.x)))):
        raise ValueError("rows are of sites that are not there")
    for names, count in ((data.output_names, q), (data.input_names, d)):
        if len(set(names)) != count or not all(isinstance(name, str) for name in names):
            raise ValueError("columns have no names of their own")
    if not all(isinstance(flag, bool) for flag in (data.one_dimensional, data.compares_names)):
        raise ValueError("a word of yes or no is missing")
    if not (np.all(stacked.weights >= 0.0) and np.isclose(stacked.weights.sum(), 1.0)):
        raise ValueError("weights do not add up to one")


def _require_fitting(part: Part, data: Fitted) -> None:
    """Networks of the data that the file says they are of, with parameters that are numbers."""
    imputed: imputation.Imputed = part.trained.ensemble  # type: ignore[assignment]
    n_sites = len(data.sites.x)
    if n_sites > MOST_SITES or len(imputed.data.x) != _boundary.bucket(n_sites):
        raise ValueError("a structure is of other data")
    chains = [(chain.params, chain.imputation.latents) for chain in part.trained.chains]
    for leaf in jax.tree.leaves((imputed.params, imputed.latents, chains)):
        if not np.all(np.isfinite(leaf)):
            raise ValueError("a parameter or hidden variable is not finite")
    if not np.all(np.isin(imputed.chain, np.arange(len(chains)))):
        raise ValueError("a network is of a chain that is not there")
    n_sets = len(jax.tree.leaves(imputed.params)[0])
    of_sets = np.asarray(imputed.params_of)
    if of_sets.shape != np.shape(imputed.chain) or not np.all(np.isin(of_sets, np.arange(n_sets))):
        raise ValueError("a network has parameters that are not there")


def _require_words(found: Report) -> None:
    """A report that can be printed."""
    str(found)
    for line in found.lines:
        numbers = [each for each in (line.crps, line.log_score, line.coverage) if each is not None]
        if not isinstance(line.label, str) or not np.all(np.isfinite([*line.votes, *numbers])):
            raise ValueError("a line of the report is not a name and numbers")
