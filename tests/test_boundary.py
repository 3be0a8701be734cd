"""The door to JAX: precision, padding, buckets, chunks."""

import dataclasses
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deepemu import DGP, GP
from deepemu.core.distributions import Gaussian
from deepemu.core.inference import m_step
from deepemu.core.nodes.linked import Linked
from deepemu.ensembles import prediction
from deepemu.runtime import devices, padding, programs
from deepemu.runtime.trees import Shelf, row, stack
from deepemu.training import blocks

pytestmark = pytest.mark.usefixtures("quick_programs")


def test_double_precision_is_a_scope():
    assert jnp.ones(1).dtype == jnp.float32
    with devices.float64():
        assert jnp.ones(1).dtype == jnp.float64
        assert padding.array(np.ones(1, np.float32)).dtype == jnp.float64
    assert jnp.ones(1).dtype == jnp.float32


def test_double_precision_ends_with_an_error():
    with pytest.raises(KeyError), devices.float64():
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
    with devices.float64():
        padded = padding.pad_rows(np.array([[1, 2], [3, 4]]), 4)
        assert padded.dtype == jnp.float64
        np.testing.assert_array_equal(padded, [[1, 2], [3, 4], [0, 0], [0, 0]])
        np.testing.assert_array_equal(padding.pad_rows(np.array([1.0]), 3), [1, 0, 0])
        np.testing.assert_array_equal(padding.pad_rows(np.ones((2, 1)), 2), np.ones((2, 1)))


def test_packed_data_mark_their_padding():
    with devices.float64():
        data = padding.pack(np.ones((5, 2)), np.ones((5, 1)), np.full(5, 2.0), np.zeros(1))
    assert data.x.shape == (16, 2)
    assert data.y.shape == (16, 1)
    np.testing.assert_array_equal(data.counts, [2.0] * 5 + [0.0] * 11)


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
    expected = [10 * chain + draw for chain in range(2) for draw in range(n_put)]
    np.testing.assert_array_equal(shelf.ordered()["a"], np.array(expected)[:, None] * [1, 1])


def test_chunks_cover_all_rows_in_order():
    x = np.arange(10.0)[:, None]
    chunks = prediction._chunks(x, (2, 3))
    assert [int(n) for n, _ in chunks] == [6, 4]
    assert all(rows.shape == (2, 3, 1) for _, rows in chunks)
    np.testing.assert_array_equal(prediction._rows([rows for _, rows in chunks], 10), x)
    assert [int(n) for n, _ in prediction._chunks(x[:7], (2, 3))] == [6, 1]


def test_predictions_do_not_depend_on_the_size_of_chunks(rng, monkeypatch):
    x = rng.random((12, 2))
    emulator = DGP(n_chains=1, n_iter=2, n_sweeps=1, n_imputations=2).fit(x, np.sin(5 * x[:, 0]))
    at = np.vstack([x[:4], rng.random((7, 2))])
    whole = emulator.predict(at, return_std=True)
    monkeypatch.setattr(prediction, "CPU_BLOCKS", (2, 3))
    # Weights of the order of 1 / nugget round differently in matrix products of another shape.
    np.testing.assert_allclose(emulator.predict(at, return_std=True), whole, rtol=1e-6)


def test_shares_are_those_of_a_running_mean():
    weights = np.array([0.0, 0.25, 0.0, 0.75])
    np.testing.assert_allclose(prediction._shares(weights), [0.0, 1.0, 0.0, 0.75])


