"""What is known of an output beside its inputs: exposure, trials, or the variance of its noise."""

from typing import Any

import numpy as np

from deepemu.data.checks import real_array, require
from deepemu.data.frames import require_numbers
from deepemu.errors import InputError

Known = dict[str, Any]
"""Arguments by name; None: not given."""
VARIANCE = "noise_variance"


def known_of(wanted: str | None, given: Known, shape: tuple[int, int]) -> np.ndarray | None:
    """What was given of outputs (m, q), if the observation model can use it: a number, one for each
    row, or one for each output of each row."""
    found = {name: value for name, value in given.items() if value is not None}
    useless = [name for name in found if name != wanted]
    require(
        not useless,
        f"{', '.join(useless)} cannot be used with this observation model; leave it out.",
    )
    return None if not found else _checked(str(wanted), found[str(wanted)], shape)


def _checked(name: str, value: Any, shape: tuple[int, int]) -> np.ndarray:
    require_numbers(value, name)
    array = real_array(name, value)
    if array.ndim == 1 and len(array) == shape[0]:
        array = array[:, None]
    if array.shape not in ((), (shape[0], 1), shape):
        raise InputError(
            f"{name} has the shape {array.shape}; it must be a number, or have the shape "
            f"({shape[0]},) or {shape}."
        )
    may_be_zero = name == VARIANCE
    right = np.isfinite(array) & (array >= 0.0) & (may_be_zero | (array > 0.0))
    bound = "of at least 0" if may_be_zero else "above 0"
    require(bool(np.all(right)), f"{name} has entries that are no finite numbers {bound}.")
    return np.broadcast_to(array, shape).copy()


def require_alike(before: Any, now: Any, name: str | None) -> None:
    """New runs come with what the first ones came with."""
    how = "without" if before is None else "with"
    require(
        (before is None) == (now is None),
        f"the emulator was fitted {how} {name}; give new runs {how} it, too.",
    )
