"""`Emulator`, which finds its structure by comparing held-out predictions."""

from typing import Any

import numpy as np

from deepemu.data.checks import require_verbose, require_whole
from deepemu.data.sites import Replicates
from deepemu.errors import InputError
from deepemu.estimators.base import BaseEmulator
from deepemu.estimators.dgp import DGP
from deepemu.estimators.race import DEEPEST, Race, Rules
from deepemu.posterior.stacking import Observed, Part
from deepemu.runtime.progress import wants_progress
from deepemu.training.candidates import KERNELS, Candidate, Deep, companions
from deepemu.training.plan import N_FOLDS


class Emulator(BaseEmulator):
    """The emulator that chooses its structure: plain and deep Gaussian processes, by how well they
    predict runs that they have not seen.

    Plain Gaussian processes with two kernels come first; then deep ones of two layers, a few
    chains each. If these predict clearly worse, that is all. Otherwise they get the rest of their
    chains, unless one kernel is clearly worse than the other. If they predict clearly better than
    the plain ones and ``max_depth`` is 3, three layers are tried with the better kernel. Nodes
    that only copy an input in the first chains are left out of the later ones. Whatever was
    trained has a vote, and `summary` shows the evidence.

    Parameters
    ----------
    max_depth : int
        Layers of the deepest structure that is tried: 1 to 3. Three layers double the time of a fit
        and seldom gained anything in the problems of the accuracy page.
    width : int or None
        Nodes in each hidden layer; ``None``: number of inputs, but at most 6.
    nugget : float or "estimate"
        Nugget relative to the variance of the process; "estimate" models noise. Up to 1e-6 it is
        there for the arithmetic; plain Gaussian processes, which need less of it, then have 1e-8.
    n_chains : int
        Chains of each deep structure of two layers, at least 4; three layers get 4.
    n_iter : int
        Iterations of each chain.
    random_state, device, n_jobs, verbose
        As for `DGP`.

    Examples
    --------
    >>> import numpy as np
    >>> from deepemu import Emulator
    >>> x = np.linspace(0, 1, 12)[:, None]
    >>> emulator = Emulator(n_iter=20).fit(x, np.sin(6 * x[:, 0]))
    >>> mean, std = emulator.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(3)) < 0.05)
    True
    """

    def __init__(
        self,
        max_depth: int = 2,
        width: int | None = None,
        nugget: float | str = 1e-6,
        n_chains: int = 8,
        n_iter: int = 200,
        random_state: Any = 0,
        device: str = "auto",
        n_jobs: int | None = -1,
        verbose: bool | None = None,
    ) -> None:
        self.max_depth = max_depth
        self.width = width
        self.nugget = nugget
        self.n_chains = n_chains
        self.n_iter = n_iter
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _candidates(self, n_inputs: int, n_outputs: int, n_rows: int) -> list[Candidate]:
        require_whole("max_depth", self.max_depth)
        require_whole("n_chains", self.n_chains)
        require_whole("n_iter", self.n_iter)
        require_verbose(self.verbose)
        if self.max_depth > DEEPEST:
            raise InputError(f"max_depth is {self.max_depth}; it must be at most {DEEPEST}.")
        if self.n_chains < N_FOLDS:
            raise InputError(f"n_chains is {self.n_chains}; it must be at least {N_FOLDS}.")
        deepest = self._deep(min(self.max_depth, 2), KERNELS[0], N_FOLDS, None)
        deepest.candidate(n_inputs, n_outputs, N_FOLDS)  # refuses settings that cannot be used
        return [*companions(self.nugget, n_inputs, n_outputs)]

    def _deep(self, depth: int, kernel: str, n_chains: int, width: int | None) -> DGP:
        return DGP(
            depth, width or self.width, kernel, nugget=self.nugget, n_chains=n_chains,
            n_iter=self.n_iter,
        )  # fmt: skip

    def _train(
        self, candidates: list[Candidate], seed: int, sites: Replicates, observed: Observed
    ) -> tuple[list[Part], tuple[str, ...]]:
        """Rung by rung; what was decided on the way is kept for `summary`."""
        shape = sites.x.shape[1], sites.y.shape[1]

        def deep(depth: int, kernel: str, n_chains: int, width: int | None) -> Deep:
            return self._deep(depth, kernel, n_chains, width).candidate(*shape, N_FOLDS)

        rules = Rules(self.max_depth, self.n_chains, self._shows_progress(), deep)
        race = Race(rules, seed, sites, observed)
        race.run(candidates)
        return race.parts, tuple(race.decisions)

    def _n_programs(self) -> int:
        return self.n_chains

    def _shows_progress(self) -> bool:
        return wants_progress(self.verbose)

    def loo(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each training row, by chains trained without it."""
        return self._held_out()
