"""`Emulator`, which finds its structure by comparing held-out predictions."""

import functools
from typing import Any

import numpy as np

from deepemu.core.nodes.solver import Solver
from deepemu.data.checks import require_value, require_verbose, require_whole
from deepemu.data.runs import Runs
from deepemu.estimators.base import BaseEmulator
from deepemu.estimators.dgp import DGP
from deepemu.estimators.race import DEEPEST, Race, Rules
from deepemu.observations.model import Observation
from deepemu.posterior.stacking import judged_of
from deepemu.runtime.progress import wants_progress
from deepemu.training.chains import Trained
from deepemu.training.plan import N_FOLDS
from deepemu.training.structures import KERNELS, DeepGP, Problem, Structure, plain_gps


class Emulator(BaseEmulator):
    """The emulator that chooses its structure: plain and deep Gaussian processes, by how well they
    predict held-out runs.

    Plain Gaussian processes with two kernels come first; then deep ones of two layers, a few chains
    each. If these predict clearly worse, that is all. Otherwise they get the rest of their chains,
    unless one kernel is clearly worse than the other. If they predict clearly better than the plain
    ones and ``max_depth`` is 3, three layers are tried with the better kernel. Nodes that only copy
    an input in the first chains are dropped from the later ones. All trained structures are
    weighted, and `summary` shows the evidence.

    Parameters
    ----------
    max_depth : int
        Layers of the deepest structure that is tried: 1 to 3. Three layers double the time of a fit
        and seldom gained anything in the problems of the accuracy page.
    width : int or None
        Nodes in each hidden layer; ``None``: number of inputs, but at most 6.
    nugget : float, "auto" or "estimate"
        Nugget relative to the variance of the process. "auto" finds it, under a prior that favours
        the smallest: a smooth function keeps 1e-8, a simulator with numerical or random noise gets
        its size. Plain Gaussian processes that have found noise compete with others that have
        none. "estimate" does without that prior. A number up to 1e-6 is for numerical stability
        only; plain processes, which need less of it, then have 1e-8.
    n_chains : int
        Chains of each deep structure of two layers, at least 4; three layers get 4.
    n_iter : int
        Iterations of each chain.
    random_state, device, n_jobs, verbose, observation, solver
        As for `DGP`.

    Examples
    --------
    >>> import numpy as np
    >>> from deepemu import Emulator
    >>> x = np.linspace(0, 1, 12)[:, None]
    >>> emulator = Emulator(max_depth=1).fit(x, np.sin(6 * x[:, 0]))  # plain ones will do
    >>> mean, std = emulator.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(3)) < 0.05)
    True
    """

    def __init__(
        self,
        max_depth: int = 2,
        width: int | None = None,
        nugget: float | str = "auto",
        n_chains: int = 8,
        n_iter: int = 200,
        random_state: Any = 0,
        device: str = "auto",
        n_jobs: int | None = -1,
        verbose: bool | None = None,
        observation: str | Observation = "gaussian",
        solver: str | Solver = "dense",
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
        self.observation = observation
        self.solver = solver

    def _last_nugget(self) -> object:
        return self.nugget

    def _structures(self, problem: Problem, n_sites: int) -> list[Structure]:
        require_whole("max_depth", self.max_depth)
        require_whole("n_chains", self.n_chains)
        require_whole("n_iter", self.n_iter)
        require_verbose(self.verbose)
        deepest_is_known = self.max_depth <= DEEPEST
        require_value(deepest_is_known, "max_depth", self.max_depth, f"at most {DEEPEST}")
        fills_folds = self.n_chains >= N_FOLDS
        require_value(fills_folds, "n_chains", self.n_chains, f"at least {N_FOLDS}")
        # Invalid settings raise before anything is trained.
        self._deep(problem, min(self.max_depth, 2), KERNELS[0], N_FOLDS, None)
        return plain_gps(self.nugget, problem)

    def _deep(
        self, problem: Problem, depth: int, kernel: str, n_chains: int, width: int | None
    ) -> DeepGP:
        settings = DGP(
            depth, width or self.width, kernel, nugget=self.nugget, n_chains=n_chains,
            n_iter=self.n_iter,
        )  # fmt: skip
        return settings.structure(problem, N_FOLDS)

    def _train(
        self, structures: list[Structure], seed: int, runs: Runs
    ) -> tuple[list[Trained], tuple[str, ...]]:
        """Train structures in stages; the decisions are kept for `summary`."""
        observation, solver = structures[0].observation, structures[0].network.solver
        problem = Problem(runs.y.shape[1], observation, solver, runs.columns.inputs)
        deep = functools.partial(self._deep, problem)
        rules = Rules(self.max_depth, self.n_chains, self._shows_progress(), deep)
        race = Race(rules, seed, runs.sites, judged_of(runs, observation))
        race.run(structures)
        return race.trained, tuple(race.decisions)

    def _n_programs(self) -> int:
        return self.n_chains

    def _shows_progress(self) -> bool:
        return wants_progress(self.verbose)

    def loo(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each training row, by chains trained without it."""
        return self._held_out()
