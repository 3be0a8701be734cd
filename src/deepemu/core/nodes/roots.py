"""Roots of the covariance of a node's values, and normal posteriors with them.

That of the exact solver is a triangle. Vecchia's is known by products with it, which go through the
groups in turn. On a CPU one with five columns takes a tenth of the time of a density.
"""

import jax.numpy as jnp
from jax import lax

from deepemu._types import Array, record
from deepemu.core import linalg
from deepemu.core.nodes import dense
from deepemu.core.nodes.near_rows import groups_of
from deepemu.core.nodes.node import Groups, Node, Sites

# Posterior means and draws have so many digits where they are iterated for.
TOLERANCE, MOST_PRODUCTS = 1e-8, 5000


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


@record
class Triangular:
    """L (n, n) as it is, with rows of zeros where rows are padding."""

    lower: Array


def triangular(node: Node, inputs: Array, sites: Sites) -> Triangular:
    """L with LLᵀ = σ²R."""
    lower = jnp.sqrt(node.scale) * dense.factor(node, inputs, sites)
    return Triangular(jnp.where(sites.used[:, None], lower, 0.0))


def root(found: Whitening, node: Node, sites: Sites) -> Root:
    """S = σ A_own⁻ᵀ and B = −A_own⁻ᵀA_nearᵀ; nothing reaches rows that are padding."""
    groups = groups_of(sites)
    n_near, n_own = groups.near.shape[1], groups.own.shape[1]

    def of_group(a: Array) -> tuple[Array, Array]:
        right = jnp.concatenate([-a[:n_near].T, jnp.eye(n_own, dtype=a.dtype)], axis=1)
        both = linalg.solve(a[n_near:].T, right)
        return both[:, :n_near], jnp.sqrt(node.scale) * both[:, n_near:]

    return Root(groups, *lax.map(of_group, found.a))


def times(of: Root | Triangular, white: Array) -> Array:
    """Lz for z (n, k)."""
    if isinstance(of, Triangular):
        return of.lower @ white

    def group(k: Array, drawn: Array) -> Array:
        own, near = of.groups.own[k], of.groups.near[k]
        mine = of.weights[k] @ _at(drawn, near) + of.spread[k] @ _at(white, own)
        return _put(drawn, own, mine)

    return lax.fori_loop(0, len(of.weights), group, jnp.zeros_like(white))


def times_transposed(of: Root | Triangular, values: Array) -> Array:
    """Lᵀx for x (n, k), from the last group to the first: a group's near rows take B_kᵀ times what
    its own rows have by then."""
    if isinstance(of, Triangular):
        return of.lower.T @ values
    last = len(of.weights) - 1

    def group(count: Array, both: tuple[Array, Array]) -> tuple[Array, Array]:
        k, (pulled, found) = last - count, both
        own, near = of.groups.own[k], of.groups.near[k]
        mine = _at(pulled, own)
        taken = _at(pulled, near) + of.weights[k].T @ mine
        return _put(pulled, near, taken), _put(found, own, of.spread[k].T @ mine)

    return lax.fori_loop(0, last + 1, group, (values, jnp.zeros_like(values)))[1]


def solved(of: Root | Triangular, weights: Array, right: Array) -> Array:
    """A⁻¹B for columns of B (n, k), with A = I + LᵀWL the precision of z where values f = Lz have
    normal observations of weights W (n,)."""

    def precision(z: Array) -> Array:
        return z + times_transposed(of, weights[:, None] * times(of, z))

    if isinstance(of, Triangular):
        whole = precision(jnp.eye(len(weights), dtype=right.dtype))
        lower = linalg.cholesky(whole)
        return linalg.solve_transposed(lower, linalg.solve(lower, right))
    return linalg.conjugate_gradients(precision, right, TOLERANCE, MOST_PRODUCTS)


def _at(values: Array, rows: Array) -> Array:
    """Values (n, k) of rows, zero where there is none."""
    return jnp.where(rows[:, None] >= 0, values[jnp.maximum(rows, 0)], 0.0)


def _put(values: Array, rows: Array, new: Array) -> Array:
    """Values with new ones at rows, where there are such."""
    places = jnp.where(rows >= 0, rows, len(values))
    return jnp.asarray(values).at[places].set(new, mode="drop")
