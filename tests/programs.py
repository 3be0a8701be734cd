"""Programs of the core, compiled on their own."""

import functools

import jax

from deepemu.runtime import programs

OPTIONS = programs._options(jax.default_backend()) or {}

jit = functools.partial(jax.jit, compiler_options=OPTIONS | {"xla_backend_optimization_level": 1})
"""As the package compiles for its users: for tests that compute much."""

quick_jit = functools.partial(jax.jit, compiler_options=OPTIONS)
"""Without optimisation, as the package compiles in tests: for many small programs."""
