"""Weights of chains, and a stretch of the standard deviation, from held-out predictions.

Everything here is NumPy on held-out predictions: latents (chains, sites, P), and a mask of the
sites that each chain held out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from deepemu.core.distributions import Gaussian, mixture
from deepemu.core.model.observation import Units
from deepemu.data.runs import Runs
from deepemu.observations.model import Observation
from deepemu.runtime import devices, trees
from deepemu.training.chains import Trained
from deepemu.training.folds import HeldOut

# Few steps keep the weights near uniform unless the evidence is strong.
STACKING_STEPS = 10
ROUND_OFF = 1e-9
# A gain of more standard errors than this is not chance.
CLEAR = 2.0
# The predictions of a group use weights and stretches from the other groups.
N_GROUPS = 5
LEAST_WEIGHT, SMALLEST_WEIGHT = 1e-9, 1e-3


@dataclass(frozen=True)
class Judged:
    """Outputs (n, q) that predictions are compared with, in core units, the site of each, and the
    observation model that they come from."""

    y: np.ndarray
    site: np.ndarray
    observation: Observation
    units: Units

    def at_rows(self, at_sites: Gaussian) -> Gaussian:
        """Moments (…, n, ·) at rows, given those at sites."""
        mean, var = np.asarray(at_sites.mean), np.asarray(at_sites.var)
        return Gaussian(mean[..., self.site, :], var[..., self.site, :])

    def outputs(self, latents: Gaussian) -> Gaussian:
        """Moments of new outputs, given those of the last layer's nodes."""
        with devices.float64():
            return trees.to_numpy(self.observation.moments(latents, self.units))


def judged_of(runs: Runs, observation: Observation) -> Judged:
    """The outputs that predictions of the runs are compared with."""
    y, site = observation.judged(runs.sites.units.to_core(runs.y), runs.sites.site_of_row)
    return Judged(y, site, observation, runs.sites.units)


@dataclass(frozen=True)
class Stacked:
    """Weights (chains,), stretch (q,) of the standard deviation, and the mixture's predictions
    (sites, q) of held-out sites, if there are any: with weights and stretch from other sites."""

    weights: np.ndarray
    stretch: np.ndarray
    held_out: Gaussian | None


@dataclass(frozen=True)
class Gain:
    """Mean gain in held-out log density per row, and its standard error."""

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


def gain(structures: Sequence[Trained], others: Sequence[Trained], judged: Judged) -> Gain:
    """Gain of the stacked mixture of some structures over that of others, row by row.

    The weights of both depend on the rows that they are compared on.
    """
    difference = _row_scores(structures, judged) - _row_scores(others, judged)
    return Gain(float(difference.mean()), float(difference.std() / np.sqrt(len(difference))))


def _row_scores(structures: Sequence[Trained], judged: Judged) -> np.ndarray:
    """log Σ_k w_k p_ki (n,) over the chains k that held out row i, summed over outputs."""
    held_out = join(structures)
    if held_out is None:
        raise ValueError("structures without held-out predictions cannot be compared")
    log_density, mask = log_scores(held_out, judged), held_out.mask[:, judged.site]
    shares = _shares_of_held_out(stacking_weights(log_density, mask), mask)
    return logsumexp(log_density, b=shares, axis=0).sum(axis=1)


def stack(structures: Sequence[Trained], judged: Judged) -> Stacked:
    """Weights of all chains of all structures, one after the other, and the stretch.

    Without held-out predictions all chains have equal weights.
    """
    held_out = join(structures)
    if held_out is None:
        n_chains = sum(len(each.chains) for each in structures)
        return Stacked(np.full(n_chains, 1.0 / n_chains), np.ones(judged.y.shape[1]), None)
    log_density, mask = log_scores(held_out, judged), held_out.mask[:, judged.site]
    honest = _with_weights_of_others(held_out, log_density, mask, judged)
    return Stacked(stacking_weights(log_density, mask), *_stretched(honest, judged))


def _with_weights_of_others(
    held_out: HeldOut, log_density: np.ndarray, mask: np.ndarray, judged: Judged
) -> Gaussian:
    """The mixture's predictions (sites, q), with weights from the other groups of sites.

    Weights that depend on a site's outputs would be optimistic there, above all if rows are few.
    """
    n_sites, n_outputs = held_out.mask.shape[1], judged.y.shape[1]
    mean, var = np.empty((2, n_sites, n_outputs))
    group = _groups(mean)
    for each in range(N_GROUPS):
        others, mine = group[judged.site] != each, group == each
        weights = stacking_weights(log_density[:, others], mask[:, others])
        mixed = held_out_mixture(held_out, weights, judged)
        mean[mine], var[mine] = mixed.mean[mine], mixed.var[mine]
    return Gaussian(mean, var)


