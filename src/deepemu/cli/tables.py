"""Tables with named columns in CSV and Parquet files, read in parts."""

import csv
import functools
import io
import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from deepemu.errors import FileError
from deepemu.files.atomic import PathLike

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
LONGEST_CELL = 2**30
SEPARATORS = ",;\t"
PARQUET = (".parquet", ".pq")
TABS = (".tsv", ".tab")
LONGEST_LIST = 8
# Rows of a part, and cells where columns are many.
ROWS_OF_PART, CELLS_OF_PART = 2**14, 2**20
# Of a column of a Parquet file, whose row groups may be as large as the file.
BYTES_AT_ONCE = 2**20
Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Table:
    """Columns by name, as read from the file, of all rows or of a part; ``lines`` are the row
    numbers in the file, and ``place`` is the word for them."""

    source: str
    columns: Columns
    lines: Sequence[int]
    place: str = "line"

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def numbers(self, names: Iterable[str]) -> np.ndarray:
        """Some columns (n, k) as finite numbers."""
        return np.column_stack([self._column(name) for name in names])

    def require(self, names: Iterable[str]) -> None:
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise FileError(
                f"{self.source} has no column {_listed(missing)}; its columns are "
                f"{_listed(self.names)}."
            )

    def _column(self, name: str) -> np.ndarray:
        self.require([name])
        cells = self.columns[name]
        values = np.array([number(cell) for cell in cells], dtype=np.float64)  # None is NaN
        for row in np.flatnonzero(~np.isfinite(values))[:1]:
            cell, line = cells[row], self.lines[row]
            shown = "is empty" if cell is None or str(cell).strip() == "" else f"has {cell!r}"
            raise FileError(
                f"{self.source}, {self.place} {line}: column {name!r} {shown}, where a finite "
                "number is needed; correct or remove the row, or leave the column out."
            )
        return values


class ArrowColumns(Mapping[str, Sequence[Any]]):
    """Columns of a Parquet file: Python values when asked for, as stored in ``table``."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __getitem__(self, name: str) -> list[Any]:
        return _values(self.table.column(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.table.column_names)

    def __len__(self) -> int:
        return len(self.table.column_names)


def number(cell: Any) -> float | None:
    """A cell that is a number, or one written out."""
    if cell is None or isinstance(cell, bool | bytes):
        return None
    try:
        # Python reads 1_000 and digits of other scripts as numbers, which tables do not use.
        plain = not isinstance(cell, str) or ("_" not in cell and cell.strip().isascii())
        return float(cell) if plain else None
    except (TypeError, ValueError):
        return None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:LONGEST_LIST])
    more = len(names) - LONGEST_LIST
    return f"{shown} and {more} more" if more > 0 else shown


@dataclass(frozen=True)
class Source:
    """A table in a file, read from its beginning as often as asked for."""

    path: Path
    parts_of: Callable[[], Iterator[Table]]

    def parts(self) -> Iterator[Table]:
        """Some rows after the other, so that memory holds one part; there is at least one row."""
        part = None
        for part in self.parts_of():
            yield part
        if part is None:
            raise FileError(f"{self.path} has a header but no rows; it must have at least one.")


@contextmanager
def opened(path: PathLike) -> Iterator[Source]:
    """The table of a CSV file with a header, or of a Parquet file."""
    source = Path(path)
    if source.is_char_device() or source.is_block_device():
        raise FileError(f"{path} is a device, not a file; name a CSV or Parquet file.")
    parts = _csv_parts
    if source.suffix.lower() in PARQUET:
        arrow()  # says what to install
        parts = _parquet_parts
    with source.open("rb") as given, _repeatable(given) as file:
        yield Source(source, functools.partial(parts, source, file))


@contextmanager
def _repeatable(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The file itself, or a copy on disk of a pipe, which can be read only once."""
    if file.seekable():
        yield file
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy)
        yield copy


def read(path: PathLike) -> Table:
    """All rows together."""
    with opened(path) as source:
        first, *others = parts = list(source.parts())
    if not others:
        return first
    columns = {
        name: [cell for each in parts for cell in each.columns[name]] for name in first.names
    }
    lines = [line for each in parts for line in each.lines]
    return Table(first.source, columns, lines, first.place)


