"""Are the error bars right? `deepemu` against other packages over all problems, from stored runs.

    python benchmarks/study.py --markdown
    python benchmarks/study.py study.json new.json --store study.json

Whether 95 % intervals hold 95 % of the test points, whether the CRPS is the best, what a fit costs,
and whether the warning fires where intervals fail and only there. Methods are compared on the
designs that all of them finished, fresh ones unless others are named: ranks are of all methods, and
the other columns of each method and ours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _report import aligned, read_json
from accuracy import PLAIN_GPS
from problems import DATA, FRESH, LARGE_PROBLEMS, PAPER, SIMULATORS

STUDIED = (*PAPER, *SIMULATORS)
STORE = DATA / "study.json"
LABELS = {
    "emulator": "`Emulator()`",
    "dgpsi-si-ic": "dgpsi, 2 layers",
    "dsvi": "GPyTorch DSVI, 2 layers",
    "dsvi-3": "GPyTorch DSVI, 3 layers",
    "gp": "`GP()`",
    "dgpsi-gp": "dgpsi GP (reference prior)",
    "sklearn-matern": "scikit-learn GP, Matérn",
    "sklearn-rbf": "scikit-learn GP, SE",
    "forest": "random forest",
    "boosting": "boosting",
    "quantile-boosting": "quantile boosting",
}
BEST_PLAIN, DGPSI, QUICK = "the best of our plain processes", "dgpsi-si-ic", "quick"
WARN = ("emulator", "few")
NOMINAL = (0.94, 0.965)
LEAST_COVERAGE, FAILED = 0.90, 0.88
MOST_RANK = 1.1
MOST_WORSE = 1.05
MOST_TIME = 2.0
MOST_BY_HASTE = 1.1
IDENTITY = {"problem": None, "design": None, "method": None, "trial": 0}
AVERAGED = ("normalised_crps", "coverage", "fit_cpu_s")
STORED = ("nrmsep", *AVERAGED, "mixture_crps", "interval_coverage", "warned", "version")

Record = dict[str, Any]
Scores = dict[tuple[str, str], Record]
Rows = list[list[str]]


# --- runs ----------------------------------------------------------------------------------------


def read(paths: Iterable[Path]) -> list[Record]:
    """The records of all files; a later file replaces runs of an earlier one."""
    stored = {}
    for path in paths:
        for record in read_json(path) or []:
            if "error" not in record:
                stored[tuple(record.get(*field) for field in IDENTITY.items())] = record
    return list(stored.values())


def brief(record: Record) -> Record:
    """What is stored of a run: its identity and scores to six digits."""
    digits = lambda value: round(value, 6) if isinstance(value, float) else value  # noqa: E731
    return {name: digits(record[name]) for name in (*IDENTITY, *STORED) if name in record}


def one_per_line(records: list[Record]) -> str:
    """JSON that shows in a diff which runs are new."""
    return "[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n"


def coverage(record: Record) -> float:
    """That of the intervals that a method offers: of mean ± 1.96 sd, unless it has its own."""
    return record.get("interval_coverage", record["coverage"])


def crps(record: Record) -> float:
    """That of the distribution that a method offers: of the normal, unless it has its own."""
    return record.get("mixture_crps", record["normalised_crps"])


def as_offered(record: Record) -> Record:
    return {**record, "coverage": coverage(record), "normalised_crps": crps(record)}


def common_designs(
    records: list[Record], methods: Sequence[str], problems: Iterable[str] = STUDIED
) -> dict[str, list[int]]:
    """For each problem, the designs that all methods finished."""
    done = {method: set() for method in methods}
    for record in records:
        if record["method"] in done:
            done[record["method"]].add((record["problem"], record["design"]))
    shared = sorted(set.intersection(*done.values()))
    return {p: [d for q, d in shared if q == p] for p in problems if any(q == p for q, _ in shared)}


def mean_scores(
    records: list[Record], methods: Sequence[str], problems: Iterable[str] = STUDIED
) -> Scores:
    """Means over common designs by problem and method; of our plain processes also the best."""
    found = {}
    for problem, designs in common_designs(records, methods, problems).items():
        for method in (*methods, *PLAIN_GPS):
            mine = [
                as_offered(r) for r in records
                if (r["problem"], r["method"]) == (problem, method) and r["design"] in designs
            ]  # fmt: skip
            if mine:
                found[problem, method] = {
                    name: _mean(r[name] for r in mine if name in r) for name in AVERAGED
                }
    return found | best_plain(found)


def best_plain(scores: Scores) -> Scores:
    """For each problem, the plain process of ours with the least CRPS on the test points."""
    return {
        (problem, BEST_PLAIN): min(plain, key=lambda score: score["normalised_crps"])
        for problem in problems_of(scores)
        if (plain := [scores[problem, m] for m in PLAIN_GPS if (problem, m) in scores])
    }


def _mean(values: Iterable[float]) -> float:
    """NaN for none, such as times of runs on another machine, which are left out of the files."""
    values = list(values)
    return float(np.mean(values)) if values else float("nan")


def by_designs(records: list[Record], methods: Sequence[str]) -> dict[tuple[int, ...], list[str]]:
    """Methods by the designs on which they ran."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for method in methods:
        ran = {record["design"] for record in records if record["method"] == method}
        groups.setdefault(tuple(sorted(ran)), []).append(method)
    return groups


