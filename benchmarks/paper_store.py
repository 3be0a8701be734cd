"""Trials of ``paper.py`` as files: one each while they run, and the table that holds them all.

A trial's file is there whole or not at all. One that is damaged, or has another trial's name, is
left out with a line that says so.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from problems import load_design

TABLE, PREDICTIONS = "paper.csv", "paper_predictions.npz"
DESIGN = 0

Record = dict[str, Any]


class Trial(NamedTuple):
    """One fit and prediction; depth 0 where the method has none of its own."""

    problem: str
    method: str
    depth: int
    number: int

    @property
    def name(self) -> str:
        return f"{self.problem}-{self.method}-{self.depth}-{self.number:03d}"


def store(
    folder: Path, trial: Trial, seconds: Record, facts: Record, mean: np.ndarray, std: np.ndarray
) -> None:
    """The trial's file, whole or not at all."""
    from deepemu._atomic import replacing
    from deepemu.diagnostics import scores

    found = scores(load_design(trial.problem, DESIGN).y_test, mean, std)
    record = {**trial._asdict(), **found, **seconds, **facts}
    with replacing(path_of(folder, trial)) as file:
        np.savez(file, record=json.dumps(record), mean=mean, std=std)


def path_of(folder: Path, trial: Trial) -> Path:
    return folder / f"{trial.name}.npz"


class Stored(NamedTuple):
    record: Record
    mean: np.ndarray
    std: np.ndarray


def trial_of(record: Record) -> Trial:
    return Trial(*(record[field] for field in Trial._fields))


def read_trial(path: Path) -> Stored | None:
    """What is in a trial's file; None where there is none, or it is damaged or another trial's."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            found = Stored(json.loads(str(arrays["record"])), arrays["mean"], arrays["std"])
        whole = trial_of(found.record).name == path.stem
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile):
        return None
    return found if whole else None


def stored(folder: Path) -> Iterator[Stored]:
    for path in sorted(folder.glob("*.npz")):
        found = read_trial(path)
        if found is None:
            print(f"{path} is not the file of a whole trial and is left out", file=sys.stderr)
        else:
            yield found


def write_table(found: Sequence[Stored], folder: Path) -> None:
    """One table of all records, and the predictions that are drawn.

    Of the step function those of all trials, of everything else those of the best one.
    """
    rows = [each.record for each in found]
    with (folder / TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows({k: rounded(v) for k, v in row.items()} for row in rows)
    np.savez_compressed(folder / PREDICTIONS, **drawn(found))


def n_rows(folder: Path) -> int:
    """Of the table there; 0 where there is none."""
    try:
        with (folder / TABLE).open(newline="", encoding="utf-8") as file:
            return sum(1 for _ in csv.DictReader(file))
    except FileNotFoundError:
        return 0


def rounded(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def error_in_table(record: Record) -> float:
    """With the digits of the table: by them the figures find the best trial again."""
    return float(rounded(record["nrmsep"]))


def drawn(found: Sequence[Stored]) -> dict[str, np.ndarray]:
    """Single-precision arrays (2, points) by the trial's name."""
    best: dict[tuple[Any, ...], Stored] = {}
    kept: list[Stored] = []
    for each in found:
        record = each.record
        key = record["problem"], record["method"], record["depth"]
        if record["problem"] == "step":
            kept.append(each)
        elif key not in best or error_in_table(record) < error_in_table(best[key].record):
            best[key] = each
    return {
        trial_of(each.record).name: np.float32([each.mean, each.std])
        for each in [*kept, *best.values()]
    }
