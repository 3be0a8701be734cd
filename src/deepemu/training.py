"""The host side of training: chains, blocks, averaging, and the ensemble that comes out."""

import warnings
from dataclasses import dataclass

import jax
import numpy as np

from deepemu import _boundary
from deepemu._progress import Interrupt, Progress, deferred_interrupt
from deepemu.core import impute, sem
from deepemu.core.network import Data, Latents, LayerParams, Network, Params
from deepemu.core.predict import Ensemble, Member
from deepemu.errors import InterruptedFitWarning, NumericalError

BURN_STEPS = 4
THIN_STEPS = 2
GP_STARTS = (0.05, 0.2, 0.5, 1.0, 3.0)
GP_SCOUT_STEPS = 15
GP_STEPS = 200
GP_TOLERANCE = 1e-7


@dataclass(frozen=True)
class Plan:
    """How long to train and how much to keep."""

    schedule: sem.Schedule
    n_iter: int
    burn_in: float
    n_sweeps: int
    n_scoring: int
    bracket: float
    n_imputations: int


@dataclass(frozen=True)
class Trained:
    """An ensemble, the stacked chains it came from (to go on from), and their traces.

    ``trace`` has leading axes (chains, iterations).
    """

    ensemble: Ensemble
    chains: sem.Chain
    trace: sem.Trace


def starting_params(network: Network, scales: list[float], nuggets: list[float]) -> Params:
    """Lengthscales of 1, and the given scale and nugget for each layer."""
    return tuple(
        LayerParams(
            _boundary.array(np.zeros((spec.width, spec.n_columns))),
            _boundary.array(np.full(spec.width, np.log(scale))),
            _boundary.array(np.full(spec.width, np.log(nugget))),
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


def start_chains(plan: Plan, params: Params, latents: Latents, n_chains: int) -> sem.Chain:
    """Equal chains, stacked; their keys will make them differ."""
    chain = sem.Chain(params, impute.start(latents, plan.bracket))
    return _boundary.stack([chain] * n_chains)


def train(
    seed: int,
    network: Network,
    plan: Plan,
    chains: sem.Chain,
    data: Data,
    show_progress: bool,
) -> Trained:
    """SEM for all chains, block by block; then imputations with the averaged parameters.

    A Ctrl-C ends training after the current block, and the ensemble is built from what is there.
    """
    n_chains = chains.imputation.evaluations.shape[0]
    key_train, key_keep = _boundary.split_key(_boundary.seed_key(seed), 2)
    keys = _boundary.split_key(key_train, n_chains)
    effort = _boundary.effort(plan.n_sweeps, plan.n_scoring, plan.bracket, True)
    traces: list[sem.Trace] = []
    steps = plan.n_iter + plan.n_imputations
    with (
        deferred_interrupt() as interrupt,
        Progress("training", steps * n_chains, show_progress) as progress,
    ):
        for first in range(0, plan.n_iter, plan.schedule.block):
            n_now = min(plan.schedule.block, plan.n_iter - first)
            chains, trace = _boundary.train_block(
                keys, network, plan.schedule, effort, chains, data, first, n_now,
                progress.advance,
            )  # fmt: skip
            traces.append(trace)
            if interrupt.requested and first + n_now < plan.n_iter:
                _warn_interrupted(f"{first + n_now} of {plan.n_iter} iterations")
                break
        trace = jax.tree.map(lambda *blocks: np.concatenate(blocks, axis=1), *traces)
        _require_finite(trace.log_density)
        chains = _average_late(plan, chains, trace)
        return _impute(key_keep, network, plan, chains, data, trace, progress, interrupt)


def _warn_interrupted(done: str) -> None:
    warnings.warn(
        f"Training was interrupted after {done}; the emulator uses those. "
        "Fit again to train in full.",
        InterruptedFitWarning,
        stacklevel=5,
    )


def _average_late(plan: Plan, chains: sem.Chain, trace: sem.Trace) -> sem.Chain:
    """Each chain with its parameters averaged over the iterations after burn-in."""
    n_done = trace.log_density.shape[1]
    burn = min(int(plan.burn_in * n_done), n_done - 1)
    kept = jax.tree.map(lambda path: path[:, burn:], trace.params)
    return sem.Chain(_boundary.average(kept), chains.imputation)


def _impute(
    key: jax.Array,
    network: Network,
    plan: Plan,
    chains: sem.Chain,
    data: Data,
    trace: sem.Trace,
    progress: Progress,
    interrupt: Interrupt,
) -> Trained:
    """Imputed networks of all chains with their parameters held, ordered by chain.

    The training program serves with no scoring steps. Imputations are two I-steps' sweeps apart,
    after four more for the averaged parameters to take hold. A Ctrl-C keeps those that are there.
    """
    n_chains, n_done = trace.log_density.shape
    trained_in_full = n_done == plan.n_iter
    draws: list[list[Member]] = []
    for index in range(plan.n_imputations):
        n_steps = THIN_STEPS + (BURN_STEPS if index == 0 else 0)
        effort = _boundary.effort(plan.n_sweeps * n_steps, 0, plan.bracket, False)
        keys = _boundary.split_key(jax.random.fold_in(key, index), n_chains)
        chains, _ = _boundary.train_block(
            keys, network, plan.schedule, effort, chains, data, 0, 1, progress.advance
        )
        draws.append(_boundary.build_members(network, chains, data))
        if interrupt.requested and trained_in_full and index + 1 < plan.n_imputations:
            _warn_interrupted(f"{index + 1} of {plan.n_imputations} imputations")
            break
    members = [member for of_chain in zip(*draws, strict=True) for member in of_chain]
    weights = _boundary.array(np.full(len(members), 1.0 / len(members)))
    ensemble = _boundary.to_numpy(Ensemble(network, data, _boundary.stack(members), weights))
    _require_finite(ensemble.members.factors[-1].alpha)
    return Trained(ensemble, _boundary.to_numpy(chains), trace)


def _require_finite(values: jax.Array) -> None:
    if not np.all(np.isfinite(values)):
        raise NumericalError(
            "A correlation matrix was not positive definite in double precision; "
            "raise the nugget (for instance to 1e-5) or remove rows of X that nearly coincide."
        )


def train_single_layer(network: Network, data: Data, params: LayerParams, seed: int) -> Trained:
    """A plain Gaussian process: the best of several ascents, and one member."""
    starts = _gp_starts(params, seed)
    fitted, values = _boundary.fit_single_layer(
        network, starts, data, GP_SCOUT_STEPS, GP_STEPS, GP_TOLERANCE
    )
    add_axes = lambda each: np.asarray(each)[None, None]  # noqa: E731
    trace = jax.tree.map(add_axes, sem.Trace((fitted,), np.sum(np.asarray(values))))
    _require_finite(trace.log_density)
    member = _boundary.build_member(network, (fitted,), (), data)
    ensemble = Ensemble(network, data, _boundary.stack([member]), _boundary.array(np.ones(1)))
    chain = _boundary.stack([sem.Chain((fitted,), impute.start((), 1.0))])
    return Trained(_boundary.to_numpy(ensemble), chain, trace)


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
    generator = np.random.default_rng(seed)
    low, high = np.log(GP_STARTS[0]), np.log(GP_STARTS[-1])
    return [generator.uniform(low, high, shape) for _ in range(2)]
