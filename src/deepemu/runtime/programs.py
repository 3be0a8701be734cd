"""Compiled programs, and running several of them in threads."""

import functools
import gc
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, TypeVar

import jax

from deepemu.runtime.devices import current, inside
from deepemu.runtime.stored import Options, ready_to_call

T = TypeVar("T")

LEVEL = "xla_backend_optimization_level"
# XLA's thread pool does not pay on matrices of a few hundred rows; its fusion emitters
# double the compile time, and more than the first level of optimisation adds a quarter, without
# making these programs faster. By default XLA cuts a program into 32 parts, which several cores
# compile at once; so many cost a seventh of the time on one core, and four keep four cores busy.
CPU_OPTIONS = {
    "xla_cpu_multi_thread_eigen": False,
    "xla_cpu_use_fusion_emitters": False,
    LEVEL: 1,
    "xla_cpu_parallel_codegen_split_count": 4,
}
# Without optimisation a program is compiled in half the time and runs up to three times as long: a
# tenth of a second more over all calls of a fit, where the program is brief and has few rows.
LEVEL_OF_BRIEF, ROWS_OF_BRIEF = 0, 32
_LOOKING_UP = threading.Lock()


def compiled(
    function: Callable[..., Any], static: tuple[str, ...] = (), brief: bool = False
) -> Callable[..., Any]:
    """``function`` as a program of the current runtime that has finished when it returns.

    A ``brief`` one takes longer to compile than all its calls in a fit of few rows take.
    """
    with _LOOKING_UP:
        return _program(function, static, current().platform, brief)


@functools.cache
def _program(
    function: Callable[..., Any],
    static: tuple[str, ...],
    platform: str,
    brief: bool,
) -> Callable[..., Any]:
    """A jitted function that threads compile once: the first call of each signature is alone."""
    options = {few_rows: _options(platform, brief and few_rows) for few_rows in (False, True)}
    names = tuple(inspect.signature(function).parameters)
    ready: dict[Any, Callable[..., Any]] = {}
    compiling = threading.Lock()

    def prepare(args: Any, kwargs: Any) -> Callable[..., Any]:
        """The stored program for such arguments where there is one, or the one to be traced."""
        chosen = options[_longest_axis((args, kwargs)) <= ROWS_OF_BRIEF]
        program = jax.jit(function, static_argnames=static, compiler_options=chosen)
        if platform != "cpu":
            return program
        dynamic = _without(static, names, args, kwargs)
        stored = ready_to_call(function, static, chosen, dynamic, args, kwargs)
        if stored is None:
            return program

        def call(*args: Any, **kwargs: Any) -> Any:
            by_place, by_name = _without(static, names, args, kwargs)
            return stored(*by_place, **by_name)

        return call

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        signature = (
            structure,
            tuple(
                (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False))
                if hasattr(leaf, "shape")
                else leaf
                for leaf in leaves
            ),
        )
        if signature in ready:
            return jax.block_until_ready(ready[signature](*args, **kwargs))
        with compiling, _no_garbage_collection():
            call = ready.get(signature) or prepare(args, kwargs)
            found = jax.block_until_ready(call(*args, **kwargs))
            ready[signature] = call
        return found

    return run


def _without(
    static: tuple[str, ...], names: tuple[str, ...], args: Any, kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that are not static."""
    by_place = tuple(arg for name, arg in zip(names, args, strict=False) if name not in static)
    return by_place, {name: arg for name, arg in kwargs.items() if name not in static}


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """No garbage collection during a program's first call: tracing makes many lasting objects, and
    scanning them repeatedly takes a sixth of its time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _longest_axis(arguments: Any) -> int:
    shapes = [getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(arguments)]
    return max((length for shape in shapes for length in shape), default=0)


def _options(platform: str, unoptimised: bool = False) -> Options:
    """The compiler options for a device, without optimisation or with it."""
    options = _known_options(platform)
    if not unoptimised or not options or LEVEL not in options:
        return options
    return {**options, LEVEL: LEVEL_OF_BRIEF}


@functools.cache
def _known_options(platform: str) -> Options:
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
    """(index, result) of each task as it finishes, in as many threads as the runtime has."""
    runtime = current()
    if runtime.threads == 1 or len(tasks) <= 1:
        yield from ((index, task()) for index, task in enumerate(tasks))
        return

    def run(task: Callable[[], T]) -> T:
        with inside(runtime):
            return task()

    pool = ThreadPoolExecutor(min(runtime.threads, len(tasks)))
    try:
        waiting = {pool.submit(run, task): index for index, task in enumerate(tasks)}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    finally:  # an error or a Ctrl-C does not wait for pending tasks
        pool.shutdown(wait=False, cancel_futures=True)


def in_order(tasks: Iterable[Callable[[], T]]) -> list[T]:
    """Results of tasks that run in threads, in the order of the tasks."""
    return [result for _, result in sorted(in_threads(list(tasks)), key=lambda each: each[0])]
