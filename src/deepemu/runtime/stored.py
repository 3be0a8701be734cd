"""Compiled programs on disk that need not be traced again.

JAX's own cache of compiled programs is looked up by the traced program, and tracing is most of the
time of a second process. Here the key is everything that a trace depends on: the sources of this
package, JAX's version and settings, the machine, the function, and what it is called with. (Not a
constant of a module that a running process has changed: do not patch one with a cache in use.)
"""

import functools
import hashlib
import inspect
import io
import os
import pickle
import platform
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
from jax.experimental import serialize_executable

PACKAGE = Path(__file__).resolve().parents[1]
# Packages whose code is part of a program: their versions or sources are part of the key.
KNOWN = ("deepemu", "jax", "jaxlib", "numpy", "builtins", "copyreg")

CACHE_HIT = "/jax/compilation_cache/cache_hits"
Options = dict[str, bool | int] | None


def ready_to_call(
    function: Callable[..., Any],
    static: tuple[str, ...],
    options: Options,
    dynamic: Any,
    args: Any,
    kwargs: Any,
) -> Callable[..., Any] | None:
    """The program for these arguments as a function of the ``dynamic`` ones among them, from disk
    or compiled now and stored; None where JAX keeps no programs on disk, where others may write
    there, or where this one uses classes from outside the package, whose changes the key would
    miss."""
    settings = dict(_settings())
    folder = settings["jax_compilation_cache_dir"]
    if not folder or not settings["jax_enable_compilation_cache"]:
        return None
    try:
        names = inspect.signature(function).parameters
        given = (*zip(names, args, strict=False), *kwargs.items())
        fixed = {name: value for name, value in given if name in static}
        key = _key(function, options, fixed, dynamic)
    except (pickle.PicklingError, AttributeError, TypeError):  # foreign or local classes
        return None
    if not _is_private(Path(folder)):
        return None
    file = Path(folder) / "deepemu" / key
    ready = _loaded(file, dynamic)
    if ready is not None:
        return ready
    program = jax.jit(_named(function, key), static_argnames=static, compiler_options=options)
    return _compiled(file, program.lower(*args, **kwargs))


def _is_private(folder: Path) -> bool:
    """Whether nobody else could have put a file there: loading a program runs it."""
    if not hasattr(os, "getuid"):
        return True  # Windows has no such modes; a profile belongs to its user
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function under a new name, because JAX's cache distinguishes programs by name too."""

    @functools.wraps(function)
    def same(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    same.__name__ = name
    return same


def _loaded(file: Path, dynamic: Any) -> Callable[..., Any] | None:
    """The program in the file; None where there is none that this process can run."""
    try:
        binary, result = pickle.loads(file.read_bytes())
        _find_lapack()
        in_tree, out_tree = jax.tree.structure(dynamic), jax.tree.structure(result)
        device = jax.local_devices(backend="cpu")[:1]
        return serialize_executable.deserialize_and_load(
            binary, in_tree, out_tree, device[0].client, device
        )
    except Exception:  # a bad file is replaced by compiling again
        return None


@functools.cache
def _find_lapack() -> None:
    """Load LAPACK, as JAX does only when it lowers a program; a stored program would crash without
    it."""
    matrix = jax.ShapeDtypeStruct((1, 1), np.float64)
    jax.jit(jax.lax.linalg.cholesky).lower(matrix)


def _compiled(file: Path, lowered: Any) -> Callable[..., Any]:
    """The program, which is on disk afterwards unless JAX had it in its own cache: what was loaded
    from there lacks parts when it is written again."""
    before = _hits().count
    program = lowered.compile()
    if _hits().count == before:
        _store(file, program)
    return program


class _Hits(threading.local):
    """How often this thread has found a program in JAX's cache."""

    count = 0

    def listen(self, event: str, **_: Any) -> None:
        self.count += event == CACHE_HIT


@functools.cache
def _hits() -> _Hits:
    hits = _Hits()
    jax.monitoring.register_event_listener(hits.listen)
    return hits


def _store(file: Path, program: Any) -> None:
    try:
        binary, _, out_tree = serialize_executable.serialize(program)
        # The structure of the result, as a result of numbers: structures cannot be stored.
        result = jax.tree.unflatten(out_tree, range(out_tree.num_leaves))
        _write(file, pickle.dumps((binary, result)))
    except (OSError, ValueError, NotImplementedError, jax.errors.JaxRuntimeError):
        pass  # a full disk, or a program that JAX cannot serialise


def _write(file: Path, content: bytes) -> None:
    """Write atomically: another process may be reading."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as unfinished:
        unfinished.write(content)
    os.replace(unfinished.name, file)


def _key(
    function: Callable[..., Any], options: Options, fixed: dict[str, Any], dynamic: Any
) -> str:
    """All counts of ``fixed`` arguments, also a number's value, and of others the shape."""
    # A context may change some of them; only the attribute shows the current value.
    settings = {name: str(getattr(jax.config, name, value)) for name, value in _settings()}
    shapes = jax.tree.map(_shape, dynamic)
    given = sorted((options or {}).items()), function, sorted(fixed.items()), shapes
    content = _pickled((_origin(), settings, given))
    return f"{function.__name__}-{hashlib.sha256(content).hexdigest()}"


def _settings() -> list[tuple[str, Any]]:
    return sorted(jax.config.values.items())


def _shape(leaf: Any) -> Any:
    """The properties of an argument that a trace depends on."""
    known = jax.typeof(leaf)
    return known.shape, str(known.dtype), known.weak_type


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        module = getattr(value, "__module__", None) if callable(value) else type(value).__module__
        if (module or "").split(".")[0] not in KNOWN:
            raise pickle.PicklingError(f"{value!r} is not defined here")
        return NotImplemented


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _hash_of_sources() -> str:
    sources = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        sources.update(str(file.relative_to(PACKAGE)).encode() + file.read_bytes())
    return sources.hexdigest()


# Of the sources that are imported, not of those that a file may hold later.
SOURCES = _hash_of_sources()


@functools.cache
def _origin() -> tuple[str, ...]:
    """Sources, versions and machine."""
    versions = jax.__version__, jaxlib.__version__, np.__version__, platform.python_version()
    return SOURCES, *versions, os.environ.get("XLA_FLAGS", ""), *_machine()


def _machine() -> tuple[str, ...]:
    """The processor with its instruction sets: a program may crash on another one."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    sets = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return platform.system(), platform.machine(), platform.processor(), sets
