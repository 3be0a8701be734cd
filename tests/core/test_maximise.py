"""Bounded scoring against problems whose maximum is known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import quick_jit
from scipy import optimize

from deepemu.core.inference.scoring import LONGEST_STEP, Objective, Slopes, Value, maximise

MATRIX = np.array([[3.0, 1.2, -0.4], [1.2, 2.0, 0.5], [-0.4, 0.5, 1.0]])
CENTRE = np.array([0.8, -1.5, 2.2])


def quadratic(point):
    """−½ (x − c)ᵀA(x − c); what else is known at x is Σ x³."""
    off = point - CENTRE
    pull = MATRIX @ off
    return Slopes(Value(-0.5 * off @ pull, jnp.sum(point**3)), -pull, jnp.asarray(MATRIX))


def banana(point):
    """−Rosenbrock, a sum of squares, with its Gauss-Newton information."""
    residual = lambda p: jnp.stack([1.0 - p[0], 10.0 * (p[1] - p[0] ** 2)])  # noqa: E731
    r, slope = residual(point), jax.jacfwd(residual)(point)
    return Slopes(Value(-0.5 * r @ r, r[0]), -slope.T @ r, slope.T @ slope)


def cliff(point):
    """Concave, with its maximum at 2, but not a number beyond 1."""
    value = jnp.where(point[0] > 1.0, jnp.nan, -0.5 * (point[0] - 2.0) ** 2)
    return Slopes(Value(value, value), 2.0 - point, jnp.eye(1))


@functools.partial(quick_jit, static_argnums=0)
def ascend(slopes, start, lower, upper, n_steps, tolerance=0.0):
    objective = Objective(lambda point: slopes(point).at, slopes)
    unevaluated = jnp.array(-123.0)
    return maximise(objective, start, lower, upper, n_steps, unevaluated, tolerance)


def free(n):
    return -np.full(n, 50.0), np.full(n, 50.0)


def test_an_interior_maximum():
    best = ascend(quadratic, np.array([-4.0, 3.0, 0.0]), *free(3), 100)
    np.testing.assert_allclose(best.point, CENTRE, atol=1e-7)
    np.testing.assert_allclose(best.at.value, 0.0, atol=1e-13)
    np.testing.assert_allclose(best.at.extra, np.sum(CENTRE**3), rtol=1e-6)


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        ([-5.0, -5.0, -5.0], [5.0, 5.0, 1.0]),  # one active bound
        ([-5.0, -1.0, -5.0], [5.0, 5.0, 1.0]),  # two
        ([1.0, 0.0, 3.0], [2.0, 1.0, 4.0]),  # a corner region
    ],
)
def test_a_maximum_on_the_bounds(lower, upper):
    """The reference is a bounded least-squares problem, solved by an active-set method."""
    root = np.linalg.cholesky(MATRIX).T
    exact = optimize.lsq_linear(root, root @ CENTRE, (lower, upper), method="bvls", tol=1e-14)
    start = 0.5 * (np.array(lower) + np.array(upper))
    best = ascend(quadratic, start, np.array(lower), np.array(upper), 200)
    assert np.any(np.isin(exact.x, [*lower, *upper]))
    np.testing.assert_allclose(best.point, exact.x, atol=1e-7)
    assert np.all((best.point >= np.array(lower)) & (best.point <= np.array(upper)))


def test_the_objective_never_falls_and_steps_have_a_longest_length():
    start = np.array([-1.2, 1.0])
    path = [ascend(banana, start, *free(2), n) for n in range(1, 60)]
    values = np.array([p.at.value for p in path])
    points = np.vstack([start[None], [p.point for p in path]])
    assert np.all(np.diff(values) >= 0)
    assert np.abs(np.diff(points, axis=0)).max() <= LONGEST_STEP + 1e-12
    np.testing.assert_allclose(points[-1], 1.0, atol=1e-4)
    for n, p in enumerate(path, start=1):
        assert p.n_steps <= n
        np.testing.assert_allclose(p.at.value, banana(p.point).at.value, rtol=1e-8, atol=1e-20)


def test_without_steps_nothing_is_evaluated():
    start = np.array([0.1, 0.2, 0.3])
    best = ascend(quadratic, start, *free(3), 0)
    np.testing.assert_array_equal(best.point, start)
    assert best.at.extra == -123.0
    assert best.n_steps == 0


def test_what_is_not_a_number_is_not_taken():
    best = ascend(cliff, np.array([0.0]), *free(1), 60)
    assert 0.5 < best.point[0] <= 1.0
    assert np.isfinite(best.at.value)


def test_a_start_without_a_value_is_kept():
    best = ascend(cliff, np.array([1.5]), *free(1), 60)
    assert best.point[0] == 1.5
    assert not np.isfinite(best.at.value)


def test_it_stops_once_steps_are_within_the_tolerance():
    start = np.array([-4.0, 3.0, 0.0])
    patient, quick = (ascend(quadratic, start, *free(3), 1000, t) for t in (0.0, 1e-3))
    assert quick.n_steps < patient.n_steps < 200
    np.testing.assert_allclose(quick.point, CENTRE, atol=1e-2)


def steep(point):
    """A ridge that a whole step overshoots: its information is a thousandth of its curvature."""
    return Slopes(Value(-500.0 * point[0] ** 2, point[0]), -1000.0 * point, jnp.eye(1))


def test_one_step_is_damped_until_it_helps():
    """The steps of an M-step must not be lost, because the next begins with the same damping."""
    best = ascend(steep, np.array([0.5]), *free(1), 1)
    assert best.n_steps == 1
    assert best.at.value > steep(np.array([0.5])).at.value
    assert abs(best.point[0]) < 0.5
