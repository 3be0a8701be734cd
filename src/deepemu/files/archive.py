"""One file with a JSON header and arrays: a zip archive that holds nothing that could run.

``header.json`` comes first, then ``arrays/0.npy``, ``arrays/1.npy``, … in NumPy's own format.
Nothing is compressed, so that a file needs no more memory than its size.
"""

import io
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepemu.errors import FileError
from deepemu.files.atomic import PathLike, replacing

HEADER = "header.json"
LONGEST_ARRAY_HEADER = 10_000
DTYPES = [np.dtype(kind) for kind in ("f8", "i4", "i8", "u4", "?")]


def write(path: PathLike, header: dict[str, Any], arrays: Sequence[np.ndarray]) -> None:
    """Replace ``path`` by a complete new file, or leave it unchanged."""
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(HEADER, json.dumps(header, allow_nan=False))
        for number, array in enumerate(arrays):
            with archive.open(_name(number), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)


def read(path: PathLike) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Header and arrays; a `FileError` for a file that `write` did not make."""
    with Path(path).open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                _require_plain(archive, os.fstat(file.fileno()).st_size)
                n_arrays = len(archive.namelist()) - 1
                return _header(archive), [_array(archive, _name(k)) for k in range(n_arrays)]
        except Exception as error:  # readers of zip, JSON and NumPy raise many types
            raise FileError(
                f"{os.fspath(path)} is not an emulator, or is damaged or cut short ({error}); "
                "fetch or write it again."
            ) from error


def _name(number: int) -> str:
    return f"arrays/{number}.npy"


def _require_plain(archive: zipfile.ZipFile, size: int) -> None:
    """Require exactly the members that `write` makes, none larger than the file."""
    members, names = archive.infolist(), archive.namelist()
    if sorted(names) != sorted([HEADER, *map(_name, range(len(names) - 1))]):
        raise ValueError("its parts have other names")
    packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if packed or sum(member.file_size for member in members) > size:
        raise ValueError("its parts are larger than the file")


def _header(archive: zipfile.ZipFile) -> dict[str, Any]:
    header = json.loads(archive.read(HEADER))
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")  # noqa: TRY004
    return header


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """An array of plain numbers, of the size that its header announces."""
    content = archive.read(name)
    member = io.BytesIO(content)
    reader = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[np.lib.format.read_magic(member)]
    shape, fortran_order, dtype = reader(member, LONGEST_ARRAY_HEADER)
    start = member.tell()
    count = int(np.prod(shape, dtype=object))
    announced = dtype in DTYPES and not fortran_order and count >= 0
    if not announced or count * dtype.itemsize != len(content) - start:
        raise ValueError(f"{name} does not hold the numbers it announces")
    return np.frombuffer(content, dtype, count, start).reshape(shape).copy()
