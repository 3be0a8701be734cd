"""What every emulator does: fit its structures, weigh them, predict, sample, score, grow."""

import dataclasses
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from deepemu import convergence
from deepemu.core.ensemble import Ensemble
from deepemu.data.checks import place_of, require_numbers, require_whole
from deepemu.data.names import names_of_outputs, numbered
from deepemu.data.scaling import Scaling, constant_columns, scaling_of, warn_if_constant
from deepemu.data.sites import (
    Replicates,
    collapse_replicates,
    differing_replicates,
    require_two_sites,
    require_varied_columns,
    site_means,
    without_spread,
)
from deepemu.ensembles import prediction
from deepemu.errors import InputError
from deepemu.plots import diagnostics
from deepemu.posterior import stacking
from deepemu.posterior.stacking import Observed, Part, Stacked
from deepemu.posterior.summary import Report, of
from deepemu.runtime import devices
from deepemu.training.candidates import Candidate, is_noisy
from deepemu.training.plan import FEWEST_ROWS, N_FOLDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS_FOR_A_GPU = 200
PAIR_TERMS_FOR_A_GPU = 5e9


@dataclass(frozen=True)
class Fitted:
    """Training rows in user units, their distinct inputs in core units, and the way between.

    If the columns of X had names, those of new rows are compared with them.
    """

    x: np.ndarray
    y: np.ndarray
    sites: Replicates
    scaling: Scaling
    one_dimensional: bool
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    compares_names: bool


