"""The distribution of new outputs that a mixture is: moments, quantiles and densities."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from deepemu._types import record
from deepemu.core.distributions import Gaussian
from deepemu.core.model.observation import Units
from deepemu.observations.model import Observation
from deepemu.posterior.components import Components

# Each halves the bracket: from a hundred standard deviations to a rounding error.
N_HALVINGS = 60
N_DOUBLINGS = 60


@record
class Moments:
    """Mean and standard deviation in user units. Outputs near the ends of the doubles have no
    variance there."""

    mean: np.ndarray
    std: np.ndarray

    @property
    def var(self) -> np.ndarray:
        return np.square(self.std)


@dataclass(frozen=True)
class Members:
    """Moments (K, m, q) of new outputs by each imputation of each chain, and weights (K,)."""

    outputs: Moments
    weights: np.ndarray


def moments_in_user_units(outputs: Gaussian, units: Units) -> Moments:
    mean, std = units.to_user(outputs.mean), units.size * np.sqrt(outputs.var)
    return Moments(np.asarray(mean), np.asarray(std))


def outputs_in_user_units(
    outputs: np.ndarray, observation: Observation, units: Units
) -> np.ndarray:
    """Outputs (…, q), on their grid if they have one."""
    found, spacing = np.asarray(units.to_user(outputs)), observation.spacing
    return found if spacing is None else np.round(found / spacing) * spacing


def log_density(
    found: Components, observation: Observation, units: Units, y: np.ndarray
) -> np.ndarray:
    """log Σ_k w_k Π_j p_k(y_j) (m,) in user units, at outputs y (m, q) in core units."""
    each = observation.log_density_of(y, found.latents, units) - np.log(units.size)
    return logsumexp(each.sum(axis=-1), b=found.weights[:, None], axis=0)


def quantiles(
    found: Components, observation: Observation, units: Units, levels: list[float]
) -> np.ndarray:
    """Quantiles (levels, m, q) of new outputs in user units."""
    mixed, step = found.mixed(), observation.spacing
    spacing = None if step is None else step / np.asarray(units.size)

    def cdf(y: np.ndarray) -> np.ndarray:
        return np.tensordot(found.weights, observation.cdf(y, found.latents, units), axes=1)

    centre, width = np.asarray(mixed.mean), np.sqrt(mixed.var)
    each = [bisected(cdf, centre, width, level, spacing) for level in levels]
    return outputs_in_user_units(np.stack(each), observation, units)


def bisected(
    cdf: Callable[[np.ndarray], np.ndarray],
    centre: np.ndarray,
    width: np.ndarray,
    level: float,
    spacing: np.ndarray | None,
) -> np.ndarray:
    """The least y with P(output ≤ y) ≥ ``level``, elementwise.

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
