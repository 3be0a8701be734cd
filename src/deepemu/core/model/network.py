"""The structure of a deep Gaussian process, and the arrays that live on it.

A layer maps the row [outputs of earlier layers | global inputs] (the first layer: the global
inputs) to its nodes' outputs. Which columns a node reads is one Boolean row of `LayerSpec.reads`; a
column that is not read has a zero inverse lengthscale.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core.kernels.kernel import Kernel
from deepemu.core.model.observation import Likelihood
from deepemu.core.model.priors import Geometry, Prior
from deepemu.core.nodes.node import Groups, Node, Sites
from deepemu.core.nodes.solver import Solver

T = TypeVar("T")


@dataclass(frozen=True)
class LayerSpec:
    """One layer: kernel, which columns each node reads, and what is estimated.

    ``sources`` are the earlier layers whose outputs are columns, counted back from this one: -1 is
    the layer before. Their columns come first, then those of the global inputs, if any. Nodes of a
    hidden layer that ``shares_kernel`` have equal lengthscales and nuggets, and so one matrix R;
    their scales may differ. A node that reads no column has one value at all rows: its kernel is
    constant, and its scale, the variance of that value, is given.
    """

    kernel: Kernel
    reads: tuple[tuple[bool, ...], ...]
    prior: Prior
    shared_lengthscale: bool
    free_scale: bool
    free_nugget: bool
    sources: tuple[int, ...] = (-1,)
    shares_kernel: bool = False

    @property
    def width(self) -> int:
        return len(self.reads)

    @property
    def n_kernels(self) -> int:
        """How many matrices R the nodes have."""
        return 1 if self.shares_kernel else self.width

    @property
    def n_columns(self) -> int:
        return len(self.reads[0])

    @property
    def free_scales(self) -> tuple[bool, ...]:
        """Whether each node's scale is estimated."""
        return tuple(self.free_scale and any(columns) for columns in self.reads)

    @property
    def free_nuggets(self) -> tuple[bool, ...]:
        return tuple(self.free_nugget and any(columns) for columns in self.reads)


@dataclass(frozen=True)
class Network:
    """Layers in order of evaluation, how the last one is observed, and how nodes are computed:
    those of hidden layers by a solver of their own, if there is one."""

    n_inputs: int
    layers: tuple[LayerSpec, ...]
    observation: Likelihood
    solver: Solver
    hidden_solver: Solver | None = None

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def n_imputed(self) -> int:
        """Number of layers whose outputs are imputed: these come first."""
        return self.depth if self.observation.imputed else self.depth - 1

    @property
    def is_guided(self) -> bool:
        """Whether layers are imputed that have what guided moves need: anchors, or near rows."""
        return self.n_imputed > 0 and self.solver.for_hidden() is not None

    def solver_of(self, layer: int) -> Solver:
        is_hidden = layer < self.depth - 1
        return self.hidden_solver if is_hidden and self.hidden_solver else self.solver

    def sources(self, layer: int) -> tuple[int, ...]:
        """The layers whose outputs ``layer`` reads, in the order of its columns."""
        return tuple(layer + back for back in self.layers[layer].sources if layer + back >= 0)

    def n_hidden(self, layer: int) -> int:
        """Columns of ``layer`` that are outputs of earlier layers; those of the inputs follow."""
        return sum(self.layers[source].width for source in self.sources(layer))

    def n_uncertain(self, layer: int) -> int:
        """Those of them that are uncertain in a prediction; they come first."""
        certain = any(self.solver_of(source).certain for source in self.sources(layer))
        return 0 if certain else self.n_hidden(layer)

    def readers(self, layer: int) -> tuple[int, ...]:
        """The layers that read the outputs of ``layer``."""
        return tuple(
            above for above in range(layer + 1, self.depth) if layer in self.sources(above)
        )


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
    """Inputs (n, d), a mask (n,) that is zero in padded rows, and the observations of each row.

    ``observed`` belongs to the observation model; see `Likelihood`. ``groups`` and ``anchors``
    are those of `Sites`, for the last layer and for hidden ones.
    """

    x: Array
    used: Array
    observed: Any
    groups: Groups | None = None
    anchors: Array | None = None


def layer_inputs(network: Network, layer: int, x: Array, latents: Sequence[Array]) -> Array:
    """The columns that ``layer`` reads: [outputs of earlier layers | x], or only one of the two."""
    n_known = network.layers[layer].n_columns - network.n_hidden(layer)
    hidden = [latents[source] for source in network.sources(layer)]
    columns = [*hidden, x] if n_known else hidden
    return columns[0] if len(columns) == 1 else jnp.concatenate(columns, axis=1)


def inputs_in_lengthscales(
    network: Network, params: LayerParams, latents: Sequence[Array], x: Array
) -> Array:
    """The last layer's inputs (n, D) in lengthscales, of which nodes have an average."""
    last = network.depth - 1
    squared = layer_nodes(network.layers[last], params).inverse_lengthscale ** 2
    inputs = layer_inputs(network, last, x, latents)
    return inputs * jnp.sqrt(jnp.mean(squared, axis=0))[None]


def layer_targets(network: Network, layer: int, data: Data, latents: Latents) -> Array:
    """The outputs (n, P) of ``layer``: latent, or observed."""
    if layer < network.n_imputed:
        return latents[layer]
    return network.observation.targets(data.observed)


