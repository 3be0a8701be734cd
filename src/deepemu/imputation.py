"""Imputed networks that are kept, and the ensemble that they make."""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import jax
import numpy as np

from deepemu import _boundary
from deepemu._progress import Interrupt
from deepemu.core import impute, sem
from deepemu.core.network import Data, Latents, Network, Params
from deepemu.core.predict import Ensemble, Member
from deepemu.errors import InterruptedFitWarning, NumericalError


@dataclass(frozen=True)
class Averaged:
    """Imputations with the parameters held: those of a chain share their factors.

    The training program serves with no scoring steps, and its sweeps make one iteration.
    """

    n_iterations: int = 1
    shares_parameters: bool = True

    def effort(self, n_sweeps: int, bracket: float) -> sem.Effort:
        return _boundary.effort(n_sweeps, 0, bracket, False)


@dataclass(frozen=True)
class Drawn:
    """Imputations between which parameters are sampled too, so that each has its own.

    They are ten iterations apart, because parameters move slower than latents.
    """

    n_sweeps: int
    n_scoring: int
    n_iterations: int = 10
    shares_parameters: bool = False

    def effort(self, n_sweeps: int, bracket: float) -> sem.Effort:
        """As in training, whatever the number of sweeps that held parameters would need."""
        return _boundary.effort(self.n_sweeps, self.n_scoring, bracket, False)


@dataclass(frozen=True)
class Sampling:
    """How networks are sampled: the training program, the width of slice brackets, and what
    happens between two that are kept."""

    schedule: sem.Schedule
    bracket: float
    between: Averaged | Drawn


@dataclass(frozen=True)
class Keep:
    """Sweeps before each imputation that is kept, and the stream of random numbers they use."""

    sweeps: tuple[int, ...]
    stream: tuple[int, ...]


def keep(
    seed: int,
    network: Network,
    sampling: Sampling,
    kept: Keep,
    chains: list[sem.Chain],
    data: Data,
    advance: Callable[[int], None],
    interrupt: Interrupt,
) -> tuple[Ensemble, list[sem.Chain]]:
    """Imputed networks of all chains, and the chains after them. A Ctrl-C keeps what is there."""
    members: _boundary.Shelf[Member] = _boundary.Shelf(len(chains), len(kept.sweeps))
    of_chain = [data] * len(chains)
    for index, n_sweeps in enumerate(kept.sweeps):
        keys = _boundary.keys(len(chains), seed, *kept.stream, index)
        chains, _ = _boundary.train_block(
            keys, network, sampling.schedule, sampling.between.effort(n_sweeps, sampling.bracket),
            chains, of_chain, 0, sampling.between.n_iterations, advance,
        )  # fmt: skip
        members.put(_boundary.build_members(network, chains, of_chain))
        if interrupt.requested and index + 1 < len(kept.sweeps):
            warn_interrupted(f"{index + 1} of {len(kept.sweeps)} imputations")
            break
    shared = sampling.between.shares_parameters
    return _build_ensemble(network, data, members, shared), chains


def as_they_are(network: Network, data: Data, chains: list[sem.Chain]) -> Ensemble:
    """One member of each chain, from its present state."""
    members: _boundary.Shelf[Member] = _boundary.Shelf(len(chains), 1)
    members.put(_boundary.build_members(network, chains, [data] * len(chains)))
    return _build_ensemble(network, data, members, True)


def _build_ensemble(
    network: Network, data: Data, members: _boundary.Shelf[Member], shares_parameters: bool
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
    params = [_boundary.row(members.params, int(first)) for first in firsts]
    return _boundary.to_numpy(
        Ensemble(
            network,
            data,
            members,
            _boundary.indices(chain),
            _boundary.indices(params_of),
            _boundary.build_whitening(network, params, data),
            _boundary.array(weights),
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
        for params, latents in (
            _boundary.row((imputed.params, imputed.latents), k) for k in range(n_members)
        )
    ]
    members: _boundary.Shelf[Member] = _boundary.Shelf(n_members, 1)
    members.put(_boundary.build_members(imputed.network, holders, [data] * n_members))
    return _assemble(
        imputed.network, data, members.ordered(), imputed.chain, imputed.params_of, imputed.weights
    )


def require_finite(values: jax.Array) -> None:
    if not np.all(np.isfinite(values)):
        raise NumericalError(
            "A correlation matrix was not positive definite in double precision; "
            "raise the nugget (for instance to 1e-5) or remove rows of X that nearly coincide."
        )


def warn_interrupted(done: str) -> None:
    warnings.warn(
        f"Training was interrupted after {done}; the emulator uses those. "
        "Fit again to train in full.",
        InterruptedFitWarning,
        stacklevel=_frames_inside() + 1,
    )


def _frames_inside() -> int:
    """Frames between `warnings.warn` and the user's call: many ways lead here."""
    frame: FrameType | None = sys._getframe(1)
    n_frames = 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("deepemu."):
        frame, n_frames = frame.f_back, n_frames + 1
    return n_frames
