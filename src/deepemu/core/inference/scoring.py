"""Bounded, damped scoring: a quasi-Newton ascent that is given its curvature."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from deepemu._types import Array, record
from deepemu.core import linalg

LONGEST_STEP = 0.7
FIRST_DAMPING = 1e-2
SMALLEST_DAMPING = 1e-4
LARGEST_DAMPING = 1e6
RELAX = 5.0
TIGHTEN = 8.0
FLOOR = 1e-8


@record
class Value:
    """An objective at a point; ``extra`` is handed through, such as a profiled parameter."""

    value: Array
    extra: Array


@record
class Slopes:
    """An objective at a point with its gradient and a positive semidefinite information matrix."""

    at: Value
    gradient: Array
    information: Array


@record
class Ascent:
    """The best point so far, its value, and damping, last gain and number of steps."""

    point: Array
    at: Value
    damping: Array
    gain: Array
    n_steps: Array


@dataclass(frozen=True)
class Objective:
    """A function to maximise: its value alone, which is cheap, and its value with slopes."""

    value: Callable[[Array], Value]
    slopes: Callable[[Array], Slopes]


def maximise(
    objective: Objective,
    start: Array,
    lower: Array,
    upper: Array,
    n_steps: Array | int,
    unevaluated: Array,
    tolerance: Array | float = 0.0,
) -> Ascent:
    """Take at most ``n_steps`` scoring steps within bounds, each with the slopes where it starts.

    Stops earlier once a step that is hardly damped gains no more than ``tolerance``, or when none
    helps, however much it is damped. With ``n_steps`` = 0 nothing is evaluated and
    ``extra`` is ``unevaluated``.
    """

    def unfinished(ascent: Ascent) -> Array:
        hopeful = (ascent.gain > tolerance) | (ascent.damping > FIRST_DAMPING)
        hopeful &= ascent.damping < LARGEST_DAMPING
        return hopeful & (ascent.n_steps < n_steps)

    first = Ascent(
        start,
        Value(jnp.asarray(-jnp.inf, start.dtype), unevaluated),
        jnp.asarray(FIRST_DAMPING, start.dtype),
        jnp.asarray(jnp.inf, start.dtype),
        jnp.zeros((), jnp.int32),
    )
    return jax.lax.while_loop(unfinished, lambda a: _step(objective, a, lower, upper), first)


@record
class _Try:
    """A step that was tried, and how it was damped."""

    point: Array
    at: Value
    damping: Array


def _step(objective: Objective, ascent: Ascent, lower: Array, upper: Array) -> Ascent:
    """A scoring step, damped more and more until the objective does not fall; stays if it always
    does."""
    slopes = objective.slopes(ascent.point)

    def damped_more(tried: _Try) -> _Try:
        damping = tried.damping * TIGHTEN
        direction = _direction(ascent.point, slopes, damping, lower, upper)
        proposal = jnp.clip(ascent.point + direction, lower, upper)
        return _Try(proposal, objective.value(proposal), damping)

    def is_better(tried: _Try) -> Array:
        return tried.at.value >= slopes.at.value

    def falls(tried: _Try) -> Array:
        return ~is_better(tried) & (tried.damping < LARGEST_DAMPING)

    nowhere = Value(jnp.full_like(slopes.at.value, jnp.nan), slopes.at.extra)
    untried = _Try(ascent.point, nowhere, ascent.damping / TIGHTEN)
    end = jax.lax.while_loop(falls, damped_more, untried)
    better = is_better(end)
    keep = lambda new, old: jnp.where(better, new, old)  # noqa: E731
    relaxed = jnp.maximum(end.damping / RELAX, SMALLEST_DAMPING)
    return Ascent(
        keep(end.point, ascent.point),
        jax.tree.map(keep, end.at, slopes.at),
        keep(relaxed, end.damping),
        keep(end.at.value - slopes.at.value, ascent.gain),
        ascent.n_steps + 1,
    )


def _direction(point: Array, at: Slopes, damping: Array, lower: Array, upper: Array) -> Array:
    """δ = (H + λ diag H + ε I)⁻¹ g over the coordinates that are free to move, cut to length."""
    held = ((point <= lower) & (at.gradient < 0)) | ((point >= upper) & (at.gradient > 0))
    diagonal = jnp.diag(at.information)
    damped = at.information + jnp.diag(damping * diagonal + FLOOR * (1.0 + jnp.max(diagonal)))
    pinned = held[:, None] | held[None, :]
    system = jnp.where(pinned, jnp.diag(jnp.ones_like(diagonal)), damped)
    delta = linalg.solve_positive(system, jnp.where(held, 0.0, at.gradient))
    return delta * jnp.minimum(1.0, LONGEST_STEP / jnp.maximum(jnp.max(jnp.abs(delta)), 1e-300))