class BaseEmulator(MultiOutputMixin, RegressorMixin, BaseEstimator, metaclass=ABCMeta):
    """An emulator with the interface of a scikit-learn regressor."""

    random_state: Any
    device: str
    n_jobs: int | None

    @abstractmethod
    def _candidates(self, n_inputs: int, n_outputs: int, n_rows: int) -> list[Candidate]:
        """The structures that the constructor's arguments describe, all of one noise model.

        ``n_rows`` counts distinct inputs.
        """

    # --- fitting -----------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to inputs X (n, d) and outputs y (n,) or (n, q).

        Inputs and outputs are scaled inside; predictions come back in the units of y.
        """
        x, outputs = self._checked(X, y, ensure_min_samples=2)
        rows = outputs.reshape(len(x), -1)
        candidates = self._candidates(x.shape[1], rows.shape[1], len(np.unique(x, axis=0)))
        noisy = is_noisy(candidates[0])
        warn_if_constant(rows)
        scaling = scaling_of(x, rows if noisy else site_means(x, rows))
        sites = _sites(noisy, scaling, x, rows)
        seed = seed_from(self.random_state)
        with self._training(len(sites.x)):
            found = self._train(candidates, seed, sites, _observed(noisy, sites, scaling, rows))
        named = hasattr(self, "feature_names_in_")
        names = tuple(self.feature_names_in_) if named else numbered("x", x.shape[1])
        data = Fitted(
            x.copy(), rows.copy(), sites, scaling, outputs.ndim == 1,
            names, names_of_outputs(y, rows.shape[1]), named,
        )  # fmt: skip
        return self._store(*found, data)

    def _train(
        self, candidates: list[Candidate], seed: int, sites: Replicates, observed: Observed
    ) -> tuple[list[Part], tuple[str, ...]]:
        """The trained structures, and what was decided on the way."""
        shows = self._shows_progress()
        parts = [
            Part(each, each.train(child_seed(seed, place), sites, shows))
            for place, each in enumerate(candidates)
        ]
        return parts, ()

    def _checked(self, X: ArrayLike, y: ArrayLike, **rules: Any) -> tuple[np.ndarray, np.ndarray]:
        """Finite doubles of matching lengths; scikit-learn's messages where they are not."""
        require_numbers(X, "X")
        require_numbers(y, "y")
        x, outputs = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, **rules
        )
        return x, np.asarray(outputs, dtype=np.float64)

    def _store(self, parts: list[Part], decisions: tuple[str, ...], data: Fitted) -> Self:
        """All of the fitted state, at once and last, so that a failure changes nothing."""
        noisy = is_noisy(parts[0].candidate)
        observed = _observed(noisy, data.sites, data.scaling, data.y)
        stacked = stacking.stack_parts(parts, observed)
        found = dataclasses.replace(of(parts, stacked, observed), decisions=decisions)
        self._restore(data, parts, stacked, found)
        found.warn()
        return self

    def _restore(self, data: Fitted, parts: list[Part], stacked: Stacked, found: Report) -> Self:
        """The fitted state, from what determines all of it."""
        ensembles = stacking.weighted_ensembles(parts, stacked.weights)
        self._data, self._parts, self._stacked, self._report = data, parts, stacked, found
        self.ensembles_, self.n_outputs_ = ensembles, data.y.shape[1]
        self.weights_ = stacked.weights
        self.n_features_in_ = data.x.shape[1]
        if data.compares_names:
            self.feature_names_in_ = np.array(data.input_names, dtype=object)
        return self

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the columns of X: those of the DataFrame of the fit, or x1, x2, …"""
        check_is_fitted(self, "ensembles_")
        return self._data.input_names

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the columns of y: those of the DataFrame or Series of the fit, or y1, y2, …"""
        check_is_fitted(self, "ensembles_")
        return self._data.output_names

    @property
    def training_inputs(self) -> np.ndarray:
        """The rows of X (n, d) that the emulator has learnt from."""
        check_is_fitted(self, "ensembles_")
        return self._data.x

    @property
    def training_outputs(self) -> np.ndarray:
        """The rows of y (n, q) that the emulator has learnt from."""
        check_is_fitted(self, "ensembles_")
        return self._data.y

    def name_columns(self, inputs: Sequence[str], outputs: Sequence[str]) -> Self:
        """Give the columns of a fit names for figures, files and reports."""
        check_is_fitted(self, "ensembles_")
        counts = {"inputs": (inputs, self.n_features_in_), "outputs": (outputs, self.n_outputs_)}
        for what, (names, count) in counts.items():
            if isinstance(names, str) or len(set(names)) != count or len(names) != count:
                raise InputError(f"{what} is {names!r}; it must be {count} different name(s).")
        self._data = dataclasses.replace(
            self._data,
            input_names=tuple(str(name) for name in inputs),
            output_names=tuple(str(name) for name in outputs),
        )
        return self

    def update(self, X_new: ArrayLike, y_new: ArrayLike) -> Self:
        """Add rows and go on training from the present state.

        Deep structures run a fifth of their iterations. Scaling is kept. Hidden variables of new
        rows start at their conditional mean given each chain's last imputation. All structures
        predict new rows before they are added, and these predictions join the held-out ones.
        """
        check_is_fitted(self, "ensembles_")
        x, outputs = self._checked(X_new, y_new, reset=False)
        outputs = outputs.reshape(len(x), -1)
        if outputs.shape[1] != self.n_outputs_:
            raise InputError(
                f"y_new has {outputs.shape[1]} column(s), but the emulator was fitted to "
                f"{self.n_outputs_}; pass one column per output."
            )
        before = self._data
        require_varied_columns(before.x, x)
        rows_x, rows_y = np.vstack([before.x, x]), np.vstack([before.y, outputs])
        sites = _sites(is_noisy(self._parts[0].candidate), before.scaling, rows_x, rows_y)
        # With a fixed random_state, a seed of its own for each number of rows, which only grows:
        # the draws of the fit and of earlier updates are used up.
        seed = child_seed(seed_from(self.random_state), len(rows_x))
        n_old, shows = len(before.sites.x), self._shows_progress()
        with self._training(len(sites.x)):
            parts = [
                Part(c, c.go_on(child_seed(seed, place), trained, sites, n_old, shows))
                for place, (c, trained) in enumerate((p.candidate, p.trained) for p in self._parts)
            ]
        grown = dataclasses.replace(before, x=rows_x, y=rows_y, sites=sites)
        return self._store(parts, (), grown)

    # --- using -------------------------------------------------------------------------------

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Mean (and standard deviation) of the outputs at the rows of X.

        The mean and variance of the mixture over all imputations of all chains, weighted, times
        the scale that held-out predictions ask for. The variance is that of a new run, so it
        includes the nugget; it is accurate to a few thousandths of the nugget's share.
        """
        x = self._to_core(X)
        work = len(x) * self._pair_terms()
        with self._running(work >= PAIR_TERMS_FOR_A_GPU, len(x), len(self._data.sites.x)):
            mean, var = prediction.predict_mixture(self.ensembles_, x)
        return self._in_user_units(mean, var, return_std)

    def _predict_rows(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (m, q) at rows whose columns are known to be in order."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            mean, std = self.predict(x, return_std=True)
        return np.reshape(mean, (len(x), -1)), np.reshape(std, (len(x), -1))

    def _left_out_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """What `loo` gives, (n, q)."""
        mean, std = self.loo()
        return np.reshape(mean, self._data.y.shape), np.reshape(std, self._data.y.shape)

    def _input_range(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest value (d,) of each input."""
        return self._data.x.min(axis=0), self._data.x.max(axis=0)

    def _site_inputs(self) -> np.ndarray:
        """The distinct rows of X, in the order of the hidden variables."""
        scaling = self._data.scaling
        return scaling.x_low + scaling.x_span * self._data.sites.x

    def _in_user_units(
        self, mean: np.ndarray, var: np.ndarray, return_std: bool
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        mean = self._shape(self._data.scaling.mean_to_user(mean))
        std = self._data.scaling.std_to_user(np.sqrt(var) * self._stacked.scale)
        return (mean, self._shape(std)) if return_std else mean

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Joint draws at the rows of X: (m, n_samples), or (m, q, n_samples) for 2-d y.

        Each draw takes one imputed network and draws every layer jointly over the rows; its
        distance from the mean is scaled as the standard deviation of `predict` is.
        """
        require_whole("n_samples", n_samples)
        x = self._to_core(X)
        seed = seed_from(random_state)
        with self._running(False, 1, max(len(x), len(self._data.sites.x))):
            draws = prediction.draw_joint(seed, self.ensembles_, x, int(n_samples))
            if np.any(self._stacked.scale != 1.0):
                mean, _ = prediction.predict_mixture(self.ensembles_, x)
                draws = mean + self._stacked.scale * (draws - mean)
        draws = self._data.scaling.mean_to_user(draws)
        return np.moveaxis(draws[..., 0] if self._data.one_dimensional else draws, 0, -1)

    # --- checking ----------------------------------------------------------------------------

    @abstractmethod
    def loo(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each training row, without it."""

    def _closed_form_loo(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each training row with its site left out, given the
        parameters and hidden variables that were found with it."""
        check_is_fitted(self, "ensembles_")
        with self._running(False, 1, len(self._data.sites.x)):
            moments = prediction.leave_one_out(self.ensembles_)
        return self._at_rows(moments.mean, np.asarray(moments.var) * self._stacked.scale**2)

    def _at_rows(self, mean: Any, var: Any) -> tuple[np.ndarray, np.ndarray]:
        """Moments at sites as mean and standard deviation at training rows, in user units."""
        rows = self._data.sites.site_of_row
        return (
            self._shape(self._data.scaling.mean_to_user(np.asarray(mean)[rows])),
            self._shape(self._data.scaling.std_to_user(np.sqrt(np.asarray(var)[rows]))),
        )

    def _held_out(self) -> tuple[np.ndarray, np.ndarray]:
        """What `loo` gives where rows were held out."""
        check_is_fitted(self, "ensembles_")
        held_out = self._stacked.held_out
        if held_out is None:
            raise InputError(
                f"No rows were held out in this fit; fit with stacking=True, at least {N_FOLDS} "
                f"chains and {FEWEST_ROWS} distinct rows, or ask for loo(conditional=True)."
            )
        return self._at_rows(held_out.mean, held_out.var)

    def summary(self) -> Report:
        """What the fit found, for the terminal: structures, weights, scores, convergence."""
        check_is_fitted(self, "ensembles_")
        return self._report

    def _reservations(self) -> tuple[str, ...]:
        """What a fit warned of that is not in the report, from what a file holds too."""
        data, first = self._data, self._parts[0]
        found = []
        if any(part.trained.interrupted for part in self._parts):
            found.append("Training was interrupted: chains have fewer iterations than asked for.")
        if not is_noisy(first.candidate) and differing_replicates(data.x, data.y):
            found.append(
                "Inputs occur more than once with different outputs; the emulator was told that "
                "there is no noise, and uses their means."
            )
        constant = constant_columns(data.y)
        return (*found, *(f"All outputs {data.output_names[k]} are equal." for k in constant))

    def plot_diagnostics(self, output: int | str = 0) -> "Figure":
        """Left-out predictions against the training outputs, and what the chains did, as a figure.

        Predictions are those of rows that were held out, or of closed-form leave-one-out where none
        were; the title says which. The ``output`` is a number, from 0, or a name.
        Needs matplotlib. The figure is shown by a notebook, or saved by its ``savefig``.
        """
        k = self._output_number(output)
        held_out = self._stacked.held_out is not None
        left_out = self._held_out() if held_out else self._closed_form_loo()
        mean, std = (np.reshape(each, self._data.y.shape) for each in left_out)
        structures = self.summary().lines[:-1]
        deep = max(self._deep_votes(), key=lambda voter: voter[1].sum(), default=None)
        return diagnostics.plot_diagnostics(
            self._data.y[:, k], mean[:, k], std[:, k],
            weights=[line.weight for line in structures],
            labels=[line.label for line in structures],
            predictions="Held-out" if held_out else "Conditional leave-one-out",
            output=self.output_names[k],
            **({} if deep is None else _late_trace(deep[0])),
        )  # fmt: skip

    def _output_number(self, output: int | str) -> int:
        """The place of an output that is given by number or by name."""
        check_is_fitted(self, "ensembles_")
        return place_of(output, "output", self.output_names)

    def prediction_convergence(self, X: ArrayLike) -> dict[str, np.ndarray]:
        """Whether the deep chains agree about the rows of X: split R-hat and effective sample size.

        Both are of the means of the imputed networks, chain by chain, and have the shape of the
        mean of `predict`. An R-hat far above 1 says that chains explain the data differently, which
        the mixture's standard deviation includes. Chains without a vote are left out.
        """
        x = self._to_core(X)
        voices = [
            (_one_by_one(part.trained.ensemble), np.flatnonzero(part.trained.ensemble.chain == k))
            for part, votes in self._deep_votes()
            for k in np.flatnonzero(votes)
        ]
        if not voices:
            raise InputError("No deep chain has a vote here; there is nothing to agree about.")
        n_kept = min(len(members) for _, members in voices)
        with self._running(False, len(x), len(self._data.sites.x)):
            means = [
                prediction.predict_chains([(single, k) for k in members[:n_kept]], x).mean
                for single, members in voices
            ]
        return {
            "rhat": self._shape(convergence.split_rhat(np.stack(means))),
            "effective_sample_size": self._shape(
                convergence.effective_sample_size(np.stack(means))
            ),
        }

    def _votes(self) -> list[tuple[Part, np.ndarray]]:
        """Structures and the weights of their chains."""
        check_is_fitted(self, "ensembles_")
        return stacking.by_part(self._parts, self.weights_)

    def _deep_votes(self) -> list[tuple[Part, np.ndarray]]:
        return [(part, votes) for part, votes in self._votes() if part.candidate.network.depth > 1]

    # --- running -----------------------------------------------------------------------------

    def _running(
        self, worth_a_gpu: bool, n_programs: int, n_rows: int
    ) -> AbstractContextManager[None]:
        """The device and threads that the constructor asked for, for so many programs at once with
        matrices of so many rows."""
        runtime = devices.choose(self.device, self.n_jobs, worth_a_gpu)
        return devices.running(runtime, devices.blas_threads(runtime, n_programs, n_rows))

    def _training(self, n_rows: int) -> AbstractContextManager[None]:
        return self._running(n_rows >= ROWS_FOR_A_GPU, self._n_programs(), n_rows)

    def _n_programs(self) -> int:
        """How many programs training runs side by side."""
        return 1

    def _shows_progress(self) -> bool:
        return False

    def _pair_terms(self) -> int:
        """Correlations of pairs of training rows that a prediction of one row adds up."""
        n_members = sum(np.count_nonzero(each.weights) for each in self.ensembles_)
        return int(n_members) * len(self._data.sites.x) ** 2

    def _to_core(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self, "ensembles_")
        return self._data.scaling.x_to_core(validate_data(self, X, dtype=np.float64, reset=False))

    def _shape(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._data.one_dimensional else values


def _late_trace(part: Part) -> dict[str, Any]:
    """The log density of the iterations with all rows, as `plotting.plot_diagnostics` takes it."""
    trained = part.trained
    path = np.asarray(trained.trace.log_density)[:, -trained.n_together :]
    return {"trace": path, "traced": part.candidate.label}


def _one_by_one(ensemble: Ensemble) -> Ensemble:
    """The ensemble with each member as a chain of its own."""
    n = len(ensemble.weights)
    return dataclasses.replace(
        ensemble,
        chain=np.arange(n),  # type: ignore[arg-type]
        weights=np.full(n, 1.0 / n),  # type: ignore[arg-type]
    )


def seed_from(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def child_seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _observed(noisy: bool, sites: Replicates, scaling: Scaling, y: np.ndarray) -> Observed:
    """What predictions are judged by: all rows, or the means that an interpolating emulator saw."""
    if noisy:
        return Observed(scaling.y_to_core(y), sites.site_of_row)
    return Observed(sites.y, np.arange(len(sites.y)))


def _sites(noisy: bool, scaling: Scaling, x: np.ndarray, y: np.ndarray) -> Replicates:
    """The training data in core units, one row for each distinct input."""
    sites = collapse_replicates(scaling.x_to_core(x), scaling.y_to_core(y))
    require_two_sites(sites, len(x))
    return sites if noisy else without_spread(sites)
