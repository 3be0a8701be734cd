"""The linked Gaussian process against Monte Carlo, quadrature and the plain one."""

import functools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from core.builders import node_of
from normal_kernel import SHORTER, Normal
from oracles import Process
from programs import quick_jit as jit

from deepemu.core.distributions import Gaussian
from deepemu.core.nodes import dense, linked
from deepemu.core.nodes.cubature import DegreeFive, Grid
from deepemu.core.nodes.linked import Inputs
from deepemu.core.nodes.node import Sites

N_ROWS = 9


@functools.partial(jit, static_argnums=0)
def predict_by(scheme, node, inputs, target, at):
    """Moments at test points whose first columns are uncertain."""
    link = dense.link(node, inputs, target, Sites(jnp.ones(len(inputs)), jnp.zeros(())))
    prepared = scheme.prepare(node, link, inputs, at.uncertain.mean.shape[1])
    return scheme.predict(node, link.alpha, prepared, inputs, at)


def by_all(node, inputs, target, at):
    schemes = linked.schemes(node.kernel, at.uncertain.mean.shape[1])
    return [predict_by(scheme, node, inputs, target, at) for scheme in schemes]


def predict_linked(node, inputs, target, at):
    """By the general scheme; where another one is accurate, it agrees."""
    *others, general = by_all(node, inputs, target, at)
    assert np.all(general.accurate)
    for other in others:
        accurate = np.asarray(other.accurate)
        np.testing.assert_allclose(
            other.moments.mean[accurate], general.moments.mean[accurate], rtol=1e-9
        )
        np.testing.assert_allclose(
            other.moments.var[accurate], general.moments.var[accurate], rtol=1e-4
        )
    return general.moments


def better_of(found, other):
    """Rows of the smaller error, with their one output as a column."""
    of = lambda each: replace(  # noqa: E731
        each, moments=Gaussian(each.moments.mean[:, None], each.moments.var[:, None])
    )
    best = linked.better_of(of(found), of(other))
    return replace(best, moments=Gaussian(best.moments.mean[:, 0], best.moments.var[:, 0]))


def one_row(mean, var, known) -> Inputs:
    return Inputs(Gaussian(mean[None], var[None]), known[None])


@pytest.fixture(params=oracles.KERNELS)
def process(request):
    """Three columns, of which the second is not read."""
    return Process(request.param, np.array([0.5, np.inf, 0.9]), 1.7, 0.03)


@pytest.fixture
def x(rng):
    return rng.uniform(size=(N_ROWS, 3))


@pytest.fixture
def y(rng):
    return rng.normal(size=N_ROWS)


# Kernels, and how many of three columns are uncertain. Both Matern kernels are the same code, of
# which three columns take long to compile.
COMBINATIONS = pytest.mark.parametrize(
    ("process", "n_uncertain"),
    [*((kernel, 2) for kernel in oracles.KERNELS), ("squared_exponential", 3), ("matern32", 3)],
    indirect=["process"],
)


@COMBINATIONS
def test_moments_against_monte_carlo(rng, process, x, y, n_uncertain):
    mean, var = rng.uniform(size=3)[:n_uncertain], np.array([0.02, 0.3, 0.1])[:n_uncertain]
    known = rng.uniform(size=3 - n_uncertain)
    stated = predict_linked(node_of(process), x, y, one_row(mean, var, known))
    n_draws = 200_000
    drawn = mean + np.sqrt(var) * rng.normal(size=(n_draws, n_uncertain))
    points = np.hstack([drawn, np.broadcast_to(known, (n_draws, 3 - n_uncertain))])
    weights = np.full(n_draws, 1 / n_draws)
    total_mean, total_var, errors = oracles.through_inputs(process, x, y, points, weights)
    assert abs(stated.mean[0] - total_mean) < 5 * errors[0]
    assert abs(stated.var[0] - total_var) < 5 * errors[1]


@pytest.mark.parametrize("n_uncertain", [1, 2, 3])
def test_a_kernel_in_other_units_has_the_same_moments(rng, x, y, n_uncertain):
    """By every scheme, also those that a kernel from outside the package has by what it says."""
    node = node_of(Process("squared_exponential", np.array([0.5, 1.3, 0.9]), 1.7, 0.03))
    other = replace(node, kernel=Normal(), inverse_lengthscale=node.inverse_lengthscale / SHORTER)
    at = one_row(
        rng.uniform(size=n_uncertain), np.full(n_uncertain, 0.01), rng.uniform(size=3)[n_uncertain:]
    )
    ours, others = (by_all(each, x, y, at) for each in (node, other))
    assert len(ours) == len(others) > 1
    for a, b in zip(ours, others, strict=True):
        np.testing.assert_allclose(b.moments.mean, a.moments.mean, rtol=1e-9)
        np.testing.assert_allclose(b.moments.var, a.moments.var, rtol=1e-7)


