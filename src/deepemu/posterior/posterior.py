"""A fit, and all of its predictions."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.ensemble import Ensemble, member_weights
from deepemu.core.model.observation import output_moments, stretched_mixture
from deepemu.core.nodes.node import Joint
from deepemu.data.checks import (
    check_level,
    deviations_of,
    is_whole,
    outputs_of,
    real_array,
    require,
    require_key,
    require_value,
    require_whole,
)
from deepemu.data.runs import Runs, grown, renamed
from deepemu.data.scaling import constant_columns
from deepemu.data.sites import require_varied_columns
from deepemu.diagnostics import tails
from deepemu.ensembles import prediction
from deepemu.ensembles.prediction import Chain
from deepemu.observations.mixture import side_by_side
from deepemu.observations.model import Observation
from deepemu.posterior import components, inputs, mixtures, stacking
from deepemu.posterior.comparison import Comparison, compared
from deepemu.posterior.mixtures import Bands, Members, Moments, moments_in_user_units
from deepemu.posterior.stacking import Stacked
from deepemu.posterior.summary import Report
from deepemu.runtime.devices import Machine, Runtime, inside
from deepemu.runtime.trees import freeze, gathered, joined, row
from deepemu.training.chains import Trained
from deepemu.training.structures import conditioned_on, warn_of_new_spread

PAIR_TERMS_FOR_A_GPU = 5e9
# Rows whose components are held in memory at a time.
ROWS_AT_ONCE = 2**14
# The moments of outputs that are not normal may take a quadrature.
ROWS_OF_IMPUTED = 2**10
N_DRAWS_OF_HIDDEN = 64
Answer = Callable[[Mixture], Any]


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """A fit: runs, trained structures, the weights of their chains, and the report.

    It is immutable: `on` and `condition_on` return another one. Inputs X (m, d) and outputs are
    in the units of the runs, and results have one column per output. With ``input_std`` (d,) or
    (m, d), inputs are normal about the rows of X, independent of each other.
    """

    runs: Runs
    structures: tuple[Trained, ...]
    stacked: Stacked
    report: Report
    machine: Machine = Machine()

    def __post_init__(self) -> None:
        """Predictions share the arrays of the fit: nobody may write to them any more."""
        runs, stacked = self.runs, self.stacked
        sites = runs.sites
        held = runs.x, runs.y, runs.scale.low, runs.scale.span, sites.x, sites.units
        held_out = stacked.weights, stacked.stretch, stacked.held_out
        trained = [(each.imputed, each.trace) for each in self.structures]
        freeze((held, sites.site_of_row, sites.observed, held_out, trained))

    def on(self, machine: Machine) -> "Posterior":
        """The same on another device, or with other threads."""
        return dataclasses.replace(self, machine=machine)

    def renamed(self, inputs: Iterable[str], outputs: Iterable[str]) -> "Posterior":
        """With other names of columns."""
        return dataclasses.replace(self, runs=renamed(self.runs, tuple(inputs), tuple(outputs)))

    @functools.cached_property
    def observation(self) -> Observation:
        """How outputs arise from the last layer."""
        return self.structures[0].structure.observation

    @property
    def weights(self) -> list[tuple[Trained, np.ndarray]]:
        """Each structure with the weights of its chains."""
        return stacking.by_structure(self.structures, self.stacked.weights)

    def heaviest(self, n_hidden: int = 0) -> tuple[Trained, np.ndarray] | None:
        """The structure of the largest weight with at least ``n_hidden`` hidden layers, and its
        chains' weights."""
        deep = [(e, of) for e, of in self.weights if e.structure.network.depth > n_hidden]
        return max(deep, key=lambda each: each[1].sum(), default=None)

    # --- predictions ----------------------------------------------------------------------------

    def moments(self, X: ArrayLike, input_std: ArrayLike | None = None) -> Moments:
        """Mean and variance (m, q) of a new output: those of the mixture over all imputations of
        all chains, weighted. Standard deviations are accurate to four digits.
        """
        units = self.runs.sites.units
        of_rows = lambda found: moments_in_user_units(  # noqa: E731
            output_moments(self.observation, found, units), units
        )
        return self._over_rows(X, of_rows, input_std=input_std)

    def members(self, X: ArrayLike) -> Members:
        """The components of the prediction, one per imputation and chain."""
        x, units = self.runs.rows_of(X), self.runs.sites.units
        with self._predicting(len(x)):
            found = self._mixture(x)
            outputs = self.observation.moments(found.latents, units)
        return Members(moments_in_user_units(outputs, units), found.weights[:, 0].copy())

    def quantiles(
        self, X: ArrayLike, levels: ArrayLike, input_std: ArrayLike | None = None
    ) -> np.ndarray:
        """Quantiles (levels, m, q) of a new output, of the mixture itself."""
        asked = np.atleast_1d(real_array("levels", levels))
        is_list = asked.ndim == 1 and len(asked) > 0
        require_value(is_list, "levels", levels, "a list of numbers between 0 and 1")
        for level in asked.tolist():
            check_level(level)
        given = self.observation, self.runs.sites.units, asked.tolist()
        of_rows = lambda found: mixtures.quantiles(found, *given)  # noqa: E731
        return self._over_rows(X, of_rows, 1, input_std, inputs.equally_likely)

    def interval(
        self, X: ArrayLike, level: float = 0.95, input_std: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ends (m, q) of the central interval that holds a new output with this probability."""
        check_level(level)
        low, high = self.quantiles(X, tails(level), input_std)
        return low, high

    def bands(self, X: ArrayLike, level: float = 0.95) -> Bands:
        """Mean, standard deviation and the ends of `interval` (m, q), computed together."""
        check_level(level)
        given = self.observation, self.runs.sites.units, level
        return self._over_rows(X, lambda found: mixtures.bands(found, *given))

    def log_density(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """Log predictive density (m,) of outputs y (m,) or (m, q) at the rows of X.

        log Σ_k w_k Π_j p_k(y_j): outputs of a row are independent given an imputed network.
        """
        return self._beside(X, y, mixtures.log_density)

    def sample(self, X: ArrayLike, n: int = 1, key: int = 0) -> np.ndarray:
        """Joint draws (n, m, q) of new outputs at the rows of X; the same ``key``, the same draws.

        Each takes one imputed network and draws every layer jointly over the rows; its distance
        from the mean is stretched as standard deviations are.
        """
        require_whole("n", n)
        require_key(key)
        x, units = self.runs.rows_of(X), self.runs.sites.units
        with self.machine.running(False, 1, max(len(x), self.runs.sites.n_sites)):
            structures = [(each.imputed, weights) for each, weights in self.weights]
            latents = prediction.draw_joint(key, structures, x, int(n))
            if np.any(self.stacked.stretch != 1.0):
                centre, stretch = np.asarray(self._mixture(x).centre), self.stacked.stretch
                latents = self.observation.stretched_draws(latents, centre, stretch)
        drawn = self.observation.draw(np.random.default_rng([key, 1]), latents, units)
        return mixtures.outputs_in_user_units(drawn, self.observation, units)

    def joint(self, X: ArrayLike, n_draws: int = N_DRAWS_OF_HIDDEN, key: int = 0) -> Joint:
        """Means (q, m) and covariances (q, m, m) of new outputs over the rows of X.

        The diagonal holds the variances of `moments`. Correlations are exact for plain Gaussian
        processes; through hidden layers they come from ``n_draws`` joint draws of these per
        imputation, given each of which the last layer's covariance is in closed form.
        """
        require_key(key)
        deep = any(chain.is_imputed for chain, _ in self._chains)
        require_value(
            is_whole(n_draws) and n_draws > deep, "n_draws", n_draws,
            "an integer of at least 2" if deep else "a positive integer",
        )  # fmt: skip
        require(
            not self.observation.imputed,
            "joint has no covariance for this observation model, whose outputs are not normal; "
            "use sample.",
        )
        x, marginal = self.runs.rows_of(X), self.moments(X)
        with self.machine.running(False, 1, max(len(x), self.runs.sites.n_sites)):
            correlation = components.correlation_at(self._chains, x, int(n_draws), key)
        std = marginal.std.T
        return Joint(marginal.mean.T, correlation * std[:, :, None] * std[:, None, :])

    def gradient(self, X: ArrayLike) -> Gaussian:
        """Derivatives (m, q, d) of the mean and of the variance of a new output in each input."""
        x = self.runs.columns.inputs_of(X)
        with self._predicting(len(x)):
            return components.gradients_at(self.ensemble, x)

    @property
    def ensemble(self) -> Ensemble:
        """The argument of `deepemu.core.moments.moments`: the chains of positive weight, and
        units."""
        kept = [(each.imputed, of) for each, of in self.weights if np.any(of > 0.0)]
        scale = self.runs.scale
        return Ensemble(
            tuple(prediction.some_chains(imputed, np.flatnonzero(of)) for imputed, of in kept),
            tuple(of[of > 0.0] for _, of in kept),
            scale.low, scale.span, self.runs.sites.units, self.stacked.stretch,
        )  # fmt: skip

    def condition_on(self, X: ArrayLike, y: ArrayLike) -> "Posterior":
        """With new runs X (m, d), y (m,) or (m, q): parameters, imputations and weights are kept.

        Nothing is trained: latents of new rows are at their conditional means, and factors are
        extended at the cost of a rank-m update. The report is that of the fit.
        """
        require(
            not self.observation.imputed,
            "condition_on keeps imputed latents, which new outputs would change under this "
            "observation model; call update of the emulator instead.",
        )
        x, before = self.runs.columns.inputs_of(X), self.runs
        require_varied_columns(before.x, x)
        outputs = outputs_of(y, (len(x), before.y.shape[1]))
        self.observation.check(outputs)
        runs = grown(before, x, outputs, self.observation)
        n_old = before.sites.n_sites
        warn_of_new_spread(self.structures, before.sites, runs.sites)
        with self.machine.running(False, len(self._chains), runs.sites.n_sites):
            structures = tuple(conditioned_on(each, runs.sites, n_old) for each in self.structures)
            stacked = self._stacked_with(runs.sites.x[n_old:])
        return dataclasses.replace(self, runs=runs, structures=structures, stacked=stacked)

    def _stacked_with(self, x: np.ndarray) -> Stacked:
        """Held-out predictions, with those of new sites, which are predicted before they are
        added."""
        if self.stacked.held_out is None or not len(x):
            return self.stacked
        held_out = side_by_side(self.stacked.held_out, self._mixture(x))
        return dataclasses.replace(self.stacked, held_out=held_out)

    # --- checks ---------------------------------------------------------------------------------

    @property
    def held_out(self) -> Moments | None:
        """Mean and variance (N, q) at each run by chains that held it out."""
        found = self.stacked.held_out
        return None if found is None else self._moments_at_runs(found)

    def leave_one_out(self) -> Moments:
        """Mean and variance (N, q) at each run with its site left out, given parameters and latents
        that were found with it."""
        return self._moments_at_runs(self._left_out())

    def compared(self, X: ArrayLike, y: ArrayLike) -> Comparison:
        """Outputs y (m,) or (m, q) at the rows of X beside their predictive distributions."""
        return self._beside(X, y, compared)

    def cdf(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """P(output ≤ y) (m, q) at the rows of X: of the mixture, at outputs y (m,) or (m, q)."""
        return self._beside(X, y, lambda at, found, model, units: model.mixed_cdf(at, found, units))

    def compared_runs(self) -> Comparison:
        """The runs beside their held-out predictions, or beside those of `leave_one_out`."""
        held_out, sites = self.stacked.held_out, self.runs.sites
        found = self._left_out() if held_out is None else held_out
        y, at_rows = sites.units.to_core(self.runs.y), found.at(sites.site_of_row)
        return compared(y, at_rows, self.observation, sites.units)

    def _left_out(self) -> Mixture:
        """The mixture at each site, given what was found with the site's outputs."""
        kept = [(each.imputed, of) for each, of in self.weights if of.any()]
        with self.machine.running(False, 1, self.runs.sites.n_sites):
            found = components.without_sites(kept, self.runs.sites.n_sites)
        return stretched_mixture(self.observation, found, self.stacked.stretch)

    def _moments_at_runs(self, at_sites: Mixture) -> Moments:
        sites = self.runs.sites
        found = self.observation.mixed_moments(at_sites, sites.units)
        return moments_in_user_units(row(found, sites.site_of_row), sites.units)

    def _beside(self, X: ArrayLike, y: ArrayLike, answer: Callable[..., Any]) -> Any:
        """An answer about outputs and the mixture at the rows of X, slab by slab."""
        x, units = self.runs.columns.inputs_of(X), self.runs.sites.units
        outputs = outputs_of(y, (len(x), self.runs.y.shape[1]))

        def of_slab(at: slice) -> Any:
            found = self._mixture(self.runs.scale.to_core(x[at]))
            return answer(units.to_core(outputs[at]), found, self.observation, units)

        slabs = components.slabs(len(x), ROWS_AT_ONCE)
        with self._predicting(len(x)):
            return gathered(((at, of_slab(at)) for at in slabs), len(x))

    @property
    def caveats(self) -> tuple[str, ...]:
        """Caveats that are not in the report, recomputed from the fit itself."""
        runs, found = self.runs, []
        if any(each.interrupted for each in self.structures):
            found.append("Training was interrupted: chains have fewer iterations than asked for.")
        found.extend(self.observation.caveats(runs.y, runs.sites.site_of_row))
        names = (runs.columns.outputs[k] for k in constant_columns(runs.y))
        return (*found, *(f"All outputs {name} are equal." for name in names))

    def chain_means(self, X: ArrayLike) -> np.ndarray:
        """Means (chains, imputations, m, P) of the last layer, in core units, by the chains of
        positive weight with imputed layers; as many imputations per chain as all of them have."""
        x, chains = self.runs.rows_of(X), [chain for chain, _ in self._chains if chain.is_imputed]
        with self.machine.running(False, len(x), self.runs.sites.n_sites):
            found = prediction.predict_chains(chains, x)
        n_kept = min((len(each.mean) for each in found), default=0)
        return np.array([each.mean[:n_kept] for each in found])

    # --- inside ---------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The fields, without what was computed from them."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    def _predicting(self, n_rows: int) -> AbstractContextManager[None]:
        """The machine for predictions of ``n_rows`` rows."""
        return inside(self._runtimes[n_rows * self._pair_terms >= PAIR_TERMS_FOR_A_GPU])

    @functools.cached_property
    def _pair_terms(self) -> int:
        """The terms of a row's prediction: each member sums over all pairs of sites."""
        n_members = sum(chain.n_members for chain, _ in self._chains)
        return n_members * self.runs.sites.n_sites**2

    @functools.cached_property
    def _runtimes(self) -> tuple[Runtime, Runtime]:
        """For little work, and for work that is worth a GPU."""
        return self.machine.runtime(), self.machine.runtime(worth_a_gpu=True)

    @functools.cached_property
    def _chains(self) -> list[tuple[Chain, float]]:
        """The chains of positive weight."""
        return [
            (chain, float(weight))
            for trained, weights in self.weights
            for chain, weight in zip(prediction.chains_of(trained.imputed), weights, strict=True)
            if weight > 0.0
        ]

    def _over_rows(
        self,
        X: ArrayLike,
        answer: Answer,
        axis: int = 0,
        input_std: ArrayLike | None = None,
        rule: inputs.Rule = inputs.for_moments,
    ) -> Any:
        """Slabs of rows one after the other, so that memory holds the components of one."""
        x, to_core = self.runs.columns.inputs_of(X), self.runs.scale.to_core
        if input_std is not None:
            return self._over_uncertain_rows(x, answer, axis, input_std, rule)
        size = ROWS_OF_IMPUTED if self.observation.imputed else ROWS_AT_ONCE
        slabs = components.slabs(len(x), size)
        with self._predicting(len(x)):
            parts = ((at, answer(self._mixture(to_core(x[at])))) for at in slabs)
            return gathered(parts, len(x), axis)

    def _over_uncertain_rows(
        self, x: np.ndarray, answer: Answer, axis: int, input_std: ArrayLike, rule: inputs.Rule
    ) -> Any:
        """Rows grouped by which of their inputs are uncertain, so that no row's cubature depends
        on the others."""
        std, scale = deviations_of(input_std, x.shape), self.runs.scale
        with self._predicting(len(x) * inputs.MOST_POINTS):
            spread = lambda at: self._spread(scale.to_core(x[at]), std[at] / scale.span, rule)  # noqa: E731
            parts = inputs.rows_by_kind(std, ROWS_AT_ONCE // inputs.MOST_POINTS)
            return gathered(((at, answer(spread(at))) for at in parts), len(x), axis)

    def _mixture(self, x: np.ndarray) -> Mixture:
        """The mixture at inputs in core units."""
        found = joined(prediction.predict_chains([chain for chain, _ in self._chains], x))
        weights = np.repeat(self._member_weights[:, None], len(x), axis=1)
        return stretched_mixture(self.observation, Mixture(found, weights), self.stacked.stretch)

    def _spread(self, x: np.ndarray, std: np.ndarray, rule: inputs.Rule) -> Mixture:
        """That at normal inputs, with standard deviations (m, d) of which the same are positive."""
        if not np.any(std):
            return self._mixture(x)
        is_plain = np.all(self.stacked.stretch == 1.0) and components.has_closed_form(self._chains)
        if is_plain and rule is inputs.for_moments:
            return components.in_closed_form(self._chains, x, std)
        return components.by_cubature(self._mixture, x, std, rule(np.any(std > 0.0, axis=0)))

    @functools.cached_property
    def _member_weights(self) -> np.ndarray:
        """Each chain's weight in equal parts for its imputations."""
        every = [member_weights(each.imputed, weights) for each, weights in self.weights]
        weights = np.asarray(np.concatenate(every))
        return weights[weights > 0.0]
