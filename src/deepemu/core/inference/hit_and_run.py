"""Sampling of a node's parameters: slice steps along random lines, and a draw of the scale."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core.inference import slice_step

# In standard deviations of the direction, that is in units of a logarithm. A wider bracket costs
# two evaluations for each factor e, a narrower one slows parameters about which the data are
# uninformative.
BRACKET = 4.0


def hit_and_run(
    key: Array,
    log_density: Callable[[Array], Array],
    start: Array,
    movable: Array,
    n_moves: Array | int,
) -> tuple[Array, Array]:
    """A point after ``n_moves`` that leave a density invariant, and its log density.

    A move is a slice step along the line x + t ν with ν ~ N(0, I) over the ``movable`` entries.
    """

    def move(index: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        key_direction, key_slice = jax.random.split(jax.random.fold_in(key, index))
        normals = jax.random.normal(key_direction, start.shape, start.dtype)
        uniforms = jax.random.uniform(key_slice, (slice_step.N_UNIFORMS,), start.dtype)
        point, value = now
        direction = jnp.where(movable, normals, 0.0)
        return slice_step.step(
            uniforms, point, direction, log_density, value, BRACKET, slice_step.on_line
        )[:2]

    return jax.lax.fori_loop(0, n_moves, move, (start, log_density(start)))


def draw_log_scale(key: Array, profiled: Array, n_observations: Array) -> Array:
    """log σ² of draws σ² ~ inverse gamma(N/2, N σ̂²/2), given profiled scales σ̂².

    With Q = yᵀR⁻¹y + S/η = N σ̂² and p(σ²) ∝ 1/σ², the density of a node is proportional to
    σ^(−N−2) exp(−Q/(2σ²)) in σ². So is Q/2 over a gamma(N/2) variable.
    """
    half = 0.5 * n_observations
    drawn = jax.random.loggamma(key, half, profiled.shape, profiled.dtype)
    return jnp.log(half * profiled) - drawn
