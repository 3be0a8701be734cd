"""What the benchmark scripts share: tables, bars, result files; standard library only."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

CPU_FACTS = Path("/proc/cpuinfo")


# --- tables --------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A title, the heads of the columns, and rows of text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells in columns; the first column is set left, the others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            [
                line[0].ljust(widths[0]),
                *(word.rjust(width) for word, width in zip(line[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for line in lines
    ]


def print_table(table: Table) -> None:
    if table.rows:
        print(f"\n{table.title}", *aligned([table.head, *table.rows]), sep="\n")


def number(value: float | None, style: str = ".3g", unit: str = "") -> str:
    """The formatted value with its unit; a dash where there is none."""
    return "-" if value is None else f"{value:{style}}{unit}"


def ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


# --- bars ----------------------------------------------------------------------------------------


class Bar(NamedTuple):
    """A value that was measured (or not) and the limit that it is held to."""

    measure: str
    value: float | None
    limit: float
    unit: str
    at_least: bool

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value < self.limit


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def bar_table(bars: Sequence[Bar]) -> Table:
    """Each measured value next to its bar."""
    words = {True: "yes", False: "NO", None: "not measured"}
    rows = [
        (
            bar.measure,
            f"{'at least' if bar.at_least else 'under'} {_rounded(bar.limit)}{bar.unit}",
            "-" if bar.value is None else _rounded(bar.value) + bar.unit,
            words[bar.met],
        )
        for bar in bars
    ]
    return Table("bars", ("measure", "bar", "measured", "met"), rows)


def bars_as_json(bars: Sequence[Bar]) -> list[dict[str, Any]]:
    return [{**bar._asdict(), "met": bar.met} for bar in bars]


# --- arguments, machine and files ----------------------------------------------------------------


def positive(text: str) -> int:
    """The type of an argument that counts something."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {value}")
    return value


def processor() -> str:
    """The processor by name, as far as the system tells it."""
    if CPU_FACTS.exists():
        for line in CPU_FACTS.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    return {"cpu": processor(), "cores": os.cpu_count(), "system": platform.platform()}


def load() -> float | None:
    """Mean number of running processes in the last minute, where the system counts them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def read_json(path: Path | None) -> Any:
    """What the file holds; None if there is none."""
    return json.loads(path.read_text()) if path is not None and path.exists() else None


def write_json(path: Path | None, value: Any) -> None:
    """Replace the file in one step, so that an interruption leaves the old or the new one."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=1))
    partial.replace(path)
