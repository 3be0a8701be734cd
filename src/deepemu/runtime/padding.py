"""From NumPy to JAX: double precision, rows padded to buckets, streams of random keys."""

import jax
import numpy as np

from deepemu._types import Array

SMALLEST_BUCKET = 16
# Streams of keys: one seed may serve to train an emulator, hold out folds and draw from it.
TRAIN_STREAM, DRAW_STREAM, FOLD_STREAM, KEEP_STREAM, WARM_UP_STREAM = range(5)


def bucket(n_rows: int) -> int:
    """Rows after padding: the next multiple of an eighth of the power of two below, at least 16.

    Data may grow within a bucket without a new program; from 128 rows on, padding adds at most an
    eighth to the rows and 42 % to the n³ work.
    """
    step = _step(n_rows)
    return -(-n_rows // step) * step


def bucket_before(n_rows: int) -> int:
    """The largest bucket that does not hold them, zero at first."""
    return bucket(n_rows) - _step(n_rows - 1)


def _step(n_rows: int) -> int:
    return max(SMALLEST_BUCKET, 2 ** (int(n_rows).bit_length() - 1) // 8)


def array(values: np.ndarray) -> Array:
    """To JAX, in double precision.

    Not by ``jnp.asarray``, which compiles a program for every shape.
    """
    return jax.device_put(np.asarray(values, np.float64))


def pad_rows(values: np.ndarray, n_rows: int) -> Array:
    """Zero rows appended up to ``n_rows``."""
    missing = [(0, n_rows - values.shape[0])] + [(0, 0)] * (values.ndim - 1)
    return array(np.pad(values, missing))


def keys(n: int, seed: int, *stream: int) -> np.ndarray:
    """``n`` keys (n, 2) for the core, independent between seeds and streams of one length.

    Made by NumPy: JAX would compile a program for every operation on keys outside of one.
    """
    return np.random.SeedSequence([seed, *stream]).generate_state(2 * n, np.uint32).reshape(n, 2)
