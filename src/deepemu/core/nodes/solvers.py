"""Solvers by name."""

from deepemu.core.nodes.dense import Dense
from deepemu.core.nodes.over_anchors import DenseOverAnchors
from deepemu.core.nodes.solver import Solver
from deepemu.core.nodes.vecchia import Vecchia

EXACT = Dense()
SOLVERS: dict[str, Solver] = {"dense": EXACT, "vecchia": Vecchia()}


def over_anchors(solver: Solver, imputes: bool) -> Solver | None:
    """The same solver above anchored hidden layers, if there is one; with an imputed last layer
    or without."""
    if solver == EXACT:
        return None if imputes else DenseOverAnchors()
    return solver if solver.for_hidden() else None
