"""Judge what the stochastic-imputation paper says of each experiment, from the stored trials.

    python benchmarks/paper_claims.py                   # a table in Markdown
    python benchmarks/paper_claims.py --results build   # of your own run
    python benchmarks/paper_claims.py --page docs/paper.md   # into the page, between its marks

A claim about errors compares the NRMSEP of trials by a rank test at 5 %: it is confirmed if the
difference is clear and of the stated sign. One about standard deviations looks at the best trial
of each method, as the paper's pictures do. What needs trials that were not run, or fewer than six
of them, is left open.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from paper import EXPERIMENTS, depths
from paper_figures import NAMES, Record, Results, bars, best, column, read, times
from problems import DATA, load_design
from scipy.stats import mannwhitneyu, spearmanr, wilcoxon

LEVEL = 0.05
FEWEST = 6  # trials of a method: with five no rank test against one value can be clear
CONFIRMED, REFUTED, UNCLEAR, OPEN = "confirmed", "not confirmed", "no clear difference", "open"


class Missing(LookupError):
    """Trials that a claim needs were not run."""


class Verdict(NamedTuple):
    word: str
    numbers: tuple[str, ...]  # such as "SI 2: 0.0325"


class Claim(NamedTuple):
    where: str
    text: str
    judge: Callable[[Results], Verdict]


# --- what is compared ----------------------------------------------------------------------------


def trials(results: Results, problem: str, method: str, depth: int = 0) -> list[Record]:
    """All trials of a method, if they are enough to judge it by."""
    found = results.select(problem, method, depth)
    if len(found) < (1 if method == "gp" else FEWEST):  # a plain process has no randomness
        raise Missing(name(method, depth))
    return found


def name(method: str, depth: int = 0) -> str:
    return f"{NAMES[method]} {depth}" if depth else NAMES[method]


Who = tuple[str, int]  # method and depth; depth 0 where it has none


def lower_error(problem: str, one: Who, other: Who) -> Callable[[Results], Verdict]:
    """The first has the lower NRMSEP."""

    def judge(results: Results) -> Verdict:
        a, b = (column(trials(results, problem, *who), "nrmsep") for who in (one, other))
        numbers = f"{name(*one)}: {np.median(a):.4f}", f"{name(*other)}: {np.median(b):.4f}"
        return Verdict(compared(a, b), numbers)

    return judge


def compared(lower: np.ndarray, higher: np.ndarray) -> str:
    """Whether the first sample is clearly below the second; a single value is taken as exact."""
    if min(len(lower), len(higher)) == 1:
        p = wilcoxon(lower - higher).pvalue
    else:
        p = mannwhitneyu(lower, higher).pvalue
    if p > LEVEL:
        return UNCLEAR
    return CONFIRMED if np.median(lower) < np.median(higher) else REFUTED


def no_lower_error(problem: str, one: Who, other: Who) -> Callable[[Results], Verdict]:
    """The first does not have a clearly lower NRMSEP."""

    def judge(results: Results) -> Verdict:
        word, numbers = lower_error(problem, one, other)(results)
        return Verdict(REFUTED if word == CONFIRMED else CONFIRMED, numbers)

    return judge


def all_of(*judges: Callable[[Results], Verdict]) -> Callable[[Results], Verdict]:
    """Confirmed if all are; what was not run is named, unless nothing was."""

    def judge(results: Results) -> Verdict:
        found, missing = [], []
        for each in judges:
            try:
                found.append(each(results))
            except Missing as error:
                missing.append(str(error))
        if not found:
            raise Missing(", ".join(dict.fromkeys(missing)))
        words = [verdict.word for verdict in found]
        order = (REFUTED, UNCLEAR, CONFIRMED)
        word = next(word for word in order if word in words)
        if len(set(words)) > 1:
            counts = ", ".join(f"{words.count(w)} {w}" for w in reversed(order) if w in words)
            word = f"in part ({counts})"
        numbers = [number for verdict in found for number in verdict.numbers]
        left_out = [f"too few trials: {', '.join(dict.fromkeys(missing))}"] if missing else []
        return Verdict(word, tuple(dict.fromkeys(numbers + left_out)))

    return judge


def faster(problem: str, one: Who, other: Who) -> Callable[[Results], Verdict]:
    """The first takes less time; of the trials whose time was measured."""

    def judge(results: Results) -> Verdict:
        a, b = (times(trials(results, problem, *who)) for who in (one, other))
        for who, seconds in ((one, a), (other, b)):
            if not len(seconds):
                raise Missing(f"times of {name(*who)}")
        numbers = f"{name(*one)}: {a.mean():.3g} s", f"{name(*other)}: {b.mean():.3g} s"
        return Verdict(compared(a, b), numbers)

    return judge


# --- standard deviations -------------------------------------------------------------------------


def knows_its_errors(problem: str, who: Who, other: Who) -> Callable[[Results], Verdict]:
    """The first one's standard deviations follow its errors more closely, by rank correlation."""

    def judge(results: Results) -> Verdict:
        truth, found = load_design(problem, 0).y_test, []
        for each in (who, other):
            mean, std = results.moments(best(trials(results, problem, *each)))
            found.append(spearmanr(np.abs(mean - truth), std).statistic)
        numbers = f"{name(*who)}: {found[0]:.2f}", f"{name(*other)}: {found[1]:.2f}"
        return Verdict(CONFIRMED if found[0] > found[1] else REFUTED, numbers)

    return judge