def problems_of(scores: Scores) -> list[str]:
    return list(dict.fromkeys(problem for problem, _ in scores))


def values_of(scores: Scores, method: str, name: str) -> dict[str, float]:
    """One score of a method by problem, where there is one."""
    found = {p: score[name] for (p, m), score in scores.items() if m == method}
    return {problem: value for problem, value in found.items() if not np.isnan(value)}


# --- comparisons ---------------------------------------------------------------------------------


def ranks(scores: Scores, methods: Sequence[str]) -> dict[str, float]:
    """Mean rank of each method by CRPS, 1 being the best."""
    table = np.array([list(values_of(scores, m, "normalised_crps").values()) for m in methods])
    order = table.argsort(axis=0).argsort(axis=0) + 1
    return dict(zip(methods, order.mean(axis=1), strict=True))


def ratios(scores: Scores, first: str, other: str, name: str) -> dict[str, float]:
    """A score of the first method over that of another, by problem."""
    above, below = (values_of(scores, method, name) for method in (first, other))
    return {problem: above[problem] / below[problem] for problem in above if problem in below}


def relative_crps(scores: Scores, method: str, first: str) -> float:
    """Geometric mean over problems of the CRPS over that of the first method."""
    return float(
        np.exp(np.mean(np.log([*ratios(scores, method, first, "normalised_crps").values()])))
    )


# --- tables --------------------------------------------------------------------------------------


def score_table(scores: Scores, methods: Sequence[str]) -> Rows:
    """CRPS and coverage of each method on each problem, the best CRPS bold; then the best of our
    plain processes, which the test points choose."""
    shown = [*methods, *([BEST_PLAIN] if values_of(scores, BEST_PLAIN, "coverage") else [])]
    rows = [["problem", *(LABELS.get(m, m) for m in shown)]]
    for problem in problems_of(scores):
        best = min(scores[problem, m]["normalised_crps"] for m in methods)
        cells = [_cell(scores[problem, m], best if m in methods else None) for m in shown]
        rows.append([problem, *cells])
    return rows


def _cell(score: Record, best: float | None) -> str:
    crps = f"{score['normalised_crps']:.4f}".lstrip("0")
    shown = f"**{crps}**" if score["normalised_crps"] == best else crps
    return f"{shown} {score['coverage']:.2f}".replace(" 0.", " .")


def overall_table(records: list[Record], methods: Sequence[str]) -> Rows:
    rank, first = ranks(mean_scores(records, methods), methods), methods[0]
    heads = [
        "method",
        "designs",
        "mean rank",
        "CRPS, relative",
        "mean coverage",
        "least",
        "fit, cpu s",
    ]
    rows = [heads]
    for designs, some in by_designs(records, methods).items():
        listed = ", ".join(map(str, designs))
        for method in some:
            cells = _overall_cells(mean_scores(records, [first, method]), method, first)
            rows.append([LABELS.get(method, method), listed, f"{rank[method]:.2f}", *cells])
    return rows


def _overall_cells(scores: Scores, method: str, first: str) -> list[str]:
    inside = list(values_of(scores, method, "coverage").values())
    seconds = _mean(values_of(scores, method, "fit_cpu_s").values())
    return [
        f"{relative_crps(scores, method, first):.2f}",
        f"{np.mean(inside):.3f}",
        f"{min(inside):.2f}",
        "-" if np.isnan(seconds) else f"{seconds:.1f}",
    ]