@COMBINATIONS
def test_inputs_of_variance_zero_are_known(rng, process, x, y, n_uncertain):
    """The sums over pairs lose a few digits that the form for known inputs keeps."""
    at = rng.uniform(size=3)
    expected = process.predict(x, y, at[None])
    certain = one_row(at[:n_uncertain], np.zeros(n_uncertain), at[n_uncertain:])
    moments = predict_linked(node_of(process), x, y, certain)
    np.testing.assert_allclose(moments.mean, expected[0], rtol=1e-10)
    np.testing.assert_allclose(moments.var, expected[1][0], rtol=1e-9)


def test_variance_is_never_below_the_nugget(process, x):
    """At a training point with a nugget of 1e-8, where the sums are round-off."""
    small = replace(process, lengthscale=3 * process.lengthscale, nugget=1e-8)
    inputs = one_row(x[0, :2], np.zeros(2), x[0, 2:])
    floor = small.scale * small.nugget
    for scheme in linked.schemes(node_of(small).kernel, 2):
        assert predict_by(scheme, node_of(small), x, np.sin(x[:, 0]), inputs).moments.var >= floor


# --- digits -----------------------------------------------------------------------------------

SHAPES = {
    # rows, columns, nugget, lengthscale: more and more correlated
    "a line": (200, 1, 1e-6, 0.5),
    "a smooth line": (200, 1, 1e-8, 1.0),
    "many rows": (1000, 1, 1e-8, 1.0),
    "a plane": (300, 2, 1e-7, 1.0),
    "three columns": (150, 3, 1e-8, 2.0),
}
VARIANCES = 10.0 ** np.arange(-9, -2)  # in squared lengthscales


# Long double takes its time for many rows.
@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        pytest.param(kernel, shape, marks=[pytest.mark.slow] if is_slow else [])
        for kernel in oracles.KERNELS
        for shape in SHAPES
        for is_slow in [shape == "many rows" and kernel != "matern52"]
    ],
)
def test_standard_deviations_have_four_digits(kernel, shape):
    """Against long double, where sums with R⁻¹ have none left; one column more is known."""
    n, n_columns, nugget, lengthscale = SHAPES[shape]
    rng = np.random.default_rng(1)
    x = rng.uniform(size=(n, n_columns + 1))
    y = np.sin(5 * x[:, 0]) + x[:, -1] ** 2
    lengthscales = np.append(np.full(n_columns, lengthscale), 2.0)
    process = Process(kernel, lengthscales, 1.0, nugget).best_scale(x, y)
    mean, known = rng.uniform(size=(2, len(VARIANCES), n_columns))
    var = np.broadcast_to(lengthscale**2 * VARIANCES[:, None], mean.shape)
    at = Inputs(Gaussian(mean, var), known[:, :1])
    found, *others = by_all(node_of(process), x, y, at)
    for other in others:
        found = better_of(found, other)
    # The third derivative of Matern-3/2 jumps, which takes more points.
    order = ({1: 60, 2: 20, 3: 15} if kernel == "matern32" else {1: 60, 2: 16, 3: 9})[n_columns]
    rows = zip(mean, var, known[:, :1], strict=True)
    points, weights = zip(*(oracles.gauss_hermite(*row, order) for row in rows), strict=True)
    exact_mean, exact_var = oracles.in_long_double(process, x, y, np.stack(points), weights[0])
    sd = np.sqrt(exact_var)
    assert np.all(np.abs(found.moments.mean - exact_mean) < 2e-4 * sd)  # the grid's error
    np.testing.assert_allclose(np.sqrt(found.moments.var), sd, rtol=1e-4)


def test_the_round_off_of_pairs_is_noticed():
    """A dense design on a line: the error of sums over pairs is about the one that they state."""
    x = np.linspace(0, 1, 300)[:, None]
    process = Process("squared_exponential", np.ones(1), 1.0, 1e-7)
    y = np.sin(5 * x[:, 0])
    mean = np.linspace(0.1, 0.9, 20)[:, None]
    at = Inputs(Gaussian(mean, np.full_like(mean, 1e-4)), np.zeros((20, 0)))
    *others, by_pairs = by_all(node_of(process), x, y, at)
    best = functools.reduce(better_of, [*others, by_pairs])
    errors = np.abs(np.asarray(by_pairs.moments.var) / np.asarray(best.moments.var) - 1)
    assert errors.max() > 10 * linked.TOLERANCE, "or there was no need to notice it"
    assert np.all(errors < 5 * np.asarray(by_pairs.error))


