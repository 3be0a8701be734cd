"""`DGP`: a deep Gaussian process with the interface of a scikit-learn regressor."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, Self

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from deepemu.convergence import inference_data
from deepemu.core.inference import impute, sem
from deepemu.core.inference.m_step import Maximise, MStep, Sample
from deepemu.core.model.priors import Flat, Gamma, Independent, Prior
from deepemu.data.checks import (
    is_real,
    require_choice,
    require_flag,
    require_verbose,
    require_whole,
)
from deepemu.errors import ConvergenceWarning, InputError
from deepemu.estimators.base import BaseEmulator
from deepemu.runtime.progress import wants_progress
from deepemu.training.candidates import (
    Candidate,
    Deep,
    companions,
    kernels_in_words,
    layers_in_words,
    starting_params_of,
    trace_in_words,
)
from deepemu.training.layers import ESTIMATE, Layer, build_network, checked_layers, prior_by_name
from deepemu.training.plan import CHECK_EVERY, FEWEST_ROWS, N_FOLDS, Averaged, Drawn, Plan, Sampling

WIDEST_DEFAULT = 6
LONGEST_BLOCK = CHECK_EVERY
SAMPLED_NUGGET = Gamma(1.5, 3.9)
SWEEPS: dict[str, impute.Moves] = {"node": impute.NodeWise(), "layer": impute.LayerWise()}
M_STEPS: dict[str, MStep] = {"imputation": Maximise(), "full_bayes": Sample()}


class DGP(BaseEmulator):
    """Deep Gaussian-process emulator, trained by stochastic imputation with several chains.

    Parameters
    ----------
    depth : int
        Number of layers, the observed one included.
    width : int or None
        Nodes in each hidden layer; ``None``: number of inputs, but at most 6.
    kernel : {"matern52", "matern32", "squared_exponential"}
    lengthscale : {"ard", "shared"}
        One lengthscale per column that a node reads, or one a node.
    connect_input : bool
        Whether every layer also reads the global inputs.
    prior : {"gamma", "inverse_gamma", "reference", "none"} or a prior object
    nugget : float or "estimate"
        Nugget of the observed layer relative to its scale; "estimate" models noise. Hidden layers
        have 1e-6; plain Gaussian processes with a vote have 1e-8 where this is at most 1e-6.
    layers : sequence of Layer, optional
        Full control over the structure; replaces all arguments above.
    n_chains : int
        Independent chains whose mixture predicts.
    n_iter, burn_in, n_sweeps : int, float, int
        Iterations of stochastic EM, the share of them that is discarded before parameters are
        averaged (with stacking, half of the last 30 % of the iterations are averaged, whatever
        ``burn_in`` is), and sweeps of imputation in each; 50 sweeps come before the first.
    n_imputations : int
        Imputed networks kept of each chain.
    sweep : {"node", "layer"}
        Whether imputation moves one node at a time or a whole layer.
    bracket : float
        Width of the slice bracket in units of the mean accepted angle; ``inf``: the full circle.
    n_scoring : int
        Scoring steps of each maximisation; with full Bayes, moves of each node's parameters in an
        iteration.
    early_stopping : bool
        Whether to end training before ``n_iter`` iterations once the chains' paths are stationary.
        Every 20 iterations, from the 60th on and with four chains or more, the second half of the
        paths is cut in two. Training ends if from one part to the other the log density rose by
        less than a standard error over chains, and the squared changes of the parameters, in
        standard errors, are on average no more than 1.4 times those of chains that go nowhere.
        With stacking this holds for the first 70 % of ``n_iter``; the rest is always run. Full
        Bayes runs all iterations: sampled paths look stationary long before they are.
    stacking : bool
        Whether chains vote by how well they predict rows that they were trained without. With four
        chains and eight rows or more, each chain leaves out a quarter of the rows for the first
        70 % of the iterations and predicts them; two plain Gaussian processes do the same. The
        predictions set the chains' weights and a common scale of the standard deviations, and are
        what `loo` and `summary` show. Otherwise all chains count the same.
    inference : {"imputation", "full_bayes"}
        Whether lengthscales, nuggets and scales that are not given are estimated by stochastic EM,
        as in the paper, or sampled along with the hidden layers, so that the spread of predictions
        includes what is not known of them. With full Bayes a scale has the prior p(σ²) ∝ 1/σ²,
        ``trace_`` holds the sampled paths, and the imputed networks that are kept, ten iterations
        apart after ``n_iter``, have parameters of their own: nothing is averaged, and ``burn_in``
        is not used. A prior that depends on the range of a node's inputs ("reference") is only
        approximately that of the joint posterior, because hidden layers are imputed without it.
        A nugget that is sampled has a gamma(1.5, 3.9) prior unless another is given.
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
    """

    def __init__(
        self,
        depth: int = 2,
        width: int | None = None,
        kernel: str = "matern52",
        lengthscale: str = "ard",
        connect_input: bool = True,
        prior: str | Prior = "gamma",
        nugget: float | str = 1e-6,
        layers: Sequence[Layer] | None = None,
        n_chains: int = 8,
        n_iter: int = 200,
        burn_in: float = 0.75,
        n_sweeps: int = 5,
        n_imputations: int = 5,
        sweep: str = "node",
        bracket: float = 16.0,
        n_scoring: int = 1,
        early_stopping: bool = True,
        stacking: bool = True,
        inference: str = "imputation",
        random_state: Any = 0,
        device: str = "auto",
        n_jobs: int | None = -1,
        verbose: bool | None = None,
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

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The settings of the paper: one chain, 500 iterations, 50 imputations.

        Squared exponential, one lengthscale a node, nugget 1e-6, 10 sweeps an iteration, 75 %
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

    def _candidates(self, n_inputs: int, n_outputs: int, n_rows: int) -> list[Candidate]:
        require_flag("stacking", self.stacking)
        require_whole("n_chains", self.n_chains)
        require_whole("n_iter", self.n_iter)
        require_verbose(self.verbose)
        enough = self.n_chains >= N_FOLDS and n_rows >= FEWEST_ROWS and self.n_iter > 1
        stacks = self.stacking and enough
        if self.stacking and not enough:
            warnings.warn(
                f"No rows can be held out with n_chains={self.n_chains}, n_iter={self.n_iter} and "
                f"{n_rows} distinct rows, so nothing checks the intervals, which may be far too "
                f"narrow; use at least {N_FOLDS} chains, 2 iterations and {FEWEST_ROWS} rows, or "
                "pass stacking=False to do without.",
                ConvergenceWarning,
                stacklevel=3,
            )
        deep = self.candidate(n_inputs, n_outputs, N_FOLDS if stacks else 0)
        last = self._layers(n_inputs)[-1]
        return [deep, *companions(last.nugget, n_inputs, n_outputs)] if stacks else [deep]

    def candidate(self, n_inputs: int, n_outputs: int, n_folds: int) -> Deep:
        """The deep network alone, trained without folds of rows in turn."""
        require_choice(self.inference, "inference", tuple(M_STEPS))
        layers = self._layers(n_inputs)
        if self.inference == "full_bayes":
            _require_proper_scales(layers)
            layers = [_with_proper_prior(layer) for layer in layers]
        network = build_network(layers, n_inputs, n_outputs)
        label = f"DGP, {layers_in_words(network.depth)}, {kernels_in_words(layers)}"
        start, plan = starting_params_of(network, layers), self._plan(n_folds)
        return Deep(label, network, start, plan, self.n_chains)

    def _n_programs(self) -> int:
        return self.n_chains

    def _shows_progress(self) -> bool:
        return wants_progress(self.verbose)

    def _plan(self, n_folds: int) -> Plan:
        for name in ("n_sweeps", "n_imputations", "n_scoring"):
            require_whole(name, getattr(self, name))
        if not is_real(self.burn_in) or not 0 <= self.burn_in < 1:
            raise InputError(f"burn_in is {self.burn_in!r}; it must be at least 0 and below 1.")
        if not is_real(self.bracket) or not self.bracket > 0:
            raise InputError(f"bracket is {self.bracket!r}; it must be a positive number.")
        require_choice(self.sweep, "sweep", tuple(SWEEPS))
        require_flag("early_stopping", self.early_stopping)
        m_step = M_STEPS[self.inference]
        samples = m_step == Sample()
        between = Drawn(self.n_sweeps, self.n_scoring) if samples else Averaged()
        schedule = sem.Schedule(SWEEPS[self.sweep], LONGEST_BLOCK, m_step=m_step)
        return Plan(
            Sampling(schedule, float(self.bracket), between),
            self.n_iter,
            float(self.burn_in),
            self.n_sweeps,
            self.n_scoring,
            self.n_imputations,
            bool(self.early_stopping) and not samples,
            n_folds,
        )

    @property
    def trace_(self) -> dict[str, Any]:
        """Paths of the deep network's parameters on the natural scale: for each layer an array
        (chains, iterations, nodes, …); and of the log density.

        With stacking, each chain does without a quarter of the rows in the first 70 % of them.
        """
        check_is_fitted(self, "ensembles_")
        return trace_in_words(self._parts[0].trained.trace)

    def loo(self, conditional: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each training row, by chains trained without it.

        Each row is predicted by the chains that left out its quarter of the rows in the first part
        of training, and by the Gaussian processes refitted without it. ``conditional=True``
        gives closed-form leave-one-out instead: it keeps parameters and hidden variables that
        were found with the row present, and is much too kind for a deep network.
        """
        require_flag("conditional", conditional)
        if conditional:
            return self._closed_form_loo()
        return self._held_out()

    def to_arviz(self) -> Any:
        """The paths of `trace_` as ArviZ knows them, one variable for each kind and layer.

        Of iterations with all rows only: with stacking, the last 30 %. With
        ``inference="full_bayes"`` they are draws, else iterates of stochastic EM. What is held
        is left out. Needs ArviZ.
        """
        check_is_fitted(self, "ensembles_")
        trained = self._parts[0].trained
        together = jax.tree.map(lambda path: path[:, -trained.n_together :], trained.trace)
        trace = trace_in_words(together)
        layers = range(len(trace["scale"]))
        kinds = ("lengthscale", "scale", "nugget")
        paths = {f"{kind}_{layer + 1}": trace[kind][layer] for kind in kinds for layer in layers}
        moving = {name: path for name, path in paths.items() if np.ptp(path) > 0.0}
        return inference_data(moving | {"log_density": trace["log_density"]})


def _require_proper_scales(layers: Sequence[Layer]) -> None:
    if any(layer.scale == ESTIMATE for layer in layers[:-1]):
        raise InputError(
            "scale of a hidden layer is 'estimate', which inference='full_bayes' cannot sample: "
            "its posterior is improper; give a number or None."
        )


def _with_proper_prior(layer: Layer) -> Layer:
    """The layer with a prior on a nugget that is sampled: flat in it, all would be noise."""
    prior = prior_by_name(layer.prior)
    if layer.nugget != ESTIMATE or not isinstance(prior, Independent) or prior.nugget != Flat():
        return layer
    return dataclasses.replace(layer, prior=dataclasses.replace(prior, nugget=SAMPLED_NUGGET))
