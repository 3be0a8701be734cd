"""Training of a network by several chains, with and without held-out sites."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from deepemu.core.ensemble import Imputed
from deepemu.core.inference import sem
from deepemu.core.inference.steps import Steps
from deepemu.core.model.network import Data, Network
from deepemu.data.sites import SiteData, pack, pack_without
from deepemu.ensembles import assembly
from deepemu.runtime import padding, trees
from deepemu.runtime.interrupt import Interrupt, deferred_interrupt
from deepemu.runtime.progress import Progress
from deepemu.training import folds, growth, imputations
from deepemu.training.blocks import Blocks, train_block
from deepemu.training.folds import HeldOut
from deepemu.training.keeper import NOTHING_KEPT, Keeper
from deepemu.training.nearness import with_near
from deepemu.training.plan import Plan

# Share of the iterations that have all sites, and the burn-in of that share.
SHARE_TOGETHER, LAST_BURN_IN = 0.3, 0.5
# Share of the time, if that is limited, after which the first M-step waits no longer.
SHARE_OF_WARM_UP = 0.3
# Sweeps of all chains times squared rows for which a program of its own is compiled, in seconds,
# that has no held-out sites.
ONE_PROGRAM = 3e7


@dataclass(frozen=True)
class Trained:
    """Result of training one structure: the imputed networks, the chains (to resume from), their
    traces and held-out predictions.

    ``trace`` has leading axes (chains, iterations); all chains had all sites in the last
    ``n_together`` of them.
    """

    structure: Any
    imputed: Imputed
    chains: list[sem.Chain]
    trace: sem.Trace
    n_together: int
    held_out: HeldOut | None
    interrupted: bool = False


@dataclass(frozen=True)
class Run:
    """Settings that all stages of a training run share."""

    seed: int
    network: Network
    plan: Plan
    n_warm_up: int
    progress: Progress
    interrupt: Interrupt
    keeper: Keeper
    began: float

    @property
    def keeper_of_next(self) -> Keeper:
        """Keeps the stage that begins now, unless a Ctrl-C cuts it short."""
        return NOTHING_KEPT if self.interrupt.requested else self.keeper

    def is_over(self, share: float) -> bool:
        """Whether this share of the plan's seconds is spent."""
        return time.monotonic() - self.began > share * self.plan.seconds

    def blocks(self, n_iter: int, stops_early: bool) -> Blocks:
        return Blocks(n_iter, stops_early, finds_rows=self.network.solver.n_near > 0)


Stage = tuple[list[sem.Chain], sem.Trace, int, HeldOut | None]
"""Chains with averaged parameters, traces, iterations with all sites, held-out predictions."""


