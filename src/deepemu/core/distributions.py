"""Gaussian marginals and their mixtures."""

from typing import Any

import jax

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


@record
class Mixture:
    """A predictive distribution: moments (K, n, P) of the last layer's nodes by each component, and
    weights (K, n), which add up to one at each row; of NumPy or of JAX."""

    latents: Gaussian
    weights: Any

    @property
    def centre(self) -> Any:
        """Means (n, P) of the latents: Σ_k w_k μ_k."""
        return self.averaged(self.latents.mean)

    def at(self, rows: Any) -> "Mixture":
        """The distribution at some of the rows."""
        return jax.tree.map(lambda each: each[:, rows], self)

    def averaged(self, each: Any) -> Any:
        """Σ_k w_k g_k (n, q) of what each component says (K, n, q)."""
        return (self.weights[..., None] * each).sum(axis=0)
