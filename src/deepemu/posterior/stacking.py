"""Weights of chains, and a scale of the standard deviation, from what chains said of unseen sites.

Everything here is NumPy on held-out predictions: moments (chains, sites, q), and which sites a
chain had not seen.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, ndtri
from scipy.stats import norm

from deepemu.core.distributions import Gaussian, mixture
from deepemu.core.ensemble import Ensemble
from deepemu.diagnostics import LEVEL, crps
from deepemu.runtime import trees
from deepemu.training.candidates import Candidate
from deepemu.training.chains import Trained
from deepemu.training.folds import HeldOut

# Few steps leave the weights near uniform unless the data insist.
STACKING_STEPS = 10
ROUND_OFF = 1e-9
# A gain of so many standard errors is not chance.
CLEAR = 2.0
# Sites are judged by weights and scales from the other groups.
N_GROUPS = 5
LEAST_WEIGHT, SMALLEST_VOTE = 1e-9, 1e-3
# The scale is drawn towards 1 as if so many outputs had asked for it.
PRIOR_OUTPUTS = 20
SCALE_BOUNDS = (0.3, 3.0)


@dataclass(frozen=True)
class Part:
    """A structure and what its training gave."""

    candidate: Candidate
    trained: Trained


@dataclass(frozen=True)
class Observed:
    """Outputs (n, q) in core units, and the site of each row."""

    y: np.ndarray
    site: np.ndarray


@dataclass(frozen=True)
class Stacked:
    """Weights (chains,), scales (q,) of the standard deviation, and the mixture's predictions
    (sites, q) of unseen sites, where there are any: with weights and scales from other sites."""

    weights: np.ndarray
    scale: np.ndarray
    held_out: Gaussian | None


@dataclass(frozen=True)
class Gain:
    """By how much a row's held-out log density is higher on average, and its standard error."""

    mean: float
    error: float

    @property
    def is_clear(self) -> bool:
        return self.mean > CLEAR * self.error

    @property
    def is_clear_loss(self) -> bool:
        return self.mean < -CLEAR * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.error:.2f}"


def gain(parts: Sequence[Part], others: Sequence[Part], observed: Observed) -> Gain:
    """What the stacked mixture of some parts gains over that of others, row by row.

    The weights of both have seen the rows that they are compared on.
    """
    difference = _row_scores(parts, observed) - _row_scores(others, observed)
    return Gain(float(difference.mean()), float(difference.std() / np.sqrt(len(difference))))


def _row_scores(parts: Sequence[Part], observed: Observed) -> np.ndarray:
    """log Σ_k w_k p_ki (n,) over the chains that had not seen row i, summed over outputs."""
    held_out = join([part.trained.held_out for part in parts])
    if held_out is None:
        raise ValueError("parts without held-out predictions cannot be compared")
    log_density, unseen = log_scores(held_out, observed), held_out.unseen[:, observed.site]
    shares = _shares_of_unaware(stacking_weights(log_density, unseen), unseen)
    return logsumexp(log_density, b=shares, axis=0).sum(axis=1)


def stack_parts(parts: Sequence[Part], observed: Observed) -> Stacked:
    """Weights of all chains of all parts, one after the other, and the scale.

    Without predictions of unseen sites all chains count the same.
    """
    held_out = join([part.trained.held_out for part in parts])
    if held_out is None:
        n_chains = sum(len(part.trained.chains) for part in parts)
        return Stacked(np.full(n_chains, 1.0 / n_chains), np.ones(observed.y.shape[1]), None)
    log_density, unseen = log_scores(held_out, observed), held_out.unseen[:, observed.site]
    honest = _without_own_vote(held_out, log_density, unseen, observed)
    return Stacked(stacking_weights(log_density, unseen), *_scaled(honest, observed))


def _without_own_vote(
    held_out: HeldOut, log_density: np.ndarray, unseen: np.ndarray, observed: Observed
) -> Gaussian:
    """The mixture's predictions (sites, q) with weights that a site's own group had no part in.

    Weights that have seen an output would be too kind to it, above all where rows are few.
    """
    mean, var = np.empty((2, *held_out.moments.mean.shape[1:]))
    group = _groups(mean)
    for each in range(N_GROUPS):
        others, mine = group[observed.site] != each, group == each
        weights = stacking_weights(log_density[:, others], unseen[:, others])
        mixed = unseen_mixture(held_out, weights)
        mean[mine], var[mine] = mixed.mean[mine], mixed.var[mine]
    return Gaussian(mean, var)


def _scaled(mixed: Gaussian, observed: Observed) -> tuple[np.ndarray, Gaussian]:
    """The scale, and predictions with scales from the sites of other groups.

    (Their weights did see a site's outputs, which changes its scale in the third digit.)
    """
    mean, var = at_rows(mixed, observed)
    scaled = np.array(mixed.var)
    group = _groups(scaled)
    for each in range(N_GROUPS):
        others = group[observed.site] != each
        scale = deviation_scale(observed.y[others], mean[others], var[others])
        scaled[group == each] *= scale**2
    return deviation_scale(observed.y, mean, var), Gaussian(mixed.mean, scaled)  # type: ignore[arg-type]


def _groups(sites: np.ndarray) -> np.ndarray:
    """Sites in turn: neighbours in the table of runs are often neighbours in the input space."""
    return np.arange(len(sites)) % N_GROUPS


def weighted_ensembles(parts: Sequence[Part], weights: np.ndarray) -> tuple[Ensemble, ...]:
    """The ensembles of all parts, whose members share the weight of their chain."""
    return tuple(
        _weighted(part.trained.ensemble, of_chain) for part, of_chain in by_part(parts, weights)
    )