def test_rows_that_a_level_does_not_suit_go_on_to_the_next(rng, monkeypatch):
    x = rng.random((12, 2))
    settings = {"n_chains": 2, "n_iter": 2, "n_sweeps": 1, "n_imputations": 2, "n_jobs": 1}
    emulator = DGP(**settings).fit(x, np.sin(5 * x[:, 0]))
    at, seen = rng.random((40, 2)), []
    unsuited = {tuple(row) for row in emulator._data.scaling.x_to_core(at)[::3]}
    mixed = prediction._mixed

    def partly_unsuited(ensemble, members, level, rows):
        found = mixed(ensemble, members, 1, rows)
        seen.append((level, len(rows)))
        suited = np.array([level == 2 or tuple(row) not in unsuited for row in rows])
        shifted = Gaussian(found.moments.mean + level, found.moments.var)
        return Linked(shifted, suited)

    expected = emulator.predict(at)
    monkeypatch.setattr(prediction, "_mixed", partly_unsuited)
    shifted = (emulator.predict(at) - expected) / emulator._data.scaling.y_std[0]
    np.testing.assert_allclose(shifted, np.where(np.arange(40) % 3 == 0, 2.0, 0.0), atol=1e-7)
    assert seen == [(0, 40), (1, 14), (2, 14)] * 2


def test_chains_and_members_without_weight_do_not_count(rng):
    x = rng.random((12, 2))
    emulator = DGP(n_chains=3, n_iter=2, n_sweeps=1, n_imputations=2).fit(x, np.sin(5 * x[:, 0]))
    at, weights = rng.random((7, 2)), np.array([0.5, 0.25, 0.0, 0.0, 0.0, 0.25])
    ensemble = dataclasses.replace(emulator.ensembles_[0], weights=weights)
    alone = []
    with devices.running(devices.Runtime()):
        mean, var = prediction.predict_mixture([ensemble], at)
        for only in np.eye(6)[weights > 0]:
            one = dataclasses.replace(ensemble, weights=only)
            alone.append(prediction.predict_mixture([one], at))
    means, variances = (np.stack(each) for each in zip(*alone, strict=True))
    w = weights[weights > 0][:, None, None]
    np.testing.assert_allclose(mean, (w * means).sum(0), rtol=1e-12)
    second = (w * (variances + means**2)).sum(0)
    np.testing.assert_allclose(var, second - mean**2, rtol=1e-9)


def test_members_go_to_the_device_in_equal_parts(rng, monkeypatch):
    x = rng.random((12, 2))
    emulator = DGP(n_chains=1, n_iter=2, n_sweeps=1, n_imputations=6).fit(x, np.sin(5 * x[:, 0]))
    at = rng.random((7, 2))
    together = emulator.predict(at, return_std=True)
    one = sum(leaf.nbytes for leaf in jax.tree.leaves(emulator.ensembles_[0].members)) // 6
    for room, expected in ((0, 1), (one, 1), (5 * one, 3), (6 * one, 6)):
        monkeypatch.setitem(prediction.MEMBERS_ROOM, "cpu", room)
        assert prediction._members_at_once(emulator.ensembles_[0], 6) == expected
    monkeypatch.setitem(prediction.MEMBERS_ROOM, "cpu", 5 * one)
    np.testing.assert_allclose(emulator.predict(at, return_std=True), together, rtol=1e-9)


def test_chains_in_step_are_the_chains_apart(rng, monkeypatch):
    """What a GPU runs, on this CPU: the first iterations agree to rounding."""
    x = rng.random((10, 2))
    settings = {"n_chains": 2, "n_iter": 2, "n_sweeps": 1, "n_imputations": 1}
    apart = DGP(**settings).fit(x, x[:, 0] ** 2)
    monkeypatch.setattr(blocks, "_train_apart", blocks._train_together)
    monkeypatch.setattr(blocks, "nodes_of_device", m_step.Together)
    in_step = DGP(**settings).fit(x, x[:, 0] ** 2)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(close, apart.trace_, in_step.trace_)


def test_unknown_compiler_options_are_left_out(monkeypatch):
    """A later XLA may drop a flag."""
    monkeypatch.setitem(programs.CPU_OPTIONS, "xla_no_such_option", True)
    options = programs._options.__wrapped__("cpu")
    assert "xla_no_such_option" not in options


def test_programs_of_several_threads_all_finish(rng):
    x = rng.random((12, 2))
    y = np.sin(5 * x[:, 0]) + x[:, 1]
    expected = GP().fit(x, y).predict(x)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(GP().fit(x, y).predict(x)), daemon=True)
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, expected)
