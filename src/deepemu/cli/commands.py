"""The command ``deepemu``: from a table of runs to predictions with intervals."""

import argparse
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from scipy.special import ndtri

from deepemu.cli import html_report, tables
from deepemu.cli.tables import Columns, Table
from deepemu.core.kernels import families
from deepemu.diagnostics import coverage, crps, scores
from deepemu.errors import (
    DeepemuError,
    DeepemuWarning,
    FileError,
    InputError,
    InterruptedFitWarning,
)
from deepemu.estimators.base import BaseEmulator
from deepemu.estimators.dgp import DGP
from deepemu.estimators.emulator import Emulator
from deepemu.estimators.gp import GP
from deepemu.files.atomic import require_writable
from deepemu.files.persistence import load, save
from deepemu.plots.style import digits_apart
from deepemu.runtime.cache import use_compilation_cache
from deepemu.runtime.progress import Progress

SUFFIX = ".deepemu"
UNUSABLE, WRONG_ARGUMENTS, INTERRUPTED = 1, 2, 130
MOST = 1_000_000  # chains or iterations; nobody waits for more
ADDED = ("mean", "std", "lower", "upper")
DESCRIPTION = """\
Emulate an expensive simulator: learn from a table of its runs, predict new ones with intervals.

  deepemu fit runs.csv --output y -o pump.deepemu      learn y from all other columns
  deepemu predict pump.deepemu new.csv -o out.csv      mean, std and 95 % interval of each row
  deepemu info pump.deepemu                            what was found, and how far to trust it
"""
EPILOG = """\
Tables are CSV files with the columns' names in the first line, or Parquet files. Exit codes: 0
done, 1 a file or its contents cannot be used, 2 wrong arguments, 130 interrupted (what a fit had
trained is kept). Compiled programs are kept in your cache folder (deepemu/xla in $XDG_CACHE_HOME
or ~/.cache): later runs start faster.
"""
EXAMPLES = {
    "fit": """\
examples:
  deepemu fit runs.csv --output y                          compare structures, write runs.deepemu
  deepemu fit runs.csv --output drag lift --inputs mach alpha -o wing.deepemu
  deepemu fit runs.csv --output y --noise                  the simulator is random
  deepemu fit runs.csv --output y --model dgp --depth 3    one deep structure, no comparison
""",
    "predict": """\
examples:
  deepemu predict pump.deepemu new.csv -o out.csv          new.csv with four columns more
  deepemu predict pump.deepemu new.csv --level 0.5         to the terminal, with 50 % intervals

The columns y_mean, y_std, y_lower and y_upper are added for an output y; all others are kept.
""",
    "validate": """\
examples:
  deepemu validate pump.deepemu                            runs of the fit, each without it
  deepemu validate pump.deepemu later.csv                  runs that were made afterwards

NRMSEP is the root-mean-square error divided by the range of the output. CRPS carries the absolute
error over to predictions with a spread, in units of the output: it asks for means that are close
and for intervals that are no wider than need be. Good intervals of 95 % hold about 95 % of the
runs.
""",
    "info": "example:\n  deepemu info pump.deepemu\n",
    "report": "example:\n  deepemu report pump.deepemu -o pump.html --title 'Pump, May runs'\n",
    "demo": "example:\n  deepemu demo\n",
}
# What the package's sentences call a setting, and what it is here.
ARGUMENTS = {"n_chains": "--chains", "n_iter": "--iterations", "max_depth": "--depth"}
PHRASES = {
    "pass nugget='estimate'": "fit with --noise",
    ", or pass stacking=False to do without": "",
    "pass device='cpu'": "leave --device out",
    "device is": "--device is",
    "pass device='gpu'": "fit with --device gpu",
    "the row where loo() is furthest off": "the run that the report shows furthest off",
    "(Emulator holds rows out; so": "(--model auto holds rows out; so",
    "does DGP with stacking=True, four chains": "does --model dgp with four chains",
}


def run() -> None:
    """The entry point of the installed command."""
    sys.exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (Exception, KeyboardInterrupt) as error:
        return _excused(error)


