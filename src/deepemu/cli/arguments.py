"""The arguments of the command ``deepemu``, with their help."""

import argparse
import math
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from scipy.special import ndtri

from deepemu.cli.settings import MODELS
from deepemu.core.kernels import families
from deepemu.estimators.race import EFFORTS
from deepemu.observations.choice import GAUSSIAN, NAMES

SUFFIX = ".deepemu"
MOST = 1_000_000  # chains or iterations
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
PURPOSES = {
    "fit": "Learn from a table of runs and keep the emulator in a file.",
    "predict": "Predict the rows of a table: mean, standard deviation and interval of each output.",
    "validate": "Compare predictions with runs of known outputs; without a table, held-out ones.",
    "info": "Say what is in a file: data, structures, weights, scores, warnings.",
    "report": "Write one HTML page about an emulator, to read and to send; it opens offline.",
    "demo": "Write a small example and run the commands on it.",
}
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
A table may be larger than memory: it is read and written in parts.
""",
    "validate": """\
examples:
  deepemu validate pump.deepemu                            runs of the fit, each without it
  deepemu validate pump.deepemu later.csv                  runs that were made afterwards

NRMSEP is the root-mean-square error divided by the range of the output. CRPS generalises the
absolute error to predictions with a spread, in units of the output: it rewards means that are
close and intervals that are not too wide. Good intervals of 95 % hold about 95 % of the runs.
""",
    "info": "example:\n  deepemu info pump.deepemu\n",
    "report": "example:\n  deepemu report pump.deepemu -o pump.html --title 'Pump, May runs'\n",
    "demo": "example:\n  deepemu demo\n",
}


class _Parser(argparse.ArgumentParser):
    """Knows that ``--output y runs.csv`` takes the table for a column."""

    def error(self, message: str) -> NoReturn:
        forgotten = message.endswith("required: runs")
        hint = " (the table stands before --output and --inputs)" if forgotten else ""
        super().error(message + hint)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "deepemu", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=version("deepemu"))
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    for name, add_arguments in ADDERS.items():
        add_arguments(_command(commands, name))
    return parser


def _command(commands: Any, name: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=PURPOSES[name], description=PURPOSES[name], epilog=EXAMPLES[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print no more than is asked for"
    )
    return parser


def add_fit(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", type=Path, help="CSV or Parquet table, one row per run")
    add("--output", nargs="+", required=True, metavar="COLUMN", help="column(s) to predict")
    add("--inputs", nargs="+", metavar="COLUMN", help="columns to learn from (default: all others)")
    add("-o", dest="emulator", type=Path, help=f"file to write (default: the table's name{SUFFIX})")
    what = "auto compares plain and deep Gaussian processes (default); dgp is deep, gp plain"
    add("--model", choices=tuple(MODELS), default="auto", help=what)
    add("--depth", type=_whole, help="layers of dgp, or the most that auto tries (default: 2)")
    add(
        "--kernel", choices=tuple(families.KERNELS),
        help="how smooth the outputs are, for dgp and gp (default: matern52)",
    )  # fmt: skip
    add(
        "--noise",
        action="store_true",
        help="the simulator is random; without it, noise is found if there is any",
    )
    add(
        "--observation", choices=NAMES, default=GAUSSIAN,
        help="how outputs arise from the function (default: gaussian)",
    )  # fmt: skip
    add(
        "--effort", choices=tuple(EFFORTS),
        help="how much auto trains: a third of the time, or several times more (default: default)",
    )  # fmt: skip
    add(
        "--time-limit", type=_seconds, metavar="SECONDS",
        help="train as much as fits into this time, for auto (default: no limit)",
    )  # fmt: skip
    add(
        "--checkpoint", type=Path, metavar="FILE",
        help="keep what is trained here: if the fit is killed, the same command goes on from it",
    )  # fmt: skip
    add("--chains", type=_whole, help="chains of each deep structure, at least 4 (default: 8)")
    add("--iterations", type=_whole, help="iterations of each chain (default: 80)")
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
    parser.add_argument("runs", type=Path, nargs="?", help="table of runs that fit did not use")


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("emulator", type=Path, help="a file of fit")
    parser.add_argument(
        "-o", dest="page", type=Path, help="page to write (default: the same, .html)"
    )
    parser.add_argument("--title", help="heading of the page (default: the file's name)")


def add_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("emulator", type=Path, help="a file of fit")


def add_demo(parser: argparse.ArgumentParser) -> None:
    where = "where to write (default: %(default)s)"
    parser.add_argument("folder", nargs="?", default="deepemu-demo", help=where)


def _whole(text: str) -> int:
    if not _is_between(text, 1, MOST):
        raise argparse.ArgumentTypeError(
            f"{text[:20]!r} is not a positive whole number up to {MOST}"
        )
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a positive number of seconds")
    return number


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


ADDERS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "fit": add_fit,
    "predict": add_predict,
    "validate": add_validate,
    "info": add_info,
    "report": add_report,
    "demo": add_demo,
}
