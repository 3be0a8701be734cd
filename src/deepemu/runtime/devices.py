"""Where programs run: device, threads, double precision."""

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import jax
from threadpoolctl import ThreadpoolController

from deepemu.data.checks import is_whole, require, require_choice, require_value
from deepemu.errors import InputError, Message, Setting

DEVICES = ("auto", "cpu", "gpu")
# Below this, LAPACK's own threads do not pay.
ROWS_FOR_BLAS_THREADS = 500


@dataclass(frozen=True)
class Runtime:
    """The kind of device that programs run on, how many of them at once, and how many cores of the
    host they may keep busy."""

    platform: str = "cpu"
    threads: int = 1
    cores: int = 1

    @property
    def per_program(self) -> int:
        """Cores for each of the programs that run at once."""
        return max(self.cores // self.threads, 1)


_SERIAL = Runtime()
_current: contextvars.ContextVar[Runtime] = contextvars.ContextVar("runtime", default=_SERIAL)


current = _current.get
# Double precision on whatever device, without changing the user's setting outside.
float64 = functools.partial(jax.enable_x64, True)


@contextmanager
def running(runtime: Runtime, blas_threads: int = 1) -> Iterator[None]:
    """Programs inside are double precision and run as ``runtime`` says.

    LAPACK is limited to ``blas_threads`` meanwhile: several programs that each start a thread per
    core would compete for cores.
    """
    with _blas().at_most(blas_threads), inside(runtime):
        yield


@contextmanager
def inside(runtime: Runtime) -> Iterator[None]:
    """JAX's settings and ours for one thread; double precision, whatever the user's setting is."""
    token = _current.set(runtime)
    try:
        with float64(), jax.default_device(_device(runtime.platform)):
            yield
    finally:
        _current.reset(token)


class _Blas:
    """LAPACK's threads, which belong to the whole process: the smallest limit in force holds, never
    above the user's own, and the last scope to end restores the original."""

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


@functools.cache
def _device(platform: str) -> Any:
    return jax.local_devices(backend=platform)[0]


def has(platform: str) -> bool:
    """Whether JAX sees such a device."""
    try:
        return bool(jax.local_devices(backend=platform))
    except RuntimeError:
        return False


def choose(device: str, n_jobs: int | None, worth_a_gpu: bool) -> Runtime:
    """The runtime for a user's ``device`` and ``n_jobs``; see `DGP`."""
    require_choice(device, "device", DEVICES)
    require(
        has("cpu") or has("gpu"),
        "JAX finds neither a CPU nor a GPU here; add cpu to JAX_PLATFORMS, or unset it.",
    )
    if device != "auto" and not has(device):
        raise InputError(_no_such(device))
    if device == "gpu" or (device == "auto" and has("gpu") and (worth_a_gpu or not has("cpu"))):
        return Runtime("gpu", cores=n_threads(n_jobs))
    return Runtime("cpu", n_threads(n_jobs), n_threads(n_jobs))


def _no_such(device: str) -> Message:
    other, reason = {
        "gpu": ("cpu", "JAX sees no GPU here; install a JAX build for your GPU"),
        "cpu": ("gpu", "JAX was told to leave the CPU out; add cpu to JAX_PLATFORMS"),
    }[device]
    instead = Setting("device", other)
    return Message(Setting("device"), f" is {device!r}, but {reason}, or use ", instead, ".")


def n_threads(n_jobs: int | None) -> int:
    """Threads for scikit-learn's ``n_jobs``: -1 stands for all cores, or for OMP_NUM_THREADS where
    that is set and less, as it is in the workers of a parallel search."""
    if n_jobs is None:
        return 1
    known = "None, a positive integer, -1 for all cores, or -2 for all but one, and so on"
    require_value(is_whole(n_jobs) and n_jobs != 0, "n_jobs", n_jobs, known)
    if n_jobs > 0:
        return int(n_jobs)
    from joblib import cpu_count  # slow to import

    limit = os.environ.get("OMP_NUM_THREADS", "")
    cores = min(cpu_count(), int(limit)) if limit.isdigit() and int(limit) else cpu_count()
    return max(cores + 1 + int(n_jobs), 1)


def blas_threads(runtime: Runtime, n_programs: int, n_rows: int) -> int:
    """Threads for LAPACK where programs leave cores idle and matrices are large."""
    idle = runtime.threads // max(min(n_programs, runtime.threads), 1)
    return max(idle, 1) if n_rows >= ROWS_FOR_BLAS_THREADS else 1


@dataclass(frozen=True)
class Machine:
    """Where an emulator computes: ``device`` and ``n_jobs`` as of `DGP`."""

    device: str = "auto"
    n_jobs: int | None = -1

    def runtime(self, worth_a_gpu: bool = False) -> Runtime:
        return choose(self.device, self.n_jobs, worth_a_gpu)

    def running(
        self, worth_a_gpu: bool, n_programs: int, n_rows: int
    ) -> AbstractContextManager[None]:
        """The runtime for ``n_programs`` programs at once, with matrices of ``n_rows`` rows."""
        runtime = self.runtime(worth_a_gpu)
        return running(runtime, blas_threads(runtime, n_programs, n_rows))
