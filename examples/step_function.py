"""Emulate the step function of the paper with a Gaussian process and a deep one.

Prints the scores of both on 200 test points and writes ``step_function.png``.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from deepemu import DGP, GP, use_compilation_cache
from deepemu.diagnostics import scores

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#555555"


def step(x: np.ndarray) -> np.ndarray:
    """The simulator: -1 below 0.5, 1 from there on."""
    return np.where(x < 0.5, -1.0, 1.0)


def draw(
    axes: Axes, title: str, colour: str, x: np.ndarray, mean: np.ndarray, std: np.ndarray
) -> None:
    """Mean and 95 % interval over the true function."""
    axes.plot(x, step(x), color=GREY, linewidth=1, label="simulator")
    axes.fill_between(
        x, mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.25, linewidth=0,
        label="95 % interval",
    )  # fmt: skip
    axes.plot(x, mean, color=colour, linewidth=2, label="emulator mean")
    runs = np.linspace(0, 1, 10)
    axes.plot(runs, step(runs), "o", color="black", markersize=5, label="10 runs")
    axes.set(title=title, xlabel="input", ylabel="output", xlim=(-0.03, 1.03), ylim=(-2.1, 2.1))
    axes.spines[["top", "right"]].set_visible(False)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("step_function.png"))
    parser.add_argument("--n-iter", type=int, default=200, help="iterations of each chain")
    options = parser.parse_args(arguments)

    x_train = np.linspace(0, 1, 10)[:, None]
    x_test = np.linspace(0, 1, 200)[:, None]
    emulators = {
        "Gaussian process": GP(),
        "Deep Gaussian process": DGP(depth=3, n_iter=options.n_iter),
    }
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    print(f"{'':24}{'NRMSEP':>8}{'CRPS':>8}{'coverage':>10}")
    for axes, colour, (name, emulator) in zip(
        panels, (ORANGE, BLUE), emulators.items(), strict=True
    ):
        emulator.fit(x_train, step(x_train[:, 0]))
        mean, std = emulator.predict(x_test, return_std=True)
        score = scores(step(x_test[:, 0]), mean, std)
        print(f"{name:24}{score['nrmsep']:8.3f}{score['crps']:8.3f}{score['coverage']:10.2f}")
        draw(axes, name, colour, x_test[:, 0], mean, std)
    panels[1].set_ylabel("")
    panels[1].legend(loc="lower right", frameon=False, fontsize=8)
    figure.savefig(options.output, dpi=150)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    use_compilation_cache()
    main()
