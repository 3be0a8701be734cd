"""Random keys from the words that the host hands over."""

import jax
import jax.numpy as jnp

from deepemu._types import Array


def from_words(words: Array) -> Array:
    """A key of JAX's default generator, whichever one the user's process has made the default."""
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
