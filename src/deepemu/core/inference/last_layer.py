"""Imputation of the last layer, guided by a normal approximation of its likelihood.

Given the layers below, the values of a node are f = Lz with z ~ N(0, I). About a reference r the
likelihood is nearly that of normal observations, log p(y | f) ≈ bᵀf − ½ fᵀWf + constant with
W = −∂²/∂f² (its diagonal) and b = Wr + ∂/∂f at r. With these the posterior of f is normal: f = Lz,
where z has precision A = I + LᵀWL and mean A⁻¹Lᵀb. Slice steps on ellipses of this normal divide
its likelihood out of the true one. They leave the posterior invariant, whatever r is, as long as it
does not depend on where f is; and as they look at the difference of two likelihoods alone, they go
far however many rows there are. Where the likelihood of a node is normal, as that of a mean is
given variances, the two are the same, and a node's steps are draws from its posterior.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from deepemu._types import Array, record
from deepemu.core.differentiation import differentiable
from deepemu.core.inference import slice_step
from deepemu.core.inference.impute import FULL_CIRCLE, Guide, Imputation, learning_rate, turn
from deepemu.core.inference.steps import Steps
from deepemu.core.model.network import Data, Network, Params, layer_parts, log_likelihood
from deepemu.core.nodes import roots

# The directions of all slice steps are solved for at once, most of the cost of a move.
N_SLICES = 4


@record
class Normal:
    """Observations that stand for the likelihood of a node: W and b (n,)."""

    weights: Array
    pull: Array

    def log_density(self, values: Array) -> Array:
        """bᵀf − ½ fᵀWf."""
        return self.pull @ values - 0.5 * jnp.sum(self.weights * values**2)


@record
class _Layer:
    """The last layer while its nodes move: values (n, P), references (n, P), angles (P,)."""

    latent: Array
    reference: Array
    angles: Array
    evaluations: Array


def move(
    key: Array, network: Network, steps: Steps, params: Params, state: Imputation, data: Data,
    guide: Guide,
) -> Imputation:  # fmt: skip
    """Each node of the last layer moves, given the others and the layers below.

    While ``steps.adapt`` holds, the references are running means of the values.
    """
    *below, latent = state.latents
    *references, reference = guide.reference
    nodes, inputs, _, sites = layer_parts(network, network.depth - 1, params, state.latents, data)
    rate = jnp.where(steps.adapt, learning_rate(state.sweeps), 0.0)

    def move_node(k: Array, now: _Layer) -> _Layer:
        node, own = jax.tree.map(lambda each: each[k], (nodes, sites))
        column = lambda each: jnp.where(own.used, each[:, k], 0.0)  # noqa: E731
        put = lambda whole, part: lax.dynamic_update_index_in_dim(whole, part, k, 1)  # noqa: E731
        likelihood = lambda f: log_likelihood(network, (*below, put(now.latent, f)), data)  # noqa: E731
        values, info = _move_node(
            jax.random.fold_in(key, k), likelihood, network.solver.root(node, inputs, own),
            column(now.latent), column(now.reference), steps.bracket * now.angles[k],
        )  # fmt: skip
        angle = now.angles[k] + rate * (info.angle - now.angles[k])
        followed = column(now.reference) + rate * (values - column(now.reference))
        return _Layer(
            put(now.latent, values),
            put(now.reference, followed),
            lax.dynamic_update_index_in_dim(now.angles, angle, k, 0),
            now.evaluations + info.evaluations,
        )

    begin = _Layer(latent, reference, state.angles[-1], state.evaluations)
    end = lax.fori_loop(0, latent.shape[1], move_node, begin)
    return replace(
        state,
        latents=(*below, end.latent),
        angles=(*state.angles[:-1], end.angles),
        evaluations=end.evaluations,
        guide=replace(guide, reference=(*references, end.reference)),
    )


def normal_near(likelihood: Callable[[Array], Array], reference: Array) -> Normal:
    """The observations that stand for a likelihood near a reference; where it is not concave, they
    say nothing."""
    with differentiable():
        slope, curvature = jax.jvp(jax.grad(likelihood), (reference,), (jnp.ones_like(reference),))
    weights = jnp.where(curvature < 0.0, -curvature, 0.0)
    return Normal(weights, weights * reference + slope)


def weights_near(network: Network, latents: Array, data: Data) -> Array:
    """The weights W (n, P) of the observations that stand for the likelihood of each node near
    values (n, P) of all."""

    def of_node(k: Array) -> Array:
        put = lambda f: lax.dynamic_update_index_in_dim(latents, f, k, 1)  # noqa: E731
        likelihood = lambda f: network.observation.log_density(data.observed, put(f), data.used)  # noqa: E731
        return normal_near(likelihood, latents[:, k]).weights

    return lax.map(of_node, jnp.arange(latents.shape[1])).T


def mean_and_draws(key: Array, root: Any, normal: Normal, n_draws: int) -> tuple[Array, Array]:
    """Mean (n,) and draws (n, k) about it of f = Lz given the normal observations.

    A draw of z is A⁻¹(ε + LᵀW^½ε') with standard normals ε and ε'.
    """
    normals = jax.random.normal(key, (len(normal.pull), 2, n_draws), normal.pull.dtype)
    observed = jnp.sqrt(normal.weights)[:, None] * normals[:, 1]
    prior = jnp.pad(normals[:, 0], ((0, 0), (1, 0)))
    data = jnp.column_stack([normal.pull, observed])
    right = prior + roots.times_transposed(root, data)
    found = roots.times(root, roots.solved(root, normal.weights, right))
    return found[:, 0], found[:, 1:]


def _move_node(
    key: Array,
    likelihood: Callable[[Array], Array],
    root: Any,
    values: Array,
    reference: Array,
    bracket: Array,
) -> tuple[Array, slice_step.SliceInfo]:
    """Slice steps on ellipses about the normal's mean; the mean of their angles, and evaluations of
    the likelihood."""
    key_draws, key_slice = jax.random.split(key)
    normal = normal_near(likelihood, reference)
    centre, draws = mean_and_draws(key_draws, root, normal, N_SLICES)
    uniforms = jax.random.uniform(key_slice, (N_SLICES, slice_step.N_UNIFORMS), values.dtype)
    ratio = lambda x: likelihood(centre + x) - normal.log_density(centre + x)  # noqa: E731

    def one(k: Array, now: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        at, current, angle, evaluations = now
        at, current, info = slice_step.step(
            uniforms[k], at, draws[:, k], ratio, current, jnp.minimum(bracket, FULL_CIRCLE)
        )
        return at, current, angle + turn(info.angle), evaluations + info.evaluations

    start = values - centre
    none = jnp.zeros((), jnp.int32)
    at, _, angle, count = lax.fori_loop(
        0, N_SLICES, one, (start, ratio(start), jnp.zeros_like(bracket), none)
    )
    return centre + at, slice_step.SliceInfo(angle / N_SLICES, count)
