"""Quantiles of a mixture from its distribution function."""

from collections.abc import Callable

import numpy as np

# Each halves the bracket: from a hundred standard deviations to a rounding error.
N_HALVINGS = 60
N_DOUBLINGS = 60


def quantiles(
    cdf: Callable[[np.ndarray], np.ndarray],
    centre: np.ndarray,
    width: np.ndarray,
    level: float,
    spacing: np.ndarray | None,
) -> np.ndarray:
    """The least y with P(output ≤ y) ≥ ``level``, elementwise, by bisection.

    The bracket starts at ``centre`` ± ``width``, the mean and standard deviation say, and is
    widened until it holds the quantile. Outputs may be multiples of a ``spacing``.
    """
    on_grid = (lambda y: y) if spacing is None else lambda y: np.floor(y / spacing) * spacing
    low, high = centre - width, centre + width
    for _ in range(N_DOUBLINGS):
        above, below = cdf(on_grid(low)) >= level, cdf(on_grid(high)) < level
        if not (above.any() or below.any()):
            break
        reach = high - low
        low, high = np.where(above, low - reach, low), np.where(below, high + reach, high)
    for _ in range(N_HALVINGS):
        middle = 0.5 * (low + high)
        inside = cdf(on_grid(middle)) >= level
        low, high = np.where(inside, low, middle), np.where(inside, middle, high)
    return on_grid(high)
