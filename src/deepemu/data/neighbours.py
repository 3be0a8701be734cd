"""Groups of near rows, rows near a point, and rows that stand for all others."""

import numpy as np

from deepemu.core.nodes.node import Groups

# A tree is asked for rather more neighbours than are needed: about half are before a group.
MORE = 2.5
# Groups are in random order, always the same one.
ORDER_OF_GROUPS = 0
# Anchors are spread over so many of the rows at most.
MOST_ROWS = 5000


class Tree:
    """The rows nearest to points, among those in use of points (n, D)."""

    def __init__(self, points: np.ndarray, used: np.ndarray) -> None:
        from scipy.spatial import cKDTree  # slow to import

        self._places = np.flatnonzero(used).astype(np.int32)
        self._tree = cKDTree(points[self._places])

    def nearest(self, at: np.ndarray, n_near: int, threads: int = 1) -> np.ndarray:
        """Rows (q, n_near) nearest to points (q, D), -1 where there are fewer."""
        count = min(n_near, len(self._places))
        found = np.full((len(at), n_near), -1, np.int32)
        places = self._tree.query(at, k=range(1, count + 1), workers=threads)[1]
        found[:, :count] = self._places[places]
        return found


def grouped(
    points: np.ndarray, used: np.ndarray, n_near: int, n_group: int, threads: int = 1
) -> Groups:
    """Rows in use of points (n, D) in groups that are near each other, and for each group the rows
    of groups before it that are nearest to its mean.

    There are as many groups as all n rows have; the last ones may be empty.
    """
    places = np.flatnonzero(used)
    own = _halved(points, places, n_group)
    order = np.random.default_rng(ORDER_OF_GROUPS).permutation(len(own))
    own = [own[k] for k in order]
    shape = -(-len(points) // n_group)
    table, near = (np.full((shape, width), -1, np.int32) for width in (n_group, n_near))
    for k, rows in enumerate(own):
        table[k, : len(rows)] = rows
    _find_near(points, own, near, threads)
    return Groups(table, near)


def _halved(points: np.ndarray, rows: np.ndarray, n_group: int) -> list[np.ndarray]:
    """Groups of rows: all of them, cut in two along the widest column until they are small. All
    but one have ``n_group`` rows."""
    n_groups = -(-len(rows) // n_group)
    if n_groups < 2:
        return [rows] * n_groups
    widest = np.argmax(np.ptp(points[rows], axis=0))
    ordered = rows[np.argsort(points[rows, widest], kind="stable")]
    half = n_groups // 2 * n_group
    return [*_halved(points, ordered[:half], n_group), *_halved(points, ordered[half:], n_group)]


def _find_near(points: np.ndarray, own: list[np.ndarray], near: np.ndarray, threads: int) -> None:
    """Fill in the rows near each group, for ranges of groups that double: about half of the rows in
    a tree of all rows up to the end of a range are before a group."""
    rows = np.concatenate([np.zeros(0, np.int64), *own])
    centres = [points[each].mean(axis=0) for each in own]
    ends = np.cumsum([0, *map(len, own)])
    first = 1
    while first < len(own):
        last = min(2 * first, len(own))
        at, before = np.array(centres[first:last]), ends[first:last]
        found = _nearest_before(points[rows[: ends[last]]], at, before, near.shape[1], threads)
        near[first:last] = np.where(found >= 0, rows[found], -1)
        first = last


def _nearest_before(
    points: np.ndarray, at: np.ndarray, before: np.ndarray, n_near: int, threads: int
) -> np.ndarray:
    """The nearest of the points before number ``before`` (q,) of each centre, -1 where there are
    fewer; those that got too few ask again for more."""
    from scipy.spatial import cKDTree  # slow to import

    tree, table = cKDTree(points), np.full((len(at), n_near), -1, np.int64)
    left, count = np.arange(len(at)), int(MORE * n_near)
    while len(left):
        count = min(count, len(points))
        found = tree.query(at[left], k=range(1, count + 1), workers=threads)[1]
        earlier = found < before[left, None]
        enough = (earlier.sum(axis=1) >= np.minimum(n_near, before[left])) | (count == len(points))
        last = np.argsort(~earlier[enough], axis=1, kind="stable")[:, :n_near]
        nearest = np.take_along_axis(np.where(earlier, found, -1)[enough], last, axis=1)
        table[left[enough], : nearest.shape[1]] = nearest
        left, count = left[~enough], 2 * count
    return table


def spread_rows(points: np.ndarray, count: int) -> np.ndarray:
    """Rows that are far from each other: each the farthest from those before it, the first one
    the nearest to the centre. Of many points, only some evenly spaced in the table are looked at.
    """
    some = np.unique(np.linspace(0, len(points) - 1, min(len(points), MOST_ROWS)).astype(int))
    candidates = points[some]
    squared = lambda centre: ((candidates - centre) ** 2).sum(axis=1)  # noqa: E731
    chosen = [int(np.argmin(squared(candidates.mean(axis=0))))]
    apart = squared(candidates[chosen[0]])
    while len(chosen) < min(count, len(some)):
        chosen.append(int(np.argmax(apart)))
        apart = np.minimum(apart, squared(candidates[chosen[-1]]))
    return some[chosen].astype(np.int32)
