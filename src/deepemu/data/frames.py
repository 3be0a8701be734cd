"""Frames and series of pandas, polars and pyarrow, through narwhals."""

from typing import Any

import numpy as np

from deepemu.errors import InputError

NOT_FRAMES = (np.ndarray, list, tuple, type(None))


def names_of(data: Any) -> tuple[str, ...]:
    """Names of the columns of a frame, or of a series; none for data that have no names."""
    found = _opened(data)
    if found is None:
        return ()
    if _is_frame(found):
        return tuple(str(name) for name in found.columns)
    return () if found.name in (None, "") else (str(found.name),)


def array_of(data: Any) -> Any:
    """The values of a frame or series, missing ones as NaN; anything else as it is.

    Python objects become doubles: scikit-learn looks for NaN before it converts them, and would
    overlook None.
    """
    values = values_of(data)
    holds_objects = isinstance(values, np.ndarray) and values.dtype == object
    return values.astype(np.float64) if holds_objects else values


def values_of(data: Any) -> Any:
    """The values of a frame or series as they are; anything else as it is."""
    found = _opened(data)
    return data if found is None else found.to_numpy()


def require_numbers(data: Any, name: str) -> None:
    """Refuse text and dates, which convert to doubles without an error, and masked numbers."""
    if np.ma.is_masked(data):
        raise InputError(f"{name} has masked values; fill them in or leave out their rows.")
    for what, dtype in _dtypes(data, name).items():
        if not _may_hold_numbers(dtype):
            raise InputError(f"{what} has dtype {dtype}; convert it to numbers first.")


def _dtypes(data: Any, name: str) -> dict[str, Any]:
    """The dtypes of the columns, or of the whole array: NumPy's or those of narwhals."""
    found = _opened(data)
    if found is None:
        return {name: data.dtype if hasattr(data, "dtype") else np.asarray(data).dtype}
    if _is_frame(found):
        return {f"Column {each!r} of {name}": dtype for each, dtype in found.schema.items()}
    return {name: found.dtype}


def _may_hold_numbers(dtype: Any) -> bool:
    """Python objects, and types that narwhals does not know, are left to NumPy."""
    if hasattr(dtype, "kind"):
        return dtype.kind not in "mMSU"
    return dtype.is_numeric() or str(dtype) in ("Boolean", "Object", "Unknown")


def _is_frame(found: Any) -> bool:
    return hasattr(found, "columns")


def _opened(data: Any) -> Any:
    """A frame or series as narwhals presents it; None for anything else."""
    if isinstance(data, NOT_FRAMES):
        return None
    # Imported for frames only: it takes about 100 ms, unless scikit-learn has done so already.
    import narwhals.stable.v2 as nw

    try:
        found = nw.from_native(data, allow_series=True, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        raise InputError("Two columns have the same name; rename one of them.") from error
    if isinstance(found, nw.LazyFrame):
        raise InputError(f"The data are a lazy {type(data).__name__}; call its collect() first.")
    return found if isinstance(found, nw.DataFrame | nw.Series) else None