def by_part(parts: Sequence[Part], weights: np.ndarray) -> list[tuple[Part, np.ndarray]]:
    """Each part with the weights of its chains."""
    ends = np.cumsum([len(part.trained.chains) for part in parts])
    return list(zip(parts, np.split(weights, ends[:-1]), strict=True))


def _weighted(ensemble: Ensemble, of_chain: np.ndarray) -> Ensemble:
    chain = np.asarray(ensemble.chain)
    weights = (of_chain / np.bincount(chain))[chain]
    return dataclasses.replace(ensemble, weights=weights)


def join(parts: Sequence[HeldOut | None]) -> HeldOut | None:
    """Predictions of several structures, one chain after the other, if all have them."""
    given = [part for part in parts if part is not None]
    if len(given) < len(parts):
        return None
    moments = trees.joined([part.moments for part in given])
    return HeldOut(moments, np.concatenate([part.unseen for part in given]))


def log_scores(held_out: HeldOut, observed: Observed) -> np.ndarray:
    """log N(y_i; μ_ki, σ²_ki) (chains, n, q) of each chain k at each row i.

    An output that does not vary says nothing of chains and scores zero.
    """
    moments = held_out.moments
    mean, var = moments.mean[:, observed.site], moments.var[:, observed.site]
    unseen = held_out.unseen[:, observed.site, None]
    scores = norm.logpdf(observed.y, mean, np.sqrt(np.where(unseen, var, 1.0)))
    return np.where(np.ptp(observed.y, axis=0) > ROUND_OFF, scores, 0.0)


def stacking_weights(
    log_density: np.ndarray, unseen: np.ndarray, n_steps: int = STACKING_STEPS
) -> np.ndarray:
    """Weights (chains,) that raise Σ_i log [Σ_k w_k p_ki / Σ_k w_k], k over chains unaware of i.

    Plain processes are unaware of all rows in turn, deep chains of a quarter, so that a row's
    mixture has fewer deep chains than that of all: in the latter deep structures have a larger
    share. That is as it should be, because more of them together predict better.

    From equal weights, w_k ← w_k Σ_i r_ki / Σ_i s_ki with the posterior and prior shares of k among
    those that had not seen i, r_ki ∝ w_k p_ki and s_ki ∝ w_k: the EM algorithm of stacking if all
    chains predict all rows. Log densities (chains, n, q); outputs count as rows of their own.
    """
    n_chains = len(log_density)
    counts = np.broadcast_to(unseen[..., None], log_density.shape).reshape(n_chains, -1)
    log_density = np.where(counts, log_density.reshape(n_chains, -1), -np.inf)
    density = np.exp(log_density - log_density.max(axis=0))
    weights = np.full(n_chains, 1.0 / n_chains)
    for _ in range(n_steps):
        posterior, prior = (_shares(weights[:, None] * each) for each in (density, counts))
        evidence, without = posterior.sum(axis=1), prior.sum(axis=1)
        # A chain that has seen all of these rows keeps its weight.
        weights = weights * np.divide(evidence, without, np.ones(n_chains), where=without > 0.0)
        weights = np.maximum(weights / weights.sum(), LEAST_WEIGHT)
    # Whoever has so small a vote is not asked: each one costs as much as the best.
    weights = np.where(weights < min(SMALLEST_VOTE, weights.max()), 0.0, weights)
    return weights / weights.sum()


def _shares(values: np.ndarray) -> np.ndarray:
    """Columns that sum to one."""
    return values / values.sum(axis=0)


def unseen_mixture(held_out: HeldOut, weights: np.ndarray) -> Gaussian:
    """Moments (sites, q) of the mixture, at each site, of the chains that had not seen it."""
    shares = _shares_of_unaware(weights, held_out.unseen)
    return mixture(held_out.moments, shares)  # type: ignore[arg-type]


def _shares_of_unaware(weights: np.ndarray, unseen: np.ndarray) -> np.ndarray:
    """Shares (chains, n, 1) of the chains that had not seen a row or site.

    Where all of them have lost their votes they count the same.
    """
    return _shares(np.maximum(weights, LEAST_WEIGHT)[:, None] * unseen)[..., None]


def deviation_scale(y: np.ndarray, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """By how much (q,) to multiply standard deviations.

    The geometric mean of the factor c that minimises the mean CRPS and of the one that puts 95 % of
    the outputs inside the 95 % interval, to the power n / (n + 20).
    """
    columns = list(zip(y.T, mean.T, np.sqrt(var).T, strict=True))
    factors = [[find(*each) for each in columns] for find in (_best_crps_factor, _covering_factor)]
    logs = np.mean(np.log(np.clip(factors, *SCALE_BOUNDS)), axis=0)
    return np.exp(logs * len(y) / (len(y) + PRIOR_OUTPUTS))


def _best_crps_factor(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> float:
    def score(log_factor: float) -> float:
        return crps(y, mean, np.exp(log_factor) * std)

    return float(np.exp(minimize_scalar(score, bounds=np.log(SCALE_BOUNDS), method="bounded").x))


def _covering_factor(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> float:
    return float(np.quantile(np.abs(y - mean) / std, LEVEL) / ndtri((1.0 + LEVEL) / 2.0))


def at_rows(moments: Gaussian, observed: Observed) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances (n, q) at rows, given those at sites."""
    return np.asarray(moments.mean)[observed.site], np.asarray(moments.var)[observed.site]
