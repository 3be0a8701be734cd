"""`GP`: a plain Gaussian process with the interface of a scikit-learn regressor."""

from typing import Any

import numpy as np

from deepemu.core.model.priors import Prior
from deepemu.core.nodes.solver import Solver
from deepemu.estimators.base import BaseEmulator
from deepemu.files.atomic import PathLike
from deepemu.observations.model import Observation
from deepemu.posterior.comparison import Comparison
from deepemu.training.layers import Layer
from deepemu.training.structures import Problem, Structure, plain_gp, trace_in_words


class GP(BaseEmulator):
    """Gaussian-process emulator: one layer, one lengthscale per input, robust prior.

    Parameters
    ----------
    kernel : {"matern52", "matern32", "squared_exponential", "linear"}
    lengthscale : {"ard", "shared"}
    prior : {"reference", "gamma", "inverse_gamma", "none"} or a prior object
    nugget : float, "auto" or "estimate"
        Relative to the scale, the variance of the process. "auto" finds it, under a prior that
        favours the smallest, 1e-8; "estimate" does so without that prior. A small number
        interpolates runs without noise; runs that scatter then make the scale large.
    random_state : int, RandomState or None
        Seeds the random starting points of the optimiser.
    device : {"auto", "cpu", "gpu"}
        Where to compute; "auto": on a GPU where JAX sees one and the work is large enough to gain.
    n_jobs : int or None
        CPU threads; -1: all cores (or ``OMP_NUM_THREADS`` of them), None: one.
    observation : str or an observation model
        How outputs arise from the emulated function: "gaussian", "heteroscedastic", "student_t",
        "poisson", "negative_binomial", "zero_inflated_poisson", "zero_inflated_negative_binomial",
        "binomial".
    solver : {"auto", "dense", "vecchia"} or a solver
        How the process is computed. "dense" is exact. "vecchia" conditions groups of 16 rows on 32
        rows near them, and predicts from the 50 nearest. "auto": "vecchia" from 1500 distinct
        rows on, or from 400 where an observation model has latents to impute.
    checkpoint : path or None
        A file in which a fit keeps what it has done while it trains. If the fit is killed, one with
        the same data and settings goes on from there, to the same result. The file is deleted when
        the fit has finished.

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
        nugget: float | str = "auto",
        random_state: Any = 0,
        device: str = "auto",
        n_jobs: int | None = -1,
        observation: str | Observation = "gaussian",
        solver: str | Solver = "auto",
        checkpoint: PathLike | None = None,
    ) -> None:
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.prior = prior
        self.nugget = nugget
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs
        self.observation = observation
        self.solver = solver
        self.checkpoint = checkpoint

    def _last_nugget(self) -> object:
        return self.nugget

    def _structures(self, problem: Problem, n_sites: int) -> list[Structure]:
        layer = Layer(
            None, self.kernel, self.lengthscale, True, None, self.prior, None, self.nugget
        )
        return [plain_gp(layer, problem, n_folds=0)]

    @property
    def trace_(self) -> dict[str, Any]:
        """The estimated parameters, in the form of `DGP.trace_`."""
        return trace_in_words(self._fitted().structures[0].trace)

    def loo(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each training row, without all runs of its input.

        In closed form, with the parameters of the fit; exact for normal outputs. Under an
        observation model with imputed latents these are kept too, so it is optimistic.
        """
        return self._closed_form_loo()

    def compared_runs(self) -> Comparison:
        """Training outputs (n, q) beside the predictive distributions of `loo`."""
        return self._fitted().compared_runs()
