"""What is traced for derivatives, and what for speed."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ASKED = ContextVar("differentiable", default=False)


@contextmanager
def differentiable() -> Iterator[None]:
    """What is traced inside has derivatives of any order, in loops and in both modes.

    `jax.custom_jvp` has not: JAX drops its rule where it linearises a loop. Nor has an operation
    whose batches are told how to run.
    """
    token = _ASKED.set(True)
    try:
        yield
    finally:
        _ASKED.reset(token)


needs_derivatives = _ASKED.get
