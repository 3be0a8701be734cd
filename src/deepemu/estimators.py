"""`GP` and `DGP`: emulators with the interface of scikit-learn regressors."""

from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from deepemu import _boundary, _runtime, training
from deepemu._progress import wants_progress
from deepemu.core import impute, sem
from deepemu.core.network import Data, Network
from deepemu.core.priors import Prior
from deepemu.errors import InputError
from deepemu.layers import (
    ESTIMATE,
    Layer,
    build_network,
    checked_layers,
    is_real,
    require_choice,
    require_whole,
)
from deepemu.training import Plan, Trained
from deepemu.validation import (
    Replicates,
    Scaling,
    collapse_replicates,
    require_numbers,
    require_two_sites,
    require_varied_columns,
    scaling_of,
    site_means,
    warn_if_constant,
    without_spread,
)

WIDEST_DEFAULT = 6
LONGEST_BLOCK = training.CHECK_EVERY
STARTING_NUGGET = 1e-3
ROWS_FOR_A_GPU = 200
PAIR_TERMS_FOR_A_GPU = 5e9
SWEEPS: dict[str, impute.Moves] = {"node": impute.NodeWise(), "layer": impute.LayerWise()}


class _Emulator(MultiOutputMixin, RegressorMixin, BaseEstimator, metaclass=ABCMeta):
    """What every emulator does once it has an ensemble: predict, sample, score, grow."""

    random_state: Any
    device: str
    n_jobs: int | None

    @abstractmethod
    def _layers(self, n_inputs: int) -> list[Layer]:
        """The structure that the constructor's arguments describe."""

    @abstractmethod
    def _train(self, network: Network, layers: list[Layer], data: Data, seed: int) -> Trained:
        """Train from scratch."""

    @abstractmethod
    def _go_on(self, chains: list[sem.Chain], data: Data, seed: int) -> Trained:
        """Train on from where chains over fewer rows ended."""

    # --- fitting -----------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to inputs X (n, d) and outputs y (n,) or (n, q).

        Inputs and outputs are scaled inside; predictions come back in the units of y.
        """
        x, outputs = self._checked(X, y, ensure_min_samples=2)
        layers = self._layers(x.shape[1])
        rows = outputs.reshape(len(x), -1)
        network = build_network(layers, x.shape[1], rows.shape[1])
        warn_if_constant(rows)
        scaling = scaling_of(x, rows if _is_noisy(network) else site_means(x, rows))
        sites = _sites(network, scaling, x, rows)
        with self._training(len(sites.x)):
            data = _packed(sites)
            trained = self._train(network, layers, data, _seed_from(self.random_state))
        self._one_dimensional, self._scaling = outputs.ndim == 1, scaling
        return self._store(trained, sites, x.copy(), rows.copy())

    def _checked(self, X: ArrayLike, y: ArrayLike, **rules: Any) -> tuple[np.ndarray, np.ndarray]:
        """Finite doubles of matching lengths; scikit-learn's messages where they are not."""
        require_numbers(X, "X")
        require_numbers(y, "y")
        x, outputs = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, **rules
        )
        return x, np.asarray(outputs, dtype=np.float64)

    def _store(self, trained: Trained, sites: Replicates, x: np.ndarray, y: np.ndarray) -> Self:
        """All of the fitted state, at once and last, so that a failure changes nothing."""
        self._x_train, self._y_train, self._site_data = x, y, sites
        self._chains, self.ensemble_ = trained.chains, trained.ensemble
        self.trace_ = _trace_in_words(trained.trace)
        self.n_outputs_ = y.shape[1]
        return self

    def update(self, X_new: ArrayLike, y_new: ArrayLike) -> Self:
        """Add rows and go on training from the present state.

        A `DGP` runs a fifth of its iterations, and `trace_` shows those. Scaling is kept. Hidden
        variables of new rows start at their conditional mean given each chain's last imputation.
        """
        check_is_fitted(self, "ensemble_")
        x, outputs = self._checked(X_new, y_new, reset=False)
        outputs = outputs.reshape(len(x), -1)
        if outputs.shape[1] != self.n_outputs_:
            raise InputError(
                f"y_new has {outputs.shape[1]} column(s), but the emulator was fitted to "
                f"{self.n_outputs_}; pass one column per output."
            )
        require_varied_columns(self._x_train, x)
        rows_x = np.vstack([self._x_train, x])
        rows_y = np.vstack([self._y_train, outputs])
        sites = _sites(self.ensemble_.network, self._scaling, rows_x, rows_y)
        n_before = len(self._site_data.x)
        with self._training(len(sites.x)):
            data = _packed(sites)
            chains = _boundary.extend_chains(
                self.ensemble_.network, self._chains, self.ensemble_.data, data,
                n_before, len(sites.x) - n_before,
            )  # fmt: skip
            # With a fixed random_state, a seed of its own for each number of rows, which only
            # grows: the draws of the fit and of earlier updates are used up.
            seed = np.random.SeedSequence([_seed_from(self.random_state), len(rows_x)])
            trained = self._go_on(chains, data, int(seed.generate_state(1)[0]))
        return self._store(trained, sites, rows_x, rows_y)

    # --- using -------------------------------------------------------------------------------

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Mean (and standard deviation) of the outputs at the rows of X.

        The mean and variance of the mixture over all imputations of all chains. The variance is
        that of a new run, so it includes the nugget; it is accurate to a few thousandths of the
        nugget's share.
        """
        x = self._to_core(X)
        work = len(x) * self._pair_terms()
        with self._running(work >= PAIR_TERMS_FOR_A_GPU, len(x), len(self._site_data.x)):
            mean, var = _boundary.predict_mixture(self.ensemble_, x)
        mean = self._shape(self._scaling.mean_to_user(mean))
        return (mean, self._shape(self._scaling.std_to_user(np.sqrt(var)))) if return_std else mean

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Joint draws at the rows of X: (m, n_samples), or (m, q, n_samples) for 2-d y.

        Each draw takes one imputed network and draws every layer jointly over the rows.
        """
        require_whole("n_samples", n_samples)
        x = self._to_core(X)
        seed = _seed_from(random_state)
        with self._running(False, 1, max(len(x), len(self._site_data.x))):
            draws = _boundary.draw_joint(seed, self.ensemble_, x, int(n_samples))
        draws = self._scaling.mean_to_user(draws)
        return np.moveaxis(draws[..., 0] if self._one_dimensional else draws, 0, -1)

    def loo(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each training row with that row's input left out.

        Closed form, with all parameters kept. Exact for a `GP`. For a `DGP` it is conditional on
        hidden variables that were imputed with the row present, and therefore optimistic: use
        cross-validation for an honest score.
        """
        check_is_fitted(self, "ensemble_")
        with self._running(False, 1, len(self._site_data.x)):
            mean, var = _boundary.leave_one_out(self.ensemble_)
        rows = self._site_data.site_of_row
        mean, std = mean[rows], np.sqrt(var[rows])
        return (
            self._shape(self._scaling.mean_to_user(mean)),
            self._shape(self._scaling.std_to_user(std)),
        )

    def _running(
        self, worth_a_gpu: bool, n_programs: int, n_rows: int
    ) -> AbstractContextManager[None]:
        """The device and threads that the constructor asked for, for so many programs at once with
        matrices of so many rows."""
        runtime = _runtime.choose(self.device, self.n_jobs, worth_a_gpu)
        return _runtime.running(runtime, _runtime.blas_threads(runtime, n_programs, n_rows))

    def _training(self, n_rows: int) -> AbstractContextManager[None]:
        return self._running(n_rows >= ROWS_FOR_A_GPU, self._n_programs(), n_rows)

    def _n_programs(self) -> int:
        """How many programs training runs side by side."""
        return 1

    def _pair_terms(self) -> int:
        """Correlations of pairs of training rows that a prediction of one row adds up."""
        return len(self.ensemble_.weights) * len(self._site_data.x) ** 2

    def _to_core(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self, "ensemble_")
        return self._scaling.x_to_core(validate_data(self, X, dtype=np.float64, reset=False))

    def _shape(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._one_dimensional else values


class GP(_Emulator):
    """Gaussian-process emulator: one layer, one lengthscale per input, robust prior.

    Parameters
    ----------
    kernel : {"matern52", "matern32", "squared_exponential"}
    lengthscale : {"ard", "shared"}
    prior : {"reference", "gamma", "inverse_gamma", "none"} or a prior object
    nugget : float or "estimate"
        Relative to the scale. A small fixed nugget interpolates; "estimate" models noise.
    random_state : int, RandomState or None
        Seeds the random ones among the starting points of the optimiser.
    device : {"auto", "cpu", "gpu"}
        Where to compute; "auto": on a GPU where JAX sees one and the work is large enough to gain.
    n_jobs : int or None
        CPU threads; -1: all cores (or ``OMP_NUM_THREADS`` of them), None: one.

    Examples
    --------
    >>> import numpy as np
    >>> from deepemu import GP
    >>> x = np.linspace(0, 1, 8)[:, None]
    >>> emulator = GP().fit(x, np.sin(6 * x[:, 0]))
    >>> mean, std = emulator.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(3)) < 0.01)
    True
    """

    def __init__(
        self,
        kernel: str = "matern52",
        lengthscale: str = "ard",
        prior: str | Prior = "reference",
        nugget: float | str = 1e-6,
        random_state: Any = 0,
        device: str = "auto",
        n_jobs: int | None = -1,
    ) -> None:
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.prior = prior
        self.nugget = nugget
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs

    def _layers(self, n_inputs: int) -> list[Layer]:
        return [
            Layer(
                kernel=self.kernel,
                lengthscale=self.lengthscale,
                prior=self.prior,
                nugget=self.nugget,
            )
        ]

    def _train(self, network: Network, layers: list[Layer], data: Data, seed: int) -> Trained:
        (start,) = _starting_params(network, layers)
        return training.train_single_layer(network, data, start, seed)

    def _go_on(self, chains: list[sem.Chain], data: Data, seed: int) -> Trained:
        network = self.ensemble_.network
        start = chains[0].params[0]
        return training.train_single_layer(network, data, start, seed)


class DGP(_Emulator):
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
        have 1e-6.
    layers : sequence of Layer, optional
        Full control over the structure; replaces all arguments above.
    n_chains : int
        Independent chains whose mixture predicts.
    n_iter, burn_in, n_sweeps : int, float, int
        Iterations of stochastic EM, the share of them that is discarded before parameters are
        averaged, and sweeps of imputation in each.
    n_imputations : int
        Imputed networks kept of each chain.
    sweep : {"node", "layer"}
        Whether imputation moves one node at a time or a whole layer.
    bracket : float
        Width of the slice bracket in units of the mean accepted angle; ``inf``: the full circle.
    n_scoring : int
        Scoring steps of each maximisation.
    early_stopping : bool
        Whether to end training before ``n_iter`` iterations once the chains' paths are stationary.
        Every 20 iterations, from the 60th on and with four chains or more, the second half of the
        paths is cut in two. Training ends if from one part to the other the log density rose by
        less than a standard error over chains, and the squared changes of the parameters, in
        standard errors, are on average no more than 1.4 times those of chains that go nowhere.
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
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The settings of the paper: one chain, 500 iterations, 50 imputations.

        Squared exponential, one lengthscale a node, nugget 1e-6, 10 sweeps an iteration, 75 %
        burn-in, full-circle brackets; ``connect_input=True`` gives SI-IC. ``changes`` override.
        As in the authors' software, lengthscales have a gamma(1.6, 0.3) prior; each M-step takes
        up to 10 scoring steps from the last estimate.
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

    def _n_programs(self) -> int:
        require_whole("n_chains", self.n_chains)
        return self.n_chains

    def _plan(self, n_iter: int) -> Plan:
        for name in ("n_chains", "n_iter", "n_sweeps", "n_imputations", "n_scoring"):
            require_whole(name, getattr(self, name))
        if not is_real(self.burn_in) or not 0 <= self.burn_in < 1:
            raise InputError(f"burn_in is {self.burn_in!r}; it must be at least 0 and below 1.")
        if not is_real(self.bracket) or not self.bracket > 0:
            raise InputError(f"bracket is {self.bracket!r}; it must be a positive number.")
        require_choice(self.sweep, "sweep", tuple(SWEEPS))
        if not isinstance(self.early_stopping, bool | np.bool_):
            raise InputError(
                f"early_stopping is {self.early_stopping!r}; it must be True or False."
            )
        return Plan(
            sem.Schedule(SWEEPS[self.sweep], LONGEST_BLOCK),
            n_iter,
            float(self.burn_in),
            self.n_sweeps,
            self.n_scoring,
            float(self.bracket),
            self.n_imputations,
            bool(self.early_stopping),
        )

    def _train(self, network: Network, layers: list[Layer], data: Data, seed: int) -> Trained:
        plan = self._plan(self.n_iter)
        params = _starting_params(network, layers)
        n_sites = int(np.sum(np.asarray(data.counts) > 0))
        latents = training.starting_latents(network, np.asarray(data.x)[:n_sites], data.x.shape[0])
        chains = training.start_chains(plan, params, latents, self.n_chains)
        return training.train(seed, network, plan, chains, data, wants_progress(self.verbose))

    def _go_on(self, chains: list[sem.Chain], data: Data, seed: int) -> Trained:
        """A fifth of the iterations: the chains start where they were."""
        plan = self._plan(max(self.n_iter // 5, 1))
        network = self.ensemble_.network
        return training.train(seed, network, plan, chains, data, wants_progress(self.verbose))


def _seed_from(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def _packed(sites: Replicates) -> Data:
    """Sites as the core takes them: replicates' squares matter only in sum."""
    return _boundary.pack(sites.x, sites.y, sites.counts, sites.squares.sum(axis=0))


