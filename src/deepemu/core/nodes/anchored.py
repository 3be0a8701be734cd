"""Hidden nodes of few degrees of freedom: values at anchors determine those of all other rows.

A node's values u at M of the rows, the anchors, are a Gaussian process; elsewhere the node is its
conditional mean given them, w(x) = k(x, anchors) R⁻¹u (a projected process). Densities are those of
u, and predictions have no variance of their own. In the place of the node's nugget R has a jitter,
so small that values at anchors and their conditional mean there agree to all digits that matter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import linalg
from deepemu.core.distributions import Gaussian
from deepemu.core.kernels.kernel import Kernel
from deepemu.core.nodes import dense
from deepemu.core.nodes.linked import Inputs, Link, Linked, Scheme
from deepemu.core.nodes.node import Derivatives, Fit, Joint, Node, Sites
from deepemu.core.nodes.solver import Solver

JITTER = 1e-10


@record
class Conditioned:
    """L (M, M) with LLᵀ = R over the anchors, their inputs (M, D) and their places (M,)."""

    lower: Array
    inputs: Array
    anchors: Array


def conditioned(node: Node, inputs: Array, sites: Sites) -> Conditioned:
    rows, once = at_anchors(inputs, sites)
    return Conditioned(dense.factor(_smooth(node), rows, once), rows, _anchors(sites))


def _smooth(node: Node) -> Node:
    return replace(node, nugget=jnp.full_like(node.nugget, JITTER))


def at_anchors(inputs: Array, sites: Sites) -> tuple[Array, Sites]:
    """The anchors' inputs, each observed once."""
    anchors = _anchors(sites)
    return inputs[anchors], Sites(jnp.ones(len(anchors), inputs.dtype), jnp.zeros((), inputs.dtype))


def _anchors(sites: Sites) -> Array:
    if sites.anchors is None:
        raise TypeError("no anchors are given")
    return sites.anchors


def carried(node: Node, found: Conditioned, whitened: Array, at: Array) -> Array:
    """w (n,) = σ k(x, anchors) L⁻ᵀv at all rows x (n, D), and σLv at the anchors themselves, for
    standard normals v (M,)."""
    alpha = linalg.solve_transposed(found.lower, whitened[:, None])[:, 0]
    everywhere = jnp.asarray(dense.mean(node, alpha, found.inputs, at))
    values = everywhere.at[found.anchors].set(found.lower @ whitened)
    return jnp.sqrt(node.scale) * values


def basis(node: Node, found: Conditioned, at: Array) -> Array:
    """B (n, M) with w = B v."""
    cross = dense.cross_correlation(node, found.inputs, at)
    everywhere = jnp.asarray(linalg.solve(found.lower, cross)).T
    return jnp.sqrt(node.scale) * everywhere.at[found.anchors].set(found.lower)


def whitened(node: Node, found: Conditioned, target: Array) -> Array:
    """v = L⁻¹u/σ (M,), given the node's values (n,) at all rows."""
    return linalg.solve_vector(found.lower, target[found.anchors]) / jnp.sqrt(node.scale)


def alpha_of(found: Conditioned, target: Array) -> Array:
    """R⁻¹u (M,)."""
    inner = linalg.solve_vector(found.lower, target[found.anchors])
    return linalg.solve_transposed(found.lower, inner[:, None])[:, 0]


def slopes(node: Node, inputs: Array, target: Array, sites: Sites) -> Array:
    """∂w/∂x (n, D) in each row's own inputs, with the anchors' values and inputs fixed."""
    found = conditioned(node, inputs, sites)
    alpha = alpha_of(found, target)
    return jax.grad(lambda at: jnp.sum(dense.mean(node, alpha, found.inputs, at)))(inputs)


def fit(node: Node, inputs: Array, target: Array, sites: Sites, free_scale: Array | bool) -> Fit:
    return dense.fit(_smooth(node), *_of_anchors(inputs, target, sites), free_scale)


def derivatives(
    node: Node, inputs: Array, target: Array, sites: Sites, free_scale: Array | bool
) -> Derivatives:
    return dense.derivatives(_smooth(node), *_of_anchors(inputs, target, sites), free_scale)


def _of_anchors(inputs: Array, target: Array, sites: Sites) -> tuple[Array, Array, Sites]:
    rows, once = at_anchors(inputs, sites)
    return rows, target[_anchors(sites)], once


@dataclass(frozen=True)
class Carried(Scheme):
    """At known inputs: the conditional mean given the anchors."""

    @property
    def cheap_to_read(self) -> bool:
        return True

    def prepare(
        self, node: Node, link: Link, inputs: Array, n_uncertain: int, n_tiles: int = 1
    ) -> Any:
        return link.root

    def predict(
        self, node: Node, alpha: Array, prepared: Conditioned, inputs: Array, at: Inputs
    ) -> Linked:
        mean = dense.mean(node, alpha, prepared.inputs, at.known)
        nothing = jnp.zeros_like(mean)
        return Linked(Gaussian(mean, nothing), nothing, jnp.ones_like(mean, bool))


def _moves(*_: Any) -> NoReturn:
    raise TypeError("anchored layers are hidden, and move all at once")


@dataclass(frozen=True)
class Anchored(Solver):
    """Hidden layers whose values at anchors are imputed."""

    certain: ClassVar[bool] = True

    factor = staticmethod(conditioned)
    fit = staticmethod(fit)
    derivatives = staticmethod(derivatives)
    at_rest = more_at_rest = log_density_moving = input_slopes = staticmethod(_moves)
    draw_prior = leave_one_out = staticmethod(_moves)
    condition = staticmethod(conditioned)
    alpha_of = staticmethod(alpha_of)

    def log_density(self, found: Conditioned, node: Node, target: Array, sites: Sites) -> Array:
        """log N(u; 0, σ²R)."""
        once = at_anchors(target[:, None], sites)[1]
        return dense.log_density(found.lower, _smooth(node), target[found.anchors], once)

    def alpha(self, node: Node, inputs: Array, target: Array, sites: Sites) -> Array:
        return alpha_of(conditioned(node, inputs, sites), target)

    def mean(self, node: Node, alpha: Array, inputs: Array, at: Array, sites: Sites) -> Array:
        return dense.mean(node, alpha, inputs[_anchors(sites)], at)

    def predict(
        self, node: Node, conditioned: Conditioned, alpha: Array, inputs: Array, at: Array
    ) -> Gaussian:
        """Means (m,) or (k, m), with no variance."""
        cross = dense.cross_correlation(node, conditioned.inputs, at)
        return Gaussian(alpha @ cross, jnp.zeros_like(at[:, 0]))

    def joint(
        self, node: Node, conditioned: Conditioned, alpha: Array, inputs: Array, at: Array
    ) -> Joint:
        mean = dense.mean(node, alpha, conditioned.inputs, at)
        return Joint(mean, jnp.zeros((len(at), len(at)), mean.dtype))

    def draw_posterior(
        self,
        node: Node,
        conditioned: Conditioned,
        alpha: Array,
        inputs: Array,
        at: Array,
        normals: Array,
    ) -> Array:
        return dense.mean(node, alpha, conditioned.inputs, at)

    def link(self, node: Node, inputs: Array, target: Array, sites: Sites) -> Link:
        found = conditioned(node, inputs, sites)
        return Link(alpha_of(found, target), found)

    def schemes(self, kernel: Kernel, n_uncertain: int) -> tuple[Scheme, ...]:
        if n_uncertain:
            raise TypeError("an anchored layer reads known inputs only")
        return (Carried(),)