def contrast(
    problem: str, who: Who, other: Who, region: Callable[[np.ndarray], np.ndarray]
) -> Callable[[Results], Verdict]:
    """The first one's standard deviations differ more between a region of outputs and the rest."""

    def judge(results: Results) -> Verdict:
        inside, found = region(load_design(problem, 0).y_test), []
        for each in (who, other):
            _, std = results.moments(best(trials(results, problem, *each)))
            found.append(std[inside].mean() / std[~inside].mean())
        numbers = f"{name(*who)}: {found[0]:.2f} times", f"{name(*other)}: {found[1]:.2f} times"
        return Verdict(CONFIRMED if found[0] > found[1] else REFUTED, numbers)

    return judge


def step_gap(who: Who, other: Who) -> Callable[[Results], Verdict]:
    """The first one's standard deviations are larger between the two runs beside the jump."""

    def judge(results: Results) -> Verdict:
        gap = np.abs(load_design("step", 0).X_test[:, 0] - 0.5) < 1 / 18
        a, b = (
            np.array([results.moments(r)[1][gap].mean() for r in trials(results, "step", *each)])
            for each in (who, other)
        )
        numbers = f"{name(*who)}: {np.median(a):.3f}", f"{name(*other)}: {np.median(b):.3f}"
        return Verdict(compared(b, a), numbers)

    return judge


# --- the claims ----------------------------------------------------------------------------------

SI, IC, DSVI, FB = (lambda d, m=m: (m, d) for m in ("si", "si-ic", "dsvi", "fb"))
GP: Who = ("gp", 0)
HESTON_DEPTHS = (2, 3, 4)


def at_every_depth(problem: str, *methods: str) -> list[Who]:
    """The networks of the experiment that the paper has for these methods."""
    return [
        (method, depth)
        for depth in EXPERIMENTS[problem].depths
        for method in methods
        if depth in depths(problem, method)
    ]


def at_the_money(delta: np.ndarray) -> np.ndarray:
    return (delta > 0.1) & (delta < 0.9)


def upper_tenth(values: np.ndarray) -> np.ndarray:
    return values >= np.quantile(values, 0.9)


