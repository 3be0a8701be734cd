"""The structure of a deep Gaussian process, and the arrays that live on it.

Layer l maps the row [outputs of layer l−1 | global inputs] (the first layer: the global inputs) to
its nodes' outputs. Which columns a node reads is one Boolean row of `LayerSpec.reads`; a column
that is not read has a zero inverse lengthscale.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import linalg
from deepemu.core.kernels.families import Kernel
from deepemu.core.model.priors import Geometry, Prior
from deepemu.core.nodes import dense
from deepemu.core.nodes.node import Node, Sites


@dataclass(frozen=True)
class LayerSpec:
    """One layer: kernel, which columns each node reads, and what is estimated."""

    kernel: Kernel
    reads: tuple[tuple[bool, ...], ...]
    prior: Prior
    shared_lengthscale: bool
    free_scale: bool
    free_nugget: bool

    @property
    def width(self) -> int:
        return len(self.reads)

    @property
    def n_columns(self) -> int:
        return len(self.reads[0])


@dataclass(frozen=True)
class Network:
    """Layers in order of evaluation; the last one is observed."""

    n_inputs: int
    layers: tuple[LayerSpec, ...]

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def n_outputs(self) -> int:
        return self.layers[-1].width


@record
class LayerParams:
    """Logarithms of lengthscales (P, D), scales (P,) and nuggets (P,)."""

    log_lengthscale: Array
    log_scale: Array
    log_nugget: Array


Params = tuple[LayerParams, ...]
Latents = tuple[Array, ...]


@record
class Data:
    """Inputs (n, d), site means of the outputs (n, q), counts (n,), replicates' squares (q,)."""

    x: Array
    y: Array
    counts: Array
    squares: Array


def layer_inputs(network: Network, layer: int, x: Array, latents: Sequence[Array]) -> Array:
    """The columns that ``layer`` reads: [previous layer | x], or only one of the two."""
    if layer == 0:
        return x
    previous = latents[layer - 1]
    connected = network.layers[layer].n_columns > network.layers[layer - 1].width
    return jnp.concatenate([previous, x], axis=1) if connected else previous


def layer_targets(network: Network, layer: int, data: Data, latents: Latents) -> Array:
    """The outputs (n, P) of ``layer``: latent for a hidden layer, observed for the last."""
    return data.y if layer == network.depth - 1 else latents[layer]


def layer_sites(network: Network, layer: int, data: Data) -> Sites:
    """Sites of each node of ``layer``, stacked: replicates are known to the last layer only."""
    width = network.layers[layer].width
    if layer == network.depth - 1:
        counts, squares = data.counts, data.squares
    else:
        counts, squares = jnp.minimum(data.counts, 1.0), jnp.zeros(width, data.x.dtype)
    return Sites(jnp.broadcast_to(counts, (width, *counts.shape)), squares)


def layer_nodes(spec: LayerSpec, params: LayerParams) -> Node:
    """The nodes of a layer, stacked along the first axis."""
    inverse = jnp.where(jnp.asarray(spec.reads), jnp.exp(-params.log_lengthscale), 0.0)
    return Node(spec.kernel, inverse, jnp.exp(params.log_scale), jnp.exp(params.log_nugget))


def layer_cholesky(
    network: Network, layer: int, params: Params, latents: Latents, data: Data
) -> Array:
    """Factors (P, n, n) of the correlation matrices of a layer's nodes given their inputs."""
    nodes = layer_nodes(network.layers[layer], params[layer])
    inputs = layer_inputs(network, layer, data.x, latents)
    sites = layer_sites(network, layer, data)
    correlations = jax.vmap(dense.correlation, in_axes=(0, None, 0))(nodes, inputs, sites)
    return jax.vmap(linalg.cholesky)(correlations)


def layer_log_density(
    network: Network, layer: int, params: Params, latents: Latents, data: Data
) -> Array:
    """Σ_p log p(w_l^(p) | w_{l−1}), a factor of equation (8) of the paper."""
    lower = layer_cholesky(network, layer, params, latents, data)
    targets = layer_targets(network, layer, data, latents)
    nodes = layer_nodes(network.layers[layer], params[layer])
    sites = layer_sites(network, layer, data)
    return jnp.sum(jax.vmap(dense.log_density)(lower, targets.T, nodes.scale, nodes.nugget, sites))


def geometry(spec: LayerSpec, inputs: Array, used: Array) -> Geometry:
    """Ranges of the input columns over the rows in use, and how columns enter the priors."""
    lowest = jnp.min(jnp.where(used[:, None], inputs, jnp.inf), axis=0)
    highest = jnp.max(jnp.where(used[:, None], inputs, -jnp.inf), axis=0)
    reads = jnp.asarray(spec.reads, inputs.dtype)
    weight = reads / jnp.sum(reads, axis=1, keepdims=True) if spec.shared_lengthscale else reads
    span = jnp.broadcast_to(highest - lowest, reads.shape)
    return Geometry(span, weight, jnp.broadcast_to(jnp.sum(used), (spec.width,)))
