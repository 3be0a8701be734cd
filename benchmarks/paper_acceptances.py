"""Count how often an update of a hidden node is evaluated until it is accepted, with SI and SI-IC.

    python benchmarks/paper_acceptances.py --folder build/paper   # minutes; writes a table there

The paper gives faster acceptances as the reason why SI-IC takes less time than SI. Settings are
those of the paper, with fewer iterations: acceptances need no emulator that is trained to the end.
"""

from __future__ import annotations

import argparse
import csv
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from paper import BUILD, DESIGN, FEWEST, estimator, facts_of
from paper_store import ACCEPTANCES, Record, Trial, rounded
from problems import load_design

NETWORKS = {"step": (3,), "vega": (2, 3), "fived": (2,), "engine": (2,)}  # layers
N_ITER = 100


def planned() -> list[Trial]:
    return [
        Trial(problem, method, depth, number)
        for problem, by_layers in NETWORKS.items()
        for depth in by_layers
        for method in ("si", "si-ic")
        for number in range(FEWEST)
    ]


def counted(trial: Trial) -> Record:
    """The trial with the mean number of evaluations an update, over all sweeps of its chain."""
    data = load_design(trial.problem, DESIGN)
    model = estimator(trial).set_params(n_iter=N_ITER).fit(data.X, data.y)
    (mixing,) = model.posterior_.report.mixing
    facts = facts_of(trial.number, model)
    return trial._asdict() | {"evaluations": mixing.evaluations} | facts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=BUILD / "paper", help="of the results")
    path = parser.parse_args(arguments).folder / ACCEPTANCES
    if path.exists():
        print(f"{path} is there and is kept; remove it to count again")
        return
    warnings.simplefilter("ignore")  # of convergence: one short chain
    found = []
    for trial in planned():
        found.append(counted(trial))
        print(f"{trial.name}: {found[-1]['evaluations']:.1f} evaluations", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows({k: rounded(v) for k, v in row.items()} for row in found)


if __name__ == "__main__":
    from speed import one_thread_environment

    os.environ.update(one_thread_environment(cache=BUILD / "cache"))
    main()
