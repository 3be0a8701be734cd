"""Moments, draws and leave-one-out of ensembles: chunks of test rows, threads, mixtures."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import numpy as np

from deepemu._types import Array
from deepemu.core import ensemble as networks
from deepemu.core import predict
from deepemu.core.distributions import Gaussian, mixture
from deepemu.core.ensemble import Ensemble, Member
from deepemu.core.model.network import Network
from deepemu.core.nodes.linked import Linked
from deepemu.runtime.devices import current
from deepemu.runtime.padding import DRAW_STREAM, bucket, keys, pad_rows
from deepemu.runtime.programs import compiled, in_order
from deepemu.runtime.trees import joined, row, stack

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
    found = iter(in_order(tasks))
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
    parts = [compiled(networks.leave_one_out)(_normalised(each)) for each in voting]
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
    factorise, draw = (compiled(of, ("network",)) for of in (networks.factors, predict.draw))
    rows = pad_rows(x, bucket(len(x)))
    draws: dict[int, Array] = {}
    for pick in np.unique(picks):
        ensemble, place = places[pick]
        net, data, member = ensemble.network, ensemble.data, row(ensemble.members, place)
        factors = factorise(net, member, data)
        for k in map(int, np.flatnonzero(picks == pick)):
            draws[k] = draw(draw_keys[k], net, factors, member, data, rows)
    return np.stack([draws[k] for k in range(n_samples)])[:, : len(x)]
