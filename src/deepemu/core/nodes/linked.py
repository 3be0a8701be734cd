"""The linked Gaussian process: a node whose inputs are uncertain, equations (3) and (4)."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import linalg
from deepemu.core.distributions import Gaussian
from deepemu.core.kernels import products
from deepemu.core.kernels.kernel import Kernel, PairForm, Two
from deepemu.core.linalg import Triangle
from deepemu.core.nodes import cubature, expansion, pair_sums
from deepemu.core.nodes.cubature import Rule
from deepemu.core.nodes.node import Known, Node
from deepemu.core.nodes.pair_sums import Pairs

# Relative, of the variance: the standard deviation is right to half of it.
TOLERANCE = 1e-4
# Of sums over pairs, in units of the weights' Frobenius norm.
ROUND_OFF = 2e-15


@record
class Inputs:
    """Inputs of a node at m test points: uncertain columns first, then known ones, (m, columns);
    and the rows near each (m, k), for a solver that asks for them."""

    uncertain: Gaussian
    known: Array
    near: Array | None = None


@record
class Link:
    """The statistics for prediction at uncertain inputs: α, and L⁻¹ with R⁻¹ = L⁻ᵀL⁻¹ (or what
    else the solver's schemes need)."""

    alpha: Array
    root: Any


@record
class Linked:
    """Moments at test points, an estimate of the variance's relative error, and a mask of the
    points that need no better scheme."""

    moments: Gaussian
    error: Array
    accurate: Array


@record
class Expected:
    """Mean μ = αᵀ(f∘I) and variance αᵀJα − μ² + σ² (κ + η − tr(R⁻¹J)), with ffᵀ in J, at test
    points; an estimate of the variance's error, and a mask of where no other scheme can do better.

    f holds the correlations with known columns, for which I = r and J = r rᵀ; κ = E[k(W, W)] is one
    for a stationary kernel.
    """

    mean: Array
    var: Array
    error: Array
    final: Array


class Scheme(Protocol):
    """How the moments of a linked node are computed; hashable, a static argument."""

    @property
    def cheap_to_read(self) -> bool:
        """Whether little is read for a pair of design points."""

    def prepare(
        self, node: Node, link: Link, inputs: Array, n_uncertain: int, n_tiles: int = 1
    ) -> Any:
        """Quantities that all test points share, for a node whose first columns are uncertain."""

    def predict(self, node: Node, alpha: Array, prepared: Any, inputs: Array, at: Inputs) -> Linked:
        """Mean and variance (m,) of the output."""


class ByExpectations(Scheme):
    """By expectations over the uncertain inputs with all design points, (3) and (4) of the paper.

    μ = Iᵀα and σ₀² = αᵀJα − (Iᵀα)² + σ² (κ + η − tr(R⁻¹J)), never below σ²η; κ = E[k(W, W)].
    """

    def prepare(
        self, node: Node, link: Link, inputs: Array, n_uncertain: int, n_tiles: int = 1
    ) -> Any:
        points = (inputs * node.inverse_lengthscale[None, :])[:, :n_uncertain]
        return self.prepared(node, link, points, n_tiles)

    def predict(self, node: Node, alpha: Array, prepared: Any, inputs: Array, at: Inputs) -> Linked:
        n_uncertain = at.uncertain.mean.shape[1]
        hidden, known = inputs[:, :n_uncertain], inputs[:, n_uncertain:]
        inverse, inverse_known = jnp.split(node.inverse_lengthscale, [n_uncertain])
        at_known = Known(
            products.correlation_matrix(node.kernel, known, at.known, inverse_known),
            products.variance(node.kernel, at.known, inverse_known),
        )
        two, var = products.scaled(hidden, at.uncertain.mean, at.uncertain.var, inverse)
        found = self.expected(node, alpha, prepared, two, var, at_known)
        total = jnp.maximum(found.var, node.scale * node.nugget)
        error = found.error / total
        return Linked(Gaussian(found.mean, total), error, found.final | (error <= TOLERANCE))

    @abstractmethod
    def prepared(self, node: Node, link: Link, points: Array, n_tiles: int) -> Any:
        """`prepare`, given design points (n, D) in lengthscales."""

    @abstractmethod
    def expected(
        self, node: Node, alpha: Array, prepared: Any, two: Two, var: Array, known: Known
    ) -> Expected:
        """At means and design points (D, n, m), and var (D, 1, m)."""


class ByProducts(ByExpectations):
    """By products with L⁻¹, which lose no digits."""

    @property
    def cheap_to_read(self) -> bool:
        return True

    def prepared(self, node: Node, link: Link, points: Array, n_tiles: int) -> Triangle:
        return link.root


@dataclass(frozen=True)
class ByExpansion(ByProducts):
    """To first order in the spread of nearly known inputs."""

    def expected(
        self, node: Node, alpha: Array, prepared: Triangle, two: Two, var: Array, known: Known
    ) -> Expected:
        found = expansion.moments(node, prepared, alpha, two, var, known)
        return Expected(*found, jnp.zeros_like(found[0], bool))


@dataclass(frozen=True)
class ByCubature(ByProducts):
    """An expectation over the inputs by a rule of a few points."""

    rule: Rule

    def expected(
        self, node: Node, alpha: Array, prepared: Triangle, two: Two, var: Array, known: Known
    ) -> Expected:
        mean = alpha @ (products.expectation_matrix(node.kernel, two, var) * known.factor)
        found = cubature.variance(self.rule, node, prepared, alpha, mean, two, var, known)
        return Expected(mean, *found, jnp.zeros_like(mean, bool))


@dataclass(frozen=True)
class ByPairs(ByExpectations):
    """A sum over all pairs of design points, with J in the given form."""

    form: PairForm

    @property
    def cheap_to_read(self) -> bool:
        return self.form.cheap_to_read

    def prepared(self, node: Node, link: Link, points: Array, n_tiles: int) -> tuple[Pairs, Array]:
        """Pairs with weights A = ααᵀ − σ²R⁻¹, and the round-off of a sum over them."""
        root = linalg.whole(link.root)
        weights = link.alpha[:, None] * link.alpha[None, :] - node.scale * (root.T @ root)
        pairs = pair_sums.grouped(pair_sums.tiled(self.form, weights, points), n_tiles)
        return pairs, ROUND_OFF * jnp.sqrt(jnp.sum(weights**2))

    def expected(
        self,
        node: Node,
        alpha: Array,
        prepared: tuple[Pairs, Array],
        two: Two,
        var: Array,
        known: Known,
    ) -> Expected:
        pairs, round_off = prepared
        mean = alpha @ (products.expectation_matrix(node.kernel, two, var) * known.factor)
        second = pair_sums.expected_sum(self.form, pairs, two, var, known.factor)
        prior = known.variance * products.expected_variance(node.kernel, two, var)
        total = second - mean**2 + node.scale * (prior + node.nugget)
        applies = self.form.is_accurate(var)
        return Expected(mean, total, jnp.where(applies, round_off, jnp.inf), applies)


@dataclass(frozen=True)
class AtKnownInputs(ByProducts):
    """For a node that reads known columns only: the sums have no expectations."""

    def expected(
        self, node: Node, alpha: Array, prepared: Triangle, two: Two, var: Array, known: Known
    ) -> Expected:
        left = known.variance + node.nugget - linalg.squared_norms(prepared, known.factor)
        final = jnp.ones_like(left, bool)
        return Expected(alpha @ known.factor, node.scale * left, jnp.zeros_like(left), final)


def schemes(kernel: Kernel, n_uncertain: int) -> tuple[Scheme, ...]:
    """Schemes for this number of uncertain columns, the cheapest first; the last one is always
    final."""
    if n_uncertain == 0:
        return (AtKnownInputs(),)
    by_expansion = (ByExpansion(),) if expansion.applies(kernel, n_uncertain) else ()
    by_cubature = map(ByCubature, cubature.rules(kernel, n_uncertain))
    return (*by_expansion, *by_cubature, *map(ByPairs, kernel.pair_forms()))


def better_of(found: Linked, other: Linked) -> Linked:
    """Row by row, moments (…, m, P) of the smaller error where they are not accurate."""
    keep = found.accurate | (found.error <= other.error)
    moments = jax.tree.map(
        lambda a, b: jnp.where(keep[..., None], a, b), found.moments, other.moments
    )
    return Linked(moments, jnp.minimum(found.error, other.error), found.accurate | other.accurate)
