"""Solvers by name."""

from deepemu.core.nodes.dense import Dense
from deepemu.core.nodes.solver import Solver
from deepemu.core.nodes.vecchia import Vecchia

SOLVERS: dict[str, Solver] = {"dense": Dense(), "vecchia": Vecchia()}
