"""Moments, draws and leave-one-out of imputed networks: chunks of test rows, threads, mixtures."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from deepemu.core import ensemble as networks
from deepemu.core import joint, predict
from deepemu.core.distributions import Gaussian
from deepemu.core.ensemble import Imputed, Member
from deepemu.core.model.network import Data, Network, Params
from deepemu.core.nodes.linked import Linked, better_of
from deepemu.core.nodes.node import Joint
from deepemu.ensembles.search import Search
from deepemu.runtime.devices import current
from deepemu.runtime.padding import DRAW_STREAM, bucket, keys, pad_rows
from deepemu.runtime.programs import compiled, in_order, in_threads
from deepemu.runtime.trees import joined, row, stack, to_numpy

# Blocks of test rows in a chunk, and rows of a block: the values of a tile of pairs at the rows of
# a block stay in a CPU's second-level cache, and keep a GPU busy. A program runs the blocks that
# hold true rows. At later levels each network has rows of its own, which are few.
CPU_BLOCKS, CPU_BLOCKS_AGAIN = (32, 32), (64, 16)
# From near rows each test row has a factor of its own: a row costs the same in a block of eight as
# in a larger one, and a single row has less to wait for.
CPU_BLOCKS_NEAR = (128, 8)
GPU_BLOCKS = (8, 16_384)
GPU_TILES, GPU_ROWS_OF_PAIRS = 64, 2048
# About 25 doubles for a design point, test row and hidden column. With more room the few rows that
# need a higher level would stand in too large a block.
FEATURE_BYTES, GPU_ROOM = 200, 1.3e9
ROWS_OF_UNCERTAIN = 64
# Bytes of the members that go to a device at once.
MEMBERS_ROOM = 2**26


@dataclass(frozen=True)
class Group:
    """K imputed networks of one chain that have equal parameters and go to a device together;
    views, because links are large."""

    network: Network
    data: Data
    params: Params
    conditioned: Any
    members: Member
    search: Search

    def run(self, function: Callable[..., Linked], method: predict.Method, *rows: Any) -> Linked:
        """A program of predictions at test rows."""
        given = self.params, self.conditioned, self.data, self.members
        program = compiled(function, ("network", "method"))
        return program(self.network, method, *jax.device_put((*given, *rows)))


@dataclass(frozen=True)
class Chain:
    """One chain of a structure: imputed networks of equal weight."""

    imputed: Imputed
    place: int

    @functools.cached_property
    def groups(self) -> list[Group]:
        imputed, n_sets = self.imputed, self.imputed.params[0].log_scale.shape[1]
        mine = row(imputed.members, self.place)
        size = _size_of_group(mine) if n_sets == 1 else 1
        shared = imputed.params, imputed.conditioned
        of_sets = [row(shared, (self.place, k)) for k in range(n_sets)]
        return [
            Group(
                imputed.network, imputed.data, *of_sets[first % n_sets],
                row(mine, slice(first, first + size)), self.searches[first % n_sets],
            )
            for first in range(0, self.n_members, size)
        ]  # fmt: skip

    @functools.cached_property
    def searches(self) -> list[Search]:
        """One for each set of parameters, by the first imputation that has them."""
        imputed, n_sets = self.imputed, self.imputed.params[0].log_scale.shape[1]
        given = row((imputed.params, imputed.members), self.place)
        return [Search(imputed.network, *row(given, k), imputed.data) for k in range(n_sets)]

    @property
    def n_members(self) -> int:
        return self.imputed.members.alpha.shape[1]

    @property
    def is_imputed(self) -> bool:
        """Whether some of its layers are imputed, so that its networks differ."""
        return self.imputed.network.n_imputed > 0


def _size_of_group(members: Member) -> int:
    """How many members fit into memory together: the largest divisor of their number, because
    another size would be another program."""
    n_members, n_bytes = len(members.alpha), sum(each.nbytes for each in jax.tree.leaves(members))
    most = max(MEMBERS_ROOM * n_members // max(n_bytes, 1), 1)
    return max(k for k in range(1, n_members + 1) if n_members % k == 0 and k <= most)


def chains_of(imputed: Imputed) -> list[Chain]:
    return [Chain(imputed, place) for place in range(imputed.members.alpha.shape[0])]


def predict_chains(chains: Sequence[Chain], x: np.ndarray) -> list[Gaussian]:
    """Moments (K, m, P) of the last layer by each imputation of each chain, at inputs (m, d) in
    core units.

    Tasks are groups of networks and pieces of rows of one size, so results do not depend on the
    number of threads.
    """
    _grow_trees(chains)
    sizes = [math.prod(_tiling(chain.groups[0], 0)[0]) for chain in chains]
    tasks = [
        functools.partial(_predict_piece, group, x[first : first + size])
        for chain, size in zip(chains, sizes, strict=True)
        for group in chain.groups
        for first in range(0, len(x), size)
    ]
    found, places = dict(in_threads(tasks)), iter(range(len(tasks)))
    of_group = lambda size: joined(  # noqa: E731
        [found[next(places)] for _ in range(0, len(x), size)], axis=1
    )
    return [
        joined([of_group(size) for _ in chain.groups])
        for chain, size in zip(chains, sizes, strict=True)
    ]


def _grow_trees(chains: Sequence[Chain]) -> None:
    """The trees that are missing, before threads share them."""
    searches = [each for chain in chains for each in chain.searches if each.lacks_tree]
    in_order([functools.partial(getattr, each, "tree") for each in searches])


def chain_latents(chains: Sequence[Chain], x: np.ndarray) -> Gaussian:
    """Moments (chains, imputations, m, P) of the last layer's nodes."""
    return stack(predict_chains(chains, x))


