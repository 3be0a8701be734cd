"""Colours, names of axes and ticks that all figures share."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from deepemu.posterior.comparison import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which are safe for the common kinds of colour blindness.
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#555555"
OF_CHAINS = (BLUE, "#E69F00", "#009E73", "#CC79A7", "#56B4E9", VERMILION, "#000000", "#999999")
BAND = "#D9D9D9"
LEVELS = np.append(np.arange(1, 20) / 20, 0.99)
TITLE, LABEL = 11, 10  # sizes of letters, in points
DIGIT = 0.08  # inches
MOST_TICKS = 9
SHORTEST_LINE = 12  # letters, in however small a panel
WIDTH_OF_LETTERS = 0.52  # of most, as a share of their size


def draw_predictions(
    axes: Axes, shown: Comparison, what: str = "Held-out", output: str | None = None
) -> None:
    """Predictions with 95 % intervals against the outputs, those outside in another colour."""
    inside = shown.rank.inside()
    for chosen, word, colour, marker, order in (
        (inside, "inside", BLUE, "o", 2),
        (~inside, "outside", VERMILION, "s", 3),
    ):
        y, mean, low, high = (each[chosen] for each in (shown.y, shown.mean, shown.low, shown.high))
        axes.vlines(y, low, high, color=colour, linewidth=0.8, zorder=order)
        axes.plot(
            y, mean, marker, color=colour, markersize=4, zorder=order,
            label=f"{word} ({np.count_nonzero(chosen)})",
        )  # fmt: skip
    middle = np.mean(shown.y)
    axes.axline((middle, middle), slope=1.0, color=GREY, linewidth=1, zorder=1)
    axes.legend(fontsize=9, frameon=False, loc="upper left", handletextpad=0.3)
    title = f"{what} predictions, 95 % intervals"
    name(axes, title, named(output, "observed"), named(output, "predicted"))


def named(output: str | None, word: str) -> str:
    """A word about an output, after its name if it has one."""
    return word if output is None else f"{output}, {word}"


def name(axes: Axes, title: str, below: str, beside: str) -> None:
    """Title and labels, in the style of all figures, in as many lines as they need."""
    extent, inch = axes.get_window_extent(), axes.figure.dpi
    wide, high = extent.width / inch, extent.height / inch
    written = (
        axes.set_title(_folded(title, wide, TITLE), fontsize=TITLE, loc="left"),
        axes.set_xlabel(_folded(below, wide, LABEL), fontsize=LABEL),
        axes.set_ylabel(_folded(beside, high, LABEL), fontsize=LABEL),
    )
    for words in written:
        words.set_parse_math(r"\hat" in words.get_text())  # a dollar in a name is a dollar
    axes.tick_params(labelsize=9)
    _space_ticks(axes, wide)
    axes.spines[["top", "right"]].set_visible(False)


def _space_ticks(axes: Axes, wide: float) -> None:
    """Tick labels in full, without an offset, and as many as fit without overlap."""
    from matplotlib.ticker import AutoLocator, ScalarFormatter

    for axis in (axes.xaxis, axes.yaxis):
        formatter = axis.get_major_formatter()
        if isinstance(formatter, ScalarFormatter):
            formatter.set_useOffset(False)
    if isinstance(axes.xaxis.get_major_locator(), AutoLocator):
        letters = _letters_of_ticks(*axes.get_xlim()) + 2  # a gap
        axes.locator_params(axis="x", nbins=int(np.clip(wide / (letters * DIGIT), 2, MOST_TICKS)))


def _letters_of_ticks(low: float, high: float) -> int:
    """How long the labels of ticks between two values are."""
    digits = int(np.clip(digits_apart(low, high), 2, 15))
    return max(len(f"{each:.{digits}g}") for each in (low, high))


def digits_apart(low: float, high: float) -> int:
    """Digits that show the hundredth part of a range; six where there is none."""
    largest, span = max(abs(low), abs(high)), abs(high - low)
    return int(np.ceil(np.log10(largest / span))) + 2 if 0.0 < span < np.inf else 6


def _folded(text: str, inches: float, size: float) -> str:
    """Long names in several lines, so that none is cut at the edge of the figure."""
    columns = max(int(72.0 * inches / (WIDTH_OF_LETTERS * size)), SHORTEST_LINE)
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, columns))


def _size_of_rows(n_rows: int) -> float:
    """Font size at which so many rows of text fit the height of a panel."""
    return float(np.clip(150.0 / n_rows, 4.0, 9.0))
