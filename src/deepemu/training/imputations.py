"""The imputed networks that each chain keeps."""

from collections.abc import Callable

from deepemu.core.ensemble import Imputed
from deepemu.core.inference import sem
from deepemu.core.model.network import Data, Network
from deepemu.ensembles import assembly
from deepemu.errors import InterruptedFitWarning, warn
from deepemu.runtime import padding
from deepemu.runtime.interrupt import Interrupt
from deepemu.runtime.trees import Shelf
from deepemu.training import blocks
from deepemu.training.nearness import with_near
from deepemu.training.plan import Plan


def keep(
    seed: int,
    network: Network,
    plan: Plan,
    sweeps: tuple[int, ...],
    stream: tuple[int, ...],
    chains: list[sem.Chain],
    data: Data,
    advance: Callable[[int], None],
    interrupt: Interrupt,
) -> tuple[Imputed, list[sem.Chain]]:
    """Imputed networks of all chains, and the chains after them. A Ctrl-C keeps those made so far.

    ``sweeps`` come before each network that is kept, ``stream`` is that of their random numbers.
    """
    kept: Shelf[assembly.Kept] = Shelf(len(chains), len(sweeps))
    of_chain = [data] * len(chains)
    with_rows = with_near(network, chains, of_chain)
    for index, n_sweeps in enumerate(sweeps):
        keys = padding.keys(len(chains), seed, *stream, index)
        chains, _ = blocks.train_block(
            keys, network, plan.sampling(n_sweeps), chains, with_rows, 0, plan.m_step.n_between,
            advance,
        )  # fmt: skip
        kept.put(assembly.networks_of(network, chains, of_chain))
        if interrupt.requested and index + 1 < len(sweeps):
            warn_interrupted(f"{index + 1} of {len(sweeps)} imputations")
            break
    return assembly.imputed_of(network, data, kept, plan.m_step.shares_parameters), chains


def warn_interrupted(done: str) -> None:
    warn(
        f"Training was interrupted after {done}; the emulator uses those. "
        "Fit again to train in full.",
        InterruptedFitWarning,
    )
