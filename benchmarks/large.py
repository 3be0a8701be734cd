"""Accuracy and time with hundreds to thousands of runs, next to GPBoost's Vecchia process.

    python benchmarks/large.py --problems front ridge --n 500 2000 --methods emulator gp gpboost \\
        --gpboost-python ../gpboost/bin/python --json large.json

Methods: ``emulator``, ``dgp`` and ``gp`` are the estimators at their defaults, ``gp-vecchia`` and
so on with that solver; ``gpboost`` its process of 20 neighbours, in the interpreter that has it.
Each fit is a process of its own with all cores, one after the other; compilation is part of its
time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from _large_jobs import FUNCTIONS, runs
from _report import aligned, positive, read_json, write_json

HERE = Path(__file__).resolve().parent
KEYS = ("problem", "n", "design", "method", "trial")
COLUMNS = ("normalised_crps", "nrmsep", "coverage", "fit_s", "predict_s", "peak_mb")

Record = dict[str, Any]


def measured(job: Record, gpboost_python: str) -> Record:
    """The scores and seconds of one fit."""
    from deepemu.diagnostics import scores

    is_peer = job["method"] == "gpboost"
    python, script = (
        (gpboost_python, "_peer_gpboost.py") if is_peer else (sys.executable, "_large_deepemu.py")
    )
    kind = "gpboost" if is_peer else "deepemu"
    command = [python, str(HERE / script), json.dumps({**job, "kind": kind})]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    truth = runs(job["problem"], job["n"], job["design"])[3]
    moments = (np.array(found.pop(name)) for name in ("mean", "std"))
    return {**job, **scores(truth, *moments), **found}


def planned(args: argparse.Namespace) -> list[Record]:
    every = product(args.problems, args.n, args.designs, args.methods, range(args.trials))
    return [dict(zip(KEYS, values, strict=True)) for values in every]


def measure_all(args: argparse.Namespace) -> list[Record]:
    """The records of all runs; those in the file are not run again."""
    stored = {tuple(r[key] for key in KEYS): r for r in read_json(args.json) or []}
    for job in planned(args):
        key = tuple(job.values())
        if key not in stored:
            stored[key] = measured(job, args.gpboost_python)
            write_json(args.json, list(stored.values()))
            print(*_line(stored[key]), file=sys.stderr, flush=True)
    return [stored[tuple(job.values())] for job in planned(args)]


def _line(record: Record) -> list[str]:
    return [str(record[key]) for key in KEYS] + [f"{record[name]:.4g}" for name in COLUMNS]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--problems", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS), metavar="NAME")
    add("--n", nargs="+", type=positive, default=[500, 1000, 2000], help="numbers of runs")
    add("--designs", nargs="+", type=int, default=[3], metavar="INDEX")
    add("--methods", nargs="+", default=["emulator", "gp-vecchia", "gpboost"], metavar="NAME")
    add("--trials", type=positive, default=1, help="seeds per design")
    add("--gpboost-python", default=sys.executable, help="interpreter that has GPBoost")
    add("--json", type=Path, help="file of records, brought up to date after every fit")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    records = measure_all(parse_arguments(argv))
    print(*aligned([[*KEYS, *COLUMNS], *map(_line, records)]), sep="\n")


if __name__ == "__main__":
    main()
