"""The protocol of an observation model on the host, beyond that of the core."""

from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.special import logsumexp

from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.model.observation import Likelihood, Units, output_moments
from deepemu.observations import by_cdf
from deepemu.runtime import devices, trees

# The CRPS leaves out what lies beyond the quantiles of this level.
TAIL = 1e-6
# Outputs on a grid come back from core units with an error in the last digits.
ROUND_OFF = 1e-6


class Observation(Likelihood, Protocol):
    """How outputs arise from the last layer of Gaussian processes; everything about it is here.

    Outputs y (N, q) come row by row; rows of equal inputs are one site, and ``site`` (N,) numbers
    them. Latents are moments (…, P) of the last layer's nodes. Outputs and latents are in core
    units unless said otherwise; `Units` lead to those of the user. Implementations are frozen
    dataclasses without arrays, because they are a static part of the compiled programs. They need
    not define methods that have a body here, which are right for any model.

    ``units`` of outputs in rows are those of the rows, see `Units`.
    """

    # --- data -----------------------------------------------------------------------------------

    known: ClassVar[str | None] = None
    """What can be known of each output, the argument of `fit` that gives it: exposure, say."""

    def check(self, y: np.ndarray, known: np.ndarray | None = None) -> None:
        """An `InputError` for outputs, in user units, that cannot have come from the model; all
        finite numbers can, unless the model says otherwise."""
        return

    def units_of_rows(self, units: Units, known: np.ndarray) -> Units:
        """The units of rows (n, q) of which something is known."""
        raise TypeError("nothing can be known of a row under this observation model")

    def units(self, y: np.ndarray, site: np.ndarray) -> Units:
        """Shift and size (q,) of the core's outputs."""

    def n_latents(self, n_outputs: int) -> int:
        """Nodes of the last layer."""
        return n_outputs

    def common(self, n_outputs: int) -> tuple[bool, ...]:
        """Which of these nodes have one value that is common to all rows: parameters of the model,
        standard normal a priori. None, unless the model says otherwise."""
        return (False,) * self.n_latents(n_outputs)

    def collapse(self, y: np.ndarray, site: np.ndarray, units: Units) -> Any:
        """Sufficient statistics of each site: a pytree of arrays (sites, …)."""

    def repeats_differ(self, observed: Any) -> bool:
        """Whether repeated runs say that outputs have normal noise."""
        return False

    def judged(self, y: np.ndarray, site: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The outputs (n, q) that predictions are compared with, and the site of each: all rows."""
        return y, site

    def starting_latents(self, observed: Any) -> np.ndarray:
        """Starting values (sites, P) of the last layer, if it is imputed."""
        raise TypeError("the latents of this observation model are integrated out")

    def caveats(self, y: np.ndarray, site: np.ndarray) -> tuple[str, ...]:
        """Caveats about these outputs, in user units."""
        return ()

    # --- predictions of one new output ------------------------------------------------------------

    def log_density_of(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """log p(y | latents) (…, q), latents integrated out: a density in core units, or the
        probability of an output on a grid."""

    def cdf(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """P(output ≤ y | latents) (…, q), latents integrated out."""

    spacing: ClassVar[float | None]
    """Outputs are integer multiples of this, in user units; None if they are continuous."""

    def draw(self, generator: np.random.Generator, latents: np.ndarray, units: Units) -> np.ndarray:
        """Outputs (…, q) given drawn latents (…, P), which have the nodes' nuggets."""

    def log_size(self, units: Units) -> np.ndarray:
        """log size (q,), which turns a density in core units into one in user units; a probability
        is the same in both."""
        size = np.asarray(units.size)
        return np.log(size) if self.spacing is None else np.zeros_like(size)

    # --- predictions by a mixture -----------------------------------------------------------------

    def mixed_moments(self, found: Mixture, units: Units) -> Gaussian:
        """Mean and variance (n, q) of a new output."""
        with devices.float64():
            return trees.to_numpy(output_moments(self, found, units))

    def mixed_cdf(self, y: np.ndarray, found: Mixture, units: Units) -> np.ndarray:
        """P(output ≤ y) (n, q) = Σ_k w_k F_k(y)."""
        return found.averaged(self.cdf(y, found.latents, units))

    def mixed_cdf_below(self, y: np.ndarray, found: Mixture, units: Units) -> np.ndarray:
        """P(output < y) (n, q)."""
        return self.mixed_cdf(y - self._step(units), found, units)

    def mixed_log_density(self, y: np.ndarray, found: Mixture, units: Units) -> np.ndarray:
        """log Σ_k w_k p_k(y) (n, q)."""
        each = self.log_density_of(y, found.latents, units)
        return logsumexp(each, b=found.weights[..., None], axis=0)

    def quantile(self, level: float, found: Mixture, units: Units) -> np.ndarray:
        """The least output y (n, q) with P(output ≤ y) ≥ ``level``."""
        moments = self.mixed_moments(found, units)
        return by_cdf.quantile(
            lambda y: self.mixed_cdf(y, found, units),
            np.asarray(moments.mean), np.sqrt(moments.var), level,
            lambda y: self._on_grid(y, units), self._step(units),
        )  # fmt: skip

    def crps(self, y: np.ndarray, found: Mixture, units: Units) -> np.ndarray:
        """∫ (F(t) − 1{y ≤ t})² dt (n, q) of the mixture, from its distribution function."""
        low, high = (self.quantile(level, found, units) for level in (TAIL, 1.0 - TAIL))
        return by_cdf.crps(
            lambda at: self.mixed_cdf(at, found, units), y, (low, high),
            lambda at: self._on_grid(at, units), self._step(units),
        )  # fmt: skip

    def stretch(self, y: np.ndarray, found: Mixture, units: Units) -> np.ndarray:
        """Factors (q,) of the spread of predictions, given held-out outputs (n, q) and their
        predictions; `stretched` applies them. None, unless the model says otherwise."""
        return np.ones(y.shape[1])

    def stretched_draws(
        self, latents: np.ndarray, centre: np.ndarray, stretch: np.ndarray
    ) -> np.ndarray:
        """Draws (n, m, P) of latents after a stretch (q,) about the mixture's mean (m, P)."""
        drawn = Gaussian(latents, np.zeros_like(latents))
        return np.asarray(self.stretched(drawn, centre[None], stretch[None, None]).mean)

    def _step(self, units: Units) -> np.ndarray:
        """The spacing (q,) in core units; zero if outputs are continuous."""
        return (self.spacing or 0.0) / np.asarray(units.size)

    def _on_grid(self, y: np.ndarray, units: Units) -> np.ndarray:
        """The largest possible output that is at most y."""
        if self.spacing is None:
            return y
        number = np.floor(np.asarray(units.to_user(y)) / self.spacing + ROUND_OFF)
        return np.asarray(units.to_core(number * self.spacing))
