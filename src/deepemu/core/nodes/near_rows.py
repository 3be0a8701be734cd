"""Rows with a few rows near them, which densities and predictions share."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core.nodes import dense, terms
from deepemu.core.nodes.node import Groups, Node, Sites
from deepemu.core.nodes.terms import Terms

T = TypeVar("T")


@record
class Observed:
    """The noise η/a of each row (n,), and which there are; and the rows near each test point
    (m, k), once these are known."""

    noise: Array
    used: Array
    near: Array | None = None


@record
class Regression:
    """Row i given those near it: weights b (n, m) and the variance s² (n,) of its residual, in
    units of the scale."""

    weights: Array
    variance: Array


def observed(node: Node, sites: Sites) -> Observed:
    return Observed(dense.noise(node, sites), sites.used)


def in_lengthscales(node: Node, points: Array) -> Array:
    return points * node.inverse_lengthscale[None]


def groups_of(sites: Sites) -> Groups:
    if sites.groups is None:
        raise TypeError("no groups of rows are given, with the rows that each is conditioned on")
    return sites.groups


def gathered(node: Node, index: Array, scaled: Array, of: Observed, n_own: int = 1) -> Terms:
    """The terms of rows ``index`` (B, T), -1 where there is none, of points in lengthscales."""
    there = index >= 0
    rows = jnp.maximum(index, 0)
    used = (there & of.used[rows]).T.astype(scaled.dtype)
    points = jnp.moveaxis(scaled[rows], 0, 2)
    return Terms(node.kernel, n_own, points, index.T, of.noise[rows].T, used)


def some_of(groups: Groups, used: Array, n_rows: int) -> tuple[Groups, Array]:
    """Groups of about so many rows, evenly spaced among all, and how many times as many rows all
    have."""
    every, n_own = groups.own.shape
    count = min(every, -(-n_rows // n_own))
    some = jax.tree.map(lambda each: each[(jnp.arange(count) * every) // count], groups)
    return some, jnp.sum(used) / jnp.maximum(jnp.sum(some.own >= 0), 1)


def over_groups(
    of_terms: Callable[[Terms, Array], T],
    groups: Groups,
    node: Node,
    scaled: Array,
    target: Array,
    sites: Sites,
) -> T:
    """``of_terms`` of groups and their values (T, B), whose results have the groups along their
    first axis, given points in lengthscales and a target (n,)."""
    n_own = groups.own.shape[1]

    def of_chunk(index: Array, scaled: Array, target: Array, of: Observed) -> T:
        return of_terms(gathered(node, index, scaled, of, n_own), at_rows(target, index))

    values = jnp.where(sites.used, target, 0.0)
    return terms.in_chunks(of_chunk, groups.rows, scaled, values, observed(node, sites))


def at_rows(values: Array, index: Array) -> Array:
    """Values (n,) of the rows of terms (T, B), zero where there is none."""
    return jnp.where(index >= 0, values[jnp.maximum(index, 0)], 0.0).T


def regression(node: Node, index: Array, scaled: Array, of: Observed) -> Regression:
    """Of rows ``index`` (n, m + 1), the last of which is given the others."""

    def of_chunk(index: Array, scaled: Array, of: Observed) -> Regression:
        nothing = jnp.zeros(index.shape[::-1], scaled.dtype)
        found = terms.conditional(gathered(node, index, scaled, of), nothing)
        weights = -found.a[:-1, 0] * jnp.sqrt(found.variance)
        return Regression(weights.T, found.variance[0])

    return terms.in_chunks(of_chunk, index, scaled, of)