def _rows_of_part(n_columns: int) -> int:
    return max(min(ROWS_OF_PART, CELLS_OF_PART // max(n_columns, 1)), 1)


def _csv_parts(path: Path, file: IO[bytes]) -> Iterator[Table]:
    file.seek(0)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        rows = _csv_rows(path, text)
        _, header = next(rows, (0, None))
        if header is None:
            raise FileError(f"{path} is empty; it must have a header and at least one row.")
        names = [name.strip() for name in header]
        _require_names(path, names)
        while body := list(itertools.islice(rows, _rows_of_part(len(names)))):
            yield _table(path, names, body)
    finally:
        text.detach()


def _csv_rows(path: Path, text: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, with their line numbers."""
    csv.field_size_limit(LONGEST_CELL)
    lines = _without_zeros(path, text)
    try:
        beginning = list(_first_two(lines))
        separator = _separator([line for line in beginning if line.strip()])
        reader = csv.reader(itertools.chain(beginning, lines), delimiter=separator, strict=True)
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path} is not a CSV file in UTF-8 ({error.reason}); save it as one."
        ) from error
    except csv.Error as error:
        raise FileError(f"{path} is not a CSV file ({error}); fix the quoting.") from error


def _first_two(lines: Iterator[str]) -> Iterator[str]:
    """Lines up to the second that is not blank."""
    n_found = 0
    while n_found < 2 and (line := next(lines, None)) is not None:
        n_found += bool(line.strip())
        yield line


def _without_zeros(path: Path, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if "\0" in line:
            raise FileError(f"{path} is not a CSV file: it has zero bytes; save it as one.")
        yield line


def _separator(lines: Sequence[str]) -> str:
    """The separator that gives header and first row the same number of cells, and the most."""

    def merit(separator: str) -> tuple[bool, int]:
        counts = [len(row) for row in csv.reader(lines or [""], delimiter=separator)] or [0]
        return min(counts) == max(counts) > 1, max(counts)

    return max(SEPARATORS, key=merit)


def _table(path: Path, names: list[str], body: list[tuple[int, list[str]]]) -> Table:
    for line, row in body:
        if len(row) != len(names):
            raise FileError(
                f"{path}, line {line}: {len(row)} cell(s), but the header has {len(names)}; give "
                "every row one cell per column."
            )
    columns = {name: [row[place] for _, row in body] for place, name in enumerate(names)}
    return Table(str(path), columns, [line for line, _ in body])


def _require_names(path: Path, names: Sequence[str]) -> None:
    if "" in names:
        raise FileError(
            f"{path}: column {names.index('') + 1} has no name; give it one, or remove it if it "
            "only counts the rows."
        )
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise FileError(f"{path} has column {_listed(twice)} more than once; rename one of them.")
    if not names:
        raise FileError(f"{path} has no columns; it must have at least two.")
    if all(number(name) is not None for name in names):
        raise FileError(f"{path} has numbers in its first line; put the columns' names there.")


def _parquet_parts(path: Path, file: IO[bytes]) -> Iterator[Table]:
    _, parquet = arrow()
    first = 1
    with _parquet_in_one_sentence(path):
        source = parquet.ParquetFile(file, buffer_size=BYTES_AT_ONCE, pre_buffer=False)
    # The index that pandas stores only counts rows; it is not a column of the runs.
    stored = source.schema_arrow.names
    _require_names(path, stored)
    names = [each for each in stored if not _PANDAS_INDEX.fullmatch(each)]
    for part in _record_batches(path, source, _rows_of_part(len(names))):
        after = first + part.num_rows
        yield Table(str(path), ArrowColumns(part.select(names)), range(first, after), "row")
        first = after


def _record_batches(path: Path, source: Any, size: int) -> Iterator[Any]:
    """Arrow tables of so many rows."""
    pa, _ = arrow()
    with _parquet_in_one_sentence(path):
        for batch in source.iter_batches(size, use_threads=False):
            yield pa.Table.from_batches([batch])


@contextmanager
def _parquet_in_one_sentence(path: Path) -> Iterator[None]:
    pa, _ = arrow()
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise FileError(f"{path} is not a Parquet file ({reason}); write it again.") from error


def _values(column: Any) -> list[Any]:
    """Python values, or text where Python has none, as for dates out of its range."""
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    pa, _ = arrow()
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return scalar.cast(pa.string()).as_py()


def arrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise FileError(
            "Parquet files need pyarrow: pip install 'deepemu[parquet]', or use CSV."
        ) from error
    return pa, parquet


def is_table(path: PathLike) -> bool:
    """Whether a file is named as one of the tables that are read and written here."""
    return Path(path).suffix.lower() in (".csv", ".txt", ".dat", *TABS, *PARQUET)
