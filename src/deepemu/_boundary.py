"""The only door between NumPy and JAX: padding, chains, chunks of test rows.

Everything above this module speaks NumPy and user units; everything below is traced JAX, in
programs that run as `_runtime` says.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from deepemu._runtime import compiled, current, in_threads
from deepemu._types import Array
from deepemu.core import impute, network, predict, sem
from deepemu.core.gaussian import Gaussian, mixture
from deepemu.core.linked import Linked
from deepemu.core.network import Data, Latents, LayerParams, Network, Params
from deepemu.core.predict import Ensemble, Member

T = TypeVar("T")

SMALLEST_BUCKET = 16
# Streams of keys: the same seed may train an emulator, leave folds out and draw from it.
TRAIN_STREAM, DRAW_STREAM, FOLD_STREAM, KEEP_STREAM, WARM_UP_STREAM = range(5)

# Blocks of test rows in a chunk, and rows of a block: the values of a tile of pairs at the rows of
# a block stay in a CPU's second-level cache, and keep a GPU busy. A program runs the blocks that
# hold true rows.
CPU_BLOCKS = (32, 32)
GPU_BLOCKS = (8, 16_384)
GPU_TILES, GPU_ROWS_OF_PAIRS = 64, 2048
# About 25 doubles for a design point, test row and hidden column. With more room the few rows that
# need a higher level would stand in too large a block.
FEATURE_BYTES, GPU_ROOM = 200, 1.3e9
# Bytes of the members that go to a device at once.
MEMBERS_ROOM = {"cpu": 2**26, "gpu": 2**33}


def bucket(n_rows: int) -> int:
    """Rows after padding: the next multiple of an eighth of the power of two below, at least 16.

    Data may grow within a bucket without a new program; from 128 rows on, padding adds at most an
    eighth to the rows and 42 % to the n³ work.
    """
    step = max(SMALLEST_BUCKET, 2 ** (int(n_rows).bit_length() - 1) // 8)
    return -(-n_rows // step) * step


def array(values: np.ndarray) -> Array:
    """To JAX, in double precision.

    Not by ``jnp.asarray``, which compiles a program for every shape.
    """
    return jax.device_put(np.asarray(values, np.float64))


def indices(values: np.ndarray) -> Array:
    """To JAX, as integers."""
    return jax.device_put(np.asarray(values, np.int32))


def pad_rows(values: np.ndarray, n_rows: int) -> Array:
    """Zero rows appended up to ``n_rows``."""
    missing = [(0, n_rows - values.shape[0])] + [(0, 0)] * (values.ndim - 1)
    return array(np.pad(values, missing))


def pack(x: np.ndarray, y: np.ndarray, counts: np.ndarray, squares: np.ndarray) -> Data:
    """Scaled data, padded to their bucket; padded rows have a count of zero."""
    size = bucket(x.shape[0])
    return Data(pad_rows(x, size), pad_rows(y, size), pad_rows(counts, size), array(squares))


def keys(n: int, seed: int, *stream: int) -> np.ndarray:
    """``n`` keys (n, 2) for the core, independent between seeds and streams of one length.

    Made by NumPy: JAX would compile a program for every operation on keys outside of one.
    """
    return np.random.SeedSequence([seed, *stream]).generate_state(2 * n, np.uint32).reshape(n, 2)


# --- training --------------------------------------------------------------------------------


def train_block(
    keys: np.ndarray,
    net: Network,
    schedule: sem.Schedule,
    effort: sem.Effort,
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
        "network": net, "schedule": dataclasses.replace(schedule, nodes=_nodes()),
        "effort": effort,
        "first": np.int32(first), "n_iterations": np.int32(n_iter),
    }  # fmt: skip
    chains, traces = train(keys, chains, data, fixed, lambda n_chains: advance(n_iter * n_chains))
    return chains, jax.tree.map(lambda path: path[:, :n_iter], stack(traces))


def _nodes() -> sem.Nodes:
    return sem.InTurn() if current().platform == "cpu" else sem.Together()


Ends = tuple[list[sem.Chain], list[sem.Trace]]


def _train_apart(
    keys: np.ndarray,
    chains: Sequence[sem.Chain],
    data: Sequence[Data],
    fixed: dict[str, Any],
    done: Callable[[int], None],
) -> Ends:
    program = compiled(sem.train_block, ("network", "schedule"))
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
    program = compiled(_train_in_step, ("network", "schedule"))
    ends = program(keys, tuple(chains), tuple(data), **fixed)
    done(len(chains))
    return ends


def _train_in_step(
    keys: Array,
    chains: tuple[sem.Chain, ...],
    data: tuple[Data, ...],
    network: Network,
    schedule: sem.Schedule,
    effort: sem.Effort,
    first: Array,
    n_iterations: Array,
) -> Ends:
    one = lambda key, chain, data: sem.train_block(  # noqa: E731
        key, network, schedule, effort, chain, data, first, n_iterations
    )
    stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *each) for each in (chains, data)]
    ends = jax.vmap(one)(keys, *stacked)
    return tuple([row(end, k) for k in range(len(chains))] for end in ends)  # type: ignore[return-value]


def stack(trees: Sequence[T]) -> T:
    """Equal trees, stacked leaf by leaf along a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


