"""What is computed one way on a CPU and another way elsewhere is the same."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit, vmap

from deepemu.core import linalg, platforms
from deepemu.core.nodes import terms


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_factors_of_either_branch(monkeypatch, rng, platform):
    monkeypatch.setattr(platforms, "_default_platform", lambda: platform)
    square = rng.normal(size=(3, 5, 5))
    matrices = square @ square.transpose(0, 2, 1) + 5.0 * np.eye(5)
    found = jit(vmap(linalg.cholesky))(jnp.asarray(matrices))
    np.testing.assert_allclose(found, np.linalg.cholesky(matrices), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_chunks_of_either_size(monkeypatch, platform):
    """Last of all rows: as many as the index has, in pieces of what the platform takes at once."""
    monkeypatch.setattr(platforms, "_default_platform", lambda: platform)
    monkeypatch.setattr(terms, "ON_CPU", 2)
    monkeypatch.setattr(terms, "ON_GPU", 3)
    values = jnp.arange(12.0)
    index = jnp.arange(12)
    found = jit(lambda i: terms.in_chunks(lambda some, of: of[some] ** 2, i, values))(index)
    np.testing.assert_allclose(np.ravel(found), np.arange(12.0) ** 2)
