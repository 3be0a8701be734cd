"""A fit: what it holds, and the mixture that it predicts at rows."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.ensemble import member_weights
from deepemu.core.model.observation import Units, stretched_mixture
from deepemu.data.checks import deviations_of
from deepemu.data.frames import require_numbers
from deepemu.data.runs import Runs, renamed
from deepemu.ensembles import prediction
from deepemu.ensembles.prediction import Chain
from deepemu.observations.model import Observation
from deepemu.posterior import components, inputs, stacking
from deepemu.posterior.stacking import Stacked
from deepemu.posterior.summary import Report
from deepemu.runtime.devices import Machine, Runtime, inside
from deepemu.runtime.trees import freeze, gathered, joined
from deepemu.training.chains import Trained

PAIR_TERMS_FOR_A_GPU = 5e9
# Rows whose components are held in memory at a time.
ROWS_AT_ONCE = 2**14
# The moments of outputs that are not normal may take a quadrature.
ROWS_OF_IMPUTED = 2**10
Answer = Callable[[Mixture, Units], Any]


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """Runs, trained structures, the weights of their chains, and the report.

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
        of_runs = runs.x, runs.y, runs.units, runs.known
        held = of_runs, runs.scale.low, runs.scale.span, sites.x, sites.units
        held_out = stacked.weights, stacked.stretch, stacked.held_out
        trained = [(each.imputed, each.trace) for each in self.structures]
        freeze((held, sites.site_of_row, sites.observed, held_out, trained))

    def on(self, machine: Machine) -> Self:
        """The same on another device, or with other threads."""
        return dataclasses.replace(self, machine=machine)

    def renamed(self, inputs: Iterable[str], outputs: Iterable[str]) -> Self:
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

    def _beside(
        self, X: ArrayLike, y: ArrayLike, answer: Callable[..., Any], known: np.ndarray | None
    ) -> Any:
        """An answer about outputs and the mixture at the rows of X, slab by slab."""
        x, units = self.runs.columns.inputs_of(X), self._units_of(known)
        outputs = self.runs.columns.outputs_of(y, len(x))

        def of_slab(at: slice) -> Any:
            found, of_rows = self._mixture(self.runs.scale.to_core(x[at])), units.at(at)
            return answer(of_rows.to_core(outputs[at]), found, self.observation, of_rows)

        slabs = components.slabs(len(x), self._rows_at_once)
        with self._predicting(len(x)):
            return gathered(((at, of_slab(at)) for at in slabs), len(x))

    def _units_of(self, known: np.ndarray | None) -> Units:
        """The units of rows of which something is known (m, q)."""
        units = self.runs.sites.units
        return units if known is None else self.observation.units_of_rows(units, known)

    @property
    def _rows_at_once(self) -> int:
        return ROWS_OF_IMPUTED if self.observation.imputed else ROWS_AT_ONCE

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
        known: np.ndarray | None = None,
        latent: bool = False,
    ) -> Any:
        """Slabs of rows one after the other, so that memory holds the components of one."""
        x, units = self.runs.columns.inputs_of(X), self._units_of(known)
        mixture = self._function if latent else self._mixture
        if input_std is not None:
            return self._over_uncertain_rows(x, answer, axis, input_std, rule, units, mixture)
        slabs, to_core = components.slabs(len(x), self._rows_at_once), self.runs.scale.to_core
        with self._predicting(len(x)):
            parts = ((at, answer(mixture(to_core(x[at])), units.at(at))) for at in slabs)
            return gathered(parts, len(x), axis)

    def _over_uncertain_rows(
        self,
        x: np.ndarray,
        answer: Answer,
        axis: int,
        input_std: ArrayLike,
        rule: inputs.Rule,
        units: Units,
        mixture: Callable[[np.ndarray], Mixture],
    ) -> Any:
        """Rows grouped by which of their inputs are uncertain, so that no row's cubature depends
        on the others."""
        require_numbers(input_std, "input_std")
        std, scale = deviations_of(input_std, x.shape), self.runs.scale

        def spread(at: np.ndarray) -> Mixture:
            return self._spread(scale.to_core(x[at]), std[at] / scale.span, rule, mixture)

        with self._predicting(len(x) * inputs.MOST_POINTS):
            parts = inputs.rows_by_kind(std, ROWS_AT_ONCE // inputs.MOST_POINTS)
            found = ((at, answer(spread(at), units.at(at))) for at in parts)
            return gathered(found, len(x), axis)

    def _function(self, x: np.ndarray) -> Mixture:
        """The mixture without the nuggets that are noise."""
        found, stretch = self._mixture(x), self.stacked.stretch
        if self.observation.imputed:
            return found
        noise = stretch**2 * components.noise_of([chain for chain, _ in self._chains])
        var = np.maximum(np.asarray(found.latents.var) - noise[:, None], 0.0)
        return Mixture(Gaussian(found.latents.mean, var), found.weights)

    def _mixture(self, x: np.ndarray) -> Mixture:
        """The mixture at inputs in core units."""
        found = joined(prediction.predict_chains([chain for chain, _ in self._chains], x))
        weights = np.repeat(self._member_weights[:, None], len(x), axis=1)
        return stretched_mixture(self.observation, Mixture(found, weights), self.stacked.stretch)

    def _spread(
        self,
        x: np.ndarray,
        std: np.ndarray,
        rule: inputs.Rule,
        mixture: Callable[[np.ndarray], Mixture],
    ) -> Mixture:
        """That at normal inputs, with standard deviations (m, d) of which the same are positive,
        given that at known ones."""
        if not np.any(std):
            return mixture(x)
        is_plain = np.all(self.stacked.stretch == 1.0) and components.has_closed_form(self._chains)
        if is_plain and rule is inputs.for_moments and mixture == self._mixture:
            return components.in_closed_form(self._chains, x, std)
        return components.by_cubature(mixture, x, std, rule(np.any(std > 0.0, axis=0)))

    @functools.cached_property
    def _member_weights(self) -> np.ndarray:
        """Each chain's weight in equal parts for its imputations."""
        every = [member_weights(each.imputed, weights) for each, weights in self.weights]
        weights = np.asarray(np.concatenate(every))
        return weights[weights > 0.0]