def _tiling(group: Group, level: int) -> tuple[tuple[int, int], predict.RowOrder]:
    """Blocks and rows of a chunk, and the order in which pairs are added up. On a GPU no more rows
    than their features have room for, and fewer at a level that few rows need."""
    if current().platform == "cpu":
        first = CPU_BLOCKS_NEAR if group.network.solver.n_predict else CPU_BLOCKS
        return CPU_BLOCKS_AGAIN if level else first, predict.RowsInside()
    network, n_sites = group.network, group.data.x.shape[0]
    widest = max((w.shape[-1] for w in group.members.latents), default=1)
    room = GPU_ROOM / (FEATURE_BYTES * widest * n_sites)
    most = GPU_ROWS_OF_PAIRS if level else GPU_BLOCKS[1]
    inside = predict.Method(level, predict.RowsInside(GPU_TILES))
    schemes = [inside.scheme(network, layer) for layer in range(1, network.depth)]
    cheap = all(each.cheap_to_read for each in schemes)
    blocks = GPU_BLOCKS[0], min(2 ** int(np.log2(max(room, 1.0))), most)
    return blocks, inside.rows if cheap else predict.RowsOutside()


def _predict_piece(group: Group, x: np.ndarray) -> Gaussian:
    """Moments (K, m, P) by a group of networks, at no more rows than a chunk has. Rows for which a
    level is not accurate are computed again at the next, by the networks concerned."""
    blocks, order = _tiling(group, 0)
    chunk = jax.tree.map(lambda each: _in_blocks(each, blocks), group.search.points(x))
    found = group.run(predict.predict, predict.Method(0, order), chunk, np.int32(len(x)))
    found = jax.tree.map(np.array, found)
    found.accurate[:, len(x) :] = True
    for level in range(1, predict.n_levels(group.network)):
        if np.all(found.accurate):
            break
        _improve(group, level, chunk, found)
    return Gaussian(found.moments.mean[:, : len(x)], found.moments.var[:, : len(x)])


def _in_blocks(rows: np.ndarray, blocks: tuple[int, int]) -> np.ndarray:
    """Rows (m, k) as (blocks, rows of a block, k), the last one repeated."""
    size = math.prod(blocks)
    return np.pad(rows, ((0, size - len(rows)), (0, 0)), mode="edge").reshape(*blocks, -1)


def _improve(group: Group, level: int, chunk: predict.Points, found: Linked) -> None:
    """Put the moments of another level where ``found`` is not accurate and their error is less."""
    (blocks, order), wanted = _tiling(group, level), ~found.accurate
    method, size, n_wanted = predict.Method(level, order), math.prod(blocks), wanted.sum(axis=1)
    wanted_first = np.argsort(~wanted, axis=1, kind="stable").astype(np.int32)
    wanted_first = np.pad(wanted_first, ((0, 0), (0, -wanted.shape[1] % size)))
    for first in range(0, n_wanted.max(), size):
        rows = wanted_first[:, first : first + size]
        n_rows = np.clip(n_wanted - first, 0, size).astype(np.int32)
        given = chunk, rows.reshape(len(rows), *blocks), n_rows
        other = jax.tree.map(np.asarray, group.run(predict.predict_again, method, *given))
        k, place = np.nonzero(np.arange(size) < n_rows[:, None])
        at = rows[k, place]
        less = ~(found.error[k, at] <= other.error[k, place])  # NaN is not
        found.accurate[k, at] |= other.accurate[k, place]
        each = [(of.moments, of.error) for of in (found, other)]
        for whole, part in zip(*map(jax.tree.leaves, each), strict=True):
            whole[k[less], at[less]] = part[k[less], place[less]]


