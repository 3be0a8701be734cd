"""The free parameters of a node, and its log posterior density as a function of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core.kernels.kernel import Kernel
from deepemu.core.model.network import LayerParams, LayerSpec
from deepemu.core.model.priors import Geometry, Prior
from deepemu.core.nodes.node import Derivatives, Fit, Node, Sites
from deepemu.core.nodes.solver import Solver

T = TypeVar("T")
# Logarithms of about 1e-3 … 1e3, and of 1e-8 … 1e2.
LENGTHSCALE_BOUNDS = (-6.9, 6.9)
NUGGET_BOUNDS = (math.log(1e-8), math.log(1e2))


@dataclass(frozen=True)
class Kind:
    """The properties that nodes fitted by the same piece of a program share.

    ``n_targets`` nodes have one kernel, and are fitted as one.
    """

    kernel: Kernel
    prior: Prior
    shared_lengthscale: bool
    solver: Solver
    n_targets: int

    @classmethod
    def of(cls, spec: LayerSpec, solver: Solver) -> "Kind":
        n_targets = spec.width // spec.n_kernels
        return cls(spec.kernel, spec.prior, spec.shared_lengthscale, solver, n_targets)


@record
class NodeTask:
    """A node to be fitted, or several, stacked: its present parameters and its data.

    It has one target, or those of all nodes that share its kernel, (k, n), and as many scales.
    ``layer`` is the place of its inputs among those of its kind, ``number`` its own in the network.
    """

    reads: Array
    free_scale: Array
    free_nugget: Array
    params: LayerParams
    targets: Array
    sites: Sites
    shape: Geometry
    layer: Array
    number: Array


@dataclass(frozen=True)
class FreeNode:
    """A node as a function of its free parameters: logarithms of lengthscales (or of the one that
    all columns share), followed by that of the nugget. A fixed one has no room between its bounds,
    so that nodes with and without noise share a program. Nodes that share a kernel are one here:
    their log densities add up."""

    kind: Kind
    task: NodeTask
    inputs: Array

    @property
    def n_lengthscales(self) -> int:
        return 1 if self.kind.shared_lengthscale else self.inputs.shape[1]

    @property
    def start(self) -> Array:
        params = self.task.params
        return jnp.append(params.log_lengthscale[: self.n_lengthscales], params.log_nugget)

    @property
    def bounds(self) -> tuple[Array, Array]:
        task = self.task
        lengthscales = task.params.log_lengthscale[: self.n_lengthscales]
        lower, upper = (
            jnp.append(
                jnp.full_like(lengthscales, lengthscale),
                jnp.where(task.free_nugget, nugget, task.params.log_nugget),
            )
            for lengthscale, nugget in zip(LENGTHSCALE_BOUNDS, NUGGET_BOUNDS, strict=True)
        )
        return lower, upper

    @property
    def movable(self) -> Array:
        """Which parameters matter: not the lengthscale of a column that the node does not read."""
        lengthscales = jnp.ones(1, bool) if self.kind.shared_lengthscale else self.task.reads
        return jnp.append(lengthscales, self.task.free_nugget)

    def unpack(self, free: Array) -> tuple[Array, Array]:
        """log γ of all columns and log η."""
        params, n = self.task.params, self.n_lengthscales
        log_lengthscale = jnp.broadcast_to(free[:n], params.log_lengthscale.shape)
        return log_lengthscale, free[n]

    def params_at(self, free: Array, log_scale: Array) -> LayerParams:
        log_lengthscale, log_nugget = self.unpack(free)
        return LayerParams(log_lengthscale, log_scale, log_nugget)

    def _node_at(self, free: Array) -> Node:
        log_lengthscale, log_nugget = self.unpack(free)
        inverse = jnp.where(self.task.reads, jnp.exp(-log_lengthscale), 0.0)
        log_scale = self.task.params.log_scale
        return Node(self.kind.kernel, inverse, jnp.exp(log_scale), jnp.exp(log_nugget))

    def log_scale(self, fit: Fit) -> Array:
        """The profiled scale of the fit, or the fixed one."""
        return jnp.where(self.task.free_scale, jnp.log(fit.scale), self.task.params.log_scale)

    def fit(self, free: Array) -> Fit:
        """The log density of all targets, and the scale of each."""
        of = self._of_each_target(self.kind.solver.fit, free)
        return Fit(jnp.sum(of.value), of.scale)

    def _of_each_target(self, function: Callable[..., T], free: Array) -> T:
        """A method of the solver for each target; what they share is no batch."""
        node, task = self._node_at(free), self.task

        def one(scale: Array, target: Array) -> T:
            own = replace(node, scale=scale)
            return function(own, self.inputs, target, task.sites, task.free_scale)

        return jax.vmap(one)(node.scale, task.targets)

    def log_prior(self, free: Array) -> Array:
        return self.kind.prior.log_density(*self.unpack(free), self.task.shape)

    def log_jacobian(self, free: Array) -> Array:
        """The Jacobian that makes the prior a density of the free parameters, up to a constant."""
        return self.kind.prior.log_jacobian(*self.unpack(free), self.task.shape)

    def derivatives(self, free: Array) -> Derivatives:
        """The fit, with the derivatives of log density + log prior in the free parameters."""
        of = self._of_each_target(self.kind.solver.derivatives, free)
        curvature = self.kind.prior.curvature(*self.unpack(free), self.task.shape)
        of_data = jnp.sum(of.information, axis=0)
        information = self._of_free(of_data + jnp.diag(jnp.append(*curvature)))
        gradient = self._of_free(jnp.sum(of.gradient, axis=0)) + jax.grad(self.log_prior)(free)
        fit = Fit(jnp.sum(of.fit.value), of.fit.scale)
        return Derivatives(fit, gradient, self._of_free(information.T))

    def _of_free(self, slopes: Array) -> Array:
        """Derivatives along the first axis in the free parameters, given those in (log γ, log η).

        Those in lengthscales that are one parameter add up.
        """
        if not self.kind.shared_lengthscale:
            return slopes
        return jnp.concatenate([jnp.sum(slopes[:-1], axis=0, keepdims=True), slopes[-1:]])