class Shelf(Generic[T]):
    """Equal trees of several chains, stacked in NumPy as they come: never in memory twice."""

    def __init__(self, n_chains: int, n_places: int) -> None:
        self.n_chains = n_chains
        self._shape = n_chains, n_places
        self._stacked: T | None = None
        self.n_put = 0

    def put(self, trees: Sequence[T]) -> None:
        """One more tree of each chain."""
        if self._stacked is None:
            room = lambda leaf: np.empty((*self._shape, *leaf.shape), leaf.dtype)  # noqa: E731
            self._stacked = jax.tree.map(room, trees[0])
        wholes = jax.tree.leaves(self._stacked)
        for chain, tree in enumerate(trees):
            for whole, part in zip(wholes, jax.tree.leaves(tree), strict=True):
                whole[chain, self.n_put] = part
        self.n_put += 1

    def ordered(self) -> T:
        """Those that were put, stacked along the first axis: those of a chain stand together."""
        flat = lambda all_: all_[:, : self.n_put].reshape(-1, *all_.shape[2:])  # noqa: E731
        return jax.tree.map(flat, self._stacked)


def row(tree: T, index: int | slice | np.ndarray) -> T:
    """One of a stack of trees, or some of them."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def effort(n_sweeps: int, n_scoring: int, bracket_factor: float, adapt: bool) -> sem.Effort:
    brackets = impute.Brackets(np.float64(bracket_factor), np.bool_(adapt))  # type: ignore[arg-type]
    return sem.Effort(np.int32(n_sweeps), np.int32(n_scoring), brackets)  # type: ignore[arg-type]


def build_members(net: Network, chains: Sequence[sem.Chain], data: Sequence[Data]) -> list[Member]:
    """The imputed network that each chain holds now."""
    program = compiled(predict.build_member, ("network",))
    return _in_order(
        functools.partial(program, net, chain.params, chain.imputation.latents, of_chain)
        for chain, of_chain in zip(chains, data, strict=True)
    )


def build_whitening(net: Network, params: Sequence[Params], data: Data) -> Array:
    """L⁻¹ of the first layer for each set of parameters, stacked."""
    program = compiled(predict.whitening, ("network",))
    return stack(_in_order(functools.partial(program, net, each, data) for each in params))


def _in_order(tasks: Iterable[Callable[[], T]]) -> list[T]:
    """Results of tasks that run in threads, in the order of the tasks."""
    return [result for _, result in sorted(in_threads(list(tasks)), key=lambda each: each[0])]


def to_numpy(tree: T) -> T:
    """Arrays of a fitted emulator live in NumPy: they pickle in full precision anywhere."""
    return jax.tree.map(np.asarray, tree)


def fit_single_layer(
    net: Network, starts: LayerParams, data: Data, n_scout: int, n_polish: int, tolerance: float
) -> tuple[LayerParams, Array]:
    """A one-layer network's best parameters and objective, node by node.

    A few steps from each start (along the first axis) choose the one that is followed to the top.
    """
    return compiled(_fit_single_layer, ("network_", "nodes"))(
        net, _nodes(), starts, data, np.int32(n_scout), np.int32(n_polish), np.float64(tolerance)
    )


def _fit_single_layer(
    network_: Network,
    nodes: sem.Nodes,
    starts: LayerParams,
    data: Data,
    n_scout: Array,
    n_polish: Array,
    tolerance: Array,
) -> tuple[LayerParams, Array]:
    sites = network.layer_sites(network_, 0, data)

    def ascend(start: LayerParams, n_steps: Array) -> tuple[LayerParams, Array]:
        task = sem.LayerTask(network_.layers[0], start, data.x, data.y, sites)
        (fitted,), values = sem.fit_layers(nodes, [task], n_steps, tolerance)
        return fitted, values

    ends, values = jax.lax.map(lambda start: ascend(start, n_scout), starts)
    best = jnp.argmax(jnp.where(jnp.isnan(values), -jnp.inf, values), axis=0)
    choose = jax.vmap(lambda tries, i: tries[i], (1, 0))
    return ascend(jax.tree.map(lambda each: choose(each, best), ends), n_polish)


# --- prediction ------------------------------------------------------------------------------


def _chunks(x: np.ndarray, blocks: tuple[int, int]) -> list[tuple[np.int32, np.ndarray]]:
    """Chunks (blocks, rows, d) of padded rows, with the number of true rows in each."""
    size = blocks[0] * blocks[1]
    padded = np.pad(x, ((0, -len(x) % size), (0, 0))).reshape(-1, *blocks, x.shape[1])
    used = [min(size, len(x) - first) for first in range(0, len(x), size)]
    return [(np.int32(n), chunk) for n, chunk in zip(used, padded, strict=True)]


def _shares(weights: np.ndarray) -> np.ndarray:
    """Each weight over the sum of those up to it; zero for a weight of zero."""
    return weights / np.maximum(np.cumsum(weights), np.finfo(float).tiny)


def chain_weights(ensemble: Ensemble) -> np.ndarray:
    """The sum of the weights of each chain's members."""
    return np.bincount(np.asarray(ensemble.chain), np.asarray(ensemble.weights))


