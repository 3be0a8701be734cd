"""A second solver: R = Q diag(λ) Qᵀ in place of a Cholesky factor, and slopes by differences."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from deepemu.core.nodes import dense
from deepemu.core.nodes.dense import Dense
from deepemu.core.nodes.linked import Link
from deepemu.core.nodes.node import Derivatives, Fit
from deepemu.core.nodes.solver import Solver

STEP = 1e-4


@dataclass(frozen=True)
class ByEigenvalues(Dense):
    """All that has to do with a factor of R; prediction needs only some root of R⁻¹."""

    extend, extend_link = Solver.extend, Solver.extend_link  # a root cannot be extended by rows

    def factor(self, node, inputs, sites):
        return jnp.linalg.eigh(dense.correlation(node, inputs, sites))

    def _density_and_scale(self, factor, node, target, sites, scale):
        """log N(y; 0, σ²R) of site means and of the replicates about them, and σ̂²."""
        values, vectors = factor
        quadratic = jnp.sum((vectors.T @ target) ** 2 / values) + sites.squares / node.nugget
        n, counts = sites.n_observations, jnp.maximum(sites.counts, 1.0)
        logs = n * jnp.log(2 * jnp.pi * scale) + jnp.sum(jnp.log(values) + jnp.log(counts))
        logs += (n - sites.n_sites) * jnp.log(node.nugget)
        return -0.5 * (quadratic / scale + logs), jnp.maximum(quadratic / n, 1e-12)

    def log_density(self, factor, node, target, sites):
        return self._density_and_scale(factor, node, target, sites, node.scale)[0]

    def draw_prior(self, factor, node, sites, normals):
        """By the triangular root, as the exact solver: the same normals are the same draw."""
        root = factor[1] * jnp.sqrt(node.scale * factor[0])
        upper = jnp.linalg.qr(root.T, mode="r")
        return jnp.where(sites.used, normals @ (upper.T * jnp.sign(jnp.diagonal(upper))).T, 0.0)

    def fit(self, node, inputs, target, sites, free_scale):
        factor = self.factor(node, inputs, sites)
        best = self._density_and_scale(factor, node, target, sites, 1.0)[1]
        scale = jnp.where(free_scale, best, node.scale)
        return Fit(self._density_and_scale(factor, node, target, sites, scale)[0], scale)

    def derivatives(self, node, inputs, target, sites, free_scale):
        def value(logs):
            inverse = node.inverse_lengthscale * jnp.exp(-logs[:-1])
            moved = replace(
                node, inverse_lengthscale=inverse, nugget=node.nugget * jnp.exp(logs[-1])
            )
            return self.fit(moved, inputs, target, sites, free_scale).value

        steps = STEP * jnp.eye(inputs.shape[1] + 1)
        up, down = (jax.lax.map(value, sign * steps) for sign in (1.0, -1.0))
        now = self.fit(node, inputs, target, sites, free_scale)
        curvature = jnp.maximum((2 * now.value - up - down) / STEP**2, 1.0)
        return Derivatives(now, (up - down) / (2 * STEP), jnp.diag(curvature))

    def log_density_moving(self, node, columns, resting, target, sites):
        matrix = dense.completed(node, dense.more_at_rest(node, columns, resting), sites)
        return self.log_density(jnp.linalg.eigh(matrix), node, target, sites)

    def condition(self, node, inputs, sites):
        values, vectors = self.factor(node, inputs, sites)
        return jnp.where(sites.used[None, :], vectors.T, 0.0) / jnp.sqrt(values)[:, None]

    def alpha(self, node, inputs, target, sites):
        return self.alpha_of(self.condition(node, inputs, sites), target)

    def link(self, node, inputs, target, sites):
        root = self.condition(node, inputs, sites)
        return Link(self.alpha_of(root, target), root)
