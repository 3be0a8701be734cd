"""The protocol of an observation model on the host, beyond that of the core."""

from typing import Any, ClassVar, Protocol

import numpy as np

from deepemu.core.distributions import Gaussian
from deepemu.core.model.observation import Likelihood, Units
from deepemu.diagnostics import CoverageTable


class Observation(Likelihood, Protocol):
    """How outputs arise from the last layer of Gaussian processes; everything about it is here.

    Outputs y (N, q) come row by row; rows of equal inputs are one site, and ``site`` (N,) numbers
    them. Latents are moments (…, P) of the last layer's nodes. Outputs and latents are in core
    units unless said otherwise; `Units` lead to those of the user. Implementations are frozen
    dataclasses without arrays, because they are a static part of the compiled programs.
    """

    # --- data -----------------------------------------------------------------------------------

    def check(self, y: np.ndarray) -> None:
        """An `InputError` for outputs, in user units, that cannot have come from the model."""

    def units(self, y: np.ndarray, site: np.ndarray) -> Units:
        """Shift and size (q,) of the core's outputs."""

    def n_latents(self, n_outputs: int) -> int:
        """Nodes of the last layer."""

    def collapse(self, y: np.ndarray, site: np.ndarray, units: Units) -> Any:
        """Sufficient statistics of each site: a pytree of arrays (sites, …)."""

    def judged(self, y: np.ndarray, site: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The outputs (n, q) that predictions are compared with, and the site of each."""

    def starting_latents(self, observed: Any) -> np.ndarray:
        """Starting values (sites, P) of the last layer, if it is imputed."""

    def caveats(self, y: np.ndarray, site: np.ndarray) -> tuple[str, ...]:
        """Caveats about these outputs, in user units."""

    # --- predictions of one new output ------------------------------------------------------------

    def log_density_of(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """log p(y | latents) (…, q), latents integrated out."""

    def cdf(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """P(output ≤ y | latents) (…, q), latents integrated out."""

    spacing: ClassVar[float | None]
    """Outputs are integer multiples of this, in user units; None if they are continuous."""

    def draw(self, generator: np.random.Generator, latents: np.ndarray, units: Units) -> np.ndarray:
        """Outputs (…, q) given drawn latents (…, P), which have the nodes' nuggets."""

    def stretched(self, latents: Gaussian, weights: np.ndarray, stretch: np.ndarray) -> Gaussian:
        """Latents (K, m, P) of a mixture's components whose standard deviations are multiplied."""

    # --- held-out scores --------------------------------------------------------------------------

    def scores(self, y: np.ndarray, outputs: Gaussian) -> dict[str, float]:
        """CRPS, log score and coverage of outputs (n, q), given their predicted moments."""

    def intervals(self, y: np.ndarray, outputs: Gaussian) -> CoverageTable:
        """Shares of outputs (n, q) inside predictive intervals of several levels."""

    def stretch(self, y: np.ndarray, outputs: Gaussian) -> np.ndarray:
        """Factors (q,) of the standard deviations, given held-out outputs and moments."""
