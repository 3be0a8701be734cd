"""Groups of near rows in the inputs of the last layer, as these are now."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from deepemu.core.inference import sem
from deepemu.core.model.network import (
    Data,
    Latents,
    LayerParams,
    Network,
    inputs_in_lengthscales,
)
from deepemu.data.neighbours import grouped
from deepemu.runtime.devices import current
from deepemu.runtime.programs import compiled


def with_near(network: Network, chains: Sequence[sem.Chain], data: Sequence[Data]) -> list[Data]:
    """The chains' data with groups of near rows; as they are, if the solver needs none."""
    return [
        with_near_rows(network, chain.params[-1], chain.imputation.latents, of_chain)
        for chain, of_chain in zip(chains, data, strict=True)
    ]


def with_near_rows(network: Network, params: LayerParams, latents: Latents, data: Data) -> Data:
    """The same, given the parameters of the last layer."""
    if not network.solver.n_near:
        return data
    program = compiled(inputs_in_lengthscales, ("network",), brief=True)
    points, used = np.asarray(program(network, params, latents, data.x)), np.asarray(data.used) > 0
    solver = network.solver
    groups = grouped(points, used, solver.n_near, solver.n_group, current().cores)
    return replace(data, groups=groups)
