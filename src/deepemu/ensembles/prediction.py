"""Moments, draws and leave-one-out of imputed networks: chunks of test rows, threads, mixtures."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from deepemu.core import ensemble as networks
from deepemu.core import predict
from deepemu.core.distributions import Gaussian
from deepemu.core.ensemble import Imputed, Member
from deepemu.core.model.network import Data, Network, Params
from deepemu.core.model.observation import Units
from deepemu.core.nodes.linked import better_of
from deepemu.core.nodes.node import Joint
from deepemu.core.predict import Predicted
from deepemu.runtime.devices import current
from deepemu.runtime.padding import DRAW_STREAM, bucket, keys, pad_rows
from deepemu.runtime.programs import compiled, in_order
from deepemu.runtime.trees import joined, row, stack, to_numpy

# Blocks of test rows in a chunk, and rows of a block: the values of a tile of pairs at the rows of
# a block stay in a CPU's second-level cache, and keep a GPU busy. A program runs the blocks that
# hold true rows.
CPU_BLOCKS = (32, 32)
GPU_BLOCKS = (8, 16_384)
GPU_TILES, GPU_ROWS_OF_PAIRS = 64, 2048
# About 25 doubles for a design point, test row and hidden column. With more room the few rows that
# need a higher level would stand in too large a block.
FEATURE_BYTES, GPU_ROOM = 200, 1.3e9
ROWS_OF_UNCERTAIN = 64
# Bytes of the members that go to a device at once.
MEMBERS_ROOM = {"cpu": 2**26, "gpu": 2**33}


@dataclass(frozen=True)
class Group:
    """K imputed networks of one chain that have equal parameters; views, because links are
    large."""

    network: Network
    data: Data
    params: Params
    conditioned: Any
    members: Member

    @property
    def parts(self) -> list[Member]:
        """Members that fit into memory together: the largest divisor of their number, because
        another size would be another program."""
        n_members = len(self.members.alpha)
        n_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.members)) // n_members
        room = max(MEMBERS_ROOM[current().platform] // max(n_bytes, 1), 1)
        if n_members <= room:
            return [self.members]
        size = max(k for k in range(1, n_members + 1) if n_members % k == 0 and k <= room)
        return [row(self.members, slice(k, k + size)) for k in range(0, n_members, size)]


@dataclass(frozen=True)
class Chain:
    """One chain of a structure: imputed networks of equal weight."""

    imputed: Imputed
    place: int

    @functools.cached_property
    def groups(self) -> list[Group]:
        imputed, n_sets = self.imputed, self.imputed.params[0].log_scale.shape[1]
        mine = row(imputed.members, self.place)
        members = [mine] if n_sets == 1 else [row(mine, slice(k, k + 1)) for k in range(n_sets)]
        shared = [
            row((imputed.params, imputed.conditioned), (self.place, k)) for k in range(n_sets)
        ]
        return [
            Group(imputed.network, imputed.data, *of_set, some)
            for of_set, some in zip(shared, members, strict=True)
        ]

    @property
    def n_members(self) -> int:
        return self.imputed.members.alpha.shape[1]

    @property
    def is_imputed(self) -> bool:
        """Whether some of its layers are imputed, so that its networks differ."""
        return self.imputed.network.n_imputed > 0


def chains_of(imputed: Imputed) -> list[Chain]:
    return [Chain(imputed, place) for place in range(imputed.members.alpha.shape[0])]


def predict_chains(chains: Sequence[Chain], x: np.ndarray, units: Units) -> list[Predicted]:
    """Moments (K, m, ·) by each imputation of each chain, at inputs (m, d) in core units.

    Tasks are groups of networks and pieces of rows of one size, so results do not depend on the
    number of threads.
    """
    sizes = [math.prod(_tiling(chain.groups[0], 0)[0]) for chain in chains]
    tasks = [
        functools.partial(_predict_piece, group, units, x[first : first + size])
        for chain, size in zip(chains, sizes, strict=True)
        for group in chain.groups
        for first in range(0, len(x), size)
    ]
    found = iter(in_order(tasks))
    of_group = lambda size: joined([next(found) for _ in range(0, len(x), size)], axis=1)  # noqa: E731
    return [
        joined([of_group(size) for _ in chain.groups])
        for chain, size in zip(chains, sizes, strict=True)
    ]


def chain_latents(chains: Sequence[Chain], x: np.ndarray, units: Units) -> Gaussian:
    """Moments (chains, imputations, m, P) of the last layer's nodes."""
    return stack([each.latents for each in predict_chains(chains, x, units)])


