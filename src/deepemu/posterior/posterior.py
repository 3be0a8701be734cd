"""A fit, and all of its predictions."""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.ensemble import Ensemble
from deepemu.core.model.observation import (
    Units,
    function_moments,
    output_moments,
    stretched_mixture,
)
from deepemu.core.nodes.node import Joint
from deepemu.data.checks import (
    check_level,
    is_whole,
    real_array,
    require,
    require_key,
    require_value,
    require_whole,
)
from deepemu.data.runs import grown
from deepemu.data.scaling import constant_columns
from deepemu.data.sites import require_varied_columns
from deepemu.diagnostics import tails
from deepemu.ensembles import prediction
from deepemu.observations.mixture import side_by_side
from deepemu.posterior import components, inputs, mixtures
from deepemu.posterior.comparison import Comparison, compared
from deepemu.posterior.fit import Fit
from deepemu.posterior.mixtures import Bands, Members, Moments, moments_in_user_units
from deepemu.posterior.stacking import Stacked
from deepemu.training.structures import conditioned_on, warn_of_new_spread

N_DRAWS_OF_HIDDEN = 64


@dataclass(frozen=True, eq=False, repr=False)
class Posterior(Fit):
    """A fit: runs, trained structures, the weights of their chains, and the report.

    It is immutable: `on` and `condition_on` return another one. Inputs X (m, d) and outputs are
    in the units of the runs, and results have one column per output. With ``input_std`` (d,) or
    (m, d), inputs are normal about the rows of X, independent of each other. ``known`` (m, q) is
    what the observation model can know of each output, such as its exposure.
    """

    # --- predictions ----------------------------------------------------------------------------

    def moments(
        self,
        X: ArrayLike,
        input_std: ArrayLike | None = None,
        known: np.ndarray | None = None,
        latent: bool = False,
    ) -> Moments:
        """Mean and variance (m, q) of a new output: those of the mixture over all imputations of
        all chains, weighted. Standard deviations are accurate to four digits.

        With ``latent``, of the function itself: the mean of outputs at an input, without noise.
        """
        model = self.observation

        def of_rows(found: Mixture, units: Units) -> Moments:
            mixed = (function_moments if latent else output_moments)(model, found, units)
            return moments_in_user_units(mixed, units)

        return self._over_rows(X, of_rows, input_std=input_std, known=known, latent=latent)

    def members(self, X: ArrayLike) -> Members:
        """The components of the prediction, one per imputation and chain."""
        x, units = self.runs.rows_of(X), self.runs.sites.units
        with self._predicting(len(x)):
            found = self._mixture(x)
            outputs = self.observation.moments(found.latents, units)
        return Members(moments_in_user_units(outputs, units), found.weights[:, 0].copy())

    def quantiles(
        self,
        X: ArrayLike,
        levels: ArrayLike,
        input_std: ArrayLike | None = None,
        known: np.ndarray | None = None,
    ) -> np.ndarray:
        """Quantiles (levels, m, q) of a new output, of the mixture itself."""
        asked = np.atleast_1d(real_array("levels", levels))
        is_list = asked.ndim == 1 and len(asked) > 0
        require_value(is_list, "levels", levels, "a list of numbers between 0 and 1")
        for level in asked.tolist():
            check_level(level)
        of_rows = lambda found, units: mixtures.quantiles(  # noqa: E731
            found, self.observation, units, asked.tolist()
        )
        return self._over_rows(X, of_rows, 1, input_std, inputs.equally_likely, known)

    def interval(
        self,
        X: ArrayLike,
        level: float = 0.95,
        input_std: ArrayLike | None = None,
        known: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ends (m, q) of the central interval that holds a new output with this probability."""
        check_level(level)
        low, high = self.quantiles(X, tails(level), input_std, known)
        return low, high

    def bands(self, X: ArrayLike, level: float = 0.95, known: np.ndarray | None = None) -> Bands:
        """Mean, standard deviation and the ends of `interval` (m, q), computed together."""
        check_level(level)
        of_rows = lambda found, units: mixtures.bands(found, self.observation, units, level)  # noqa: E731
        return self._over_rows(X, of_rows, known=known)

    def log_density(
        self, X: ArrayLike, y: ArrayLike, known: np.ndarray | None = None
    ) -> np.ndarray:
        """Log predictive density (m,) of outputs y (m,) or (m, q) at the rows of X.

        log Σ_k w_k Π_j p_k(y_j): outputs of a row are independent given an imputed network.
        """
        return self._beside(X, y, mixtures.log_density, known)

    def sample(
        self, X: ArrayLike, n: int = 1, key: int = 0, known: np.ndarray | None = None
    ) -> np.ndarray:
        """Joint draws (n, m, q) of new outputs at the rows of X; the same ``key``, the same draws.

        Each takes one imputed network and draws every layer jointly over the rows; its distance
        from the mean is stretched as standard deviations are.
        """
        require_whole("n", n)
        require_key(key)
        x = self.runs.rows_of(X)
        units = self._units_of(known)
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
        outputs = before.columns.outputs_of(y, len(x))
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

    def compared(self, X: ArrayLike, y: ArrayLike, known: np.ndarray | None = None) -> Comparison:
        """Outputs y (m,) or (m, q) at the rows of X beside their predictive distributions."""
        return self._beside(X, y, compared, known)

    def cdf(self, X: ArrayLike, y: ArrayLike, known: np.ndarray | None = None) -> np.ndarray:
        """P(output ≤ y) (m, q) at the rows of X: of the mixture, at outputs y (m,) or (m, q)."""
        at_rows = lambda at, found, model, units: model.mixed_cdf(at, found, units)  # noqa: E731
        return self._beside(X, y, at_rows, known)

    def compared_runs(self) -> Comparison:
        """The runs beside their held-out predictions, or beside those of `leave_one_out`."""
        held_out, sites = self.stacked.held_out, self.runs.sites
        found = self._left_out() if held_out is None else held_out
        y, at_rows = self.runs.units.to_core(self.runs.y), found.at(sites.site_of_row)
        return compared(y, at_rows, self.observation, self.runs.units)

    def _left_out(self) -> Mixture:
        """The mixture at each site, given what was found with the site's outputs."""
        kept = [(each.imputed, of) for each, of in self.weights if of.any()]
        with self.machine.running(False, 1, self.runs.sites.n_sites):
            found = components.without_sites(kept, self.runs.sites.n_sites)
        return stretched_mixture(self.observation, found, self.stacked.stretch)

    def _moments_at_runs(self, at_sites: Mixture) -> Moments:
        at_rows, units = at_sites.at(self.runs.sites.site_of_row), self.runs.units
        return moments_in_user_units(self.observation.mixed_moments(at_rows, units), units)

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
