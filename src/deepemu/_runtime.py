"""Where and how programs run: precision, device, threads, and the compiled programs themselves."""

import contextvars
import functools
import gc
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.experimental.compilation_cache import compilation_cache
from joblib import cpu_count
from threadpoolctl import ThreadpoolController

from deepemu.errors import InputError

T = TypeVar("T")

DEVICES = ("auto", "cpu", "gpu")
# Below this, LAPACK's own threads cost more than they give.
ROWS_FOR_BLAS_THREADS = 500
# XLA's thread pool costs more than it gives on matrices of a few hundred rows; its fusion emitters
# double the compile time, and more than the first level of optimisation adds a quarter, without
# making these programs faster.
CPU_OPTIONS = {
    "xla_cpu_multi_thread_eigen": False,
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
}


@dataclass(frozen=True)
class Runtime:
    """The kind of device that programs run on, and how many of them at once."""

    platform: str = "cpu"
    threads: int = 1


_SERIAL = Runtime()
_LOOKING_UP = threading.Lock()
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
    with _blas().at_most(blas_threads), _inside(runtime):
        yield


@contextmanager
def _inside(runtime: Runtime) -> Iterator[None]:
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


# --- the cache on disk -----------------------------------------------------------------------


def use_compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep programs that are compiled from now on for later processes. Returns the folder.

    By default they go to ``deepemu/xla`` in the user's cache folder (``$XDG_CACHE_HOME`` or
    ``~/.cache``). The cache is JAX's own and holds for the whole process, so it is never turned on
    by itself; delete the folder at will.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = home / "deepemu" / "xla" if folder is None else Path(folder).expanduser()
    _require_writable(path)
    compilation_cache.reset_cache()  # JAX keeps the folder that its first compilation found
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


def _require_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"Compiled programs cannot be kept in {folder} ({error.strerror}); give another folder."
        ) from error


# --- programs --------------------------------------------------------------------------------


def compiled(function: Callable[..., Any], static: tuple[str, ...] = ()) -> Callable[..., Any]:
    """``function`` as a program of the current runtime that has finished when it returns."""
    with _LOOKING_UP:
        return _program(function, static, current().platform)


@functools.cache
def _program(
    function: Callable[..., Any],
    static: tuple[str, ...],
    platform: str,
) -> Callable[..., Any]:
    """A jitted function that threads compile once: the first call of each signature is alone."""
    program = jax.jit(function, static_argnames=static, compiler_options=_options(platform))
    seen: set[Any] = set()
    compiling = threading.Lock()

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        signature = _signature((args, kwargs))
        if signature not in seen:
            with compiling:
                if signature not in seen:
                    with _no_garbage_collection():
                        done = jax.block_until_ready(program(*args, **kwargs))
                    seen.add(signature)
                    return done
        return jax.block_until_ready(program(*args, **kwargs))

    return run


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """For a program's first call: tracing makes many objects that stay, and to look for garbage
    among them, again and again, is a sixth of its time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _signature(arguments: Any) -> Any:
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple(getattr(leaf, "shape", leaf) for leaf in leaves)


@functools.cache
def _options(platform: str) -> dict[str, bool | int] | None:
    """Those of `CPU_OPTIONS` that this version of XLA knows; none on other devices."""
    if platform != "cpu":
        return None
    if _are_known(CPU_OPTIONS):  # one compilation, and no other, as long as XLA keeps its flags
        return dict(CPU_OPTIONS)
    return {name: value for name, value in CPU_OPTIONS.items() if _are_known({name: value})}


def _are_known(options: dict[str, bool | int]) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def in_threads(tasks: Sequence[Callable[[], T]]) -> Iterator[tuple[int, T]]:
    """(index, result) of each task as it is done, in as many threads as the runtime has."""
    runtime = current()
    if runtime.threads == 1 or len(tasks) == 1:
        yield from ((index, task()) for index, task in enumerate(tasks))
        return

    def run(task: Callable[[], T]) -> T:
        with _inside(runtime):
            return task()

    pool = ThreadPoolExecutor(min(runtime.threads, len(tasks)))
    try:
        waiting = {pool.submit(run, task): index for index, task in enumerate(tasks)}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    finally:  # an error or a Ctrl-C does not wait for what is still to do
        pool.shutdown(wait=False, cancel_futures=True)
