"""Tables with named columns in CSV and Parquet files."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepemu.errors import FileError
from deepemu.files.atomic import PathLike, replacing

# Digits that conversion would lose: leading zeros, or more than a double has.
_IDENTIFIER = re.compile(r"[+-]?(0\d+|\d{16,})")
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
LONGEST_CELL = 2**30
SEPARATORS = ",;\t"
PARQUET = (".parquet", ".pq")
TABS = (".tsv", ".tab")
# Files of other programs, which would not open what is written here.
FOREIGN = (
    ".xlsx", ".xls", ".ods", ".json", ".feather", ".arrow", ".h5", ".hdf5", ".nc", ".npz", ".npy",
    ".mat", ".pkl", ".html", ".pdf", ".deepemu",
)  # fmt: skip
LONGEST_LIST = 8
Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Table:
    """Columns by name, as read from the file; ``lines`` are the row numbers in the file, and
    ``place`` is the word for them."""

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
        values = [_number(cell) for cell in self.columns[name]]
        for cell, value, line in zip(self.columns[name], values, self.lines, strict=True):
            if value is None or not np.isfinite(value):
                shown = "is empty" if cell is None or str(cell).strip() == "" else f"has {cell!r}"
                raise FileError(
                    f"{self.source}, {self.place} {line}: column {name!r} {shown}, where a finite "
                    "number is needed; correct or remove the row, or leave the column out."
                )
        return np.array(values, dtype=np.float64)


def _number(cell: Any) -> float | None:
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


def read(path: PathLike) -> Table:
    """The table of a CSV file with a header, or of a Parquet file."""
    source = Path(path)
    if source.is_char_device() or source.is_block_device():
        raise FileError(f"{path} is a device, not a file; name a CSV or Parquet file.")
    table = _read_parquet(source) if source.suffix.lower() in PARQUET else _read_csv(source)
    if not len(table):
        raise FileError(f"{path} has a header but no rows; it must have at least one.")
    return table


def _read_csv(path: Path) -> Table:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path} is not a CSV file in UTF-8 ({error.reason}); save it as one."
        ) from error
    if "\0" in text:
        raise FileError(f"{path} is not a CSV file: it has zero bytes; save it as one.")
    csv.field_size_limit(LONGEST_CELL)
    first_lines = [line for line in text.splitlines() if line.strip()][:2]
    try:
        reader = csv.reader(
            io.StringIO(text, newline=""), delimiter=_separator(first_lines), strict=True
        )
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise FileError(f"{path} is not a CSV file ({error}); fix the quoting.") from error
    if not rows:
        raise FileError(f"{path} is empty; it must have a header and at least one row.")
    (_, names), *body = rows
    return _table(path, [name.strip() for name in names], body)


def _separator(lines: Sequence[str]) -> str:
    """The separator that gives header and first row the same number of cells, and the most."""

    def merit(separator: str) -> tuple[bool, int]:
        counts = [len(row) for row in csv.reader(lines or [""], delimiter=separator)] or [0]
        return min(counts) == max(counts) > 1, max(counts)

    return max(SEPARATORS, key=merit)


def _table(path: Path, names: list[str], body: list[tuple[int, list[str]]]) -> Table:
    _require_names(path, names)
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
    if all(_number(name) is not None for name in names):
        raise FileError(f"{path} has numbers in its first line; put the columns' names there.")


def _read_parquet(path: Path) -> Table:
    arrow, parquet = _arrow()
    with path.open("rb") as file:
        try:
            source = parquet.ParquetFile(file)
            _require_names(path, source.schema_arrow.names)
            found = source.read()
        except (arrow.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise FileError(f"{path} is not a Parquet file ({reason}); write it again.") from error
    # The index that pandas stores only counts rows; it is not a column of the runs.
    found = found.select([each for each in found.column_names if not _PANDAS_INDEX.fullmatch(each)])
    names = [str(name) for name in found.column_names]
    columns = {name: _values(arrow, found.column(place)) for place, name in enumerate(names)}
    return Table(str(path), columns, range(1, found.num_rows + 1), "row")


def _values(arrow: Any, column: Any) -> list[Any]:
    """Python values, or text where Python has none, as for dates out of its range."""
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        return column.cast(arrow.string()).to_pylist()


def _arrow() -> tuple[Any, Any]:
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


def require_format(path: PathLike) -> None:
    """Require that the extension of a file matches its format."""
    suffix = Path(path).suffix.lower()
    if suffix in FOREIGN:
        raise FileError(f"{path} would not be a {suffix} file; name it .csv, .tsv or .parquet.")


def write(path: PathLike, columns: Columns) -> None:
    """Replace ``path`` by a new CSV or Parquet file."""
    suffix = Path(path).suffix.lower()
    separator = "\t" if suffix in TABS else ","
    is_parquet = suffix in PARQUET
    content = _parquet_bytes(columns) if is_parquet else csv_text(columns, separator).encode()
    with replacing(path) as file:
        file.write(content)


def csv_text(columns: Columns, separator: str = ",") -> str:
    """Numbers with the fewest digits that read back as the same double."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def typed(columns: Columns) -> Columns:
    """Columns whose cells are all numbers written out, as numbers."""
    return {name: _typed(column) for name, column in columns.items()}


def _typed(column: Sequence[Any]) -> Sequence[Any]:
    if not all(isinstance(cell, str) for cell in column):
        return column
    values = [None if _IDENTIFIER.fullmatch(cell.strip()) else _number(cell) for cell in column]
    return column if any(value is None for value in values) else values


def _arrow_column(arrow: Any, column: Sequence[Any]) -> Any:
    try:
        return arrow.array(list(column))
    except (arrow.ArrowException, OverflowError):  # mixed kinds, or larger than any
        return arrow.array([None if cell is None else str(cell) for cell in column])


def _parquet_bytes(columns: Columns) -> bytes:
    arrow, parquet = _arrow()
    content = io.BytesIO()
    table = {name: _arrow_column(arrow, column) for name, column in typed(columns).items()}
    parquet.write_table(arrow.table(table), content)
    return content.getvalue()