CLAIMS = (
    Claim("4, Fig. 5", "Step: every deep one beats the plain process",
          all_of(*(lower_error("step", who(3), GP) for who in (FB, SI, IC, DSVI)))),
    Claim("4, Fig. 5", "Step: SI and FB are less sure at the jump than SI-IC and DSVI",
          all_of(*(step_gap(a(3), b(3)) for a in (SI, FB) for b in (IC, DSVI)))),
    Claim("4, Fig. 7", "Step: SI has the largest errors of the deep ones",
          all_of(*(lower_error("step", who(3), SI(3)) for who in (FB, IC, DSVI)))),
    Claim("4, Fig. 7", "Step: the input connection lowers the errors of SI",
          lower_error("step", IC(3), SI(3))),
    Claim("4, Fig. 7", "Step: SI-IC is faster than SI", faster("step", IC(3), SI(3))),
    Claim("5, Fig. 10", "Vega: SI beats FB and DSVI at every depth",
          all_of(*(lower_error("vega", SI(who[1]), who)
                   for who in at_every_depth("vega", "fb", "dsvi")))),
    Claim("5, Fig. 10", "Vega: SI-IC beats SI at every depth",
          all_of(*(lower_error("vega", IC(d), SI(d)) for d in HESTON_DEPTHS))),
    Claim("5, Fig. 10", "Vega: three layers beat two, with DSVI and with SI-IC",
          all_of(*(lower_error("vega", who(3), who(2)) for who in (DSVI, IC)))),
    Claim("5, Fig. 10", "Vega: four layers are no better than three, with DSVI and with SI-IC",
          all_of(*(no_lower_error("vega", who(4), who(3)) for who in (DSVI, IC)))),
    Claim("5, Fig. 11", "Vega: SI-IC knows its errors better than DSVI",
          all_of(*(knows_its_errors("vega", IC(d), DSVI(d)) for d in HESTON_DEPTHS))),
    Claim("S.1, Fig. S.2", "5-D: three layers have larger errors than two, with every method",
          all_of(*(lower_error("fived", who(2), who(3)) for who in (FB, DSVI, SI, IC)))),
    Claim("S.1, Fig. S.2", "5-D: SI is faster than FB",
          all_of(*(faster("fived", SI(d), FB(d)) for d in (2, 3)))),
    Claim("S.1, Fig. S.2", "5-D: of two layers SI-IC has the lowest errors",
          all_of(*(lower_error("fived", IC(2), who(2)) for who in (SI, FB, DSVI)))),
    Claim("S.1, Fig. S.2", "5-D: of three layers DSVI has the lowest errors",
          all_of(*(lower_error("fived", DSVI(3), who(3)) for who in (SI, FB, IC)))),
    Claim("S.1, Fig. S.3", "5-D: SI-IC knows its errors better than DSVI, SI and the plain process",
          all_of(*(knows_its_errors("fived", IC(d), who) for d in (2, 3)
                   for who in (DSVI(d), SI(d), GP)))),
    Claim("S.2, Fig. S.4", "Engine: the deep ones beat the plain process",
          all_of(*(lower_error("engine", who(d), GP) for d in HESTON_DEPTHS
                   for who in (SI, IC, DSVI)))),
    Claim("S.2, Fig. S.4", "Engine: DSVI has the lowest errors",
          all_of(*(lower_error("engine", DSVI(d), who(d)) for d in HESTON_DEPTHS
                   for who in (SI, IC)))),
    Claim("S.2, Fig. S.4", "Engine: the input connection brings no clear gain",
          all_of(*(no_lower_error("engine", IC(d), SI(d)) for d in HESTON_DEPTHS))),
    Claim("S.2, Fig. S.5", "Engine: SI and SI-IC are less sure where TSFC is high, the plain "
          "process is not",
          all_of(*(contrast("engine", who(d), GP, upper_tenth) for d in HESTON_DEPTHS
                   for who in (SI, IC)))),
    Claim("S.3, Fig. S.6", "Delta: SI-IC has the lowest errors",
          all_of(*(lower_error("delta", IC(who[1]), who)
                   for who in at_every_depth("delta", "si", "fb", "dsvi")))),
    Claim("S.3, Fig. S.7", "Delta: deep ones are surer away from the money than at it, "
          "the plain process is not",
          all_of(*(contrast("delta", who(d), GP, at_the_money) for d in HESTON_DEPTHS
                   for who in (SI, IC)))),
    Claim("S.4, Fig. S.8", "Gamma: no deep one clearly beats the plain process",
          all_of(*(no_lower_error("gamma", who, GP)
                   for who in at_every_depth("gamma", "si", "si-ic", "fb", "dsvi")))),
    Claim("S.4, Fig. S.8", "Gamma: SI-IC of three layers has the lowest errors",
          all_of(*(lower_error("gamma", IC(3), who)
                   for who in at_every_depth("gamma", "si", "si-ic", "fb", "dsvi")
                   if who != IC(3)))),
    Claim("S.4, Fig. S.9", "Gamma: deep ones are less sure near the spikes, the plain process "
          "less so",
          all_of(*(contrast("gamma", who(d), GP, upper_tenth) for d in HESTON_DEPTHS
                   for who in (SI, IC)))),
    *(Claim("6", f"{problem.capitalize()}: more than two layers do not improve SI",
            all_of(*(no_lower_error(problem, SI(d), SI(2)) for d in (3, 4))))
      for problem in ("vega", "delta", "gamma", "engine")),
)  # fmt: skip