def layer_sites(network: Network, layer: int, data: Data) -> Sites:
    """Sites of each node of ``layer``, stacked: replicates are known to the observed layer only."""
    width = network.layers[layer].width
    repeated = lambda each: jnp.broadcast_to(each, (width, *each.shape))  # noqa: E731
    if layer >= network.n_imputed:
        sites = network.observation.sites(data.observed)
    else:
        sites = Sites(repeated(data.used), jnp.zeros(width, data.x.dtype))
    last = layer == network.depth - 1
    own = {"groups": data.groups} if last else {"anchors": data.anchors}
    return replace(sites, **jax.tree.map(repeated, own))


def layer_nodes(spec: LayerSpec, params: LayerParams) -> Node:
    """The nodes of a layer, stacked along the first axis."""
    inverse = jnp.where(jnp.asarray(spec.reads), jnp.exp(-params.log_lengthscale), 0.0)
    return Node(spec.kernel, inverse, jnp.exp(params.log_scale), jnp.exp(params.log_nugget))


def columns_of(node: Node, first: int | Array, count: int) -> Node:
    """The node, or stacked nodes, with the lengthscales of some of the columns alone."""
    inverse = jax.lax.dynamic_slice_in_dim(node.inverse_lengthscale, first, count, axis=-1)
    return replace(node, inverse_lengthscale=inverse)


def layer_parts(
    network: Network, layer: int, params: Params, latents: Latents, data: Data
) -> tuple[Node, Array, Array, Sites]:
    """Nodes, inputs (n, D), targets (P, n) and sites of a layer."""
    return (
        layer_nodes(network.layers[layer], params[layer]),
        layer_inputs(network, layer, data.x, latents),
        layer_targets(network, layer, data, latents).T,
        layer_sites(network, layer, data),
    )


def map_kernels(spec: LayerSpec, function: Callable[..., T], *of_nodes: Any) -> T:
    """``function`` of each kernel of a layer, stacked, given what its nodes have along the first
    axis: the first stands for all that share a kernel."""
    if spec.n_kernels > 1:
        return jax.vmap(function)(*of_nodes)
    # A batch of one would copy its matrices.
    found = function(*jax.tree.map(lambda of: of[0], of_nodes))
    return jax.tree.map(lambda of: of[None], found)


def map_nodes(
    spec: LayerSpec, function: Callable[..., T], nodes: Node, of_kernels: Any, of_nodes: Any
) -> T:
    """``function(node, of_kernel, of_node)`` of each node of a layer, stacked.

    Of nodes that share a kernel only the scales and ``of_nodes`` are a batch, so that the solver
    computes once what depends on the kernel alone.
    """
    if spec.n_kernels > 1:
        return jax.vmap(function)(nodes, of_kernels, of_nodes)
    node, of_kernel = jax.tree.map(lambda of: of[0], (nodes, of_kernels))
    of_scale = lambda scale, own: function(replace(node, scale=scale), of_kernel, own)  # noqa: E731
    return jax.vmap(of_scale)(nodes.scale, of_nodes)


def layer_factor(network: Network, layer: int, params: Params, latents: Latents, data: Data) -> Any:
    """The solver's factors of a layer's kernels given their inputs, stacked."""
    nodes, inputs, _, sites = layer_parts(network, layer, params, latents, data)
    factor = lambda node, sites: network.solver_of(layer).factor(node, inputs, sites)  # noqa: E731
    return map_kernels(network.layers[layer], factor, nodes, sites)


def layer_log_density(
    network: Network, layer: int, params: Params, latents: Latents, data: Data
) -> Array:
    """Σ_p log p(w_l^(p) | w_{l−1}), a factor of equation (8) of the paper."""
    nodes, _, targets, sites = layer_parts(network, layer, params, latents, data)
    factors = layer_factor(network, layer, params, latents, data)

    def of_node(node: Node, of_kernel: tuple[Any, Sites], target: Array) -> Array:
        factor, sites = of_kernel
        return network.solver_of(layer).log_density(factor, node, target, sites)

    return jnp.sum(map_nodes(network.layers[layer], of_node, nodes, (factors, sites), targets))


def log_likelihood(network: Network, latents: Latents, data: Data) -> Array:
    """log p(outputs | imputed latents of the last layer); zero where they are integrated out."""
    if not network.observation.imputed:
        return jnp.zeros((), data.x.dtype)
    return network.observation.log_density(data.observed, latents[-1], data.used)


def geometry(spec: LayerSpec, inputs: Array, used: Array) -> Geometry:
    """Ranges of the input columns over the rows in use, and how columns enter the priors."""
    lowest = jnp.min(jnp.where(used[:, None], inputs, jnp.inf), axis=0)
    highest = jnp.max(jnp.where(used[:, None], inputs, -jnp.inf), axis=0)
    reads = jnp.asarray(spec.reads, inputs.dtype)
    n_read = jnp.maximum(jnp.sum(reads, axis=1, keepdims=True), 1.0)
    weight = reads / n_read if spec.shared_lengthscale else reads
    span = jnp.broadcast_to(highest - lowest, reads.shape)
    return Geometry(span, weight, jnp.broadcast_to(jnp.sum(used), (spec.width,)))
