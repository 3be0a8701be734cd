"""k, I and J against quadrature, limits and each other.

The oracle integrates the log of the integrand with Gauss-Legendre panels around its mode; the
integrand is log-concave for all three kernels, so that mode is the only one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import quick_jit as jit

from deepemu.core.kernels import families, products
from deepemu.core.kernels.kernel import Two
from deepemu.core.kernels.pairs import _NARROW, _NEAR
from deepemu.core.nodes import pair_sums

NAMES = ["squared_exponential", "matern52", "matern32"]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
LOG_SMALLEST = np.log(1e-250)
NAN = jnp.full((), jnp.nan)  # for points that a stationary kernel does not look at


def log_k(name, r):
    """log k from its textbook form."""
    t = np.abs(r)
    if name == "squared_exponential":
        return -t * t
    if name == "matern52":
        return np.log(1 + np.sqrt(5) * t + 5 * t**2 / 3) - np.sqrt(5) * t
    return np.log(1 + np.sqrt(3) * t) - np.sqrt(3) * t


def log_quadrature(name, deltas, var):
    """log E[prod_i k(W - w_i)] for W ~ N(0, var), w_i = -delta_i; one entry of each per case."""
    var, *w = np.broadcast_arrays(var, *(-np.asarray(d, dtype=float) for d in deltas))

    def f(x):
        def column(a):
            return a.reshape(a.shape + (1,) * (x.ndim - 1))

        return -0.5 * x**2 / column(var) + sum(log_k(name, x - column(wi)) for wi in w)

    low, high = np.minimum(np.min(w, 0), 0.0), np.maximum(np.max(w, 0), 0.0)
    for _ in range(120):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        rising = f(a) < f(b)
        low, high = np.where(rising, a, low), np.where(rising, high, b)
    mode = 0.5 * (low + high)
    top = f(mode)
    ends = [_where_negligible(f, mode, top, sign * np.sqrt(var)) for sign in (-1, 1)]
    breaks = np.sort([np.clip(x, *ends) for x in (*ends, mode, 0.0, *w)], axis=0).T
    edges = breaks[:, :-1, None] + np.diff(breaks)[..., None] * np.linspace(0, 1, 25)
    middle, half = 0.5 * (edges[..., 1:] + edges[..., :-1]), 0.5 * np.diff(edges)
    values = np.exp(f(middle[..., None] + half[..., None] * NODES) - top[:, None, None, None])
    total = np.einsum("cip,cipq,q->c", half, values, WEIGHTS)
    return top + np.log(total / np.sqrt(2 * np.pi * var))


def _where_negligible(f, mode, top, step):
    """A point on the side of step at which the integrand is at most e^-45 of its maximum."""
    step = 1e-3 * step
    for _ in range(200):
        step = np.where(f(mode + step) > top - 45, 1.15 * step, step)
    return mode + step


def relative_error(value, log_reference):
    """|value / reference - 1| where the reference is above 1e-250, else 0."""
    value, log_reference = np.asarray(value), np.asarray(log_reference)
    with np.errstate(divide="ignore"):
        error = np.abs(np.expm1(np.log(value) - log_reference))
    return np.where(log_reference > LOG_SMALLEST, error, 0.0)


correlation_matrix = jit(products.correlation_matrix, static_argnums=0)


@functools.partial(jit, static_argnums=0)
def slopes_of(kernel, delta, var):
    return kernel.expectation_and_slopes(delta, var)[1]


@functools.partial(jit, static_argnums=0)
def expectation_vector(kernel, w, mean, var, inverse):
    delta, scaled = products.scaled(w, mean[None], var[None], inverse)
    return products.expectation_matrix(kernel, delta, scaled)[:, 0]


@functools.partial(jit, static_argnums=0)
def pair_expectation_matrix(kernel, w, mean, var, inverse):
    """Each J_ij as the sum over pairs whose only weight is that of i and j."""
    delta, scaled = products.scaled(w, mean[None], var[None], inverse)

    forms = kernel.pair_forms()

    def entry(weights):
        tiles = pair_sums.tiled(forms[0], 0.5 * (weights + weights.T), w * inverse[None])
        values = [
            pair_sums.expected_sum(form, tiles, delta, scaled, jnp.ones((len(w), 1)))[0]
            for form in (forms[0], forms[-1])
        ]
        return jnp.where(forms[0].is_accurate(scaled)[0], *values)

    n = len(w)
    return jax.lax.map(entry, jnp.eye(n * n).reshape(n * n, n, n)).reshape(n, n)


def pair_in_form(form, delta_i, delta_j, var):
    """Elementwise J in one dimension, less the part of `decay`."""
    i, j = (
        jax.tree.map(lambda f: f[0], form.features(Two(NAN, NAN, delta[None]), var[None]))
        for delta in (delta_i, delta_j)
    )
    return form.common(var[None]) * form.product([i], [j], [delta_j - delta_i])


def pair_expectation(kernel, delta_i, delta_j, var):
    """Elementwise J, in the first form that suits each variance."""
    forms = kernel.pair_forms()
    values = [pair_in_form(form, delta_i, delta_j, var) for form in forms]
    narrow = forms[0].is_accurate(var[None, None])
    return jnp.where(narrow, values[0], values[-1]), forms[0].decay(delta_j - delta_i)


@functools.partial(jit, static_argnums=(0, 1))
def _compiled(kernel, method, *arguments):
    if method == "pair_expectation":
        return products.combine(*pair_expectation(kernel, *arguments))
    return products.combine(*getattr(kernel, method)(*arguments))


def evaluate(kernel, method, *arguments):
    """A one-dimensional function of the kernel, in blocks of one size: one compilation each."""
    arguments = np.broadcast_arrays(*arguments)
    count, block = arguments[0].size, 1024
    padded = [np.pad(a.ravel(), (0, -count % block)).reshape(-1, block) for a in arguments]
    blocks = [_compiled(kernel, method, *row) for row in zip(*padded, strict=True)]
    return np.concatenate(blocks)[:count].reshape(arguments[0].shape)


def k_of(kernel, r):
    return evaluate(kernel, "correlation", r)


def i_of(kernel, delta, var):
    return evaluate(kernel, "expectation", delta, var)


def j_of(kernel, delta_i, delta_j, var):
    return evaluate(kernel, "pair_expectation", delta_i, delta_j, var)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def kernel(name):
    return families.by_name(name)


def design(seed, dimensions=2):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(12, dimensions))
    mean, var = rng.normal(size=dimensions), rng.uniform(0.01, 2.0, dimensions)
    return w, mean, var, rng.uniform(0.3, 2.0, dimensions)


@pytest.mark.parametrize(
    ("name", "at_half", "at_two"),
    [  # computed with 30 digits
        ("squared_exponential", 0.778800783071404868, 0.0183156388887341803),
        ("matern52", 0.828649142418125313, 0.138660219138504277),
        ("matern32", 0.784887653957450654, 0.139731350192314671),
    ],
)
def test_correlation_at_known_values(name, at_half, at_two):
    k = k_of(families.by_name(name), [0.0, 0.5, -0.5, 2.0, 1e4])
    np.testing.assert_allclose(k, [1.0, at_half, at_half, at_two, 0.0], rtol=1e-14)


def test_log_slope_is_the_derivative_in_log_lengthscale(kernel):
    r, step = np.array([-3.0, -0.4, 1e-3, 0.7, 5.0, 40.0]), 1e-5

    def log_correlation(scale):
        factor, exponent = jit(kernel.correlation)(r / scale)
        return np.log(factor) - np.asarray(exponent)

    difference = (log_correlation(np.exp(step)) - log_correlation(np.exp(-step))) / (2 * step)
    at = np.append(r, 0.0)
    *slopes, at_zero = jit(kernel.log_slope_at)(Two(at, np.zeros_like(at), at))
    np.testing.assert_allclose(slopes, difference, rtol=1e-6, atol=1e-10)
    assert at_zero == 0.0


def test_expectation_against_quadrature(name, kernel):
    var = np.array([1e-12, 1e-6, 1e-2, 0.3, 1.0, 7.0, 100.0, 1e4])
    in_sd = np.array([0.0, 0.3, -1.0, 2.5, -4.0, 12.0, -30.0])
    delta = np.concatenate([in_sd * np.sqrt(v) for v in var] + [[-100.0, 0.5, 20.0]] * len(var))
    var = np.concatenate([np.repeat(var, in_sd.size), np.repeat(var, 3)])
    reference = log_quadrature(name, [delta], var)
    assert relative_error(i_of(kernel, delta, var), reference).max() < 1e-11


@pytest.mark.parametrize("name", ["squared_exponential", "matern52"])
def test_slopes_of_the_expectation_against_differences_of_quadrature(name, kernel):
    delta, var = (each.ravel() for each in np.meshgrid([-2.0, -0.3, 0.0, 0.7], [1e-4, 0.02, 1.5]))
    step = 2e-3
    at = [np.exp(log_quadrature(name, [delta + k * step], var)) for k in (-2, -1, 0, 1, 2)]
    first = (at[0] - 8 * at[1] + 8 * at[3] - at[4]) / (12 * step)
    second = (-at[0] + 16 * at[1] - 30 * at[2] + 16 * at[3] - at[4]) / (12 * step**2)
    third = (-at[0] + 2 * at[1] - 2 * at[3] + at[4]) / (2 * step**3)
    found = slopes_of(kernel, delta, var)
    np.testing.assert_allclose(found[0], first / at[2], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[1], second / at[2], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[2], third / at[2], rtol=1e-2, atol=1e-2)


def test_slopes_are_finite_where_the_expectation_underflows():
    for name in ("squared_exponential", "matern52"):
        far = np.array([1e3, -1e3, 0.0])
        found = slopes_of(families.by_name(name), far, np.array([0.0, 1e-3, 1e-30]))
        assert all(np.all(np.isfinite(each)) for each in found)


@pytest.mark.parametrize("name", ["squared_exponential", "matern52"])
def test_derivatives_at_zero(name):
    """k(r) = 1 + k''(0) r²/2 + k4 r⁴/24 + O(r⁵)."""
    second, fourth = families.by_name(name).derivatives_at_zero
    r = np.array([1e-2, 2e-2])
    rest = np.exp(log_k(name, r)) - 1 + second * r**2 / 2
    np.testing.assert_allclose(rest * 24 / r**4, fourth, rtol=0.1)


def test_pair_expectation_against_quadrature(name, kernel):
    rng = np.random.default_rng(1)
    var, z, gap = (
        a.ravel()
        for a in np.meshgrid(
            [1e-12, 1e-6, 1e-2, 0.3, 1.0, 7.0, 100.0, 1e4],
            [0.0, 0.4, -1.3, 2.4, -2.8, 5.0, -20.0],
            [0.0, *10 ** rng.uniform(-3, 1.3, 9)],
        )
    )
    sd = np.sqrt(var)
    # Gaps in units of the standard deviation, then of the lengthscale; then fixed places.
    pair_sums = [((z + s * gap / 2) * sd, z * sd + s * gap, s * gap * 5 + 10) for s in (1, -1)]
    delta_i, delta_j = map(np.concatenate, pair_sums)
    var = np.tile(var, 3)
    error = relative_error(
        j_of(kernel, delta_i, delta_j, var), log_quadrature(name, [delta_i, delta_j], var)
    )
    assert error.max() < 1e-10


def test_both_rules_for_the_moments_between_points_agree_where_they_meet(name, kernel):
    """Gaps just around the switch in `_central_moments`, with a wide input: the hardest place."""
    z = np.linspace(-8.0, 8.0, 41)
    ratio = np.sqrt(_NEAR / (6.0 + 2 * z**2)) * np.array([0.97, 1.03])[:, None]
    delta_i, delta_j = ((z + sign * ratio / 2).ravel() * 30.0 for sign in (1, -1))
    reference = log_quadrature(name, [delta_i, delta_j], 900.0)
    assert relative_error(j_of(kernel, delta_i, delta_j, 900.0), reference).max() < 2e-10


@pytest.mark.parametrize("var", [0.0, 1e-30, 1e-22])
def test_a_known_input_gives_the_correlation(kernel, var):
    delta = np.array([0.0, 1e-9, -0.3, 0.3, 1.0, -7.0, 15.0])
    k = np.asarray(k_of(kernel, delta))
    np.testing.assert_allclose(i_of(kernel, delta, var), k, rtol=1e-13)
    j = j_of(kernel, delta[:, None], delta[None, :], var)
    np.testing.assert_allclose(j, k[:, None] * k[None, :], rtol=1e-13)


def test_zero_inverse_lengthscale_disconnects_a_column(kernel):
    w, mean, var, inverse = design(2)
    r, delta, v = ((w[:, None] - w[None]) * inverse)[..., 0], (mean - w)[:, 0] * inverse[0], var[0]
    v = v * inverse[0] ** 2
    for product, arguments, without in (
        (correlation_matrix, (w, w), k_of(kernel, r)),
        (expectation_vector, (w, mean, var), i_of(kernel, delta, v)),
        (pair_expectation_matrix, (w, mean, var), j_of(kernel, delta[:, None], delta, v)),
    ):
        first_only = product(kernel, *arguments, inverse * np.array([1.0, 0.0]))
        np.testing.assert_allclose(first_only, without, rtol=1e-13)
        np.testing.assert_array_equal(product(kernel, *arguments, 0.0 * inverse), 1.0)


def test_products_over_dimensions(kernel):
    w, mean, var, inverse = design(3)
    delta, scaled_var = (mean - w) * inverse, var * inverse**2
    k = k_of(kernel, (w[:, None] - w[None]) * inverse).prod(-1)
    i = i_of(kernel, delta, scaled_var).prod(-1)
    j = j_of(kernel, delta[:, None], delta[None, :], scaled_var).prod(-1)
    correlation = correlation_matrix(kernel, w, w, inverse)
    np.testing.assert_allclose(correlation, k, rtol=1e-13)
    expectation = expectation_vector(kernel, w, mean, var, inverse)
    np.testing.assert_allclose(expectation, i, rtol=1e-13)
    pair_sums = pair_expectation_matrix(kernel, w, mean, var, inverse)
    np.testing.assert_allclose(pair_sums, j, rtol=1e-13)


def test_parts_of_column_sets_combine(kernel):
    w, _, _, inverse = design(4, 5)
    parts = jit(products.parts, static_argnums=0)
    first = parts(kernel, w[:, :2], w[:, :2], inverse[:2])
    second = parts(kernel, w[:, 2:], w[:, 2:], inverse[2:])
    together = jit(lambda a, b: products.combine(a[0] * b[0], a[1] + b[1]))(first, second)
    whole = correlation_matrix(kernel, w, w, inverse)
    np.testing.assert_allclose(together, whole, rtol=1e-14)


def test_pair_matrix_is_a_second_moment(kernel):
    """Symmetric, and J - I I^T, the covariance of the kernel vector, is positive semidefinite."""
    w, mean, var, inverse = design(5)
    j = np.asarray(pair_expectation_matrix(kernel, w, mean, var, inverse))
    i = np.asarray(expectation_vector(kernel, w, mean, var, inverse))
    np.testing.assert_array_equal(j, j.T)
    assert np.linalg.eigvalsh(j - np.outer(i, i)).min() > -1e-14


def test_moments_agree_with_sampling():
    """The one oracle that knows nothing of dimensions, scaling or Gaussians in closed form."""
    w, mean, var, inverse = design(6)
    draws = mean + np.sqrt(var) * np.random.default_rng(7).normal(size=(100_000, 2))
    for name in NAMES:
        k = np.exp(log_k(name, (draws[:, None] - w) * inverse).sum(-1))
        arguments = (families.by_name(name), w, mean, var, inverse)
        tolerance = 6 * 0.5 / np.sqrt(len(draws))
        i, j = expectation_vector(*arguments), pair_expectation_matrix(*arguments)
        np.testing.assert_allclose(i, k.mean(0), atol=tolerance)
        np.testing.assert_allclose(j, k.T @ k / len(draws), atol=tolerance)


def test_extremes_are_finite_and_in_the_unit_interval(kernel):
    rng = np.random.default_rng(8)
    sign = rng.choice([-1.0, 1.0], (2, 20_000))
    delta = sign * np.minimum(10 ** rng.uniform(-14, 3.2, (2, 20_000)), 1e3)
    delta[:, :200] = 0.0
    var = np.where(rng.random(20_000) < 0.1, 0.0, 10 ** rng.uniform(-30, 4, 20_000))
    for value in (i_of(kernel, delta[0], var), j_of(kernel, *delta, var)):
        assert np.all(np.isfinite(value))
        assert np.all((value >= 0.0) & (value <= 1.0 + 1e-14))


@pytest.mark.parametrize("form", families.Matern52().pair_forms())
def test_features_are_computed_per_point_not_per_pair(form):
    """What is done per pair for a Matern kernel has no transcendental function."""
    features = jax.eval_shape(form.features, Two(*3 * (jnp.ones((1, 3)),)), jnp.ones((1, 3)))
    per_pair = jax.make_jaxpr(form.product)([features], [features], [jnp.ones((1, 3))])
    assert not {"exp", "erfc", "log", "div", "sqrt"} & {e.primitive.name for e in per_pair.eqns}


def test_both_forms_of_a_matern_pair_agree_where_they_meet():
    rng = np.random.default_rng(9)
    delta_i, delta_j = rng.normal(size=(2, 2000)) * 10 ** rng.uniform(-6, 1, 2000)
    var, compiled = np.full(2000, _NARROW), jit(pair_in_form, static_argnums=0)
    for kernel in (families.Matern52(), families.Matern32()):
        narrow, wide = (compiled(f, delta_i, delta_j, var) for f in kernel.pair_forms())
        np.testing.assert_allclose(narrow, wide, rtol=1e-10)


def test_kernels_are_static_arguments(name, kernel):
    """Equal kernels hit the same compilation, different ones do not."""
    traces = []

    def value(kernel, r):
        traces.append(kernel)
        return kernel.correlation(r)[0]

    compiled = jax.jit(value, static_argnums=0)
    for other in (kernel, families.by_name(name), *map(families.by_name, NAMES)):
        compiled(other, jnp.ones(2))
    assert len(traces) == len(NAMES)


def test_an_unknown_name_lists_the_choices():
    with pytest.raises(ValueError, match="squared_exponential, matern52, matern32, linear"):
        families.by_name("cubic")
