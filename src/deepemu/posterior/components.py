"""A prediction as a mixture: a component per imputation and chain, and per point of a cubature."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from deepemu.core import moments as traced
from deepemu.core.distributions import Gaussian, mixture
from deepemu.core.ensemble import Ensemble, Imputed, member_weights
from deepemu.core.model.observation import Units
from deepemu.ensembles import prediction
from deepemu.ensembles.prediction import Chain
from deepemu.observations.mixture import Mixture
from deepemu.observations.model import Observation
from deepemu.posterior.inputs import cubature
from deepemu.runtime.padding import bucket
from deepemu.runtime.programs import compiled
from deepemu.runtime.trees import joined, row, stack, to_numpy

ROWS_OF_GRADIENTS = 64
Weighted = Sequence[tuple[Chain, float]]
"""Chains with their weights."""


@dataclass(frozen=True)
class Components:
    """Moments of the last layer's nodes (K, m, P) and of new outputs (K, m, q), in core units, and
    weights (K,)."""

    latents: Gaussian
    outputs: Gaussian
    weights: np.ndarray

    @property
    def mixture(self) -> Mixture:
        """The same weights at all rows."""
        n_rows = self.latents.mean.shape[1]
        return Mixture(self.latents, np.repeat(self.weights[:, None], n_rows, axis=1))

    def mixed(self) -> Gaussian:
        """Moments (m, q) of a new output: those of the mixture."""
        return mixture(self.outputs, self.weights)


def components_at(chains: Weighted, units: Units, x: np.ndarray) -> Components:
    """Components at known inputs (m, d) in core units."""
    found = prediction.predict_chains([chain for chain, _ in chains], x, units)
    latents, outputs = joined([(part.latents, part.outputs) for part in found])
    sizes = np.array([len(part.outputs.mean) for part in found])
    weights = np.array([weight for _, weight in chains])
    return Components(latents, outputs, np.repeat(weights / sizes, sizes))


def stretched(
    found: Components, observation: Observation, units: Units, stretch: np.ndarray
) -> Components:
    """Components after a stretch (q,) of the mixture about its mean, as the model defines it."""
    if np.all(stretch == 1.0):
        return found
    latents = observation.stretched_mixture(found.mixture, stretch).latents
    return Components(latents, observation.output_moments(latents, units), found.weights)


def slabs(n_rows: int, size: int) -> list[slice]:
    """Slabs of rows, so that memory holds the components of one."""
    return [slice(first, first + size) for first in range(0, n_rows, size)]


def has_closed_form(chains: Weighted) -> bool:
    """Whether moments at normal inputs have a closed form: plain GPs only, with integrated latents
    and one set of parameters."""
    return all(
        chain.imputed.network.n_imputed == 0 and len(chain.groups) == 1 for chain, _ in chains
    )


def in_closed_form(chains: Weighted, x: np.ndarray, std: np.ndarray) -> Components:
    """Components at normal inputs with standard deviations (m, d): one per plain GP."""
    found = [prediction.predict_uncertain(chain, x, std**2) for chain, _ in chains]
    moments = stack(found)
    return Components(moments, moments, np.array([weight for _, weight in chains]))


def by_cubature(
    predict: Callable[[np.ndarray], Components], x: np.ndarray, std: np.ndarray
) -> Components:
    """Components at normal inputs with standard deviations (m, d), given predictions at known ones:
    one per known component and cubature point."""
    rule = cubature(np.any(std > 0.0, axis=0))
    at = predict(np.concatenate(rule.points(x, std)))
    n_components = len(at.weights) * len(rule.weights)
    split = lambda each: each.reshape(n_components, len(x), -1)  # noqa: E731
    latents, outputs = jax.tree.map(split, (at.latents, at.outputs))
    return Components(latents, outputs, np.outer(at.weights, rule.weights).ravel())


def without_sites(structures: Sequence[tuple[Imputed, np.ndarray]], n_sites: int) -> Mixture:
    """Closed-form leave-one-out at each site, by structures with the weights of their chains."""
    padded = joined([prediction.leave_one_out(imputed) for imputed, _ in structures])
    weights = np.concatenate([member_weights(*each) for each in structures])
    n_padded = padded.mean.shape[1]
    found = Mixture(padded, np.repeat(weights[:, None], n_padded, axis=1))
    return found.at(np.arange(n_sites))


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
