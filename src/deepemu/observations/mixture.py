"""Mixtures with different components at each row."""

import jax
import numpy as np

from deepemu.core.distributions import Gaussian, Mixture
from deepemu.runtime.trees import joined


def without_zeros(found: Mixture) -> Mixture:
    """The same distributions with as many components as the row that has most.

    Where a row has fewer, the others are standard normal and have no weight.
    """
    used = found.weights > 0.0
    kept = np.argsort(~used, axis=0, kind="stable")[: used.sum(axis=0).max()]
    weights = np.take_along_axis(found.weights, kept, axis=0)
    mean, var = (
        np.take_along_axis(np.asarray(each), kept[..., None], axis=0)
        for each in (found.latents.mean, found.latents.var)
    )
    unused = weights[..., None] == 0.0
    return Mixture(Gaussian(np.where(unused, 0.0, mean), np.where(unused, 1.0, var)), weights)


def side_by_side(first: Mixture, second: Mixture) -> Mixture:
    """The rows of one followed by those of another."""
    n_places = max(len(first.weights), len(second.weights))
    more = [_with_components(each, n_places) for each in (first, second)]
    return without_zeros(joined(more, axis=1))


def _with_components(found: Mixture, n_places: int) -> Mixture:
    """Zeros behind the components."""
    n_more = n_places - len(found.weights)
    add = lambda each: np.pad(each, [(0, n_more), *[(0, 0)] * (np.ndim(each) - 1)])  # noqa: E731
    return jax.tree.map(add, found)
