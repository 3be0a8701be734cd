"""Compiled programs on disk, for later processes."""

import os
import tempfile
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from deepemu.errors import InputError


def use_compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep programs that are compiled from now on for later processes. Returns the folder.

    By default they go to ``deepemu/xla`` in the user's cache folder (``$XDG_CACHE_HOME`` or
    ``~/.cache``). It is JAX's own cache, which holds for the whole process, so it is never turned
    on by itself; on a CPU, programs of this package are there a second time, in a form that need
    not be traced. Delete the folder at will. Programs are run as they are found there, so nobody
    else should be able to write to it.
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
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"Compiled programs cannot be kept in {folder} ({error.strerror}); give another folder."
        ) from error
