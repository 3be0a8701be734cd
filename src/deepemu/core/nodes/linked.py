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
from deepemu.core.nodes import linked_series, pair_sums
from deepemu.core.nodes.node import Node
from deepemu.core.nodes.pair_sums import Pairs


@record
class Inputs:
    """Inputs of a node at m test points: uncertain columns first, then known ones, (m, columns)."""

    uncertain: Gaussian
    known: Array


@record
class Link:
    """The statistics for prediction at uncertain inputs: α, A = ααᵀ − σ²R⁻¹ and yᵀR⁻¹y/σ²."""

    alpha: Array
    weights: Halves
    evidence: Array


@record
class Linked:
    """Moments at test points, and a mask of where the scheme meets its error bound."""

    moments: Gaussian
    accurate: Array


@record
class Expected:
    """sum_i α_i f_i I_i and sum_ij A_ij f_i f_j J_ij at test points, and where they are accurate.

    f holds the correlations with known columns, for which I = r and J = r rᵀ.
    """

    first: Array
    second: Array
    accurate: Array


class Scheme(Protocol):
    """How `Expected` is computed; hashable, a static argument."""

    @property
    def cheap_to_read(self) -> bool:
        """Whether little is read for a pair of design points."""

    def prepare(self, link: Link, points: Array, n_tiles: int) -> Any:
        """Quantities that all test points share, given design points (n, D) in lengthscales."""

    def expected(
        self, node: Node, alpha: Array, prepared: Any, delta: Array, var: Array, factor: Array
    ) -> Expected:
        """At delta (D, n, m), var (D, 1, m) and factors (n, m)."""


@dataclass(frozen=True)
class BySeries(Scheme):
    """For inputs of small variance, at the cost of a few matrix products."""

    @property
    def cheap_to_read(self) -> bool:
        return True

    def prepare(self, link: Link, points: Array, n_tiles: int) -> Link:
        return link

    def expected(
        self, node: Node, alpha: Array, prepared: Link, delta: Array, var: Array, factor: Array
    ) -> Expected:
        parts = linked_series.terms(node.kernel, delta, var, factor)
        degrees = linked_series.degrees_needed(node.kernel, var, node.nugget, prepared.evidence)
        second = linked_series.expected_sum(prepared.weights, alpha, parts, degrees)
        return Expected(alpha @ parts.common, second, degrees.accurate)


@dataclass(frozen=True)
class ByPairs(Scheme):
    """A sum over all pairs of design points, with J in the given form."""

    form: PairForm

    @property
    def cheap_to_read(self) -> bool:
        return self.form.cheap_to_read

    def prepare(self, link: Link, points: Array, n_tiles: int) -> Pairs:
        tiles = pair_sums.tiled(self.form, linalg.whole(link.weights), points)
        return pair_sums.grouped(tiles, n_tiles)

    def expected(
        self, node: Node, alpha: Array, prepared: Pairs, delta: Array, var: Array, factor: Array
    ) -> Expected:
        first = alpha @ (products.expectation_matrix(node.kernel, delta, var) * factor)
        second = pair_sums.expected_sum(self.form, prepared, delta, var, factor)
        return Expected(first, second, self.form.is_accurate(var))


@dataclass(frozen=True)
class AtKnownInputs(Scheme):
    """For a node that reads known columns only: the sums have no expectations."""

    @property
    def cheap_to_read(self) -> bool:
        return True

    def prepare(self, link: Link, points: Array, n_tiles: int) -> Halves:
        return link.weights

    def expected(
        self, node: Node, alpha: Array, prepared: Halves, delta: Array, var: Array, factor: Array
    ) -> Expected:
        second = linalg.quadratic_forms(prepared, factor)
        return Expected(alpha @ factor, second, jnp.ones_like(second, bool))


def schemes(kernel: Kernel, n_uncertain: int) -> tuple[Scheme, ...]:
    """Schemes for this number of uncertain columns, the cheapest first; the last one is always
    accurate."""
    if n_uncertain == 0:
        return (AtKnownInputs(),)
    by_pairs = tuple(map(ByPairs, pairs.of(kernel)))
    return (BySeries(), *by_pairs) if n_uncertain <= linked_series.MOST_COLUMNS else by_pairs


def prepare(
    scheme: Scheme, node: Node, link: Link, inputs: Array, n_uncertain: int, n_tiles: int = 1
) -> Any:
    """The scheme's preparation of a node whose first columns are uncertain, for all test points."""
    points = (inputs * node.inverse_lengthscale[None, :])[:, :n_uncertain]
    return scheme.prepare(link, points, n_tiles)


def predict(
    scheme: Scheme, node: Node, alpha: Array, prepared: Any, inputs: Array, at: Inputs
) -> Linked:
    """Mean and variance (m,) of the output where inputs are uncertain, (3) and (4) of the paper.

    μ = Iᵀα and σ₀² = αᵀJα − (Iᵀα)² + σ² (1 + η − tr(R⁻¹J)) = Σ A∘J − μ² + σ² (1 + η),
    never below σ²η.
    """
    n_uncertain = at.uncertain.mean.shape[1]
    hidden, known = inputs[:, :n_uncertain], inputs[:, n_uncertain:]
    inverse, inverse_known = jnp.split(node.inverse_lengthscale, [n_uncertain])
    at_known = products.correlation_matrix(node.kernel, known, at.known, inverse_known)
    delta, var = products.scaled(hidden, at.uncertain.mean, at.uncertain.var, inverse)
    found = scheme.expected(node, alpha, prepared, delta, var, at_known)
    mean, floor = found.first, node.scale * node.nugget
    moments = Gaussian(mean, jnp.maximum(found.second - mean**2 + node.scale + floor, floor))
    return Linked(moments, found.accurate)
