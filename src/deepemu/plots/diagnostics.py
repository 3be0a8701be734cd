"""Figures of held-out predictions and of the agreement of chains.

Matplotlib is imported when a figure is asked for.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from deepemu.convergence import split_rhat
from deepemu.data.checks import checked, real_array
from deepemu.diagnostics import standardised_errors
from deepemu.errors import InputError
from deepemu.plots.style import (
    BAND,
    BLUE,
    GREY,
    LEVELS,
    OF_CHAINS,
    VERMILION,
    _size_of_rows,
    draw_predictions,
    name,
    named,
)
from deepemu.posterior.comparison import Z_95, Comparison, Rank, compared_with_normals
from deepemu.posterior.posterior import Posterior
from deepemu.training.chains import Trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_diagnostics"]
N_BINS = 10
Panel = Callable[["Axes"], None]


def plot_diagnostics(
    y: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    labels: Sequence[str] | None = None,
    rhat: Mapping[str, float] | float | None = None,
    trace: ArrayLike | None = None,
    traced: str = "each chain",
    predictions: str = "Held-out",
    output: str | None = None,
) -> Figure:
    """Held-out outputs against their predictions, and the chains behind them, in one figure.

    Four panels need ``y``, ``mean`` and ``std`` of normal predictions only: predictions with 95 %
    intervals (the title says which ``predictions`` they are, the axes name the ``output``),
    standardised errors, their probability integral transform, and coverage. All entries are pooled,
    so outputs of different units are better drawn one at a time. A fifth shows ``weights``, one for
    each of the components named by ``labels``; a sixth the ``trace`` of the log density, (chains,
    iterations), whose title says what is ``traced`` and gives ``rhat`` (a number, or several by
    name; unless given, the split R-hat of the second half of the trace). Its vertical axis omits
    values that only the first tenth of the iterations reach. Grey bands are 95 % intervals for
    calibrated predictions of independent outputs.

    The figure is not registered with pyplot: it need not be closed, and ``plt.show()`` does not
    show it. A notebook shows it as the value of a cell; ``figure.savefig("diagnostics.png")`` needs
    no display.
    """
    flat = (np.ravel(values) for values in checked(y=y, mean=mean, std=std))
    beside = _weights_panel(weights, labels) + _trace_panel(trace, rhat, traced)
    return _figure_of(_panels_of(compared_with_normals(*flat), predictions, output) + beside)


def _panels_of(shown: Comparison, predictions: str, output: str | None) -> list[Panel]:
    """The panels of outputs (n,) and their predictive distributions."""
    return [
        functools.partial(draw_predictions, shown=shown, what=predictions, output=output),
        functools.partial(_draw_errors, shown=shown, output=output),
        functools.partial(_draw_pit, rank=shown.rank),
        functools.partial(_draw_coverage, rank=shown.rank),
    ]


def diagnostics_of(posterior: Posterior, output: int | str) -> Figure:
    """`plot_diagnostics` of a fit: held-out predictions, or closed-form leave-one-out.

    Intervals, probability integral transform and coverage are those of the mixture.
    """
    k, deep = posterior.runs.output_number(output), posterior.heaviest(n_hidden=1)
    conditional = posterior.stacked.held_out is None
    what = "Conditional leave-one-out" if conditional else "Held-out"
    shown, structures = posterior.compared_runs().of_output(k), posterior.report.lines[:-1]
    panels = _panels_of(shown, what, posterior.runs.columns.outputs[k])
    panels += _weights_panel([e.weight for e in structures], [e.label for e in structures])
    return _figure_of(panels + ([] if deep is None else _late_trace(deep[0])))


def _late_trace(trained: Trained) -> list[Panel]:
    """The panel of the log density in the iterations with all rows."""
    path = np.asarray(trained.trace.log_density)[:, -trained.n_together :]
    return _trace_panel(path, None, trained.structure.label)


def _weights_panel(weights: ArrayLike | None, labels: Sequence[str] | None) -> list[Panel]:
    """The panel of the weights, if there are any."""
    if weights is None:
        if labels is not None:
            raise InputError("labels name the weights: give weights too")
        return []
    (w,) = checked(weights=weights)
    names = [f"component {k}" for k in range(1, w.size + 1)] if labels is None else list(labels)
    if w.ndim != 1 or len(names) != w.size:
        raise InputError(f"weights of shape {w.shape} do not go with {len(names)} labels")
    return [functools.partial(_draw_weights, weights=w, labels=names)]


def _trace_panel(
    trace: ArrayLike | None, rhat: Mapping[str, float] | float | None, traced: str
) -> list[Panel]:
    """The panel of the traces, if there are any."""
    if trace is None:
        if rhat is not None:
            raise InputError("rhat stands in the title of the traces: give trace too")
        return []
    paths = real_array("trace", trace)
    if paths.ndim != 2 or paths.size == 0:
        raise InputError(f"trace must have the shape (chains, iterations), got {paths.shape}")
    agreement = _rhat_in_words(_late_rhat(paths) if rhat is None else rhat)
    title = f"Log density of {traced}" + (f"\n{agreement}" if agreement else "")
    return [functools.partial(_draw_trace, trace=paths, title=title)]


def _late_rhat(trace: np.ndarray) -> dict[str, float]:
    """R-hat of the second half: the approach from equal starts would hide how chains differ."""
    return {"second half": float(split_rhat(trace[:, trace.shape[1] // 2 :]))}  # NaN: too short


def _rhat_in_words(rhat: Mapping[str, float] | float) -> str:
    if not isinstance(rhat, Mapping):
        return rf"split $\hat{{R}}$ = {rhat:.2f}"
    known = {name: value for name, value in rhat.items() if not np.isnan(value)}
    if not known:
        return ""
    values = ", ".join(f"{value:.2f} ({name})" for name, value in known.items())
    return rf"split $\hat{{R}}$ = {values}"


def _draw_errors(axes: Axes, shown: Comparison, output: str | None) -> None:
    """Infinite errors, of predictions without spread, are drawn at the largest finite one."""
    mean, errors = shown.mean, standardised_errors(shown.y, shown.mean, shown.std)
    edge = 1.1 * np.max(np.abs(errors[np.isfinite(errors)]), initial=3.0)
    drawn, outside = np.clip(errors, -edge, edge), ~shown.rank.inside()
    axes.axhspan(-Z_95, Z_95, color=BAND, linewidth=0, zorder=0)
    axes.axhline(0.0, color=GREY, linewidth=1, zorder=1)
    axes.plot(mean[~outside], drawn[~outside], "o", color=BLUE, markersize=4, label="inside")
    axes.plot(mean[outside], drawn[outside], "s", color=VERMILION, markersize=4, label="outside")
    axes.set_ylim(-1.1 * edge, 1.1 * edge)
    predicted = named(output, "predicted")
    name(axes, "Standardised errors, band ±1.96", predicted, "(observed − predicted) / std")


def _draw_pit(axes: Axes, rank: Rank) -> None:
    n = rank.pit.size
    low, high = _binomial_interval(n, 1.0 / N_BINS)
    axes.axhspan(low, high, color=BAND, linewidth=0, zorder=0)
    axes.axhline(n / N_BINS, color=GREY, linewidth=1, zorder=1)
    axes.hist(
        rank.pit, bins=N_BINS, range=(0.0, 1.0), histtype="bar", rwidth=0.9,
        color=BLUE, alpha=0.8, zorder=2,
    )  # fmt: skip
    axes.set_xlim(0.0, 1.0)
    name(axes, "Probability integral transform", "predictive probability below observed", "count")


def _draw_coverage(axes: Axes, rank: Rank) -> None:
    n, observed = rank.pit.size, rank.intervals(LEVELS.tolist()).shares
    low, high = _binomial_interval(n, LEVELS)
    axes.fill_between(LEVELS, low / n, high / n, color=BAND, linewidth=0, zorder=0)
    axes.plot([0.0, 1.0], [0.0, 1.0], color=GREY, linewidth=1, zorder=1)
    axes.plot(LEVELS, observed, "o-", color=BLUE, markersize=4, linewidth=1.2, label="observed")
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.02))
    name(axes, "Coverage of central intervals", "nominal level", "share of outputs inside")


def _binomial_interval(n: int, probability: ArrayLike) -> tuple[Any, Any]:
    """The central 95 % of a binomial count."""
    from scipy.stats import binom  # slow to import, like matplotlib

    return binom.interval(0.95, n, probability)


def _draw_weights(axes: Axes, weights: np.ndarray, labels: Sequence[str]) -> None:
    rows = np.arange(weights.size)
    bars = axes.barh(rows, weights, color=BLUE, height=0.7)
    axes.bar_label(bars, fmt="{:.2g}", padding=3, fontsize=_size_of_rows(weights.size))
    axes.set_yticks(rows, labels)
    axes.invert_yaxis()  # the first on top, as one reads
    axes.margins(x=0.15)
    name(axes, "Weights of the components", "weight", "")
    axes.tick_params(axis="y", length=0, labelsize=_size_of_rows(weights.size))


def _draw_trace(axes: Axes, trace: np.ndarray, title: str) -> None:
    for chain, path in enumerate(trace):
        repeats, colour = divmod(chain, len(OF_CHAINS))
        axes.plot(
            np.arange(1, path.size + 1), path, "--" if repeats % 2 else "-",
            color=OF_CHAINS[colour], linewidth=0.8, alpha=0.8,
        )  # fmt: skip
    settled = trace[:, trace.shape[1] // 10 :]
    settled = settled[np.isfinite(settled)]
    if settled.size and np.ptp(settled) > 0.0:
        margin = 0.05 * np.ptp(settled)
        axes.set_ylim(settled.min() - margin, settled.max() + margin)
    axes.set_xlim(1, max(trace.shape[1], 2))
    name(axes, title, "iteration", "log density")


def _figure_of(panels: Sequence[Panel]) -> Figure:
    """Two rows of panels, each row filled whatever their number."""
    upper = (len(panels) + 1) // 2
    figure = _empty_figure(width=4.2 * upper, height=7.2)
    # Six columns, so that rows of two and of three are both as wide as the figure.
    grid = figure.add_gridspec(2, 6)
    for row, in_row in enumerate((panels[:upper], panels[upper:])):
        span = 6 // len(in_row)
        for place, draw in enumerate(in_row):
            draw(figure.add_subplot(grid[row, place * span : (place + 1) * span]))
    return figure


def _empty_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plot_diagnostics needs matplotlib: pip install 'deepemu[plot]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    # A notebook can show a figure only once pyplot is loaded, unless the figure does it itself.
    figure._repr_png_ = functools.partial(_png, figure)  # type: ignore[attr-defined]
    return figure


def _png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
