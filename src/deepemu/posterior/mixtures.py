"""The distribution of new outputs that a mixture is: moments, quantiles and densities."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from deepemu._types import record
from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.model.observation import Units
from deepemu.diagnostics import tails
from deepemu.observations.model import Observation


@record
class Moments:
    """Mean and standard deviation in user units. Outputs near the ends of the doubles have no
    variance there."""

    mean: np.ndarray
    std: np.ndarray

    @property
    def var(self) -> np.ndarray:
        return np.square(self.std)


@record
class Bands:
    """Mean, standard deviation and ends of an interval (m, q), in user units."""

    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Members:
    """Moments (K, m, q) of new outputs by each imputation of each chain, and weights (K,)."""

    outputs: Moments
    weights: np.ndarray


def moments_in_user_units(outputs: Gaussian, units: Units) -> Moments:
    mean, var = np.asarray(outputs.mean), np.asarray(outputs.var)
    return Moments(units.to_user(mean), units.size * np.sqrt(var))


def outputs_in_user_units(
    outputs: np.ndarray, observation: Observation, units: Units
) -> np.ndarray:
    """Outputs (…, q), on their grid if they have one."""
    found, spacing = np.asarray(units.to_user(outputs)), observation.spacing
    return found if spacing is None else np.round(found / spacing) * spacing


def log_density(
    y: np.ndarray, found: Mixture, observation: Observation, units: Units
) -> np.ndarray:
    """log Σ_k w_k Π_j p_k(y_j) (m,) in user units, at outputs y (m, q) in core units."""
    each = observation.log_density_of(y, found.latents, units) - observation.log_size(units)
    return logsumexp(each.sum(axis=-1), b=found.weights, axis=0)


def quantiles(
    found: Mixture, observation: Observation, units: Units, levels: Sequence[float]
) -> np.ndarray:
    """Quantiles (levels, m, q) of new outputs in user units."""
    each = [observation.quantile(level, found, units) for level in levels]
    return outputs_in_user_units(np.stack(each), observation, units)


def bands(found: Mixture, observation: Observation, units: Units, level: float) -> Bands:
    """Moments and the central interval of new outputs."""
    moments = moments_in_user_units(observation.mixed_moments(found, units), units)
    low, high = quantiles(found, observation, units, tails(level))
    return Bands(moments.mean, moments.std, low, high)
