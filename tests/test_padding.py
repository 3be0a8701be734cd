"""From NumPy to JAX: precision, buckets, padding, stacks of trees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deepemu.core.model.observation import Units
from deepemu.data.sites import SiteData, pack
from deepemu.observations.gaussian import SiteMeans
from deepemu.runtime import devices, padding
from deepemu.runtime.trees import Shelf, row, stack


def test_double_precision_is_a_scope():
    assert jnp.ones(1).dtype == jnp.float32
    with devices.inside(devices.Runtime()):
        assert jnp.ones(1).dtype == jnp.float64
        assert padding.array(np.ones(1, np.float32)).dtype == jnp.float64
    assert jnp.ones(1).dtype == jnp.float32


def test_double_precision_ends_with_an_error():
    with pytest.raises(KeyError), devices.inside(devices.Runtime()):
        raise KeyError
    assert jnp.ones(1).dtype == jnp.float32


def test_buckets_hold_their_rows_and_grow_with_them():
    sizes = [padding.bucket(n) for n in range(1, 5000)]
    assert all(size >= n for n, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert padding.bucket(16) == 16
    assert padding.bucket(17) == 32


def test_buckets_are_few_and_waste_little():
    """At most 15 rows up to 128; beyond, about a fifth of the n³ work."""
    sizes = np.array([padding.bucket(n) for n in range(1, 5000)])
    n = np.arange(1, 5000)
    assert np.all((sizes - n)[n <= 128] < 16)
    assert np.median((sizes / n)[n >= 100] ** 3) < 1.25
    assert len(set(sizes)) < 100


def test_the_work_bound_of_buckets_is_the_documented_one():
    n = np.arange(128, 5000)
    sizes = np.array([padding.bucket(k) for k in n])
    worst = np.argmax((sizes / n) ** 3)
    assert (sizes[worst] / n[worst]) ** 3 <= 1.125**3, f"{n[worst]} rows become {sizes[worst]}"


def test_padding_appends_zero_rows():
    with jax.enable_x64(True):
        padded = padding.pad_rows(np.array([[1, 2], [3, 4]]), 4)
        assert padded.dtype == jnp.float64
        np.testing.assert_array_equal(padded, [[1, 2], [3, 4], [0, 0], [0, 0]])
        np.testing.assert_array_equal(padding.pad_rows(np.array([1.0]), 3), [1, 0, 0])
        np.testing.assert_array_equal(padding.pad_rows(np.ones((2, 1)), 2), np.ones((2, 1)))


def test_packed_data_mark_their_padding():
    with jax.enable_x64(True):
        observed = SiteMeans(np.ones((5, 1)), np.full((5, 1), 2.0), np.zeros((5, 1)))
        units = Units(np.zeros(1), np.ones(1))
        data = pack(SiteData(np.ones((5, 2)), observed, np.repeat(np.arange(5), 2), units))
    assert data.x.shape == (16, 2)
    assert data.observed.y.shape == (16, 1)
    np.testing.assert_array_equal(data.used, [1.0] * 5 + [0.0] * 11)
    np.testing.assert_array_equal(data.observed.counts[:, 0], [2.0] * 5 + [0.0] * 11)


def test_stacks_and_their_rows_are_inverse():
    trees = [{"a": np.full(2, k), "b": (np.array(k),)} for k in range(3)]
    stacked = stack(trees)
    assert stacked["a"].shape == (3, 2)
    for k, tree in enumerate(trees):
        jax.tree.map(np.testing.assert_array_equal, row(stacked, k), tree)


@pytest.mark.parametrize("n_put", [1, 2, 3])
def test_a_shelf_orders_by_chain_what_was_put(n_put):
    """Also where the places are not all taken, after a Ctrl-C."""
    shelf = Shelf(2, 3)
    for draw in range(n_put):
        shelf.put([{"a": np.full(2, 10 * chain + draw)} for chain in range(2)])
    expected = [[[10 * chain + draw] * 2 for draw in range(n_put)] for chain in range(2)]
    np.testing.assert_array_equal(shelf.stacked()["a"], expected)
