"""Run SI, SI-IC and DSVI in turn on one core: times that may be compared, and what is said at runs.

    python benchmarks/paper_times.py --gpflux-python ENVIRONMENT/bin/python   # a quarter of an hour

Times of the trials of ``paper.py`` are of several hours, in which the machine was not the same.
Here the methods take turns, round by round; compilation is done before the clock starts, but that
of TensorFlow. Settings are those of the paper.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from paper import (
    BUILD,
    FEWEST,
    LONGEST_PEER,
    PEERS,
    checked_answer,
    compile_for,
    estimator,
    facts_of,
    facts_of_peer,
    peer_command,
    run_trial,
)
from paper_store import TIMES, Record, Trial, fill
from peers import answer_of

NETWORKS = {"step": (3,), "vega": (2,)}  # layers
METHODS = ("si", "si-ic", "dsvi")


def planned() -> list[Trial]:
    return [
        Trial(problem, method, depth, number)
        for problem, by_layers in NETWORKS.items()
        for depth in by_layers
        for number in range(FEWEST)
        for method in METHODS
    ]


def measured(options: argparse.Namespace, trial: Trial) -> Record:
    return of_peer(trial, options) if trial.method in PEERS else of_ours(trial)


def of_ours(trial: Trial) -> Record:
    compile_for(trial)
    record, _, _ = run_trial(trial)
    return record | facts_of(trial.number, estimator(trial))


def of_peer(trial: Trial, options: argparse.Namespace) -> Record:
    """With the sources of this package that it ran beside."""
    command = peer_command(trial, options)
    if command is None:
        sys.exit(f"{options.gpflux_python} has no GPflux")
    answer = checked_answer(answer_of(command, LONGEST_PEER))
    if "error" in answer:
        sys.exit(f"{trial.name} failed: {answer['error']}")
    numbers = {key: answer[key] for key in ("fit_cpu_s", "predict_cpu_s", "std_at_runs")}
    facts = facts_of_peer(trial, answer["version"]) | {"settings": answer["settings"]}
    beside = facts_of(trial.number, estimator(trial._replace(method="si")))
    return numbers | {"device": "cpu"} | facts | {"source": beside["source"]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=BUILD / "paper", help="of the results")
    parser.add_argument("--gpflux-python", type=Path, required=True, help="it has GPflux")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # of convergence: single chains are what is studied here
    fill(options.folder / TIMES, planned(), partial(measured, options))


if __name__ == "__main__":
    from speed import one_thread_environment

    os.environ.update(one_thread_environment(cache=BUILD / "cache"))
    main()
