"""A prediction as a mixture: a component per imputation and chain, and per point of a cubature."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from deepemu.core import moments as traced
from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.ensemble import Ensemble, Imputed, member_weights
from deepemu.ensembles import prediction
from deepemu.ensembles.prediction import Chain
from deepemu.posterior.inputs import Cubature
from deepemu.runtime.padding import bucket
from deepemu.runtime.programs import compiled
from deepemu.runtime.trees import joined, row, stack, to_numpy

ROWS_OF_GRADIENTS = 64
Weighted = Sequence[tuple[Chain, float]]
"""Chains with their weights."""


def slabs(n_rows: int, size: int) -> list[slice]:
    """Slabs of rows, so that memory holds the components of one."""
    return [slice(first, first + size) for first in range(0, n_rows, size)]


def noise_of(chains: Sequence[Chain]) -> np.ndarray:
    """σ²η (members, P) of the last layer of each imputed network, chain after chain."""
    found = []
    for chain in chains:
        last = row(chain.imputed.params[-1], chain.place)
        variance = np.exp(np.asarray(last.log_scale) + np.asarray(last.log_nugget))
        found.append(np.tile(variance, (chain.n_members // len(variance), 1)))
    return np.concatenate(found)


def has_closed_form(chains: Weighted) -> bool:
    """Whether moments at normal inputs have a closed form: plain GPs only, with integrated latents
    and one set of parameters."""
    return all(
        chain.imputed.network.n_imputed == 0 and len(chain.groups) == 1 for chain, _ in chains
    )


def in_closed_form(chains: Weighted, x: np.ndarray, std: np.ndarray) -> Mixture:
    """The mixture at normal inputs with standard deviations (m, d): a component per plain GP."""
    found = [prediction.predict_uncertain(chain, x, std**2) for chain, _ in chains]
    return with_weights(stack(found), np.array([weight for _, weight in chains]))


def by_cubature(
    predict: Callable[[np.ndarray], Mixture], x: np.ndarray, std: np.ndarray, rule: Cubature
) -> Mixture:
    """The mixture at normal inputs with standard deviations (m, d), given that at known ones: a
    component per known one and cubature point."""
    at = predict(np.concatenate(rule.points(x, std)))
    n_components = len(at.weights) * len(rule.weights)
    split = lambda each: each.reshape(n_components, len(x), -1)  # noqa: E731
    weights = np.outer(at.weights[:, 0], rule.weights).ravel()
    return with_weights(jax.tree.map(split, at.latents), weights)


def with_weights(latents: Gaussian, weights: np.ndarray) -> Mixture:
    """Components (K, m, P) with weights (K,) that are the same at all rows."""
    return Mixture(latents, np.repeat(weights[:, None], latents.mean.shape[1], axis=1))


def without_sites(structures: Sequence[tuple[Imputed, np.ndarray]], n_sites: int) -> Mixture:
    """Closed-form leave-one-out at each site, by structures with the weights of their chains."""
    padded = joined([prediction.leave_one_out(imputed) for imputed, _ in structures])
    weights = np.concatenate([member_weights(*each) for each in structures])
    return with_weights(padded, weights).at(slice(n_sites))


def gradients_at(ensemble: Ensemble, x: np.ndarray) -> Gaussian:
    """Derivatives (m, q, d) of the mean and of the variance at inputs (m, d) in user units."""
    program, size = compiled(traced.gradients), min(bucket(len(x)), ROWS_OF_GRADIENTS)
    padded = np.vstack([x, np.repeat(x[-1:], -len(x) % size, axis=0)])
    parts = padded.reshape(-1, size, x.shape[1])
    found = joined([to_numpy(program(ensemble, part)) for part in parts])
    return row(found, slice(len(x)))


def correlation_at(chains: Weighted, x: np.ndarray, n_draws: int, seed: int) -> np.ndarray:
    """Correlations (P, m, m) of the last layer over rows."""
    covariance = covariance_at(chains, x, n_draws, seed)
    std = np.sqrt(np.einsum("pii->pi", covariance))
    return covariance / (std[:, :, None] * std[:, None, :])


def covariance_at(chains: Weighted, x: np.ndarray, n_draws: int, seed: int) -> np.ndarray:
    """Covariances (P, m, m) of the last layer over rows: within and between imputed networks."""
    members = [
        (prediction.draw_covariances(seed, chain.imputed, chain.place, k, x, n_draws), w / n)
        for chain, w in chains
        for n in [chain.n_members]
        for k in range(n)
    ]
    weights = np.array([weight for _, weight in members])
    means = np.stack([each.mean for each, _ in members])
    apart = means - np.tensordot(weights, means, axes=1)
    between = np.einsum("k,kpi,kpj->pij", weights, apart, apart)
    return between + sum(weight * each.covariance for each, weight in members)
