"""Figures of a fitted emulator: functions that draw on Axes and return them.

All take an ``ax`` (or make a figure of their own, which pyplot knows), take outputs and inputs by
number, from 0, or by name, label axes with the names of the columns, and use colours that are safe
for the common kinds of colour blindness. Matplotlib is imported when a figure is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from deepemu.core.model.network import Network
from deepemu.data.checks import checked, place_of, require_choice, require_fitted
from deepemu.errors import InputError
from deepemu.plots.style import (
    BLUE,
    GREY,
    OF_CHAINS,
    VERMILION,
    draw_predictions,
    name,
    named,
)
from deepemu.posterior.comparison import compared_with_normals
from deepemu.training.chains import Trained
from deepemu.training.structures import trace_in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from deepemu.estimators.base import BaseEmulator

N_POINTS, N_GRID = 201, 41
LONGEST_AT_A_NODE = 18  # letters
TRACES = {
    "lengthscale": "lengthscales of layer {layer}",
    "scale": "scales of layer {layer}",
    "nugget": "nuggets of layer {layer}",
    "log_density": "log density",
}
# Beside the axes, in a figure of our own; given axes may have neighbours there.
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
SEQUENTIAL = "cividis"  # readable without red or green


def plot_fit(emulator: BaseEmulator, output: int | str = 0, ax: Axes | None = None) -> Axes:
    """Mean, 95 % interval and runs of an emulator with one input."""
    n_inputs = len(emulator.input_names)
    if n_inputs != 1:
        raise InputError(
            f"The emulator has {n_inputs} inputs and plot_fit draws one; use "
            "plot_slices or plot_surface."
        )
    ax = _axes(ax)
    k, x, y = _output(emulator, output), emulator.training_inputs, emulator.training_outputs
    margin = 0.03 * np.ptp(x)
    at = np.linspace(x.min() - margin, x.max() + margin, N_POINTS)
    _draw_band(ax, emulator, at, at[:, None], k)
    ax.plot(x[:, 0], y[:, k], "o", color="black", markersize=4, label=f"{len(x)} runs", zorder=3)
    ax.legend(frameon=False, fontsize=9)
    name(ax, "", emulator.input_names[0], emulator.output_names[k])
    return ax


def plot_slices(
    emulator: BaseEmulator, at: ArrayLike | None = None, output: int | str = 0, axes: Any = None
) -> np.ndarray:
    """Mean and 95 % interval along each input, the others held ``at`` a point or their medians."""
    k, centre = _output(emulator, output), _centre(emulator, at)
    d = emulator.n_features_in_
    axes = _grid(axes, 1, d, width=3.2, height=2.9, sharey=True)
    for j, ax in enumerate(axes.flat):
        line = np.linspace(*_range(emulator, j), N_POINTS)
        _draw_band(ax, emulator, line, along(centre, {j: line}), k)
        ax.axvline(centre[j], color=GREY, linewidth=0.8, linestyle=":")
        name(ax, "", emulator.input_names[j], emulator.output_names[k] if j == 0 else "")
    return axes


def plot_surface(
    emulator: BaseEmulator,
    inputs: tuple[int | str, int | str] = (0, 1),
    at: ArrayLike | None = None,
    output: int | str = 0,
    axes: Any = None,
) -> np.ndarray:
    """Mean and standard deviation over two inputs, the others held ``at`` a point."""
    k, centre = _output(emulator, output), _centre(emulator, at)
    first, second = _two_inputs(emulator, inputs)
    axes = _grid(axes, 1, 2, width=4.4, height=3.6)
    lines = [np.linspace(*_range(emulator, j), N_GRID) for j in (first, second)]
    a, b = np.meshgrid(*lines)
    moments = _predicted(emulator, along(centre, {first: a.ravel(), second: b.ravel()}), k)
    x = emulator.training_inputs
    for ax, values, what in zip(axes.flat, moments, ("mean", "standard deviation"), strict=True):
        filled = ax.contourf(a, b, values.reshape(a.shape), levels=15, cmap=SEQUENTIAL)
        ax.figure.colorbar(filled, ax=ax)
        # Runs differ in the fixed inputs, so they are marked only where no input is fixed.
        if emulator.n_features_in_ == len(lines):
            ax.plot(x[:, first], x[:, second], "o", color="white", markeredgecolor="black",
                    markersize=4)  # fmt: skip
        title = f"{emulator.output_names[k]}: {what}"
        name(ax, title, emulator.input_names[first], emulator.input_names[second])
    return axes


def plot_left_out(emulator: BaseEmulator, output: int | str = 0, ax: Axes | None = None) -> Axes:
    """Predictions of the training runs, each without it, against the runs, with 95 % intervals."""
    k = _output(emulator, output)
    ax = _axes(ax)
    draw_predictions(ax, emulator.compared_runs().of_output(k))
    title = "Runs, each predicted without it"
    name(ax, title, emulator.output_names[k], f"{emulator.output_names[k]}, predicted")
    return ax


def plot_predictions(
    y: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    ax: Axes | None = None,
    output: str | None = None,
) -> Axes:
    """Predictions with 95 % intervals, of normal distributions, against outputs that are known.

    The axes are named after the ``output``; unless given, a Series ``y`` has a name of its own.
    """
    known, mean, std, called = _held_out(y, mean, std, output)
    ax = _axes(ax)
    draw_predictions(ax, compared_with_normals(known, mean, std))
    name(ax, "", named(called, "true"), named(called, "predicted"))
    return ax


def _held_out(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, output: str | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str | None]:
    """Outputs and their predictions as vectors, and the name of the output."""
    called = getattr(y, "name", None) if output is None else output
    known, mean, std = (np.ravel(values) for values in checked(y=y, mean=mean, std=std))
    return known, mean, std, called


def plot_profile(
    y: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    ax: Axes | None = None,
    output: str | None = None,
) -> Axes:
    """Normalised predictive means against normalised truth, coloured by standard deviation.

    Truth and mean are divided by the range of the truth; standard deviations by their largest.
    Where standard deviations reflect the errors, dark points lie on the diagonal. The axes are
    named as by `plot_predictions`.
    """
    known, mean, std, called = _held_out(y, mean, std, output)
    span, low = np.ptp(known) or 1.0, known.min()
    ax = _axes(ax)
    order = np.argsort(std)  # the most uncertain on top
    points = ax.scatter(
        (known[order] - low) / span, (mean[order] - low) / span, c=std[order] / (std.max() or 1.0),
        cmap=SEQUENTIAL, s=14, vmin=0.0, vmax=1.0, zorder=2,
    )  # fmt: skip
    ax.axline((0.5, 0.5), slope=1.0, color=GREY, linewidth=1, zorder=1)
    ax.figure.colorbar(points, ax=ax, label="normalised standard deviation")
    name(ax, "", named(called, "normalised truth"), named(called, "normalised mean"))
    return ax


def plot_weights(emulator: BaseEmulator, ax: Axes | None = None) -> Axes:
    """The weight of every chain, structure by structure."""
    ax = _axes(ax)
    lines = emulator.summary().lines[:-1]
    for place, line in enumerate(lines):
        ends = np.cumsum(line.weights)
        starts = ends - line.weights
        colours = [OF_CHAINS[k % len(OF_CHAINS)] for k in range(len(starts))]
        ax.barh(place, line.weights, left=starts, color=colours, edgecolor="white", height=0.7)
        ax.annotate(f" {line.weight:.2f}", (line.weight, place), va="center", fontsize=9)
    ax.set_yticks(range(len(lines)), [f"{line.label} ({line.n_chains})" for line in lines])
    ax.invert_yaxis()
    ax.set_xlim(0.0, 1.1)
    name(ax, "Weights of chains", "weight", "")
    return ax


def plot_traces(
    emulator: BaseEmulator,
    layer: int | None = None,
    what: str = "lengthscale",
    ax: Axes | None = None,
) -> Axes:
    """Parameters of a layer (default: the last) along the iterations, one colour per chain.

    ``what`` is "lengthscale", "scale", "nugget" or "log_density", which has no layer. Of the deep
    structure with the largest weight; from the dotted line on, chains have all rows.
    """
    require_choice(what, "what", tuple(TRACES))
    trained, _ = _heaviest(emulator)
    depth = trained.structure.network.depth
    if what == "log_density" and layer is not None:
        raise InputError(f"layer is {layer!r}, but log_density has no layer; leave it out.")
    place = depth - 1 if layer is None else layer
    if not isinstance(place, Integral) or place not in range(depth):
        raise InputError(f"layer is {layer!r}; it must be between 0 and {depth - 1}.")
    paths = trace_in_words(trained.trace)[what]
    paths = paths if what == "log_density" else paths[place]
    beside = BESIDE if ax is None else {}
    ax = _axes(ax)
    n_iterations = paths.shape[1]
    at = np.arange(1, n_iterations + 1)
    for chain, path in enumerate(paths.reshape(len(paths), n_iterations, -1)):
        colour = OF_CHAINS[chain % len(OF_CHAINS)]
        lines = ax.plot(at, path, color=colour, linewidth=0.7, alpha=0.7)
        lines[0].set_label(f"chain {chain + 1}")
    first_together = n_iterations - trained.n_together + 1
    ax.axvline(first_together, color=GREY, linestyle=":", linewidth=1, label="all rows")
    ax.legend(frameon=False, fontsize=8, **beside)
    ax.set_yscale("linear" if what == "log_density" else "log")
    name(ax, trained.structure.label, "iteration", TRACES[what].format(layer=place + 1))
    return ax


def plot_hidden(emulator: BaseEmulator, axes: Any = None) -> np.ndarray:
    """Nodes of the first hidden layer against the inputs: how the inputs are warped.

    Of the chain with the largest weight; one colour per imputation that is kept.
    """
    trained, weights = _heaviest(emulator)
    x = emulator.posterior_.runs.site_inputs
    latents = trained.imputed.members.latents[0][int(np.argmax(weights)), :, : len(x)]
    width, d = latents.shape[2], x.shape[1]
    beside = BESIDE if axes is None else {}
    axes = _grid(axes, width, d, width=2.6, height=2.2, sharex="col", sharey="row")
    for p, j in np.ndindex(width, d):
        order = np.argsort(x[:, j])
        for number, latent in enumerate(latents):
            colour = OF_CHAINS[number % len(OF_CHAINS)]
            style = "-" if d == 1 else "none"
            axes[p, j].plot(x[order, j], latent[order, p], ".", linestyle=style, linewidth=0.8,
                            markersize=3, color=colour, alpha=0.7,
                            label=f"imputation {number + 1}")  # fmt: skip
        below = emulator.input_names[j] if p == width - 1 else ""
        name(axes[p, j], "", below, f"node {p + 1}" if j == 0 else "")
    axes[0, -1].legend(frameon=False, fontsize=8, **beside)
    return axes


def plot_structure(emulator: BaseEmulator, ax: Axes | None = None) -> Axes:
    """Inputs, layers and outputs of the structure with the largest weight, and their
    connections."""
    trained, _ = _heaviest(emulator, deep_only=False)
    network, ax = trained.structure.network, _axes(ax)
    places = [_column(0, network.n_inputs)]
    places += [_column(layer + 1, spec.width) for layer, spec in enumerate(network.layers)]
    for start, end in _arrows(network, places):
        ax.annotate("", end, start, arrowprops={
            "arrowstyle": "->", "color": GREY, "alpha": 0.5, "shrinkA": 11, "shrinkB": 11,
            "connectionstyle": "arc3,rad=0.15" if end[0] - start[0] > 1 else "arc3",
        })  # fmt: skip
    labels = [emulator.input_names, *_node_names(emulator, network)]
    for layer, (column, words) in enumerate(zip(places, labels, strict=True)):
        colour = BLUE if layer == 0 else VERMILION if layer == network.depth else "white"
        x, y = np.transpose(column)
        ax.scatter(x, y, s=420, color=colour, edgecolor="black", zorder=3)
        below = layer in (0, network.depth)
        for at, word in zip(column, words, strict=True):
            ax.annotate(_short(word), at, xytext=(0, -22 if below else -3), ha="center",
                        textcoords="offset points", fontsize=9, zorder=4,
                        parse_math=False)  # fmt: skip
    ax.set_title(trained.structure.label, fontsize=11, loc="left")
    ax.margins(0.15, 0.2)
    ax.axis("off")
    return ax


def _column(layer: int, count: int) -> list[tuple[float, float]]:
    return [(float(layer), (count - 1) / 2.0 - place) for place in range(count)]


def _arrows(
    network: Network, places: Sequence[Sequence[tuple[float, float]]]
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """From each column that a node reads to the node."""
    found = []
    for layer, spec in enumerate(network.layers):
        # The columns of a layer without input connection end before the inputs.
        hidden = [place for source in network.sources(layer) for place in places[source + 1]]
        sources = [*hidden, *places[0]]
        for node, reads in zip(places[layer + 1], spec.reads, strict=True):
            found += [(s, node) for s, is_read in zip(sources, reads, strict=False) if is_read]
    return found


def _short(word: str) -> str:
    return word if len(word) <= LONGEST_AT_A_NODE else word[: LONGEST_AT_A_NODE - 1] + "…"


def _node_names(emulator: BaseEmulator, network: Network) -> list[Sequence[str]]:
    hidden = [[str(place + 1) for place in range(spec.width)] for spec in network.layers[:-1]]
    return [*hidden, emulator.output_names]


def _output(emulator: BaseEmulator, output: int | str) -> int:
    return place_of(output, "output", emulator.output_names)


def _predicted(emulator: BaseEmulator, x: np.ndarray, output: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of one output."""
    moments = emulator.posterior_.moments(x)
    return moments.mean[:, output], moments.std[:, output]


