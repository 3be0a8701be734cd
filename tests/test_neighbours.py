"""Near rows against sorted distances; rows that are spread."""

import numpy as np
import pytest

from deepemu.data.neighbours import Tree, rows_before, spread_rows


@pytest.mark.parametrize(("n", "dimensions"), [(3, 2), (9, 1), (300, 3)])
def test_rows_before_are_the_nearest(n, dimensions):
    rng = np.random.default_rng(n)
    points, used = rng.random((n, dimensions)), rng.random(n) > 0.2
    used[0] = True
    table = rows_before(points, used, 6)
    assert table.shape == (n, 6) and table.dtype == np.int32
    for row in range(n):
        earlier = np.flatnonzero(used[:row]) if used[row] else np.array([], int)
        apart = ((points[earlier] - points[row]) ** 2).sum(axis=1)
        expected = earlier[np.argsort(apart, kind="stable")[:6]]
        found = table[row][table[row] >= 0]
        assert sorted(found) == sorted(expected)


def test_sorted_rows_have_neighbours_too():
    """Of rows in order, those before a row are all on one side."""
    table = rows_before(np.arange(500.0)[:, None], np.ones(500), 4)
    np.testing.assert_array_equal(np.sort(table[4:]), np.arange(4, 500)[:, None] - [4, 3, 2, 1])


def test_rows_are_found_by_any_number_of_threads():
    points = np.random.default_rng(0).random((400, 2))
    one, two = (rows_before(points, np.ones(400), 5, threads) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_spread_rows_are_far_apart():
    points = np.random.default_rng(0).random((200, 2))
    rows = spread_rows(points, 12)
    assert len(set(rows.tolist())) == 12 and rows.dtype == np.int32
    apart = np.linalg.norm(points[:, None] - points[rows][None], axis=2)
    closest = np.min(apart[rows] + 9.0 * np.eye(12))
    # The next row would be nearer than these are to each other: they cover the points.
    assert apart.min(axis=1).max() <= closest + 1e-12


def test_no_more_rows_than_there_are():
    assert sorted(spread_rows(np.eye(3), 10).tolist()) == [0, 1, 2]


def test_rows_near_points():
    """Against all distances; rows that are not in use are no neighbours, missing ones are -1."""
    generator = np.random.default_rng(3)
    points, at = generator.random((60, 3)), generator.random((20, 3))
    used = generator.random(60) < 0.7
    found = Tree(points, used).nearest(at, 8)
    apart = np.where(used, ((at[:, None] - points[None]) ** 2).sum(axis=2), np.inf)
    np.testing.assert_array_equal(found, np.argsort(apart, axis=1)[:, :8])
    few = Tree(points, np.arange(60) < 5).nearest(at, 8)
    assert np.all(few[:, 5:] == -1) and np.all(np.sort(few[:, :5]) == np.arange(5))
