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
from deepemu.core.distributions import Gaussian, mixture
from deepemu.core.ensemble import Imputed, Member
from deepemu.core.model.network import Network
from deepemu.core.model.observation import Units
from deepemu.core.nodes.linked import Linked
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
class Chain:
    """One chain of a structure: K imputed networks of equal weight."""

    imputed: Imputed
    place: int

    @property
    def n_sets(self) -> int:
        return self.imputed.params[0].log_scale.shape[1]

    def members(self, of_set: int) -> Member:
        """Those with one set of parameters; views, because links are large."""
        mine = row(self.imputed.members, self.place)
        return mine if self.n_sets == 1 else row(mine, slice(of_set, of_set + 1))

    @property
    def n_members(self) -> int:
        return self.imputed.members.alpha.shape[1]

    @property
    def is_deep(self) -> bool:
        return self.imputed.network.depth > 1


def chains_of(imputed: Imputed) -> list[Chain]:
    return [Chain(imputed, place) for place in range(imputed.members.alpha.shape[0])]


def predict_chains(chains: Sequence[Chain], x: np.ndarray, units: Units) -> list[Predicted]:
    """Moments (K, m, ·) by each imputation of each chain, at inputs (m, d) in core units.

    Tasks are sets of members and pieces of one size, so results do not depend on the number of
    threads.
    """
    pieces = [_pieces(chain.imputed, x) for chain in chains]
    tasks = [
        functools.partial(_predict_piece, chain, of_set, piece, units)
        for chain, of_chain in zip(chains, pieces, strict=True)
        for of_set in range(chain.n_sets)
        for piece in of_chain
    ]
    found = iter(in_order(tasks))
    return [
        joined([joined([next(found) for _ in of_chain], axis=1) for _ in range(chain.n_sets)])
        for chain, of_chain in zip(chains, pieces, strict=True)
    ]


def chain_latents(chains: Sequence[Chain], x: np.ndarray, units: Units) -> Gaussian:
    """Moments (chains, m, P) of the last layer's nodes, each those of a chain's mixture."""
    mixed = [equal_mixture(each.latents) for each in predict_chains(chains, x, units)]
    return Gaussian(*(np.stack([getattr(m, name) for m in mixed]) for name in ("mean", "var")))


def equal_mixture(components: Gaussian) -> Gaussian:
    """The mixture of components (K, …) with equal weights."""
    n = len(components.mean)
    return mixture(components, np.full(n, 1.0 / n))


def _pieces(imputed: Imputed, x: np.ndarray) -> list[np.ndarray]:
    size = math.prod(_blocks(imputed, 0))
    return [x[first : first + size] for first in range(0, len(x), size)]


def _blocks(imputed: Imputed, level: int) -> tuple[int, int]:
    """Blocks and rows of a chunk; on a GPU no more rows than their features have room for, and
    fewer at a level that few rows need."""
    if current().platform == "cpu":
        return CPU_BLOCKS
    widest = max((w.shape[-1] for w in imputed.members.latents), default=1)
    room = GPU_ROOM / (FEATURE_BYTES * widest * imputed.data.x.shape[0])
    most = GPU_BLOCKS[1] if level == 0 else GPU_ROWS_OF_PAIRS
    return GPU_BLOCKS[0], min(2 ** int(np.log2(max(room, 1.0))), most)


def _predict_piece(chain: Chain, of_set: int, x: np.ndarray, units: Units) -> Predicted:
    """Moments by the members of one set of parameters. Rows for which a level is not accurate are
    computed again at the next."""
    found = _at_level(chain, of_set, 0, x, units)
    for level in range(1, predict.n_levels(chain.imputed.network)):
        rows = np.flatnonzero(~found.accurate)
        if not len(rows):
            break
        better = _at_level(chain, of_set, level, x[rows], units)
        leaves = (jax.tree.leaves((each.latents, each.outputs)) for each in (found, better))
        for whole, part in zip(*leaves, strict=True):
            whole[:, rows] = part
        found.accurate[rows] = better.accurate
    return Predicted(found.latents, found.outputs, found.accurate[None])


