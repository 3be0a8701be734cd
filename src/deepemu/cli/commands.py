"""The commands, each as `arguments.PURPOSES` describes it."""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from deepemu.cli import html_report, outputs, tables
from deepemu.cli.arguments import SUFFIX, build_parser
from deepemu.cli.messages import is_talkative, say, show_rows
from deepemu.cli.outputs import Collected, CsvOutput, Output
from deepemu.cli.settings import estimator_of, in_arguments
from deepemu.cli.tables import Source, Table
from deepemu.diagnostics import nrmsep
from deepemu.errors import DeepemuWarning, FileError, warn
from deepemu.estimators.base import BaseEmulator
from deepemu.files.atomic import require_writable
from deepemu.files.persistence import load, save
from deepemu.plots.style import digits_apart
from deepemu.posterior.comparison import Comparison
from deepemu.posterior.summary import Line
from deepemu.runtime.progress import Progress

ADDED = ("mean", "std", "lower", "upper")
# Most structures and outputs that a fit shows; `info` and `validate` show all.
MOST_SHOWN = 3
LEAST_NOISE_SHOWN = 0.005
Found = tuple[str, dict[str, Any]]
"""The result of a command: text for a reader, if any is left to be shown, JSON for a program."""


def fit(options: argparse.Namespace) -> Found:
    estimator, table = estimator_of(options, is_talkative(options)), tables.read(options.runs)
    inputs = _inputs(table, options.inputs, options.output)
    x, y = table.numbers(inputs), table.numbers(options.output)
    if len(table) == 1:
        raise FileError(f"{options.runs} has one run; a fit needs at least two different ones.")
    target = options.emulator or Path(options.runs).with_suffix(SUFFIX)
    _require_other(target, options.runs)
    _require_no_table(target)
    require_writable(target)
    say(options, f"fitting {len(x)} runs of {len(inputs)} input(s) ...")
    began = time.monotonic()
    emulator = estimator.fit(x, y[:, 0] if y.shape[1] == 1 else y)
    emulator.name_columns(inputs, options.output)
    save(emulator, target)
    seconds = time.monotonic() - began
    facts = {"file": str(target), **_facts(emulator), "seconds": round(seconds, 1)}
    return "\n".join(_findings(emulator, target, seconds)), facts


def predict(options: argparse.Namespace) -> Found:
    emulator, target = load(options.emulator), options.predictions
    if target is not None:
        _require_other(target, options.new, options.emulator)
        outputs.require_format(target)
        require_writable(target)
    with tables.opened(options.new) as new, _output_of(options) as output:
        n_rows = _note_extrapolation(emulator, _usable_parts(emulator, new, output))
        with Progress("predicting", n_rows, _shows_rows(options, n_rows)) as progress:
            for part in new.parts():
                x = part.numbers(emulator.input_names)
                output.add(part.columns, _prediction_columns(emulator, x, options.level))
                progress.advance(len(x))
    facts = {"rows": n_rows, "level": options.level}
    if target is not None:
        return f"wrote {n_rows} predictions to {target}", facts | {"file": str(target)}
    return "", facts | {"predictions": output.typed()} if isinstance(output, Collected) else facts


def _output_of(options: argparse.Namespace) -> AbstractContextManager[Output]:
    """Where predictions go: a file, the JSON object, or standard output."""
    if options.predictions is not None:
        return outputs.to_file(options.predictions)
    return nullcontext(Collected() if options.json else CsvOutput(show_rows))


def _usable_parts(emulator: BaseEmulator, new: Source, output: Output) -> Iterator[np.ndarray]:
    """The inputs of a table, part by part; that all of it can be used is known before the first
    prediction."""
    for part in new.parts():
        yield part.numbers(emulator.input_names)
        _require_new_columns(emulator, part)
        output.expect(part.columns)


def _shows_rows(options: argparse.Namespace, n_rows: int) -> bool:
    """Whether to show how many rows are predicted: not between rows on a terminal."""
    is_apart = options.predictions is not None or not sys.stdout.isatty()
    return is_talkative(options) and is_apart and n_rows > tables.ROWS_OF_PART


def validate(options: argparse.Namespace) -> Found:
    emulator = load(options.emulator)
    if options.runs is None:
        shown, what = emulator.compared_runs(), "training runs, each predicted without it"
    else:
        table = tables.read(options.runs)
        x, truth = table.numbers(emulator.input_names), table.numbers(emulator.output_names)
        _note_extrapolation(emulator, [x])
        shown, what = emulator.posterior_.compared(x, truth), f"runs of {options.runs}"
    found, n_rows = _scores_by_output(emulator.output_names, shown), len(shown.y)
    return _scores_in_words(found, n_rows, what), {"rows": n_rows, "scores": found}


def info(options: argparse.Namespace) -> Found:
    emulator = load(options.emulator)
    facts = {"file": str(options.emulator), **_facts(emulator)}
    lines = [
        f"{facts['kind']} fitted to {facts['rows']} runs",
        *_ranges_in_words("input", facts["inputs"]),
        *_ranges_in_words("output", facts["outputs"]),
    ]
    remarks = [f"note: {remark}" for remark in emulator.posterior_.caveats]
    summary = [in_arguments(line) for line in emulator.summary().text_lines()]
    return "\n".join([*lines, *remarks, "", *summary]), facts


