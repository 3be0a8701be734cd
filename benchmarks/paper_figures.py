"""Draw the figures of the stochastic-imputation paper from the stored trials of ``paper.py``.

    python benchmarks/paper_figures.py               # all, into docs/images
    python benchmarks/paper_figures.py --results build/paper --folder build/figures  # of your own

Numbers are those of the paper; axes are the same where it states them.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from paper import EXPERIMENTS, WITHOUT_DEPTH
from paper_store import ACCEPTANCES, PREDICTIONS, TABLE, TIMES, Record, trial_of
from problems import DATA, heston_greeks, load_design

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
NAMES = {
    "gp": "GP",
    "fb": "FB (ours)",
    "deepgp": "FB (deepgp)",
    "dsvi": "DSVI",
    "si": "SI",
    "si-ic": "SI-IC",
    "default": "DGP()",
    "default-se": "DGP(SE)",
    "emulator": "Emulator()",
}
# Okabe and Ito's colours, which the common kinds of colour blindness leave apart.
COLOURS = {
    "gp": "#555555",
    "fb": "#E69F00",
    "deepgp": "#A08800",
    "dsvi": "#CC79A7",
    "si": "#56B4E9",
    "si-ic": "#0072B2",
    "default": "#009E73",
    "default-se": "#004D40",
    "emulator": "#D55E00",
}
N_LINES = 30
NOT_NORMALISED = ("fived",)  # in the captions of the paper's figures

# --- stored trials -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """The stored trials, predictions (2, points) by the trial's name, what was counted of
    acceptances, and the trials of several packages that ran side by side."""

    records: list[Record]
    predictions: dict[str, np.ndarray]
    acceptances: list[Record] = field(default_factory=list)
    side_by_side: list[Record] = field(default_factory=list)

    def select(self, problem: str, method: str, depth: int | None = None) -> list[Record]:
        return [
            record
            for record in self.records
            if (record["problem"], record["method"]) == (problem, method)
            and depth in (None, record["depth"])
        ]

    def methods(self, problem: str) -> list[str]:
        """Those that were run, in the order of the legends."""
        return [method for method in NAMES if self.select(problem, method)]

    def moments(self, record: Record) -> np.ndarray:
        """Means and standard deviations (2, points) of a trial that was kept."""
        return self.predictions[trial_of(record).name]


def read(folder: Path) -> Results:
    """What ``paper.py`` has put there; a time that was not measured is not in a record."""
    if not (folder / TABLE).exists():
        sys.exit(f"there is no {TABLE} in {folder}; run benchmarks/paper.py first")
    with np.load(folder / PREDICTIONS) as file:
        predictions = {name: np.asarray(file[name], dtype=np.float64) for name in file.files}
    more = (records_in(folder / name) for name in (ACCEPTANCES, TIMES))
    return Results(records_in(folder / TABLE), predictions, *more)


def records_in(path: Path) -> list[Record]:
    """None where there is no table. A digest stays a word: some look like numbers."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {
                key: value if key == "source" else number_or_word(value)
                for key, value in row.items()
                if value != ""
            }
            for row in csv.DictReader(file)
        ]


