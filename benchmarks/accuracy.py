"""Accuracy of deepemu on the paper's problems, next to the published scores of other packages.

    python benchmarks/accuracy.py --problems vega delta --designs 0 1 2 --methods default one-chain

Methods: ``emulator`` is ``Emulator()``, which chooses its structure, ``few`` that with the first 20
training rows only, ``quick`` and ``thorough`` that with these efforts; ``default`` is ``DGP()``
with the depth of the paper, ``unstacked`` the same with equal weights, ``full-bayes`` with sampled
parameters; ``one-chain`` the mean score of single chains; ``paper-si`` and ``paper-si-ic`` the
settings of the paper without and with the input connection; ``gp`` is ``GP()``, and
``gp-matern52-least`` and so on have other kernels and nuggets.
A number at the end sets the depth, as in ``paper-si-3``.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import re
import sys
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _report import aligned, positive, read_json, write_json
from _timing import timed
from problems import DATA, PAPER, PROBLEMS, load_design

KERNELS = ("matern52", "squared_exponential")
NUGGETS = {"least": 1e-8, "small": 1e-6, "found": "auto"}
PLAIN_GPS = {"gp": {}} | {
    f"gp-{kernel}-{name}": {"kernel": kernel, "nugget": nugget}
    for kernel, (name, nugget) in product(KERNELS, NUGGETS.items())
}
EMULATORS = {
    "emulator": {}, "few": {}, "quick": {"effort": "quick"}, "thorough": {"effort": "thorough"},
}  # fmt: skip
BASE_METHODS = (
    *EMULATORS, "default", "unstacked", "full-bayes", "one-chain", "paper-si", "paper-si-ic",
    *PLAIN_GPS,
)  # fmt: skip
COLUMNS = ("nrmsep", "normalised_crps", "coverage", "fit_s", "predict_s")
HEADINGS = ("NRMSEP", "CRPS/range", "coverage", "fit s", "predict s")
FORMATS = (".4f", ".4f", ".3f", ".3g", ".3g")
ENOUGH_GAIN = 0.15
ENOUGH_COVERAGE = (0.88, 0.995)
STORED_DESIGNS = {0, 1, 2}
FEW_ROWS = 20
OPTIONS = {
    "one-chain": {"n_chains": 1},
    "unstacked": {"stacking": False},
    "full-bayes": {"inference": "full_bayes"},
}


# --- what to run ---------------------------------------------------------------------------------


class Run(NamedTuple):
    """One fit and prediction; the identity of a record."""

    problem: str
    design: int
    method: str
    trial: int
    n_iter: int | None


class Method(NamedTuple):
    """A method name taken apart; depth None means the depth of the problem."""

    base: str
    depth: int | None


def parse_method(name: str) -> Method:
    """Split ``paper-si-3`` into its base and depth."""
    base, depth = re.fullmatch(r"(.*?)(?:-(\d+))?", name).groups()
    if base not in BASE_METHODS:
        raise argparse.ArgumentTypeError(f"{name!r}: a method is one of {', '.join(BASE_METHODS)}")
    return Method(base, None if depth is None else int(depth))


def method_name(name: str) -> str:
    """The name itself, once it is known to be a method."""
    parse_method(name)
    return name


def n_trials(method: str, args: argparse.Namespace) -> int:
    """Seeds per design: a GP has no randomness, single chains vary most."""
    counts = {"one-chain": args.chain_trials} | dict.fromkeys(PLAIN_GPS, 1)
    return counts.get(parse_method(method).base, args.trials)


def planned_runs(args: argparse.Namespace) -> Iterator[Run]:
    """Design by design, so that an interrupted run has every method on the designs it reached."""
    for problem, design, method in product(args.problems, args.designs, args.methods):
        for trial in range(n_trials(method, args)):
            yield Run(problem, design, method, trial, args.n_iter)


def make_estimator(run: Run) -> Any:
    """An unfitted estimator for the run; the trial number is its seed."""
    import deepemu

    base, depth = parse_method(run.method)
    if base in PLAIN_GPS:
        return deepemu.GP(**PLAIN_GPS[base])
    if base in EMULATORS:
        changes = {} if run.n_iter is None else {"n_iter": run.n_iter}
        if depth is not None:
            changes["max_depth"] = depth
        return deepemu.Emulator(random_state=run.trial, **EMULATORS[base], **changes)
    options = {"depth": depth or PROBLEMS[run.problem].depth, "random_state": run.trial}
    if run.n_iter is not None:
        options["n_iter"] = run.n_iter
    if base.startswith("paper"):
        return deepemu.DGP.paper(connect_input=base == "paper-si-ic", **options)
    return deepemu.DGP(**options, **OPTIONS.get(base, {}))


# --- running -------------------------------------------------------------------------------------


def measure(run: Run) -> dict[str, Any]:
    """Fit, predict and score; the record of the run."""
    from deepemu import ConvergenceWarning
    from deepemu.diagnostics import scores

    design, estimator = load_design(run.problem, run.design), make_estimator(run)
    n_rows = FEW_ROWS if parse_method(run.method).base == "few" else len(design.X)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, fit_s, fit_cpu_s = timed(lambda: estimator.fit(design.X[:n_rows], design.y[:n_rows]))
    prediction, predict_s, predict_cpu_s = timed(
        lambda: estimator.predict(design.X_test, return_std=True)
    )
    compared = estimator.posterior_.compared(design.X_test, design.y_test)
    return {
        **run._asdict(),
        **scores(design.y_test, *(np.asarray(part) for part in prediction)),
        "mixture_crps": float(compared.crps.mean() / np.ptp(design.y_test)),
        "interval_coverage": float(np.mean(compared.rank.inside())),
        "fit_s": fit_s,
        "predict_s": predict_s,
        "fit_cpu_s": fit_cpu_s,
        "predict_cpu_s": predict_cpu_s,
        "warned": any(issubclass(each.category, ConvergenceWarning) for each in caught),
        "report": dataclasses.asdict(estimator.summary()),
    }


def run_of(record: dict[str, Any]) -> Run:
    return Run(*(record[field] for field in Run._fields))


def read_records(path: Path | None) -> dict[Run, dict[str, Any]]:
    return {run_of(record): record for record in read_json(path) or []}


def measure_all(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of all planned runs; the file is brought up to date after each of them."""
    stored, runs = read_records(args.json), list(planned_runs(args))
    for number, run in enumerate(runs, start=1):
        if args.resume and run in stored:
            continue
        stored[run] = measure(run)
        write_json(args.json, list(stored.values()))
        report_progress(number, len(runs), stored[run])
    return [stored[run] for run in runs]


