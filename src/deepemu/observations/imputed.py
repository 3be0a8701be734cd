"""What models have in common whose latents are imputed: a latent for each output, such as the log
of a rate, and further ones, such as the log of a dispersion.

The further ones are parameters that are common to all rows, or functions of the inputs too. As
nodes that read no input they need no machinery of their own: they are imputed along with the
others, and each imputed network has a draw of them from their posterior.
"""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from deepemu._types import Array, record
from deepemu.core.distributions import Gaussian
from deepemu.core.model.observation import Units
from deepemu.observations import quadrature
from deepemu.observations.model import Observation
from deepemu.observations.quadrature import HOST, TRACED, Functions, Nodes

Total = Callable[[np.ndarray, np.ndarray], np.ndarray]


@record
class Replicates:
    """The different outputs y of each site, their sizes (see `Units`) and how often each occurred,
    (n, R, q); sites with fewer than R have others of weight zero."""

    y: Array
    size: Array
    weights: Array


class Imputed(Observation):
    """An observation model with a latent for each output, and further ones.

    ``priors`` are centre and width of the further latents' normal distributions over simulators.
    With ``varying`` they are functions of the inputs, each a node of its own.
    """

    imputed: ClassVar[bool] = True
    priors: ClassVar[tuple[tuple[float, float], ...]] = ()
    # Whether the likelihood of a site's outputs depends on their sums alone.
    adds_up: ClassVar[bool] = False
    varying: bool = False

    # --- what a model says ------------------------------------------------------------------------

    @abstractmethod
    def log_p(self, of: Functions, y: Any, size: Any, f: Any, *further: Any) -> Any:
        """log p(y | latents), without what depends on y and size alone."""

    def log_constant(self, y: np.ndarray, size: np.ndarray) -> Any:
        """What depends on these."""
        return 0.0

    @abstractmethod
    def given(
        self, y: np.ndarray, size: np.ndarray, f: np.ndarray, *further: np.ndarray
    ) -> np.ndarray:
        """P(output ≤ y | latents)."""

    @abstractmethod
    def peak(self, y: np.ndarray, size: np.ndarray, *further: np.ndarray) -> tuple[Any, Any]:
        """Where p(y | f) is largest as a function of f, roughly, and the width of that peak."""

    def in_core(self, y: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
        """Outputs and their sizes as `log_p` takes them, given outputs in core units."""
        return y, np.broadcast_to(units.size, y.shape)

    # --- latents ----------------------------------------------------------------------------------

    def n_latents(self, n_outputs: int) -> int:
        return n_outputs * (1 + len(self.priors))

    def common(self, n_outputs: int) -> tuple[bool, ...]:
        n_further = n_outputs * len(self.priors)
        return (False,) * n_outputs + (not self.varying,) * n_further

    def apart(self, latents: Array) -> list[Any]:
        """The latent of each output, and each further one, (…, q), given all of them (…, P)."""
        q = latents.shape[-1] // (1 + len(self.priors))
        f, *further = (latents[..., k : k + q] for k in range(0, latents.shape[-1], q))
        pairs = zip(self.priors, further, strict=True)
        return [f, *(centre + width * g for (centre, width), g in pairs)]

    def moments_apart(self, latents: Gaussian) -> list[Gaussian]:
        """Likewise of their moments."""
        means = self.apart(latents.mean)
        widths = [1.0, *(width for _, width in self.priors)]
        q = means[0].shape[-1]
        variances = (
            width**2 * latents.var[..., k * q : (k + 1) * q] for k, width in enumerate(widths)
        )
        return [Gaussian(*pair) for pair in zip(means, variances, strict=True)]

    # --- data -------------------------------------------------------------------------------------

    def collapse(self, y: np.ndarray, site: np.ndarray, units: Units) -> Replicates:
        y, size = self.in_core(y, units)
        return summed(y, size, site) if self.adds_up else tabled(y, size, site)

    def log_density(self, observed: Replicates, latents: Array, used: Array) -> Array:
        """Σ over sites and replicates of log p(y | latents)."""
        size = jnp.where(observed.weights > 0.0, observed.size, 1.0)
        own = (each[:, None] for each in self.apart(latents))
        return jnp.sum(observed.weights * self.log_p(TRACED, observed.y, size, *own))

    def starting_latents(self, observed: Replicates) -> np.ndarray:
        """Those of the sites' outputs, and further ones at their centres."""
        f = self.start(
            *(np.asarray(each) for each in (observed.y, observed.size, observed.weights))
        )
        return np.concatenate([f, *[np.zeros_like(f)] * len(self.priors)], axis=1)

    @abstractmethod
    def start(self, y: np.ndarray, size: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The latents (n, q) that say most nearly what `Replicates` hold."""

    # --- predictions ------------------------------------------------------------------------------

    def log_density_of(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """log E p(y | latents)."""
        y, size = self.in_core(y, units)
        log_p = lambda *latents: self.log_p(HOST, y, size, *latents)  # noqa: E731
        found = self._averaged(log_p, y, size, latents, _log_total)
        return found + self.log_constant(y, size)

    def cdf(self, y: np.ndarray, latents: Gaussian, units: Units) -> np.ndarray:
        """E P(output ≤ y | latents)."""
        y, size = self.in_core(y, units)
        given = lambda *latents: self.given(y, size, *latents)  # noqa: E731
        return self._averaged(given, y, size, latents, _total)

    def _averaged(
        self,
        function: Callable[..., np.ndarray],
        y: np.ndarray,
        size: np.ndarray,
        latents: Gaussian,
        total: Total,
    ) -> np.ndarray:
        """A function of y averaged over the latents, by a rule over f for each point of a rule over
        the further ones; those that are common to all rows are known where a network is."""
        f, *further = self.moments_apart(latents)
        found = [
            self._over_f(function, f, y, size, at, share) for at, share in self._points(further)
        ]
        values, weights = (np.concatenate(each) for each in zip(*found, strict=True))
        return total(values, weights)

    def _over_f(
        self,
        function: Callable[..., np.ndarray],
        f: Gaussian,
        y: np.ndarray,
        size: np.ndarray,
        further: Sequence[np.ndarray],
        share: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values at the nodes of a rule over f, and their weights, which add up to ``share``."""
        peak = self.peak(y, size, *further)
        mean, var, centre, width = np.broadcast_arrays(f.mean, f.var, *peak)
        rule = quadrature.across(Gaussian(mean, var), centre, width)
        return function(rule.at, *further), share * rule.weights

    def _points(self, further: Sequence[Gaussian]) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
        """Points of a product rule over the further latents, and their weights."""
        rules = [self._rule_of_further(each) for each in further]
        for places in itertools.product(*(range(len(rule.at)) for rule in rules)):
            pairs = list(zip(rules, places, strict=True))
            share = np.prod([rule.weights[k] for rule, k in pairs], axis=0)
            yield [rule.at[k] for rule, k in pairs], share

    def _rule_of_further(self, latent: Gaussian) -> Nodes:
        return quadrature.smooth(latent, quadrature.N_FURTHER if self.varying else 1)


def _total(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.sum(weights * values, axis=0)


def _log_total(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):  # weights far away from the latent's mean are none
        return logsumexp(values + np.log(weights), axis=0)


def summed(y: np.ndarray, size: np.ndarray, site: np.ndarray) -> Replicates:
    """Sums of outputs and of sizes of each site, as one output."""
    sums = np.zeros((2, site.max() + 1, 1, y.shape[1]))
    for total, values in zip(sums, (y, size), strict=True):
        np.add.at(total[:, 0], site, values)
    return Replicates(sums[0], sums[1], np.ones_like(sums[0]))


def tabled(y: np.ndarray, size: np.ndarray, site: np.ndarray) -> Replicates:
    """The different pairs of output and size of each site, and how often each occurred.

    There is room for 1, 2, 4, … of them, so that few programs serve all data.
    """
    tables = [
        np.unique(np.column_stack([site, y[:, k], size[:, k]]), axis=0, return_counts=True)
        for k in range(y.shape[1])
    ]
    n_sites = site.max() + 1
    most = max(np.bincount(rows[:, 0].astype(int)).max() for rows, _ in tables)
    found = np.zeros((3, n_sites, 1 << int(most - 1).bit_length(), y.shape[1]))
    for k, (rows, counts) in enumerate(tables):
        own = rows[:, 0].astype(int)
        place = np.arange(len(own)) - np.searchsorted(own, own)
        found[:, own, place, k] = rows[:, 1], rows[:, 2], counts
    return Replicates(*found)
