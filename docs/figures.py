"""Draw the pictures of these pages: those of the method's ideas, and one of every plot.

python docs/figures.py                     # all, into docs/images
python docs/figures.py --only idea-slice   # some
"""

import argparse
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import matplotlib
import numpy as np
import pandas as pd
from scipy.stats import norm, qmc

from deepemu import DGP, GP, Emulator, use_compilation_cache
from deepemu.core.kernels.families import KERNELS
from deepemu.core.nodes.dense import Dense
from deepemu.core.nodes.node import Node, Sites
from deepemu.core.nodes.vecchia import Vecchia
from deepemu.data.neighbours import grouped
from deepemu.estimators.base import BaseEmulator
from deepemu.plots import figures
from deepemu.plots.style import BLUE, GREY, OF_CHAINS, VERMILION
from deepemu.posterior.comparison import Z_95

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

FOLDER = Path(__file__).parent / "images"
N_ITER = 200


# --- the two simulators of the pictures ------------------------------------------------------


def cliff(x: np.ndarray) -> np.ndarray:
    """Smooth on either side of a drop at 0.5."""
    return np.where(x < 0.5, 1.0 + 0.3 * np.sin(6.0 * x), -1.0 + 0.4 * x)


CLIFF_RUNS = np.linspace(0.0, 1.0, 12)


def compressor(runs: pd.DataFrame) -> pd.Series:
    """A made-up compressor map: the pressure ratio drops where a low flow makes it surge."""
    speed, flow = runs["speed, krpm"] / 10.0, runs["flow, kg/s"] / 20.0
    steady = 1.0 + speed**2 * (1.6 - 1.2 * (flow / speed - 1.0) ** 2)
    surging = 1.0 + 0.5 * speed**2
    return pd.Series(np.where(flow > 0.75 * speed, steady, surging), name="pressure ratio")


def compressor_inputs(n: int, seed: int) -> pd.DataFrame:
    unit = qmc.LatinHypercube(2, seed=seed).random(n)
    return pd.DataFrame(
        qmc.scale(unit, [6.0, 6.0], [12.0, 30.0]), columns=["speed, krpm", "flow, kg/s"]
    )


@functools.cache
def compressor_emulator() -> Emulator:
    runs = compressor_inputs(60, seed=1)
    return Emulator(n_iter=N_ITER, verbose=False).fit(runs, compressor(runs))


@functools.cache
def cliff_emulator() -> BaseEmulator:
    return named(deep(n_chains=8).fit(CLIFF_RUNS[:, None], cliff(CLIFF_RUNS)))


def deep(**settings: object) -> DGP:
    return DGP(n_iter=N_ITER, verbose=False, **settings)


def named(emulator: BaseEmulator) -> BaseEmulator:
    return emulator.name_columns(["input"], ["output"])


# --- one picture an idea ---------------------------------------------------------------------


def idea_plain() -> Figure:
    """A plain Gaussian process has one idea of smoothness, and the drop spoils it everywhere."""
    figure, panels = pair()
    plain = GP().fit(CLIFF_RUNS[:, None], cliff(CLIFF_RUNS))
    for ax, emulator in zip(panels, (named(plain), cliff_emulator()), strict=True):
        figures.plot_fit(emulator, ax=ax)
        draw_truth(ax)
        ax.set_ylim(-2.2, 2.4)
    panels[1].set_ylabel("")
    return entitled(figure, "plain", "deep")


def idea_warp() -> Figure:
    """The hidden layer stretches the input at the drop; the output is smoother in what comes out.

    Imputations are shifted to mean zero: a kernel sees differences only.
    """
    figure, panels = pair()
    figures.plot_hidden(cliff_emulator(), axes=panels[0])
    for line in panels[0].get_lines():
        hidden = np.asarray(line.get_ydata()) - np.mean(line.get_ydata())
        line.set_ydata(hidden)
        order = np.argsort(hidden)
        panels[1].plot(hidden[order], cliff(CLIFF_RUNS)[order], ".-", color=line.get_color(),
                       linewidth=0.8, markersize=4, alpha=0.7)  # fmt: skip
    panels[0].relim()
    panels[0].autoscale_view()
    panels[0].set_ylabel("hidden")
    panels[1].set(xlabel="hidden", ylabel="output")
    return entitled(figure, "first layer: input to hidden", "second layer: hidden to output")