def predict_mixture(ensembles: Sequence[Ensemble], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mixture mean and variance (m, q) over all members of all ensembles, at scaled inputs (m, d).

    Chains without a weight are not computed.
    """
    weights = [chain_weights(ensemble) for ensemble in ensembles]
    voting = [
        (e, c) for e, of_chain in enumerate(weights) for c in map(int, np.flatnonzero(of_chain))
    ]
    moments = predict_chains([(ensembles[e], c) for e, c in voting], x)
    shares = np.array([weights[e][c] for e, c in voting])
    both = mixture(moments, shares / shares.sum())
    return np.asarray(both.mean), np.asarray(both.var)


def predict_chains(chains: Sequence[tuple[Ensemble, int]], x: np.ndarray) -> Gaussian:
    """Moments (chains, m, q) at scaled inputs (m, d), each the mixture of the members of a chain.

    Threads share sets of members and pieces of one size, so that their number changes no number.
    """
    groups = [_members_by_params(ensemble, chain) for ensemble, chain in chains]
    tasks = [
        functools.partial(_mixture_of_some, ensemble, members, piece)
        for (ensemble, _), group in zip(chains, groups, strict=True)
        for members in group
        for piece in _pieces(ensemble, x)
    ]
    found = iter(_in_order(tasks))
    return stack(
        [
            _mixed_groups(
                ensemble,
                group,
                [joined([next(found) for _ in _pieces(ensemble, x)]) for _ in group],
            )
            for (ensemble, _), group in zip(chains, groups, strict=True)
        ]
    )


def _members_by_params(ensemble: Ensemble, chain: int) -> list[np.ndarray]:
    """The members of a chain that have a weight, those with the same parameters together."""
    mine = (np.asarray(ensemble.chain) == chain) & (np.asarray(ensemble.weights) > 0.0)
    params_of = np.asarray(ensemble.params_of)
    return [np.flatnonzero(mine & (params_of == each)) for each in np.unique(params_of[mine])]


def _mixed_groups(
    ensemble: Ensemble, groups: Sequence[np.ndarray], parts: Sequence[Gaussian]
) -> Gaussian:
    shares = np.array([np.asarray(ensemble.weights)[members].sum() for members in groups])
    return mixture(stack(parts), shares / shares.sum())


def _pieces(ensemble: Ensemble, x: np.ndarray) -> list[np.ndarray]:
    size = math.prod(_blocks(ensemble, 0))
    return [x[first : first + size] for first in range(0, len(x), size)]


def joined(pieces: Sequence[T], axis: int = 0) -> T:
    """Equal trees, joined leaf by leaf along an axis that they have."""
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=axis), *pieces)


def _blocks(ensemble: Ensemble, level: int) -> tuple[int, int]:
    """Blocks and rows of a chunk; on a GPU no more rows than their features have room for, and
    fewer at a level that few rows need."""
    if current().platform == "cpu":
        return CPU_BLOCKS
    widest = max((w.shape[-1] for w in ensemble.members.latents), default=1)
    room = GPU_ROOM / (FEATURE_BYTES * widest * ensemble.data.x.shape[0])
    most = GPU_BLOCKS[1] if level == 0 else GPU_ROWS_OF_PAIRS
    return GPU_BLOCKS[0], min(2 ** int(np.log2(max(room, 1.0))), most)


def _mixture_of_some(ensemble: Ensemble, members: np.ndarray, x: np.ndarray) -> Gaussian:
    """Moments (m, q) of the mixture of some members with the same parameters.

    Rows for which a level is not accurate go on to the next one.
    """
    rows = np.arange(len(x))
    mean, var = np.empty((2, len(x), ensemble.network.n_outputs))
    for level in range(predict.n_levels(ensemble.network)):
        part = _mixed(ensemble, members, level, x[rows])
        mean[rows], var[rows] = part.moments.mean, part.moments.var
        rows = rows[~np.asarray(part.suited)]
        if not len(rows):
            break
    return Gaussian(mean, var)  # type: ignore[arg-type]


def _mixed(ensemble: Ensemble, members: np.ndarray, level: int, x: np.ndarray) -> Linked:
    """Members come a few at a time and are mixed in, so that memory holds those and one mixture."""
    shape, net = _blocks(ensemble, level), ensemble.network
    method = predict.Method(level, _order_of_rows(net, level))
    chunks = _chunks(x, shape)
    shares = _shares(np.asarray(ensemble.weights)[members])
    whitening = row(ensemble.whitening, np.asarray(ensemble.params_of)[members[0]])
    shared = jax.device_put((whitening, ensemble.data))
    nothing = np.zeros((*shape, net.n_outputs))
    start = jax.device_put(Linked(Gaussian(nothing, nothing), np.ones(shape, bool)))  # type: ignore[arg-type]
    mixed = [start] * len(chunks)
    program = compiled(predict.mix_in, ("network", "method"))
    at_once = _members_at_once(ensemble, len(members))
    for k in range(0, len(members), at_once):
        some = slice(k, k + at_once)
        given = jax.device_put((_members(ensemble, members[some]), shares[some]))
        mixed = [
            program(net, method, *given, *shared, rows, n_rows, before)
            for (n_rows, rows), before in zip(chunks, mixed, strict=True)
        ]
    return Linked(
        Gaussian(
            _rows([each.moments.mean for each in mixed], len(x)),  # type: ignore[arg-type]
            _rows([each.moments.var for each in mixed], len(x)),  # type: ignore[arg-type]
        ),
        _rows([np.asarray(each.suited)[..., None] for each in mixed], len(x))[:, 0],  # type: ignore[arg-type]
    )


def _members_at_once(ensemble: Ensemble, n_members: int) -> int:
    """The largest divisor of their number that there is room for: another size would be another
    program."""
    n_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(_members(ensemble, np.zeros(1, int))))
    room = MEMBERS_ROOM[current().platform] // n_bytes
    return max(k for k in range(1, n_members + 1) if n_members % k == 0 and (k == 1 or k <= room))


def _members(ensemble: Ensemble, which: np.ndarray) -> Member:
    """Some members; a view where they stand together, because their links are large."""
    together = slice(which[0], which[-1] + 1)
    return row(ensemble.members, together if len(which) == which[-1] + 1 - which[0] else which)


def _order_of_rows(net: Network, level: int) -> predict.RowsInside | predict.RowsOutside:
    if current().platform == "cpu":
        return predict.RowsInside()
    method = predict.Method(level, predict.RowsInside(GPU_TILES))
    light = all(method.way(net, layer).light for layer in range(1, net.depth))
    return method.rows if light else predict.RowsOutside()


def _rows(chunks: Sequence[Array | np.ndarray], n_rows: int) -> np.ndarray:
    """The true rows of chunks (blocks, m, q), (n_rows, q)."""
    return np.concatenate([np.asarray(c).reshape(-1, c.shape[-1]) for c in chunks])[:n_rows]


def leave_one_out(ensembles: Sequence[Ensemble]) -> Gaussian:
    """Mixture over all members of their closed-form leave-one-out moments."""
    voting = [each for each in ensembles if np.asarray(each.weights).sum() > 0.0]
    parts = [compiled(predict.leave_one_out)(_normalised(each)) for each in voting]
    shares = np.array([np.asarray(each.weights).sum() for each in voting])
    return mixture(stack(parts), shares / shares.sum())


def _normalised(ensemble: Ensemble) -> Ensemble:
    weights = np.asarray(ensemble.weights)
    return dataclasses.replace(ensemble, weights=weights / weights.sum())


def draw_joint(
    seed: int, ensembles: Sequence[Ensemble], x: np.ndarray, n_samples: int
) -> np.ndarray:
    """Joint draws (n_samples, m, q), each from a member drawn by its weight.

    Rows are padded behind the true ones, whose draws do not depend on them.
    """
    weights = np.concatenate([np.asarray(each.weights) for each in ensembles])
    places = [(each, k) for each in ensembles for k in range(len(each.weights))]
    picks = np.random.default_rng(seed).choice(len(weights), n_samples, p=weights / weights.sum())
    draw_keys = keys(n_samples, seed, DRAW_STREAM)
    factorise, draw = (compiled(of, ("network",)) for of in (predict.factors, predict.draw))
    rows = pad_rows(x, bucket(len(x)))
    draws: dict[int, Array] = {}
    for pick in np.unique(picks):
        ensemble, place = places[pick]
        net, data, member = ensemble.network, ensemble.data, row(ensemble.members, place)
        factors = factorise(net, member, data)
        for k in map(int, np.flatnonzero(picks == pick)):
            draws[k] = draw(draw_keys[k], net, factors, member, data, rows)
    return np.stack([draws[k] for k in range(n_samples)])[:, : len(x)]


# --- growing the data ------------------------------------------------------------------------


def extend_chains(
    net: Network, chains: Sequence[sem.Chain], data: Data, grown: Data, n_old: int, n_new: int
) -> list[sem.Chain]:
    """Chains over the grown data: latents are kept at old rows, and start at their conditional
    mean given the present imputation at new ones."""
    size = grown.x.shape[0]
    new = slice(n_old, n_old + n_new)
    means = _conditional_means(
        net, chains, [data] * len(chains), [np.asarray(grown.x)[new]] * len(chains)
    )
    grow = lambda old, new: pad_rows(np.concatenate([old[:n_old], new]), size)  # noqa: E731
    return [
        with_latents(chain, jax.tree.map(grow, to_numpy(chain.imputation.latents), mean))
        for chain, mean in zip(chains, means, strict=True)
    ]


def fill_in(
    net: Network,
    chains: Sequence[sem.Chain],
    data: Sequence[Data],
    x: np.ndarray,
    left_out: np.ndarray,
) -> list[sem.Chain]:
    """Chains whose rows ``left_out`` (chains, n) start at their conditional mean given the others.

    x (n, d) are the inputs of all rows.
    """
    rows = [np.flatnonzero(of_chain) for of_chain in left_out]
    means = _conditional_means(net, chains, data, [x[of_chain] for of_chain in rows])
    return [
        with_latents(chain, jax.tree.map(put_at(at), to_numpy(chain.imputation.latents), mean))
        for chain, mean, at in zip(chains, means, rows, strict=True)
    ]


def put_at(rows: np.ndarray) -> Callable[[Array | np.ndarray, Any], np.ndarray]:
    """A function that gives a copy of an array with some of its rows replaced."""

    def put(whole: Array | np.ndarray, part: Any) -> np.ndarray:
        whole = np.array(whole)
        whole[rows] = part
        return whole

    return put


def _conditional_means(
    net: Network, chains: Sequence[sem.Chain], data: Sequence[Data], at: Sequence[np.ndarray]
) -> list[Latents]:
    """Hidden layers of each chain at its inputs ``at``, given its present imputation.

    Inputs are padded to one bucket, so that one program serves all chains.
    """
    size = bucket(max(1, *(len(rows) for rows in at)))
    program = compiled(predict.conditional_mean, ("network",))
    means = [
        program(network=net, member=member, data=of_chain, x=pad_rows(rows, size))
        for member, of_chain, rows in zip(build_members(net, chains, data), data, at, strict=True)
    ]
    cut = lambda mean, n: jax.tree.map(lambda values: np.asarray(values)[:n], mean)  # noqa: E731
    return [cut(mean, len(rows)) for mean, rows in zip(means, at, strict=True)]


def with_latents(chain: sem.Chain, latents: Latents) -> sem.Chain:
    moved = dataclasses.replace(chain.imputation, latents=latents)
    return dataclasses.replace(chain, imputation=moved)