def _tiling(group: Group, level: int) -> tuple[tuple[int, int], predict.RowOrder]:
    """Blocks and rows of a chunk, and the order in which pairs are added up. On a GPU no more rows
    than their features have room for, and fewer at a level that few rows need."""
    if current().platform == "cpu":
        return CPU_BLOCKS, predict.RowsInside()
    network, n_sites = group.network, group.data.x.shape[0]
    widest = max((w.shape[-1] for w in group.members.latents), default=1)
    room = GPU_ROOM / (FEATURE_BYTES * widest * n_sites)
    most = GPU_BLOCKS[1] if level == 0 else GPU_ROWS_OF_PAIRS
    inside = predict.Method(level, predict.RowsInside(GPU_TILES))
    schemes = [inside.scheme(network, layer) for layer in range(1, network.depth)]
    cheap = all(each.cheap_to_read for each in schemes)
    blocks = GPU_BLOCKS[0], min(2 ** int(np.log2(max(room, 1.0))), most)
    return blocks, inside.rows if cheap else predict.RowsOutside()


def _predict_piece(group: Group, units: Units, x: np.ndarray) -> Predicted:
    """Moments by a group of networks. Rows for which a level is not accurate are computed again at
    the next."""
    found = _at_level(group, units, 0, x)
    for level in range(1, predict.n_levels(group.network)):
        rows = np.flatnonzero(~found.accurate[0])
        if not len(rows):
            break
        other = _at_level(group, units, level, x[rows])
        better = other.error[0] < found.error[0, rows]
        found.accurate[0, rows] = other.accurate[0]
        for whole, part in zip(*map(jax.tree.leaves, (found, other)), strict=True):
            whole[:, rows[better]] = part[:, better]
    return found


def _at_level(group: Group, units: Units, level: int, x: np.ndarray) -> Predicted:
    """A few members at a time, to bound the device's memory."""
    blocks, rows = _tiling(group, level)
    program = functools.partial(
        compiled(predict.predict, ("network", "method")),
        group.network, predict.Method(level, rows),
        *jax.device_put((group.params, group.conditioned, group.data, units)),
    )  # fmt: skip
    true = lambda found, n: jax.tree.map(lambda leaf: np.asarray(leaf)[:, :n], found)  # noqa: E731
    parts = [
        joined([true(program(some, *chunk), chunk[1]) for chunk in _chunks(x, blocks)], axis=1)
        for some in map(jax.device_put, group.parts)
    ]
    found = joined(parts)
    error = np.max(found.error, axis=0, keepdims=True)
    accurate = np.all(found.accurate, axis=0, keepdims=True)
    return Predicted(found.latents, found.outputs, error, accurate)


def _chunks(x: np.ndarray, blocks: tuple[int, int]) -> list[tuple[np.ndarray, np.int32]]:
    """Chunks (blocks, rows, d) of padded rows, with the number of true rows in each."""
    size = blocks[0] * blocks[1]
    padded = np.pad(x, ((0, -len(x) % size), (0, 0))).reshape(-1, *blocks, x.shape[1])
    used = [min(size, len(x) - first) for first in range(0, len(x), size)]
    return [(chunk, np.int32(n)) for n, chunk in zip(used, padded, strict=True)]


def predict_uncertain(chain: Chain, x: np.ndarray, var: np.ndarray) -> Gaussian:
    """Moments (m, P) of a plain GP where inputs are normal with the given variances (m, d)."""
    imputed, size = chain.imputed, ROWS_OF_UNCERTAIN
    params, data = row(imputed.params, (chain.place, 0)), imputed.data
    n_levels = len(imputed.network.solver.schemes(imputed.network.layers[0].kernel, x.shape[1]))
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
    program, draws = compiled(predict.draw, ("network",)), {}
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
    program = compiled(predict.joint_given_hidden, ("network",))
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
