"""Imputed networks on the host, and the ensemble that they make."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from deepemu._types import Array
from deepemu.core.ensemble import Ensemble, Member, build_member, whitening
from deepemu.core.inference import impute, sem
from deepemu.core.model.network import Data, Latents, Network, Params
from deepemu.errors import NumericalError
from deepemu.runtime import padding
from deepemu.runtime.programs import compiled, in_order
from deepemu.runtime.trees import Shelf, row, stack, to_numpy


def as_they_are(network: Network, data: Data, chains: list[sem.Chain]) -> Ensemble:
    """One member of each chain, from its present state."""
    members: Shelf[Member] = Shelf(len(chains), 1)
    members.put(build_members(network, chains, [data] * len(chains)))
    return _build_ensemble(network, data, members, True)


def _build_ensemble(
    network: Network, data: Data, members: Shelf[Member], shares_parameters: bool
) -> Ensemble:
    """Members ordered by chain, with equal weights."""
    chain = np.repeat(np.arange(members.n_chains), members.n_put)
    params_of = chain if shares_parameters else np.arange(len(chain))
    weights = np.full(len(chain), 1.0 / len(chain))
    return _assemble(network, data, members.ordered(), chain, params_of, weights)


def _assemble(
    network: Network,
    data: Data,
    members: Member,
    chain: np.ndarray,
    params_of: np.ndarray,
    weights: np.ndarray,
) -> Ensemble:
    """The ensemble of stacked members, with what those of equal parameters share."""
    require_finite(members.alpha)
    jax.tree.map(require_finite, [link.alpha for link in members.links])
    firsts = np.unique(params_of, return_index=True)[1]
    params = [row(members.params, int(first)) for first in firsts]
    return to_numpy(
        Ensemble(
            network,
            data,
            members,
            padding.indices(chain),
            padding.indices(params_of),
            build_whitening(network, params, data),
            padding.array(weights),
        )
    )


@dataclass(frozen=True)
class Imputed:
    """Imputed networks of all chains without their factors; fields as in `Ensemble`."""

    network: Network
    data: Data
    params: Params
    latents: Latents
    chain: np.ndarray
    params_of: np.ndarray
    weights: np.ndarray


def without_factors(ensemble: Ensemble) -> Imputed:
    """What an ensemble can be computed from."""
    members = ensemble.members
    return Imputed(
        ensemble.network, ensemble.data, members.params, members.latents,
        np.asarray(ensemble.chain), np.asarray(ensemble.params_of), np.asarray(ensemble.weights),
    )  # fmt: skip


def with_factors(imputed: Imputed) -> Ensemble:
    """The ensemble again: the same programs on the same numbers."""
    n_members, data = len(imputed.weights), imputed.data
    holders = [
        sem.Chain(params, impute.Imputation(latents, (), 0, 0))  # type: ignore[arg-type]
        for params, latents in (row((imputed.params, imputed.latents), k) for k in range(n_members))
    ]
    members: Shelf[Member] = Shelf(n_members, 1)
    members.put(build_members(imputed.network, holders, [data] * n_members))
    return _assemble(
        imputed.network, data, members.ordered(), imputed.chain, imputed.params_of, imputed.weights
    )


def require_finite(values: jax.Array) -> None:
    if not np.all(np.isfinite(values)):
        raise NumericalError(
            "A correlation matrix was not positive definite in double precision; "
            "raise the nugget (for instance to 1e-5) or remove rows of X that nearly coincide."
        )


def build_members(net: Network, chains: Sequence[sem.Chain], data: Sequence[Data]) -> list[Member]:
    """The imputed network that each chain holds now."""
    program = compiled(build_member, ("network",))
    return in_order(
        functools.partial(program, net, chain.params, chain.imputation.latents, of_chain)
        for chain, of_chain in zip(chains, data, strict=True)
    )


def build_whitening(net: Network, params: Sequence[Params], data: Data) -> Array:
    """L⁻¹ of the first layer for each set of parameters, stacked."""
    program = compiled(whitening, ("network",))
    return stack(in_order(functools.partial(program, net, each, data) for each in params))