def _draw_band(ax: Axes, emulator: BaseEmulator, along: np.ndarray, x: np.ndarray, k: int) -> None:
    """Mean and 95 % interval of an output at the rows of x, drawn ``along`` an input."""
    found = emulator.posterior_.bands(x)
    ax.fill_between(
        along, found.low[:, k], found.high[:, k], color=BLUE, alpha=0.25, linewidth=0,
        label="95 % interval",
    )  # fmt: skip
    ax.plot(along, found.mean[:, k], color=BLUE, linewidth=1.6, label="mean")


def _two_inputs(emulator: BaseEmulator, inputs: Sequence[int | str]) -> tuple[int, int]:
    pair = list(inputs) if isinstance(inputs, Sequence) and not isinstance(inputs, str) else []
    places = [place_of(each, "an entry of inputs", emulator.input_names) for each in pair]
    if len(set(places)) != 2 or len(places) != 2:  # noqa: PLR2004
        raise InputError(f"inputs is {inputs!r}; it must be two different inputs.")
    return places[0], places[1]


def _centre(emulator: BaseEmulator, at: ArrayLike | None) -> np.ndarray:
    if at is None:
        return np.median(emulator.training_inputs, axis=0)
    point = np.asarray(at, dtype=np.float64)
    if point.shape != (emulator.n_features_in_,) or not np.all(np.isfinite(point)):
        raise InputError(
            f"at has shape {point.shape}; it must be {emulator.n_features_in_} finite number(s)."
        )
    return point


