"""The linked Gaussian process: a node whose inputs are uncertain, equations (3) and (4)."""

from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import linalg
from deepemu.core.distributions import Gaussian
from deepemu.core.kernels import pairs, products
from deepemu.core.kernels.families import Kernel
from deepemu.core.kernels.pairs import PairForm
from deepemu.core.linalg import Halves
from deepemu.core.nodes import dense, linked_series, pair_sums
from deepemu.core.nodes.node import Node, Sites
from deepemu.core.nodes.pair_sums import Pairs


@record
class Inputs:
    """Inputs of a node at m test points: uncertain columns first, then known ones, (m, columns)."""

    uncertain: Gaussian
    known: Array


@record
class Link:
    """What prediction at uncertain inputs needs: α, A = ααᵀ − σ²R⁻¹ and yᵀR⁻¹y/σ²."""

    alpha: Array
    weights: Halves
    evidence: Array


@record
class Linked:
    """Moments at test points, and where the way they were computed in is accurate."""

    moments: Gaussian
    suited: Array


def link(node: Node, inputs: Array, target: Array, sites: Sites) -> Link:
    """Prepare a node for prediction at any uncertain inputs.

    Padded rows are silenced here: their weights are zero.
    """
    used = sites.used
    precision = linalg.inverse(linalg.cholesky(dense.correlation(node, inputs, sites)))
    precision = jnp.where(used[:, None] & used[None, :], precision, 0.0)
    alpha = precision @ target
    weights = jnp.outer(alpha, alpha) - node.scale * precision
    return Link(alpha, linalg.in_halves(weights), alpha @ target / node.scale)


@record
class Expected:
    """sum_i α_i f_i I_i and sum_ij A_ij f_i f_j J_ij at test points, and where they are accurate.

    f holds the correlations with known columns, for which I = r and J = r rᵀ.
    """

    first: Array
    second: Array
    suited: Array


class Way(Protocol):
    """How `Expected` is computed; hashable, a static argument."""

    @property
    def light(self) -> bool:
        """Whether little is read for a pair of design points."""

    def prepare(self, link: Link, points: Array, n_tiles: int) -> Any:
        """What all test points share, given design points (n, D) in lengthscales."""

    def expected(
        self, node: Node, alpha: Array, prepared: Any, delta: Array, var: Array, factor: Array
    ) -> Expected:
        """At delta (D, n, m), var (D, 1, m) and factors (n, m)."""


@dataclass(frozen=True)
class BySeries(Way):
    """For inputs of small variance, at the cost of a few matrix products."""

    @property
    def light(self) -> bool:
        return True

    def prepare(self, link: Link, points: Array, n_tiles: int) -> Link:
        return link

    def expected(
        self, node: Node, alpha: Array, prepared: Link, delta: Array, var: Array, factor: Array
    ) -> Expected:
        parts = linked_series.terms(node.kernel, delta, var, factor)
        degrees = linked_series.degrees_needed(node.kernel, var, node.nugget, prepared.evidence)
        second = linked_series.expected_sum(prepared.weights, alpha, parts, degrees)
        return Expected(alpha @ parts.common, second, degrees.suited)


@dataclass(frozen=True)
class ByPairs(Way):
    """A sum over all pairs of design points, with J in the given form."""

    form: PairForm

    @property
    def light(self) -> bool:
        return self.form.light

    def prepare(self, link: Link, points: Array, n_tiles: int) -> Pairs:
        tiles = pair_sums.tiled(self.form, linalg.whole(link.weights), points)
        return pair_sums.grouped(tiles, n_tiles)

    def expected(
        self, node: Node, alpha: Array, prepared: Pairs, delta: Array, var: Array, factor: Array
    ) -> Expected:
        first = alpha @ (products.expectation_matrix(node.kernel, delta, var) * factor)
        second = pair_sums.expected_sum(self.form, prepared, delta, var, factor)
        return Expected(first, second, self.form.suits(var))


def ways(kernel: Kernel, n_uncertain: int) -> tuple[Way, ...]:
    """For so many uncertain columns, the cheapest first; the last one always works."""
    by_pairs = tuple(map(ByPairs, pairs.of(kernel)))
    return (BySeries(), *by_pairs) if n_uncertain <= linked_series.MOST_COLUMNS else by_pairs


def prepare(
    way: Way, node: Node, link: Link, inputs: Array, n_uncertain: int, n_tiles: int = 1
) -> Any:
    """What the way needs of a node whose first columns are uncertain, whatever the test points."""
    points = (inputs * node.inverse_lengthscale[None, :])[:, :n_uncertain]
    return way.prepare(link, points, n_tiles)


def predict(way: Way, node: Node, alpha: Array, prepared: Any, inputs: Array, at: Inputs) -> Linked:
    """Mean and variance (m,) of the output where inputs are uncertain, (3) and (4) of the paper.

    μ = Iᵀα and σ₀² = αᵀJα − (Iᵀα)² + σ² (1 + η − tr(R⁻¹J)) = Σ A∘J − μ² + σ² (1 + η),
    never below σ²η.
    """
    n_uncertain = at.uncertain.mean.shape[1]
    hidden, known = inputs[:, :n_uncertain], inputs[:, n_uncertain:]
    inverse, inverse_known = jnp.split(node.inverse_lengthscale, [n_uncertain])
    at_known = products.correlation_matrix(node.kernel, known, at.known, inverse_known)
    delta, var = products.scaled(hidden, at.uncertain.mean, at.uncertain.var, inverse)
    found = way.expected(node, alpha, prepared, delta, var, at_known)
    mean, floor = found.first, node.scale * node.nugget
    moments = Gaussian(mean, jnp.maximum(found.second - mean**2 + node.scale + floor, floor))
    return Linked(moments, found.suited)