def _is_noisy(network: Network) -> bool:
    """Whether outputs scatter about the emulated function, so that replicates differ."""
    return network.layers[-1].free_nugget


def _sites(network: Network, scaling: Scaling, x: np.ndarray, y: np.ndarray) -> Replicates:
    """The training data in core units, one row for each distinct input."""
    sites = collapse_replicates(scaling.x_to_core(x), scaling.y_to_core(y))
    require_two_sites(sites, len(x))
    return sites if _is_noisy(network) else without_spread(sites)


def _starting_params(network: Network, layers: list[Layer]) -> Any:
    scales = [float(layer.scale) if is_real(layer.scale) else 1.0 for layer in layers]
    nuggets = [
        STARTING_NUGGET if layer.nugget == ESTIMATE else float(layer.nugget) for layer in layers
    ]
    return training.starting_params(network, scales, nuggets)


def _trace_in_words(trace: sem.Trace) -> dict[str, Any]:
    """Paths on the natural scale: for each layer an array (chains, iterations, nodes, …)."""
    return {
        "lengthscale": [np.exp(layer.log_lengthscale) for layer in trace.params],
        "scale": [np.exp(layer.log_scale) for layer in trace.params],
        "nugget": [np.exp(layer.log_nugget) for layer in trace.params],
        "log_density": np.asarray(trace.log_density),
    }