def _run(options: argparse.Namespace) -> int:
    if sys.stdout is None:
        raise FileError("Standard output is closed; give the command somewhere to write to.")
    with _warnings_in_one_line() as warned:
        _keep_programs()
        text, facts = options.command(options)
    _print(options, text, facts | {"warnings": [_in_arguments(str(each)) for each in warned]})
    interrupted = any(isinstance(each, InterruptedFitWarning) for each in warned)
    return INTERRUPTED if interrupted else 0


def _excused(error: BaseException) -> int:
    """One sentence about what went wrong; the exit code."""
    match error:
        case KeyboardInterrupt():
            _complain("interrupted; nothing was written.")
            return INTERRUPTED
        case BrokenPipeError():  # whoever read our output has seen enough
            sys.stdout = open(os.devnull, "w")
            return 0
        case OSError():
            _complain(f"{error.filename or 'file'}: {error.strerror or error}.")
        case _WrongArgumentsError():
            _complain(str(error))
            return WRONG_ARGUMENTS
        case InputError():
            _complain(_in_arguments(str(error)))
        case DeepemuError() | ValueError() | ImportError():
            _complain(str(error))
        case _ if os.environ.get("DEEPEMU_TRACEBACK"):
            raise error
        case _:
            _complain(
                f"{type(error).__name__}: {error}. That should not happen: please report it with "
                "what DEEPEMU_TRACEBACK=1 in the environment shows."
            )
    return UNUSABLE


class _WrongArgumentsError(DeepemuError):
    """Arguments that are right one by one and do not go together."""


Found = tuple[str, dict[str, Any]]
"""What a command has to say: to a reader, and to a program."""


def _keep_programs() -> None:
    """In the user's cache folder, if it can be written: it only saves time."""
    try:
        use_compilation_cache()
    except InputError as error:
        warnings.warn(f"{error} Set XDG_CACHE_HOME to it.", DeepemuWarning, stacklevel=2)


def fit(options: argparse.Namespace) -> Found:
    """Learn from a table of runs and keep the emulator in a file."""
    estimator, table = _estimator(options), tables.read(options.runs)
    inputs = _inputs(table, options.inputs, options.output)
    x, y = table.numbers(inputs), table.numbers(options.output)
    if len(table) == 1:
        raise FileError(f"{options.runs} has one run; a fit needs at least two different ones.")
    target = options.emulator or Path(options.runs).with_suffix(SUFFIX)
    _require_other(target, options.runs)
    _require_no_table(target)
    require_writable(target)
    _say(options, f"fitting {len(x)} runs of {len(inputs)} input(s) ...")
    began = time.monotonic()
    emulator = estimator.fit(x, y[:, 0] if y.shape[1] == 1 else y)
    emulator.name_columns(inputs, options.output)
    save(emulator, target)
    seconds = time.monotonic() - began
    facts = {"file": str(target), **_facts(emulator), "seconds": round(seconds, 1)}
    text = f"{_in_arguments(str(emulator.summary()))}\n\nwrote {target} after {seconds:.0f} s"
    return text, facts


def predict(options: argparse.Namespace) -> Found:
    """Predict the rows of a table: mean, standard deviation and interval of each output."""
    emulator, table = load(options.emulator), tables.read(options.new)
    if options.predictions is not None:
        _require_other(options.predictions, options.new, options.emulator)
        tables.require_format(options.predictions)
        require_writable(options.predictions)
    x = table.numbers(emulator.input_names)
    _require_new_columns(emulator, table)
    _note_extrapolation(emulator, x)
    columns: Columns = {**table.columns, **_prediction_columns(emulator, x, options.level)}
    facts = {"rows": len(x), "level": options.level}
    if options.predictions is None:
        return tables.csv_text(columns).rstrip("\n"), facts | {"predictions": tables.typed(columns)}
    tables.write(options.predictions, columns)
    text = f"wrote {len(x)} predictions to {options.predictions}"
    return text, facts | {"file": str(options.predictions)}


