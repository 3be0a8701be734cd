"""Programs compiled as the package compiles its own, so that tests see the numbers of users."""

import functools

import jax

from deepemu.runtime import programs

jit = functools.partial(jax.jit, compiler_options=programs._options(jax.default_backend()))
