"""Files that appear whole or not at all."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from deepemu.errors import FileError

PathLike = str | os.PathLike[str]


@contextmanager
def replacing(path: PathLike) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of ``path`` at the end, unless something fails."""
    target = Path(path).resolve()
    beside = target.with_name(f".{target.name[:100]}.{uuid.uuid4().hex}.part")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def require_writable(path: PathLike) -> None:
    """Say before long work that its result could not be written."""
    target = Path(path).resolve()
    if target.is_dir():
        raise FileError(f"{path} is a folder; name a file to write to.")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise FileError(
            f"{path} cannot be written ({error.strerror}); name a file in a folder that you can "
            "write to."
        ) from error