def confusion(records: list[Record], methods: Sequence[str]) -> Rows:
    """Runs of some methods by whether the 95 % interval held enough test points and whether it
    warned."""
    mine = [r for r in records if r["method"] in methods]
    rows = [["", "warned", "silent"]]
    for label, failed in ((f"coverage below {FAILED}", True), ("coverage holds", False)):
        some = [r["warned"] for r in mine if (coverage(r) < FAILED) == failed]
        rows.append([label, str(sum(some)), str(len(some) - sum(some))])
    return rows


def verdict(records: list[Record], methods: Sequence[str]) -> Rows:
    """What is asked of the first method, beside what was measured."""
    first = methods[0]
    alone = mean_scores(records, [first])
    beside = mean_scores(records, [first, DGPSI]) if DGPSI in methods else {}
    large = mean_scores(records, [QUICK, first], LARGE_PROBLEMS)
    return [
        ["", "asked", "measured"],
        *_of_coverage(values_of(alone, first, "coverage")),
        *_of_rank(ranks(mean_scores(records, methods), methods), first),
        *_of_plain(ratios(alone, first, BEST_PLAIN, "normalised_crps")),
        *_of_time(ratios(beside, first, DGPSI, "fit_cpu_s")),
        *_of_haste(
            *(ratios(large, QUICK, first, name) for name in ("normalised_crps", "fit_cpu_s"))
        ),
    ]


def _of_coverage(inside: dict[str, float]) -> Rows:
    worst = min(inside, key=lambda problem: inside[problem])
    return [
        [
            "mean coverage of 95 % intervals",
            "{}–{}".format(*NOMINAL),
            f"{_mean(inside.values()):.3f}",
        ],
        ["least coverage of a problem", f"{LEAST_COVERAGE:.2f}", f"{inside[worst]:.3f} ({worst})"],
    ]


def _of_rank(rank: dict[str, float], first: str) -> Rows:
    others = [of for method, of in rank.items() if method != first]
    if not others:
        return []
    found = f"{rank[first]:.2f}, the next {min(others):.2f}"
    return [[f"mean rank by CRPS among {len(rank)}", f"{MOST_RANK} at most", found]]


def _of_plain(excess: dict[str, float]) -> Rows:
    if not excess:
        return []
    most = max(excess, key=lambda problem: excess[problem])
    above = ", ".join(p for p in excess if excess[p] > MOST_WORSE) or "none"
    name = f"CRPS over that of {BEST_PLAIN}"
    return [[name, f"{MOST_WORSE} at most", f"up to {excess[most]:.2f} ({most}); above on {above}"]]


def _of_time(ratio: dict[str, float]) -> Rows:
    if not ratio:
        return []
    found = f"{_mean(ratio.values()):.2f} on average, {max(ratio.values()):.2f} at most"
    return [["cpu time of a fit over that of dgpsi's default", f"{MOST_TIME:.0f} at most", found]]


def _of_haste(crps: dict[str, float], seconds: dict[str, float]) -> Rows:
    if not crps:
        return []
    found = f"{_mean(crps.values()):.2f}, in {_mean(seconds.values()):.2f} of the cpu time"
    name = 'CRPS of `effort="quick"` over that of the default, 500 runs of five inputs'
    return [[name, f"{MOST_BY_HASTE} at most", found]]


def tables(records: list[Record], methods: Sequence[str], designs: Sequence[int]) -> list[Rows]:
    """Scores by problem, for methods that ran on the same designs side by side with the first one;
    over all problems; of the warning; and what is asked."""
    mine = [record for record in records if record["design"] in designs]
    groups = [
        list(dict.fromkeys([methods[0], *some])) for some in by_designs(mine, methods).values()
    ]
    return [
        *(score_table(mean_scores(mine, some), some) for some in groups),
        overall_table(mine, methods), confusion(mine, WARN), verdict(mine, methods),
    ]  # fmt: skip


def markdown(rows: Rows) -> list[str]:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *body]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("files", nargs="*", type=Path, default=[STORE], help="of accuracy.py and peers.py")
    add("--methods", nargs="+", default=list(LABELS), help="the first one is judged")
    add("--designs", nargs="+", type=int, default=list(FRESH), metavar="INDEX")
    add("--markdown", action="store_true", help="tables for a page")
    add("--store", type=Path, help="file that takes the scores of all runs that were read")
    args = parser.parse_args(argv)
    records = read(args.files)
    if args.store:
        args.store.write_text(one_per_line([brief(record) for record in records]))
        return
    for rows in tables(records, args.methods, args.designs):
        print(*(markdown if args.markdown else aligned)(rows), "", sep="\n")


if __name__ == "__main__":
    main()
