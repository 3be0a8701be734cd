"""How long to train, how to sample, and what to keep."""

from dataclasses import dataclass

import numpy as np

from deepemu.core.inference import impute, sem
from deepemu.runtime import padding


@dataclass(frozen=True)
class Averaged:
    """Imputations with the parameters held: those of a chain share their factors.

    The training program serves with no scoring steps, and its sweeps make one iteration.
    """

    n_iterations: int = 1
    shares_parameters: bool = True

    def effort(self, n_sweeps: int, bracket: float) -> sem.Effort:
        return effort(n_sweeps, 0, bracket, False)


@dataclass(frozen=True)
class Drawn:
    """Imputations between which parameters are sampled too, so that each has its own.

    They are ten iterations apart, because parameters move slower than latents.
    """

    n_sweeps: int
    n_scoring: int
    n_iterations: int = 10
    shares_parameters: bool = False

    def effort(self, n_sweeps: int, bracket: float) -> sem.Effort:
        """As in training, whatever the number of sweeps that held parameters would need."""
        return effort(self.n_sweeps, self.n_scoring, bracket, False)


@dataclass(frozen=True)
class Sampling:
    """How networks are sampled: the training program, the width of slice brackets, and what
    happens between two that are kept."""

    schedule: sem.Schedule
    bracket: float
    between: Averaged | Drawn


@dataclass(frozen=True)
class Keep:
    """Sweeps before each imputation that is kept, and the stream of random numbers they use."""

    sweeps: tuple[int, ...]
    stream: tuple[int, ...]


# Chains are trained without a quarter of the rows in turn, if there are enough of both.
N_FOLDS, FEWEST_ROWS = 4, 8
BURN_STEPS = 4
THIN_STEPS = 2
CHECK_EVERY = 20


@dataclass(frozen=True)
class Plan:
    """How long to train and how much to keep."""

    sampling: Sampling
    n_iter: int
    burn_in: float
    n_sweeps: int
    n_scoring: int
    n_imputations: int
    stops_early: bool
    n_folds: int

    @property
    def kept(self) -> Keep:
        """Imputations two I-steps apart, after four more for averaged parameters to take hold."""
        first = (BURN_STEPS + THIN_STEPS) * self.n_sweeps
        later = (THIN_STEPS * self.n_sweeps,) * (self.n_imputations - 1)
        return Keep((first, *later), (padding.KEEP_STREAM,))


def effort(n_sweeps: int, n_scoring: int, bracket_factor: float, adapt: bool) -> sem.Effort:
    brackets = impute.Brackets(np.float64(bracket_factor), np.bool_(adapt))  # type: ignore[arg-type]
    return sem.Effort(np.int32(n_sweeps), np.int32(n_scoring), brackets)  # type: ignore[arg-type]