def report_progress(number: int, total: int, record: dict[str, Any]) -> None:
    values = ", ".join(f"{name} {record[name]:.4g}" for name in COLUMNS)
    run = run_of(record)
    print(
        f"[{number}/{total}] {run.problem} design {run.design} {run.method} "
        f"trial {run.trial}: {values}",
        file=sys.stderr,
        flush=True,
    )


# --- tables --------------------------------------------------------------------------------------

Cell = float | list[float] | None


class Row(NamedTuple):
    """A line of a table: which data, which method, and a value (or range) per column."""

    label: str
    designs: str
    cells: tuple[Cell, ...]


def average(records: list[dict[str, Any]], column: str) -> float:
    """Mean over designs of the mean over trials, so that each design counts the same."""
    designs = {record["design"] for record in records}
    return float(np.mean([_trial_mean(records, design, column) for design in designs]))


def _trial_mean(records: list[dict[str, Any]], design: int, column: str) -> float:
    return float(np.mean([r[column] for r in records if r["design"] == design]))


def select(
    records: list[dict[str, Any]],
    problem: str,
    method: str,
    designs: set[int] | None = None,
) -> list[dict[str, Any]]:
    """Records of one method on one problem, on the given designs or all."""
    mine = [r for r in records if r["problem"] == problem and r["method"] == method]
    return mine if designs is None else [r for r in mine if r["design"] in designs]


