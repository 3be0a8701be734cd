"""What all tests share. Public estimators are tested with JAX as the user has it: float64 off."""

import os
from collections.abc import Iterator

import jax
import numpy as np
import pytest

os.environ.setdefault("MPLBACKEND", "Agg")  # figures need no display


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers from a fixed seed."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def jax_left_as_found() -> Iterator[None]:
    """Float64 is a scope of the call that needs it: no test may leave it switched."""
    before = jax.config.jax_enable_x64
    yield
    assert jax.config.jax_enable_x64 == before, "the test changed jax_enable_x64"
