"""The slice step: its geometry, what it refuses, and the distribution it leaves invariant."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from programs import jit, quick_jit
from scipy import special

from deepemu.core.inference import slice_step

FULL_CIRCLE = 2 * np.pi


def test_ellipse_passes_through_position_and_direction(rng):
    position, direction = rng.normal(size=(2, 5))
    at = functools.partial(slice_step.on_ellipse, jnp.asarray(position), jnp.asarray(direction))
    np.testing.assert_array_equal(at(0.0), position)
    np.testing.assert_allclose(at(np.pi / 2), direction, rtol=1e-14)
    np.testing.assert_allclose(at(np.pi), -position, rtol=1e-14)
    np.testing.assert_allclose(at(0.3), np.cos(0.3) * position + np.sin(0.3) * direction)


def uniforms(key):
    return jax.random.uniform(key, slice_step.N_UNIFORMS)


@functools.partial(jit, static_argnames=("likelihood", "n_steps"))
def run(key, start, root, likelihood, n_steps, bracket, *given):
    """A chain of steps whose prior is N(0, root rootᵀ); returns positions, values and infos.

    The log likelihood is a function of the position and of what is given.
    """
    log_likelihood = lambda f: likelihood(f, *given)  # noqa: E731

    def one(carry, key):
        position, current = carry
        key_direction, key_step = jax.random.split(key)
        direction = root @ jax.random.normal(key_direction, start.shape)
        new, value, info = slice_step.step(
            uniforms(key_step), position, direction, log_likelihood, current, bracket
        )
        return (new, value), (new, value, direction, info)

    begin = (start, log_likelihood(start))
    return jax.lax.scan(one, begin, jax.random.split(key, n_steps))[1]


# Prior N(0, PRIOR), likelihood of two observations with independent noise: the posterior is known.
PRIOR = np.array([[1.0, 0.6], [0.6, 2.0]])
NOISE, OBSERVED = np.array([0.3, 1.0]), np.array([1.2, -0.8])


def gaussian_likelihood(f):
    return -0.5 * jnp.sum((OBSERVED - f) ** 2 / NOISE)


def posterior():
    gain = PRIOR @ np.linalg.inv(PRIOR + np.diag(NOISE))
    return gain @ OBSERVED, PRIOR - gain @ PRIOR


@pytest.mark.parametrize("bracket", [FULL_CIRCLE, 2.5, 0.7])
def test_a_gaussian_posterior_is_reproduced(bracket):
    """First and second moments over 150,000 steps, with standard errors from 60 batch means.

    A batch is 2,500 steps long; at the shortest bracket the chain forgets within about 50.
    """
    root = np.linalg.cholesky(PRIOR)
    mean, covariance = posterior()
    chain = run(jax.random.key(1), mean, root, gaussian_likelihood, 150_000, bracket)
    f = np.asarray(chain[0])
    centred = f - mean
    products = np.einsum("ki,kj->kij", centred, centred)[:, [0, 0, 1], [0, 1, 1]]
    statistics = np.hstack([f, products])
    expected = np.append(mean, covariance[[0, 0, 1], [0, 1, 1]])
    batches = oracles.batch_means(statistics, 60)
    assert np.abs(oracles.in_standard_errors(batches, expected)).max() < 4
    # The test has power: an effective sample of at least 900 of each statistic.
    standard_error = batches.std(axis=0, ddof=1) / np.sqrt(60)
    assert np.all(standard_error < statistics.std(axis=0) / 30)


def test_a_step_reports_what_it_did():
    start, root = OBSERVED, np.linalg.cholesky(PRIOR)
    positions, values, directions, info = run(
        jax.random.key(2), start, root, gaussian_likelihood, 200, 1.5
    )
    before = np.vstack([start[None], positions[:-1]])
    angle = np.asarray(info.angle)[:, None]
    moved = before * np.cos(angle) + np.asarray(directions) * np.sin(angle)
    np.testing.assert_allclose(positions, moved, rtol=1e-12)
    np.testing.assert_allclose(values, jax.vmap(gaussian_likelihood)(positions), rtol=1e-12)
    assert np.abs(angle).max() < 1.5  # never outside the bracket
    assert np.all(info.evaluations >= 1)
    assert np.all(angle != 0)


def test_a_narrow_slice_is_found_by_shrinking():
    """An angle of 1e-6 in a bracket of 2π: about 23 halvings, where chance would take 1e6 tries."""
    position = jnp.ones(1)

    def log_likelihood(f):
        return -0.5 * jnp.sum((f - 1.0) ** 2) / 1e-12

    positions, _, _, info = run(
        jax.random.key(5), position, jnp.eye(1), log_likelihood, 200, FULL_CIRCLE
    )
    assert np.all(info.angle != 0)
    assert np.all(np.abs(positions - 1.0) < 1e-5)
    assert 15 < np.mean(info.evaluations) < 50


def bad_above_a_half(f, bad):
    return jnp.where(f[0] > 0.5, bad, 0.0)


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
def test_a_non_finite_likelihood_is_never_accepted(bad):
    positions, values, *_ = run(
        jax.random.key(3), np.zeros(1), np.eye(1), bad_above_a_half, 2000, FULL_CIRCLE, bad
    )
    assert np.all(positions <= 0.5)
    assert np.all(np.isfinite(values))
    assert len(np.unique(positions)) == 2000  # and it does move


@quick_jit
def one_step(key, position, direction, likelihood, current):
    """Where the log likelihood is the same everywhere."""
    anywhere = lambda f: likelihood  # noqa: E731
    return slice_step.step(
        uniforms(key), position, direction, anywhere, current, jnp.array(FULL_CIRCLE)
    )


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_it_stays_put_exactly_where_nothing_is_acceptable(rng, bad):
    position, direction = rng.normal(size=(2, 6))
    new, value, info = one_step(jax.random.key(4), position, direction, bad, -3.25)
    np.testing.assert_array_equal(new, position)
    assert value == -3.25
    assert info.angle == 0.0
    assert info.evaluations == slice_step.MAX_EVALUATIONS


# --- along a line ----------------------------------------------------------------------------

SHAPE = 1.5


def log_gamma_density(x):
    """Of the logarithm of a gamma variable, which is skew."""
    return jnp.sum(SHAPE * x - jnp.exp(x))


def test_a_line_passes_through_position_along_direction(rng):
    position, direction = jnp.asarray(rng.normal(size=(2, 5)))
    at = functools.partial(slice_step.on_line, position, direction)
    np.testing.assert_array_equal(at(0.0), position)
    np.testing.assert_allclose(at(-0.4), position - 0.4 * direction, rtol=1e-14)


@jit
def short_runs(keys, starts, bracket):
    """Ends of four moves from each start."""

    def run_from(key, start):
        def move(position, key):
            key_direction, key_step = jax.random.split(key)
            direction = jax.random.normal(key_direction, position.shape)
            current = log_gamma_density(position)
            return slice_step.step(
                uniforms(key_step), position, direction, log_gamma_density, current, bracket,
                slice_step.on_line,
            )[0], None  # fmt: skip

        return jax.lax.scan(move, start, jax.random.split(key, 4))[0]

    return jax.vmap(run_from)(keys, starts)


@pytest.mark.parametrize("bracket", [0.7, 4.0])
def test_a_density_is_left_invariant_along_a_line(bracket, rng):
    """Ends of short runs from exact draws are exact draws: independent, with known moments."""
    n_runs = 20_000
    starts = np.log(rng.gamma(SHAPE, size=(n_runs, 2)))
    keys = jax.random.split(jax.random.key(7), n_runs)
    ends = np.asarray(short_runs(keys, starts, bracket))
    centred = ends - special.digamma(SHAPE)
    statistics = np.hstack([centred, centred**2, centred[:, :1] * centred[:, 1:], centred**3])
    variance, skewness = special.polygamma([1, 2], SHAPE)
    expected = np.array([0, 0, variance, variance, 0, skewness, skewness])
    assert np.abs(oracles.in_standard_errors(statistics, expected)).max() < 4
    assert np.corrcoef(starts[:, 0], ends[:, 0])[0, 1] < 0.95