def measured_rows(
    records: list[dict[str, Any]], problem: str, args: argparse.Namespace
) -> list[Row]:
    """One row per method over all designs, and on request one per design."""
    groups = [set(args.designs)]
    if args.per_design:
        groups += [{design} for design in args.designs]
    return [
        measured_row(select(records, problem, method, designs), method, designs)
        for method, designs in product(args.methods, groups)
    ]


def measured_row(records: list[dict[str, Any]], method: str, designs: set[int]) -> Row:
    cells = tuple(average(records, column) for column in COLUMNS)
    return Row(method, ",".join(map(str, sorted(designs))), cells)


def load_incumbents() -> dict[str, Any]:
    return json.loads((DATA / "incumbents.json").read_text())


def incumbent_crps(scores: list[Cell]) -> float:
    """The published CRPS; of a range over trials, its middle."""
    return float(np.mean(scores[1]))


def deep_columns(incumbents: dict[str, Any], problem: str) -> dict[str, list[Cell]]:
    """The dgpsi and deepgp networks, measured on design 0."""
    columns = incumbents["design_0"][problem]
    return {name: s for name, s in columns.items() if name.startswith(("dgpsi", "deepgp"))}


def variational_columns(incumbents: dict[str, Any], problem: str) -> dict[str, list[Cell]]:
    """The DSVI networks, averaged over designs 0-2."""
    columns = incumbents["designs_0_2"][problem]
    return {name: scores for name, scores in columns.items() if "DSVI" in name}


def best_column(columns: dict[str, list[Cell]]) -> str:
    return min(columns, key=lambda name: incumbent_crps(columns[name]))


def reference_rows(incumbents: dict[str, Any], problem: str) -> list[Row]:
    """Published rows: the best dgpsi or deepgp network, then every DSVI network.

    There are some for the paper's problems only; see `study.py` for the others.
    """
    if problem not in PAPER:
        return []
    deep, variational = (pick(incumbents, problem) for pick in (deep_columns, variational_columns))
    best = best_column(deep)
    rows = [_reference_row(incumbents, problem, best, deep[best], "0")]
    return rows + [
        _reference_row(incumbents, problem, name, scores, "0,1,2")
        for name, scores in variational.items()
    ]


def _reference_row(
    incumbents: dict[str, Any], problem: str, name: str, scores: list[Cell], designs: str
) -> Row:
    usual = {} if problem == "step" else incumbents["seconds"]  # those were measured at n = 100
    seconds = {**usual, **incumbents.get(f"seconds_{problem}", {})}
    return Row(f"ref: {name}", designs, (*scores, *seconds.get(name, (None, None))))


def formatted(cell: Cell, style: str) -> str:
    if cell is None:
        return "-"
    return "-".join(format(end, style) for end in (cell if isinstance(cell, list) else [cell]))


def _cells(row: Row) -> list[str]:
    values = zip(row.cells, FORMATS, strict=True)
    return [row.label, row.designs, *(formatted(cell, style) for cell, style in values)]


def print_table(problem: str, rows: list[Row]) -> None:
    lines = [["method", "designs", *HEADINGS], *map(_cells, rows)]
    print(f"\n{problem}", *aligned(lines), sep="\n")


