"""Groups and near rows against sorted distances; rows that are spread."""

import numpy as np
import pytest

from deepemu.data.neighbours import Tree, grouped, spread_rows


@pytest.mark.parametrize(("n", "dimensions"), [(3, 2), (9, 1), (300, 3)])
def test_groups_are_given_the_nearest_rows_before(n, dimensions):
    rng = np.random.default_rng(n)
    points, used = rng.random((n, dimensions)), rng.random(n) > 0.2
    used[0] = True
    groups = grouped(points, used, 6, 4)
    assert groups.own.shape == (-(-n // 4), 4) and groups.near.shape == (-(-n // 4), 6)
    assert sorted(groups.own[groups.own >= 0]) == list(np.flatnonzero(used))
    before = np.zeros(0, int)
    for own, near in zip(groups.own, groups.near, strict=True):
        rows = own[own >= 0]
        if len(rows):
            apart = ((points[before] - points[rows].mean(axis=0)) ** 2).sum(axis=1)
            expected = before[np.argsort(apart, kind="stable")[:6]]
            assert sorted(near[near >= 0]) == sorted(expected)
            before = np.concatenate([before, rows])


def test_rows_of_a_group_are_near_each_other():
    """Each group's box is small beside that of all rows, and only one group is not full."""
    points = np.random.default_rng(0).random((250, 2))
    own = grouped(points, np.ones(250), 3, 8).own
    sizes = np.prod([np.ptp(points[rows[rows >= 0]], axis=0) for rows in own], axis=1)
    assert np.mean(sizes) < 2.0 / len(own)
    assert sorted((own >= 0).sum(axis=1))[:2] == [2, 8]


def test_rows_in_order_have_groups_too():
    """Groups of rows along a line are stretches of it, and their near rows are beside them."""
    groups = grouped(np.arange(512.0)[:, None], np.ones(512), 8, 4)
    np.testing.assert_array_equal(np.sort(groups.own, axis=1) % 4, np.tile(np.arange(4), (128, 1)))
    apart = np.abs(groups.near[64:] - groups.own[64:].mean(axis=1)[:, None])
    assert np.median(apart) < 10


def test_groups_are_found_by_any_number_of_threads():
    points = np.random.default_rng(0).random((400, 2))
    one, two = (grouped(points, np.ones(400), 5, 4, threads) for threads in (1, 2))
    np.testing.assert_array_equal(one.near, two.near)
    np.testing.assert_array_equal(one.own, two.own)


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
    np.testing.assert_array_equal(Tree(points, used).nearest(at, 8, threads=2), found)
    few = Tree(points, np.arange(60) < 5).nearest(at, 8)
    assert np.all(few[:, 5:] == -1) and np.all(np.sort(few[:, :5]) == np.arange(5))
