"""Factors and solves against NumPy, alone and in batches, and in threads at once."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import quick_jit as jit

from deepemu.core import linalg


def positive_definite(rng, n, batch=()):
    root = rng.normal(size=(*batch, n, n))
    return root @ np.swapaxes(root, -1, -2) + n * np.eye(n)


@pytest.mark.parametrize("n", [1, 7, 99, 100, 101, 230])
def test_inverse(rng, n):
    matrix = positive_definite(rng, n)
    found = jit(linalg.inverse)(np.linalg.cholesky(matrix))
    np.testing.assert_allclose(found, np.linalg.inv(matrix), rtol=1e-9, atol=1e-13)


def test_batches_equal_single_matrices(rng):
    matrices, right = positive_definite(rng, 5, (3,)), rng.normal(size=(3, 5, 2))
    lower = jit(jax.vmap(linalg.cholesky))(matrices)
    np.testing.assert_allclose(lower, np.linalg.cholesky(matrices), rtol=1e-12)
    lower = np.asarray(lower)
    upper = np.swapaxes(lower, -1, -2)
    for function, expected in (
        (linalg.solve, np.linalg.solve(lower, right)),
        (linalg.solve_transposed, np.linalg.solve(upper, right)),
    ):
        np.testing.assert_allclose(jit(jax.vmap(function))(lower, right), expected, rtol=1e-9)
    left = np.swapaxes(right, -1, -2)
    found = jit(jax.vmap(linalg.solve_from_right))(lower, left)
    np.testing.assert_allclose(found, left @ np.linalg.inv(lower), rtol=1e-9)


def test_right_hand_sides_of_one_matrix_are_one_solve(rng):
    lower, right = np.linalg.cholesky(positive_definite(rng, 5)), rng.normal(size=(3, 5, 2))
    left = np.swapaxes(right, 1, 2)
    for function, given, expected in (
        (linalg.solve, right, np.linalg.inv(lower) @ right),
        (linalg.solve_transposed, right, np.linalg.inv(lower.T) @ right),
        (linalg.solve_from_right, left, left @ np.linalg.inv(lower)),
    ):
        batch = jax.vmap(function, in_axes=(None, 0))
        np.testing.assert_allclose(jit(batch)(lower, given), expected, rtol=1e-9)
        assert "scan" not in str(jax.make_jaxpr(batch)(lower, given))


def test_a_positive_system(rng):
    matrix, target = positive_definite(rng, 6), rng.normal(size=6)
    found = jit(linalg.solve_positive)(matrix, target)
    np.testing.assert_allclose(found, np.linalg.solve(matrix, target), rtol=1e-10)


def test_an_indefinite_matrix_has_no_factor():
    assert np.isnan(jit(linalg.cholesky)(np.array([[1.0, 2.0], [2.0, 1.0]]))).any()


@jit
def many_factors(matrices):
    def step(_, total):
        return 1e-9 * jnp.sum(jax.vmap(linalg.cholesky)(matrices + total))

    return jax.lax.fori_loop(0, 200, step, jnp.zeros((), matrices.dtype))


def test_programs_with_batches_run_in_threads_at_once(rng):
    """With LAPACK's own batches, two such programs in flight wait for each other forever."""
    matrices = positive_definite(rng, 40, (4,))

    def run():
        with jax.enable_x64(True):  # holds for one thread
            return float(many_factors(matrices))

    expected, found = run(), []
    threads = [threading.Thread(target=lambda: found.append(run()), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert found == [expected] * 8


@pytest.mark.parametrize("n", [5, 255, 256, 513])
def test_a_triangular_matrix_in_halves(rng, n):
    lower, vectors = np.tril(rng.normal(size=(n, n))), rng.normal(size=(n, 3))
    halves = jit(linalg.in_halves)(lower)
    np.testing.assert_array_equal(jit(linalg.whole)(halves), lower)
    found = jit(linalg.squared_norms)(halves, vectors)
    np.testing.assert_allclose(found, np.sum((lower @ vectors) ** 2, axis=0), rtol=1e-12)
    size = sum(leaf.size for leaf in jax.tree.leaves(halves))
    assert size == {5: 25, 255: 65_025, 256: 49_152, 513: 164_481}[n]
