"""Networks, parameters and data of the core, built from the processes of the oracles."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from oracles import Process

from deepemu.core.inference.m_step import InTurn, Maximise
from deepemu.core.inference.steps import NodeWise, Steps
from deepemu.core.kernels import families
from deepemu.core.model.network import Data, LayerParams, LayerSpec, Network
from deepemu.core.model.priors import Independent
from deepemu.core.nodes.dense import Dense
from deepemu.core.nodes.node import Node
from deepemu.observations.gaussian import GaussianNoise, SiteMeans

Model = list[list[Process]]
"""Processes layer by layer; an infinite lengthscale is a column that is not read."""


def network(n_inputs, *layers, observation=None):
    """Layers that are computed exactly; by default observed with normal noise."""
    return Network(n_inputs, layers, observation or GaussianNoise(), Dense())


def layer_of(nodes, sources=(-1,), **changes):
    """The layer of some processes; nothing but its lengthscales is free."""
    reads = tuple(tuple(bool(c) for c in np.isfinite(p.lengthscale)) for p in nodes)
    kernel = families.by_name(nodes[0].kernel)
    plain = LayerSpec(kernel, reads, Independent(), False, False, False, sources)
    return replace(plain, **changes)


def network_of(model: Model, n_inputs, sources=None, observation=None):
    """Each layer reads the one before it, or those that ``sources`` names, layer by layer."""
    sources = sources or [(-1,)] * len(model)
    layers = (layer_of(nodes, of) for nodes, of in zip(model, sources, strict=True))
    return network(n_inputs, *layers, observation=observation)


def params_of(model: Model) -> tuple[LayerParams, ...]:
    """A column that is not read gets a lengthscale of one."""

    def logs(nodes, name):
        values = np.array([getattr(p, name) for p in nodes])
        return jnp.asarray(np.log(np.where(np.isfinite(values), values, 1.0)))

    return tuple(
        LayerParams(*(logs(nodes, name) for name in ("lengthscale", "scale", "nugget")))
        for nodes in model
    )


def node_of(process: Process) -> Node:
    numbers = (1 / process.lengthscale, process.scale, process.nugget)
    return Node(families.by_name(process.kernel), *map(jnp.asarray, numbers))


def data_of(x, y, counts=None, squares=0.0):
    """Site means y, with columns or without, each observed once or ``counts`` times.

    The sum of squares about site means stands at the first site: densities see the total only.
    """
    y = y.reshape(len(x), -1)
    counts = np.ones(len(x)) if counts is None else np.asarray(counts)
    first = np.zeros(y.shape)
    first[0] = 1.0
    of_outputs = np.repeat(np.asarray(counts)[:, None], y.shape[1], axis=1)
    return Data(x, (counts > 0).astype(float), SiteMeans(y, of_outputs, first * squares))


def steps(
    n_sweeps, n_scoring=0, moves=None, bracket=16.0, adapt=False, block=1, m_step=None, nodes=None
):
    """An iteration: sweeps by nodes, then scoring steps for the nodes in turn."""
    return Steps(
        moves or NodeWise(), m_step or Maximise(), nodes or InTurn(), block,
        jnp.asarray(n_sweeps), jnp.asarray(n_scoring), jnp.asarray(bracket), jnp.asarray(adapt),
    )  # fmt: skip
