"""Weights of chains, and a stretch of the standard deviation, from held-out predictions.

Everything here is NumPy on held-out predictions: latents (chains, places, sites, P), a place for
each imputation, and how many of them each chain has at each site.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.model.observation import Units, stretched_mixture
from deepemu.data.runs import Runs
from deepemu.observations.mixture import without_zeros
from deepemu.observations.model import Observation
from deepemu.training import folds
from deepemu.training.chains import Trained
from deepemu.training.folds import HeldOut
from deepemu.training.structures import is_twin

# Few steps keep the weights near uniform unless the evidence is strong.
STACKING_STEPS = 10
ROUND_OFF = 1e-9
# A gain of more standard errors than this is not chance.
CLEAR = 2.0
# The predictions of a group use weights and stretches from the other groups.
N_GROUPS = 5
LEAST_WEIGHT, SMALLEST_WEIGHT = 1e-9, 1e-3
IMPOSSIBLE = -1e6


@dataclass(frozen=True)
class Judged:
    """Outputs (n, q) that predictions are compared with, in core units, the site of each, and the
    observation model that they come from."""

    y: np.ndarray
    site: np.ndarray
    observation: Observation
    units: Units

    def at_rows(self, at_sites: Mixture) -> Mixture:
        """Predictions at rows, given those at sites."""
        return at_sites.at(self.site)

    @property
    def model(self) -> tuple[Observation, Units]:
        return self.observation, self.units


def judged_of(runs: Runs, observation: Observation) -> Judged:
    """The outputs that predictions of the runs are compared with."""
    y, site = observation.judged(runs.units.to_core(runs.y), runs.sites.site_of_row)
    return Judged(y, site, observation, runs.units)


@dataclass(frozen=True)
class Stacked:
    """Weights (chains,), stretch (q,) of the standard deviation, and the mixture's predictions
    of held-out sites, if there are any: with weights and stretch from other sites."""

    weights: np.ndarray
    stretch: np.ndarray
    held_out: Mixture | None


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
    held_out = _joined(structures)
    log_density, mask = log_scores(held_out, judged), held_out.mask[:, judged.site]
    weights = stacking_weights(log_density, mask, starting_weights(structures))
    shares = shares_of_held_out(weights, mask)
    return logsumexp(log_density, b=shares[..., None], axis=0).sum(axis=1)


def held_out_errors(structures: Sequence[Trained], judged: Judged) -> np.ndarray:
    """Distances (n, q) of outputs from the mean of the chains that held them out."""
    held_out = _joined(structures)
    shares = shares_of_held_out(np.ones(len(held_out.mask)), held_out.mask)
    return np.abs(judged.y - judged.at_rows(held_out_mixture(held_out, shares)).centre)


def stack(structures: Sequence[Trained], judged: Judged) -> Stacked:
    """Weights of all chains of all structures, one after the other, and the stretch.

    Without held-out predictions all chains have equal weights.
    """
    held_out = join(structures)
    if held_out is None:
        n_chains = sum(len(each.chains) for each in structures)
        return Stacked(np.full(n_chains, 1.0 / n_chains), np.ones(judged.y.shape[1]), None)
    log_density, mask = log_scores(held_out, judged), held_out.mask[:, judged.site]
    start = starting_weights(structures, _refuted(structures, judged))
    shares = _shares_by_others(held_out.mask, log_density, mask, start, judged)
    honest = held_out_mixture(held_out, shares)
    return Stacked(stacking_weights(log_density, mask, start), *_stretched(honest, judged))


def starting_weights(
    structures: Sequence[Trained], is_out: Sequence[bool] | None = None
) -> np.ndarray:
    """Half for the chains of plain structures, half for those of deep ones, if there are both: many
    chains do not outvote a few processes that predict as well. None for structures that are out."""
    n_chains = [len(each.chains) for each in structures]
    of_chains = lambda flags: np.repeat(np.asarray(flags), n_chains)  # noqa: E731
    is_deep = of_chains([each.structure.network.depth > 1 for each in structures])
    is_in = ~of_chains([False] * len(structures) if is_out is None else is_out)
    sizes = np.where(is_deep, (is_deep & is_in).sum(), (~is_deep & is_in).sum())
    share = is_in / np.maximum(sizes, 1)
    return share / share.sum()


def _refuted(structures: Sequence[Trained], judged: Judged) -> list[bool]:
    """Plain processes of no noise, if those that may have some predict clearly better: such twins
    narrow intervals, and take weight from the others."""
    plain = [each for each in structures if each.structure.network.depth == 1]
    twins = [each for each in plain if is_twin(each.structure)]
    noisy = [each for each in plain if not is_twin(each.structure)]
    are_worse = bool(twins and noisy) and gain(noisy, twins, judged).is_clear
    return [are_worse and is_twin(each.structure) for each in structures]


def _shares_by_others(
    held_out: np.ndarray,
    log_density: np.ndarray,
    mask: np.ndarray,
    start: np.ndarray,
    judged: Judged,
) -> np.ndarray:
    """The shares (chains, sites) of the chains that held out a site, with weights from the other
    groups of sites.

    Weights that depend on a site's outputs would be optimistic there, above all if rows are few.
    """
    shares, group = np.empty(held_out.shape), _groups(held_out.shape[1])
    for each in range(N_GROUPS):
        others, mine = group[judged.site] != each, group == each
        weights = stacking_weights(log_density[:, others], mask[:, others], start)
        shares[:, mine] = shares_of_held_out(weights, held_out[:, mine])
    return shares


def _stretched(honest: Mixture, judged: Judged) -> tuple[np.ndarray, Mixture]:
    """The stretch, and predictions with stretches from the sites of other groups.

    (Their weights depend on a site's outputs, which changes its stretch in the third digit.)
    """
    rows, group = judged.at_rows(honest), _groups(honest.weights.shape[1])
    find = judged.observation.stretch
    of_site = np.empty((len(group), judged.y.shape[1]))
    for each in range(N_GROUPS):
        others = group[judged.site] != each
        given = judged.y[others], rows.at(others), judged.units.at(others)
        of_site[group == each] = find(*given)
    held_out = stretched_mixture(judged.observation, honest, of_site)
    return find(judged.y, rows, judged.units), held_out


def _groups(n_sites: int) -> np.ndarray:
    """Sites in turn: neighbours in the table of runs are often neighbours in the input space."""
    return np.arange(n_sites) % N_GROUPS


def by_structure(
    structures: Sequence[Trained], weights: np.ndarray
) -> list[tuple[Trained, np.ndarray]]:
    """Each structure with the weights of its chains."""
    ends = np.cumsum([len(each.chains) for each in structures])
    return list(zip(structures, np.split(weights, ends[:-1]), strict=True))


def join(structures: Sequence[Trained]) -> HeldOut | None:
    """Held-out predictions of several structures, one chain after the other, if all have them."""
    given = [each.held_out for each in structures if each.held_out is not None]
    return folds.join(given) if len(given) == len(structures) else None


def _joined(structures: Sequence[Trained]) -> HeldOut:
    """The same of structures that are compared, which must have them."""
    found = join(structures)
    if found is None:
        raise ValueError("structures without held-out predictions cannot be compared")
    return found


def log_scores(held_out: HeldOut, judged: Judged) -> np.ndarray:
    """log of the mean over chain k's imputations of p(y_i | latents), (chains, n, q).

    A constant output has no evidence about chains and scores zero.
    """
    shares = held_out.shares[:, :, judged.site, None]
    mean, var = (
        np.asarray(each)[:, :, judged.site]
        for each in (held_out.latents.mean, held_out.latents.var)
    )
    latents = Gaussian(mean, np.where(shares > 0.0, var, 1.0))
    each = judged.observation.log_density_of(judged.y, latents, judged.units)
    # A chain that did not hold out a row has no shares there: what it says is not used.
    shares = np.where(held_out.mask[:, None, judged.site, None], shares, 1.0)
    scores = logsumexp(each, b=shares, axis=1)
    return np.where(np.ptp(judged.y, axis=0) > ROUND_OFF, scores, 0.0)


def stacking_weights(
    log_density: np.ndarray, mask: np.ndarray, start: np.ndarray, n_steps: int = STACKING_STEPS
) -> np.ndarray:
    """Weights (chains,) that raise Σ_i log [Σ_k w_k p_ki / Σ_k w_k], over chains k that held out i.

    Plain processes hold out all rows in turn, deep chains a quarter, so a row's mixture has fewer
    deep chains than the full mixture, in which deep structures have a larger share. This is
    intended: more deep chains together predict better.

    From the first weights on, w_k ← w_k Σ_i r_ki / Σ_i s_ki with the posterior and prior shares of
    k among those that held out i, r_ki ∝ w_k p_ki and s_ki ∝ w_k: the EM algorithm of stacking if
    all chains predict all rows. A weight that starts at zero stays there. Log densities
    (chains, n, q); outputs count as rows of their own.
    """
    n_chains = len(log_density)
    counts = np.broadcast_to(mask[..., None], log_density.shape).reshape(n_chains, -1)
    # What all chains take for impossible says nothing about them.
    log_density = np.maximum(log_density.reshape(n_chains, -1), IMPOSSIBLE)
    log_density = np.where(counts & (start[:, None] > 0.0), log_density, -np.inf)
    density = np.exp(log_density - log_density.max(axis=0))
    weights = start
    for _ in range(n_steps):
        posterior, prior = (_shares(weights[:, None] * each) for each in (density, counts))
        evidence, without = posterior.sum(axis=1), prior.sum(axis=1)
        # A chain that held out none of these rows keeps its weight.
        weights = weights * np.divide(evidence, without, np.ones(n_chains), where=without > 0.0)
        weights = np.where(start > 0.0, np.maximum(weights / weights.sum(), LEAST_WEIGHT), 0.0)
    # Negligible weights are dropped: a prediction costs the same whatever its weight.
    weights = np.where(weights < min(SMALLEST_WEIGHT, weights.max()), 0.0, weights)
    return weights / weights.sum()


def _shares(values: np.ndarray) -> np.ndarray:
    """Columns that sum to one."""
    return values / values.sum(axis=0)


def held_out_mixture(held_out: HeldOut, shares: np.ndarray) -> Mixture:
    """The predictions of held-out sites, given the shares (chains, sites) of chains: a component
    for each of their imputations."""
    flat = lambda each: np.asarray(each).reshape(-1, *np.shape(each)[2:])  # noqa: E731
    latents = Gaussian(flat(held_out.latents.mean), flat(held_out.latents.var))
    return without_zeros(Mixture(latents, flat(shares[:, None] * held_out.shares)))


def shares_of_held_out(weights: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Weights (chains, n) of the chains that held out a row or site, scaled to sum to one.

    They are equal where all of these chains have weight zero.
    """
    return _shares(np.maximum(weights, LEAST_WEIGHT)[:, None] * mask)
