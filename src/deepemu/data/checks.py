"""Checks of what a user passes; the message says what was given and what to do."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from deepemu.errors import InputError


def is_real(value: object) -> TypeGuard[float]:
    """A number that is not a truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require_choice(value: object, name: str, choices: Sequence[str]) -> None:
    known = isinstance(value, str) and value in choices
    require(known, f"{name} is {value!r}; choose one of {', '.join(choices)}.")


def place_of(choice: object, name: str, names: Sequence[str]) -> int:
    """The place of a column that is given by number, from 0, or by name."""
    if isinstance(choice, str) and choice in names:
        return names.index(choice)
    inside = isinstance(choice, Integral) and choice in range(len(names))
    known = inside and not isinstance(choice, bool)
    listed = ", ".join(map(repr, names))
    end = len(names) - 1
    require(known, f"{name} is {choice!r}; it must be between 0 and {end}, or one of {listed}.")
    return int(choice)  # type: ignore[call-overload]


def require_flag(name: str, value: object) -> None:
    flag = isinstance(value, bool | np.bool_)
    require(flag, f"{name} is {value!r}; it must be True or False.")


def require_verbose(value: object) -> None:
    known = value is None or isinstance(value, bool | np.bool_)
    require(known, f"verbose is {value!r}; it must be True, False or None (on a terminal).")


def require_whole(name: str, value: object) -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1
    require(whole, f"{name} is {value!r}; it must be a positive integer.")


def require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def require_numbers(values: Any, name: str) -> None:
    """Text and dates convert to doubles without complaint; neither is what the user means."""
    dtype = values.dtype if hasattr(values, "dtype") else np.asarray(values).dtype
    if dtype.kind in "mMSU":
        raise InputError(f"{name} has dtype {dtype}; convert it to numbers first.")


def components(means: ArrayLike, variances: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of K predictions as float64 arrays of one shape (K, ...)."""
    m, v = checked(means=means, variances=variances)
    if m.ndim == 0:
        raise InputError("means and variances must have the shape (K, ...), one row a component")
    return m, v


def shares(weights: ArrayLike | None, n_components: int) -> np.ndarray:
    """Weights of the components scaled to sum to one; equal unless given."""
    if weights is None:
        return np.full(n_components, 1.0 / n_components)
    (w,) = checked(weights=weights)
    if w.shape != (n_components,):
        raise InputError(f"weights must have the shape ({n_components},), got {w.shape}")
    if not np.any(w):
        raise InputError("weights are all zero")
    return w / np.sum(w)


def real_array(name: str, value: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of real numbers") from error


def checked(**arrays: ArrayLike) -> tuple[np.ndarray, ...]:
    """The arguments as float64 arrays of one shape, finite, not empty, no negative spread."""
    checked = {name: real_array(name, value) for name, value in arrays.items()}
    shapes = {name: array.shape for name, array in checked.items()}
    if len(set(shapes.values())) > 1:
        raise InputError(f"the arguments must have the same shape, got {_listed(shapes)}")
    for name, array in checked.items():
        _check_values(name, array)
    return tuple(checked.values())


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _check_values(name: str, array: np.ndarray) -> None:
    if array.size == 0:
        raise InputError(f"{name} is empty")
    if not np.all(np.isfinite(array)):
        raise InputError(f"{name} contains NaN or infinite values")
    if name in ("std", "variances", "weights") and np.any(array < 0.0):
        raise InputError(f"{name} contains negative values")


def check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise InputError(f"level must lie between 0 and 1, got {level}")