def _stretched(mixed: Gaussian, judged: Judged) -> tuple[np.ndarray, Gaussian]:
    """The stretch, and predictions with stretches from the sites of other groups.

    (Their weights depend on a site's outputs, which changes its stretch in the third digit.)
    """
    rows, var = judged.at_rows(mixed), np.array(mixed.var)
    group = _groups(var)
    for each in range(N_GROUPS):
        others = group[judged.site] != each
        stretch = judged.observation.stretch(judged.y[others], trees.row(rows, others))
        var[group == each] *= stretch**2
    return judged.observation.stretch(judged.y, rows), Gaussian(mixed.mean, var)


def _groups(sites: np.ndarray) -> np.ndarray:
    """Sites in turn: neighbours in the table of runs are often neighbours in the input space."""
    return np.arange(len(sites)) % N_GROUPS


def by_structure(
    structures: Sequence[Trained], weights: np.ndarray
) -> list[tuple[Trained, np.ndarray]]:
    """Each structure with the weights of its chains."""
    ends = np.cumsum([len(each.chains) for each in structures])
    return list(zip(structures, np.split(weights, ends[:-1]), strict=True))


def join(structures: Sequence[Trained]) -> HeldOut | None:
    """Held-out predictions of several structures, one chain after the other, if all have them."""
    given = [each.held_out for each in structures if each.held_out is not None]
    if len(given) < len(structures):
        return None
    latents = trees.joined([each.latents for each in given])
    return HeldOut(latents, np.concatenate([each.mask for each in given]))


def log_scores(held_out: HeldOut, judged: Judged) -> np.ndarray:
    """log p(y_i | latents of chain k) (chains, n, q) of each chain k at each row i.

    A constant output has no evidence about chains and scores zero.
    """
    rows = judged.at_rows(held_out.latents)
    mask = held_out.mask[:, judged.site, None]
    latents = Gaussian(rows.mean, np.where(mask, rows.var, 1.0))
    scores = judged.observation.log_density_of(judged.y, latents, judged.units)
    return np.where(np.ptp(judged.y, axis=0) > ROUND_OFF, scores, 0.0)


def stacking_weights(
    log_density: np.ndarray, mask: np.ndarray, n_steps: int = STACKING_STEPS
) -> np.ndarray:
    """Weights (chains,) that raise Σ_i log [Σ_k w_k p_ki / Σ_k w_k], over chains k that held out i.

    Plain processes hold out all rows in turn, deep chains a quarter, so a row's mixture has fewer
    deep chains than the full mixture, in which deep structures have a larger share. This is
    intended: more deep chains together predict better.

    From equal weights, w_k ← w_k Σ_i r_ki / Σ_i s_ki with the posterior and prior shares of k among
    those that held out i, r_ki ∝ w_k p_ki and s_ki ∝ w_k: the EM algorithm of stacking if all
    chains predict all rows. Log densities (chains, n, q); outputs count as rows of their own.
    """
    n_chains = len(log_density)
    counts = np.broadcast_to(mask[..., None], log_density.shape).reshape(n_chains, -1)
    log_density = np.where(counts, log_density.reshape(n_chains, -1), -np.inf)
    density = np.exp(log_density - log_density.max(axis=0))
    weights = np.full(n_chains, 1.0 / n_chains)
    for _ in range(n_steps):
        posterior, prior = (_shares(weights[:, None] * each) for each in (density, counts))
        evidence, without = posterior.sum(axis=1), prior.sum(axis=1)
        # A chain that held out none of these rows keeps its weight.
        weights = weights * np.divide(evidence, without, np.ones(n_chains), where=without > 0.0)
        weights = np.maximum(weights / weights.sum(), LEAST_WEIGHT)
    # Negligible weights are dropped: a prediction costs the same whatever its weight.
    weights = np.where(weights < min(SMALLEST_WEIGHT, weights.max()), 0.0, weights)
    return weights / weights.sum()


def _shares(values: np.ndarray) -> np.ndarray:
    """Columns that sum to one."""
    return values / values.sum(axis=0)


def held_out_mixture(held_out: HeldOut, weights: np.ndarray, judged: Judged) -> Gaussian:
    """Moments (sites, q) of new outputs by the chains that held out each site."""
    shares = _shares_of_held_out(weights, held_out.mask)
    return mixture(judged.outputs(held_out.latents), shares)


def _shares_of_held_out(weights: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Weights (chains, n, 1) of the chains that held out a row or site, scaled to sum to one.

    They are equal where all of these chains have weight zero.
    """
    return _shares(np.maximum(weights, LEAST_WEIGHT)[:, None] * mask)[..., None]
