"""Count how often an update of a hidden node is evaluated until it is accepted, with SI and SI-IC.

    python benchmarks/paper_acceptances.py --folder build/paper   # minutes; writes a table there

The paper gives faster acceptances as the reason why SI-IC takes less time than SI. Settings are
those of the paper, with fewer iterations: acceptances need no emulator that is trained to the end.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from paper import BUILD, DESIGN, FEWEST, estimator, facts_of
from paper_store import ACCEPTANCES, Record, Trial, fill
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
    """The mean number of evaluations an update, over all sweeps of the trial's chain."""
    data = load_design(trial.problem, DESIGN)
    model = estimator(trial).set_params(n_iter=N_ITER).fit(data.X, data.y)
    (mixing,) = model.posterior_.report.mixing
    return {"evaluations": mixing.evaluations} | facts_of(trial.number, model)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=BUILD / "paper", help="of the results")
    folder = parser.parse_args(arguments).folder
    warnings.simplefilter("ignore")  # of convergence: one short chain
    fill(folder / ACCEPTANCES, planned(), counted)


if __name__ == "__main__":
    from speed import one_thread_environment

    os.environ.update(one_thread_environment(cache=BUILD / "cache"))
    main()
