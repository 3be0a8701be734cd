"""The host side of training: chains, blocks, averaging, and the ensemble that comes out."""

import time
from dataclasses import dataclass

import jax
import numpy as np

from deepemu import _boundary, folds, imputation
from deepemu._progress import Interrupt, Progress, deferred_interrupt
from deepemu._types import Array
from deepemu.core import impute, sem
from deepemu.core.network import Data, Latents, LayerParams, Network, Params
from deepemu.core.predict import Ensemble
from deepemu.folds import HeldOut, pack
from deepemu.imputation import Keep, Sampling
from deepemu.validation import Replicates

BURN_STEPS = 4
THIN_STEPS = 2
BLOCK_SECONDS = 0.5
CHECK_EVERY = 20
# Iterations with all sites after those without a fold, and the part of them before averages.
SHARE_TOGETHER, LAST_BURN_IN = 0.3, 0.5
FEWEST_ITERATIONS = 60
FEWEST_CHAINS = 4
LARGEST_DRIFT = 1.4
ROUND_OFF = 1e-9
GP_STARTS = (0.05, 0.2, 0.5, 1.0, 3.0)
GP_SCOUT_STEPS = 15
GP_STEPS = 200
GP_TOLERANCE = 1e-7


@dataclass(frozen=True)
class Plan:
    """How long to train and how much to keep."""

    sampling: Sampling
    n_iter: int
    burn_in: float
    n_sweeps: int
    n_scoring: int
    n_imputations: int
    stops_early: bool
    n_folds: int

    @property
    def kept(self) -> Keep:
        """Imputations two I-steps apart, after four more for averaged parameters to take hold."""
        first = (BURN_STEPS + THIN_STEPS) * self.n_sweeps
        later = (THIN_STEPS * self.n_sweeps,) * (self.n_imputations - 1)
        return Keep((first, *later), (_boundary.KEEP_STREAM,))


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


def starting_params(network: Network, scales: list[float], nuggets: list[float]) -> Params:
    """Lengthscales of 1, and the given scale and nugget for each layer."""
    return tuple(
        LayerParams(
            np.zeros((spec.width, spec.n_columns)),  # type: ignore[arg-type]
            np.full(spec.width, np.log(scale)),  # type: ignore[arg-type]
            np.full(spec.width, np.log(nugget)),  # type: ignore[arg-type]
        )
        for spec, scale, nugget in zip(network.layers, scales, nuggets, strict=True)
    )


def starting_latents(network: Network, x: np.ndarray, size: int) -> Latents:
    """Every hidden layer starts as a copy of the inputs, so that the network is near a GP.

    A layer narrower than its inputs starts at their principal components, a wider one repeats.
    """
    latents, below = [], x
    for spec in network.layers[:-1]:
        below = _resize_columns(below, spec.width)
        latents.append(_boundary.pad_rows(below, size))
    return tuple(latents)


def _resize_columns(values: np.ndarray, width: int) -> np.ndarray:
    n_columns = values.shape[1]
    if width >= n_columns:
        return values[:, np.arange(width) % n_columns]
    centred = values - values.mean(axis=0)
    # Rows times the leading right singular vectors; fewer rows than columns still give `width`.
    directions = np.linalg.svd(centred, full_matrices=True)[2][:width]
    scores = centred @ directions.T
    span = np.ptp(scores, axis=0)
    return (scores - scores.min(axis=0)) / np.where(span > 0, span, 1.0)


def starting_imputation(latents: Latents, bracket_factor: float) -> impute.Imputation:
    """Mean angles are set so that the first brackets are the full circle; never zero, so that an
    infinite factor gives an infinite bracket and not an undefined one."""
    first = impute.FULL_CIRCLE / min(bracket_factor, impute.FULL_CIRCLE)
    angles = tuple(_boundary.array(np.full(w.shape[1], first)) for w in latents)
    none = _boundary.indices(np.zeros(()))
    return impute.Imputation(latents, angles, evaluations=none, sweeps=none)


