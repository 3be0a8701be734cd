"""Solvers by name."""

from deepemu.core.nodes.dense import Dense
from deepemu.core.nodes.over_anchors import DenseOverAnchors
from deepemu.core.nodes.solver import Solver
from deepemu.core.nodes.vecchia import Vecchia

EXACT = Dense()
SOLVERS: dict[str, Solver] = {"dense": EXACT, "vecchia": Vecchia()}


def over_anchors(solver: Solver) -> Solver | None:
    """The same solver with guided moves: of hidden layers at anchors and of an imputed last layer,
    if there is one."""
    if solver == EXACT:
        return DenseOverAnchors()
    return solver if solver.for_hidden() else None
