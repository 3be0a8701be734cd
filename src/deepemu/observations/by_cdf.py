"""Quantiles and the CRPS of any distribution, given its distribution function."""

from collections.abc import Callable

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]
# Each halves the bracket: from a hundred standard deviations to a rounding error, or on a grid from
# the largest double to one step.
N_HALVINGS, N_HALVINGS_ON_GRID = 60, 1100
N_DOUBLINGS = 60
# The error of the CRPS falls with the square of their number: some 1e-4 of it.
N_POINTS = 128


def quantile(
    cdf: Function,
    centre: np.ndarray,
    width: np.ndarray,
    level: float,
    on_grid: Function,
    step: np.ndarray | float = 0.0,
) -> np.ndarray:
    """The least y with P(output ≤ y) ≥ ``level``, elementwise.

    The bracket starts at ``centre`` ± ``width``, the mean and standard deviation say, and is
    widened until it holds the quantile. ``on_grid`` gives the largest output that is at most y; on
    a grid of this ``step`` (0 if outputs are continuous) brackets of one step will do.
    """
    low, high = centre - width, centre + width
    for _ in range(N_DOUBLINGS):
        above, below = cdf(on_grid(low)) >= level, cdf(on_grid(high)) < level
        if not (above.any() or below.any()):
            break
        reach = high - low
        low, high = np.where(above, low - reach, low), np.where(below, high + reach, high)
    for _ in range(N_HALVINGS_ON_GRID if np.any(np.asarray(step) > 0.0) else N_HALVINGS):
        middle = 0.5 * (low + high)
        inside = cdf(on_grid(middle)) >= level
        low, high = np.where(inside, low, middle), np.where(inside, middle, high)
        if np.all(on_grid(high) - on_grid(low) <= 1.5 * step):
            break
    return on_grid(high)


def crps(
    cdf: Function,
    y: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray],
    on_grid: Function,
    step: np.ndarray,
) -> np.ndarray:
    """∫ (F(t) − 1{y ≤ t})² dt, elementwise, between ``ends`` outside of which F is 0 or 1.

    A sum of trapezia. On a grid of this ``step`` (0 if outputs are continuous) F is constant
    between points, and the sum of the step's rectangles over t₀ ≤ t < t₁ is the trapezium plus
    step (g(t₀) − g(t₁)) / 2, exactly so if g is linear on the grid.
    """
    at, values = _points(cdf, y, ends, on_grid, step)
    below = at[1:] <= y
    first, last = (
        np.where(below, each**2, (1.0 - each) ** 2) for each in (values[:-1], values[1:])
    )
    return 0.5 * np.sum(np.diff(at, axis=0) * (first + last) + step * (first - last), axis=0)


def _points(
    cdf: Function,
    y: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray],
    on_grid: Function,
    step: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Points in order, from end to end and with y among them, and F there.

    One after the other halves the panel whose width times the change of F over it is largest.
    """
    at = np.stack([np.minimum(ends[0], y), y, np.maximum(ends[1], y)])
    values = np.stack([cdf(each) for each in at])
    for _ in range(N_POINTS):
        width = np.diff(at, axis=0)
        error = np.where(width > 1.5 * step, width * np.diff(values, axis=0), 0.0)
        worst = np.argmax(error, axis=0)[None]
        left, right = (np.take_along_axis(at, place, axis=0) for place in (worst, worst + 1))
        middle = on_grid(0.5 * (left + right))
        at, values = np.concatenate([at, middle]), np.concatenate([values, cdf(middle[0])[None]])
        order = np.argsort(at, axis=0, kind="stable")
        at, values = (np.take_along_axis(each, order, axis=0) for each in (at, values))
    return at, values