def test_a_rule_knows_where_it_is_not_accurate():
    """Spreads from a thousandth of a lengthscale to several."""
    process, x = Process("matern52", np.ones(1), 1.0, 1e-4), np.linspace(0, 4, 30)[:, None]
    var = 10.0 ** np.linspace(-6, 1, 15)[:, None]
    at = Inputs(Gaussian(np.full_like(var, 1.63), var), np.zeros((15, 0)))
    given = node_of(process), x, np.sin(2 * x[:, 0]), at
    rough, fine = (
        predict_by(linked.ByCubature(rule), *given) for rule in (DegreeFive(), Grid(0.3, 20))
    )
    assert rough.accurate[0] and not rough.accurate[-1]
    points = [oracles.gauss_hermite(np.array([1.63]), v, np.zeros(0), 150) for v in var]
    exact = [oracles.through_inputs(process, x, given[2], *each)[1] for each in points]
    for found in (rough, fine):
        accurate = np.asarray(found.accurate)
        error = np.abs(np.asarray(found.moments.var) / exact - 1)
        assert np.all(error[accurate] < 2 * linked.TOLERANCE)
    assert np.sum(fine.accurate) > np.sum(rough.accurate) + 2


@pytest.mark.parametrize("n_columns", [1, 3])
@pytest.mark.parametrize("kernel", ["squared_exponential", "matern52"])
def test_the_expansion_knows_where_it_is_accurate(rng, kernel, n_columns):
    """Spreads from a thousandth of a lengthscale to a third, against long double."""
    x = rng.uniform(size=(40, n_columns + 1))
    y, lengthscales = np.sin(5 * x[:, 0]) + x[:, -1], np.append(np.full(n_columns, 0.7), 2.0)
    process = Process(kernel, lengthscales, 1.0, 1e-5).best_scale(x, y)
    sizes = 10.0 ** np.linspace(-6, -1, 11)
    mean, var = rng.uniform(size=(11, n_columns)), np.outer(sizes, np.full(n_columns, 0.49))
    known = rng.uniform(size=(11, 1))
    found = predict_by(
        linked.ByExpansion(), node_of(process), x, y, Inputs(Gaussian(mean, var), known)
    )
    rows = zip(mean, var, known, strict=True)
    points, weights = zip(*(oracles.gauss_hermite(*row, 16) for row in rows), strict=True)
    _, exact = oracles.in_long_double(process, x, y, np.stack(points), weights[0])
    error = np.abs(np.asarray(found.moments.var) / exact - 1)
    accurate = np.asarray(found.accurate)
    assert np.all(error <= np.maximum(found.error, 1e-9))
    assert accurate[:2].all() and not accurate[-3:].any()
    assert error[-1] > linked.TOLERANCE, "or there was no need to notice it"


@pytest.mark.parametrize("kernel", ["squared_exponential", "matern52"])
@pytest.mark.parametrize("share", [1.0, 1e-4])
def test_the_expansion_sees_an_inflection(kernel, share):
    """y = x³ about zero, where the slope says nothing of the third derivative; with a scale that is
    given, far below the one that the runs suggest, its share of the variance is large."""
    x = np.linspace(-1, 1, 41)[:, None]
    process = Process(kernel, np.array([2.0]), 1.0, 1e-4).best_scale(x, x[:, 0] ** 3)
    process = replace(process, scale=share * process.scale)
    var = 10.0 ** np.linspace(-6, -2, 9)[:, None]
    at = Inputs(Gaussian(np.zeros_like(var), var), np.zeros((9, 0)))
    found = predict_by(linked.ByExpansion(), node_of(process), x, x[:, 0] ** 3, at)
    rows = [oracles.gauss_hermite(np.zeros(1), v, np.zeros(0), 40) for v in var]
    points, weights = zip(*rows, strict=True)
    _, exact = oracles.in_long_double(process, x, x[:, 0] ** 3, np.stack(points), weights[0])
    error = np.abs(np.asarray(found.moments.var) / exact - 1)
    assert np.all(error <= np.maximum(1.2 * np.asarray(found.error), 1e-8))


SMOOTH = ("squared_exponential", "matern52")


def test_the_expansion_is_for_kernels_with_four_derivatives():
    """And for Matérn-5/2 only where a cubature would have many points."""
    for kernel in oracles.KERNELS:
        of = node_of(Process(kernel, np.ones(1), 1.0, 1e-4)).kernel
        few, many = (isinstance(linked.schemes(of, n)[0], linked.ByExpansion) for n in (1, 3))
        assert few == (kernel == "squared_exponential") and many == (kernel in SMOOTH)


def test_a_row_has_the_same_moments_whatever_stands_beside_it(rng, process, x, y):
    at = Inputs(
        Gaussian(rng.random((6, 2)), 10.0 ** -rng.uniform(0, 6, (6, 2))), rng.random((6, 1))
    )
    together = by_all(node_of(process), x, y, at)
    other = Inputs(Gaussian(at.uncertain.mean[::-1], at.uncertain.var[::-1]), at.known[::-1])
    for a, b in zip(together, by_all(node_of(process), x, y, other), strict=True):
        np.testing.assert_allclose(a.moments.var, b.moments.var[::-1], rtol=1e-12)
        np.testing.assert_array_equal(a.accurate, b.accurate[::-1])


def test_many_columns_have_no_cubature():
    kernel = node_of(Process("matern52", np.ones(1), 1.0, 1e-4)).kernel
    few = linked.schemes(kernel, 10)
    assert linked.schemes(kernel, 11) == (*few[:1], *few[2:])