def validate(options: argparse.Namespace) -> Found:
    """Compare predictions with runs of known outputs; without a table, with left-out ones."""
    emulator = load(options.emulator)
    if options.runs is None:
        truth, (mean, std) = emulator.training_outputs, emulator._left_out_rows()
        what = "training runs, each predicted without it"
    else:
        table = tables.read(options.runs)
        x, truth = table.numbers(emulator.input_names), table.numbers(emulator.output_names)
        _note_extrapolation(emulator, x)
        (mean, std), what = emulator._predict_rows(x), f"runs of {options.runs}"
    found = {
        name: _scores(truth[:, k], mean[:, k], std[:, k])
        for k, name in enumerate(emulator.output_names)
    }
    return _scores_in_words(found, len(truth), what), {"rows": len(truth), "scores": found}


def info(options: argparse.Namespace) -> Found:
    """Say what is in a file: data, structures, votes, scores, warnings."""
    emulator = load(options.emulator)
    facts = {"file": str(options.emulator), **_facts(emulator)}
    lines = [
        f"{facts['kind']} fitted to {facts['rows']} runs",
        *_ranges_in_words("input", facts["inputs"]),
        *_ranges_in_words("output", facts["outputs"]),
    ]
    remarks = [f"note: {remark}" for remark in emulator._reservations()]
    summary = _in_arguments(str(emulator.summary()))
    return "\n".join([*lines, *remarks, "", summary]), facts


def report(options: argparse.Namespace) -> Found:
    """Write one HTML page about an emulator, to read and to send; it opens offline."""
    emulator = load(options.emulator)
    target = options.page or options.emulator.with_suffix(".html")
    _require_no_table(target)
    _require_other(target, options.emulator)
    require_writable(target)
    with Progress("predicting", 1, _tells(options)) as progress:
        html_report.write(emulator, target, options.title or options.emulator.stem, progress.reach)
    return f"wrote {target}", {"file": str(target)}


def demo(options: argparse.Namespace) -> Found:
    """Write a small example and run the commands on it."""
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
    tables.write(runs, {"position": x.tolist(), "height": height.tolist()})
    tables.write(new, {"position": at.tolist()})
    for command in (
        ["fit", runs, "--output", "height", "-o", emulator],
        ["predict", emulator, new, "-o", out],
        ["validate", emulator],
    ):
        _say(options, "$ deepemu " + " ".join(command))
        step = _parser().parse_args(command)
        step.quiet, step.json = options.quiet, options.json
        text, _ = step.command(step)
        _say(options, text + "\n")
    files = [runs, new, emulator, out]
    return f"look into {out}", {"files": files}


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
        raise FileError(f"{taken[0]!r} is what a prediction will be called; rename the input.")
    return chosen


def _added(outputs: Sequence[str]) -> list[str]:
    """The columns that predictions of some outputs have."""
    return [f"{name}_{what}" for name in outputs for what in ADDED]


MODELS: dict[str, type[BaseEmulator]] = {"auto": Emulator, "dgp": DGP, "gp": GP}


def _estimator(options: argparse.Namespace) -> BaseEmulator:
    kind = MODELS[options.model]
    known = kind().get_params()
    asked = {
        "max_depth" if options.model == "auto" else "depth": ("--depth", options.depth),
        "kernel": ("--kernel", options.kernel),
        "n_chains": ("--chains", options.chains),
        "n_iter": ("--iterations", options.iterations),
        "nugget": ("--noise", "estimate" if options.noise else None),
    }
    given = {name: each for name, each in asked.items() if each[1] is not None}
    for name, (argument, _) in given.items():
        if name not in known:
            raise _WrongArgumentsError(
                f"{argument} does not go with --model {options.model}; leave one of them out."
            )
    always = {"random_state": options.seed, "device": options.device, "verbose": _tells(options)}
    settings = {name: value for name, (_, value) in given.items()}
    return kind(**settings, **{name: each for name, each in always.items() if name in known})


def _require_other(target: Path, *sources: Path) -> None:
    if os.path.realpath(target) in map(os.path.realpath, sources):
        raise FileError(f"{target} is what is read; name another file to write to.")


