"""Gaussian marginals and their mixtures."""

from deepemu._types import Array, record


@record
class Gaussian:
    """Independent normal marginals; a known value has variance zero."""

    mean: Array
    var: Array


def mixture(components: Gaussian, weights: Array) -> Gaussian:
    """Mean and variance of a mixture whose components lie along the first axis.

    μ = Σ_i ω_i μ_i and σ² = Σ_i ω_i (σ_i² + (μ_i − μ)²), with Σ ω_i = 1.

    Equation (6) of the paper with ω_i = 1/N. The squared deviations are taken from the mixture
    mean, because the paper's Σ μ_i² − μ² cancels where the mean is large against the spread.
    Weights (N,) hold everywhere; with more axes they may differ between places.
    """
    weights = weights.reshape(*weights.shape, *[1] * (components.mean.ndim - weights.ndim))
    mean = (weights * components.mean).sum(axis=0)
    spread = components.var + (components.mean - mean[None]) ** 2
    return Gaussian(mean, (weights * spread).sum(axis=0))
