"""Trials of ``paper.py`` as files: one each while they run, and the table that holds them all.

A trial's file is there whole or not at all. One that is damaged, or has another trial's name, is
left out with a line that says so.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from problems import load_design
from scipy.stats import spearmanr

TABLE, PREDICTIONS = "paper.csv", "paper_predictions.npz"
ACCEPTANCES, TIMES = "paper_acceptances.csv", "paper_times.csv"
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
    from deepemu.diagnostics import scores
    from deepemu.files.atomic import replacing

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
    from deepemu.files.atomic import replacing

    rows = [each.record | spread_statistics(each) for each in found]
    with replacing(folder / PREDICTIONS) as file:
        np.savez_compressed(file, **drawn(found))
    with replacing(folder / TABLE) as file:
        write_rows(file, rows)


def write_rows(file: IO[bytes], rows: Sequence[Record]) -> None:
    """Lines of a table that has the columns of all rows."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows({k: rounded(v) for k, v in row.items()} for row in rows)
    text.detach()


def fill(path: Path, trials: Sequence[Trial], found_in: Callable[[Trial], Record]) -> None:
    """A table with a row a trial and what is found in it; one that is there is kept."""
    from deepemu.files.atomic import replacing

    if path.exists():
        print(f"{path} is there and is kept; remove it to have it made again")
        return
    rows = []
    for trial in trials:
        rows.append(trial._asdict() | found_in(trial))
        print(f"{len(rows)}/{len(trials)}: {trial.name}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        write_rows(file, rows)


def names_in(folder: Path) -> set[str]:
    """The trials of the table there; none where there is no table."""
    try:
        with (folder / TABLE).open(newline="", encoding="utf-8") as file:
            return {
                Trial(row["problem"], row["method"], int(row["depth"]), int(row["number"])).name
                for row in csv.DictReader(file)
            }
    except FileNotFoundError:
        return set()


# --- what is said of standard deviations ---------------------------------------------------------


def at_the_money(delta: np.ndarray) -> np.ndarray:
    return (delta > 0.1) & (delta < 0.9)


def upper_tenth(values: np.ndarray) -> np.ndarray:
    return values >= np.quantile(values, 0.9)


# Where the response varies most, by its true value.
REGIONS = {
    "vega": upper_tenth,
    "delta": at_the_money,
    "gamma": upper_tenth,
    "engine": upper_tenth,
}


def spread_statistics(trial: Stored) -> dict[str, float]:
    """Numbers that tell where a trial's standard deviations are large."""
    problem = trial.record["problem"]
    data = load_design(problem, DESIGN)
    if problem == "step":
        return on_the_step(data.X_test[:, 0], trial.std)
    found = against_errors(data.y_test, trial)
    if problem in REGIONS:
        found |= in_the_region(REGIONS[problem](data.y_test), data.y_test, trial)
    if problem == "fived":
        found |= at_zeros(data.y_test, trial)
    return found


def on_the_step(x: np.ndarray, std: np.ndarray) -> dict[str, float]:
    """Mean standard deviation between the runs on either side of the jump, and next to the runs."""
    nearest = np.abs(x[:, None] - np.linspace(0, 1, 10)).argmin(axis=0)
    beside_the_jump = np.abs(x - 0.5) < 1 / 18
    return {
        "jump_std": float(std[beside_the_jump].mean()),
        "runs_std": float(std[nearest].mean()),
    }


def at_the_runs(std: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Largest standard deviation at a run, over the range of the outputs of all runs."""
    return {"std_at_runs": float(np.max(std) / np.ptp(y))}


def against_errors(truth: np.ndarray, trial: Stored) -> dict[str, float]:
    """Rank correlation of standard deviation and error, and the mean standard deviation, scaled to
    [0, 1], over the tenth with the largest errors; nothing where all are the same."""
    if np.ptp(trial.std) == 0:
        return {}
    error = np.abs(trial.mean - truth)
    scaled = (trial.std - trial.std.min()) / np.ptp(trial.std)
    return {
        "std_follows_error": float(spearmanr(error, trial.std).statistic),
        "std_where_wrong": float(scaled[upper_tenth(error)].mean()),
    }


def in_the_region(there: np.ndarray, truth: np.ndarray, trial: Stored) -> dict[str, float]:
    """Mean standard deviation there over that elsewhere, and coverage there."""
    from deepemu.diagnostics import coverage

    return {
        "region_ratio": float(trial.std[there].mean() / trial.std[~there].mean()),
        "region_coverage": coverage(truth[there], trial.mean[there], trial.std[there]),
    }


def at_zeros(truth: np.ndarray, trial: Stored) -> dict[str, float]:
    """Median standard deviation where a response is taken for zero that is none, over that of all
    points; nothing where no response is."""
    span = np.ptp(truth)
    mistaken = (truth > 0.1 * span) & (np.abs(trial.mean) < 0.02 * span)
    if not mistaken.any():
        return {}
    return {"zeros_ratio": float(np.median(trial.std[mistaken]) / np.median(trial.std))}


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
