"""A Gaussian-process node and the sites that it is observed at."""

from dataclasses import field

import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core.kernels.kernel import Kernel


@record
class Node:
    """The numbers of one node: γ⁻¹ per column (zero: not read), σ² and η."""

    kernel: Kernel = field(metadata={"static": True})
    inverse_lengthscale: Array
    scale: Array
    nugget: Array


@record
class Known:
    """What a node's known columns contribute to its kernel at m test points: the correlations with
    its design points (n, m), and the variance of its prior (m,), one for a stationary kernel."""

    factor: Array
    variance: Array | float


@record
class Groups:
    """Groups of b rows that are near each other: their ``own`` rows (k, b), and ``near`` ones
    (k, m) in groups before them, that they are conditioned on; -1 where there are fewer."""

    own: Array
    near: Array

    @property
    def rows(self) -> Array:
        """Near rows, then own ones, (k, m + b)."""
        return jnp.concatenate([self.near, self.own], axis=1)


@record
class Sites:
    """How the rows were observed: replicates per row, and their sum of squares about site means.

    One observation per row and no squares for latent variables and for data without replicates.
    Some solvers need ``groups`` of near rows, or ``anchors`` (M,), the rows whose values determine
    all others.
    """

    counts: Array
    squares: Array
    groups: Groups | None = None
    anchors: Array | None = None

    @property
    def used(self) -> Array:
        return self.counts > 0

    @property
    def n_sites(self) -> Array:
        return jnp.sum(self.used)

    @property
    def n_observations(self) -> Array:
        return jnp.sum(self.counts)


@record
class Fit:
    """Log density of a node given its data, and the scale it holds for: the node's or σ̂²."""

    value: Array
    scale: Array


@record
class Derivatives:
    """A fit with gradient and average information in (log γ, log η)."""

    fit: Fit
    gradient: Array
    information: Array


@record
class Joint:
    """Mean (m,) and covariance (m, m) of a normal vector."""

    mean: Array
    covariance: Array
