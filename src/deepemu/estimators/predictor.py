"""What a fitted emulator predicts: moments, quantiles, densities, slopes and draws."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from deepemu.data.checks import not_fitted, require_flag, require_whole
from deepemu.data.frames import array_of, names_of, require_numbers
from deepemu.data.known import VARIANCE, Known, known_of
from deepemu.estimators.regressor import Regressor, seed_from
from deepemu.posterior.posterior import Posterior
from deepemu.runtime.devices import Machine

Pair = tuple[np.ndarray, np.ndarray]


def given_of(
    noise_variance: ArrayLike | None, exposure: ArrayLike | None, trials: ArrayLike | None
) -> Known:
    return {VARIANCE: noise_variance, "exposure": exposure, "trials": trials}


class Predictor(Regressor):
    """An estimator whose fit is ``posterior_``."""

    posterior_: Posterior
    device: str
    n_jobs: int | None
    n_outputs_: int

    def _fitted(self) -> Posterior:
        """The posterior, on the machine that the settings name now."""
        if "posterior_" not in vars(self):
            raise not_fitted(self)
        machine = Machine(self.device, self.n_jobs)
        same = machine == self.posterior_.machine
        return self.posterior_ if same else self.posterior_.on(machine)

    def _checked_inputs(self, X: Any) -> ArrayLike:
        """As scikit-learn checks them, and names that were given after the fit."""
        columns = self._fitted().runs.columns
        if columns.compares_names:
            return super()._checked_inputs(X)
        columns.require_input_names(X)
        if names_of(X) == columns.inputs:
            require_numbers(X, "X")
            X = array_of(X)
        return super()._checked_inputs(X)

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> float:
        """The coefficient of determination R² of the mean, averaged over outputs."""
        from sklearn.metrics import r2_score

        self._fitted().runs.columns.require_output_names(y)
        mean = self.predict(X, exposure=exposure, trials=trials)
        return float(r2_score(y, mean, sample_weight=sample_weight))

    def _asked(
        self, X: ArrayLike, *given: ArrayLike | None
    ) -> tuple[Posterior, ArrayLike, np.ndarray | None]:
        """The posterior, checked rows X, and what is known of new outputs there."""
        posterior, at = self._fitted(), self._checked_inputs(X)
        shape = len(np.asarray(at)), self.n_outputs_
        return posterior, at, known_of(posterior.observation.known, given_of(*given), shape)

    # --- using ----------------------------------------------------------------------------------

    def predict(
        self,
        X: ArrayLike,
        return_std: bool = False,
        input_std: ArrayLike | None = None,
        latent: bool = False,
        noise_variance: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> np.ndarray | Pair:
        """Mean (and standard deviation) of the outputs at the rows of X.

        The mean and variance of the mixture over all imputations of all chains, weighted, with
        standard deviations multiplied by the factor that fits held-out errors best. The variance is
        that of a new run, so it includes the nugget. Standard deviations are accurate to four
        digits.

        With ``input_std``, a number or an array (d,) or (m, d), the inputs are uncertain: normal
        about the rows of X. A plain Gaussian process then has its moments in closed form, all else
        by cubature over the inputs.

        With ``latent`` they are those of the function, the mean of outputs at an input, without
        noise. What is known of a new output is given as in `fit`; by default the exposure or the
        number of trials is one, and noise whose variance was given at the runs is none.
        """
        require_flag("latent", latent)
        posterior, at, known = self._asked(X, noise_variance, exposure, trials)
        found = posterior.moments(at, input_std, known, latent)
        shaped = self.posterior_.runs.shaped
        return (shaped(found.mean), shaped(found.std)) if return_std else shaped(found.mean)

    def interval(
        self,
        X: ArrayLike,
        level: float = 0.95,
        noise_variance: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Pair:
        """Ends of the central interval that holds a new output with probability ``level``.

        Quantiles of the mixture itself, which need not be symmetric about the mean.
        """
        posterior, at, known = self._asked(X, noise_variance, exposure, trials)
        low, high = posterior.interval(at, level, known=known)
        return self.posterior_.runs.shaped(low), self.posterior_.runs.shaped(high)

    def quantiles(
        self,
        X: ArrayLike,
        levels: ArrayLike,
        noise_variance: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> np.ndarray:
        """Quantiles of new outputs, (levels, m), or (levels, m, q) for 2-d y."""
        posterior, at, known = self._asked(X, noise_variance, exposure, trials)
        found = posterior.quantiles(at, levels, known=known)
        return self.posterior_.runs.shaped(found)

    def log_density(
        self,
        X: ArrayLike,
        y: ArrayLike,
        noise_variance: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> np.ndarray:
        """Log predictive density (m,), or log probability, of outputs y at the rows of X."""
        posterior, at, known = self._asked(X, noise_variance, exposure, trials)
        return posterior.log_density(at, y, known)

    def gradient(self, X: ArrayLike) -> Pair:
        """Derivatives of the mean and of the variance in each input, (m, d), or (m, q, d) for 2-d
        y."""
        found = self._fitted().gradient(self._checked_inputs(X))
        keep = (slice(None), 0) if self.posterior_.runs.columns.one_dimensional else slice(None)
        return np.asarray(found.mean)[keep], np.asarray(found.var)[keep]

    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: Any = 0,
        noise_variance: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> np.ndarray:
        """Joint draws at the rows of X: (m, n_samples), or (m, q, n_samples) for 2-d y.

        Each draw takes one imputed network and draws every layer jointly over the rows; its
        distance from the mean is scaled as the standard deviation of `predict` is.
        """
        require_whole("n_samples", n_samples)
        posterior, at, known = self._asked(X, noise_variance, exposure, trials)
        draws = posterior.sample(at, int(n_samples), seed_from(random_state), known)
        return np.moveaxis(self.posterior_.runs.shaped(draws), 0, -1)
