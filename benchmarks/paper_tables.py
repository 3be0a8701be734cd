"""Tables of the page on the stochastic-imputation paper that hold stored numbers, not verdicts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from paper import EXPERIMENTS, FEWEST, depths
from paper_figures import NAMES, Results, bars, column, times
from paper_judges import compared
from paper_store import Record
from paper_times import NETWORKS as BESIDE
from paper_verdicts import CONFIRMED, REFUTED, UNCLEAR
from problems import DATA, N_STORED
from study import markdown

STORY = {CONFIRMED: "lower", REFUTED: "higher", UNCLEAR: "not clearly either"}


def text_of(rows: list[list[str]]) -> str:
    return "\n".join(markdown(rows)) + "\n"


def title(problem: str) -> str:
    return "5-D" if problem == "fived" else problem.capitalize()


SCORES = {"nrmsep": "{:.4f}", "normalised_crps": "{:.4f}", "coverage": "{:.2f}"}


def scores_in_markdown(results: Results) -> str:
    """Medians over the trials of everything that was run."""
    rows = [
        ["problem", "method, layers", "trials", "NRMSEP", "CRPS/range", "coverage", "seconds"],
    ]
    for problem in EXPERIMENTS:
        for _, label, found, _ in bars(problem, results.methods(problem), results):
            scores = [form.format(np.median(column(found, name))) for name, form in SCORES.items()]
            seconds = times(found)
            spent = f"{np.median(seconds):.3g}" if len(seconds) else ""
            rows.append([title(problem), label, str(len(found)), *scores, spent])
    return text_of(rows)


def times_in_markdown(results: Results) -> str:
    """Medians over rounds of the methods that took turns."""
    beside = Results(results.side_by_side, {})
    rows = [["problem, layers", "method", "rounds", "training, s", "prediction, s"]]
    for problem, by_layers in BESIDE.items():
        for depth in by_layers:
            for method in beside.methods(problem):
                found = beside.select(problem, method, depth)
                seconds = (np.median(column(found, f"{what}_cpu_s")) for what in ("fit", "predict"))
                numbers = (f"{each:.3g}" for each in seconds)
                rows.append(
                    [f"{title(problem)}, {depth}", NAMES[method], str(len(found)), *numbers]
                )
    return text_of(rows)


def story_in_markdown(results: Results) -> str:
    """Medians of our default beside those of single chains, and how its CRPS compares."""
    rows = [["problem, layers", "NRMSEP", "CRPS/range", "CRPS of DGP() is", "coverage"]]
    for problem in EXPERIMENTS:
        for depth in EXPERIMENTS[problem].depths:
            found = [results.select(problem, each, depth) for each in ("default", "si-ic", "si")]
            if min(len(each) for each in found) < FEWEST:
                continue
            error, crps, inside = (
                ", ".join(form.format(np.median(column(each, name))) for each in found)
                for name, form in SCORES.items()
            )
            ours, *others = (column(each, "normalised_crps") for each in found)
            word = STORY[compared(ours, min(others, key=np.median))]
            rows.append([f"{title(problem)}, {depth}", error, crps, word, inside])
    return text_of(rows)


def sources_in_markdown(results: Results) -> str:
    """Which trials were run by which sources of this package; those of most trials come first."""
    ours = [record for record in results.records if "source" in record]
    counts = Counter(record["source"] for record in ours).most_common()
    rows = [["source", "trials", "which"]]
    for place, (source, n_trials) in enumerate(counts):
        which = "all others" if place == 0 else "; ".join(networks_of(source, results))
        rows.append([f"`{source}`", str(n_trials), which])
    return text_of(rows)


def networks_of(source: str, results: Results) -> Iterator[str]:
    """Such as 'Vega: SI 2, DGP() 4 (4 of 10)', experiment by experiment."""
    for problem in EXPERIMENTS:
        words = []
        for _, label, found, _ in bars(problem, results.methods(problem), results):
            n_its = sum(record.get("source") == source for record in found)
            share = f" ({n_its} of {len(found)})" if n_its < len(found) else ""
            if n_its:
                words.append(label.replace(",", "") + share)
        if words:
            yield f"{title(problem)}: {', '.join(words)}"


# --- numbers that the text speaks of -------------------------------------------------------------


def plain_in_markdown(results: Results) -> str:
    """Errors of our plain process beside those that RobustGaSP has on the same training sets."""
    published = json.loads((DATA / "incumbents.json").read_text(encoding="utf-8"))["design_0"]
    rows = [["problem", "GP", "RobustGaSP", "ours is larger by"]]
    for problem in EXPERIMENTS:
        ours, theirs = error_of_gp(problem, results), published[problem]["RobustGaSP SE"][0]
        more = f"{100 * (ours / theirs - 1):.0f} %".replace("-0 %", "0 %")
        rows.append([title(problem), f"{ours:.4f}", f"{theirs:.4f}", more])
    return text_of(rows)


def error_of_gp(problem: str, results: Results) -> float:
    (record,) = results.select(problem, "gp")
    return record["nrmsep"]


def facts_in_markdown(results: Results) -> str:
    rows = [["what", "number"], *([what, number(results)] for what, number in FACTS.items())]
    return text_of(rows)


Number = Callable[[Results], str]
GREEKS = ("vega", "delta", "gamma")
SMOOTH = (*GREEKS, "fived", "engine")


def trials_of(
    results: Results, problems: Sequence[str], methods: Sequence[str], layers: Sequence[int]
) -> Iterator[list[Record]]:
    """Those of each network that was run."""
    for problem in problems:
        for method in methods:
            for depth in depths(problem, method):
                if depth in layers and (found := results.select(problem, method, depth)):
                    yield found


def inside(
    methods: Sequence[str], problems: Sequence[str] = SMOOTH, layers: Sequence[int] = (2, 3, 4)
) -> Number:
    """Least and largest median coverage."""

    def number(results: Results) -> str:
        networks = trials_of(results, problems, methods, layers)
        shares = [100 * np.median(column(found, "coverage")) for found in networks]
        least, most = (f"{round(of(shares))}" for of in (min, max))
        return f"{least} %" if least == most else f"{least} to {most} %"

    return number


def errors_on_the_step(results: Results) -> str:
    largest = (max(column(results.select("step", who), "nrmsep")) for who in ("si", "si-ic"))
    return ", ".join(f"{error:.3f}" for error in largest)


def below_the_plain_process(results: Results) -> str:
    plain = error_of_gp("gamma", results)
    found = trials_of(results, ["gamma"], ["si-ic"], (3, 4))
    gains = (100 * (1 - np.median(column(trials, "nrmsep")) / plain) for trials in found)
    return ", ".join(f"{gain:.0f} %" for gain in gains)


def engine_of_other_designs(results: Results) -> str:
    """By the plain process with its usual kernel, from the study of accuracy, designs 0 to 2."""
    study = json.loads((DATA / "study.json").read_text(encoding="utf-8"))
    mine = [run for run in study if (run["problem"], run["method"]) == ("engine", "gp")]
    found = {run["design"]: run["nrmsep"] for run in mine if run["design"] < N_STORED}
    return ", ".join(f"{found[design]:.4f}" for design in sorted(found))


def hours(methods: Sequence[str]) -> Number:
    def number(results: Results) -> str:
        found = [record for record in results.records if record["method"] in methods]
        return f"{np.sum(times(found)) / 3600:.1f} h"

    return number


FACTS: dict[str, Number] = {
    "points inside 95 % intervals of SI and SI-IC, away from the step function": inside(
        ("si", "si-ic")
    ),
    "of FB (ours)": inside(("fb",)),
    "of DGP()": inside(("default",)),
    "of SI-IC with three and four layers on the Greeks": inside(("si-ic",), GREEKS, (3, 4)),
    "of DGP(SE) with three layers on Delta": inside(("default-se",), ("delta",)),
    "largest NRMSEP of a trial of SI and of SI-IC on the step function": errors_on_the_step,
    "by how much SI-IC of three and of four layers is below the plain process on Gamma": (
        below_the_plain_process
    ),
    "NRMSEP of GP() on the engine, stored designs 0, 1 and 2": engine_of_other_designs,
    "cpu time of this package's trials with a time": hours(tuple(set(NAMES) - {"dsvi", "deepgp"})),
    "of those of DSVI": hours(("dsvi",)),
}

STORED: dict[str, Callable[[Results], str]] = {
    "plain": plain_in_markdown,
    "scores": scores_in_markdown,
    "times": times_in_markdown,
    "story": story_in_markdown,
    "facts": facts_in_markdown,
    "sources": sources_in_markdown,
}
"""By the mark on the page that each has."""
