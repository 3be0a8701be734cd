"""Rows near each row in the inputs of the last layer, as these are now."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from deepemu.core.inference import sem
from deepemu.core.model.network import Data, Latents, LayerParams, Network
from deepemu.data.neighbours import rows_before
from deepemu.runtime.devices import current


def with_near(network: Network, chains: Sequence[sem.Chain], data: Sequence[Data]) -> list[Data]:
    """The chains' data with the rows near each row; as they are, if the solver needs none."""
    return [
        with_near_rows(network, chain.params[-1], chain.imputation.latents, of_chain)
        for chain, of_chain in zip(chains, data, strict=True)
    ]


def with_near_rows(network: Network, params: LayerParams, latents: Latents, data: Data) -> Data:
    """The same, given the parameters of the last layer."""
    if not network.solver.n_near:
        return data
    points, used = _last_inputs(network, params, latents, data), np.asarray(data.used) > 0
    table = rows_before(points, used, network.solver.n_near, current().threads)
    return replace(data, near=table)


def _last_inputs(network: Network, params: LayerParams, latents: Latents, data: Data) -> np.ndarray:
    """The last layer's inputs (n, D) in lengthscales, of which nodes have an average."""
    last, spec = network.depth - 1, network.layers[-1]
    columns = [np.asarray(latents[source]) for source in network.sources(last)]
    known = spec.n_columns - network.n_hidden(last)
    inputs = np.concatenate([*columns, np.asarray(data.x)[:, :known]], axis=1)
    squared = np.where(spec.reads, np.exp(-2.0 * np.asarray(params.log_lengthscale)), 0.0)
    return inputs * np.sqrt(squared.mean(axis=0))
