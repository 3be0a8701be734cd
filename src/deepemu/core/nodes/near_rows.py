"""Rows with a few near rows each, which densities and predictions share."""

import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core.nodes import dense, terms
from deepemu.core.nodes.node import Node, Sites
from deepemu.core.nodes.terms import Terms


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


def near_of(sites: Sites) -> Array:
    if sites.near is None:
        raise TypeError("no rows are given that each row is conditioned on")
    return sites.near


def own_last(near: Array) -> Array:
    """Rows near each row, and itself last, (n, m + 1)."""
    return jnp.concatenate([near, jnp.arange(len(near), dtype=near.dtype)[:, None]], axis=1)


def gathered(node: Node, index: Array, scaled: Array, of: Observed) -> Terms:
    """The terms of rows ``index`` (B, m + 1), -1 where there is none, of points in lengthscales."""
    there = index >= 0
    rows = jnp.maximum(index, 0)
    used = (there & of.used[rows]).T.astype(scaled.dtype)
    return Terms(node.kernel, jnp.moveaxis(scaled[rows], 0, 2), of.noise[rows].T, used)


def at_rows(values: Array, index: Array) -> Array:
    """Values (n,) of the rows of terms (m + 1, B), zero where there is none."""
    return jnp.where(index >= 0, values[jnp.maximum(index, 0)], 0.0).T


def regression(node: Node, index: Array, scaled: Array, of: Observed) -> Regression:
    """Of rows ``index`` (n, m + 1), the last of which is given the others."""

    def of_chunk(index: Array, scaled: Array, of: Observed) -> Regression:
        nothing = jnp.zeros(index.shape[::-1], scaled.dtype)
        found = terms.conditional(gathered(node, index, scaled, of), nothing)
        return Regression(-found.a[:-1].T, found.variance)

    return terms.in_chunks(of_chunk, index, scaled, of)
