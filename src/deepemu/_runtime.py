"""Where and how programs run: precision, device, threads, and the compiled programs themselves."""

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
from joblib import effective_n_jobs
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
    with ExitStack() as stack:
        stack.enter_context(_blas().limit(limits=blas_threads, user_api="blas"))
        stack.enter_context(_inside(runtime))
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


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


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
    if device == "gpu" and not has("gpu"):
        raise InputError(
            "device is 'gpu', but JAX sees no GPU here; install a JAX build for your GPU or pass "
            "device='cpu'."
        )
    if device == "gpu" or (device == "auto" and worth_a_gpu and has("gpu")):
        return Runtime("gpu")
    return Runtime("cpu", effective_n_jobs(n_jobs))


def blas_threads(runtime: Runtime, n_programs: int, n_rows: int) -> int:
    """Threads for LAPACK where programs leave cores idle and matrices are large."""
    idle = runtime.threads // max(min(n_programs, runtime.threads), 1)
    return max(idle, 1) if n_rows >= ROWS_FOR_BLAS_THREADS else 1


# --- the cache on disk -----------------------------------------------------------------------


def use_compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs between processes; call it before the first fit. Returns the folder.

    By default they go to ``deepemu/xla`` in the user's cache folder (``$XDG_CACHE_HOME`` or
    ``~/.cache``). The cache is JAX's own and holds for the whole process, so it is never turned on
    by itself; delete the folder at will.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = home / "deepemu" / "xla" if folder is None else Path(folder)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


# --- programs --------------------------------------------------------------------------------


def compiled(function: Callable[..., Any], static: tuple[str, ...] = ()) -> Callable[..., Any]:
    """``function`` as a program of the current runtime that has finished when it returns."""
    return _program(function, static, current().platform)


@functools.cache
def _program(
    function: Callable[..., Any], static: tuple[str, ...], platform: str
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
                done = jax.block_until_ready(program(*args, **kwargs))
                seen.add(signature)
                return done
        return jax.block_until_ready(program(*args, **kwargs))

    return run


def _signature(arguments: Any) -> Any:
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple(getattr(leaf, "shape", leaf) for leaf in leaves)


@functools.cache
def _options(platform: str) -> dict[str, bool | int] | None:
    """Those of `CPU_OPTIONS` that this version of XLA knows; none on other devices."""
    if platform != "cpu":
        return None
    return {name: value for name, value in CPU_OPTIONS.items() if _is_known(name, value)}


def _is_known(option: str, value: bool | int) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options={option: value}).lower(0.0).compile()
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

    with ThreadPoolExecutor(min(runtime.threads, len(tasks))) as pool:
        waiting = {pool.submit(run, task): index for index, task in enumerate(tasks)}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