def _range(emulator: BaseEmulator, j: int) -> tuple[float, float]:
    low, high = emulator.posterior_.runs.input_range
    return float(low[j]), float(high[j])


def along(centre: np.ndarray, moving: dict[int, np.ndarray]) -> np.ndarray:
    """Copies of a point with some of its coordinates replaced."""
    rows = np.tile(centre, (len(next(iter(moving.values()))), 1))
    for j, values in moving.items():
        rows[:, j] = values
    return rows


def _heaviest(emulator: BaseEmulator, deep_only: bool = True) -> tuple[Trained, np.ndarray]:
    """The structure with the largest weight, and the weights of its chains."""
    require_fitted(emulator)
    found = emulator.posterior_.heaviest(1 if deep_only else 0)
    if found is None:
        raise InputError("The emulator has no deep structure, so there are no hidden layers.")
    return found


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    _, made = _pyplot().subplots(figsize=(5.2, 3.8), layout="constrained")
    return made


def _grid(
    axes: Any, n_rows: int, n_columns: int, width: float, height: float, **shared: Any
) -> Any:
    """Given axes, as an array of that shape, or new ones."""
    if axes is None:
        _, axes = _pyplot().subplots(
            n_rows, n_columns, squeeze=False, layout="constrained",
            figsize=(max(width * n_columns, 4.0), max(height * n_rows, 2.8)), **shared,
        )  # fmt: skip
    found = np.asarray(axes, dtype=object)
    if found.size != n_rows * n_columns:
        raise InputError(f"axes are {found.size}; this figure needs {n_rows * n_columns}.")
    return found.reshape(n_rows, n_columns)


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install 'deepemu[plot]'") from error
    return pyplot
