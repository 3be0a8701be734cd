"""The likelihood: outputs given the last layer of Gaussian processes, as the core uses it."""

from typing import Any, ClassVar, Protocol

import jax

from deepemu._types import Array, record
from deepemu.core.distributions import Gaussian, Mixture, mixture
from deepemu.core.nodes.node import Sites
from deepemu.errors import InputError


@record
class Units:
    """From the units of the core to those of the user: y = shift + size · y_core.

    (q,) each, the same for all rows; or (n, q), where something is known of each row: counts of a
    longer exposure have a larger size, say. ``noise`` is the known variance of an output, in core
    units.
    """

    shift: Array
    size: Array
    noise: Array | None = None

    def at(self, rows: Any) -> "Units":
        """Those of some of the rows."""
        return jax.tree.map(lambda each: each[rows] if each.ndim > 1 else each, self)

    def to_core(self, y: Any) -> Any:
        return (y - self.shift) / self.size

    def to_user(self, y: Any) -> Any:
        return self.shift + self.size * y


class Likelihood(Protocol):
    """An observation model inside the core: frozen and hashable, a static part of the network.

    ``observed`` holds the model's statistics of the outputs: a pytree whose leaves have the rows
    (sites) along their first axis. Padded rows are zero, and ``used`` is zero there.

    Either the latents of the last layer are integrated out, because given them the outputs are
    normal with a variance that the node's nugget holds; then `targets` and `sites` are the data of
    the last layer's nodes. Or they are ``imputed`` like hidden layers; then `log_density` is that
    of the outputs given them.
    """

    imputed: ClassVar[bool]

    def targets(self, observed: Any) -> Array:
        """Outputs (n, P) of the last layer's nodes, where latents are integrated out."""
        raise TypeError("the latents of this observation model are imputed")

    def sites(self, observed: Any) -> Sites:
        """How often each node's rows were observed, stacked over nodes, where `targets` hold."""
        raise TypeError("the latents of this observation model are imputed")

    def log_density(self, observed: Any, latents: Array, used: Array) -> Array:
        """log p(outputs | latents (n, P)), where latents are imputed; rows are independent.

        With a solver of near rows its first two derivatives in the latents shape the moves: it is
        made of functions that JAX differentiates.
        """
        raise TypeError("the latents of this observation model are integrated out")

    def moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """Mean and variance (…, q) of one new output, in core units, given moments (…, P) of the
        last layer's nodes (with their nugget)."""

    def function_moments(self, latents: Gaussian, units: Units) -> Gaussian:
        """Mean and variance (…, q), in core units, of the mean of outputs at an input, which is
        uncertain as the latents are; these come without the nugget that stands for noise."""
        raise InputError("this observation model does not say what the mean of outputs is.")

    def stretched(self, latents: Gaussian, centre: Array, stretch: Array) -> Gaussian:
        """Latents (…, P) of a mixture's components, or draws (of variance zero), after a stretch
        (…, q) about the mixture's mean (…, P); all have as many axes.

        As they are, unless the model says otherwise: then it has a `stretch` too.
        """
        return latents


def stretched_mixture(observation: Likelihood, found: Mixture, stretch: Array) -> Mixture:
    """The mixture after a stretch (q,) or (n, q) about its mean."""
    of_rows = stretch if stretch.ndim > 1 else stretch[None]
    latents = observation.stretched(found.latents, found.centre[None], of_rows[None])
    return Mixture(latents, found.weights)


def output_moments(observation: Likelihood, found: Mixture, units: Units) -> Gaussian:
    """Mean and variance (n, q) of a new output, in core units."""
    return mixture(observation.moments(found.latents, units), found.weights)


def function_moments(observation: Likelihood, found: Mixture, units: Units) -> Gaussian:
    """Mean and variance (n, q) of the mean of outputs, in core units."""
    return mixture(observation.function_moments(found.latents, units), found.weights)
