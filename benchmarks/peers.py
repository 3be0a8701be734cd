"""Accuracy of other packages on the designs of ``problems.py``, scored as ``accuracy.py`` does.

    python benchmarks/peers.py --methods sklearn-matern dsvi --designs 0 1 2 --json peers.json

Methods: ``dgpsi-si-ic`` is dgpsi's deep GP with its defaults and ``dgpsi-gp`` its GP with the
reference prior; ``dsvi`` and ``dsvi-3`` are GPyTorch's deep GP of two and three layers by
variational inference; ``sklearn-matern`` and ``sklearn-rbf`` are scikit-learn's GP; ``forest``,
``boosting`` and ``quantile-boosting`` its trees (``_peer_trees``). Each run is a process of one
thread, in the interpreter that has the package.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from itertools import product
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _report import positive, read_json, write_json
from accuracy import COLUMNS, Row, measured_row, print_table, select
from problems import PAPER, PROBLEMS, SIMULATORS, load_design
from speed import one_thread_environment

HERE = Path(__file__).resolve().parent
PACKAGES = {
    "sklearn-matern": "sklearn",
    "sklearn-rbf": "sklearn",
    "dgpsi-gp": "dgpsi",
    "dgpsi-si-ic": "dgpsi",
    "dsvi": "gpytorch",
    "dsvi-3": "gpytorch",
    "forest": "trees",
    "boosting": "trees",
    "quantile-boosting": "trees",
}
PREDICTIONS = ("mean", "std", "levels", "quantiles")

Record = dict[str, Any]


# --- what to run ---------------------------------------------------------------------------------


class Run(NamedTuple):
    """One fit and prediction; the identity of a record."""

    problem: str
    design: int
    method: str


def planned_runs(args: argparse.Namespace) -> list[Run]:
    """Design by design, so that an interrupted run has every method on the designs it reached."""
    return [Run(*parts) for parts in product(args.problems, args.designs, args.methods)]


def interpreters(args: argparse.Namespace) -> dict[str, str | None]:
    return {
        "sklearn": sys.executable,
        "trees": sys.executable,
        "dgpsi": args.dgpsi_python,
        "gpytorch": args.gpytorch_python,
    }


def child_command(run: Run, args: argparse.Namespace) -> list[str]:
    """The package's interpreter, its script, and the job that ``_peer_jobs`` answers."""
    package = PACKAGES[run.method]
    job = {"kind": run.method, "problem": run.problem, "design": run.design}
    return [str(interpreters(args)[package]), str(HERE / f"_peer_{package}.py"), json.dumps(job)]


# --- running -------------------------------------------------------------------------------------


def answer_of(command: list[str], limit_s: float) -> Record:
    """The JSON in the last line that the command prints, or an error in one sentence."""
    environment = one_thread_environment()
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it took longer than {limit_s:g} s"}
    if done.returncode != 0:
        return {"error": f"exit status {done.returncode}: {last_line(done.stderr)}"}
    try:
        return json.loads(last_line(done.stdout))
    except json.JSONDecodeError:
        return {"error": f"its last line is no JSON: {last_line(done.stdout)[:80]}"}


