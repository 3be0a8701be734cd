"""One slice step along a path through a point: a line, or an ellipse.

The elliptical step is that of Murray, Adams and MacKay (2010), with a bracket of any width.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from deepemu._types import Array, record

# A rejection shrinks the bracket by a factor whose logarithm is -1/2 on average: to 1e-17 by then.
MAX_EVALUATIONS = 80
N_UNIFORMS = 2 + MAX_EVALUATIONS


@record
class SliceInfo:
    """Statistics of a step: the accepted angle (on a line: t) and the number of evaluations."""

    angle: Array
    evaluations: Array


@record
class _Search:
    low: Array
    high: Array
    angle: Array
    log_likelihood: Array
    evaluations: Array


def on_ellipse(position: Array, direction: Array, angle: Array) -> Array:
    """f(θ) = f cos θ + ν sin θ."""
    return position * jnp.cos(angle) + direction * jnp.sin(angle)


def on_line(position: Array, direction: Array, t: Array) -> Array:
    """f(t) = f + t ν."""
    return position + t * direction


Path = Callable[[Array, Array, Array], Array]
"""A curve through a position at zero, given the position, a direction, and how far to go."""


def step(
    uniforms: Array,
    position: Array,
    direction: Array,
    log_likelihood: Callable[[Array], Array],
    current: Array,
    bracket: Array | float,
    path: Path = on_ellipse,
) -> tuple[Array, Array, SliceInfo]:
    """Move ``position`` along the ellipse through it and ``direction``, a draw from the prior, or
    along another path.

    The target, as a function of the angle θ alone, is sliced at the level log L(f) + log u. A
    bracket of width w is placed uniformly around θ = 0 and shrunk towards 0 until a point on the
    slice is found. Any fixed w leaves the target invariant, because the forward and the reverse
    move place it with the same density; w = 2π is the published algorithm. ``current`` is
    log L(f). A non-finite log likelihood is never accepted. ``uniforms`` (`N_UNIFORMS`,) are
    independent on [0, 1).

    The invariant distribution depends on the path. On an ellipse it is prior times likelihood. On a
    line, whose direction has any distribution that is symmetric and the same everywhere, there is
    no prior: it is the density that ``log_likelihood`` gives (hit-and-run).

    Returns the new position, its log likelihood and a `SliceInfo`.
    """
    level = current + jnp.log1p(-uniforms[0])
    high = bracket * uniforms[1]

    def evaluate(search: _Search) -> _Search:
        low = jnp.where(search.angle < 0, search.angle, search.low)
        high = jnp.where(search.angle > 0, search.angle, search.high)
        angle = low + (high - low) * uniforms[2 + search.evaluations]
        value = log_likelihood(path(position, direction, angle))
        return _Search(low, high, angle, value, search.evaluations + 1)

    def on_slice(search: _Search) -> Array:
        return (search.log_likelihood > level) & jnp.isfinite(search.log_likelihood)

    def outside(search: _Search) -> Array:
        return ~on_slice(search) & (search.evaluations < MAX_EVALUATIONS)

    nowhere = jnp.full_like(current, -jnp.inf)
    start = _Search(
        high - bracket, high, jnp.zeros_like(current), nowhere, jnp.zeros((), jnp.int32)
    )
    end = jax.lax.while_loop(outside, evaluate, start)
    # The bracket has shrunk below round-off at the limit: staying put is then exact.
    accepted = on_slice(end)
    angle = jnp.where(accepted, end.angle, 0.0)
    value = jnp.where(accepted, end.log_likelihood, current)
    return path(position, direction, angle), value, SliceInfo(angle, end.evaluations)
