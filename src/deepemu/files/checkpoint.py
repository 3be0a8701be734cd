"""A fit on its way, in a file from which another process goes on.

The file has the form of an emulator's (`archive`, `codec`). It holds the structures that are
trained, the stages of the next one as `training.keeper` describes them, and what the fit is of:
settings, data, version. A process that goes on does what the first would have done.
"""

import hashlib
import os
import threading
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from deepemu.data.checks import require_value
from deepemu.data.runs import Runs
from deepemu.data.sites import SiteData
from deepemu.errors import DeepemuWarning, FileError, InputError, Message, Setting, warn
from deepemu.files import archive, codec
from deepemu.files.atomic import PathLike, require_writable
from deepemu.files.state import State, state_of_trained, trained_of
from deepemu.runtime.devices import current
from deepemu.runtime.progress import say
from deepemu.training.chains import Trained
from deepemu.training.keeper import Keeper

FORMAT = "deepemu checkpoint"
# Between two writes while a structure is trained, and as many times as long as the last one took.
SECONDS_BETWEEN, TIMES_THE_WRITE = 20.0, 20.0
# Settings that do not change what is trained, and a limit that may be set or lifted on the way.
MAY_DIFFER = ("device", "n_jobs", "verbose", "checkpoint", "time_limit")


class Checkpoint(Keeper):
    """The states of a fit, in memory and, as of the last write, in a file.

    ``seed`` is that of the fit which began it.
    """

    def __init__(self, path: PathLike, facts: dict[str, Any], state: State) -> None:
        self._path, self._facts = Path(path).resolve(), facts
        self.seed, self.seconds_before = int(state["seed"]), float(state["seconds"])
        self._trained, self._waiting = list(state["trained"]), list(state["trained"])
        self._stages, self._keeping = dict(state["stages"]), threading.Lock()
        self._began = time.monotonic() - self.seconds_before
        self._due = time.monotonic() + SECONDS_BETWEEN

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    @property
    def holds_more(self) -> bool:
        return bool(self._waiting or self._stages)

    def found(self, stage: str) -> Any:
        return self._stages.get(stage)

    def keep(self, stage: str, state: Any) -> None:
        with self._keeping:
            self._stages[stage] = state
            if self.is_due:
                self._write()

    def train(self, structure: Any, seed: int, sites: SiteData, show_progress: bool) -> Trained:
        """What a Ctrl-C has cut short is not kept as a whole: its stages are."""
        if self._waiting:
            return trained_of(self._waiting.pop(0), sites)
        trained = structure.train(seed, sites, show_progress, self)
        if not trained.interrupted:
            self._trained.append(state_of_trained(trained))
            self._stages = {}
        self._write()
        return trained

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def in_words(self) -> str:
        n_trained = len(self._trained)
        whole = "1 trained structure" if n_trained == 1 else f"{n_trained} trained structures"
        part = " and a part of the next" if self._stages else ""
        return f"{whole}{part}, after {self.seconds_before:.0f} s of training"

    def _write(self) -> None:
        """Replace the file. A full disk is no reason to end the fit."""
        began, arrays = time.monotonic(), list[np.ndarray]()
        state = {
            "facts": self._facts,
            "seed": self.seed,
            "seconds": began - self._began,
            "trained": self._trained,
            "stages": self._stages,
        }
        fit = codec.encode(state, arrays)
        try:
            archive.write(self._path, {"format": FORMAT, "deepemu": _version(), "fit": fit}, arrays)
        except OSError as error:
            warn(
                f"{self._path} cannot be written ({error.strerror}); the fit goes on, but another "
                "process could not go on from here.",
                DeepemuWarning,
            )
        now = time.monotonic()
        self._due = now + max(SECONDS_BETWEEN, TIMES_THE_WRITE * (now - began))


def opened(
    path: PathLike, kind: str, settings: dict[str, Any], runs: Runs, seed: int, says: bool
) -> Checkpoint:
    """The checkpoint at ``path``, of an earlier fit with the same settings and runs or of a new one
    with this seed; an `InputError` if the fit was another one."""
    is_path = isinstance(path, str | os.PathLike)
    require_value(is_path, "checkpoint", path, "the name of a file or None")
    require_writable(path)
    facts = _facts(kind, settings, runs)
    codec.encode(facts, [])  # raises for what cannot be stored, before anything is trained
    if not Path(path).exists():
        state: State = {"seed": seed, "seconds": 0.0, "trained": [], "stages": {}}
        return Checkpoint(path, facts, state)
    state = _read(path)
    _require_same(path, state["facts"], facts)
    found = Checkpoint(path, facts, state)
    if says:
        say(f"going on from {path}: {found.in_words()}")
    return found


def _facts(kind: str, settings: dict[str, Any], runs: Runs) -> dict[str, Any]:
    """What decides the result of a fit, by names for a message."""
    deciding = {name: value for name, value in settings.items() if name not in MAY_DIFFER}
    return {
        "estimator": kind,
        "X": _digest(runs.x),
        "y": _digest(runs.y),
        **({} if runs.known is None else {"known of rows": _digest(runs.known)}),
        "names of columns": runs.columns.inputs,
        "kind of device": current().platform,
        **deciding,
    }


def _digest(values: np.ndarray) -> str:
    return f"{values.shape} {hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()}"


def _version() -> str:
    return version("deepemu")


def _read(path: PathLike) -> State:
    try:
        header, arrays = archive.read(path)
        if header["format"] != FORMAT:
            raise ValueError("its format is another one")
        if header["deepemu"] == _version():
            return codec.decode(header["fit"], arrays)
    except OSError:
        raise
    except Exception as error:  # a forged header may raise anything
        raise FileError(
            f"{os.fspath(path)} is not the checkpoint of a fit, or is damaged; delete it or name "
            "another file."
        ) from error
    _refuse(path, ["version of deepemu"])


def _require_same(path: PathLike, of_file: dict[str, Any], facts: dict[str, Any]) -> None:
    names = dict.fromkeys([*facts, *of_file])
    differ = [name for name in names if not _are_equal(of_file.get(name), facts.get(name))]
    if differ:
        _refuse(path, differ)


def _are_equal(one: Any, other: Any) -> bool:
    (tree, arrays), (other_tree, others) = _encoded(one), _encoded(other)
    return tree == other_tree and all(map(np.array_equal, arrays, others))


def _encoded(value: Any) -> tuple[Any, list[np.ndarray]]:
    arrays: list[np.ndarray] = []
    return codec.encode(value, arrays), arrays


def _refuse(path: PathLike, differ: Iterable[str]) -> NoReturn:
    """Name what differs, as the front end writes it."""
    first, *others = (Setting(name) for name in differ)
    listed = [part for each in others for part in (", another ", each)]
    raise InputError(
        Message(
            f"{os.fspath(path)} is the checkpoint of a fit with another ", first, *listed,
            "; delete it or name another file.",
        )
    )  # fmt: skip
