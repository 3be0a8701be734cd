"""Outputs beside their predictive distributions, and the scores of these."""

from collections.abc import Sequence

import jax
import numpy as np
from scipy.special import ndtri

from deepemu._types import record
from deepemu.core.distributions import Mixture
from deepemu.core.model.observation import Units
from deepemu.diagnostics import INTERVAL_LEVELS, LEVEL, CoverageTable, mixture_crps, pit, tails
from deepemu.observations.model import Observation
from deepemu.posterior.mixtures import bands, outputs_in_user_units

Z_95 = float(ndtri(tails(LEVEL)[1]))


@record
class Rank:
    """Where outputs (n, q) stand in their predictive distributions: P(output < y), P(output ≤ y).

    Both are the same if outputs are continuous.
    """

    below: np.ndarray
    up_to: np.ndarray

    def inside(self, level: float = LEVEL) -> np.ndarray:
        """Whether the central interval, between the two quantiles, holds the output."""
        low, high = tails(level)
        return (self.up_to >= low) & (self.below < high)

    @property
    def pit(self) -> np.ndarray:
        """The probability integral transform; for outputs on a grid its mid-point version,
        P(output < y) + P(output = y) / 2."""
        return 0.5 * (self.below + self.up_to)

    def intervals(self, levels: Sequence[float] = INTERVAL_LEVELS) -> CoverageTable:
        """How many outputs are inside the intervals of several levels."""
        counts = tuple(int(np.sum(self.inside(level))) for level in levels)
        return CoverageTable(tuple(levels), counts, self.below.size)


@record
class Comparison:
    """Outputs and the mean, standard deviation, 95 % interval, rank and CRPS of their predictive
    distributions, (n, q) each, in user units."""

    y: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rank: Rank
    crps: np.ndarray

    def of_output(self, k: int) -> "Comparison":
        """One of the outputs, (n,) each."""
        return jax.tree.map(lambda each: each[:, k], self)


def rank_of(y: np.ndarray, found: Mixture, observation: Observation, units: Units) -> Rank:
    """The rank of outputs (n, q), in core units."""
    below = observation.mixed_cdf_below(y, found, units)
    return Rank(below, observation.mixed_cdf(y, found, units))


def scores_of(
    y: np.ndarray, found: Mixture, observation: Observation, units: Units
) -> dict[str, float]:
    """Mean CRPS, in standard deviations of the outputs, mean log density and coverage of outputs
    (n, q), in core units, of which those of normal outputs are standard deviations."""
    crps = observation.crps(y, found, units)
    if observation.imputed:
        spread = np.std(units.to_user(y), axis=0)
        crps = np.asarray(units.size * crps / np.where(spread > 0.0, spread, 1.0))
    return {
        "crps": float(np.mean(crps)),
        "log_score": float(np.mean(observation.mixed_log_density(y, found, units))),
        "coverage": float(np.mean(rank_of(y, found, observation, units).inside())),
    }


def compared(y: np.ndarray, found: Mixture, observation: Observation, units: Units) -> Comparison:
    """Outputs (n, q) in core units beside their predictive distributions."""
    outputs = outputs_in_user_units(y, observation, units)
    shown, rank = bands(found, observation, units, LEVEL), rank_of(y, found, observation, units)
    crps = np.asarray(units.size * observation.crps(y, found, units))
    return Comparison(outputs, shown.mean, shown.std, shown.low, shown.high, rank, crps)


def compared_with_normals(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> Comparison:
    """Outputs beside normal distributions, arrays of one shape."""
    rank, reach = pit(y, mean, std), Z_95 * std
    crps = mixture_crps(y, mean[None], std[None] ** 2)
    return Comparison(y, mean, std, mean - reach, mean + reach, Rank(rank, rank), crps)