def last_line(text: str) -> str:
    """The last line that is not blank, which of a traceback is the error itself."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def record_of(run: Run, answer: Record) -> Record:
    """The scores of the predictions in the answer, and everything else it holds."""
    from deepemu.errors import InputError

    if "error" in answer:
        return {**run._asdict(), **answer}
    observed = load_design(run.problem, run.design).y_test
    try:
        values = scores_of(observed, answer)
    except InputError as error:
        return {**run._asdict(), "error": f"the predictions have no score: {error}"}
    others = {name: value for name, value in answer.items() if name not in PREDICTIONS}
    return {**run._asdict(), **values, **others}


def scores_of(observed: np.ndarray, answer: Record) -> Record:
    """Scores of a normal prediction, or of one by quantiles."""
    from deepemu.data.checks import checked
    from deepemu.diagnostics import scores

    if "quantiles" not in answer:
        return scores(observed, np.array(answer["mean"]), np.array(answer["std"]))
    levels = np.array(answer["levels"])
    (quantiles,) = checked(quantiles=answer["quantiles"])
    low, high = (quantiles[np.argmin(np.abs(levels - end))] for end in (0.025, 0.975))
    crps, size = quantile_crps(observed, levels, quantiles), np.ptp(observed)
    mean = np.trapezoid(quantiles, levels, axis=0) / np.ptp(levels)
    return {
        "nrmsep": float(np.sqrt(np.mean((observed - mean) ** 2)) / size),
        "crps": crps,
        "normalised_crps": float(crps / size),
        "coverage": float(np.mean((low <= observed) & (observed <= high))),
    }


def quantile_crps(y: np.ndarray, levels: np.ndarray, quantiles: np.ndarray) -> float:
    """The mean of 2 ∫ (1{y ≤ q_τ} − τ) (q_τ − y) dτ by trapezia over the levels, whose ends
    reach to 0 and 1 (the distribution has no tails beyond its outer quantiles)."""
    above = quantiles - y[None]
    loss = ((above >= 0.0) - levels[:, None]) * above
    ends = ((quantiles[[0, -1]] >= y[None]) - np.array([[0.0], [1.0]])) * above[[0, -1]]
    at = np.concatenate([[0.0], levels, [1.0]])
    each = np.trapezoid(np.vstack([ends[:1], loss, ends[1:]]), at, axis=0)
    return float(2.0 * np.mean(each))


def run_of(record: Record) -> Run:
    return Run(*(record[field] for field in Run._fields))


def read_records(path: Path | None) -> dict[Run, Record]:
    return {run_of(record): record for record in read_json(path) or []}


def left_to_do(stored: dict[Run, Record], args: argparse.Namespace) -> list[Run]:
    """All planned runs; with ``--resume`` those that the file lacks or that failed."""
    done = {run for run, record in stored.items() if args.resume and "error" not in record}
    return [run for run in planned_runs(args) if run not in done]


def measure_all(args: argparse.Namespace) -> list[Record]:
    """The records of all planned runs; the file is brought up to date after each of them."""
    stored = read_records(args.json)
    runs = left_to_do(stored, args)
    with ThreadPool(args.jobs) as pool:
        answers = pool.imap_unordered(
            lambda run: (run, answer_of(child_command(run, args), args.limit)), runs
        )
        for number, (run, answer) in enumerate(answers, start=1):
            stored[run] = record_of(run, answer)
            write_json(args.json, list(stored.values()))
            report_progress(number, len(runs), stored[run])
    return [stored[run] for run in planned_runs(args)]


def outcome(record: Record) -> str:
    """The scores and seconds of a run, or its error."""
    return record.get("error") or ", ".join(f"{name} {record[name]:.4g}" for name in COLUMNS)


def described(record: Record) -> str:
    run = run_of(record)
    return f"{run.problem} design {run.design} {run.method}: {outcome(record)}"


def report_progress(number: int, total: int, record: Record) -> None:
    print(f"[{number}/{total}] {described(record)}", file=sys.stderr, flush=True)


# --- tables --------------------------------------------------------------------------------------


def finished(records: list[Record]) -> list[Record]:
    return [record for record in records if "error" not in record]


def problem_row(records: list[Record], problem: str, method: str) -> Row:
    """Means over the designs on which the method finished."""
    mine = select(finished(records), problem, method)
    if not mine:
        return Row(method, "-", (None,) * len(COLUMNS))
    return measured_row(mine, method, {record["design"] for record in mine})


def common_designs(records: list[Record], methods: list[str]) -> set[tuple[str, int]]:
    """The designs that every method finished, of the methods that finished any."""
    done = finished(records)
    by_method = [
        {(r["problem"], r["design"]) for r in done if r["method"] == method} for method in methods
    ]
    return set.intersection(*(filter(None, by_method))) if done else set()


def mean_rows(records: list[Record], methods: list[str]) -> list[Row]:
    """Means over problems of the means over designs, the same designs for every method."""
    common = common_designs(records, methods)
    shared = [r for r in records if (r["problem"], r["design"]) in common]
    problems = {problem for problem, _ in common}
    rows = {m: [problem_row(shared, problem, m).cells for problem in problems] for m in methods}
    return [
        Row(method, str(len(common)), tuple(np.mean(cells, axis=0).tolist()))
        for method, cells in rows.items()
        if cells and None not in cells[0]
    ]


def print_tables(records: list[Record], args: argparse.Namespace) -> None:
    for problem in args.problems:
        print_table(problem, [problem_row(records, problem, method) for method in args.methods])
    print_means(records, args.methods)
    failed = [described(record) for record in records if "error" in record]
    if failed:
        print("\nfailed", *failed, sep="\n")


def print_means(records: list[Record], methods: list[str]) -> None:
    rows = mean_rows(records, methods)
    n_problems = len({problem for problem, _ in common_designs(records, methods)})
    if rows:
        print_table(f"means over problems that all methods finished: {n_problems}", rows)


# --- command line --------------------------------------------------------------------------------


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--problems", nargs="+", choices=PROBLEMS, default=[*PAPER, *SIMULATORS], metavar="NAME")
    add("--designs", nargs="+", type=int, default=[0, 1, 2], metavar="INDEX")
    add("--methods", nargs="+", choices=PACKAGES, default=list(PACKAGES), metavar="NAME")
    add("--json", type=Path, help="file of records, brought up to date after every run")
    add("--resume", action="store_true", help="take finished runs from the --json file")
    add("--jobs", type=positive, default=1, help="processes at a time, of one thread each")
    add("--limit", type=float, default=900.0, metavar="SECONDS", help="for one run")
    add("--dgpsi-python", default=os.environ.get("DGPSI_PYTHON"), help="interpreter with dgpsi")
    add("--gpytorch-python", default=sys.executable, help="interpreter with torch and gpytorch")
    args = parser.parse_args(argv)
    check_interpreters(parser, args)
    return args


def check_interpreters(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Each package that is asked for needs an interpreter that can be started."""
    for package in dict.fromkeys(PACKAGES[method] for method in args.methods):
        interpreter = interpreters(args)[package]
        if not interpreter:
            parser.error(f"give --{package}-python, or leave {package} out by --methods")
        if shutil.which(interpreter) is None:
            parser.error(f"{interpreter} is no interpreter that can be started")


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    print_tables(measure_all(args), args)


if __name__ == "__main__":
    main()
