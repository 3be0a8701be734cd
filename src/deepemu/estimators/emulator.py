"""`Emulator`, which finds its structure by comparing held-out predictions."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from deepemu.core.nodes.solver import Solver
from deepemu.data.checks import (
    is_real,
    require_choice,
    require_value,
    require_verbose,
    require_whole,
)
from deepemu.data.runs import Runs
from deepemu.estimators.base import BaseEmulator, solvers_of
from deepemu.estimators.dgp import DGP
from deepemu.estimators.race import DEEPEST, EFFORTS, EFFORTS_SWEPT, Effort, Race, Rules
from deepemu.files.atomic import PathLike
from deepemu.observations.model import Observation
from deepemu.posterior.stacking import judged_of
from deepemu.runtime.progress import wants_progress
from deepemu.training.chains import Trained
from deepemu.training.keeper import Keeper
from deepemu.training.plan import N_FOLDS
from deepemu.training.structures import KERNELS, DeepGP, Problem, Structure, plain_gps

# Swept from the prior three layers settle late, and predict better with few lengthscales.
THREE_LAYERS: dict[str, Any] = {"lengthscale": "layer", "n_sweeps": 10, "early_stopping": False}


class Emulator(BaseEmulator):
    """The emulator that chooses its structure: plain and deep Gaussian processes, by how well they
    predict held-out runs.

    Plain Gaussian processes with two kernels come first; then deep ones of two layers, a few chains
    each. If these predict worse, that is all. Otherwise they get the rest of their chains, unless
    one kernel is clearly worse than the other; with the noise that a plain process has found, if a
    few chains that try it predict better. If deep chains have most of the weight and ``max_depth``
    is 3, three layers follow. Nodes that only copy an input in the first chains are dropped from
    the later ones. All trained structures are weighted, and `summary` shows the evidence.

    Parameters
    ----------
    effort : {"quick", "default", "thorough"}
        How much is trained, in 80 iterations of each chain. "quick" takes the kernel whose plain
        process predicts better, and eight chains; "default" both kernels, with eight chains each;
        "thorough" sixteen chains of each and, where depth pays, sixteen of three layers. (Where
        moves cannot be guided, see `DGP`, "quick" has four chains of 60 iterations, the others have
        200, with eight chains of each kernel and eight of three layers with 500 iterations.) The
        arguments ``max_depth``, ``n_chains`` and ``n_iter`` replace these numbers.
    time_limit : float or None
        Seconds after which nothing new is begun. Deep structures share the time, whatever
        ``n_chains`` is: chains are added as long as there is time, up to 48, and end early where
        there is not. Results then depend on the machine. A fit can also be ended by Ctrl-C, which
        keeps what is trained.
    max_depth : int or None
        Layers of the deepest structure that is tried: 1 to 3.
    width : int or None
        Nodes in each hidden layer; ``None``: number of inputs, but at most 6.
    nugget : float, "auto" or "estimate"
        Nugget relative to the variance of the process. "auto" finds it, under a prior that favours
        the smallest: a smooth function keeps 1e-8, a simulator with numerical or random noise gets
        its size. Plain Gaussian processes that have found noise compete with others of the
        smallest nugget, and hand it to deep ones where that predicts better. "estimate" does
        without that prior. A number up to 1e-6 is for numerical stability only; plain processes,
        which need less of it, then have 1e-8.
    n_chains : int or None
        Chains of each deep structure of two layers, at least 4; three layers get 4 in all, and 16
        with "thorough".
    n_iter : int or None
        Iterations of each chain.
    random_state, device, n_jobs, verbose, observation, solver, checkpoint
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
        max_depth: int | None = None,
        width: int | None = None,
        nugget: float | str = "auto",
        n_chains: int | None = None,
        n_iter: int | None = None,
        random_state: Any = 0,
        device: str = "auto",
        n_jobs: int | None = -1,
        verbose: bool | None = None,
        observation: str | Observation = "gaussian",
        solver: str | Solver = "auto",
        effort: str = "default",
        time_limit: float | None = None,
        checkpoint: PathLike | None = None,
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
        self.effort = effort
        self.time_limit = time_limit
        self.checkpoint = checkpoint

    def _last_nugget(self) -> object:
        return self.nugget

    def _structures(self, problem: Problem, n_sites: int) -> list[Structure]:
        problem = problem.guided or problem
        effort, limit = self._effort(problem.solver), self.time_limit
        require_verbose(self.verbose)
        deepest_is_known = effort.max_depth <= DEEPEST
        require_value(deepest_is_known, "max_depth", effort.max_depth, f"at most {DEEPEST}")
        fills_folds = effort.n_chains >= N_FOLDS
        require_value(fills_folds, "n_chains", effort.n_chains, f"at least {N_FOLDS}")
        is_time = limit is None or (is_real(limit) and limit > 0)
        require_value(is_time, "time_limit", limit, "a positive number of seconds or None")
        # Invalid settings raise before anything is trained.
        self._deep(problem, min(effort.max_depth, 2), KERNELS[0], N_FOLDS, None)
        return plain_gps(self.nugget, problem)

    def _effort(self, solver: Solver) -> Effort:
        """The effort that was named, for this solver, with the numbers that were given."""
        require_choice(self.effort, "effort", tuple(EFFORTS))
        named = (EFFORTS if solver.for_hidden() else EFFORTS_SWEPT)[self.effort]
        asked = {name: getattr(self, name) for name in ("max_depth", "n_chains", "n_iter")}
        given = {name: number for name, number in asked.items() if number is not None}
        for name, number in given.items():
            require_whole(name, number)
        if "n_iter" in given:
            given["n_iter_of_three"] = given["n_iter"]
        return dataclasses.replace(named, **given)

    def _deep(
        self, problem: Problem, depth: int, kernel: str, n_chains: int, width: int | None
    ) -> DeepGP:
        effort = self._effort(problem.solver)
        is_deepest = depth == DEEPEST
        own: dict[str, Any] = {"n_iter": effort.n_iter_of_three if is_deepest else effort.n_iter}
        if is_deepest and not problem.solver.for_hidden():
            own |= THREE_LAYERS
        settings = DGP(depth, width or self.width, kernel, nugget=self.nugget, n_chains=n_chains)
        return settings.set_params(**own).structure(problem, N_FOLDS)

    def _train(
        self, structures: list[Structure], seed: int, runs: Runs, keeper: Keeper
    ) -> tuple[list[Trained], tuple[str, ...]]:
        """Train structures in stages; the decisions are kept for `summary`."""
        observation = structures[0].observation
        solver, of_plain = solvers_of(self.solver)(runs.sites.n_sites, observation)
        problem = Problem(runs.y.shape[1], observation, solver, runs.columns.inputs, of_plain)
        problem = problem.guided or problem
        deep = functools.partial(self._deep, problem)
        seconds = math.inf if self.time_limit is None else float(self.time_limit)
        rules = Rules(self._effort(problem.solver), seconds, self._shows_progress(), deep)
        race = Race(rules, seed, runs.sites, judged_of(runs, observation), keeper)
        race.run(structures)
        return race.trained, tuple(race.decisions)

    def _n_programs(self) -> int:
        """The fewest chains of a structure: more of them keep no more cores busy here."""
        return N_FOLDS

    def _shows_progress(self) -> bool:
        return wants_progress(self.verbose)

    def loo(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each training row, by chains trained without it."""
        return self._held_out()