def train(
    seed: int,
    structure: Any,
    plan: Plan,
    chains: list[sem.Chain],
    sites: SiteData,
    show_progress: bool,
    sweeps_before: int,
    keeper: Keeper,
) -> Trained:
    """SEM for all chains, block by block; then imputations with the averaged parameters.

    ``sweeps_before``: sweeps run before the first M-step, for chains still at their starting
    values. With folds, each chain is first trained without the sites of a fold, which it then
    predicts, and continues with all sites. A Ctrl-C ends training after the current block; imputed
    networks are kept of the chains as they are then.
    """
    network, n_warm_up = structure.network, -(-sweeps_before // plan.n_sweeps)
    n_steps = n_warm_up + plan.n_iter + plan.n_imputations * plan.m_step.n_between
    with (
        deferred_interrupt() as interrupt,
        Progress(structure.label, n_steps * len(chains), show_progress) as progress,
    ):
        run = Run(seed, network, plan, n_warm_up, progress, interrupt, keeper, time.monotonic())
        stage = _with_folds if plan.n_folds else _all_at_once
        chains, trace, n_together, held_out = stage(run, chains, sites)
        interrupted, n_done = interrupt.requested, trace.log_density.shape[1]
        if interrupted:
            imputations.warn_interrupted(f"{n_done} of {plan.n_iter} iterations")
            interrupt.requested, keeper = False, NOTHING_KEPT
        progress.skip((plan.n_iter - n_done) * len(chains))
        data = [pack(sites)] * len(chains)
        kept, chains = imputations.keep(
            functools.partial(padding.keys, len(chains), seed, padding.KEEP_STREAM), network, plan,
            plan.kept, chains, data, progress.advance, interrupt, keeper, "kept",
        )  # fmt: skip
        imputed = assembly.imputed_of(network, data[0], kept, plan.m_step.shares_parameters)
        ends = [trees.to_numpy(chain) for chain in chains]
        interrupted = interrupted or interrupt.requested
        return Trained(structure, imputed, ends, trace, n_together, held_out, interrupted)


def _all_at_once(run: Run, chains: list[sem.Chain], sites: SiteData) -> Stage:
    plan, data = run.plan, [pack(sites)] * len(chains)
    chains = _warmed_up(run, chains, data)
    chains, trace = _trained(run, 0, run.blocks(plan.n_iter, plan.stops_early), chains, data)
    return _averaged(run, chains, trace, plan.burn_in), trace, trace.log_density.shape[1], None


def _with_folds(run: Run, chains: list[sem.Chain], sites: SiteData) -> Stage:
    """First each chain without a fold, which it predicts; then all chains with all sites."""
    plan, n_last = run.plan, max(round(SHARE_TOGETHER * run.plan.n_iter), 1)
    mask = folds.held_out_sites(run.seed, sites.n_sites, len(chains), plan.n_folds)
    data = [pack_without(sites, rows) for rows in mask]
    n_first = max(plan.n_iter - n_last, 1)
    chains, apart = _trained_apart(run, n_first, chains, data, mask)
    chains = _averaged(run, chains, apart, plan.burn_in)
    keeper = run.keeper_of_next
    chains, held_out = folds.hold_out(run.seed, run.network, plan, chains, sites, mask, keeper)
    if run.network.observation.imputed or not plan.is_guided:  # anchors determine hidden layers
        chains = growth.fill_in(run.network, chains, data, sites.x, mask)
    all_sites = [pack(sites)] * len(chains)
    chains, together = _trained(run, 1, run.blocks(n_last, False), chains, all_sites)
    trace = trees.joined([apart, together], axis=1)
    n_together = together.log_density.shape[1]
    return _averaged(run, chains, together, LAST_BURN_IN), trace, n_together, held_out


def _trained_apart(
    run: Run, n_iter: int, chains: list[sem.Chain], data: list[Data], mask: np.ndarray
) -> tuple[list[sem.Chain], sem.Trace]:
    """Warm-up and iterations of chains without the sites of a mask (chains, n), on the others
    alone; they return with zeros for the latents of what they held out."""
    if run.plan.is_guided:  # anchors may be among the rows that are held out
        chains = _warmed_up(run, chains, data)
        return _trained(run, 0, run.blocks(n_iter, run.plan.stops_early), chains, data)
    rows, of_all = [np.flatnonzero(~held_out) for held_out in mask], len(data[0].x)
    is_worth_it = run.plan.n_iter * run.plan.n_sweeps * mask.size * mask.shape[1] > ONE_PROGRAM
    size = padding.bucket(max(map(len, rows))) if is_worth_it else of_all
    chains = [_moved(folds.gathered, *each, size) for each in zip(chains, rows, strict=True)]
    data = [folds.gathered(of, each, size) for of, each in zip(data, rows, strict=True)]
    chains = _warmed_up(run, chains, data)
    chains, trace = _trained(run, 0, run.blocks(n_iter, run.plan.stops_early), chains, data)
    back = [_moved(folds.scattered, *each, of_all) for each in zip(chains, rows, strict=True)]
    return back, trace


def _moved(move: Callable[..., Any], chain: sem.Chain, rows: np.ndarray, size: int) -> sem.Chain:
    """The chain with its latents gathered or scattered."""
    return growth.with_latents(chain, move(chain.imputation.latents, rows, size))


def _warmed_up(run: Run, chains: list[sem.Chain], data: list[Data]) -> list[sem.Chain]:
    """Iterations without an M-step: parameters are fixed, the latent layers are imputed."""
    blocks = run.blocks(run.n_warm_up, False)
    stream = (padding.WARM_UP_STREAM, 0)
    chains = _iterate(run, stream, run.plan.warm_up(), blocks, chains, data, SHARE_OF_WARM_UP)
    run.progress.skip((run.n_warm_up - blocks.n_done) * len(chains))
    return chains


def _trained(
    run: Run, part: int, blocks: Blocks, chains: list[sem.Chain], data: list[Data]
) -> tuple[list[sem.Chain], sem.Trace]:
    """Iterations of SEM, with their trace."""
    stream, share = (padding.TRAIN_STREAM, part), 1.0 if part else 1.0 - SHARE_TOGETHER
    chains = _iterate(run, stream, run.plan.training(), blocks, chains, data, share)
    return chains, blocks.trace


def _iterate(
    run: Run,
    stream: tuple[int, int],
    steps: Steps,
    blocks: Blocks,
    chains: list[sem.Chain],
    data: list[Data],
    share: float,
) -> list[sem.Chain]:
    """Block after block, until they end, until a Ctrl-C, or until a share of the time is spent."""
    stage, keeper = f"iterations {stream}", run.keeper_of_next
    chains, data = _as_found(run, stage, blocks, chains, data)
    keys = padding.keys(len(chains), run.seed, *stream)
    stops = lambda: run.interrupt.requested or run.is_over(share)  # noqa: E731
    while blocks.n_next and not (blocks.n_done and stops()):
        began = time.monotonic()
        if blocks.searches:
            data = with_near(run.network, chains, data)
        chains, trace = train_block(
            keys, run.network, steps, chains, data, blocks.n_done, blocks.n_next,
            run.progress.advance,
        )  # fmt: skip
        blocks.add(trace, time.monotonic() - began)
        if keeper.is_due:
            keeper.keep(stage, _state(chains, data, blocks))
    if blocks.n_done:
        if not run.interrupt.requested:
            blocks.end()
        keeper.keep(stage, _state(chains, data, blocks))
    return chains


def _state(chains: list[sem.Chain], data: list[Data], blocks: Blocks) -> dict[str, Any]:
    """The groups of near rows are those of an earlier iteration, and cannot be found again."""
    return {"chains": chains, "groups": [each.groups for each in data], **blocks.state}


def _as_found(
    run: Run, stage: str, blocks: Blocks, chains: list[sem.Chain], data: list[Data]
) -> tuple[list[sem.Chain], list[Data]]:
    """Chains and data after the blocks of an earlier process, if it has kept some."""
    state = run.keeper.found(stage)
    if state is None:
        return chains, data
    blocks.resume(state)
    run.progress.resume(blocks.n_done * len(chains))
    grouped = zip(data, state["groups"], strict=True)
    return state["chains"], [replace(of_chain, groups=groups) for of_chain, groups in grouped]


def average(path: np.ndarray) -> np.ndarray:
    """θ̂ = mean over iterations (axis 1) of θ_t on the natural scale, equation (9) of the paper."""
    return np.log(np.mean(np.exp(path), axis=1))


def _averaged(
    run: Run, chains: list[sem.Chain], trace: sem.Trace, burn_in: float
) -> list[sem.Chain]:
    """Each chain with its parameters averaged over the iterations after burn-in; unchanged where
    parameters are sampled."""
    if not run.plan.m_step.shares_parameters:
        return chains
    n_done = trace.log_density.shape[1]
    burn = min(int(burn_in * n_done), n_done - 1)
    averages = jax.tree.map(lambda path: average(path[:, burn:]), trace.params)
    return [sem.Chain(trees.row(averages, k), chain.imputation) for k, chain in enumerate(chains)]