def number_or_word(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def column(found: Sequence[Record], name: str) -> np.ndarray:
    return np.array([record[name] for record in found if name in record])


def best(found: Sequence[Record]) -> Record:
    return min(found, key=lambda record: record["nrmsep"])


# --- the step function ---------------------------------------------------------------------------


def step_means(results: Results) -> Figure:
    """Figure 4: mean and two standard deviations of the first trial of each method."""
    data = load_design("step", 0)
    x = data.X_test[:, 0]
    figure, panels = row_of_panels(results.methods("step"))
    for ax, method in zip(panels, results.methods("step"), strict=True):
        mean, std = results.moments(results.select("step", method)[0])
        ax.fill_between(x, mean - 2 * std, mean + 2 * std, color="#BBBBBB", linewidth=0)
        ax.plot(x, data.y_test, color="black", linewidth=1)
        ax.plot(x, mean, color="black", linewidth=1, linestyle="--")
        ax.plot(data.X[:, 0], data.y, "o", color="black", markersize=3)
        ax.set_ylim(-2, 2)
    return figure


def step_deviations(results: Results) -> Figure:
    """Figure 5: predictive standard deviations over the trials of each method."""
    data = load_design("step", 0)
    x = data.X_test[:, 0]
    figure, panels = row_of_panels(results.methods("step"))
    rng = np.random.default_rng(0)
    for ax, method in zip(panels, results.methods("step"), strict=True):
        deviations = np.array(
            [results.moments(record)[1] for record in results.select("step", method)]
        )
        low, middle, high = np.percentile(deviations, [5, 50, 95], axis=0)
        ax.fill_between(x, low, high, color="#BBBBBB", linewidth=0)
        chosen = rng.permutation(len(deviations))[:N_LINES]
        ax.plot(x, deviations[chosen].T, color=COLOURS[method], linewidth=0.4, alpha=0.6)
        ax.plot(x, middle, color="black", linewidth=1, linestyle="--")
        beside = ax.twinx()
        beside.plot(x, data.y_test, color="black", linewidth=0.8)
        beside.plot(data.X[:, 0], data.y, "o", color="black", markersize=3)
        beside.set(ylim=(-1.6, 1.6), yticks=[])
    panels[0].set_ylabel("standard deviation")
    panels[0].set_ylim(bottom=0)  # of all, once all are drawn
    return figure


def row_of_panels(named: Sequence[str]) -> tuple[Figure, Sequence[Axes]]:
    figure, ((*panels,),) = plt.subplots(
        1, len(named), figsize=(2.2 * len(named), 2.3), sharey=True, layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for ax, method in zip(panels, named, strict=True):
        ax.set_title(NAMES[method], fontsize=9)
        ax.set_xlabel("x")
    return figure, panels


# --- errors and times ----------------------------------------------------------------------------


def errors_and_times(problem: str, results: Results) -> Figure:
    """Figures 6, 9, S.2, S.4, S.6 and S.8: violins of NRMSEP, bars of time.

    A dash-dot line is the plain Gaussian process. Times are of one core, without compilation.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained")
    deep = [method for method in results.methods(problem) if method != "gp"]
    for place, label, found, method in bars(problem, deep, results):
        values, seconds = column(found, "nrmsep"), times(found)
        draw_violin(left, place, values, COLOURS[method])
        if len(seconds):
            right.bar(place, seconds.mean(), color=COLOURS[method], width=0.8)
            right.annotate(f"{seconds.mean():.0f}" if seconds.mean() >= 10 else
                           f"{seconds.mean():.1f}", (place, seconds.mean()), ha="center",
                           va="bottom", fontsize=7)  # fmt: skip
        for ax in (left, right):
            ax.text(place, -0.02, label, rotation=60, fontsize=7, ha="right", va="top",
                    transform=ax.get_xaxis_transform())  # fmt: skip
    for plain in results.select(problem, "gp"):
        left.axhline(plain["nrmsep"], color="black", linestyle="-.", linewidth=1)
    left.set_ylabel("NRMSEP")
    right.set_ylabel("seconds per trial, one core")
    for ax in (left, right):
        ax.set_xticks([])
        ax.set_xlim(left.get_xlim())
        ax.spines[["top", "right"]].set_visible(False)
    if not right.patches:
        right.text(0.5, 0.5, "no times measured", ha="center", transform=right.transAxes)
        right.set_yticks([])
    return figure


def bars(
    problem: str, named: Sequence[str], results: Results
) -> list[tuple[int, str, list[Record], str]]:
    """Place, label, trials and method of each: depth by depth, methods without one at the end."""
    found: list[tuple[str, list[Record], str]] = []
    for depth in EXPERIMENTS[problem].depths:
        for method in named:
            if method not in WITHOUT_DEPTH and (trials := results.select(problem, method, depth)):
                found.append((f"{NAMES[method]}, {depth}", trials, method))
    found += [(NAMES[m], results.select(problem, m), m) for m in named if m in WITHOUT_DEPTH]
    return [(place, *each) for place, each in enumerate(found)]


def times(found: Sequence[Record]) -> np.ndarray:
    """Cpu seconds of training and prediction, where they were measured."""
    measured = [record for record in found if "fit_cpu_s" in record]
    return column(measured, "fit_cpu_s") + column(measured, "predict_cpu_s")


def prediction_times(found: Sequence[Record]) -> np.ndarray:
    return column(found, "predict_cpu_s")


def draw_violin(ax: Axes, place: int, values: np.ndarray, colour: str) -> None:
    if len(values) > 2 and np.ptp(values) > 0:
        (body,) = ax.violinplot(values, [place], widths=0.8, showextrema=False)["bodies"]
        body.set(facecolor=colour, alpha=0.5)
    ax.plot(np.full(len(values), place), values, ".", color=colour, markersize=2)
    ax.plot(place, np.median(values), "o", color="white", markeredgecolor=colour, markersize=5)


# --- uncertainty profiles ------------------------------------------------------------------------


def profiles(problem: str, results: Results) -> Figure:
    """Figures 10, S.3, S.5, S.7 and S.9: truth against mean, coloured by standard deviation.

    Of the trial with the lowest NRMSEP. A row has the networks of one depth; what has no depth
    stands in the last column. Standard deviations are scaled by their least and largest value, and
    so are truth and mean by those of the truth, except where the paper has them as they are.
    """
    truth = load_design(problem, 0).y_test
    low, span = (0.0, 1.0) if problem in NOT_NORMALISED else (truth.min(), np.ptp(truth))
    shown = grid_of_trials(problem, results)
    figure, panels = plt.subplots(
        len(shown), len(shown[0]), figsize=(2.2 * len(shown[0]) + 0.8, 2.2 * len(shown)),
        layout="constrained", sharex=True, sharey=True, squeeze=False,
    )  # fmt: skip
    for ax, label_and_trials in zip(panels.flat, sum(shown, []), strict=True):
        if label_and_trials is None:
            ax.axis("off")
            continue
        label, found = label_and_trials
        record = best(found)
        mean, std = results.moments(record)
        order = np.argsort(std)
        scaled = (std - std.min()) / (np.ptp(std) or 1.0)
        points = ax.scatter((mean[order] - low) / span, (truth[order] - low) / span, s=4,
                            c=scaled[order], cmap="cividis", vmin=0, vmax=1)  # fmt: skip
        ax.axline((0, 0), slope=1, color="#888888", linewidth=0.8, zorder=0)
        ax.set_title(f"{label}: {record['nrmsep']:.4f}", fontsize=8)
        ax.tick_params(labelsize=7, labelbottom=True, labelleft=True)
    both = [*ax.get_xlim(), *ax.get_ylim()]
    ax.set(xlim=(min(both), max(both)), ylim=(min(both), max(both)))  # of all: they are shared
    word = "" if problem in NOT_NORMALISED else "normalised "
    figure.supxlabel(f"{word}mean", fontsize=9)
    figure.supylabel(f"{word}truth", fontsize=9)
    bar = figure.colorbar(points, ax=panels, aspect=40, pad=0.01)
    bar.set_label("normalised standard deviation", fontsize=8)
    return figure


Panel = tuple[str, list[Record]] | None


def grid_of_trials(problem: str, results: Results) -> list[list[Panel]]:
    """Label and trials by row (depth) and column (method); None where there are none."""
    named = results.methods(problem)
    deep = [method for method in named if method not in WITHOUT_DEPTH]
    plain = iter([method for method in named if method in WITHOUT_DEPTH])
    rows = []
    for depth in EXPERIMENTS[problem].depths:
        row = [
            (f"{NAMES[method]}, {depth}", trials)
            if (trials := results.select(problem, method, depth))
            else None
            for method in deep
        ]
        last = next(plain, None)
        rows.append([*row, (NAMES[last], results.select(problem, last)) if last else None])
    return rows


# --- the Greeks ----------------------------------------------------------------------------------


def greeks(_: Results) -> Figure:
    """Figure 7: Vega, Delta and Gamma over spot and strike at a maturity of one year."""
    axis = np.linspace(10, 200, 96)
    S, K = np.meshgrid(axis, axis)
    found = heston_greeks(S.ravel(), K.ravel(), np.ones(S.size))
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.2), layout="constrained")
    for ax, name in zip(panels, ("vega", "delta", "gamma"), strict=True):
        filled = ax.contourf(S, K, getattr(found, name).reshape(S.shape), 15, cmap="cividis")
        figure.colorbar(filled, ax=ax)
        ax.set(title=name.capitalize(), xlabel="S", ylabel="K")
    return figure


class Drawing(NamedTuple):
    """What draws a figure, and the experiment whose trials it needs."""

    draw: Callable[[Results], Figure]
    problem: str | None = None


def of(draw: Callable[[str, Results], Figure], problem: str) -> Drawing:
    return Drawing(partial(draw, problem), problem)


FIGURES = {
    "fig-4": Drawing(step_means, "step"),
    "fig-5": Drawing(step_deviations, "step"),
    "fig-6": of(errors_and_times, "step"),
    "fig-7": Drawing(greeks),
    "fig-9": of(errors_and_times, "vega"),
    "fig-10": of(profiles, "vega"),
    "fig-s2": of(errors_and_times, "fived"),
    "fig-s3": of(profiles, "fived"),
    "fig-s4": of(errors_and_times, "engine"),
    "fig-s5": of(profiles, "engine"),
    "fig-s6": of(errors_and_times, "delta"),
    "fig-s7": of(profiles, "delta"),
    "fig-s8": of(errors_and_times, "gamma"),
    "fig-s9": of(profiles, "gamma"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--results", type=Path, default=DATA, help="folder of the table")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the pictures")
    options = parser.parse_args(arguments)
    results = read(options.results)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        draw, problem = FIGURES[name]
        if problem is not None and not results.methods(problem):
            print(f"paper-{name}.png needs trials of {problem} and is left out", flush=True)
            continue
        figure = draw(results)
        figure.savefig(options.folder / f"paper-{name}.png", dpi=90, bbox_inches="tight")
        plt.close(figure)
        print(f"wrote paper-{name}.png", flush=True)


if __name__ == "__main__":
    main()