def idea_slice() -> Figure:
    """An elliptical slice step: a draw of the prior gives a direction, the likelihood a point."""
    rng = np.random.default_rng(36)
    x = np.linspace(0.0, 1.0, 80)
    root = np.linalg.cholesky(np.exp(-(((x[:, None] - x) / 0.25) ** 2)) + 1e-8 * np.eye(len(x)))
    data = np.searchsorted(x, [0.15, 0.4, 0.6, 0.9])
    seen = np.array([0.6, 0.9, -0.6, -0.8])
    now = seen @ weights_of(x, data) + 0.35 * root @ rng.normal(size=80)
    drawn = root @ rng.normal(size=80)
    angles = np.linspace(-np.pi, np.pi, 721)
    at_data = np.outer(np.cos(angles), now[data]) + np.outer(np.sin(angles), drawn[data])
    likelihood = -0.5 * np.sum((at_data - seen) ** 2, axis=1) / 0.4**2
    level = -0.5 * np.sum((now[data] - seen) ** 2) / 0.4**2 + np.log(0.3)
    tried = proposals(lambda t: float(np.interp(t, angles, likelihood)), level, rng)

    figure, (left, right) = pair()
    left.plot(x, drawn, color=GREY, linestyle=":", label="draw of the prior")
    left.plot(x, now, color="black", linewidth=2, label="now")
    right.plot(angles, np.maximum(likelihood, level - 12.0), color=BLUE)
    right.axhline(level, color=GREY, linestyle="--", linewidth=1, label="level of the slice")
    for number, angle in enumerate(tried):
        last = number == len(tried) - 1
        curve = np.cos(angle) * now + np.sin(angle) * drawn
        colour, label = (VERMILION, "accepted") if last else ("#E69F00", "refused")
        label = label if last or number == 0 else None
        left.plot(x, curve, color=colour, linewidth=2.0 if last else 0.9, label=label)
        height = max(float(np.interp(angle, angles, likelihood)), level - 12.0)
        right.plot(angle, height, "o", color=colour)
    left.plot(x[data], seen, "s", color="black", markersize=5, label="what the next layer asks for")
    left.set(xlabel="input", ylabel="hidden")
    right.set(xlabel="angle", ylabel="log likelihood")
    left.legend(frameon=False, fontsize=7)
    right.legend(frameon=False, fontsize=8, loc="upper right")
    return entitled(figure, "hidden layers along the ellipse", "likelihood along the ellipse")


def weights_of(x: np.ndarray, data: np.ndarray) -> np.ndarray:
    """How much each of the points counts along x in a smooth curve through them."""
    near = np.exp(-(((x[data][:, None] - x) / 0.25) ** 2))
    return np.linalg.solve(near[:, data] + 1e-6 * np.eye(len(data)), near)


def proposals(
    height: Callable[[float], float], level: float, rng: np.random.Generator
) -> list[float]:
    """Angles that a slice step tries: uniform in a bracket that shrinks towards 0."""
    first = rng.uniform(0.0, 2.0 * np.pi)
    low, high = first - 2.0 * np.pi, first
    tried = []
    while not tried or height(tried[-1]) < level:
        angle = rng.uniform(low, high)
        low, high = (angle, high) if angle < 0.0 else (low, angle)
        tried.append(float((angle + np.pi) % (2.0 * np.pi) - np.pi))
    return tried


