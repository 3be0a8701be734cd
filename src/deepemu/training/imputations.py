"""The imputed networks that each chain keeps."""

from collections.abc import Callable, Sequence

import numpy as np

from deepemu.core.inference import sem
from deepemu.core.model.network import Data, Network
from deepemu.ensembles import assembly
from deepemu.errors import InterruptedFitWarning, warn
from deepemu.runtime.interrupt import Interrupt
from deepemu.runtime.trees import Shelf
from deepemu.training import blocks
from deepemu.training.keeper import Keeper
from deepemu.training.nearness import with_near
from deepemu.training.plan import Plan


def keep(
    keys: Callable[[int], np.ndarray],
    network: Network,
    plan: Plan,
    sweeps: tuple[int, ...],
    chains: list[sem.Chain],
    data: Sequence[Data],
    advance: Callable[[int], None],
    interrupt: Interrupt,
    keeper: Keeper,
    stage: str,
) -> tuple[assembly.Kept, list[sem.Chain]]:
    """Imputed networks of all chains, each with data of its own, and the chains after them. A
    Ctrl-C keeps those made so far.

    ``sweeps`` come before each network that is kept; ``keys`` gives the chains' random keys for the
    first of them, the second, and so on. Those that another process has made are found again by the
    ``stage`` that the keeper knows.
    """
    kept: Shelf[assembly.Kept] = Shelf(len(chains), len(sweeps))
    ends: list[list[sem.Chain]] = list(keeper.found(stage) or [])
    with_rows = with_near(network, chains, data)
    for index, n_sweeps in enumerate(sweeps):
        if index == len(ends):
            chains, _ = blocks.train_block(
                keys(index), network, plan.sampling(n_sweeps), chains, with_rows, 0,
                plan.m_step.n_between, advance,
            )  # fmt: skip
            ends.append(chains)
            keeper.keep(stage, list(ends))
        else:
            chains = ends[index]
            advance(len(chains) * plan.m_step.n_between)
        kept.put(assembly.networks_of(network, chains, data))
        if interrupt.requested and index + 1 < len(sweeps):
            warn_interrupted(f"{index + 1} of {len(sweeps)} imputations")
            break
    return kept.stacked(), chains


def warn_interrupted(done: str) -> None:
    warn(
        f"Training was interrupted after {done}; the emulator uses those. "
        "Fit again to train in full.",
        InterruptedFitWarning,
    )
