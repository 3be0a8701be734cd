"""The posterior of anchored hidden layers: density, slopes and information.

The unknowns are v, standard normal a priori: the whitened values at the anchors of all hidden
nodes. With J the slopes of the terms' residuals and variances in v, F = JᵀJ is the Gauss-Newton
information of the outputs. From three layers on J leaves out that anchors of a second layer move
with the layer below them: F is then a rougher guide. Moves are exact whatever F is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from deepemu._types import Array
from deepemu.core.differentiation import differentiable
from deepemu.core.model.network import (
    Data,
    Latents,
    Network,
    Params,
    layer_inputs,
    layer_nodes,
    layer_parts,
    layer_sites,
)
from deepemu.core.nodes import anchored
from deepemu.core.nodes.node import Node, Sites

Whites = tuple[Array, ...]
"""v (P, M) of each hidden layer."""


@dataclass(frozen=True)
class HiddenPosterior:
    """The posterior of v, with parameters, anchors and near rows fixed.

    ``bases`` are those of the first layer, w = B v for each node: (P, n, M). ``last`` is the last
    layer, if it is imputed; it then takes the place of the outputs.
    """

    network: Network
    params: Params
    data: Data
    bases: Array
    last: Latents = ()

    @classmethod
    def of(
        cls, network: Network, params: Params, data: Data, last: Latents = ()
    ) -> "HiddenPosterior":
        return cls(network, params, data, _bases(network, params, data), last)

    # --- v and the layers -------------------------------------------------------------------------

    def carry(self, whites: Whites) -> Latents:
        """The hidden layers (n, P) at all rows."""
        below: Latents = (jnp.einsum("pnm,pm->np", self.bases, whites[0]),)
        for layer in range(1, len(whites)):
            below = (*below, self._carry_layer(layer, whites[layer], below))
        return below

    def _carry_layer(self, layer: int, whites: Array, below: Latents) -> Array:
        inputs = layer_inputs(self.network, layer, self.data.x, below)
        nodes, sites = self._nodes(layer), layer_sites(self.network, layer, self.data)

        def of_node(node: Node, sites: Sites, white: Array) -> Array:
            found = anchored.conditioned(node, inputs, sites)
            return anchored.carried(node, found, white, inputs)

        return jax.vmap(of_node)(nodes, sites, whites).T

    def whiten(self, latents: Latents) -> Whites:
        """v, given the layers."""
        return tuple(
            jax.vmap(self._whiten_node, in_axes=(0, None, 0, 0))(
                *layer_parts(self.network, layer, self.params, latents, self.data)
            )
            for layer in range(len(latents))
        )

    @staticmethod
    def _whiten_node(node: Node, inputs: Array, target: Array, sites: Sites) -> Array:
        return anchored.whitened(node, anchored.conditioned(node, inputs, sites), target)

    def _nodes(self, layer: int) -> Node:
        return layer_nodes(self.network.layers[layer], self.params[layer])

    # --- densities --------------------------------------------------------------------------------

    def log_posterior(self, whites: Whites) -> Array:
        """log p(y | v) − ½|v|²."""
        latents = self.carry(whites)
        nodes, inputs, targets, sites = self._last(latents)
        fit = lambda one: self.network.solver.fit(one[0], inputs, one[1], one[2], False).value  # noqa: E731
        return jnp.sum(lax.map(fit, (nodes, targets, sites))) + _log_prior(whites)

    def slopes(self, whites: Whites) -> tuple[Array, Whites]:
        """log p(y | v) − ½|v|², and its gradient."""
        with differentiable():
            latents, pull = jax.vjp(self.carry, whites)
        nodes, inputs, targets, sites = self._last(latents)
        of = lambda one: self.network.solver.input_slopes(one[0], inputs, one[1], one[2])  # noqa: E731
        values, gradients = lax.map(of, (nodes, targets, sites))
        (of_whites,) = pull(self._to_layers(jnp.sum(gradients, axis=0)))
        value = jnp.sum(values) + _log_prior(whites)
        return value, jax.tree.map(jnp.subtract, of_whites, whites)

    def _last(self, latents: Latents) -> tuple[Node, Array, Array, Sites]:
        """The last layer's nodes that read hidden layers; the density of others has no v."""
        last, every = self.network.depth - 1, (*latents, *self.last)
        nodes, inputs, targets, sites = layer_parts(
            self.network, last, self.params, every, self.data
        )
        n_hidden, reads = self.network.n_hidden(last), self.network.layers[last].reads
        kept = [k for k, columns in enumerate(reads) if any(columns[:n_hidden])]
        if len(kept) in (0, len(reads)):
            return nodes, inputs, targets, sites
        some = lambda each: each[jnp.array(kept)]  # noqa: E731
        return jax.tree.map(some, nodes), inputs, some(targets), jax.tree.map(some, sites)

    def _to_layers(self, of_inputs: Array) -> Latents:
        """The columns (n, P) of the last layer's inputs that are outputs of each hidden layer; zero
        where it does not read them."""
        last, first = self.network.depth - 1, 0
        found: list[Array] = [
            jnp.zeros((len(of_inputs), spec.width), of_inputs.dtype)
            for spec in self.network.layers[:last]
        ]
        for source in self.network.sources(last):
            width = self.network.layers[source].width
            found[source] = of_inputs[:, first : first + width]
            first += width
        return tuple(found)

    # --- information ------------------------------------------------------------------------------

    def information(self, latents: Latents) -> Array:
        """F (|v|, |v|) where the layers are ``latents``."""
        in_whites = self._in_whites(self._local_slopes(latents), self._every_basis(latents))
        nodes, inputs, targets, sites = self._last(latents)
        network = self.network
        n_moving = sum(network.layers[each].width for each in network.sources(network.depth - 1))

        def of_node(one: tuple[Node, Array, Sites]) -> Array:
            node, target, sites = one
            return network.solver.information(node, inputs, n_moving, target, sites, in_whites)

        return jnp.sum(lax.map(of_node, (nodes, targets, sites)), axis=0)

    def _every_basis(self, latents: Latents) -> tuple[Array, ...]:
        """∂w/∂v (P, n, M) of each hidden layer, with its inputs fixed."""
        others = []
        for layer in range(1, len(latents)):
            nodes, inputs, _, sites = layer_parts(
                self.network, layer, self.params, latents, self.data
            )
            basis = lambda node, sites, inputs=inputs: _basis(node, inputs, sites)  # noqa: E731
            others.append(jax.vmap(basis)(nodes, sites))
        return (self.bases, *others)

    def _local_slopes(self, latents: Latents) -> tuple[Array | None, ...]:
        """∂w_k/∂z (P, n, D) of each hidden layer's nodes in their own row of inputs, with the
        anchors' values and inputs fixed; none for the first layer, whose inputs are known."""
        found: list[Array | None] = [None]
        for layer in range(1, len(latents)):
            nodes, inputs, targets, sites = layer_parts(
                self.network, layer, self.params, latents, self.data
            )

            def of_node(node: Node, target: Array, sites: Sites, inputs: Array = inputs) -> Array:
                with differentiable():
                    return anchored.slopes(node, inputs, target, sites)

            found.append(jax.vmap(of_node)(nodes, targets, sites))
        return tuple(found)

    def _in_whites(
        self, local: tuple[Array | None, ...], bases: tuple[Array, ...]
    ) -> Callable[[Array, Array], Array]:
        """Slopes (B, k, |v|) in v, given those (B, k, T, D) in the last layer's inputs at rows
        (B, T)."""
        network, last = self.network, self.network.depth - 1

        def of_all(slopes: Array, rows: Array) -> Array:
            totals: list[Array | None] = [None] * last
            _add_to_sources(network, last, slopes, totals)
            found: list[Array] = [slopes[..., 0]] * last
            for layer in reversed(range(last)):
                mine = totals[layer]
                if mine is None:
                    width = network.layers[layer].width
                    mine = jnp.zeros((*slopes.shape[:3], width), slopes.dtype)
                slope_of_layer = local[layer]
                if slope_of_layer is not None:
                    through = jnp.einsum("bjtk,kbtd->bjtd", mine, slope_of_layer[:, rows])
                    _add_to_sources(network, layer, through, totals)
                of_node = lambda one: jnp.einsum("bjt,btm->bjm", one[0], one[1][rows])  # noqa: E731
                of_nodes = lax.map(of_node, (jnp.moveaxis(mine, 3, 0), bases[layer]))
                found[layer] = jnp.moveaxis(of_nodes, 0, 2).reshape(*slopes.shape[:2], -1)
            return jnp.concatenate(found, axis=2)

        return of_all


def _log_prior(whites: Whites) -> Array:
    return -0.5 * sum((jnp.sum(v**2) for v in whites[1:]), start=jnp.sum(whites[0] ** 2))


def _bases(network: Network, params: Params, data: Data) -> Array:
    nodes, sites = layer_nodes(network.layers[0], params[0]), layer_sites(network, 0, data)
    return jax.vmap(lambda node, sites: _basis(node, data.x, sites))(nodes, sites)


def _basis(node: Node, inputs: Array, sites: Sites) -> Array:
    """B (n, M) with w = B v."""
    return anchored.basis(node, anchored.conditioned(node, inputs, sites), inputs)


def _add_to_sources(
    network: Network, layer: int, slopes: Array, totals: list[Array | None]
) -> None:
    """Add slopes (…, D) in a layer's inputs to those in the outputs it reads."""
    first = 0
    for source in network.sources(layer):
        width = network.layers[source].width
        mine, before = slopes[..., first : first + width], totals[source]
        totals[source] = mine if before is None else before + mine
        first += width
