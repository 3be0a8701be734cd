"""`DGP`: a deep Gaussian process with the interface of a scikit-learn regressor."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import jax
import numpy as np

from deepemu.convergence import inference_data
from deepemu.core.inference.m_step import Maximise, Sample
from deepemu.core.inference.steps import Guided, LayerWise, Moves, MStep, NodeWise
from deepemu.core.model.network import Network
from deepemu.core.model.priors import Prior
from deepemu.core.nodes.solver import Solver
from deepemu.core.nodes.solvers import EXACT
from deepemu.data.checks import (
    is_real,
    require,
    require_choice,
    require_flag,
    require_value,
    require_verbose,
    require_whole,
)
from deepemu.errors import ConvergenceWarning, Message, Setting, warn
from deepemu.estimators.base import BaseEmulator
from deepemu.files.atomic import PathLike
from deepemu.observations.model import Observation
from deepemu.runtime.progress import wants_progress
from deepemu.training.layers import (
    AUTO,
    Layer,
    checked_layers,
    sampled_layers,
)
from deepemu.training.plan import FEWEST_ROWS, N_FOLDS, SCORING_OF_LATENTS, Plan
from deepemu.training.structures import (
    DeepGP,
    Problem,
    Structure,
    kernels_in_words,
    layers_in_words,
    plain_gps,
    starting_params_of,
    trace_in_words,
)

WIDEST_DEFAULT = 6
ITERATIONS, SWEEPS_PER_ITERATION, GUIDED_ITERATIONS = 200, 5, 80
GUIDED = "guided"
SWEEPS: dict[str, Moves] = {"node": NodeWise(), "layer": LayerWise(), GUIDED: Guided()}
M_STEPS: dict[str, MStep] = {"imputation": Maximise(), "full_bayes": Sample()}
NOT_GUIDED = (
    "sweep is 'guided', but there are no such moves for this solver and observation model, or with "
    "inference='full_bayes'; leave sweep at 'auto'."
)
# Parameters are sampled given hidden values at all rows. Those at rows that are no anchors depend
# on the parameters.
HAS_ANCHORS = (
    "this solver has anchors in hidden layers, which have neither sweep='node' or 'layer' nor "
    "inference='full_bayes'; leave these, or solver, at their defaults."
)


class DGP(BaseEmulator):
    """Deep Gaussian-process emulator, trained by stochastic imputation with several chains.

    Parameters
    ----------
    depth : int
        Number of layers, the observed one included.
    width : int or None
        Nodes in each hidden layer; ``None``: number of inputs, but at most 6.
    kernel : {"matern52", "matern32", "squared_exponential", "linear"}
    lengthscale : {"ard", "shared", "layer"}
        One lengthscale per column that a node reads, or one per node, or one per hidden layer (and
        one for each output), with which three layers train in half of the time.
    connect_input : bool
        Whether every layer also reads the global inputs.
    prior : {"gamma", "inverse_gamma", "reference", "none"} or a prior object
    nugget : float, "auto" or "estimate"
        Nugget of the observed layer relative to its scale. "auto" finds it, under a prior that
        favours the smallest: a smooth function keeps 1e-8, a simulator with numerical or random
        noise gets its size. "estimate" does so without that prior. Hidden layers have 1e-6, or
        1e-10 at anchors; the plain Gaussian processes of the mixture have 1e-8 where a number up to
        1e-6 is given.
    layers : sequence of Layer, optional
        Full control over the structure; replaces all arguments above.
    n_chains : int
        Independent chains whose mixture predicts.
    n_iter, burn_in, n_sweeps : int or None, float, int or None
        Iterations of stochastic EM, the share of them that is discarded before parameters are
        averaged (with stacking, half of the last 30 % of the iterations are averaged, whatever
        ``burn_in`` is), and sweeps of imputation in each. ``None``: 80 iterations of one round of
        guided moves; where moves are not guided, 200 of 5 sweeps, and 50 sweeps before the first.
    n_imputations : int
        Imputed networks kept of each chain.
    sweep : {"auto", "node", "layer", "guided"}
        How imputation moves hidden layers. "node" and "layer": slice steps from the prior, of one
        node at a time or of a whole layer. "guided": values of all hidden nodes at anchors, 20 to
        256 of the rows, move at once, guided by the curvature of the posterior. "auto": "guided"
        where the solver has such moves for the observation model, else "node".
    bracket : float
        Width of the slice bracket in units of the mean accepted angle; ``inf``: the full circle.
    n_scoring : int
        Scoring steps of each maximisation; with full Bayes, moves of each node's parameters in an
        iteration. At least 5 where guided moves impute the last layer, too.
    early_stopping : bool
        Whether to end training before ``n_iter`` iterations once the chains' paths are stationary:
        checked every 20 iterations from the 60th on, with four chains or more (the page on
        performance has the rule). With stacking this holds for the first 70 % of ``n_iter``; the
        rest is always run. Full Bayes runs all iterations: sampled paths look stationary long
        before they are.
    stacking : bool
        Whether chains are weighted by how well they predict held-out rows. With four chains and
        eight rows or more, each chain holds out a quarter of the rows for the first 70 % of the
        iterations and predicts them; two plain Gaussian processes do the same. The predictions set
        the chains' weights and a common scale of the standard deviations, and are what `loo` and
        `summary` show. Otherwise all chains have equal weights.
    inference : {"imputation", "full_bayes"}
        Whether lengthscales, nuggets and scales that are not given are estimated by stochastic EM,
        as in the paper, or sampled along with the hidden layers, so that the spread of predictions
        includes their uncertainty. With full Bayes a scale has the prior p(σ²) ∝ 1/σ², ``trace_``
        holds the sampled paths, and the imputed networks that are kept, ten iterations apart after
        ``n_iter``, have parameters of their own: nothing is averaged, and ``burn_in`` is not used.
        A prior that depends on the range of a node's inputs ("reference") is only approximately
        that of the joint posterior, because hidden layers are imputed without it. A nugget that is
        sampled has a gamma(1.5, 3.9) prior with "estimate", and with "auto" one whose logarithm has
        a density ∝ η^(-1/2), unless another is given.
    random_state : int, RandomState or None
        The same integer gives the same emulator, whatever ``n_jobs`` is; from 500 rows on up to
        rounding, because LAPACK then uses idle cores.
    device : {"auto", "cpu", "gpu"}
        Where to compute; "auto": on a GPU where JAX sees one and the work is large enough to gain.
    n_jobs : int or None
        CPU threads, for chains in training and test rows in prediction; -1: all cores (or
        ``OMP_NUM_THREADS`` of them), None: one.
    verbose : bool or None
        Progress on standard error; ``None``: on a terminal.
    observation : str or an observation model
        How outputs arise from the emulated function: "gaussian", "heteroscedastic", "student_t",
        "poisson", "negative_binomial", "zero_inflated_poisson", "zero_inflated_negative_binomial",
        "binomial".
    solver : {"auto", "dense", "vecchia"} or a solver
        How nodes are computed. "dense" conditions on all rows. "vecchia" conditions groups of 16
        rows on 32 rows near them, and predicts from the 50 nearest rows. Where moves are guided,
        hidden nodes have values of their own at anchors only, whatever the solver is. "auto":
        "vecchia" from 400 distinct rows on (plain Gaussian processes: from 1500, or from 400 where
        an observation model has latents to impute), "dense" where moves are not guided.
    checkpoint : path or None
        A file in which a fit keeps what it has done while it trains. If the fit is killed, one with
        the same data and settings goes on from there, to the same result. The file is deleted when
        the fit has finished.
    """

    def __init__(
        self,
        depth: int = 2,
        width: int | None = None,
        kernel: str = "matern52",
        lengthscale: str = "ard",
        connect_input: bool = True,
        prior: str | Prior = "gamma",
        nugget: float | str = "auto",
        layers: Sequence[Layer] | None = None,
        n_chains: int = 8,
        n_iter: int | None = None,
        burn_in: float = 0.75,
        n_sweeps: int | None = None,
        n_imputations: int = 5,
        sweep: str = "auto",
        bracket: float = 16.0,
        n_scoring: int = 1,
        early_stopping: bool = True,
        stacking: bool = True,
        inference: str = "imputation",
        random_state: Any = 0,
        device: str = "auto",
        n_jobs: int | None = -1,
        verbose: bool | None = None,
        observation: str | Observation = "gaussian",
        solver: str | Solver = "auto",
        checkpoint: PathLike | None = None,
    ) -> None:
        self.depth = depth
        self.width = width
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.connect_input = connect_input
        self.prior = prior
        self.nugget = nugget
        self.layers = layers
        self.n_chains = n_chains
        self.n_iter = n_iter
        self.burn_in = burn_in
        self.n_sweeps = n_sweeps
        self.n_imputations = n_imputations
        self.sweep = sweep
        self.bracket = bracket
        self.n_scoring = n_scoring
        self.early_stopping = early_stopping
        self.stacking = stacking
        self.inference = inference
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.observation = observation
        self.solver = solver
        self.checkpoint = checkpoint

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The settings of the paper: one chain, 500 iterations, 50 imputations.

        Squared exponential, one lengthscale per node, nugget 1e-6, 10 sweeps per iteration, 75 %
        burn-in, full-circle brackets; ``connect_input=True`` gives SI-IC. ``changes`` override.
        As in the authors' software, lengthscales have a gamma(1.6, 0.3) prior, and hidden layers
        are imputed before the first M-step, here by 50 sweeps; each M-step takes up to 10 scoring
        steps from the last estimate.
        """
        settings: dict[str, Any] = {
            "kernel": "squared_exponential",
            "lengthscale": "shared",
            "connect_input": False,
            "nugget": 1e-6,
            "n_chains": 1,
            "n_iter": 500,
            "burn_in": 0.75,
            "n_sweeps": 10,
            "n_imputations": 50,
            "sweep": "node",
            "bracket": float("inf"),
            "n_scoring": 10,
            "early_stopping": False,
            "stacking": False,
        }
        return cls(**(settings | changes))

    def _layers(self, n_inputs: int) -> list[Layer]:
        if self.layers is not None:
            return checked_layers(self.layers)
        require_whole("depth", self.depth)
        width = min(n_inputs, WIDEST_DEFAULT) if self.width is None else self.width
        common: dict[str, Any] = {
            "kernel": self.kernel,
            "lengthscale": self.lengthscale,
            "connect_input": self.connect_input,
            "prior": self.prior,
        }
        hidden = [Layer(width=width, **common)] * (self.depth - 1)
        return [*hidden, Layer(nugget=self.nugget, **common)]

    def _last_nugget(self) -> object:
        return self.nugget if self.layers is None else checked_layers(self.layers)[-1].nugget

    def _structures(self, problem: Problem, n_sites: int) -> list[Structure]:
        require_flag("stacking", self.stacking)
        require_whole("n_chains", self.n_chains)
        require_choice(self.inference, "inference", tuple(M_STEPS))
        n_iter = self._n_iter(self._with_moves(problem).solver)
        require_verbose(self.verbose)
        enough = self.n_chains >= N_FOLDS and n_sites >= FEWEST_ROWS and n_iter > 1
        stacks = self.stacking and enough
        if self.stacking and not enough:
            message = Message(
                "No rows can be held out with ", Setting("n_chains", int(self.n_chains)), ", ",
                Setting("n_iter", n_iter), f" and {n_sites} distinct rows, so nothing "
                "checks the intervals, which may be far too narrow; use at least "
                f"{N_FOLDS} chains, 2 iterations and {FEWEST_ROWS} rows",
                Message(", or pass ", Setting("stacking", False), " to do without"), ".",
            )  # fmt: skip
            warn(message, ConvergenceWarning)
        deep = self.structure(problem, N_FOLDS if stacks else 0)
        nugget = self._layers(problem.n_inputs)[-1].nugget
        return [deep, *plain_gps(nugget, problem)] if stacks else [deep]

    def structure(self, problem: Problem, n_folds: int) -> DeepGP:
        """The deep network alone, whose chains hold out folds of rows in turn."""
        require_choice(self.inference, "inference", tuple(M_STEPS))
        layers, problem = self._layers(problem.n_inputs), self._with_moves(problem)
        if self.inference == "full_bayes":
            layers = sampled_layers(layers)
        network = problem.network(layers)
        label = f"DGP, {layers_in_words(network.depth)}, {kernels_in_words(layers)}"
        return DeepGP(
            label, network, starting_params_of(network, layers), self._plan(n_folds, network)
        )

    def _with_moves(self, problem: Problem) -> Problem:
        """The problem with the solver for these moves of the hidden layers: the exact one for those
        that have no anchors, if none is named."""
        require_choice(self.sweep, "sweep", (AUTO, *SWEEPS))
        guided = problem.guided if M_STEPS[self.inference].shares_parameters else None
        if self.sweep in {AUTO, GUIDED} and guided is not None:
            return guided
        require(self.sweep != GUIDED, NOT_GUIDED)
        if not problem.solver.for_hidden():
            return problem
        require(self.solver == AUTO, HAS_ANCHORS)
        return dataclasses.replace(problem, solver=EXACT)

    def _n_programs(self) -> int:
        return self.n_chains

    def _shows_progress(self) -> bool:
        return wants_progress(self.verbose)

    def _n_iter(self, solver: Solver) -> int:
        if self.n_iter is None:
            return GUIDED_ITERATIONS if solver.for_hidden() else ITERATIONS
        require_whole("n_iter", self.n_iter)
        return int(self.n_iter)

    def _moves(self, guided: bool) -> Moves:
        """Those of the network: one without hidden layers has nothing to guide."""
        if guided:
            return SWEEPS[GUIDED]
        return SWEEPS["node" if self.sweep in {AUTO, GUIDED} else self.sweep]

    def _plan(self, n_folds: int, network: Network) -> Plan:
        guided = network.is_guided
        latents = guided and network.observation.imputed
        n_sweeps = (
            (1 if guided else SWEEPS_PER_ITERATION) if self.n_sweeps is None else self.n_sweeps
        )
        require_whole("n_sweeps", n_sweeps)
        for name in ("n_imputations", "n_scoring"):
            require_whole(name, getattr(self, name))
        is_share = is_real(self.burn_in) and 0 <= self.burn_in < 1
        require_value(is_share, "burn_in", self.burn_in, "at least 0 and below 1")
        is_width = is_real(self.bracket) and self.bracket > 0
        require_value(is_width, "bracket", self.bracket, "a positive number")
        require_flag("early_stopping", self.early_stopping)
        m_step = M_STEPS[self.inference]
        return Plan(
            moves=self._moves(guided),
            m_step=m_step,
            n_chains=self.n_chains,
            n_iter=self._n_iter(network.solver),
            burn_in=float(self.burn_in),
            n_sweeps=int(n_sweeps),
            n_scoring=max(self.n_scoring, SCORING_OF_LATENTS if latents else 1),
            n_imputations=self.n_imputations,
            bracket=float(self.bracket),
            stops_early=bool(self.early_stopping) and m_step.shares_parameters,
            n_folds=n_folds,
        )

    @property
    def trace_(self) -> dict[str, Any]:
        """Paths of the deep network's parameters on the natural scale: for each layer an array
        (chains, iterations, nodes, …); and of the log density.

        With stacking, each chain holds out a quarter of the rows in the first 70 % of them.
        """
        return trace_in_words(self._fitted().structures[0].trace)

    def loo(self, conditional: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each training row, by chains trained without it.

        Each row is predicted by the chains that held out its quarter of the rows in the first part
        of training, and by the plain Gaussian processes refitted without it. ``conditional=True``
        gives closed-form leave-one-out instead: it keeps parameters and hidden variables that were
        found with the row present, and is far too optimistic for a deep network.
        """
        require_flag("conditional", conditional)
        if conditional:
            return self._closed_form_loo()
        return self._held_out()

    def to_arviz(self) -> Any:
        """The paths of `trace_` for ArviZ, one variable for each kind and layer.

        Iterations with all rows only: with stacking, the last 30 %. With
        ``inference="full_bayes"`` they are draws, else iterates of stochastic EM. Fixed parameters
        are omitted. Needs ArviZ.
        """
        trained = self._fitted().structures[0]
        together = jax.tree.map(lambda path: path[:, -trained.n_together :], trained.trace)
        trace = trace_in_words(together)
        layers = range(len(trace["scale"]))
        kinds = ("lengthscale", "scale", "nugget")
        paths = {f"{kind}_{layer + 1}": trace[kind][layer] for kind in kinds for layer in layers}
        moving = {name: path for name, path in paths.items() if np.ptp(path) > 0.0}
        return inference_data(moving | {"log_density": trace["log_density"]})
