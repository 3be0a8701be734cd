"""The only door between NumPy and JAX: float64, padding, compiled programs, chunks, devices.

Everything above this module speaks NumPy and user units; everything below is traced JAX. Programs
are compiled once per network, bucket of rows and device, and kept for the life of the process.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from deepemu._types import Array
from deepemu.core import network, predict, sem
from deepemu.core.gaussian import Gaussian
from deepemu.core.network import Data, Latents, LayerParams, Network, Params
from deepemu.core.predict import Ensemble, Member

T = TypeVar("T")

_ONE_PROGRAM = threading.Lock()
SMALLEST_BUCKET = 16
DRAW_STREAM = 1

# Blocks of test rows in a chunk, rows of a block, and tiles of pairs of design points in work: the
# values of a tile at the rows of a block stay in a CPU's second-level cache, and 32 keep a GPU
# busy. A program runs the blocks that hold true rows.
CPU_BLOCKS, CPU_TILES = (32, 32), 1
GPU_BLOCKS, GPU_TILES = (8, 2048), 32
# XLA's thread pool costs more than it gives on matrices of a few hundred rows, and its fusion
# emitters double the compile time without making these programs faster.
CPU_OPTIONS = {"xla_cpu_multi_thread_eigen": False, "xla_cpu_use_fusion_emitters": False}


@contextmanager
def float64() -> Iterator[None]:
    """Double precision inside, whatever the user's process has set outside."""
    with jax.enable_x64(True):
        yield


