"""What all tests share. Public estimators are tested with JAX as the user has it: float64 off."""

import functools
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest

from deepemu.runtime import programs

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
        mock.patch.dict(programs.CPU_OPTIONS, {"xla_backend_optimization_level": 0}),
        mock.patch.object(programs, "_program", fresh(programs._program)),
        mock.patch.object(programs, "_options", fresh(programs._options)),
    ):
        yield


MOST_MAPS = 20_000


@pytest.fixture(scope="module", autouse=True)
def programs_in_bounds() -> Iterator[None]:
    """Every compiled program holds some of the memory maps that Linux allows a process, 65530 by
    default; LLVM crashes where there are no more. A module that leaves many gives them back."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MOST_MAPS:
        programs._program.cache_clear()
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def jax_left_as_found() -> Iterator[None]:
    """Float64 is a scope of the call that needs it: no test may leave it switched."""
    before = jax.config.jax_enable_x64
    yield
    assert jax.config.jax_enable_x64 == before, "the test changed jax_enable_x64"