def _require_no_table(target: Path) -> None:
    """A slip of the finger must not replace the user's runs."""
    if tables.is_table(target):
        raise FileError(f"{target} is named as a table, which would not be one; name another file.")


def _require_new_columns(emulator: BaseEmulator, table: Table) -> None:
    taken = [name for name in _added(emulator.output_names) if name in table.columns]
    if taken:
        raise FileError(
            f"{table.source} already has a column {taken[0]!r}, which predictions would replace; "
            "rename or remove it."
        )


def _prediction_columns(
    emulator: BaseEmulator, x: np.ndarray, level: float
) -> dict[str, list[float]]:
    mean, std = emulator._predict_rows(x)
    reach = ndtri((1.0 + level) / 2.0) * std
    columns = dict(zip(ADDED, (mean, std, mean - reach, mean + reach), strict=True))
    return {
        f"{name}_{what}": values[:, k].tolist()
        for k, name in enumerate(emulator.output_names)
        for what, values in columns.items()
    }


def _note_extrapolation(emulator: BaseEmulator, x: np.ndarray) -> None:
    low, high = emulator._input_range()
    outside = (x < low) | (x > high)
    if outside.any():
        names = [emulator.input_names[k] for k in np.flatnonzero(outside.any(axis=0))]
        warnings.warn(
            f"{int(outside.any(axis=1).sum())} of {len(x)} rows lie outside the range of the runs "
            f"in {', '.join(names)}: there the emulator extrapolates.",
            DeepemuWarning,
            stacklevel=2,
        )


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
        "troubles": [*summary.troubles, *emulator._reservations()],
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


def _scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float | None]:
    """The scores; those that are divided by the range of the outputs only if they have one."""
    if np.ptp(y) > 0.0:
        return dict(scores(y, mean, std))
    without = {"nrmsep": None, "normalised_crps": None}
    return without | {"crps": crps(y, mean, std), "coverage": coverage(y, mean, std)}


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


def _print(options: argparse.Namespace, text: str, facts: dict[str, Any]) -> None:
    if options.json:
        print(json.dumps(_without_nan(facts), default=str, allow_nan=False))
    elif not options.quiet or _is_asked_for(options):
        # A table that goes to a file or to another program is what it is.
        is_data = options.command is predict and not sys.stdout.isatty()
        print(text if is_data else _printable(text))


def _is_asked_for(options: argparse.Namespace) -> bool:
    """Whether what is printed is what the command is for, not a word about a file."""
    to_the_terminal = options.command is predict and options.predictions is None
    return to_the_terminal or options.command in (info, validate)


def _tells(options: argparse.Namespace) -> bool:
    """Whether the command says what it is doing."""
    return not (options.quiet or options.json)


def _say(options: argparse.Namespace, line: str) -> None:
    if _tells(options):
        print(_printable(line), flush=True)


def _complain(sentence: str) -> None:
    print(_printable(f"deepemu: {' '.join(sentence.split())}"), file=sys.stderr)


def _in_arguments(sentence: str) -> str:
    """The package's advice, with the arguments of the command for those of its functions."""
    for phrase, instead in PHRASES.items():
        sentence = sentence.replace(phrase, instead)
    names = "|".join(ARGUMENTS)
    return re.sub(
        rf"\b({names})\b(=?)", lambda m: ARGUMENTS[m[1]] + (" " if m[2] else ""), sentence
    )


