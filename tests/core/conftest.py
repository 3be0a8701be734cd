"""The core is tested inside the scope in which the package calls it."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def core_scope() -> Iterator[None]:
    """Float64 on, and silent broadcasting over ranks an error.

    One scope per module, so that fixtures of a module lie inside it as well.
    """
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield
