"""Imputed networks that are kept of each chain."""

import sys
import warnings
from collections.abc import Callable
from types import FrameType

from deepemu.core.ensemble import Ensemble, Member
from deepemu.core.inference import sem
from deepemu.core.model.network import Data, Network
from deepemu.ensembles import assembly
from deepemu.ensembles.assembly import _build_ensemble
from deepemu.errors import InterruptedFitWarning
from deepemu.runtime import padding, trees
from deepemu.runtime.interrupt import Interrupt
from deepemu.training import blocks
from deepemu.training.plan import Keep, Sampling


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
    members: trees.Shelf[Member] = trees.Shelf(len(chains), len(kept.sweeps))
    of_chain = [data] * len(chains)
    for index, n_sweeps in enumerate(kept.sweeps):
        keys = padding.keys(len(chains), seed, *kept.stream, index)
        chains, _ = blocks.train_block(
            keys, network, sampling.schedule, sampling.between.effort(n_sweeps, sampling.bracket),
            chains, of_chain, 0, sampling.between.n_iterations, advance,
        )  # fmt: skip
        members.put(assembly.build_members(network, chains, of_chain))
        if interrupt.requested and index + 1 < len(kept.sweeps):
            warn_interrupted(f"{index + 1} of {len(kept.sweeps)} imputations")
            break
    shared = sampling.between.shares_parameters
    return _build_ensemble(network, data, members, shared), chains


def warn_interrupted(done: str) -> None:
    warnings.warn(
        f"Training was interrupted after {done}; the emulator uses those. "
        "Fit again to train in full.",
        InterruptedFitWarning,
        stacklevel=frames_inside() + 1,
    )


def frames_inside() -> int:
    """Frames between `warnings.warn` and the user's call: many ways lead here."""
    frame: FrameType | None = sys._getframe(1)
    n_frames = 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("deepemu."):
        frame, n_frames = frame.f_back, n_frames + 1
    return n_frames
