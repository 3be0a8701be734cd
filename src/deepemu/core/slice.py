"""One elliptical slice step (Murray, Adams and MacKay 2010) with a bracket of any width."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from deepemu._types import Array, record

MAX_EVALUATIONS = 100


@record
class SliceInfo:
    """How a step went: the accepted angle and the number of likelihood evaluations."""

    angle: Array
    evaluations: Array


@record
class _Search:
    key: Array
    low: Array
    high: Array
    angle: Array
    log_likelihood: Array
    evaluations: Array


def on_ellipse(position: Array, direction: Array, angle: Array) -> Array:
    """f(θ) = f cos θ + ν sin θ."""
    return position * jnp.cos(angle) + direction * jnp.sin(angle)


def step(
    key: Array,
    position: Array,
    direction: Array,
    log_likelihood: Callable[[Array], Array],
    current: Array,
    bracket: Array,
) -> tuple[Array, Array, SliceInfo]:
    """Move ``position`` along the ellipse through it and ``direction``, a draw from the prior.

    The target, as a function of the angle θ alone, is sliced at the level log L(f) + log u. A
    bracket of width w is placed uniformly around θ = 0 and shrunk towards 0 until a point on the
    slice is found. Any fixed w leaves the target invariant, because the forward and the reverse
    move place it with the same density; w = 2π is the published algorithm. ``current`` is
    log L(f). A non-finite log likelihood is never accepted.

    Returns the new position, its log likelihood and a `SliceInfo`.
    """
    key_level, key_bracket, key_search = jax.random.split(key, 3)
    level = current + jnp.log1p(-jax.random.uniform(key_level, dtype=current.dtype))
    high = bracket * jax.random.uniform(key_bracket, dtype=current.dtype)

    def evaluate(search: _Search) -> _Search:
        key_next, key_angle = jax.random.split(search.key)
        low = jnp.where(search.angle < 0, search.angle, search.low)
        high = jnp.where(search.angle > 0, search.angle, search.high)
        angle = low + (high - low) * jax.random.uniform(key_angle, dtype=low.dtype)
        value = log_likelihood(on_ellipse(position, direction, angle))
        return _Search(key_next, low, high, angle, value, search.evaluations + 1)

    def on_slice(search: _Search) -> Array:
        return (search.log_likelihood > level) & jnp.isfinite(search.log_likelihood)

    def outside(search: _Search) -> Array:
        return ~on_slice(search) & (search.evaluations < MAX_EVALUATIONS)

    start = _Search(
        key_search,
        high - bracket,
        high,
        jnp.zeros_like(current),
        jnp.full_like(current, -jnp.inf),
        jnp.zeros((), jnp.int32),
    )
    end = jax.lax.while_loop(outside, evaluate, start)
    # The bracket shrinks below round-off long before the limit: staying put is then exact.
    accepted = on_slice(end)
    angle = jnp.where(accepted, end.angle, 0.0)
    value = jnp.where(accepted, end.log_likelihood, current)
    return on_ellipse(position, direction, angle), value, SliceInfo(angle, end.evaluations)
