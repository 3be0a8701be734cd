"""Where chains start."""

import numpy as np

from deepemu.core.inference import impute, sem
from deepemu.core.model.network import Latents, LayerParams, Network, Params
from deepemu.runtime import padding
from deepemu.training.plan import Plan


def starting_params(network: Network, scales: list[float], nuggets: list[float]) -> Params:
    """Lengthscales of 1, and the given scale and nugget for each layer."""
    return tuple(
        LayerParams(
            np.zeros((spec.width, spec.n_columns)),  # type: ignore[arg-type]
            np.full(spec.width, np.log(scale)),  # type: ignore[arg-type]
            np.full(spec.width, np.log(nugget)),  # type: ignore[arg-type]
        )
        for spec, scale, nugget in zip(network.layers, scales, nuggets, strict=True)
    )


def starting_latents(network: Network, x: np.ndarray, size: int) -> Latents:
    """Every hidden layer starts as a copy of the inputs, so that the network is near a GP.

    A layer narrower than its inputs starts at their principal components, a wider one repeats.
    """
    latents, below = [], x
    for spec in network.layers[:-1]:
        below = _resize_columns(below, spec.width)
        latents.append(padding.pad_rows(below, size))
    return tuple(latents)


def _resize_columns(values: np.ndarray, width: int) -> np.ndarray:
    n_columns = values.shape[1]
    if width >= n_columns:
        return values[:, np.arange(width) % n_columns]
    centred = values - values.mean(axis=0)
    # Rows times the leading right singular vectors; fewer rows than columns still give `width`.
    directions = np.linalg.svd(centred, full_matrices=True)[2][:width]
    scores = centred @ directions.T
    span = np.ptp(scores, axis=0)
    return (scores - scores.min(axis=0)) / np.where(span > 0, span, 1.0)


def starting_imputation(latents: Latents, bracket_factor: float) -> impute.Imputation:
    """Mean angles are set so that the first brackets are the full circle; never zero, so that an
    infinite factor gives an infinite bracket and not an undefined one."""
    first = impute.FULL_CIRCLE / min(bracket_factor, impute.FULL_CIRCLE)
    angles = tuple(padding.array(np.full(w.shape[1], first)) for w in latents)
    none = padding.indices(np.zeros(()))
    return impute.Imputation(latents, angles, evaluations=none, sweeps=none)


def start_chains(plan: Plan, params: Params, latents: Latents, n_chains: int) -> list[sem.Chain]:
    """Equal chains; their keys will make them differ."""
    return [sem.Chain(params, starting_imputation(latents, plan.sampling.bracket))] * n_chains
