"""Training of a deep network by several chains, with and without held-out sites."""

import time
from dataclasses import dataclass

import jax
import numpy as np

from deepemu.core.ensemble import Ensemble
from deepemu.core.inference import sem
from deepemu.core.model.network import Data, Network
from deepemu.data.sites import Replicates, pack, pack_without
from deepemu.ensembles import assembly
from deepemu.runtime import padding, trees
from deepemu.runtime.interrupt import Interrupt, deferred_interrupt
from deepemu.runtime.progress import Progress
from deepemu.training import folds, growth, imputations
from deepemu.training.blocks import Blocks, train_block
from deepemu.training.folds import HeldOut
from deepemu.training.plan import Plan, effort

# Iterations with all sites after those without a fold, and the part of them before averages.
SHARE_TOGETHER, LAST_BURN_IN = 0.3, 0.5


@dataclass(frozen=True)
class Trained:
    """An ensemble, the chains it came from (to go on from), their traces, and predictions of sites
    that they had not seen.

    ``trace`` has leading axes (chains, iterations); all chains had all sites in the last
    ``n_together`` of them.
    """

    ensemble: Ensemble
    chains: list[sem.Chain]
    trace: sem.Trace
    n_together: int
    held_out: HeldOut | None
    interrupted: bool = False


@dataclass(frozen=True)
class Run:
    """What all parts of a training run share."""

    seed: int
    network: Network
    plan: Plan
    n_warm_up: int
    progress: Progress
    interrupt: Interrupt


def train(
    seed: int,
    network: Network,
    plan: Plan,
    chains: list[sem.Chain],
    sites: Replicates,
    show_progress: bool,
    sweeps_before: int,
    label: str,
) -> Trained:
    """SEM for all chains, block by block; then imputations with the averaged parameters.

    Chains whose hidden layers have not been imputed yet need ``sweeps_before`` the first M-step.

    With folds, each chain is first trained without the sites of a fold, which it then predicts,
    and goes on with all sites. A Ctrl-C ends training after the current block, and the ensemble
    is built from what is there.
    """
    n_warm_up = -(-sweeps_before // plan.n_sweeps)
    n_kept = plan.n_imputations * plan.sampling.between.n_iterations
    n_steps = n_warm_up + plan.n_iter + n_kept
    with (
        deferred_interrupt() as interrupt,
        Progress(label, n_steps * len(chains), show_progress) as progress,
    ):
        run = Run(seed, network, plan, n_warm_up, progress, interrupt)
        paths = (
            _with_folds(run, chains, sites) if plan.n_folds else _all_at_once(run, chains, sites)
        )
        n_done = paths.trace.log_density.shape[1]
        interrupted = interrupt.requested
        if interrupted:
            imputations.warn_interrupted(f"{n_done} of {plan.n_iter} iterations")
            interrupt.requested = False
        progress.skip((plan.n_iter - n_done) * len(chains))
        ensemble, chains = imputations.keep(
            seed, network, plan.sampling, plan.kept, paths.chains, pack(sites),
            progress.advance, interrupt,
        )  # fmt: skip
        ends = [trees.to_numpy(chain) for chain in chains]
        interrupted = interrupted or interrupt.requested
        return Trained(ensemble, ends, paths.trace, paths.n_together, paths.held_out, interrupted)


@dataclass(frozen=True)
class Paths:
    """Chains with their parameters averaged, the way they came, and what they predicted unseen."""

    chains: list[sem.Chain]
    trace: sem.Trace
    n_together: int
    held_out: HeldOut | None = None


def _all_at_once(run: Run, chains: list[sem.Chain], sites: Replicates) -> Paths:
    plan, data = run.plan, [pack(sites)] * len(chains)
    chains = _warmed_up(run, chains, data)
    chains, trace = _trained(run, 0, Blocks(plan.n_iter, plan.stops_early), chains, data)
    n_done = trace.log_density.shape[1]
    return Paths(_settle(run, chains, trace, plan.burn_in), trace, n_done)


def _with_folds(run: Run, chains: list[sem.Chain], sites: Replicates) -> Paths:
    """First each chain without a fold, which it predicts; then all chains with all sites."""
    plan, n_last = run.plan, max(round(SHARE_TOGETHER * run.plan.n_iter), 1)
    left_out = folds.left_out(run.seed, len(sites.x), len(chains), plan.n_folds)
    chains = [folds.forget(chain, rows) for chain, rows in zip(chains, left_out, strict=True)]
    data = [pack_without(sites, rows) for rows in left_out]
    n_first = max(plan.n_iter - n_last, 1)
    chains = _warmed_up(run, chains, data)
    chains, apart = _trained(run, 0, Blocks(n_first, plan.stops_early), chains, data)
    chains = _settle(run, chains, apart, plan.burn_in)
    chains, held_out = folds.hold_out(run.seed, run.network, plan.sampling, chains, sites, left_out)
    chains = growth.fill_in(run.network, chains, data, sites.x, left_out)
    all_sites = [pack(sites)] * len(chains)
    chains, together = _trained(run, 1, Blocks(n_last, False), chains, all_sites)
    trace = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), apart, together)
    n_together = together.log_density.shape[1]
    return Paths(_settle(run, chains, together, LAST_BURN_IN), trace, n_together, held_out)


