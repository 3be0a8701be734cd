"""The exact solver of a last layer that moves guided itself, or is above anchored hidden layers
that do."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core import linalg
from deepemu.core.kernels.kernel import Two
from deepemu.core.nodes import dense, roots
from deepemu.core.nodes.anchored import Anchored
from deepemu.core.nodes.dense import Dense
from deepemu.core.nodes.node import Node, Sites
from deepemu.core.nodes.solver import InUnknowns, Solver


def information(
    node: Node, inputs: Array, n_moving: int, target: Array, sites: Sites, in_unknowns: InUnknowns
) -> Array:
    """F of all rows, each given those before it.

    A change of row r is dR = g e_rᵀ + e_r gᵀ. With V = L⁻¹, z = Vy and the columns Vg of U it moves
    e_i/s_i by −(U_ir Σ_j V_jr z_j + V_ir Σ_j U_jr z_j), with sums over j < i, and log s_i² by
    2 U_ir V_ir.
    """
    matrix = dense.correlation(node, inputs, sites)
    lower = linalg.cholesky(matrix)
    inverse = linalg.solve(lower, jnp.eye(len(inputs), dtype=inputs.dtype))
    white = (inverse @ target)[:, None]
    before = lambda each: jnp.cumsum(each * white, axis=0) - each * white  # noqa: E731
    pairs = matrix - dense.beside_kernel(node, sites)

    def of_column(column: tuple[Array, Array]) -> Array:
        values, inverse_lengthscale = column
        two = Two.of(values[:, None], values[None, :], inverse_lengthscale)
        moved = inverse_lengthscale * inverse @ (pairs * node.kernel.slope_at(two)).T
        of_e = -(moved * before(inverse) + inverse * before(moved)) / jnp.sqrt(node.scale)
        return jnp.concatenate([of_e, jnp.sqrt(2.0) * moved * inverse])

    moving = inputs[:, :n_moving].T, node.inverse_lengthscale[:n_moving]
    slopes = jax.lax.map(of_column, moving)
    every = jnp.arange(len(inputs))[None]
    (jacobian,) = in_unknowns(jnp.moveaxis(slopes, 0, 2)[None], every)
    return jacobian.T @ jacobian


@dataclass(frozen=True)
class DenseOverAnchors(Dense):
    """`Dense` in the last layer, values at anchors in the hidden ones."""

    def for_hidden(self) -> Solver:
        return Anchored()

    information = staticmethod(information)
    root = staticmethod(roots.triangular)
