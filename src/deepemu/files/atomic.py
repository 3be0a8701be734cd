"""Atomic writes: a file is complete or absent."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from deepemu.errors import FileError

PathLike = str | os.PathLike[str]


@contextmanager
def replacing(path: PathLike) -> Iterator[IO[bytes]]:
    """A file to write to, which replaces ``path`` at the end unless an error is raised."""
    target = _target_of(path)
    beside = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with beside.open("xb") as file:
            _keep_mode(target, beside)
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except OSError as error:
        if error.errno is None:
            raise
        # The name that the user gave, not that of the temporary file.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)


def _keep_mode(target: Path, beside: Path) -> None:
    """Keep the permissions of the old file, where the file system has any."""
    if target.exists():
        with suppress(OSError):
            shutil.copymode(target, beside)


def require_writable(path: PathLike) -> None:
    """Raise before long work if its result could not be written."""
    target = _target_of(path)
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise FileError(
            f"{path} cannot be written ({error.strerror}); name a file in a folder that you can "
            "write to."
        ) from error


def _target_of(path: PathLike) -> Path:
    """The file that a path leads to; a folder, a pipe or a device is never replaced."""
    try:
        target = Path(path).resolve()
    except (RuntimeError, OSError) as error:
        raise FileError(f"{path} is a link that leads nowhere; name a file to write to.") from error
    if target.exists() and not target.is_file():
        what = "a folder" if target.is_dir() else "not a regular file"
        raise FileError(f"{path} is {what}; name a file to write to.")
    return target
