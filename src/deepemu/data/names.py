"""Names of columns."""

from typing import Any


def names_of_outputs(y: Any, n_outputs: int) -> tuple[str, ...]:
    """The columns of a DataFrame, the name of a Series; otherwise y, or y1, y2, …"""
    if hasattr(y, "columns"):
        return tuple(str(name) for name in y.columns)
    if getattr(y, "name", None) is not None:
        return (str(y.name),)
    return ("y",) if n_outputs == 1 else numbered("y", n_outputs)


def numbered(letter: str, count: int) -> tuple[str, ...]:
    return tuple(f"{letter}{place + 1}" for place in range(count))
