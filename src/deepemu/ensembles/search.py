"""Rows near test points, found by a tree on the host."""

import functools
from dataclasses import dataclass

import jax
import numpy as np

from deepemu.core import predict
from deepemu.core.ensemble import Member
from deepemu.core.model.network import Data, Network, Params, inputs_in_lengthscales
from deepemu.data.neighbours import Tree
from deepemu.runtime.devices import current
from deepemu.runtime.padding import pad_rows
from deepemu.runtime.programs import compiled

# Rows whose last layer's inputs are computed at once.
ROWS = 1024


@dataclass(frozen=True)
class Search:
    """Rows near each other in the last layer's inputs, by one imputed network."""

    network: Network
    params: Params
    member: Member
    data: Data

    def points(self, x: np.ndarray) -> predict.Points:
        """Test points (m, d) with the rows near each, if the solver asks for them."""
        n_near = self.network.solver.n_predict
        if not n_near:
            return predict.Points(x)
        return predict.Points(x, self.tree.nearest(self._at(x), n_near, current().per_program))

    def _at(self, x: np.ndarray) -> np.ndarray:
        """The last layer's inputs at test points, in lengthscales."""
        program = compiled(predict.in_lengthscales, ("network",))
        given = jax.device_put((self.params, self.member, self.data))
        parts = [
            np.asarray(program(self.network, *given, pad_rows(x[first : first + ROWS], ROWS)))
            for first in range(0, len(x), ROWS)
        ]
        return np.concatenate(parts)[: len(x)]

    @property
    def lacks_tree(self) -> bool:
        """Whether the solver asks for near rows, and no tree has been grown yet."""
        return bool(self.network.solver.n_predict) and "tree" not in vars(self)

    @functools.cached_property
    def tree(self) -> Tree:
        """Of all rows; it serves every prediction."""
        program = compiled(inputs_in_lengthscales, ("network",), brief=True)
        rows = program(self.network, self.params[-1], self.member.latents, self.data.x)
        return Tree(np.asarray(rows), np.asarray(self.data.used) > 0)