def _at_level(chain: Chain, of_set: int, level: int, x: np.ndarray, units: Units) -> Predicted:
    """A few members at a time, to bound the device's memory."""
    imputed, members = chain.imputed, chain.members(of_set)
    network, chunks = imputed.network, _chunks(x, _blocks(imputed, level))
    method = predict.Method(level, _order_of_rows(network, level))
    place = (chain.place, of_set)
    shared = jax.device_put((row(imputed.params, place), row(imputed.conditioned, place)))
    data = jax.device_put((imputed.data, units))
    program = compiled(predict.predict, ("network", "method"))
    at_once, n_members = _members_at_once(members), len(members.alpha)
    found = []
    for k in range(0, n_members, at_once):
        some = jax.device_put(row(members, slice(k, k + at_once)))
        parts = [
            _rows(program(network, method, *shared, some, *data, chunk, n_rows), int(n_rows))
            for n_rows, chunk in chunks
        ]
        found.append(joined(parts, axis=1))
    together = joined(found)
    return Predicted(together.latents, together.outputs, np.all(together.accurate, axis=0))


def _rows(found: Predicted, n_rows: int) -> Predicted:
    """The true rows of chunks (K, blocks, m, ·) as (K, n_rows, ·)."""
    flat = lambda leaf: np.asarray(leaf).reshape(len(leaf), -1, leaf.shape[-1])[:, :n_rows]  # noqa: E731
    accurate = np.asarray(found.accurate).reshape(1, -1)[:, :n_rows]
    latents, outputs = jax.tree.map(flat, (found.latents, found.outputs))
    return Predicted(latents, outputs, accurate)


def _chunks(x: np.ndarray, blocks: tuple[int, int]) -> list[tuple[np.int32, np.ndarray]]:
    """Chunks (blocks, rows, d) of padded rows, with the number of true rows in each."""
    size = blocks[0] * blocks[1]
    padded = np.pad(x, ((0, -len(x) % size), (0, 0))).reshape(-1, *blocks, x.shape[1])
    used = [min(size, len(x) - first) for first in range(0, len(x), size)]
    return [(np.int32(n), chunk) for n, chunk in zip(used, padded, strict=True)]


def _members_at_once(members: Member) -> int:
    """The largest divisor of their number that fits in memory: another size would be another
    program."""
    n_members = len(members.alpha)
    n_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(members)) // n_members
    room = MEMBERS_ROOM[current().platform] // max(n_bytes, 1)
    return max(k for k in range(1, n_members + 1) if n_members % k == 0 and (k == 1 or k <= room))


def _order_of_rows(network: Network, level: int) -> predict.RowsInside | predict.RowsOutside:
    if current().platform == "cpu":
        return predict.RowsInside()
    method = predict.Method(level, predict.RowsInside(GPU_TILES))
    schemes = [method.scheme(network, layer) for layer in range(1, network.depth)]
    return method.rows if all(each.cheap_to_read for each in schemes) else predict.RowsOutside()


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
            better = to_numpy(program(imputed.network, level, params, data, Gaussian(*at)))
            keep = lambda old, new, kept=found.accurate: np.where(kept[:, None], old, new)  # noqa: E731
            moments = jax.tree.map(keep, found.moments, better.moments)
            found = Linked(moments, found.accurate | better.accurate)
        parts.append(found.moments)
    return row(joined(parts), slice(len(x)))


def leave_one_out(imputed: Imputed) -> Gaussian:
    """Closed-form leave-one-out moments (members, padded sites, P) of the last layer."""
    found = compiled(networks.leave_one_out)(imputed)
    return jax.tree.map(lambda each: np.asarray(each).reshape(-1, *each.shape[2:]), found)


def member_weights(imputed: Imputed, weights: np.ndarray) -> np.ndarray:
    """Each chain's weight in equal parts for its imputations, chain after chain."""
    n_members = imputed.members.alpha.shape[1]
    return np.repeat(weights / n_members, n_members)


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
        (imputed, chain, k, weight / imputed.members.alpha.shape[1])
        for imputed, weights in structures
        for chain, weight in enumerate(weights)
        for k in range(imputed.members.alpha.shape[1])
    ]
    weights = np.array([place[-1] for place in places])
    picks = np.random.default_rng(seed).choice(len(weights), n_samples, p=weights / weights.sum())
    draw_keys, rows = keys(n_samples, seed, DRAW_STREAM), pad_rows(x, bucket(len(x)))
    program, draws = compiled(predict.draw, ("network",)), {}
    for pick in np.unique(picks):
        given = _ready_for_draws(*places[pick][:3])
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
