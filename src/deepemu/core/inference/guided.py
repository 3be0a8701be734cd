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
from typing import Any, NamedTuple

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
LARGEST_STEP, ACCEPTED, RATE = 0.5, 0.75, 0.5


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
    given = key, posterior, steps, whites, _root(posterior, reference), began
    ascends = steps.adapt & (state.sweeps < N_ASCENTS)
    moved, after = lax.cond(ascends, lambda: _ascend(*given), lambda: _explore(*given))
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


def _ascend(
    key: Array,
    posterior: HiddenPosterior,
    steps: Steps,
    whites: Whites,
    root: Array,
    state: Imputation,
) -> tuple[Whites, Imputation]:
    """A Newton step, shortened until the posterior rises."""
    vector = _vector(whites)
    value, gradient = posterior.slopes(whites)
    step, start = _newton(root, vector.flat(gradient)), vector.flat(whites)

    def shorter(carry: Any) -> Any:
        length, _, count = carry
        length = length * SHORTER
        return length, posterior.log_posterior(vector.whites(start + length * step)), count + 1

    def fails(carry: Any) -> Array:
        _, now, count = carry
        return ~(now > value) & (count <= N_TRIES)

    # The whole step is the first try: the posterior is compiled once.
    none = jnp.zeros((), jnp.int32)
    begin = jnp.full_like(value, 1.0 / SHORTER), jnp.full_like(value, -jnp.inf), none
    length, now, count = lax.while_loop(fails, shorter, begin)
    length = jnp.where(now > value, length, 0.0)
    counted = replace(state, evaluations=state.evaluations + count + 1)
    return vector.whites(start + length * step), counted


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
    """Rounds of a trajectory and slice steps."""
    vector, guide = _vector(whites), _guide(state)
    centre = vector.flat(posterior.whiten(guide.reference[: len(whites)]))
    value = lambda x: posterior.log_posterior(vector.whites(x))  # noqa: E731
    rate = jnp.where(steps.adapt, learning_rate(state.sweeps), 0.0)

    def slopes(x: Array) -> tuple[Array, Array]:
        value, gradient = posterior.slopes(vector.whites(x))
        return value, vector.flat(gradient)

    def one_round(index: Array, walk: _Walk) -> _Walk:
        keys = jax.random.split(jax.random.fold_in(key, index), N_SLICES + 1)
        walk = _trajectory(keys[0], slopes, root, walk, steps.adapt)
        slice_by = lambda k, walk: _on_ellipse(  # noqa: E731
            keys[k + 1], value, root, centre, walk, steps, rate
        )
        return lax.fori_loop(0, N_SLICES, slice_by, walk)

    at = vector.flat(whites)
    unknown = jnp.zeros((), at.dtype)  # until the first trajectory has evaluated it
    start = _Walk(at, unknown, guide.step, jnp.mean(state.angles[0]), state.evaluations)
    end = lax.fori_loop(0, steps.n_sweeps, one_round, start)
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
    adapt: Array | bool,
) -> _Walk:
    """A Hamiltonian trajectory with mass A; its step length follows the acceptance while it may."""
    key_momentum, key_length, key_accept = jax.random.split(key, 3)
    drawn = root @ jax.random.normal(key_momentum, walk.at.shape, walk.at.dtype)
    kinetic = lambda r: 0.5 * jnp.sum(linalg.solve_vector(root, r) ** 2)  # noqa: E731
    step = walk.step * jax.random.uniform(key_length, (), walk.at.dtype, 0.8, 1.2)

    def leap(count: Array, carry: Any) -> Any:
        at, momentum, _, first = carry
        value, gradient = slopes(at)
        is_end = (count == 0) | (count == N_LEAPS)
        momentum = momentum + jnp.where(is_end, 0.5, 1.0) * step * gradient
        further = at + step * _newton(root, momentum)
        at = jnp.where(count == N_LEAPS, at, further)
        return at, momentum, value, jnp.where(count == 0, value, first)

    begin = walk.at, drawn, walk.value, walk.value
    at, momentum, value, first = lax.fori_loop(0, N_LEAPS + 1, leap, begin)
    ratio = jnp.exp(jnp.minimum(value - kinetic(momentum) - (first - kinetic(drawn)), 0.0))
    ratio = jnp.where(jnp.isfinite(ratio), ratio, 0.0)
    accepted = jax.random.uniform(key_accept, (), walk.at.dtype) < ratio
    followed = jnp.minimum(walk.step * jnp.exp(RATE * (ratio - ACCEPTED)), LARGEST_STEP)
    return walk._replace(
        at=jnp.where(accepted, at, walk.at),
        value=jnp.where(accepted, value, first),
        step=jnp.where(adapt, followed, walk.step),
        evaluations=walk.evaluations + N_LEAPS + 1,
    )


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
