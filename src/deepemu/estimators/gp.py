"""`GP`: a plain Gaussian process with the interface of a scikit-learn regressor."""

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from deepemu.core.model.priors import Prior
from deepemu.estimators.base import BaseEmulator
from deepemu.training.candidates import Candidate, shallow, trace_in_words
from deepemu.training.layers import Layer


class GP(BaseEmulator):
    """Gaussian-process emulator: one layer, one lengthscale per input, robust prior.

    Parameters
    ----------
    kernel : {"matern52", "matern32", "squared_exponential"}
    lengthscale : {"ard", "shared"}
    prior : {"reference", "gamma", "inverse_gamma", "none"} or a prior object
    nugget : float or "estimate"
        Relative to the scale, the variance of the process. A small fixed nugget interpolates runs
        without noise; runs that scatter make the scale large. "estimate" models noise.
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

    def _candidates(self, n_inputs: int, n_outputs: int, n_rows: int) -> list[Candidate]:
        layer = Layer(
            None, self.kernel, self.lengthscale, True, None, self.prior, None, self.nugget
        )
        return [shallow(layer, n_inputs, n_outputs, n_folds=0)]

    @property
    def trace_(self) -> dict[str, Any]:
        """The parameters that were found, in the form of `DGP.trace_`."""
        check_is_fitted(self, "ensembles_")
        return trace_in_words(self._parts[0].trained.trace)

    def loo(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each training row with that row's input left out.

        Exact, in closed form, with all parameters kept.
        """
        return self._closed_form_loo()
