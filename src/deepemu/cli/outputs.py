"""Tables with named columns that are written part by part, in CSV and Parquet, or collected."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from deepemu.cli.tables import PARQUET, TABS, ArrowColumns, Columns, arrow, number
from deepemu.errors import FileError
from deepemu.files.atomic import PathLike, replacing

# Digits that conversion would lose: leading zeros, or more than a double has.
_IDENTIFIER = re.compile(r"[+-]?(0\d+|\d{16,})")
# Files of other programs, which would not open what is written here.
FOREIGN = (
    ".xlsx", ".xls", ".ods", ".json", ".feather", ".arrow", ".h5", ".hdf5", ".nc", ".npz", ".npy",
    ".mat", ".pkl", ".html", ".pdf", ".deepemu",
)  # fmt: skip


class Output(Protocol):
    """Takes the rows of a table part by part, after it was shown all of them."""

    def expect(self, columns: Columns) -> None:
        """Note what a part will hold."""

    def add(self, columns: Columns, more: Columns) -> None:
        """A part with more columns."""


class CsvOutput:
    """Each part as CSV, given to ``put``; names stand in the first line."""

    def __init__(self, put: Callable[[str], Any], separator: str = ",") -> None:
        self._put, self._separator = put, separator
        self._has_names = False

    def expect(self, columns: Columns) -> None:
        """Text needs no types."""

    def add(self, columns: Columns, more: Columns) -> None:
        """Numbers with the fewest digits that read back as the same double."""
        text, every = io.StringIO(), {**columns, **more}
        writer = csv.writer(text, delimiter=self._separator, lineterminator="\n")
        if not self._has_names:
            writer.writerow(every)
            self._has_names = True
        writer.writerows(zip(*every.values(), strict=True))
        self._put(text.getvalue())


class ParquetOutput:
    """Each part as a row group. Columns of Parquet files keep their types; those of CSV files are
    numbers if all cells are, and text otherwise."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._text = file, set[str]()
        self._writer: Any = None

    def expect(self, columns: Columns) -> None:
        if not isinstance(columns, ArrowColumns):
            left = (name for name in columns if name not in self._text)
            self._text |= {name for name in left if numbers_of(columns[name]) is None}

    def add(self, columns: Columns, more: Columns) -> None:
        pa, parquet = arrow()
        table = columns.table if isinstance(columns, ArrowColumns) else self._table(columns)
        for name, values in more.items():
            table = table.append_column(name, pa.array(values, pa.float64()))
        table = table.replace_schema_metadata()
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def _table(self, columns: Columns) -> Any:
        pa, _ = arrow()
        column = lambda name: (  # noqa: E731
            pa.array(list(map(str, columns[name])), pa.string())
            if name in self._text
            else pa.array(numbers_of(columns[name]), pa.float64())
        )
        return pa.table({name: column(name) for name in columns})

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Collected:
    """All columns, in memory."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {}

    def expect(self, columns: Columns) -> None:
        """Memory takes all types."""

    def add(self, columns: Columns, more: Columns) -> None:
        for name, cells in {**columns, **more}.items():
            self._columns.setdefault(name, []).extend(cells)

    def typed(self) -> Columns:
        """Columns whose cells are all numbers written out, as numbers."""
        return {name: _typed(cells) for name, cells in self._columns.items()}


def _typed(cells: Sequence[Any]) -> Sequence[Any]:
    found = numbers_of(cells) if all(isinstance(cell, str) for cell in cells) else None
    return cells if found is None else found


def numbers_of(cells: Sequence[Any]) -> list[float] | None:
    """The cells as numbers, if all of them are and none is an identifier."""
    found = []
    for cell in cells:
        is_identifier = isinstance(cell, str) and _IDENTIFIER.fullmatch(cell.strip())
        value = None if is_identifier else number(cell)
        if value is None:
            return None
        found.append(value)
    return found


@contextmanager
def to_file(path: PathLike) -> Iterator[Output]:
    """A new CSV or Parquet file, which replaces ``path`` once it is complete."""
    suffix = Path(path).suffix.lower()
    with replacing(path) as file:
        if suffix not in PARQUET:
            put = lambda text: file.write(text.encode())  # noqa: E731
            yield CsvOutput(put, "\t" if suffix in TABS else ",")
            return
        output = ParquetOutput(file)
        try:
            yield output
        finally:
            output.close()


def require_format(path: PathLike) -> None:
    """Require that the extension of a file matches its format."""
    suffix = Path(path).suffix.lower()
    if suffix in FOREIGN:
        raise FileError(f"{path} would not be a {suffix} file; name it .csv, .tsv or .parquet.")


def write(path: PathLike, columns: Columns) -> None:
    """Replace ``path`` by a new CSV or Parquet file."""
    with to_file(path) as output:
        output.expect(columns)
        output.add(columns, {})
