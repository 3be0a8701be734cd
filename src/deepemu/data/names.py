"""Names of columns."""

from typing import Any

from deepemu.data.frames import names_of
from deepemu.errors import InputError


def names_of_outputs(y: Any, n_outputs: int) -> tuple[str, ...]:
    """Names of the columns of a frame, or of a series; otherwise y, or y1, y2, …"""
    return names_of(y) or (("y",) if n_outputs == 1 else numbered("y", n_outputs))


def require_order(name: str, found: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Refuse names of some of the known columns, but others too or in another order."""
    if found != known and set(found) & set(known):
        raise InputError(f"{name} has the columns {list(found)}; they must be {list(known)}.")


def numbered(letter: str, count: int) -> tuple[str, ...]:
    return tuple(f"{letter}{place + 1}" for place in range(count))
