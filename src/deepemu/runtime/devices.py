"""Where programs run: device, threads, double precision."""

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import jax
from joblib import cpu_count
from threadpoolctl import ThreadpoolController

from deepemu.errors import InputError

DEVICES = ("auto", "cpu", "gpu")
# Below this, LAPACK's own threads cost more than they give.
ROWS_FOR_BLAS_THREADS = 500


@dataclass(frozen=True)
class Runtime:
    """The kind of device that programs run on, and how many of them at once."""

    platform: str = "cpu"
    threads: int = 1


_SERIAL = Runtime()
_current: contextvars.ContextVar[Runtime] = contextvars.ContextVar("runtime", default=_SERIAL)


def current() -> Runtime:
    return _current.get()


@contextmanager
def float64() -> Iterator[None]:
    """Double precision inside, whatever the user's process has set outside."""
    with jax.enable_x64(True):
        yield


@contextmanager
def running(runtime: Runtime, blas_threads: int = 1) -> Iterator[None]:
    """Programs inside are double precision and run as ``runtime`` says.

    LAPACK is held to ``blas_threads`` meanwhile: several programs that each start a thread per core
    would stand in each other's way.
    """
    with _blas().at_most(blas_threads), inside(runtime):
        yield


@contextmanager
def inside(runtime: Runtime) -> Iterator[None]:
    """JAX's settings and ours for one thread."""
    token = _current.set(runtime)
    try:
        with float64(), jax.default_device(_device(runtime.platform)):
            yield
    finally:
        _current.reset(token)


class _Blas:
    """LAPACK's threads, which belong to the whole process: the least of all limits in force holds,
    never more than the user allows, and the last to leave puts back what the first one found."""

    def __init__(self) -> None:
        self._libraries = ThreadpoolController().select(user_api="blas")
        self._lock = threading.Lock()
        self._wanted: list[int] = []
        self._limiter: Any = None

    @contextmanager
    def at_most(self, n_threads: int) -> Iterator[None]:
        self._change(self._wanted.append, n_threads)
        try:
            yield
        finally:
            self._change(self._wanted.remove, n_threads)

    def _change(self, change: Callable[[int], None], n_threads: int) -> None:
        with self._lock:
            change(n_threads)
            if self._limiter is not None:
                self._limiter.restore_original_limits()
                self._limiter = None
            if self._wanted:
                allowed = [library["num_threads"] for library in self._libraries.info()]
                self._limiter = self._libraries.limit(limits=min(self._wanted + allowed))


@functools.cache
def _blas() -> _Blas:
    return _Blas()


def _device(platform: str) -> Any:
    return jax.local_devices(backend=platform)[0]


def has(platform: str) -> bool:
    """Whether JAX sees such a device."""
    try:
        return bool(jax.local_devices(backend=platform))
    except RuntimeError:
        return False


def choose(device: str, n_jobs: int | None, worth_a_gpu: bool) -> Runtime:
    """The runtime that a user's ``device`` and ``n_jobs`` ask for; see `DGP`."""
    if device not in DEVICES:
        raise InputError(f"device is {device!r}; it must be one of {', '.join(DEVICES)}.")
    if not has("cpu") and not has("gpu"):
        raise InputError(
            "JAX finds neither a CPU nor a GPU here; add cpu to JAX_PLATFORMS, or unset it."
        )
    if device == "gpu" and not has("gpu"):
        raise InputError(
            "device is 'gpu', but JAX sees no GPU here; install a JAX build for your GPU or pass "
            "device='cpu'."
        )
    if device == "cpu" and not has("cpu"):
        raise InputError(
            "device is 'cpu', but JAX was told to leave the CPU out; add cpu to JAX_PLATFORMS or "
            "pass device='gpu'."
        )
    if device == "gpu" or (device == "auto" and has("gpu") and (worth_a_gpu or not has("cpu"))):
        return Runtime("gpu")
    return Runtime("cpu", n_threads(n_jobs))


def n_threads(n_jobs: int | None) -> int:
    """Threads for scikit-learn's ``n_jobs``: -1 stands for all cores, or for OMP_NUM_THREADS where
    that is set and less, as it is in the workers of a parallel search."""
    if n_jobs is None:
        return 1
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, Integral) or n_jobs == 0:
        raise InputError(
            f"n_jobs is {n_jobs!r}; it must be None, a positive whole number, -1 for all cores, "
            "or -2 for all but one, and so on."
        )
    if n_jobs > 0:
        return int(n_jobs)
    limit = os.environ.get("OMP_NUM_THREADS", "")
    cores = min(cpu_count(), int(limit)) if limit.isdigit() and int(limit) else cpu_count()
    return max(cores + 1 + int(n_jobs), 1)


def blas_threads(runtime: Runtime, n_programs: int, n_rows: int) -> int:
    """Threads for LAPACK where programs leave cores idle and matrices are large."""
    idle = runtime.threads // max(min(n_programs, runtime.threads), 1)
    return max(idle, 1) if n_rows >= ROWS_FOR_BLAS_THREADS else 1