def start_chains(plan: Plan, params: Params, latents: Latents, n_chains: int) -> list[sem.Chain]:
    """Equal chains; their keys will make them differ."""
    return [sem.Chain(params, starting_imputation(latents, plan.sampling.bracket))] * n_chains


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
            imputation.warn_interrupted(f"{n_done} of {plan.n_iter} iterations")
            interrupt.requested = False
        progress.skip((plan.n_iter - n_done) * len(chains))
        ensemble, chains = imputation.keep(
            seed, network, plan.sampling, plan.kept, paths.chains, pack(sites),
            progress.advance, interrupt,
        )  # fmt: skip
        ends = [_boundary.to_numpy(chain) for chain in chains]
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
    data = [folds.pack_without(sites, rows) for rows in left_out]
    n_first = max(plan.n_iter - n_last, 1)
    chains = _warmed_up(run, chains, data)
    chains, apart = _trained(run, 0, Blocks(n_first, plan.stops_early), chains, data)
    chains = _settle(run, chains, apart, plan.burn_in)
    chains, held_out = folds.hold_out(run.seed, run.network, plan.sampling, chains, sites, left_out)
    chains = _boundary.fill_in(run.network, chains, data, sites.x, left_out)
    all_sites = [pack(sites)] * len(chains)
    chains, together = _trained(run, 1, Blocks(n_last, False), chains, all_sites)
    trace = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), apart, together)
    n_together = together.log_density.shape[1]
    return Paths(_settle(run, chains, together, LAST_BURN_IN), trace, n_together, held_out)


def _warmed_up(run: Run, chains: list[sem.Chain], data: list[Data]) -> list[sem.Chain]:
    """Iterations without an M-step: the parameters stay, the hidden layers are imputed."""
    blocks, effort = Blocks(run.n_warm_up, False), _effort(run.plan, n_scoring=0)
    chains = _iterate(run, (_boundary.WARM_UP_STREAM, 0), effort, blocks, chains, data)
    run.progress.skip((run.n_warm_up - blocks.n_done) * len(chains))
    return chains


def _trained(
    run: Run, part: int, blocks: "Blocks", chains: list[sem.Chain], data: list[Data]
) -> tuple[list[sem.Chain], sem.Trace]:
    """Iterations of SEM, and the way that the parameters took."""
    effort = _effort(run.plan, run.plan.n_scoring)
    chains = _iterate(run, (_boundary.TRAIN_STREAM, part), effort, blocks, chains, data)
    imputation.require_finite(blocks.trace.log_density)
    return chains, blocks.trace


def _effort(plan: Plan, n_scoring: int) -> sem.Effort:
    return _boundary.effort(plan.n_sweeps, n_scoring, plan.sampling.bracket, adapt=True)


def _iterate(
    run: Run,
    stream: tuple[int, int],
    effort: sem.Effort,
    blocks: "Blocks",
    chains: list[sem.Chain],
    data: list[Data],
) -> list[sem.Chain]:
    """Block after block, until they end or until a Ctrl-C."""
    keys = _boundary.keys(len(chains), run.seed, *stream)
    while blocks.n_next and not (run.interrupt.requested and blocks.n_done):
        began = time.monotonic()
        chains, trace = _boundary.train_block(
            keys, run.network, run.plan.sampling.schedule, effort, chains, data, blocks.n_done,
            blocks.n_next, run.progress.advance,
        )  # fmt: skip
        blocks.add(trace, time.monotonic() - began)
    return chains


class Blocks:
    """The cut of training into blocks, and its end.

    A block is long enough to hide the cost of a call and short enough to wait for after a Ctrl-C.
    Where blocks are cut changes no number: draws and the checks of `has_settled` belong to an
    iteration.
    """

    def __init__(self, n_iter: int, stops_early: bool) -> None:
        self._n_iter, self._stops_early = n_iter, stops_early
        self._traces: list[sem.Trace] = []
        self._length = 1
        self._settled = False
        self.n_done = 0

    @property
    def n_next(self) -> int:
        """Iterations of the next block; zero at the end of training."""
        if self._settled:
            return 0
        until_check = CHECK_EVERY - self.n_done % CHECK_EVERY
        return min(self._length, until_check, self._n_iter - self.n_done)

    @property
    def trace(self) -> sem.Trace:
        return jax.tree.map(lambda *blocks: np.concatenate(blocks, axis=1), *self._traces)

    def add(self, trace: sem.Trace, seconds: float) -> None:
        self._traces.append(trace)
        n_iterations = trace.log_density.shape[1]
        self.n_done += n_iterations
        wanted = n_iterations * BLOCK_SECONDS / max(seconds, 1e-6)
        self._length = int(np.clip(wanted, 1, 2 * self._length))
        if self._stops_early and self.n_done % CHECK_EVERY == 0:
            self._settled = has_settled(self.trace)


