"""Bounded, damped scoring: a quasi-Newton ascent that is given its curvature."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from deepemu._types import Array, record

LONGEST_STEP = 0.7
FIRST_DAMPING = 1e-2
SMALLEST_DAMPING = 1e-4
LARGEST_DAMPING = 1e6
RELAX = 5.0
TIGHTEN = 8.0
FLOOR = 1e-8


@record
class Evaluation:
    """An objective at a point: value, gradient and a positive semidefinite information matrix.

    ``extra`` is handed through: what else is known at that point, such as a profiled parameter.
    """

    value: Array
    gradient: Array
    information: Array
    extra: Array


@record
class Ascent:
    """The best point so far with its evaluation, the next point to try, and how steps went."""

    point: Array
    at: Evaluation
    proposal: Array
    damping: Array
    gain: Array
    n_evaluations: Array


Objective = Callable[[Array], Evaluation]


def maximise(
    objective: Objective,
    start: Array,
    lower: Array,
    upper: Array,
    n_steps: Array | int,
    unevaluated: Array,
    tolerance: Array | float = 0.0,
) -> Ascent:
    """Evaluate at ``start``, then take at most ``n_steps`` scoring steps within bounds.

    Stops earlier once a step that is hardly damped gains no more than ``tolerance``, or when the
    damping has grown so far that no step helps. With ``n_steps`` = 0 nothing is evaluated and
    ``extra`` is ``unevaluated``. The objective is traced once: it is most of what is compiled.
    """

    def unfinished(ascent: Ascent) -> Array:
        hopeful = (ascent.gain > tolerance) | (ascent.damping > FIRST_DAMPING)
        hopeful &= ascent.damping < LARGEST_DAMPING
        return hopeful & (ascent.n_evaluations <= n_steps) & (n_steps > 0)

    size, dtype = start.shape[0], start.dtype
    nowhere = Evaluation(
        jnp.asarray(-jnp.inf, dtype),
        jnp.zeros(size, dtype),
        jnp.zeros((size, size), dtype),
        unevaluated,
    )
    first = Ascent(
        start,
        nowhere,
        start,
        jnp.asarray(FIRST_DAMPING * RELAX, dtype),
        jnp.asarray(jnp.inf, dtype),
        jnp.zeros((), jnp.int32),
    )
    return jax.lax.while_loop(unfinished, lambda a: _step(objective, a, lower, upper), first)


def _step(objective: Objective, ascent: Ascent, lower: Array, upper: Array) -> Ascent:
    """Evaluate the proposal; keep it if the objective does not fall, else damp more."""
    at = objective(ascent.proposal)
    better = at.value >= ascent.at.value
    keep = lambda new, old: jnp.where(better, new, old)  # noqa: E731
    relaxed = jnp.maximum(ascent.damping / RELAX, SMALLEST_DAMPING)
    point, best = keep(ascent.proposal, ascent.point), jax.tree.map(keep, at, ascent.at)
    damping = jnp.where(better, relaxed, ascent.damping * TIGHTEN)
    return Ascent(
        point,
        best,
        jnp.clip(point + _direction(point, best, damping, lower, upper), lower, upper),
        damping,
        keep(at.value - ascent.at.value, ascent.gain),
        ascent.n_evaluations + 1,
    )


def _direction(point: Array, at: Evaluation, damping: Array, lower: Array, upper: Array) -> Array:
    """δ = (H + λ diag H + ε I)⁻¹ g over the coordinates that are free to move, cut to length."""
    held = ((point <= lower) & (at.gradient < 0)) | ((point >= upper) & (at.gradient > 0))
    diagonal = jnp.diag(at.information)
    damped = at.information + jnp.diag(damping * diagonal + FLOOR * (1.0 + jnp.max(diagonal)))
    pinned = held[:, None] | held[None, :]
    system = jnp.where(pinned, jnp.diag(jnp.ones_like(diagonal)), damped)
    delta = jnp.linalg.solve(system, jnp.where(held, 0.0, at.gradient))
    return delta * jnp.minimum(1.0, LONGEST_STEP / jnp.maximum(jnp.max(jnp.abs(delta)), 1e-300))
