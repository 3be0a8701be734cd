"""Programs of the core, compiled on their own."""

import functools

import jax

from deepemu.runtime import programs

OPTIONS = programs._options(jax.default_backend()) or {}

jit = functools.partial(jax.jit, compiler_options=OPTIONS)
"""As the package compiles its own: for tests that compute much."""

quick_jit = functools.partial(
    jax.jit, compiler_options=OPTIONS | {"xla_backend_optimization_level": 0}
)
"""Without optimisation, in less time: for tests of many small programs."""