def has_settled(trace: sem.Trace) -> bool:
    """Whether the chains' paths have become stationary, after `FEWEST_ITERATIONS` or more.

    The second half of the iterations is cut in two, and each path's drift between the two parts is
    measured in standard errors over chains. Training has settled if the log density rose by less
    than one standard error and the parameters' squared drifts are on average no more than
    `LARGEST_DRIFT` times (K − 1)/(K − 3), which they are for K > 3 chains that go nowhere.
    """
    n_chains, n_done = trace.log_density.shape
    if n_chains < FEWEST_CHAINS or n_done < FEWEST_ITERATIONS:
        return False
    drifts = np.concatenate([_drifts(path) for path in jax.tree.leaves(trace.params)])
    rise = _drifts(np.asarray(trace.log_density))
    most = LARGEST_DRIFT * (n_chains - 1) / (n_chains - 3)
    return bool(np.all(rise < 1.0) and np.sum(drifts**2) <= most * drifts.size)


def _drifts(path: np.ndarray) -> np.ndarray:
    """Mean change of paths (chains, iterations, …) in their second half, in standard errors."""
    n = path.shape[1]
    change = path[:, 3 * n // 4 :].mean(axis=1) - path[:, n // 2 : 3 * n // 4].mean(axis=1)
    change = change.reshape(len(change), -1)
    # Equal chains, such as those of one layer, have no spread: their drift is then a plain change.
    smallest = ROUND_OFF * (1.0 + np.max(np.abs(path)))
    error = np.maximum(change.std(axis=0, ddof=1) / np.sqrt(len(change)), smallest)
    moves = np.max(np.abs(change), axis=0) > smallest  # a parameter that is held does not
    return change.mean(axis=0)[moves] / error[moves]


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
    return [
        sem.Chain(_boundary.row(averages, k), chain.imputation) for k, chain in enumerate(chains)
    ]


def train_single_layer(
    network: Network, sites: Replicates, params: LayerParams, seed: int, n_folds: int
) -> Trained:
    """A plain Gaussian process: the best of several ascents, and one member."""
    starts, data = _gp_starts(params, seed), pack(sites)
    fitted, values = _best_ascent(network, starts, data)
    add_axes = lambda each: np.asarray(each)[None, None]  # noqa: E731
    trace = jax.tree.map(add_axes, sem.Trace((fitted,), np.sum(np.asarray(values))))
    imputation.require_finite(trace.log_density)
    chains = [_boundary.to_numpy(sem.Chain((fitted,), starting_imputation((), 1.0)))]
    held_out = _refit_folds(network, sites, starts, seed, n_folds) if n_folds else None
    return Trained(imputation.as_they_are(network, data, chains), chains, trace, 1, held_out)


def _best_ascent(network: Network, starts: LayerParams, data: Data) -> tuple[LayerParams, Array]:
    return _boundary.fit_single_layer(network, starts, data, GP_SCOUT_STEPS, GP_STEPS, GP_TOLERANCE)


def _refit_folds(
    network: Network, sites: Replicates, starts: LayerParams, seed: int, n_folds: int
) -> HeldOut:
    """Predictions of each fold by the process that was fitted without it, by the same program."""
    n_folds = min(n_folds, len(sites.x))
    left_out = folds.left_out(seed, len(sites.x), n_folds, n_folds)
    parts = []
    for rows in left_out:
        data = folds.pack_without(sites, rows)
        params, _ = _best_ascent(network, starts, data)
        chains = [sem.Chain((params,), starting_imputation((), 1.0))]
        ensemble = imputation.as_they_are(network, data, chains)
        parts.append(_boundary.predict_chains([(ensemble, 0)], sites.x[rows]))
    return folds.one_row(parts, left_out)


def _gp_starts(params: LayerParams, seed: int) -> LayerParams:
    """Equal lengthscales of several sizes, and some random ones, in units of the inputs."""
    given = np.asarray(params.log_lengthscale)
    equal = [np.full(given.shape, np.log(start)) for start in GP_STARTS]
    log_lengthscale = np.stack([given, *equal, *_random_logs(seed, given.shape)])
    repeat = lambda values: _boundary.array(np.tile(values, (len(log_lengthscale), 1)))  # noqa: E731
    return LayerParams(
        _boundary.array(log_lengthscale), repeat(params.log_scale), repeat(params.log_nugget)
    )


def _random_logs(seed: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng([seed, 1])  # not the stream that draws the folds
    low, high = np.log(GP_STARTS[0]), np.log(GP_STARTS[-1])
    return [generator.uniform(low, high, shape) for _ in range(2)]
