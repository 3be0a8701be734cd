"""The settings of a training run."""

import math
from dataclasses import dataclass

import numpy as np

from deepemu.core.inference.m_step import InTurn, Together
from deepemu.core.inference.steps import Guided, Moves, MStep, Nodes, Steps
from deepemu.runtime.devices import current

# Each chain holds out a quarter of the sites, if there are enough chains and sites.
N_FOLDS, FEWEST_ROWS = 4, 8
BURN_STEPS = 4
THIN_STEPS = 2
# Rounds of guided moves before each imputation that is kept.
GUIDED_BURN, GUIDED_THIN = 4, 2
# Fewest scoring steps where the last layer has many latents. Its first values are far from what the
# first parameters say: of several steps one succeeds, a single one can fail in all iterations.
SCORING_OF_LATENTS = 5
# Iterations between checks for stationarity, and so the longest block that is compiled.
CHECK_EVERY = 20


@dataclass(frozen=True)
class Plan:
    """Settings of a training run: those of `DGP`, ``n_folds`` folds of held-out sites, and the
    ``seconds`` after which no further block of iterations is begun."""

    moves: Moves
    m_step: MStep
    n_chains: int
    n_iter: int
    burn_in: float
    n_sweeps: int
    n_scoring: int
    n_imputations: int
    bracket: float
    stops_early: bool
    n_folds: int
    seconds: float = math.inf

    @property
    def is_guided(self) -> bool:
        return isinstance(self.moves, Guided)

    @property
    def kept(self) -> tuple[int, ...]:
        """Sweeps before each imputation that is kept: two I-steps, and four more before the first,
        for the latents to adapt to the averaged parameters."""
        if self.is_guided:
            return (GUIDED_BURN, *[GUIDED_THIN] * (self.n_imputations - 1))
        first = (BURN_STEPS + THIN_STEPS) * self.n_sweeps
        return (first, *[THIN_STEPS * self.n_sweeps] * (self.n_imputations - 1))

    def training(self) -> Steps:
        return self._steps(self.n_sweeps, self.n_scoring, adapt=True)

    def warm_up(self) -> Steps:
        """Parameters are fixed, the latent layers are imputed."""
        return self._steps(self.n_sweeps, 0, adapt=True)

    def sampling(self, n_sweeps: int) -> Steps:
        """Between kept networks: this many sweeps with fixed parameters; where parameters are
        sampled too, iterations as in training."""
        if self.m_step.shares_parameters:
            return self._steps(n_sweeps, 0, adapt=False)
        return self._steps(self.n_sweeps, self.n_scoring, adapt=False)

    def _steps(self, n_sweeps: int, n_scoring: int, adapt: bool) -> Steps:
        return Steps(
            self.moves, self.m_step, nodes_of_device(), CHECK_EVERY,
            np.int32(n_sweeps), np.int32(n_scoring), np.float64(self.bracket), np.bool_(adapt),  # type: ignore[arg-type]
        )  # fmt: skip


def nodes_of_device() -> Nodes:
    return InTurn() if current().platform == "cpu" else Together()