def idea_linked() -> Figure:
    """A Gaussian process with an uncertain input: the exact mean and variance, and a simulation."""
    runs, output = np.linspace(-2.0, 2.0, 7), np.tanh(2.0 * np.linspace(-2.0, 2.0, 7))
    emulator = GP("squared_exponential").fit(runs[:, None], output)
    centre, spread = 0.35, 0.45
    rng = np.random.default_rng(0)
    hidden = rng.normal(centre, spread, 20_000)
    mean, std = emulator.predict(hidden[:, None], return_std=True)
    simulated = rng.normal(mean, std)
    moments = emulator.predict([[centre]], return_std=True, input_std=spread)
    found_mean, found_std = (float(each[0]) for each in moments)

    figure, (left, right) = pair()
    emulator.name_columns(["hidden"], ["output"])
    figures.plot_fit(emulator, ax=left)
    drawn = f"20,000 draws: {simulated.mean():.2f} ± {simulated.std():.2f}"
    computed = f"closed form: {found_mean:.2f} ± {found_std:.2f}"
    line = np.linspace(centre - 3 * spread, centre + 3 * spread, 100)
    left.fill_between(line, -1.9, -1.9 + 0.6 * norm.pdf(line, centre, spread), color=VERMILION,
                      alpha=0.4, linewidth=0)  # fmt: skip
    left.annotate("input", (centre, -1.35), ha="center", fontsize=9, color=VERMILION)
    left.set_ylim(-1.9, 1.9)
    right.hist(simulated, bins=60, density=True, color=VERMILION, alpha=0.4, label=drawn)
    line = np.linspace(-1.5, 2.0, 200)
    right.plot(line, norm.pdf(line, found_mean, found_std), color=BLUE, label=computed)
    right.set(xlabel="output", ylabel="density")
    right.legend(frameon=False, fontsize=8)
    return entitled(figure, "an uncertain input", "what comes out")


def idea_chains() -> Figure:
    """Single chains, each sure of its own explanation, and the mixture."""
    figure, panels = pair()
    line = np.linspace(0.0, 1.0, 301)
    for seed in range(4):
        alone = deep(n_chains=1, stacking=False, random_state=seed)
        mean, std = alone.fit(CLIFF_RUNS[:, None], cliff(CLIFF_RUNS)).predict(
            line[:, None], return_std=True
        )
        colour = OF_CHAINS[seed]
        panels[0].fill_between(line, mean - Z_95 * std, mean + Z_95 * std, color=colour, alpha=0.2,
                               linewidth=0)  # fmt: skip
        panels[0].plot(line, mean, color=colour, linewidth=1.2)
    together = deep(n_chains=8, stacking=False).fit(CLIFF_RUNS[:, None], cliff(CLIFF_RUNS))
    figures.plot_fit(named(together), ax=panels[1])
    for ax in panels:
        draw_truth(ax)
        ax.set(xlim=(0.36, 0.64), ylim=(-1.8, 2.1), xlabel="input")
    panels[0].plot(CLIFF_RUNS, cliff(CLIFF_RUNS), "o", color="black", markersize=4)
    panels[0].set_ylabel("output")
    panels[1].set_ylabel("")
    return entitled(figure, "four chains, each alone", "the mixture of eight")


def idea_weights() -> Figure:
    """Held-out runs, and the weights that they give."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.4, 3.6), layout="constrained", width_ratios=[1, 1.15]
    )
    figures.plot_left_out(compressor_emulator(), ax=left)
    figures.plot_weights(compressor_emulator(), ax=right)
    return figure


def draw_truth(ax: Axes) -> None:
    line = np.linspace(0.0, 1.0, 1001)
    ax.plot(line, cliff(line), color=GREY, linewidth=1, linestyle="--", label="simulator", zorder=0)


def pair() -> tuple[Figure, np.ndarray]:
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for ax in panels:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, panels


def entitled(figure: Figure, *titles: str) -> Figure:
    """Titles last: functions that draw on given axes set their own."""
    for ax, title in zip(figure.axes, titles, strict=True):
        ax.set_title(title, fontsize=11, loc="left")
    return figure


# --- one picture of every plot ---------------------------------------------------------------


def figure_of(drawn: Axes | np.ndarray) -> Figure:
    return np.ravel(np.asarray(drawn, dtype=object))[0].figure


def known_runs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outputs, predictions and standard deviations of 200 runs that were not trained on."""
    runs = compressor_inputs(200, seed=2)
    return compressor(runs).to_numpy(), *compressor_emulator().predict(runs, return_std=True)


