"""Judge what the stochastic-imputation paper says of each experiment, from the stored trials.

    python benchmarks/paper_claims.py                   # tables in Markdown
    python benchmarks/paper_claims.py --results build/paper   # of your own run
    python benchmarks/paper_claims.py --page docs/paper.md   # into the page, between its marks

How is in ``paper_judges.py``; how several verdicts make one is in ``paper_verdicts.py``. What needs
trials that were not run, or fewer than six of them, is left open.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from paper import EXPERIMENTS, depths
from paper_acceptances import NETWORKS as COUNTED
from paper_figures import Results, read
from paper_judges import (
    Who,
    accepted_sooner,
    as_efficient,
    balances,
    contrast,
    covers_too_little,
    covers_too_little_in_the_region,
    does_not_interpolate,
    fails_to_tell,
    faster,
    interpolates,
    knows_its_errors,
    knows_its_errors_as_well,
    less_sure_in_the_region,
    lower_error,
    no_less_sure_in_the_region,
    no_lower_error,
    not_significantly_lower_error,
    picks_the_region,
    predicts_faster,
    side_by_side,
    steadier,
    sure_of_zeros,
    sure_where_wrong,
    surer_at_the_jump,
    surer_at_the_runs,
)
from paper_tables import STORED, text_of, title
from paper_times import NETWORKS as BESIDE
from paper_verdicts import (
    Judge,
    Missing,
    Verdict,
    all_of,
    more_often,
)
from problems import DATA

OPEN = "open"


class Claim(NamedTuple):
    where: str
    text: str
    judge: Judge


FB, DSVI, SI, IC = (lambda depth, method=m: (method, depth) for m in ("fb", "dsvi", "si", "si-ic"))
GP: Who = ("gp", 0)
DEEP = ("fb", "dsvi", "si", "si-ic")


def at_every_depth(problem: str, *methods: str) -> list[Who]:
    """The networks of the experiment that the paper has for these methods."""
    return [
        (method, depth)
        for depth in EXPERIMENTS[problem].depths
        for method in methods
        if depth in depths(problem, method)
    ]


def of_errors_of_a_greek(problem: str, where: str) -> tuple[Claim, ...]:
    """Said of Vega, and of Delta by 'similar conclusions'."""
    by_layers = EXPERIMENTS[problem].depths
    greek = title(problem)
    return (
        Claim(where, f"{greek}: SI beats FB and DSVI at every depth",
              all_of(*(lower_error(problem, SI(who[1]), who)
                       for who in at_every_depth(problem, "fb", "dsvi")))),
        Claim(where, f"{greek}: SI-IC beats SI at every depth",
              all_of(*(lower_error(problem, IC(d), SI(d)) for d in by_layers))),
        Claim(where, f"{greek}: three layers beat two, with DSVI and with SI-IC",
              all_of(*(lower_error(problem, who(3), who(2)) for who in (DSVI, IC)))),
        Claim(where, f"{greek}: four layers are no better than three, with DSVI and with SI-IC",
              all_of(*(no_lower_error(problem, who(4), who(3)) for who in (DSVI, IC)))),
    )  # fmt: skip


STEP = (
    Claim("4, Fig. 4", "Step: every deep one beats the plain process",
          all_of(*(lower_error("step", who(3), GP) for who in (FB, DSVI, SI, IC)))),
    Claim("4, Fig. 4", "Step: FB, SI and SI-IC have better means than DSVI",
          all_of(*(lower_error("step", who(3), DSVI(3)) for who in (FB, SI, IC)))),
    Claim("4, Fig. 4", "Step: SI and FB are less sure at the jump than SI-IC and DSVI",
          all_of(*(surer_at_the_jump(b(3), a(3))
                   for a in (SI, FB) for b in (IC, DSVI)))),
    Claim("4, Fig. 4", "Step: at the runs DSVI is less sure than the others, which interpolate",
          all_of(*(surer_at_the_runs(who(3), DSVI(3)) for who in (FB, SI, IC)))),
    Claim("4, Fig. 5", "Step: FB, SI and SI-IC mark the jump more than DSVI",
          all_of(*(surer_at_the_jump(DSVI(3), who(3))
                   for who in (FB, SI, IC)))),
    Claim("4, Fig. 6", "Step: FB has the lowest errors, then DSVI",
          all_of(*(lower_error("step", a(3), b(3))
                   for a, b in ((FB, DSVI), (DSVI, IC), (DSVI, SI))))),
    Claim("4, Fig. 6", "Step: SI has the largest errors of the deep ones",
          all_of(*(lower_error("step", who(3), SI(3)) for who in (FB, DSVI, IC)))),
    Claim("4, Fig. 6", "Step: the input connection lowers the errors of SI",
          lower_error("step", IC(3), SI(3))),
    Claim("4, Fig. 6", "Step: SI-IC comes near FB and DSVI (within a tenth)",
          all_of(*(no_lower_error("step", who(3), IC(3)) for who in (FB, DSVI)))),
)  # fmt: skip

VEGA = (
    *of_errors_of_a_greek("vega", "5, Fig. 9"),
    Claim("5", "Vega: SI-IC of three layers is the best overall, by balancing errors, "
          "uncertainty and time",
          all_of(*(balances("vega", IC(3), who)
                   for who in at_every_depth("vega", *DEEP) if who != IC(3)))),
    Claim("5, Fig. 10", "Vega: uncertainties behave as on the step function: of three layers, SI "
          "and FB mark large Vega more than SI-IC, and DSVI least",
          all_of(*(contrast("vega", a(3), b(3))
                   for a, b in ((SI, IC), (FB, IC), (SI, DSVI), (FB, DSVI), (IC, DSVI))))),
    Claim("5, Fig. 10", "Vega: DSVI is surer than the others where it is wrong",
          all_of(*(sure_where_wrong("vega", DSVI(who[1]), who)
                   for who in at_every_depth("vega", "fb", "si", "si-ic")))),
    Claim("5, Fig. 10", "Vega: DSVI is surer than the others where Vega is large",
          all_of(*(contrast("vega", who, DSVI(who[1]))
                   for who in at_every_depth("vega", "fb", "si", "si-ic")))),
    Claim("5, Fig. 10", "Vega: FB of three layers tells good means from bad ones best",
          all_of(*(knows_its_errors("vega", FB(3), who(3)) for who in (DSVI, SI, IC)))),
)  # fmt: skip

FIVED = (
    Claim("S.1, Fig. S.2", "5-D: three layers have larger errors than two, with every method",
          all_of(*(lower_error("fived", who(2), who(3)) for who in (FB, DSVI, SI, IC)))),
    Claim("S.1, Fig. S.2", "5-D: SI is faster than FB",
          all_of(*(faster("fived", SI(d), FB(d)) for d in (2, 3)))),
    Claim("S.1, Fig. S.2", "5-D: SI is as accurate as FB (within a tenth)",
          all_of(*(no_lower_error("fived", FB(d), SI(d)) for d in (2, 3)))),
    Claim("S.1, Fig. S.2", "5-D: of two layers SI-IC has the lowest errors",
          all_of(*(lower_error("fived", IC(2), who(2)) for who in (FB, DSVI, SI)))),
    Claim("S.1, Fig. S.2", "5-D: of three layers DSVI has the lowest errors",
          all_of(*(lower_error("fived", DSVI(3), who(3)) for who in (FB, SI, IC)))),
    Claim("S.1, Fig. S.3", "5-D: DSVI underestimates its uncertainty",
          all_of(*(covers_too_little("fived", DSVI(d)) for d in (2, 3)))),
    *(Claim("S.1, Fig. S.3", f"5-D: {better} knows its errors better than {worse}",
            all_of(*(knows_its_errors("fived", a(d), b(d)) for d in (2, 3))))
      for better, a, worse, b in (("SI-IC", IC, "FB", FB), ("FB", FB, "SI", SI),
                                  ("SI", SI, "DSVI", DSVI))),
    Claim("S.1, Fig. S.3", "5-D: the plain process fails to tell good means from bad ones",
          fails_to_tell("fived", GP)),
    Claim("S.1, Fig. S.3", "5-D: FB, SI and SI-IC of three layers are sure of zeros that are none",
          all_of(*(sure_of_zeros("fived", who(3)) for who in (FB, SI, IC)))),
)  # fmt: skip

ENGINE = (
    Claim("S.2, Fig. S.4", "Engine: in general the deep ones beat the plain process",
          all_of(*(lower_error("engine", who, GP) for who in at_every_depth("engine", *DEEP)))),
    Claim("S.2, Fig. S.4", "Engine: DSVI has the lowest errors",
          all_of(*(lower_error("engine", DSVI(who[1]), who)
                   for who in at_every_depth("engine", "fb", "si", "si-ic")))),
    Claim("S.2, Fig. S.4", "Engine: with two and three layers SI is as accurate as DSVI "
          "(within a tenth)",
          all_of(*(no_lower_error("engine", DSVI(d), SI(d)) for d in (2, 3)))),
    Claim("S.2, Fig. S.4", "Engine: the input connection brings no clear gain",
          all_of(*(no_lower_error("engine", IC(d), SI(d))
                   for d in EXPERIMENTS["engine"].depths))),
    Claim("S.2, Fig. S.5", "Engine: intervals of the plain process are too short where TSFC is "
          "high", covers_too_little_in_the_region("engine", GP)),
    Claim("S.2, Fig. S.5", "Engine: most deep ones are less sure where TSFC is high, "
          "more so than the plain process",
          all_of(*(contrast("engine", who, GP)
                   for who in at_every_depth("engine", *DEEP)))),
    Claim("S.2, Fig. S.5", "Engine: SI and SI-IC mark high TSFC more than FB and DSVI",
          all_of(*(contrast("engine", who(other[1]), other)
                   for other in at_every_depth("engine", "fb", "dsvi") for who in (SI, IC)))),
)  # fmt: skip

DELTA = (
    *of_errors_of_a_greek("delta", "S.3, Fig. S.6"),
    Claim("S.3, Fig. S.6", "Delta: SI-IC has the lowest errors",
          all_of(*(lower_error("delta", IC(who[1]), who)
                   for who in at_every_depth("delta", "fb", "dsvi", "si")))),
    Claim("S.3, Fig. S.6", "Delta: SI-IC is the steadiest over trials",
          all_of(*(steadier("delta", IC(who[1]), who)
                   for who in at_every_depth("delta", "fb", "dsvi", "si")))),
    Claim("S.3, Fig. S.7", "Delta: the plain process is no less sure at the money than away from "
          "it", no_less_sure_in_the_region("delta", GP)),
    Claim("S.3, Fig. S.7", "Delta: in general the deep ones are less sure at the money",
          all_of(*(less_sure_in_the_region("delta", who)
                   for who in at_every_depth("delta", *DEEP)))),
    Claim("S.3, Fig. S.7", "Delta: intervals of SI are too short at the money",
          all_of(*(covers_too_little_in_the_region("delta", SI(d))
                   for d in EXPERIMENTS["delta"].depths))),
    Claim("S.3, Fig. S.7", "Delta: SI-IC is less sure at the money than SI",
          all_of(*(contrast("delta", IC(d), SI(d))
                   for d in EXPERIMENTS["delta"].depths))),
)  # fmt: skip

GAMMA = (
    Claim("S.4, Fig. S.8", "Gamma: no deep one is significantly better than the plain process",
          all_of(*(not_significantly_lower_error("gamma", who, GP)
                   for who in at_every_depth("gamma", *DEEP)))),
    Claim("S.4, Fig. S.8", "Gamma: SI-IC of three layers has lower errors than FB, DSVI and SI",
          all_of(*(lower_error("gamma", IC(3), who)
                   for who in at_every_depth("gamma", "fb", "dsvi", "si")))),
    Claim("S.4, Fig. S.9", "Gamma: the plain process is no less sure near the spikes than "
          "elsewhere", no_less_sure_in_the_region("gamma", GP)),
    Claim("S.4, Fig. S.9", "Gamma: most deep ones are less sure near the spikes",
          all_of(*(less_sure_in_the_region("gamma", who)
                   for who in at_every_depth("gamma", *DEEP)))),
    Claim("S.4, Fig. S.9", "Gamma: SI-IC of three layers marks the spikes most",
          all_of(*(contrast("gamma", IC(3), who)
                   for who in at_every_depth("gamma", *DEEP) if who != IC(3)))),
    Claim("S.4, Fig. S.9", "Gamma: with most deep ones a sequential design would pick more points "
          "near the spikes than with the plain process",
          all_of(*(picks_the_region("gamma", who, GP)
                   for who in at_every_depth("gamma", *DEEP)))),
)  # fmt: skip

OVERALL = (
    *(Claim("abstract", f"{title(problem)}: the efficiency of SI is comparable to that of DSVI "
            "(less than twice the time)",
            all_of(*(side_by_side(as_efficient(problem, SI(d), DSVI(d))) for d in by_layers)))
      for problem, by_layers in BESIDE.items()),
    *(Claim("abstract, 3", f"{title(problem)}: SI predicts faster than DSVI, which samples",
            all_of(*(side_by_side(predicts_faster(problem, SI(d), DSVI(d))) for d in by_layers)))
      for problem, by_layers in BESIDE.items()),
    *(Claim("3", f"{title(problem)}: SI keeps interpolation",
            all_of(*(side_by_side(interpolates(problem, who(d)))
                     for d in by_layers for who in (SI, IC))))
      for problem, by_layers in BESIDE.items()),
    *(Claim("3", f"{title(problem)}: DSVI loses interpolation",
            all_of(*(side_by_side(does_not_interpolate(problem, DSVI(d))) for d in by_layers)))
      for problem, by_layers in BESIDE.items()),
    *(Claim("abstract", f"{title(problem)}: SI knows its errors as well as FB",
            all_of(*(knows_its_errors_as_well(problem, SI(d), FB(d)) for d in (2, 3))))
      for problem in ("vega", "delta", "gamma", "fived", "engine")),
    *(Claim("4", f"{title(problem)}: SI-IC is faster than SI",
            all_of(*(side_by_side(faster(problem, IC(d), SI(d))) for d in by_layers)))
      for problem, by_layers in BESIDE.items()),
    Claim("4", "5-D: SI-IC is faster than SI",
          all_of(*(faster("fived", IC(d), SI(d)) for d in EXPERIMENTS["fived"].depths))),
    *(Claim("4", f"{title(problem)}: updates are accepted sooner with the input connection",
            all_of(*(accepted_sooner(problem, IC(d), SI(d)) for d in by_layers)))
      for problem, by_layers in COUNTED.items()),
    *(Claim("6", f"{title(problem)}: more than two layers do not improve SI significantly",
            all_of(*(not_significantly_lower_error(problem, SI(d), SI(2))
                     for d in EXPERIMENTS[problem].depths if d > 2)))
      for problem in ("vega", "delta", "gamma", "fived", "engine")),
    Claim("6", "There is some evidence that the input connection lowers the errors of SI",
          more_often([lower_error(problem, IC(d), SI(d))
                      for problem in EXPERIMENTS for d in EXPERIMENTS[problem].depths],
                     "lower in {yes} and higher in {no} of {all} networks")),
)  # fmt: skip

GROUPS = {
    "step": STEP,
    "vega": VEGA,
    "fived": FIVED,
    "engine": ENGINE,
    "delta": DELTA,
    "gamma": GAMMA,
    "overall": OVERALL,
}
CLAIMS = tuple(claim for group in GROUPS.values() for claim in group)


def judged(results: Results, claims: Sequence[Claim] = CLAIMS) -> list[tuple[Claim, Verdict]]:
    found = []
    for claim in claims:
        try:
            found.append((claim, claim.judge(results)))
        except Missing as error:
            found.append((claim, Verdict(OPEN, (str(error),))))
    return found


def verdicts_in_markdown(claims: Sequence[Claim], results: Results) -> str:
    rows = [["in the paper", "what it says", "here", "numbers"]]
    for claim, verdict in judged(results, claims):
        rows.append([claim.where, claim.text, verdict.word, "; ".join(verdict.numbers)])
    return text_of(rows)


TABLES: dict[str, Callable[[Results], str]] = {
    **STORED,
    **{f"claims {name}": partial(verdicts_in_markdown, claims) for name, claims in GROUPS.items()},
}


def filled_in(page: str, results: Results) -> str:
    """The page with new tables between its marks, ``<!-- scores -->`` and ``<!-- end -->``."""
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
        print(*(f"{mark}\n\n{table(results)}" for mark, table in TABLES.items()), sep="\n", end="")
    else:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(filled_in(page, results), encoding="utf-8")


if __name__ == "__main__":
    main()
