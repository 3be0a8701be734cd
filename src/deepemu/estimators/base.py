"""The base class of all emulators: fit, predict, sample, score and update, as in scikit-learn."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from deepemu import convergence
from deepemu.core.nodes.solver import Solver
from deepemu.core.nodes.solvers import EXACT, SOLVERS
from deepemu.data.checks import require, require_value
from deepemu.data.frames import array_of, require_numbers
from deepemu.data.known import known_of
from deepemu.data.names import names_of_outputs, numbered
from deepemu.data.runs import Columns, Runs, grown, runs_of
from deepemu.data.scaling import warn_if_constant
from deepemu.data.sites import require_varied_columns
from deepemu.errors import InputError, Message, Setting
from deepemu.estimators.predictor import Pair, Predictor, given_of
from deepemu.estimators.regressor import seed_from
from deepemu.files.atomic import PathLike
from deepemu.files.checkpoint import opened
from deepemu.observations.choice import observation_of
from deepemu.observations.model import Observation
from deepemu.plots import diagnostics
from deepemu.posterior.comparison import Comparison
from deepemu.posterior.mixtures import Moments
from deepemu.posterior.posterior import Posterior
from deepemu.posterior.stacking import judged_of, stack
from deepemu.posterior.summary import Report, report_on
from deepemu.runtime.devices import Machine
from deepemu.training.chains import Trained
from deepemu.training.keeper import NOTHING_KEPT, Keeper
from deepemu.training.plan import FEWEST_ROWS, N_FOLDS
from deepemu.training.structures import Problem, Structure, without_noise, without_twins

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS_FOR_A_GPU = 200
AUTO = "auto"
# Of deep and of plain processes.
ROWS_FOR_VECCHIA = (400, 1500)


class BaseEmulator(Predictor):
    """An emulator with the interface of a scikit-learn regressor.

    The fit is ``posterior_``.
    """

    random_state: Any
    observation: Any
    solver: Any
    checkpoint: PathLike | None

    @abstractmethod
    def _structures(self, problem: Problem, n_sites: int) -> list[Structure]:
        """The structures that the constructor's arguments describe."""

    @abstractmethod
    def _last_nugget(self) -> object:
        """The nugget of the observed layer."""

    # --- fitting --------------------------------------------------------------------------------

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        noise_variance: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Self:
        """Fit to inputs X (n, d) and outputs y (n,) or (n, q).

        Inputs and outputs are scaled inside; predictions come back in the units of y. What is known
        of each output is a number, or an array (n,) or (n, q): the variance of its noise, if that
        is normal; the exposure of a count, in which the rate is one of a unit of it; the number of
        trials of a binomial count.
        """
        x, outputs = self._checked(X, y, fewest=2, reset=True)
        rows, given = outputs.reshape(len(x), -1), given_of(noise_variance, exposure, trials)
        observation = self._observation_of(noise_variance is not None)
        known = known_of(observation.known, given, rows.shape)
        check_outputs(observation, rows, known)
        columns = self._columns(y, x.shape[1], outputs)
        solvers = solvers_of(self.solver)
        runs = runs_of(x, rows, columns, observation, known)
        solver, of_plain = solvers(runs.sites.n_sites, observation)
        problem = Problem(rows.shape[1], observation, solver, columns.inputs, of_plain)
        structures = self._structures(problem, runs.sites.n_sites)
        warn_if_constant(rows)
        with self._training(runs.sites.n_sites):
            seed, keeper = self._seed_and_keeper(runs)
            trained, decisions = self._train(structures, seed, runs, keeper)
        self._store(runs, trained, decisions)
        if not any(each.interrupted for each in trained):
            keeper.remove()
        return self

    def _observation_of(self, noise_is_known: bool) -> Observation:
        """How outputs arise, with normal noise of known variance or not."""
        return observation_of(self.observation, self._last_nugget(), noise_is_known)

    def _seed_and_keeper(self, runs: Runs) -> tuple[int, Keeper]:
        """The seed of the fit and where its states go; a fit that goes on has the seed of the first
        one."""
        seed = seed_from(self.random_state)
        if self.checkpoint is None:
            return seed, NOTHING_KEPT
        settings, says = self.get_params(deep=False), self._shows_progress()
        found = opened(self.checkpoint, type(self).__name__, settings, runs, seed, says)
        return found.seed, found

    def _columns(self, y: Any, n_inputs: int, outputs: np.ndarray) -> Columns:
        named = hasattr(self, "feature_names_in_")
        inputs = tuple(self.feature_names_in_) if named else numbered("x", n_inputs)
        n_outputs = outputs.size // len(outputs)
        return Columns(inputs, names_of_outputs(y, n_outputs), named, outputs.ndim == 1)

    def _train(
        self, structures: list[Structure], seed: int, runs: Runs, keeper: Keeper
    ) -> tuple[list[Trained], tuple[str, ...]]:
        """The trained structures, and the decisions made on the way."""
        shows = self._shows_progress()

        def train(some: list[Structure], first: int) -> list[Trained]:
            return [
                keeper.train(each, child_seed(seed, place), runs.sites, shows)
                for place, each in enumerate(some, first)
            ]

        trained = train(structures, 0)
        return trained + train(without_noise(trained, runs.sites), len(trained)), ()

    def _checked(
        self, X: ArrayLike, y: ArrayLike, fewest: int, reset: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finite doubles of matching lengths; scikit-learn's messages where they are not."""
        require_numbers(X, "X")
        require_numbers(y, "y")
        return self._checked_rows(X, array_of(y), fewest, reset)

    def _store(self, runs: Runs, trained: list[Trained], decisions: tuple[str, ...]) -> Self:
        """Store the fitted state, at once and last, so that a failure changes nothing."""
        judged = judged_of(runs, trained[0].structure.observation)
        stacked = stack(trained, judged)
        report = report_on(trained, stacked, judged, decisions)
        self._restore(
            Posterior(runs, tuple(trained), stacked, report, Machine(self.device, self.n_jobs))
        )
        report.warn()
        return self

    def _restore(self, posterior: Posterior) -> Self:
        """The fitted state, from the posterior."""
        runs = posterior.runs
        self.posterior_, self.weights_ = posterior, posterior.stacked.weights
        self.n_features_in_, self.n_outputs_ = runs.x.shape[1], runs.y.shape[1]
        if runs.columns.compares_names:
            self.feature_names_in_ = np.array(runs.columns.inputs, dtype=object)
        return self

    def update(
        self,
        X_new: ArrayLike,
        y_new: ArrayLike,
        noise_variance: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Self:
        """Add rows and resume training from the present state.

        Deep structures run a fifth of their iterations. Scaling is kept. Latents of new rows start
        at their conditional mean given each chain's last imputation. All structures predict new
        rows before they are added, and these predictions join the held-out ones.
        """
        before = self._fitted()
        x, outputs = self._checked(X_new, y_new, fewest=1, reset=False)
        outputs = outputs.reshape(len(x), -1)
        if outputs.shape[1] != self.n_outputs_:
            raise InputError(
                f"y_new has {outputs.shape[1]} column(s), but the emulator was fitted to "
                f"{self.n_outputs_}; pass one column per output."
            )
        before.runs.columns.require_output_names(y_new)
        given = given_of(noise_variance, exposure, trials)
        known = known_of(before.observation.known, given, outputs.shape)
        check_outputs(before.observation, outputs, known)
        require_varied_columns(before.runs.x, x)
        runs = grown(before.runs, x, outputs, before.observation, known)
        # With a fixed random_state, a seed of its own for each number of rows, which only grows:
        # the draws of the fit and of earlier updates are not used again.
        seed = child_seed(seed_from(self.random_state), len(runs.x))
        n_old, shows = before.runs.sites.n_sites, self._shows_progress()
        with self._training(runs.sites.n_sites):
            trained = [
                each.structure.resume(child_seed(seed, place), each, runs.sites, n_old, shows)
                for place, each in enumerate(without_twins(before.structures, runs.sites))
            ]
        return self._store(runs, trained, ())

    # --- what was learnt ------------------------------------------------------------------------

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the columns of X: those of the DataFrame of the fit, or x1, x2, …"""
        return self._fitted().runs.columns.inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the columns of y: those of the DataFrame or Series of the fit, or y1, y2, …"""
        return self._fitted().runs.columns.outputs

    @property
    def training_inputs(self) -> np.ndarray:
        """The training inputs X (n, d)."""
        return self._fitted().runs.x

    @property
    def training_outputs(self) -> np.ndarray:
        """The training outputs y (n, q)."""
        return self._fitted().runs.y

    def name_columns(self, inputs: Sequence[str], outputs: Sequence[str]) -> Self:
        """Give the columns of a fit names for figures, files and reports."""
        posterior = self._fitted()
        counts = {"inputs": (inputs, self.n_features_in_), "outputs": (outputs, self.n_outputs_)}
        for what, (names, count) in counts.items():
            named = not isinstance(names, str) and len(set(names)) == count == len(names)
            require_value(named, what, names, f"{count} different name(s)")
        self.posterior_ = posterior.renamed(map(str, inputs), map(str, outputs))
        return self

    # --- checking -------------------------------------------------------------------------------

    @abstractmethod
    def loo(self) -> Pair:
        """Mean and standard deviation at each training row, held out."""

    def _closed_form_loo(self) -> Pair:
        """Leave-one-out over sites, given the parameters and latents that were found with all of
        them."""
        return self._shaped(self._fitted().leave_one_out())

    def compared_runs(self) -> Comparison:
        """Training outputs (n, q) beside the predictive distributions of `loo`: mean, standard
        deviation, 95 % interval, rank and CRPS."""
        self._held_out()
        return self._fitted().compared_runs()

    def _held_out(self) -> Pair:
        """Held-out mean and standard deviation, the result of `loo` where rows were held out."""
        held_out = self._fitted().held_out
        if held_out is None:
            conditional = Setting("loo(conditional=True)")
            raise InputError(
                Message(
                    "No rows were held out in this fit; fit with ",
                    Message(Setting("stacking", True), ", "),
                    f"at least {N_FOLDS} chains and {FEWEST_ROWS} distinct rows",
                    Message(", or ask for ", conditional), ".",
                )
            )  # fmt: skip
        return self._shaped(held_out)

    def summary(self) -> Report:
        """The report of the fit: structures, weights, held-out scores, convergence."""
        return self._fitted().report

    def plot_diagnostics(self, output: int | str = 0) -> "Figure":
        """Held-out predictions against the training outputs, weights and traces, as a figure.

        Predictions are those of rows that were held out, or of closed-form leave-one-out where none
        were; the title says which. The ``output`` is a number, from 0, or a name.
        Needs matplotlib. The figure is shown by a notebook, or saved by its ``savefig``.
        """
        return diagnostics.diagnostics_of(self._fitted(), output)

    def prediction_convergence(self, X: ArrayLike) -> dict[str, np.ndarray]:
        """Whether the deep chains agree about the rows of X: split R-hat and effective sample size.

        Both are of the means of the imputed networks, chain by chain, and have the shape of the
        mean of `predict`. An R-hat far above 1 says that chains are in different modes, which the
        mixture's standard deviation includes. Chains of weight zero are omitted.
        """
        means = self._fitted().chain_means(self._checked_inputs(X))
        require(
            means.size > 0,
            "No chain with imputed layers has a weight here; there is nothing to compare.",
        )
        size = convergence.effective_sample_size(means)
        found = {"rhat": convergence.split_rhat(means), "effective_sample_size": size}
        return {name: self.posterior_.runs.shaped(of) for name, of in found.items()}

    # --- inside ---------------------------------------------------------------------------------

    def _training(self, n_sites: int) -> Any:
        return Machine(self.device, self.n_jobs).running(
            n_sites >= ROWS_FOR_A_GPU, self._n_programs(), n_sites
        )

    def _n_programs(self) -> int:
        """How many programs training runs side by side."""
        return 1

    def _shows_progress(self) -> bool:
        return False

    def _shaped(self, moments: Moments) -> Pair:
        shaped = self.posterior_.runs.shaped
        return shaped(moments.mean), shaped(moments.std)


def check_outputs(observation: Observation, outputs: np.ndarray, known: np.ndarray | None) -> None:
    """Refuse outputs that cannot have come from the model; a model of which nothing can be known
    takes them alone."""
    observation.check(outputs, *(() if known is None else (known,)))


def solvers_of(choice: object) -> Callable[[int, Observation], tuple[Solver, Solver]]:
    """The solvers of deep and of plain processes, given the number of sites."""
    if isinstance(choice, str) and choice == AUTO:
        return _solvers_for
    listed = ", ".join(map(repr, (AUTO, *SOLVERS)))
    is_solver = not isinstance(choice, type) and hasattr(choice, "log_density_moving")
    is_name = isinstance(choice, str) and choice in SOLVERS
    require(is_name or is_solver, f"solver is {choice!r}; it must be {listed} or a solver.")
    solver = SOLVERS[choice] if is_name else choice  # type: ignore[index]
    return lambda n_sites, observation: (solver, solver)  # type: ignore[return-value]


def _solvers_for(n_sites: int, observation: Observation) -> tuple[Solver, Solver]:
    """Exact ones where rows are few; imputed latents of plain processes are many as early as those
    of deep ones."""
    few, (rows, rows_of_plain) = EXACT, ROWS_FOR_VECCHIA
    most = rows, rows if observation.imputed else rows_of_plain
    deep, plain = (SOLVERS["vecchia"] if n_sites >= each else few for each in most)
    return deep, plain


def child_seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
