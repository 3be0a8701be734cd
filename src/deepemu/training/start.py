"""Starting values of chains."""

import numpy as np

from deepemu._types import Array
from deepemu.core.inference import impute, sem
from deepemu.core.model.network import Latents, LayerParams, LayerSpec, Network, Params
from deepemu.data.checks import require
from deepemu.data.sites import SiteData
from deepemu.observations.model import Observation
from deepemu.runtime import padding
from deepemu.runtime.programs import compiled
from deepemu.training.plan import Plan

# Of the mixing of inputs in the hidden layers of chains at their start.
SPREAD = 0.3
NUGGET_OF_COMMON = 1e-6


def starting_params(network: Network, scales: list[float], nuggets: list[float]) -> Params:
    """Lengthscales of 1, and the given scale and nugget for each layer; a node that reads no column
    has one standard normal value at all rows."""
    given = zip(network.layers, scales, nuggets, strict=True)
    return tuple(_of_layer(spec, scale, nugget) for spec, scale, nugget in given)


def _of_layer(spec: LayerSpec, scale: float, nugget: float) -> LayerParams:
    reads = np.any(np.asarray(spec.reads), axis=1)
    return LayerParams(
        np.zeros((spec.width, spec.n_columns)),
        np.log(np.where(reads, scale, 1.0)),
        np.log(np.where(reads, nugget, NUGGET_OF_COMMON)),
    )


def starting_latents(network: Network, observation: Observation, sites: SiteData) -> Latents:
    """Every hidden layer starts as a copy of the inputs, so that the network is near a GP.

    A layer narrower than its inputs starts at their principal components, a wider one repeats. The
    observation model gives the start of an imputed last layer.
    """
    latents, below = [], sites.x
    for spec in network.layers[:-1]:
        below = _resize_columns(below, spec.width)
        latents.append(below)
    if observation.imputed:
        latents.append(_start_of_last(observation, sites))
    size = padding.bucket(sites.n_sites)
    return tuple(padding.pad_rows(each, size) for each in latents)


def _start_of_last(observation: Observation, sites: SiteData) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        latents = observation.starting_latents(sites.observed)
    require(
        bool(np.all(np.isfinite(latents))),
        "y has values that cannot have come from the observation model: it finds no finite "
        "latents for them to start from.",
    )
    return latents


def _resize_columns(values: np.ndarray, width: int) -> np.ndarray:
    n_columns = values.shape[1]
    if width >= n_columns:
        return values[:, np.arange(width) % n_columns]
    centred = values - values.mean(axis=0)
    # Rows times the leading right singular vectors; fewer rows than columns still give `width`.
    is_wide = len(centred) < n_columns
    directions = np.linalg.svd(centred, full_matrices=is_wide)[2][:width]
    scores = centred @ directions.T
    span = np.ptp(scores, axis=0)
    return (scores - scores.min(axis=0)) / np.where(span > 0, span, 1.0)


def start_chains(plan: Plan, params: Params, latents: Latents) -> list[sem.Chain]:
    """Equal chains; their random keys differ."""
    imputation = compiled(impute.start)(latents, np.float64(plan.bracket))
    return [sem.Chain(params, imputation)] * plan.n_chains


def start_guided_chains(seed: int, plan: Plan, params: Params, latents: Latents) -> list[sem.Chain]:
    """Chains whose hidden layers are mixtures of the inputs, each its own: a Newton step from equal
    starts would take all of them to one place."""
    program, chains = compiled(impute.start_guided), []
    n_hidden = len(params) - 1
    for number in range(plan.n_chains):
        generator = np.random.default_rng([seed, number])
        mixed = (_mixed(generator, np.asarray(each)) for each in latents[:n_hidden])
        started = program((*mixed, *latents[n_hidden:]), np.float64(plan.bracket))
        chains.append(sem.Chain(params, started))
    return chains


def _mixed(generator: np.random.Generator, latent: np.ndarray) -> Array:
    """Columns on [-1, 1], and a part of each in the others."""
    width = latent.shape[1]
    mixing = np.eye(width) + SPREAD * generator.standard_normal((width, width))
    return padding.array((2.0 * latent - 1.0) @ mixing)