# --- large data ------------------------------------------------------------------------------

NEAR = (4, 8, 16, 32, 64, 128)


def losses(n_inputs: int, lengthscale: float, n: int = 1500) -> list[float]:
    """Exact log density of a draw less that by each number of near rows, per row."""
    rng = np.random.default_rng(n_inputs)
    x = rng.random((n, n_inputs)) / lengthscale
    node = Node(KERNELS["matern52"], np.ones(n_inputs), np.float64(1.0), np.float64(1e-6))
    once = Sites(np.ones(n), np.float64(0.0))
    with jax.enable_x64(True):
        exact = Dense()
        drawn = exact.draw_prior(exact.factor(node, x, once), node, once, rng.standard_normal(n))
        density = jax.jit(
            lambda solver, sites: solver.fit(node, x, drawn, sites, False).value, static_argnums=0
        )
        found = []
        for n_near in NEAR:
            solver = Vecchia(n_near=n_near)
            groups = grouped(x, np.ones(n), n_near, solver.n_group)
            found.append(density(exact, once) - density(solver, replace(once, groups=groups)))
    return [float(each) / n for each in found]


def near_rows() -> Figure:
    figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for (n_inputs, lengthscale), colour in zip(
        ((2, 0.3), (5, 1.0), (12, 2.0)), OF_CHAINS, strict=False
    ):
        ax.loglog(
            NEAR, losses(n_inputs, lengthscale), "o-", color=colour, label=f"{n_inputs} inputs"
        )
    ax.axvline(Vecchia().n_near, color=GREY, linestyle=":")
    ax.set_xticks(NEAR, [str(each) for each in NEAR])
    ax.set_xlabel("near rows of each group of 16")
    ax.set_ylabel("loss of log density per row")
    ax.legend(frameon=False)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "near-rows": near_rows,
    "idea-plain": idea_plain,
    "idea-warp": idea_warp,
    "idea-slice": idea_slice,
    "idea-linked": idea_linked,
    "idea-chains": idea_chains,
    "idea-weights": idea_weights,
    "plot-fit": lambda: figure_of(figures.plot_fit(cliff_emulator())),
    "plot-slices": lambda: figure_of(figures.plot_slices(compressor_emulator())),
    "plot-surface": lambda: figure_of(figures.plot_surface(compressor_emulator())),
    "plot-left-out": lambda: figure_of(figures.plot_left_out(compressor_emulator())),
    "plot-predictions": lambda: figure_of(figures.plot_predictions(*known_runs())),
    "plot-profile": lambda: figure_of(figures.plot_profile(*known_runs())),
    "plot-weights": lambda: figure_of(figures.plot_weights(compressor_emulator())),
    "plot-traces": lambda: figure_of(figures.plot_traces(compressor_emulator())),
    "plot-hidden": lambda: figure_of(figures.plot_hidden(compressor_emulator())),
    "plot-structure": lambda: figure_of(figures.plot_structure(compressor_emulator())),
    "plot-diagnostics": lambda: compressor_emulator().plot_diagnostics(),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        figure = FIGURES[name]()
        figure.savefig(options.folder / f"{name}.png", dpi=100)
        plt.close(figure)
        print(f"wrote {name}.png")


if __name__ == "__main__":
    use_compilation_cache()
    main()
