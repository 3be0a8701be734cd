"""What is computed one way on a CPU and another way elsewhere."""

from collections.abc import Callable
from typing import TypeVar

import jax
from jax import lax

T = TypeVar("T")


def by_platform(on_cpu: Callable[..., T], elsewhere: Callable[..., T], *given: object) -> T:
    """``on_cpu(*given)`` or ``elsewhere(*given)``, which are equal up to rounding.

    Where the default device is a CPU the choice is made while tracing: a program with both branches
    takes twice as long to trace, and longer to compile. Such a program is right on a GPU too.
    """
    if _default_platform() == "cpu":
        return on_cpu(*given)
    return lax.platform_dependent(*given, cpu=on_cpu, default=elsewhere)


def _default_platform() -> str:
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    return getattr(device, "platform", device) or jax.default_backend()
