"""Predictions from the rows nearest to each test point."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from deepemu._types import Array
from deepemu.core.distributions import Gaussian
from deepemu.core.nodes import dense, near_rows, terms
from deepemu.core.nodes.linked import Inputs, Link, Linked, Scheme
from deepemu.core.nodes.near_rows import Observed, Regression, in_lengthscales
from deepemu.core.nodes.node import Node, Sites

# Test rows whose distances to all rows are held in memory at once.
ROWS_OF_SEARCH = 64
FAR = 1e300


def nearest(scaled: Array, used: Array, at: Array, n_near: int) -> Array:
    """The nearest rows (q, m) in use of points ``at`` (q, D), all in lengthscales."""
    rows, n_near, far = scaled, min(n_near, len(scaled)), jnp.where(used, 0.0, FAR)

    def of_chunk(at: Array, rows: Array, far: Array) -> Array:
        squares = [(at[:, d, None] - rows[None, :, d]) ** 2 for d in range(at.shape[1])]
        distance, found = lax.top_k(-(sum(squares[1:], start=squares[0]) + far[None]), n_near)
        return jnp.where(-distance < FAR, found, -1)

    chunks = terms.padded(at, ROWS_OF_SEARCH)
    chunks = chunks.reshape(-1, min(ROWS_OF_SEARCH, len(at)), at.shape[1])
    found = lax.map(lambda chunk: of_chunk(chunk, rows, far), chunks)
    return found.reshape(-1, n_near)[: len(at)]


@dataclass(frozen=True)
class ByNeighbours(Scheme):
    """At known inputs, from the nearest rows."""

    n_near: int

    @property
    def cheap_to_read(self) -> bool:
        return True

    def prepare(
        self, node: Node, link: Link, inputs: Array, n_uncertain: int, n_tiles: int = 1
    ) -> Any:
        return link.root

    def predict(
        self, node: Node, alpha: Array, prepared: Observed, inputs: Array, at: Inputs
    ) -> Linked:
        prepared = replace(prepared, near=at.near)
        moments = predict(self.n_near, node, prepared, alpha, inputs, at.known)
        return Linked(moments, jnp.zeros(len(at.known)), jnp.ones(len(at.known), bool))


@dataclass(frozen=True)
class Nearby(Scheme):
    """At uncertain inputs, by a scheme for the process given the rows nearest to their mean."""

    n_near: int
    scheme: Scheme

    @property
    def cheap_to_read(self) -> bool:
        return self.scheme.cheap_to_read

    def prepare(
        self, node: Node, link: Link, inputs: Array, n_uncertain: int, n_tiles: int = 1
    ) -> Any:
        return link.root

    def predict(
        self, node: Node, alpha: Array, prepared: Observed, inputs: Array, at: Inputs
    ) -> Linked:
        centre = in_lengthscales(node, jnp.concatenate([at.uncertain.mean, at.known], axis=1))
        scaled = in_lengthscales(node, inputs)
        near = nearest(scaled, prepared.used, centre, self.n_near)
        n_uncertain = at.uncertain.mean.shape[1]

        def of_row(one: tuple[Array, Inputs]) -> Linked:
            index, row = one
            rows, there = jnp.maximum(index, 0), index >= 0
            counts = jnp.where(there, node.nugget / prepared.noise[rows], 0.0)
            sites = Sites(counts, jnp.zeros(()))
            link = dense.link(node, inputs[rows], jnp.where(there, alpha[rows], 0.0), sites)
            ready = self.scheme.prepare(node, link, inputs[rows], n_uncertain, 1)
            given = jax.tree.map(lambda each: each[None], row)
            found = self.scheme.predict(node, link.alpha, ready, inputs[rows], given)
            return jax.tree.map(lambda each: each[0], found)

        return lax.map(of_row, (near, at))


def predict(
    n_near: int, node: Node, of: Observed, target: Array, inputs: Array, at: Array
) -> Gaussian:
    """Mean and variance (q,) at known inputs (q, D), from the rows near each, which are found here
    where they are not known; means (k, q) for targets (k, n)."""
    near = of.near
    if near is None:
        near = nearest(*_scaled(node, inputs, of, at), n_near)
    found = _given(node, of, inputs, near, at)
    means = jnp.einsum("qm,...qm->...q", found.weights, _targets_near(target, near))
    return Gaussian(means, node.scale * jnp.maximum(found.variance, node.nugget))


def _targets_near(target: Array, near: Array) -> Array:
    """Targets (…, n) of near rows, (…, q, m); zero where there is none."""
    return jnp.where(near >= 0, target[..., jnp.maximum(near, 0)], 0.0)


def _scaled(node: Node, inputs: Array, of: Observed, at: Array) -> tuple[Array, Array, Array]:
    return in_lengthscales(node, inputs), of.used, in_lengthscales(node, at)


def _given(node: Node, of: Observed, inputs: Array, near: Array, at: Array) -> Regression:
    """New observations at points (q, D) given the rows near each."""
    n, n_new = len(inputs), len(at)
    scaled = in_lengthscales(node, jnp.concatenate([inputs, at]))
    noise = jnp.concatenate([of.noise, jnp.full(n_new, node.nugget)])
    both = Observed(noise, jnp.concatenate([of.used, jnp.ones(n_new, bool)]))
    own = jnp.arange(n, n + n_new, dtype=near.dtype)[:, None]

    index = jnp.concatenate([near, own], axis=1)
    return near_rows.regression(node, index, scaled, both)


def leave_one_out(n_near: int, node: Node, inputs: Array, target: Array, sites: Sites) -> Gaussian:
    """One new observation at each site, given the rows nearest to it."""
    of, n = near_rows.observed(node, sites), len(inputs)
    near = nearest(*_scaled(node, inputs, of, inputs), n_near + 1)
    is_own = near == jnp.arange(n)[:, None]
    last = jnp.argsort(is_own, axis=1, stable=True)
    near = jnp.take_along_axis(jnp.where(is_own, -1, near), last, axis=1)[:, :n_near]
    found = _given(node, of, inputs, near, inputs)
    mean = jnp.sum(found.weights * _targets_near(target, near), axis=1)
    return Gaussian(mean, node.scale * found.variance)


# --- joint distributions of new rows --------------------------------------------------------------


def joint(
    n_near: int, node: Node, of: Observed, target: Array, inputs: Array, at: Array, nugget: Array
) -> tuple[Array, Array]:
    """Mean (q,) and a root (q, q) of the covariance over σ² of new observations.

    Row after row, each given the nearest of all rows and of the new ones before it, whose weights
    B on the latter are strictly lower triangular: f = c + B f + s ε, so that f has the mean
    (1 − B)⁻¹c and the root (1 − B)⁻¹ diag(s).
    """
    node = replace(node, nugget=nugget)
    n, n_new = len(inputs), len(at)
    every = jnp.concatenate([inputs, at])
    both = Observed(
        jnp.concatenate([of.noise, jnp.full(n_new, nugget)]),
        jnp.concatenate([of.used, jnp.ones(n_new, bool)]),
    )
    near = _nearest_before(n_near, node, every, both, n)
    found = _given(node, both, every, near, at)
    c = jnp.sum(
        found.weights * jnp.where(near < n, _targets_near(target, jnp.minimum(near, n - 1)), 0.0),
        axis=1,
    )
    places = jnp.where(near >= n, near - n, n_new)
    within = jnp.zeros((n_new, n_new + 1)).at[jnp.arange(n_new)[:, None], places].add(found.weights)
    lower = jnp.eye(n_new) - within[:, :n_new]
    solve = lambda right: lax.linalg.triangular_solve(  # noqa: E731
        lower, right, left_side=True, lower=True, unit_diagonal=True
    )
    return solve(c[:, None])[:, 0], solve(jnp.diag(jnp.sqrt(found.variance)))


def _nearest_before(n_near: int, node: Node, every: Array, of: Observed, first: int) -> Array:
    """The nearest rows before each of those from the ``first`` on."""
    scaled = in_lengthscales(node, every)

    def of_row(i: Array) -> Array:
        before = of.used & (jnp.arange(len(scaled)) < i)
        return nearest(scaled, before, scaled[i][None], n_near)[0]

    return lax.map(of_row, jnp.arange(first, len(every)))
