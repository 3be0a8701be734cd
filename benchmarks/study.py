"""Are the error bars right? `deepemu` against other packages over all problems, from stored runs.

    python benchmarks/accuracy.py --problems vega ... --methods emulator default --json ours.json
    python benchmarks/peers.py --json peers.json
    python benchmarks/study.py --ours ours.json --peers peers.json --methods emulator dsvi gp

Four questions: whether 95 % intervals hold 95 % of the test points, whether the CRPS is the best,
what a fit costs, and whether the warning fires where intervals fail and only there. All methods are
compared on the designs that all of them finished.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _report import aligned, read_json
from problems import PROBLEMS

PLAIN = ("gp", "dgpsi-gp", "sklearn-matern", "sklearn-rbf")
NOMINAL = (0.93, 0.97)
LEAST_COVERAGE = 0.88
MOST_WORSE = 1.05
MOST_TIME = 2.0

Record = dict[str, Any]
Scores = dict[tuple[str, str], Record]


def read(paths: Iterable[Path]) -> list[Record]:
    """The records of all files; a later file replaces runs of an earlier one."""
    stored = {}
    for path in paths:
        for record in read_json(path) or []:
            if "error" not in record:
                key = record["problem"], record["design"], record["method"], record.get("trial", 0)
                stored[key] = record
    return list(stored.values())


def common_designs(records: list[Record], methods: Sequence[str]) -> dict[str, list[int]]:
    """For each problem, the designs that all methods finished."""
    done = {method: set() for method in methods}
    for record in records:
        if record["method"] in done:
            done[record["method"]].add((record["problem"], record["design"]))
    shared = sorted(set.intersection(*done.values()))
    return {p: [d for q, d in shared if q == p] for p in PROBLEMS if any(q == p for q, _ in shared)}


def mean_scores(records: list[Record], methods: Sequence[str]) -> Scores:
    """Means over common designs by problem and method."""
    found = {}
    for problem, designs in common_designs(records, methods).items():
        for method in methods:
            mine = [
                r for r in records
                if (r["problem"], r["method"]) == (problem, method) and r["design"] in designs
            ]  # fmt: skip
            found[problem, method] = {
                name: _mean(r[name] for r in mine if name in r)
                for name in ("nrmsep", "normalised_crps", "coverage", "fit_cpu_s")
            }
    return found


def _mean(values: Iterable[float]) -> float:
    """NaN for none, such as times of runs on another machine, which are left out of the files."""
    values = list(values)
    return float(np.mean(values)) if values else float("nan")


def problems_of(scores: Scores) -> list[str]:
    return list(dict.fromkeys(problem for problem, _ in scores))


def ranks(scores: Scores, methods: Sequence[str]) -> dict[str, float]:
    """Mean rank of each method by CRPS, 1 being the best."""
    table = np.array(
        [[scores[p, m]["normalised_crps"] for m in methods] for p in problems_of(scores)]
    )
    order = table.argsort(axis=1).argsort(axis=1) + 1
    return dict(zip(methods, order.mean(axis=0), strict=True))


def relative_crps(scores: Scores, methods: Sequence[str], first: str) -> dict[str, float]:
    """Geometric mean over problems of each CRPS over that of the first method."""
    problems = problems_of(scores)
    logs = {
        m: [
            np.log(scores[p, m]["normalised_crps"] / scores[p, first]["normalised_crps"])
            for p in problems
        ]
        for m in methods
    }
    return {m: float(np.exp(np.mean(of))) for m, of in logs.items()}


def score_table(scores: Scores, methods: Sequence[str]) -> list[list[str]]:
    """CRPS and coverage of each method on each problem; the best CRPS is bold."""
    rows = [["problem", *methods]]
    for problem in problems_of(scores):
        best = min(scores[problem, m]["normalised_crps"] for m in methods)
        rows.append([problem, *(_cell(scores[problem, m], best) for m in methods)])
    return rows


def _cell(score: Record, best: float) -> str:
    crps = f"{score['normalised_crps']:.4f}".lstrip("0")
    shown = f"**{crps}**" if score["normalised_crps"] == best else crps
    return f"{shown} {score['coverage']:.2f}".replace(" 0.", " .")


def overall_table(scores: Scores, methods: Sequence[str]) -> list[list[str]]:
    rank, relative = ranks(scores, methods), relative_crps(scores, methods, methods[0])
    rows = [["method", "mean rank", "CRPS, relative", "mean coverage", "least", "fit, cpu s"]]
    for method in methods:
        coverage = [scores[p, method]["coverage"] for p in problems_of(scores)]
        times = [scores[p, method]["fit_cpu_s"] for p in problems_of(scores)]
        seconds = _mean(time for time in times if not np.isnan(time))
        rows.append(
            [
                method,
                f"{rank[method]:.2f}",
                f"{relative[method]:.2f}",
                f"{np.mean(coverage):.3f}",
                f"{min(coverage):.2f}",
                "-" if np.isnan(seconds) else f"{seconds:.1f}",
            ]
        )
    return rows


def confusion(records: list[Record], methods: Sequence[str]) -> list[list[str]]:
    """Runs of some methods by whether the 95 % interval held enough test points and whether it
    warned."""
    mine = [r for r in records if r["method"] in methods]
    rows = [["", "warned", "silent"]]
    for label, failed in ((f"coverage below {LEAST_COVERAGE}", True), ("coverage holds", False)):
        some = [r["warned"] for r in mine if (r["coverage"] < LEAST_COVERAGE) == failed]
        rows.append([label, str(sum(some)), str(len(some) - sum(some))])
    return rows


def verdict(scores: Scores, methods: Sequence[str], first: str) -> list[str]:
    """The questions that have a bar, with what was measured."""
    coverage = {p: scores[p, first]["coverage"] for p in problems_of(scores)}
    worst = min(coverage, key=lambda p: coverage[p])
    mean = float(np.mean(list(coverage.values())))
    return [
        f"mean coverage {mean:.3f}, to be in {NOMINAL[0]}-{NOMINAL[1]}; "
        f"least {coverage[worst]:.3f} on {worst}, to be at least {LEAST_COVERAGE}",
        *_of_rank(scores, methods, first),
        *_of_plain(scores, methods, first),
        *_of_time(scores, methods, first),
    ]


def _of_rank(scores: Scores, methods: Sequence[str], first: str) -> list[str]:
    rank = ranks(scores, methods)
    others = [of for method, of in rank.items() if method != first]
    if not others:
        return []
    return [f"mean rank by CRPS {rank[first]:.2f}, best of others {min(others):.2f}"]


def _of_plain(scores: Scores, methods: Sequence[str], first: str) -> list[str]:
    plain = [m for m in PLAIN if m in methods and m != first]
    if not plain:
        return []
    excess = {
        p: scores[p, first]["normalised_crps"] / min(scores[p, m]["normalised_crps"] for m in plain)
        for p in problems_of(scores)
    }
    most = max(excess, key=lambda p: excess[p])
    above = ", ".join(p for p in excess if excess[p] > MOST_WORSE) or "none"
    return [
        f"CRPS over that of the best plain GP at most {excess[most]:.2f} on {most}, to be at most "
        f"{MOST_WORSE}; above on {above}"
    ]


def _of_time(scores: Scores, methods: Sequence[str], first: str) -> list[str]:
    if "dgpsi-si-ic" not in methods:
        return []
    ratio = [
        scores[p, first]["fit_cpu_s"] / scores[p, "dgpsi-si-ic"]["fit_cpu_s"]
        for p in problems_of(scores)
    ]
    ratio = [each for each in ratio if not np.isnan(each)]
    return [
        f"cpu time of a fit over that of dgpsi's default: mean {np.mean(ratio):.2f}, "
        f"largest {max(ratio):.2f}, to be at most {MOST_TIME}"
    ]


def markdown(rows: list[list[str]]) -> list[str]:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *body]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ours", nargs="+", type=Path, required=True, help="files of accuracy.py")
    add("--peers", nargs="+", type=Path, default=[], help="files of peers.py")
    add("--methods", nargs="+", required=True, help="the first one is judged")
    add("--markdown", action="store_true", help="tables for a page")
    args = parser.parse_args(argv)
    records = read([*args.peers, *args.ours])
    scores = mean_scores(records, args.methods)
    show = markdown if args.markdown else aligned
    for rows in (
        score_table(scores, args.methods),
        overall_table(scores, args.methods),
        confusion(records, (args.methods[0], "few")),
    ):
        print(*show(rows), "", sep="\n")
    print(*verdict(scores, args.methods, args.methods[0]), sep="\n")


if __name__ == "__main__":
    main()
