"""The host side of training: chains, blocks, averaging, and the ensemble that comes out."""

import time
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
BLOCK_SECONDS = 0.5
CHECK_EVERY = 20
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

    schedule: sem.Schedule
    n_iter: int
    burn_in: float
    n_sweeps: int
    n_scoring: int
    bracket: float
    n_imputations: int
    stops_early: bool


@dataclass(frozen=True)
class Trained:
    """An ensemble, the chains it came from (to go on from), and their traces.

    ``trace`` has leading axes (chains, iterations).
    """

    ensemble: Ensemble
    chains: list[sem.Chain]
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


def starting_imputation(latents: Latents, bracket_factor: float) -> impute.Imputation:
    """Mean angles are set so that the first brackets are the full circle; never zero, so that an
    infinite factor gives an infinite bracket and not an undefined one."""
    first = impute.FULL_CIRCLE / min(bracket_factor, impute.FULL_CIRCLE)
    angles = tuple(_boundary.array(np.full(w.shape[1], first)) for w in latents)
    none = _boundary.indices(np.zeros(()))
    return impute.Imputation(latents, angles, evaluations=none, sweeps=none)


def start_chains(plan: Plan, params: Params, latents: Latents, n_chains: int) -> list[sem.Chain]:
    """Equal chains; their keys will make them differ."""
    return [sem.Chain(params, starting_imputation(latents, plan.bracket))] * n_chains


def train(
    seed: int,
    network: Network,
    plan: Plan,
    chains: list[sem.Chain],
    data: Data,
    show_progress: bool,
) -> Trained:
    """SEM for all chains, block by block; then imputations with the averaged parameters.

    A Ctrl-C ends training after the current block, and the ensemble is built from what is there.
    """
    keys = _boundary.keys(seed, _boundary.TRAIN_STREAM, len(chains))
    effort = _boundary.effort(plan.n_sweeps, plan.n_scoring, plan.bracket, True)
    steps = plan.n_iter + plan.n_imputations
    blocks = Blocks(plan)
    with (
        deferred_interrupt() as interrupt,
        Progress("training", steps * len(chains), show_progress) as progress,
    ):
        while blocks.n_next and not (interrupt.requested and blocks.n_done):
            began = time.monotonic()
            chains, trace = _boundary.train_block(
                keys, network, plan.schedule, effort, chains, data, blocks.n_done, blocks.n_next,
                progress.advance,
            )  # fmt: skip
            blocks.add(trace, time.monotonic() - began)
        _require_finite(blocks.trace.log_density)
        chains = _average_late(plan, chains, blocks.trace)
        if blocks.n_next:
            _warn_interrupted(f"{blocks.n_done} of {plan.n_iter} iterations")
            interrupt.requested = False
        progress.skip((plan.n_iter - blocks.n_done) * len(chains))
        return _impute(seed, network, plan, chains, data, blocks.trace, progress, interrupt)


class Blocks:
    """The cut of training into blocks, and its end.

    A block is long enough to hide the cost of a call and short enough to wait for after a Ctrl-C.
    Where blocks are cut changes no number: draws and the checks of `has_settled` belong to an
    iteration.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
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
        return min(self._length, until_check, self._plan.n_iter - self.n_done)

    @property
    def trace(self) -> sem.Trace:
        return jax.tree.map(lambda *blocks: np.concatenate(blocks, axis=1), *self._traces)

    def add(self, trace: sem.Trace, seconds: float) -> None:
        self._traces.append(trace)
        n_iterations = trace.log_density.shape[1]
        self.n_done += n_iterations
        wanted = n_iterations * BLOCK_SECONDS / max(seconds, 1e-6)
        self._length = int(np.clip(wanted, 1, 2 * self._length))
        if self._plan.stops_early and self.n_done % CHECK_EVERY == 0:
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


def _warn_interrupted(done: str) -> None:
    warnings.warn(
        f"Training was interrupted after {done}; the emulator uses those. "
        "Fit again to train in full.",
        InterruptedFitWarning,
        stacklevel=5,
    )


def _average_late(plan: Plan, chains: list[sem.Chain], trace: sem.Trace) -> list[sem.Chain]:
    """Each chain with its parameters averaged over the iterations after burn-in."""
    n_done = trace.log_density.shape[1]
    burn = min(int(plan.burn_in * n_done), n_done - 1)
    averages = jax.tree.map(lambda path: average(path[:, burn:]), trace.params)
    return [
        sem.Chain(_boundary.row(averages, k), chain.imputation) for k, chain in enumerate(chains)
    ]


def _impute(
    seed: int,
    network: Network,
    plan: Plan,
    chains: list[sem.Chain],
    data: Data,
    trace: sem.Trace,
    progress: Progress,
    interrupt: Interrupt,
) -> Trained:
    """Imputed networks of all chains with their parameters held, ordered by chain.

    The training program serves with no scoring steps. Imputations are two I-steps' sweeps apart,
    after four more for the averaged parameters to take hold. A Ctrl-C keeps those that are there.
    """
    members: _boundary.Shelf[Member] = _boundary.Shelf(len(chains), plan.n_imputations)
    for index in range(plan.n_imputations):
        n_steps = THIN_STEPS + (BURN_STEPS if index == 0 else 0)
        effort = _boundary.effort(plan.n_sweeps * n_steps, 0, plan.bracket, False)
        keys = _boundary.keys(seed, _boundary.KEEP_STREAM + index, len(chains))
        chains, _ = _boundary.train_block(
            keys, network, plan.schedule, effort, chains, data, 0, 1, progress.advance
        )
        members.put(_boundary.build_members(network, chains, data))
        if interrupt.requested and index + 1 < plan.n_imputations:
            _warn_interrupted(f"{index + 1} of {plan.n_imputations} imputations")
            break
    ensemble = _ensemble(network, data, chains, members)
    return Trained(ensemble, [_boundary.to_numpy(chain) for chain in chains], trace)


def _ensemble(
    network: Network, data: Data, chains: list[sem.Chain], members: _boundary.Shelf[Member]
) -> Ensemble:
    """Members ordered by chain, with equal weights."""
    stacked, chain = members.ordered(), np.repeat(np.arange(len(chains)), members.n_put)
    _require_finite(stacked.alpha)
    jax.tree.map(_require_finite, [link.alpha for link in stacked.links])
    return _boundary.to_numpy(
        Ensemble(
            network,
            data,
            stacked,
            _boundary.indices(chain),
            _boundary.build_whitening(network, chains, data),
            _boundary.array(np.full(len(chain), 1.0 / len(chain))),
        )
    )


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
    chains = [_boundary.to_numpy(sem.Chain((fitted,), starting_imputation((), 1.0)))]
    members: _boundary.Shelf[Member] = _boundary.Shelf(len(chains), 1)
    members.put(_boundary.build_members(network, chains, data))
    return Trained(_ensemble(network, data, chains, members), chains, trace)


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
