"""What all tests share. Public estimators are tested with JAX as the user has it: float64 off."""

import functools
import os
from collections.abc import Iterator
from unittest import mock

import jax
import numpy as np
import pytest

from deepemu import _runtime

os.environ.setdefault("MPLBACKEND", "Agg")  # figures need no display


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers from a fixed seed."""
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def quick_programs() -> Iterator[None]:
    """Programs of a module's own, compiled without optimisation: a third of the time."""
    fresh = lambda cached: functools.cache(cached.__wrapped__)  # noqa: E731
    with (
        mock.patch.dict(_runtime.CPU_OPTIONS, {"xla_backend_optimization_level": 0}),
        mock.patch.object(_runtime, "_program", fresh(_runtime._program)),
        mock.patch.object(_runtime, "_options", fresh(_runtime._options)),
    ):
        yield


@pytest.fixture(autouse=True)
def jax_left_as_found() -> Iterator[None]:
    """Float64 is a scope of the call that needs it: no test may leave it switched."""
    before = jax.config.jax_enable_x64
    yield
    assert jax.config.jax_enable_x64 == before, "the test changed jax_enable_x64"