def print_csv(rows_by_problem: dict[str, list[Row]]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(["problem", "method", "designs", *COLUMNS])
    for problem, rows in rows_by_problem.items():
        writer.writerows([problem, *_cells(row)] for row in rows)


# --- verdict -------------------------------------------------------------------------------------


def verdict(records: list[dict[str, Any]], incumbents: dict[str, Any], problem: str) -> list[str]:
    """The four questions about the default, for a problem with 100 training points."""
    return [
        _against_one_chain(records, problem),
        _against_deep(records, incumbents, problem),
        _against_variational(records, incumbents, problem),
        _of_coverage(records, problem),
    ]


def _line(question: str, answer: bool | None, detail: str) -> str:
    word = {True: "yes", False: "NO", None: "not measured"}[answer]
    return f"  {question}: {word}{'  ' + detail if detail else ''}"


def _relation(value: float, other: float, name: str) -> str:
    return f"{value:.4f} against {other:.4f} of {name} ({100 * (value / other - 1):+.0f} %)"


def _against_one_chain(records: list[dict[str, Any]], problem: str) -> str:
    question = f"(a) CRPS at least {ENOUGH_GAIN:.0%} below one chain"
    default, single = (select(records, problem, name) for name in ("default", "one-chain"))
    if not default or not single:
        return _line(question, None, "needs the methods default and one-chain")
    ours, theirs = average(default, "normalised_crps"), average(single, "normalised_crps")
    enough = ours <= (1 - ENOUGH_GAIN) * theirs
    return _line(question, enough, _relation(ours, theirs, "one chain"))


def _against_deep(records: list[dict[str, Any]], incumbents: dict[str, Any], problem: str) -> str:
    question = "(b) CRPS on design 0 below the best dgpsi or deepgp network"
    return _against_columns(question, records, problem, {0}, deep_columns(incumbents, problem))


def _against_variational(
    records: list[dict[str, Any]], incumbents: dict[str, Any], problem: str
) -> str:
    question = "(c) CRPS on designs 0-2 below every DSVI network"
    columns = variational_columns(incumbents, problem)
    return _against_columns(question, records, problem, STORED_DESIGNS, columns)


def _against_columns(
    question: str,
    records: list[dict[str, Any]],
    problem: str,
    designs: set[int],
    columns: dict[str, list[Cell]],
) -> str:
    default = select(records, problem, "default", designs)
    if {record["design"] for record in default} != designs:
        return _line(question, None, f"needs the method default on designs {sorted(designs)}")
    ours, best = average(default, "normalised_crps"), best_column(columns)
    theirs = incumbent_crps(columns[best])
    return _line(question, ours < theirs, _relation(ours, theirs, best))


def _of_coverage(records: list[dict[str, Any]], problem: str) -> str:
    low, high = ENOUGH_COVERAGE
    question = f"(d) coverage of the 95 % interval in {low}-{high}"
    default = select(records, problem, "default")
    if not default:
        return _line(question, None, "needs the method default")
    share = average(default, "coverage")
    return _line(question, low <= share <= high, f"{share:.3f}")


def print_verdict(records: list[dict[str, Any]], incumbents: dict[str, Any]) -> None:
    """Four answers per problem; the step function, with 10 points, is left out."""
    print("\nverdict on the default (means over the designs and trials of this run)")
    for problem in dict.fromkeys(record["problem"] for record in records):
        if problem in PAPER and problem != "step":
            print(problem, *verdict(records, incumbents, problem), sep="\n")


# --- command line --------------------------------------------------------------------------------


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--problems", nargs="+", choices=PROBLEMS, default=list(PAPER), metavar="NAME")
    add("--designs", nargs="+", type=int, default=[0, 1, 2], metavar="INDEX")
    add("--methods", nargs="+", type=method_name, default=["default", "one-chain"], metavar="NAME")
    add("--trials", type=positive, default=1, help="seeds per design")
    add("--chain-trials", type=positive, default=4, help="seeds per design of one-chain")
    add("--n-iter", type=positive, help="SEM iterations; the estimator's default if not given")
    add("--json", type=Path, help="file of records, brought up to date after every fit")
    add("--resume", action="store_true", help="take runs already in the --json file from there")
    add("--per-design", action="store_true", help="one row for each design as well")
    add("--csv", action="store_true", help="print comma-separated values, without the verdict")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    from deepemu import use_compilation_cache

    use_compilation_cache()
    records, incumbents = measure_all(args), load_incumbents()
    rows_by_problem = {
        problem: measured_rows(records, problem, args) + reference_rows(incumbents, problem)
        for problem in args.problems
    }
    if args.csv:
        print_csv(rows_by_problem)
        return
    for problem, rows in rows_by_problem.items():
        print_table(problem, rows)
    print_verdict(records, incumbents)


if __name__ == "__main__":
    main()
