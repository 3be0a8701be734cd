"""Argument checks: "<name> is <value>; it must be ..."."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from deepemu.errors import InputError, Message, Setting


def is_real(value: object) -> TypeGuard[float]:
    """A number that is not a truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """An integer that is not a truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_flag(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def require_value(is_right: bool, name: str, value: object, must_be: str) -> None:
    """Raise the one sentence that all checks of an argument share."""
    if not is_right:
        raise InputError(Message(Setting(name), f" is {value!r}; it must be {must_be}."))


def require_choice(value: object, name: str, choices: Sequence[str]) -> None:
    known = isinstance(value, str) and value in choices
    require_value(known, name, value, f"one of {', '.join(choices)}")


def place_of(choice: object, name: str, names: Sequence[str]) -> int:
    """The place of a column that is given by number, from 0, or by name."""
    if isinstance(choice, str) and choice in names:
        return names.index(choice)
    known = is_whole(choice) and choice in range(len(names))
    listed = ", ".join(map(repr, names))
    require_value(known, name, choice, f"between 0 and {len(names) - 1}, or one of {listed}")
    return int(choice)  # type: ignore[call-overload]


def require_flag(name: str, value: object) -> None:
    require_value(is_flag(value), name, value, "True or False")


def require_verbose(value: object) -> None:
    known = value is None or is_flag(value)
    require_value(known, "verbose", value, "True, False or None (on a terminal)")


def require_key(key: object) -> None:
    """Refuse what cannot seed draws."""
    require_value(is_whole(key) and key >= 0, "key", key, "an integer of at least 0")


def require_whole(name: str, value: object) -> None:
    require_value(is_whole(value) and value >= 1, name, value, "a positive integer")


def not_fitted(emulator: Any) -> Exception:
    """scikit-learn's error, in its words."""
    from sklearn.exceptions import NotFittedError

    return NotFittedError(
        f"This {type(emulator).__name__} instance is not fitted yet. Call 'fit' with "
        "appropriate arguments before using this estimator."
    )


def require_fitted(emulator: Any) -> None:
    if not hasattr(emulator, "posterior_"):
        raise not_fitted(emulator)


def plain_array(values: Any) -> np.ndarray | None:
    """Finite doubles, if ``values`` are an array or lists of real numbers; otherwise None."""
    if type(values) not in (np.ndarray, list):
        return None
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return None
    if array.dtype.kind not in "fiu" or array.size == 0:
        return None
    doubles = array.astype(np.float64, copy=False)
    return doubles if np.all(np.isfinite(doubles)) else None


def components(means: ArrayLike, variances: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of K predictions as float64 arrays of one shape (K, ...)."""
    m, v = checked(means=means, variances=variances)
    if m.ndim == 0:
        raise InputError(
            "means and variances are single numbers; they must have the shape (K, ...), one row "
            "per component."
        )
    return m, v


def shares(weights: ArrayLike | None, n_components: int) -> np.ndarray:
    """Weights of the components scaled to sum to one; equal unless given."""
    if weights is None:
        return np.full(n_components, 1.0 / n_components)
    (w,) = checked(weights=weights)
    shape = (n_components,)
    require(
        w.shape == shape, f"weights has the shape {w.shape}; it must be {shape}, one per component."
    )
    require(bool(np.any(w)), "weights is all zero; at least one must be positive.")
    return w / np.sum(w)


def real_array(name: str, value: ArrayLike) -> np.ndarray:
    require(not np.iscomplexobj(value), f"{name} is complex; it must be an array of real numbers.")
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        raise InputError(f"{name} is a {kind}; it must be an array of real numbers.") from error


def checked(**arrays: ArrayLike) -> tuple[np.ndarray, ...]:
    """The arguments as float64 arrays of one shape, finite, not empty, no negative spread."""
    checked = {name: real_array(name, value) for name, value in arrays.items()}
    shapes = {name: array.shape for name, array in checked.items()}
    if len(set(shapes.values())) > 1:
        raise InputError(f"The shapes are {_listed(shapes)}; they must have the same shape.")
    for name, array in checked.items():
        _check_values(name, array)
    return tuple(checked.values())


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _check_values(name: str, array: np.ndarray) -> None:
    require(array.size > 0, f"{name} is empty; it must have at least one value.")
    finite = bool(np.all(np.isfinite(array)))
    require(finite, f"{name} contains NaN or infinite values; remove them.")
    signed = name not in ("std", "variances", "weights")
    require(
        signed or bool(np.all(array >= 0.0)),
        f"{name} contains negative values; they must be at least 0.",
    )


def check_level(level: float) -> None:
    require_value(is_real(level) and 0.0 < level < 1.0, "level", level, "between 0 and 1")


def outputs_of(y: ArrayLike, shape: tuple[int, int]) -> np.ndarray:
    """Outputs (m, q); one dimension will do for one output."""
    (outputs,) = checked(y=y)
    if outputs.size != shape[0] * shape[1] or outputs.shape[:1] != shape[:1]:
        raise InputError(f"y has the shape {outputs.shape}; it must have the shape {shape}.")
    return outputs.reshape(shape)


def deviations_of(input_std: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """Standard deviations of inputs (m, d), given for all rows or for each."""
    std = real_array("input_std", input_std)
    if std.shape not in ((), shape[1:], shape):
        raise InputError(
            f"input_std has the shape {std.shape}; it must be a number, or have the shape "
            f"{shape[1:]} or {shape}."
        )
    if not np.all(np.isfinite(std) & (std >= 0.0)):
        raise InputError("input_std has entries that are negative or not finite; it must not.")
    return np.broadcast_to(std, shape)
