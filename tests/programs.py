"""Programs compiled as the package compiles its own, so that tests see the numbers of users."""

import functools

import jax

from deepemu import _runtime

jit = functools.partial(jax.jit, compiler_options=_runtime._options(jax.default_backend()))