def _printable(text: str) -> str:
    """Names from files must not steer the terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _without_nan(facts: Any) -> Any:
    """JSON has no numbers that are not finite."""
    if isinstance(facts, dict):
        return {name: _without_nan(each) for name, each in facts.items()}
    if isinstance(facts, list | tuple):
        return [_without_nan(each) for each in facts]
    return None if isinstance(facts, float) and not np.isfinite(facts) else facts


@contextmanager
def _warnings_in_one_line() -> Iterator[list[Warning | str]]:
    """The package's own warnings go to standard error as they come, and into the list."""
    told: list[Warning | str] = []

    def show(message: Warning | str, *_: Any) -> None:
        told.append(message)
        _complain(f"warning: {_in_arguments(str(message))}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", DeepemuWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield told


class _Parser(argparse.ArgumentParser):
    """Knows that ``--output y runs.csv`` takes the table for a column."""

    def error(self, message: str) -> NoReturn:
        forgotten = message.endswith("required: runs")
        hint = " (the table stands before --output and --inputs)" if forgotten else ""
        super().error(message + hint)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "deepemu", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=version("deepemu"))
    commands = parser.add_subparsers(required=True, metavar="command")
    add_fit(_command(commands, fit))
    add_predict(_command(commands, predict))
    add_validate(_command(commands, validate))
    _command(commands, info).add_argument("emulator", type=Path, help="a file of fit")
    add_report(_command(commands, report))
    _command(commands, demo).add_argument(
        "folder", nargs="?", default="deepemu-demo", help="where to write (default: %(default)s)"
    )
    return parser


def _command(commands: Any, function: Callable[..., Found]) -> argparse.ArgumentParser:
    words = str(function.__doc__)
    parser = commands.add_parser(
        function.__name__, help=words, description=words, epilog=EXAMPLES[function.__name__],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(command=function)
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print no more than is asked for"
    )
    return parser


def add_fit(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", type=Path, help="CSV or Parquet table, one row a run")
    add("--output", nargs="+", required=True, metavar="COLUMN", help="column(s) to predict")
    add("--inputs", nargs="+", metavar="COLUMN", help="columns to learn from (default: all others)")
    add("-o", dest="emulator", type=Path, help=f"file to write (default: the table's name{SUFFIX})")
    what = "auto compares plain and deep Gaussian processes (default); dgp is deep, gp plain"
    add("--model", choices=tuple(MODELS), default="auto", help=what)
    add("--depth", type=_whole, help="layers of dgp, or the most that auto tries (default: 2)")
    add(
        "--kernel", choices=families.NAMES,
        help="how smooth the outputs are, for dgp and gp (default: matern52)",
    )  # fmt: skip
    add("--noise", action="store_true", help="the simulator is noisy: estimate how much")
    add("--chains", type=_whole, help="chains of each deep structure (default: 8)")
    add("--iterations", type=_whole, help="iterations of each chain (default: 200)")
    add(
        "--seed", type=_seed, default=0,
        help="the same seed gives the same emulator; another, other random numbers (default: 0)",
    )  # fmt: skip
    add(
        "--device", choices=("auto", "cpu", "gpu"), default="auto",
        help="auto takes a GPU where there is one and the fit is large enough for it (default)",
    )  # fmt: skip


def add_predict(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("emulator", type=Path, help="a file of fit")
    add("new", type=Path, help="CSV or Parquet table with the input columns")
    add("-o", dest="predictions", type=Path, help="table to write (default: CSV to the terminal)")
    add(
        "--level",
        type=_share,
        default=0.95,
        help="share of runs that the intervals should hold (default: 0.95)",
    )


def add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("emulator", type=Path, help="a file of fit")
    parser.add_argument("runs", type=Path, nargs="?", help="table of runs that fit has not seen")


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("emulator", type=Path, help="a file of fit")
    parser.add_argument(
        "-o", dest="page", type=Path, help="page to write (default: the same, .html)"
    )
    parser.add_argument("--title", help="heading of the page (default: the file's name)")


def _whole(text: str) -> int:
    if not _is_between(text, 1, MOST):
        raise argparse.ArgumentTypeError(
            f"{text[:20]!r} is not a positive whole number up to {MOST}"
        )
    return int(text)


def _seed(text: str) -> int:
    if not _is_between(text, 0, 2**32 - 1):
        raise argparse.ArgumentTypeError(
            f"{text[:20]!r} is not a whole number from 0 to {2**32 - 1}"
        )
    return int(text)


def _is_between(text: str, least: int, most: int) -> bool:
    digits = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    return digits and least <= int(text) <= most


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = float("nan")
    if not 0.0 < share < 1.0 or not np.isfinite(ndtri((1.0 + share) / 2.0)):
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1")
    return share
