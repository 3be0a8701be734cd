"""Outputs that are the emulated function, or the function with normal noise of one size."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr

from deepemu._types import Array, record
from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.model.observation import Units
from deepemu.core.nodes.node import Sites
from deepemu.data.scaling import require_finite_span, round_off
from deepemu.data.sites import first_rows, sum_by_site
from deepemu.diagnostics import (
    LEVEL,
    expected_distance,
    half_distance,
    normal_mixture_crps,
    tails,
)
from deepemu.errors import DataWarning, Message, Setting, warn
from deepemu.observations.model import Observation

LOG_2PI = float(np.log(2.0 * np.pi))
# The stretch is shrunk towards 1 with the weight of so many outputs; with more of it where it would
# narrow intervals, since a hundred outputs may have missed the large errors by chance.
PRIOR_OUTPUTS, PRIOR_OUTPUTS_OF_NARROW = 20, 140
STRETCH_BOUNDS = (0.3, 3.0)
OUT_OF_REACH = 1e9
NEGLIGIBLE_NOISE = 1e-6


@record
class SiteMeans:
    """Mean outputs, numbers of outputs and squares about the mean per site, (n, q) each."""

    y: Array
    counts: Array
    squares: Array


@dataclass(frozen=True)
class GaussianNoise(Observation):
    """y = f(x) + ε, ε normal with the variance that the last layer's nugget stands for.

    The last layer's latents are integrated out: its nodes are observed themselves.
    """

    imputed: ClassVar[bool] = False
    spacing: ClassVar[float | None] = None

    # --- in the core ----------------------------------------------------------------------------

    def targets(self, observed: SiteMeans) -> Array:
        return observed.y

    def sites(self, observed: SiteMeans) -> Sites:
        return Sites(observed.counts.T, jnp.sum(observed.squares, axis=0))

    def moments(self, latents: Gaussian, units: Units) -> Gaussian:
        return latents

    def function_moments(self, latents: Gaussian, units: Units) -> Gaussian:
        return latents

    # --- data -----------------------------------------------------------------------------------

    def units(self, y: np.ndarray, site: np.ndarray) -> Units:
        """Mean 0 and standard deviation 1; a constant output keeps its size.

        Dividing before squaring keeps outputs near the largest doubles from overflowing.
        """
        with np.errstate(over="ignore"):
            mean = y.mean(axis=0)
            size = np.abs(y - mean).max(axis=0)
        require_finite_span(np.append(mean, size), "y")
        size = np.where(size > round_off(y), size, 0.0)
        spread = np.where(size > 0, size, 1.0)
        std = spread * np.where(size > 0, ((y - mean) / spread).std(axis=0), 1.0)
        return Units(mean, std)

    def collapse(self, y: np.ndarray, site: np.ndarray, units: Units) -> SiteMeans:
        means, counts = site_means(y, site)
        squares = sum_by_site((y - means[site]) ** 2, site)
        return SiteMeans(means, np.repeat(counts[:, None], y.shape[1], axis=1), squares)

    def repeats_differ(self, observed: SiteMeans) -> bool:
        return bool(np.any(np.asarray(observed.squares) > 0.0))

    # --- predictions ----------------------------------------------------------------------------

    def log_density_of(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """log N(y; μ, σ²)."""
        var = np.asarray(latents.var)
        return -0.5 * ((y - np.asarray(latents.mean)) ** 2 / var + np.log(var) + LOG_2PI)

    def cdf(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """Φ((y − μ)/σ)."""
        return ndtr((y - np.asarray(latents.mean)) / np.sqrt(latents.var))

    def draw(self, generator: np.random.Generator, latents: np.ndarray, units: Units) -> np.ndarray:
        """The latents themselves: their nugget is the noise."""
        return latents

    # --- the spread of a mixture ----------------------------------------------------------------

    def crps(self, y: np.ndarray, found: Mixture, units: Units) -> np.ndarray:
        """In closed form: `normal_mixture_crps`."""
        mean, std = np.asarray(found.latents.mean), np.sqrt(found.latents.var)
        return normal_mixture_crps(y, mean, std, found.weights[..., None])

    def stretched(self, latents: Gaussian, centre: Array, stretch: Array) -> Gaussian:
        """μ_k ← μ + c (μ_k − μ) and σ_k ← c σ_k, with μ the mixture's mean: F becomes
        F(μ + (y − μ)/c), and quantiles are stretched too."""
        return Gaussian(centre + stretch * (latents.mean - centre), stretch**2 * latents.var)

    def stretch(self, y: np.ndarray, found: Mixture, units: Units) -> np.ndarray:
        """The geometric mean of the factor c that minimises the mean CRPS and of the one that puts
        95 % of the outputs inside the central 95 % interval, to the power n / (n + 20), or
        n / (n + 140) if it is below 1."""
        low, high = (self.quantile(level, found, units) for level in tails(LEVEL))
        covering = _covering_factors(y, found.centre, low, high)
        factors = np.stack([_best_crps_factors(y, found), covering])
        logs = np.mean(np.log(np.clip(factors, *STRETCH_BOUNDS)), axis=0)
        prior = np.where(logs < 0.0, PRIOR_OUTPUTS_OF_NARROW, PRIOR_OUTPUTS)
        return np.exp(logs * len(y) / (len(y) + prior))


@dataclass(frozen=True)
class Interpolated(GaussianNoise):
    """y = f(x): the outputs of a site are averaged, and their mean counts once."""

    def units(self, y: np.ndarray, site: np.ndarray) -> Units:
        """Those of the site means."""
        with np.errstate(over="ignore", invalid="ignore"):
            means, _ = site_means(y, site)
        return super().units(means, site)

    def collapse(self, y: np.ndarray, site: np.ndarray, units: Units) -> SiteMeans:
        sites = super().collapse(y, site, units)
        n_spread = int(np.sum(np.any(np.asarray(sites.squares) > 0, axis=1)))
        if n_spread:
            message = Message(
                f"{n_spread} input row(s) occur more than once with different y: an interpolating "
                "emulator uses their mean; fit with ",
                Setting("nugget", "estimate"),
                " to model the spread as noise.",
            )
            warn(message, DataWarning)
        ones, none = np.ones_like(sites.counts), np.zeros_like(sites.squares)
        return SiteMeans(sites.y, ones, none)

    def judged(self, y: np.ndarray, site: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The site means, which the emulator is trained on."""
        means, counts = site_means(y, site)
        return means, np.arange(len(counts))

    def caveats(self, y: np.ndarray, site: np.ndarray) -> tuple[str, ...]:
        if np.all(y == y[first_rows(site)][site]):
            return ()
        return (
            "Inputs occur more than once with different outputs; the emulator was told that "
            "there is no noise, and uses their means.",
        )


