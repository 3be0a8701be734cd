"""A root of Vecchia's covariance, and products with it, group after group.

A product goes through the groups in turn. On a CPU one with five columns takes a tenth of the time
of a density.
"""

import jax.numpy as jnp
from jax import lax

from deepemu._types import Array, record
from deepemu.core import linalg
from deepemu.core.nodes.near_rows import groups_of
from deepemu.core.nodes.node import Groups, Node, Sites


@record
class Whitening:
    """z = aᵀy over the rows of each group (k, m + b, b), and the variances s² (k, b) of the
    residuals sz, in units of the scale."""

    a: Array
    variance: Array


@record
class Root:
    """L (n, n) with LLᵀ the covariance: w = Lz is w_own = B w_near + S z_own, group after group,
    with B (k, b, m) and S (k, b, b)."""

    groups: Groups
    weights: Array
    spread: Array


def root(found: Whitening, node: Node, sites: Sites) -> Root:
    """S = σ A_own⁻ᵀ and B = −A_own⁻ᵀA_nearᵀ; nothing reaches rows that are padding."""
    groups = groups_of(sites)
    n_near, n_own = groups.near.shape[1], groups.own.shape[1]

    def of_group(a: Array) -> tuple[Array, Array]:
        right = jnp.concatenate([-a[:n_near].T, jnp.eye(n_own, dtype=a.dtype)], axis=1)
        both = linalg.solve(a[n_near:].T, right)
        return both[:, :n_near], jnp.sqrt(node.scale) * both[:, n_near:]

    return Root(groups, *lax.map(of_group, found.a))


def times(of: Root, white: Array) -> Array:
    """Lz for z (n, k)."""

    def group(k: Array, drawn: Array) -> Array:
        own, near = of.groups.own[k], of.groups.near[k]
        mine = of.weights[k] @ _at(drawn, near) + of.spread[k] @ _at(white, own)
        return _put(drawn, own, mine)

    return lax.fori_loop(0, len(of.weights), group, jnp.zeros_like(white))


def times_transposed(of: Root, values: Array) -> Array:
    """Lᵀx for x (n, k), from the last group to the first: a group's near rows take B_kᵀ times what
    its own rows have by then."""
    last = len(of.weights) - 1

    def group(count: Array, both: tuple[Array, Array]) -> tuple[Array, Array]:
        k, (pulled, found) = last - count, both
        own, near = of.groups.own[k], of.groups.near[k]
        mine = _at(pulled, own)
        taken = _at(pulled, near) + of.weights[k].T @ mine
        return _put(pulled, near, taken), _put(found, own, of.spread[k].T @ mine)

    return lax.fori_loop(0, last + 1, group, (values, jnp.zeros_like(values)))[1]


def _at(values: Array, rows: Array) -> Array:
    """Values (n, k) of rows, zero where there is none."""
    return jnp.where(rows[:, None] >= 0, values[jnp.maximum(rows, 0)], 0.0)


def _put(values: Array, rows: Array, new: Array) -> Array:
    """Values with new ones at rows, where there are such."""
    places = jnp.where(rows >= 0, rows, len(values))
    return jnp.asarray(values).at[places].set(new, mode="drop")
