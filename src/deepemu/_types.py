"""The array alias and the record decorator, which all of the package shares."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

import jax
import numpy as np

Array = jax.Array | np.ndarray
"""JAX arrays in the core and in its programs, NumPy arrays on the host."""

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass that is a JAX pytree.

    Fields declared with ``field(metadata={"static": True})`` are part of the compilation key;
    all others are arrays (or nested records) that JAX traces.
    """
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))