@dataclass(frozen=True)
class PerhapsNoise(GaussianNoise):
    """y = f(x) + ε, where ε may be nothing: repeats of an output that agree are copies, and count
    once.

    They agree if their variance is less than a millionth of that of the output: a nugget of 1e-8
    times the variance of a smooth process stands for as much.
    """

    def units(self, y: np.ndarray, site: np.ndarray) -> Units:
        of_means, of_rows = Interpolated().units(y, site), super().units(y, site)
        copies = _are_copies(y, site)
        return Units(
            np.where(copies, of_means.shift, of_rows.shift),
            np.where(copies, of_means.size, of_rows.size),
        )

    def collapse(self, y: np.ndarray, site: np.ndarray, units: Units) -> SiteMeans:
        found, copies = super().collapse(y, site, units), _are_copies(y, site)
        counts = np.where(copies, 1.0, found.counts)
        return SiteMeans(found.y, counts, np.where(copies, 0.0, found.squares))

    def judged(self, y: np.ndarray, site: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Site means, if all outputs have copies only."""
        copies = np.all(_are_copies(y, site))
        return Interpolated().judged(y, site) if copies else super().judged(y, site)


def _are_copies(y: np.ndarray, site: np.ndarray) -> np.ndarray:
    """Whether (q,) repeated outputs agree."""
    means, counts = site_means(y, site)
    size = np.max(np.abs(means), axis=0)  # squares of outputs may not be doubles
    size, n_repeats = np.where(size > 0.0, size, 1.0), max(len(y) - len(counts), 1)
    within = np.sum(((y - means[site]) / size) ** 2, axis=0) / n_repeats
    return within <= NEGLIGIBLE_NOISE * np.var(means / size, axis=0)


def site_means(y: np.ndarray, site: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean outputs (sites, q) and counts (sites,).

    Means are taken of differences from a site's first output: equal outputs keep every digit.
    """
    counts, first = np.bincount(site).astype(float), y[first_rows(site)]
    return first + sum_by_site(y - first[site], site) / counts[:, None], counts


def _best_crps_factors(y: np.ndarray, found: Mixture) -> np.ndarray:
    """The c (q,) that minimise the mean CRPS: a convex function,

    mean_i Σ_k w_k E|μ + c (X_k − μ) − y_i| − c D_i, with D half the distance of two draws.
    """
    centre, std = found.centre, np.sqrt(found.latents.var)
    error, offset = y - centre, np.asarray(found.latents.mean) - centre
    apart = half_distance(offset, std, found.weights[..., None])
    return np.array(
        [
            _least(error[:, j], offset[..., j], std[..., j], apart[:, j], found.weights)
            for j in range(y.shape[1])
        ]
    )


def _least(
    error: np.ndarray, offset: np.ndarray, std: np.ndarray, apart: np.ndarray, weights: np.ndarray
) -> float:
    """The c that minimises the mean CRPS of one output."""
    from scipy.optimize import minimize_scalar  # slow to import

    def score(log_factor: float) -> float:
        c = np.exp(log_factor)
        distance = np.sum(weights * expected_distance(error - c * offset, c * std), axis=0)
        return float(np.mean(distance - c * apart))

    return float(np.exp(minimize_scalar(score, bounds=np.log(STRETCH_BOUNDS), method="bounded").x))


def _covering_factors(
    y: np.ndarray, centre: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The c (q,) from which on 95 % of the outputs are inside the stretched interval.

    Output i is inside if c ≥ (y − μ) / (q − μ), with q the end on its side of the mean. There is
    no such c where the interval lies on the other side of the mean altogether.
    """
    error = y - centre
    reach = np.where(error > 0.0, high, low) - centre
    within = error * reach > 0.0
    needed = np.where(within, error / np.where(within, reach, 1.0), OUT_OF_REACH)
    return np.quantile(np.where(error == 0.0, 0.0, needed), LEVEL, axis=0)
