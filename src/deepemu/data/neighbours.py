"""Rows near each row or point, and rows that stand for all others."""

import numpy as np

# Blocks of rows double: a tree of all rows up to the end of a block is asked for rather more
# neighbours than are needed, about half of which are before the row.
FIRST_BLOCK, MORE = 4, 2.2
# Anchors are spread over so many of the rows at most.
MOST_ROWS = 5000


class Tree:
    """The rows nearest to points, among those in use of points (n, D)."""

    def __init__(self, points: np.ndarray, used: np.ndarray) -> None:
        from scipy.spatial import cKDTree  # slow to import

        self._places = np.flatnonzero(used).astype(np.int32)
        self._tree = cKDTree(points[self._places])

    def nearest(self, at: np.ndarray, n_near: int) -> np.ndarray:
        """Rows (q, n_near) nearest to points (q, D), -1 where there are fewer."""
        count = min(n_near, len(self._places))
        found = np.full((len(at), n_near), -1, np.int32)
        found[:, :count] = self._places[self._tree.query(at, k=range(1, count + 1))[1]]
        return found


def rows_before(points: np.ndarray, used: np.ndarray, n_near: int, threads: int = 1) -> np.ndarray:
    """The nearest rows (n, n_near) in use before each row of points (n, D), -1 where there are
    fewer."""
    places = np.flatnonzero(used)
    found = _rows_before(points[places], min(n_near, len(places)), threads)
    table = np.full((len(points), n_near), -1, np.int32)
    table[places, : found.shape[1]] = np.where(found >= 0, places[found], -1)
    return table


def _rows_before(points: np.ndarray, n_near: int, threads: int) -> np.ndarray:
    n = len(points)
    table = np.full((n, n_near), -1, np.int64)
    first = min(n, FIRST_BLOCK * n_near)
    _by_sorting(points[:first], table)
    while first < n:
        last = min(n, 2 * first)
        _by_tree(points[:last], np.arange(first, last), table, threads)
        first = last
    return table


def _by_sorting(points: np.ndarray, table: np.ndarray) -> None:
    """The table of the first rows, from all their distances."""
    apart = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    for row in range(1, len(points)):
        near = np.argsort(apart[row, :row], kind="stable")[: table.shape[1]]
        table[row, : len(near)] = near


def _by_tree(points: np.ndarray, rows: np.ndarray, table: np.ndarray, threads: int) -> None:
    """The table of some rows; those that got too few earlier neighbours ask again for more."""
    from scipy.spatial import cKDTree  # slow to import

    tree, n_near, count = cKDTree(points), table.shape[1], int(MORE * table.shape[1])
    while len(rows):
        count = min(count, len(points))
        found = tree.query(points[rows], k=count, workers=threads)[1]
        earlier = found < rows[:, None]
        enough = (earlier.sum(axis=1) >= n_near) | (count == len(points))
        first = earlier & (np.cumsum(earlier, axis=1) <= n_near)
        table[rows[enough]] = found[enough][first[enough]].reshape(-1, n_near)
        rows, count = rows[~enough], 2 * count


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