def predict_uncertain(chain: Chain, x: np.ndarray, var: np.ndarray) -> Gaussian:
    """Moments (m, P) of a plain GP where inputs are normal with the given variances (m, d)."""
    imputed, size = chain.imputed, ROWS_OF_UNCERTAIN
    params, data = row(imputed.params, (chain.place, 0)), imputed.data
    network = imputed.network
    n_levels = len(network.solver.schemes(network.layers[0].kernel, x.shape[1]))
    program = compiled(predict.predict_uncertain, ("network", "level"))
    parts = []
    for first in range(0, len(x), size):
        at = [pad_rows(each[first : first + size], size) for each in (x, var)]
        found = to_numpy(program(imputed.network, 0, params, data, Gaussian(*at)))
        for level in range(1, n_levels):
            if np.all(found.accurate):
                break
            other = to_numpy(program(imputed.network, level, params, data, Gaussian(*at)))
            found = to_numpy(better_of(found, other))
        parts.append(found.moments)
    return row(joined(parts), slice(len(x)))


def leave_one_out(imputed: Imputed) -> Gaussian:
    """Closed-form leave-one-out moments (members, padded sites, P) of the last layer."""
    found = compiled(networks.leave_one_out, brief=True)(imputed)
    return jax.tree.map(lambda each: np.asarray(each).reshape(-1, *each.shape[2:]), found)


def some_chains(imputed: Imputed, places: np.ndarray) -> Imputed:
    params, conditioned, members = row(
        (imputed.params, imputed.conditioned, imputed.members), places
    )
    return Imputed(imputed.network, imputed.data, params, conditioned, members)


def draw_joint(
    seed: int, structures: Sequence[tuple[Imputed, np.ndarray]], x: np.ndarray, n_samples: int
) -> np.ndarray:
    """Joint draws (n_samples, m, P) of the last layer, each by a network drawn by its weight.

    Structures come with the weights of their chains. Rows are padded behind the true ones, whose
    draws do not depend on them.
    """
    places = [
        (imputed, chain, k)
        for imputed, weights in structures
        for chain in range(len(weights))
        for k in range(imputed.members.alpha.shape[1])
    ]
    weights = np.concatenate([networks.member_weights(*each) for each in structures])
    picks = np.random.default_rng(seed).choice(len(weights), n_samples, p=weights / weights.sum())
    draw_keys, rows = keys(n_samples, seed, DRAW_STREAM), pad_rows(x, bucket(len(x)))
    program, draws = compiled(joint.draw, ("network",)), {}
    for pick in np.unique(picks):
        given = _ready_for_draws(*places[pick])
        for k in map(int, np.flatnonzero(picks == pick)):
            draws[k] = program(draw_keys[k], *given, rows)
    return np.stack([draws[k] for k in range(n_samples)])[:, : len(x)]


def draw_covariances(
    seed: int, imputed: Imputed, chain: int, member: int, x: np.ndarray, n_draws: int
) -> Joint:
    """Means (P, m) and covariances (P, m, m) of the last layer by one imputed network.

    Law of total covariance over joint draws of the hidden layers, given each of which the last
    layer has both in closed form; exact without hidden layers.
    """
    n_draws = 1 if imputed.network.depth == 1 else n_draws
    rows, given = pad_rows(x, bucket(len(x))), _ready_for_draws(imputed, chain, member)
    program = compiled(joint.given_hidden, ("network",))
    draw_keys = keys(n_draws, seed, DRAW_STREAM, chain, member)
    found = stack([to_numpy(program(key, *given, rows)) for key in draw_keys])
    means, within = found.mean[..., : len(x)], found.covariance[..., : len(x), : len(x)]
    mean = means.mean(axis=0)
    between = np.einsum("spi,spj->pij", means - mean, means - mean) / max(n_draws - 1, 1)
    return Joint(mean, within.mean(axis=0) + between)


def _ready_for_draws(imputed: Imputed, chain: int, member: int) -> tuple[Any, ...]:
    """The arguments that the programs of draws take from one imputed network."""
    network, data = imputed.network, imputed.data
    n_sets = imputed.params[0].log_scale.shape[1]
    params = row(imputed.params, (chain, member % n_sets))
    one = row(imputed.members, (chain, member))
    factors = compiled(networks.all_conditioned, ("network",))(network, params, one.latents, data)
    return network, params, factors, one, data
