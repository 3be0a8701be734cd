"""Successes in a number of trials, whose probability has a latent for its logit."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import betainc, gammaln, logit

from deepemu.core.distributions import Gaussian
from deepemu.core.model.observation import Units
from deepemu.data.checks import require
from deepemu.observations import quadrature
from deepemu.observations.counts import HALF, require_counts
from deepemu.observations.imputed import Imputed
from deepemu.observations.quadrature import HOST, TRACED, Functions


@dataclass(frozen=True)
class Binomial(Imputed):
    """y ~ binomial(t, p) with logit p = f and t trials, one unless they are given. In core units
    outputs are shares y / t."""

    adds_up: ClassVar[bool] = True
    spacing: ClassVar[float | None] = 1.0
    known: ClassVar[str | None] = "trials"

    # --- data -------------------------------------------------------------------------------------

    def check(self, y: np.ndarray, known: np.ndarray | None = None) -> None:
        require_counts(y)
        trials = np.ones_like(y) if known is None else known
        require(bool(np.all(trials == np.round(trials))), "trials has entries with a fraction.")
        n_more = int(np.sum(y > trials))
        how = "; give the number of trials as trials" if known is None else ""
        require(not n_more, f"y has {n_more} value(s) above the number of trials{how}.")

    def units(self, y: np.ndarray, site: np.ndarray, known: np.ndarray | None = None) -> Units:
        trials = np.ones_like(y) if known is None else known
        for value, of in ((0.0, "zero"), (trials, "equal to its trials")):
            alike = np.flatnonzero(np.all(y == value, axis=0)).tolist()
            which = "y" if y.shape[1] == 1 else f"column(s) {alike} of y"
            require(
                not alike,
                f"Every count of {which} is {of}; a probability needs both successes and failures.",
            )
        return Units(np.zeros(y.shape[1]), np.ones(y.shape[1]))

    def units_of_rows(self, units: Units, known: np.ndarray) -> Units:
        return Units(units.shift, units.size * known)

    def in_core(self, y: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
        trials = np.broadcast_to(units.size, y.shape)
        return np.round(y * trials, 6), trials

    def start(self, y: np.ndarray, size: np.ndarray, weights: np.ndarray) -> np.ndarray:
        successes, trials = (np.sum(weights * each, axis=1) for each in (y, size))
        return logit((successes + HALF) / (trials + 2 * HALF))

    # --- the distribution -------------------------------------------------------------------------

    def log_p(self, of: Functions, y: Any, size: Any, f: Any, *further: Any) -> Any:
        """y log p + (t − y) log(1 − p) = y f + t log(1 − p)."""
        return y * f + size * of.log_expit(-f)

    def log_constant(self, y: np.ndarray, size: np.ndarray) -> Any:
        """log t! / (y! (t − y)!), and impossible below zero and above t."""
        inside = np.clip(y, 0.0, size)
        ways = gammaln(size + 1.0) - gammaln(inside + 1.0) - gammaln(size - inside + 1.0)
        return np.where((inside == y) & (y == np.round(y)), ways, -np.inf)

    def given(
        self, y: np.ndarray, size: np.ndarray, f: np.ndarray, *further: np.ndarray
    ) -> np.ndarray:
        """I_{1−p}(t − y, y + 1), the incomplete beta function."""
        whole = np.floor(np.clip(y, 0.0, size - 1.0))
        found = betainc(size - whole, whole + 1.0, HOST.expit(-f))
        return np.where(y < 0.0, 0.0, np.where(y >= size, 1.0, found))

    def peak(self, y: np.ndarray, size: np.ndarray, *further: np.ndarray) -> tuple[Any, Any]:
        """logit of (y + ½)/(t + 1), within (1/(y + ½) + 1/(t − y + ½))^½."""
        y = np.clip(y, 0.0, size)
        centre = logit((y + HALF) / (size + 2 * HALF))
        return centre, np.sqrt(1.0 / (y + HALF) + 1.0 / (size - y + HALF))

    # --- moments and draws ------------------------------------------------------------------------

    def function_moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """Of p."""
        mean, square = (quadrature.expected_share(TRACED, latents, power) for power in (1, 2))
        return Gaussian(mean, TRACED.maximum(square - mean**2, 0.0))

    def moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """E y/t = E p and Var y/t = E p(1 − p)/t + Var p."""
        p = self.function_moments(latents, units)
        within = p.mean - (p.var + p.mean**2)
        return Gaussian(p.mean, within / units.size + p.var)

    def draw(self, generator: np.random.Generator, latents: np.ndarray, units: Units) -> np.ndarray:
        trials = np.broadcast_to(units.size, latents.shape).astype(int)
        return generator.binomial(trials, HOST.expit(latents)) / units.size