def _warmed_up(run: Run, chains: list[sem.Chain], data: list[Data]) -> list[sem.Chain]:
    """Iterations without an M-step: the parameters stay, the hidden layers are imputed."""
    blocks, effort = Blocks(run.n_warm_up, False), _effort(run.plan, n_scoring=0)
    chains = _iterate(run, (padding.WARM_UP_STREAM, 0), effort, blocks, chains, data)
    run.progress.skip((run.n_warm_up - blocks.n_done) * len(chains))
    return chains


def _trained(
    run: Run, part: int, blocks: "Blocks", chains: list[sem.Chain], data: list[Data]
) -> tuple[list[sem.Chain], sem.Trace]:
    """Iterations of SEM, and the way that the parameters took."""
    effort = _effort(run.plan, run.plan.n_scoring)
    chains = _iterate(run, (padding.TRAIN_STREAM, part), effort, blocks, chains, data)
    assembly.require_finite(blocks.trace.log_density)
    return chains, blocks.trace


def _effort(plan: Plan, n_scoring: int) -> sem.Effort:
    return effort(plan.n_sweeps, n_scoring, plan.sampling.bracket, adapt=True)


def _iterate(
    run: Run,
    stream: tuple[int, int],
    effort: sem.Effort,
    blocks: "Blocks",
    chains: list[sem.Chain],
    data: list[Data],
) -> list[sem.Chain]:
    """Block after block, until they end or until a Ctrl-C."""
    keys = padding.keys(len(chains), run.seed, *stream)
    while blocks.n_next and not (run.interrupt.requested and blocks.n_done):
        began = time.monotonic()
        chains, trace = train_block(
            keys, run.network, run.plan.sampling.schedule, effort, chains, data, blocks.n_done,
            blocks.n_next, run.progress.advance,
        )  # fmt: skip
        blocks.add(trace, time.monotonic() - began)
    return chains


def average(path: np.ndarray) -> np.ndarray:
    """θ̂ = mean over iterations (axis 1) of θ_t on the natural scale, equation (9) of the paper."""
    return np.log(np.mean(np.exp(path), axis=1))


def _settle(run: Run, chains: list[sem.Chain], trace: sem.Trace, burn_in: float) -> list[sem.Chain]:
    """Each chain with its parameters averaged over the iterations after burn-in; as it is where
    parameters are drawn."""
    if not run.plan.sampling.between.shares_parameters:
        return chains
    n_done = trace.log_density.shape[1]
    burn = min(int(burn_in * n_done), n_done - 1)
    averages = jax.tree.map(lambda path: average(path[:, burn:]), trace.params)
    return [sem.Chain(trees.row(averages, k), chain.imputation) for k, chain in enumerate(chains)]