def report(options: argparse.Namespace) -> Found:
    emulator = load(options.emulator)
    target = options.page or options.emulator.with_suffix(".html")
    _require_no_table(target)
    _require_other(target, options.emulator)
    require_writable(target)
    with Progress("predicting", 1, is_talkative(options)) as progress:
        html_report.write(emulator, target, options.title or options.emulator.stem, progress.reach)
    return f"wrote {target}", {"file": str(target)}


def demo(options: argparse.Namespace) -> Found:
    folder = Path(options.folder)
    if options.folder.startswith("-"):
        raise FileError(f"{folder} looks like an option; name a folder without the dash.")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileError(f"{folder} is not empty; name a new folder for the example.")
    runs, new, emulator, out = (
        str(folder / name) for name in ("runs.csv", "new.csv", "step.deepemu", "predictions.csv")
    )
    x, at = np.linspace(0, 1, 12), np.linspace(0, 1, 41)
    height = np.where(x < 0.5, -1.0, 1.0)
    outputs.write(runs, {"position": x.tolist(), "height": height.tolist()})
    outputs.write(new, {"position": at.tolist()})
    for command in (
        ["fit", runs, "--output", "height", "-o", emulator],
        ["predict", emulator, new, "-o", out],
        ["validate", emulator],
    ):
        say(options, "$ deepemu " + " ".join(command))
        step = build_parser().parse_args(command)
        step.quiet, step.json = options.quiet, options.json
        text, _ = COMMANDS[step.command](step)
        say(options, text + "\n")
    files = [runs, new, emulator, out]
    return f"look into {out}", {"files": files}


COMMANDS: dict[str, Callable[[argparse.Namespace], Found]] = {
    each.__name__: each for each in (fit, predict, validate, info, report, demo)
}


def _inputs(table: Table, inputs: Sequence[str] | None, outputs: Sequence[str]) -> list[str]:
    table.require(outputs)
    chosen = [n for n in table.names if n not in outputs] if inputs is None else list(inputs)
    table.require(chosen)
    twice = [name for name in dict.fromkeys(chosen) if name in outputs or chosen.count(name) > 1]
    if twice or len(set(outputs)) < len(outputs):
        raise FileError("A column is named twice; name each input and each output once.")
    if not chosen:
        raise FileError(f"{table.source} has no column besides the output; add the inputs.")
    taken = [name for name in _added(outputs) if name in chosen]
    if taken:
        raise FileError(f"{taken[0]!r} is reserved for predictions; rename the input.")
    return chosen


def _added(outputs: Sequence[str]) -> list[str]:
    """The columns that predictions of some outputs have."""
    return [f"{name}_{what}" for name in outputs for what in ADDED]


def _require_other(target: Path, *sources: Path) -> None:
    if os.path.realpath(target) in map(os.path.realpath, sources):
        raise FileError(f"{target} is an input file; name another file to write to.")


def _require_no_table(target: Path) -> None:
    """Refuse to replace the user's runs by mistake."""
    if tables.is_table(target):
        raise FileError(
            f"{target} has the extension of a table, but would not be one; name another file."
        )


def _require_new_columns(emulator: BaseEmulator, table: Table) -> None:
    taken = [name for name in _added(emulator.output_names) if name in table.columns]
    if taken:
        raise FileError(
            f"{table.source} already has a column {taken[0]!r}, which predictions would replace; "
            "rename or remove it."
        )


def _findings(emulator: BaseEmulator, target: Path, seconds: float) -> Iterator[str]:
    """What a user needs after a fit, in about ten lines."""
    file = shlex.quote(str(target))
    yield from _labelled("Weights:", _weights_in_words(emulator))
    yield from _labelled("Check:  ", _check_in_words(emulator, file))
    yield from _labelled("File:   ", [f"wrote {target} after {seconds:.0f} s"])
    yield from _labelled(
        "Next:   ",
        [
            f"deepemu predict {file} new.csv -o predictions.csv",
            f"deepemu info {file}   (all scores and diagnostics)",
        ],
    )


def _labelled(label: str, lines: Sequence[str]) -> Iterator[str]:
    """The label stands before the first line."""
    for number, line in enumerate(lines):
        yield f"{label if number == 0 else ' ' * len(label)} {line}"


def _weights_in_words(emulator: BaseEmulator) -> list[str]:
    """The structures of the largest weights, without those that round to zero."""
    *structures, _ = emulator.summary().lines
    shown = [line for line in structures if line.weight >= 0.005]
    heaviest = sorted(shown, key=lambda line: -line.weight)[:MOST_SHOWN]
    return [f"{100 * line.weight:3.0f} %  {line.label}{_noise_of(line)}" for line in heaviest]


def _noise_of(line: Line) -> str:
    shown = line.noise is not None and line.noise >= LEAST_NOISE_SHOWN
    return f", noise of {line.noise:.1g} sd of the output" if shown else ""


