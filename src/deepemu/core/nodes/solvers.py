"""Solvers by name."""

from deepemu.core.nodes.dense import Dense
from deepemu.core.nodes.solver import Solver

SOLVERS: dict[str, Solver] = {"dense": Dense()}