def bucket(n_rows: int) -> int:
    """Rows after padding: the next multiple of an eighth of the power of two below, at least 16.

    Data may grow within a bucket without a new program; from 128 rows on, padding adds at most an
    eighth to the rows and 42 % to the n³ work.
    """
    step = max(SMALLEST_BUCKET, 2 ** (int(n_rows).bit_length() - 1) // 8)
    return -(-n_rows // step) * step


def array(values: np.ndarray) -> Array:
    """To JAX, in double precision."""
    return jnp.asarray(values, jnp.float64)


def pad_rows(values: np.ndarray, n_rows: int) -> Array:
    """Zero rows appended up to ``n_rows``."""
    missing = [(0, n_rows - values.shape[0])] + [(0, 0)] * (values.ndim - 1)
    return jnp.asarray(np.pad(np.asarray(values, float), missing))


def pack(x: np.ndarray, y: np.ndarray, counts: np.ndarray, squares: np.ndarray) -> Data:
    """Scaled data, padded to their bucket; padded rows have a count of zero."""
    size = bucket(x.shape[0])
    return Data(pad_rows(x, size), pad_rows(y, size), pad_rows(counts, size), jnp.asarray(squares))


def seed_key(seed: int) -> Array:
    return jax.random.key(seed)


def split_key(key: Array, n: int) -> Array:
    return jax.random.split(key, n)


def fold_keys(keys: Array, index: int) -> Array:
    """A key for each of ``keys`` and the step ``index``."""
    return jax.vmap(lambda key: jax.random.fold_in(key, index))(keys)


# --- compiled programs -----------------------------------------------------------------------


@functools.cache
def _compiled(function: Callable[..., Any], static: tuple[str, ...] = ()) -> Callable[..., Any]:
    """A program that has finished when it returns, one at a time in this process.

    XLA's CPU backend runs programs on a pool of as many threads as cores, and their loops wait for
    tasks of the same pool: two programs in flight on two cores wait for each other forever.
    """
    program = jax.jit(function, static_argnames=static, compiler_options=_compiler_options())

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _ONE_PROGRAM:
            return jax.block_until_ready(program(*args, **kwargs))

    return run


@functools.cache
def _compiler_options() -> dict[str, bool] | None:
    """Those of `CPU_OPTIONS` that this version of XLA knows; none on other devices."""
    if jax.default_backend() != "cpu":
        return None
    return {name: value for name, value in CPU_OPTIONS.items() if _is_known(name, value)}


def _is_known(option: str, value: bool) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options={option: value}).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def train_block(
    keys: Array,
    net: Network,
    schedule: sem.Schedule,
    effort: sem.Effort,
    chains: sem.Chain,
    data: Data,
    n_iter: int,
    advance: Callable[[int], None],
) -> tuple[sem.Chain, sem.Trace]:
    """A block of SEM iterations for chains stacked along the first axis, with their traces.

    On a GPU all chains run in lock-step in one program. On a CPU they run one after the other:
    slices end after different numbers of proposals, and lock-step would wait for the longest.
    """
    fixed: dict[str, Any] = {
        "network": net, "schedule": schedule, "effort": effort, "data": data,
        "n_iterations": jnp.asarray(n_iter),
    }  # fmt: skip
    if jax.default_backend() != "cpu":
        program = _compiled(_train_together, ("network", "schedule"))
        chains, trace = program(keys, chains, **fixed)
        advance(n_iter * keys.shape[0])
    else:
        program = _compiled(sem.train_block, ("network", "schedule"))
        ends = []
        for index in range(keys.shape[0]):
            ends.append(program(keys[index], chain=row(chains, index), **fixed))
            advance(n_iter)
        chains, trace = stack(ends)
    return chains, jax.tree.map(lambda path: np.asarray(path)[:, :n_iter], trace)


def _train_together(
    keys: Array,
    chains: sem.Chain,
    network: Network,
    schedule: sem.Schedule,
    effort: sem.Effort,
    data: Data,
    n_iterations: Array,
) -> tuple[sem.Chain, sem.Trace]:
    one = lambda key, chain: sem.train_block(  # noqa: E731
        key, network, schedule, effort, chain, data, n_iterations
    )
    return jax.vmap(one)(keys, chains)


def average(paths: Params) -> Params:
    """Parameters of stacked chains averaged over iterations, the second axis."""
    return to_numpy(jax.vmap(sem.average)(paths))


def stack(trees: Sequence[T]) -> T:
    """Equal trees, stacked leaf by leaf along a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def row(tree: T, index: int | slice) -> T:
    """One of a stack of trees, or some of them."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def effort(n_sweeps: int, n_scoring: int, bracket_factor: float, adapt: bool) -> sem.Effort:
    return sem.Effort(*(jnp.asarray(v) for v in (n_sweeps, n_scoring, bracket_factor, adapt)))


def build_member(net: Network, params: Params, latents: Latents, data: Data) -> Member:
    return _compiled(predict.build_member, ("network",))(
        network=net, params=params, latents=latents, data=data
    )


def build_members(net: Network, chains: sem.Chain, data: Data) -> list[Member]:
    """The imputed network that each of the stacked chains holds now."""
    return [
        build_member(net, chain.params, chain.imputation.latents, data)
        for chain in (row(chains, k) for k in range(chains.imputation.evaluations.shape[0]))
    ]


def to_numpy(tree: T) -> T:
    """Arrays of a fitted emulator live in NumPy: they pickle in full precision anywhere."""
    return jax.tree.map(np.asarray, tree)


def fit_single_layer(
    net: Network, starts: LayerParams, data: Data, n_scout: int, n_polish: int, tolerance: float
) -> tuple[LayerParams, Array]:
    """A one-layer network's best parameters and objective, node by node.

    A few steps from each start (along the first axis) choose the one that is followed to the top.
    """
    return _compiled(_fit_single_layer, ("network_",))(
        net, starts, data, *(jnp.asarray(v) for v in (n_scout, n_polish, tolerance))
    )


def _fit_single_layer(
    network_: Network,
    starts: LayerParams,
    data: Data,
    n_scout: Array,
    n_polish: Array,
    tolerance: Array,
) -> tuple[LayerParams, Array]:
    sites = network.layer_sites(network_, 0, data)

    def ascend(start: LayerParams, n_steps: Array) -> tuple[LayerParams, Array]:
        return sem.fit_layer(network_.layers[0], start, data.x, data.y, sites, n_steps, tolerance)

    ends, values = jax.lax.map(lambda start: ascend(start, n_scout), starts)
    best = jnp.argmax(jnp.where(jnp.isnan(values), -jnp.inf, values), axis=0)
    choose = jax.vmap(lambda tries, i: tries[i], (1, 0))
    return ascend(jax.tree.map(lambda each: choose(each, best), ends), n_polish)


# --- prediction ------------------------------------------------------------------------------


def _chunks(x: np.ndarray, blocks: tuple[int, int]) -> list[tuple[Array, Array]]:
    """Chunks (blocks, rows, d) of padded rows, with the number of blocks that hold true rows."""
    n_blocks, n_rows = blocks
    size = n_blocks * n_rows
    padded = pad_rows(x, -(-x.shape[0] // size) * size).reshape(-1, n_blocks, n_rows, x.shape[1])
    used = [min(n_blocks, -(-(x.shape[0] - first) // n_rows)) for first in range(0, len(x), size)]
    return [(jnp.asarray(n), chunk) for n, chunk in zip(used, padded, strict=True)]


def _shares(weights: np.ndarray) -> np.ndarray:
    """Each weight over the sum of those up to it; zero for a weight of zero."""
    return weights / np.maximum(np.cumsum(weights), np.finfo(float).tiny)


def predict_mixture(ensemble: Ensemble, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mixture mean and variance (m, q) over all members at scaled inputs (m, d).

    Members come one by one and are mixed in, so that memory holds one member and one mixture. On a
    GPU they are there at once, and a program takes a chunk through all of them.
    """
    on_cpu = jax.default_backend() == "cpu"
    blocks, n_tiles = (CPU_BLOCKS, CPU_TILES) if on_cpu else (GPU_BLOCKS, GPU_TILES)
    chunks = _chunks(x, blocks)
    shares = _shares(np.asarray(ensemble.weights))
    at_once = 1 if on_cpu else len(shares)
    data, nothing = jax.device_put(ensemble.data), jnp.zeros((*blocks, ensemble.network.n_outputs))
    mixed = [Gaussian(nothing, nothing)] * len(chunks)
    program = _compiled(predict.mix_in, ("network", "n_tiles"))
    for first in range(0, len(shares), at_once):
        some = slice(first, first + at_once)
        members, share = jax.device_put((row(ensemble.members, some), shares[some]))
        mixed = [
            program(ensemble.network, members, share, data, rows, n_blocks, before, n_tiles)
            for (n_blocks, rows), before in zip(chunks, mixed, strict=True)
        ]
    return _rows([each.mean for each in mixed], len(x)), _rows([each.var for each in mixed], len(x))


def _rows(chunks: Sequence[Array], n_rows: int) -> np.ndarray:
    """The true rows of chunks (blocks, m, q), (n_rows, q)."""
    return np.concatenate([np.asarray(c).reshape(-1, c.shape[-1]) for c in chunks])[:n_rows]


def leave_one_out(ensemble: Ensemble) -> tuple[np.ndarray, np.ndarray]:
    moments = _compiled(predict.leave_one_out)(ensemble)
    return np.asarray(moments.mean), np.asarray(moments.var)


def draw_joint(seed: int, ensemble: Ensemble, x: np.ndarray, n_samples: int) -> np.ndarray:
    """Joint draws (n_samples, m, q), each from a member drawn by its weight.

    Rows are padded behind the true ones, whose draws do not depend on them.
    """
    picks = np.random.default_rng(seed).choice(
        len(ensemble.weights), n_samples, p=np.asarray(ensemble.weights)
    )
    # A stream of its own: the same seed may have trained the emulator.
    keys = split_key(jax.random.fold_in(seed_key(seed), DRAW_STREAM), n_samples)
    program = _compiled(predict.draw, ("network",))
    rows = pad_rows(x, bucket(len(x)))
    draws = [
        program(
            key, network=ensemble.network, member=row(ensemble.members, pick),
            data=ensemble.data, x=rows,
        )
        for key, pick in zip(keys, picks, strict=True)
    ]  # fmt: skip
    return np.stack(draws)[:, : len(x)]


# --- growing the data ------------------------------------------------------------------------


def extend_chains(
    net: Network, chains: sem.Chain, data: Data, grown: Data, n_old: int, n_new: int
) -> sem.Chain:
    """Stacked chains over the grown data: latents are kept at old rows, and start at their
    conditional mean given the present imputation at new ones."""
    size = grown.x.shape[0]
    new_rows = pad_rows(np.asarray(grown.x)[n_old : n_old + n_new], bucket(max(n_new, 1)))
    program = _compiled(predict.conditional_mean, ("network",))
    latents = []
    for member in build_members(net, chains, data):
        means = program(network=net, member=member, data=data, x=new_rows)
        latents.append(
            tuple(
                pad_rows(np.concatenate([np.asarray(old)[:n_old], np.asarray(new)[:n_new]]), size)
                for old, new in zip(member.latents, means, strict=True)
            )
        )
    return dataclasses.replace(
        chains, imputation=dataclasses.replace(chains.imputation, latents=stack(latents))
    )
