"""Figures of a fitted emulator: functions that draw on Axes and return them.

All take an ``ax`` (or make a figure of their own, which pyplot knows), take outputs and inputs by
number, from 0, or by name, label axes with the names of the columns, and use colours that are safe
for the common kinds of colour blindness. Matplotlib is imported when a figure is asked for.
"""

from deepemu.plots.figures import (
    plot_fit,
    plot_hidden,
    plot_left_out,
    plot_predictions,
    plot_profile,
    plot_slices,
    plot_structure,
    plot_surface,
    plot_traces,
    plot_weights,
)

__all__ = [
    "plot_fit",
    "plot_hidden",
    "plot_left_out",
    "plot_predictions",
    "plot_profile",
    "plot_slices",
    "plot_structure",
    "plot_surface",
    "plot_traces",
    "plot_weights",
]
