"""Imputation of anchored hidden layers, guided by the information of the outputs.

All of them move together, as v (see `hidden_posterior`). With F the information, A = I + F is near
the curvature of the log posterior. The first I-steps ascend by Newton steps. Later ones are
Hamiltonian trajectories with the mass A, which go far, and slice steps on ellipses of N(c, A⁻¹),
which always move. Both leave the posterior of v invariant, whatever A and c are, as long as these
do not depend on where v is.

Where the last layer is imputed too, it moves before each round (see `last_layer`), and its values
are the outputs that guide the layers below.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from deepemu._types import Array
from deepemu.core import linalg
from deepemu.core.inference import last_layer, slice_step
from deepemu.core.inference.hidden_posterior import HiddenPosterior, Whites
from deepemu.core.inference.impute import FULL_CIRCLE, Guide, Imputation, learning_rate, turn
from deepemu.core.inference.steps import Steps
from deepemu.core.model.network import Data, Latents, Network, Params

# More of them end in a mode near the start, which later iterations rarely leave.
N_ASCENTS = 4
N_LEAPS, N_SLICES = 4, 2
# Newton steps are shortened so many times.
N_TRIES, SHORTER = 8, 0.4
# A leap of length h from rest goes by ½h²A⁻¹g: this one is a Newton step.
NEWTON = 2.0**0.5
SMALLEST_STEP, LARGEST_STEP, ACCEPTED, RATE = 1e-3, 0.5, 0.75, 0.5


class Vector(NamedTuple):
    """A function of v as one vector."""

    size: int
    flat: Callable[[Whites], Array]
    whites: Callable[[Array], Whites]


def _vector(whites: Whites) -> Vector:
    shapes = [v.shape for v in whites]
    sizes = [v.size for v in whites]
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)]
    flat = lambda whites: jnp.concatenate([v.ravel() for v in whites])  # noqa: E731
    back = lambda x: tuple(  # noqa: E731
        part.reshape(shape) for part, shape in zip(jnp.split(x, ends), shapes, strict=True)
    )
    return Vector(sum(sizes), flat, back)


def sweeps(
    key: Array, network: Network, steps: Steps, params: Params, state: Imputation, data: Data
) -> Imputation:
    """An I-step: ``steps.n_sweeps`` rounds of moves of all imputed layers."""
    if not network.observation.imputed:
        return _move_hidden(key, network, steps, params, state, data)
    one_each = replace(steps, n_sweeps=1)

    def one_round(index: Array, state: Imputation) -> Imputation:
        key_last, key_hidden = jax.random.split(jax.random.fold_in(key, index))
        state = last_layer.move(key_last, network, steps, params, state, data, _guide(state))
        if network.depth == 1:
            return replace(state, sweeps=state.sweeps + 1)
        return _move_hidden(key_hidden, network, one_each, params, state, data)

    return lax.fori_loop(0, steps.n_sweeps, one_round, state)


def _move_hidden(
    key: Array, network: Network, steps: Steps, params: Params, state: Imputation, data: Data
) -> Imputation:
    """A Newton step at first, later ``steps.n_sweeps`` rounds of moves.

    While ``steps.adapt`` holds, A and c follow the state, and the length of leaps its acceptance.
    """
    guide, n_hidden = _guide(state), network.depth - 1
    (hidden, last), (then, of_last) = (
        (each[:n_hidden], each[n_hidden:]) for each in (state.latents, guide.reference)
    )
    posterior = HiddenPosterior.of(network, params, data, last)
    whites = posterior.whiten(hidden)
    now_or_then = lambda now, then: jnp.where(steps.adapt, now, then)  # noqa: E731
    reference = jax.tree.map(now_or_then, posterior.carry(whites), then)
    began = replace(state, guide=replace(guide, reference=(*reference, *of_last)))
    moved, after = _explore(key, posterior, steps, whites, _root(posterior, reference), began)
    return replace(after, latents=(*posterior.carry(moved), *last), sweeps=state.sweeps + 1)


def _guide(state: Imputation) -> Guide:
    if state.guide is None:
        raise TypeError("these chains were not started for guided moves")
    return state.guide


def _root(posterior: HiddenPosterior, reference: Latents) -> Array:
    """L with LLᵀ = A."""
    information = posterior.information(reference)
    return linalg.cholesky(information + jnp.eye(len(information), dtype=information.dtype))


def _newton(root: Array, gradient: Array) -> Array:
    """A⁻¹g."""
    inner = linalg.solve(root, gradient[:, None])
    return linalg.solve_transposed(root, inner)[:, 0]


class _Leap(NamedTuple):
    """The next point of a trajectory that began at ``start``, with the log posterior there
    (``first``) and at the point before (``value``)."""

    start: Array
    at: Array
    momentum: Array
    length: Array
    ascends: Array
    first: Array
    value: Array
    n_done: Array
    ends: Array


class _Walk(NamedTuple):
    """Where the moves are: v, its log posterior, and what they adapt. A trajectory evaluates the
    log posterior where it starts, slice steps know it from the move before."""

    at: Array
    value: Array
    step: Array
    angle: Array
    evaluations: Array


def _explore(
    key: Array,
    posterior: HiddenPosterior,
    steps: Steps,
    whites: Whites,
    root: Array,
    state: Imputation,
) -> tuple[Whites, Imputation]:
    """Rounds of a trajectory and slice steps; at first a Newton step."""
    vector, guide = _vector(whites), _guide(state)
    centre = vector.flat(posterior.whiten(guide.reference[: len(whites)]))
    value = lambda x: posterior.log_posterior(vector.whites(x))  # noqa: E731
    rate = jnp.where(steps.adapt, learning_rate(state.sweeps), 0.0)
    ascends = jnp.asarray(steps.adapt & (state.sweeps < N_ASCENTS))

    def slopes(x: Array) -> tuple[Array, Array]:
        value, gradient = posterior.slopes(vector.whites(x))
        return value, vector.flat(gradient)

    def one_round(index: Array, walk: _Walk) -> _Walk:
        keys = jax.random.split(jax.random.fold_in(key, index), N_SLICES + 1)
        walk = _trajectory(keys[0], slopes, root, walk, jnp.asarray(steps.adapt), ascends)
        slice_by = lambda k, walk: _on_ellipse(  # noqa: E731
            keys[k + 1], value, root, centre, walk, steps, rate
        )
        return lax.fori_loop(0, jnp.where(ascends, 0, N_SLICES), slice_by, walk)

    at = vector.flat(whites)
    unknown = jnp.zeros((), at.dtype)  # until the first trajectory has evaluated it
    start = _Walk(at, unknown, guide.step, jnp.mean(state.angles[0]), state.evaluations)
    end = lax.fori_loop(0, jnp.where(ascends, 1, steps.n_sweeps), one_round, start)
    hidden, last = state.angles[: len(whites)], state.angles[len(whites) :]
    angles = (*[jnp.full_like(each, end.angle) for each in hidden], *last)
    after = replace(
        state, angles=angles, evaluations=end.evaluations, guide=replace(guide, step=end.step)
    )
    return vector.whites(end.at), after


def _trajectory(
    key: Array,
    slopes: Callable[[Array], tuple[Array, Array]],
    root: Array,
    walk: _Walk,
    adapt: Array,
    ascends: Array,
) -> _Walk:
    """A Hamiltonian trajectory with mass A, whose step length follows the acceptance while it may;
    or a Newton step, shortened until the posterior rises."""
    key_momentum, key_length, key_accept = jax.random.split(key, 3)
    drawn = root @ jax.random.normal(key_momentum, walk.at.shape, walk.at.dtype)
    length = walk.step * jax.random.uniform(key_length, (), walk.at.dtype, 0.8, 1.2)
    rest = jnp.zeros_like(drawn)
    begin = _Leap(
        walk.at, walk.at, jnp.where(ascends, rest, drawn), jnp.where(ascends, NEWTON, length),
        ascends, walk.value, walk.value, jnp.zeros((), jnp.int32), jnp.zeros((), bool),
    )  # fmt: skip
    end = lax.while_loop(lambda leap: ~leap.ends, lambda leap: _leap(slopes, root, leap), begin)
    kinetic = lambda r: 0.5 * jnp.sum(linalg.solve_vector(root, r) ** 2)  # noqa: E731
    gain = end.value - kinetic(end.momentum) - (end.first - kinetic(drawn))
    ratio = jnp.exp(jnp.minimum(gain, 0.0))
    ratio = jnp.where(jnp.isfinite(ratio), ratio, 0.0)
    is_drawn = jax.random.uniform(key_accept, (), walk.at.dtype) < ratio
    accepted = jnp.where(ascends, end.value > end.first, is_drawn)
    followed = walk.step * jnp.exp(RATE * (ratio - ACCEPTED))
    followed = jnp.clip(followed, SMALLEST_STEP, LARGEST_STEP)
    return walk._replace(
        at=jnp.where(accepted, end.at, walk.at),
        value=jnp.where(accepted, end.value, end.first),
        step=jnp.where(adapt & ~ascends, followed, walk.step),
        evaluations=walk.evaluations + end.n_done,
    )


def _leap(slopes: Callable[[Array], tuple[Array, Array]], root: Array, leap: _Leap) -> _Leap:
    """A leap of the trajectory, or the next try of a Newton step. One program does both: it has
    the slopes once, which take most of the time to compile."""
    value, gradient = slopes(leap.at)
    begins, is_last = leap.n_done == 0, leap.n_done == N_LEAPS
    first = jnp.where(begins, value, leap.first)
    is_done = ~begins & ((value > first) | (leap.n_done > N_TRIES))
    ends = jnp.where(leap.ascends, is_done, is_last)
    share = jnp.where(begins | is_last, 0.5, 1.0)
    momentum = leap.momentum + share * leap.length * gradient
    further = leap.at + leap.length * _newton(root, momentum)
    shorter = leap.start + SHORTER * (leap.at - leap.start)
    further = jnp.where(leap.ascends & ~begins, shorter, further)
    return leap._replace(
        at=jnp.where(ends, leap.at, further),
        momentum=momentum, first=first, value=value, n_done=leap.n_done + 1, ends=ends,
    )  # fmt: skip


def _on_ellipse(
    key: Array,
    value: Callable[[Array], Array],
    root: Array,
    centre: Array,
    walk: _Walk,
    steps: Steps,
    rate: Array,
) -> _Walk:
    """A slice step on the ellipse of N(c, A⁻¹): its density is divided out of the target."""
    key_draw, key_slice = jax.random.split(key)
    normals = jax.random.normal(key_draw, walk.at.shape, walk.at.dtype)
    direction = linalg.solve_transposed(root, normals[:, None])[:, 0]
    beside = lambda x: 0.5 * jnp.sum((root.T @ x) ** 2)  # noqa: E731
    position = walk.at - centre
    uniforms = jax.random.uniform(key_slice, (slice_step.N_UNIFORMS,), walk.at.dtype)
    end, level, info = slice_step.step(
        uniforms,
        position,
        direction,
        lambda x: value(centre + x) + beside(x),
        walk.value + beside(position),
        jnp.minimum(steps.bracket * walk.angle, FULL_CIRCLE),
    )
    return walk._replace(
        at=centre + end,
        value=level - beside(end),
        angle=walk.angle + rate * (turn(info.angle) - walk.angle),
        evaluations=walk.evaluations + info.evaluations,
    )
