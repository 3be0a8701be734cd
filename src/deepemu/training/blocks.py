"""Blocks of iterations: one compiled program per chain, and when to stop."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deepemu._types import Array
from deepemu.core.inference import sem
from deepemu.core.inference.steps import Steps
from deepemu.core.model.network import Data, Network
from deepemu.errors import NOT_POSITIVE_DEFINITE, Message, NumericalError
from deepemu.runtime.devices import current
from deepemu.runtime.programs import compiled, in_threads
from deepemu.runtime.trees import row, stack
from deepemu.training.plan import CHECK_EVERY


def train_block(
    keys: np.ndarray,
    network: Network,
    steps: Steps,
    chains: Sequence[sem.Chain],
    data: Sequence[Data],
    first: int,
    n_iter: int,
    advance: Callable[[int], None],
) -> tuple[list[sem.Chain], sem.Trace]:
    """Iterations of SEM from the ``first`` for all chains, with their traces, stacked.

    Each chain has data of its own, in arrays of one shape.

    On a GPU all chains run in lock-step in one program. On a CPU each runs on its own, in as many
    threads as there are: slices end after different numbers of proposals, and lock-step would wait
    for the longest.
    """
    train = _train_together if current().platform == "gpu" else _train_apart
    fixed: dict[str, Any] = {
        "network": network, "steps": steps,
        "first": np.int32(first), "n_iterations": np.int32(n_iter),
    }  # fmt: skip
    chains, traces = train(keys, chains, data, fixed, lambda n_chains: advance(n_iter * n_chains))
    _require_numbers(chains, first + n_iter)
    return chains, jax.tree.map(lambda path: path[:, :n_iter], stack(traces))


def _require_numbers(chains: Sequence[sem.Chain], iteration: int) -> None:
    """Stop after the block in which a chain became NaN."""
    for number, chain in enumerate(chains):
        leaves = jax.tree.leaves((chain.params, chain.imputation.latents))
        if not all(np.all(np.isfinite(leaf)) for leaf in leaves):
            where = f"Chain {number + 1} is not finite after iteration {iteration}. "
            raise NumericalError(Message(where, NOT_POSITIVE_DEFINITE))


Ends = tuple[list[sem.Chain], list[sem.Trace]]


def _train_apart(
    keys: np.ndarray,
    chains: Sequence[sem.Chain],
    data: Sequence[Data],
    fixed: dict[str, Any],
    done: Callable[[int], None],
) -> Ends:
    program = compiled(sem.train_block, ("network",))
    tasks = [
        functools.partial(program, key, chain=chain, data=of_chain, **fixed)
        for key, chain, of_chain in zip(keys, chains, data, strict=True)
    ]
    ends: list[Any] = [None] * len(tasks)
    for index, end in in_threads(tasks):
        ends[index] = end
        done(1)
    return [chain for chain, _ in ends], [trace for _, trace in ends]


def _train_together(
    keys: np.ndarray,
    chains: Sequence[sem.Chain],
    data: Sequence[Data],
    fixed: dict[str, Any],
    done: Callable[[int], None],
) -> Ends:
    program = compiled(_train_in_step, ("network",))
    ends = program(keys, tuple(chains), tuple(data), **fixed)
    done(len(chains))
    return ends


def _train_in_step(
    keys: Array,
    chains: tuple[sem.Chain, ...],
    data: tuple[Data, ...],
    network: Network,
    steps: Steps,
    first: Array,
    n_iterations: Array,
) -> Ends:
    one = lambda key, chain, data: sem.train_block(  # noqa: E731
        key, network, steps, chain, data, first, n_iterations
    )
    stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *each) for each in (chains, data)]
    ends = jax.vmap(one)(keys, *stacked)
    return tuple([row(end, k) for k in range(len(chains))] for end in ends)  # type: ignore[return-value]


BLOCK_SECONDS = 0.5
FEWEST_ITERATIONS = 60
FEWEST_CHAINS = 4
LARGEST_DRIFT = 1.4
NEGLIGIBLE = 1e-6


class Blocks:
    """Length of the next block of iterations, and the decision to stop.

    A block is long enough to hide the cost of a call and short enough to wait for after a Ctrl-C.
    Results do not depend on the lengths: draws and the checks of `has_settled` belong to an
    iteration. Where rows near each row are found anew, a block ends after 1, 2, 4, … iterations.
    """

    def __init__(self, n_iter: int, stops_early: bool, finds_rows: bool = False) -> None:
        self._n_iter, self._stops_early, self._finds_rows = n_iter, stops_early, finds_rows
        self._traces: list[sem.Trace] = []
        self._length = 1
        self._has_ended = False
        self.n_done = 0

    @property
    def n_next(self) -> int:
        """Iterations of the next block; zero at the end of training."""
        if self._has_ended:
            return 0
        until_check = CHECK_EVERY - self.n_done % CHECK_EVERY
        until_search = 2 ** self.n_done.bit_length() - self.n_done if self._finds_rows else np.inf
        return int(min(self._length, until_check, until_search, self._n_iter - self.n_done))

    @property
    def searches(self) -> bool:
        """Whether rows near each row are to be found before the next block."""
        return self._finds_rows and self.n_done & (self.n_done - 1) == 0

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
            self._has_ended = has_settled(self.trace)

    def end(self) -> None:
        """No more blocks: the time is over."""
        self._has_ended = True

    @property
    def state(self) -> dict[str, Any]:
        """What `resume` needs, after one block or more."""
        return {"trace": self.trace, "length": self._length, "has_ended": not self.n_next}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from the state of other blocks of the same settings."""
        self._traces, self._length = [state["trace"]], state["length"]
        self._has_ended, self.n_done = state["has_ended"], state["trace"].log_density.shape[1]


def has_settled(trace: sem.Trace) -> bool:
    """Whether the chains' paths have become stationary, after `FEWEST_ITERATIONS` or more.

    The second half of the iterations is cut in two, and each path's drift between these two
    quarters is measured in standard errors over chains. Training has settled if the log density
    rose by less than one standard error and the parameters' squared drifts are on average no more
    than `LARGEST_DRIFT` times (K − 1)/(K − 3), which they are for K > 3 stationary chains.
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
    # Equal chains, such as those of one layer, have no spread, and come to a maximum ever slower.
    smallest = NEGLIGIBLE * (1.0 + np.max(np.abs(path)))
    error = np.maximum(change.std(axis=0, ddof=1) / np.sqrt(len(change)), smallest)
    moves = np.max(np.abs(change), axis=0) > smallest  # fixed parameters do not
    return change.mean(axis=0)[moves] / error[moves]