def judged(results: Results, claims: Sequence[Claim] = CLAIMS) -> list[tuple[Claim, Verdict]]:
    found = []
    for claim in claims:
        try:
            found.append((claim, claim.judge(results)))
        except Missing as error:
            found.append((claim, Verdict(OPEN, (f"too few trials: {error}",))))
    return found


def markdown(results: Results) -> str:
    lines = ["| in the paper | what it says | here | numbers |", "|---|---|---|---|"]
    for claim, verdict in judged(results):
        numbers = "; ".join(verdict.numbers)
        lines.append(f"| {claim.where} | {claim.text} | {verdict.word} | {numbers} |")
    return "\n".join(lines) + "\n"


def scores_in_markdown(results: Results) -> str:
    """Median NRMSEP, mean CRPS over the range, mean coverage and time of what was run."""
    lines = [
        "| problem | method, layers | trials | NRMSEP | CRPS/range | coverage | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for problem in EXPERIMENTS:
        for _, label, found, _ in bars(problem, results.methods(problem), results):
            error, crps, inside = (
                column(found, each) for each in ("nrmsep", "normalised_crps", "coverage")
            )
            seconds = times(found)
            spent = f"{seconds.mean():.3g}" if len(seconds) else ""
            lines.append(
                f"| {problem} | {label} | {len(found)} | {np.median(error):.4f} "
                f"| {crps.mean():.4f} | {inside.mean():.2f} | {spent} |"
            )
    return "\n".join(lines) + "\n"


TABLES = {"scores": scores_in_markdown, "claims": markdown}


def filled_in(page: str, results: Results) -> str:
    """The page with new tables between its marks, ``<!-- claims -->`` and ``<!-- end -->``."""
    for mark, table in TABLES.items():
        before, opening, rest = page.partition(f"<!-- {mark} -->\n")
        _, closing, after = rest.partition("<!-- end -->")
        if not (opening and closing):
            raise ValueError(f"the page needs the lines <!-- {mark} --> and <!-- end -->")
        page = f"{before}{opening}\n{table(results)}\n{closing}{after}"
    return page


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=DATA, help="folder of the table")
    parser.add_argument("--page", type=Path, help="file to put the tables into")
    options = parser.parse_args(arguments)
    results = read(options.results)
    if options.page is None:
        print(*(table(results) for table in TABLES.values()), sep="\n", end="")
    else:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(filled_in(page, results), encoding="utf-8")


if __name__ == "__main__":
    main()
