"""What all tests share. Public estimators are tested with JAX as the user has it: float64 off."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import builders
import jax
import numpy as np
import pytest

from deepemu import DGP, GP
from deepemu.runtime import programs

os.environ.setdefault("MPLBACKEND", "Agg")  # figures need no display

# Large compiled programs are shared by the workers of a run, and by later runs; small ones are
# compiled as fast as they are read.
PROGRAMS = {
    "jax_compilation_cache_dir": str(Path(__file__).parents[1] / "build" / "xla"),
    "jax_persistent_cache_min_compile_time_secs": 0.3,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def pytest_configure() -> None:
    """In this process by JAX's settings, in those that tests start by the environment."""
    for name, value in PROGRAMS.items():
        jax.config.update(name, value)
        os.environ.setdefault(name.upper(), str(value))
    # Tests patch constants of modules, which programs that need not be traced would not notice.
    programs.ready_to_call = lambda *_: None
    # Tests compile much and compute little; the processes that they start compile as users do.
    programs.CPU_OPTIONS["xla_backend_optimization_level"] = 0
    # Tracing makes many lasting objects: scanning them often takes a tenth of the time.
    gc.set_threshold(100_000, 50, 50)


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers from a fixed seed."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def problem() -> tuple[np.ndarray, np.ndarray]:
    """Twelve runs of two inputs."""
    x = np.random.default_rng(0).random((12, 2))
    return x, builders.curve(x)


@pytest.fixture(scope="session")
def elsewhere() -> np.ndarray:
    """Twelve test rows, as many as there are training rows: sampling compiles for one number."""
    return np.random.default_rng(1).random((12, 2))


@pytest.fixture(scope="session")
def gp(problem: tuple[np.ndarray, np.ndarray]) -> GP:
    """Of all tests of a process: one that changes it copies it first."""
    return GP().fit(*problem)


@pytest.fixture(scope="session")
def dgp(problem: tuple[np.ndarray, np.ndarray]) -> DGP:
    """Of all tests of a process: one that changes it copies it first."""
    return DGP(**builders.SMALL).fit(*problem)


@pytest.fixture(scope="session")
def line() -> tuple[np.ndarray, np.ndarray]:
    """Twelve runs of one input."""
    x = np.random.default_rng(0).random((12, 1))
    return x, np.sin(5 * x[:, 0])


@pytest.fixture(scope="session")
def stacked(line: tuple[np.ndarray, np.ndarray]) -> DGP:
    """Four chains, and plain processes beside them; one that changes it copies it first."""
    return DGP(**builders.FOUR_CHAINS).fit(*line)


@pytest.fixture(params=["gp", "dgp"])
def either(request: pytest.FixtureRequest) -> GP | DGP:
    """Of all tests of a process: one that changes it copies it first."""
    return request.getfixturevalue(request.param)


MOST_MAPS = 40_000


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