def _check_in_words(emulator: BaseEmulator, file: str) -> list[str]:
    """How far held-out predictions were off, and how many intervals held the truth."""
    if emulator.summary().lines[-1].crps is None:
        return [
            "no runs were held out, so nothing checks the intervals; --model auto holds runs out"
        ]
    names, truth = emulator.output_names, emulator.training_outputs
    found = _scores_by_output(names, emulator.compared_runs())
    lines = ["each run was predicted by models trained without it (errors: root mean square)"]
    for name, column in list(zip(names, truth.T, strict=True))[:MOST_SHOWN]:
        lines.append(_output_in_words(name, column, found[name]))
    more = len(names) - MOST_SHOWN
    return [*lines, f"and {more} more: deepemu validate {file}"] if more > 0 else lines


def _output_in_words(name: str, column: np.ndarray, found: dict[str, float | None]) -> str:
    inside = round(float(found["coverage"] or 0.0) * len(column))
    expected = round(0.95 * len(column))
    error = ""
    if found["nrmsep"] is not None:
        size = found["nrmsep"] * np.ptp(column)
        error = f"typical error {size:.2g} ({_percent(found['nrmsep'])} of its range), "
    share = f"{inside} of {len(column)} inside their 95 % interval ({expected} expected)"
    return f"{name}: {error}{share}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _prediction_columns(
    emulator: BaseEmulator, x: np.ndarray, level: float
) -> dict[str, list[float]]:
    found = emulator.posterior_.bands(x, level)
    columns = dict(zip(ADDED, (found.mean, found.std, found.low, found.high), strict=True))
    return {
        f"{name}_{what}": values[:, k].tolist()
        for k, name in enumerate(emulator.output_names)
        for what, values in columns.items()
    }


def _note_extrapolation(emulator: BaseEmulator, parts: Iterable[np.ndarray]) -> int:
    """The number of rows of inputs that come in parts, with a warning if some lie outside the range
    of the runs."""
    low, high = emulator.posterior_.runs.input_range
    n_rows, n_outside, columns = 0, 0, np.zeros(len(low), bool)
    for x in parts:
        outside = (x < low) | (x > high)
        n_rows, n_outside = n_rows + len(x), n_outside + int(outside.any(axis=1).sum())
        columns |= outside.any(axis=0)
    if n_outside:
        names = [emulator.input_names[k] for k in np.flatnonzero(columns)]
        warn(
            f"{n_outside} of {n_rows} rows lie outside the range of the runs in "
            f"{', '.join(names)}: there the emulator extrapolates.",
            DeepemuWarning,
        )
    return n_rows


def _facts(emulator: BaseEmulator) -> dict[str, Any]:
    summary = emulator.summary()
    *structures, mixture = summary.lines
    return {
        "kind": type(emulator).__name__,
        "rows": len(emulator.training_inputs),
        "inputs": _ranges(emulator.input_names, emulator.training_inputs),
        "outputs": _ranges(emulator.output_names, emulator.training_outputs),
        "weights": {line.label: line.weight for line in structures},
        "held_out": {"crps": mixture.crps, "coverage": mixture.coverage},
        "troubles": [
            *map(in_arguments, summary.troubles),
            *emulator.posterior_.caveats,
        ],
    }


def _ranges(names: Sequence[str], columns: np.ndarray) -> dict[str, list[float]]:
    return {
        name: [float(column.min()), float(column.max())]
        for name, column in zip(names, columns.T, strict=True)
    }


def _ranges_in_words(what: str, ranges: dict[str, list[float]]) -> Iterator[str]:
    for name, (low, high) in ranges.items():
        digits = int(np.clip(digits_apart(low, high), 6, 17))
        yield f"  {what} {name}: {low:.{digits}g} to {high:.{digits}g}"


def _scores_by_output(
    names: Sequence[str], shown: Comparison
) -> dict[str, dict[str, float | None]]:
    return {name: _scores(shown.of_output(k)) for k, name in enumerate(names)}


def _scores(shown: Comparison) -> dict[str, float | None]:
    """The scores; those that are divided by the range of the outputs only if they have one."""
    span, crps = float(np.ptp(shown.y)), float(np.mean(shown.crps))
    varies = span > 0.0
    return {
        "nrmsep": nrmsep(shown.y, shown.mean) if varies else None,
        "crps": crps,
        "normalised_crps": crps / span if varies else None,
        "coverage": float(np.mean(shown.rank.inside())),
    }


def _scores_in_words(found: dict[str, dict[str, float | None]], n: int, what: str) -> str:
    width = max(len("output"), *map(len, found))
    lines = [
        f"{n} {what} (CRPS in the units of the output):",
        f"{'output':{width}}  NRMSEP      CRPS  in 95 %",
    ]
    for name, of in found.items():
        error = "-" if of["nrmsep"] is None else f"{of['nrmsep']:.4f}"
        lines.append(f"{name:{width}}  {error:>6}  {of['crps']:8.4g}  {of['coverage']:7.1%}")
    return "\n".join(lines)
