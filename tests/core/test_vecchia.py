"""The solver of near rows against exact algebra, finite differences and brute force."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import quick_jit as jit

from deepemu.core.distributions import Gaussian
from deepemu.core.kernels.families import KERNELS, by_name
from deepemu.core.nodes import dense, linked, near_rows, terms
from deepemu.core.nodes.linked import Inputs
from deepemu.core.nodes.node import Node, Sites
from deepemu.core.nodes.vecchia import Vecchia
from deepemu.data.neighbours import grouped

N, D = 20, 2
OWN = 3
EVERY = Vecchia(n_near=N, n_predict=N, n_group=OWN)
FEW = Vecchia(n_near=4, n_predict=6, n_group=OWN)
EXACT = dense.Dense()


@functools.partial(jit, static_argnums=(0, 1))
def call(solver, method, *given):
    """A method of a solver as a program that all tests share."""
    return getattr(solver, method)(*given)


def problem(kernel="matern52", n_near=N, replicates=True, padding=3, seed=0):
    """A node, its inputs, target and sites, of which the last ones are padding."""
    rng = np.random.default_rng(seed)
    x, y = rng.random((N, D)), rng.standard_normal(N)
    counts = rng.integers(1, 4, N).astype(float) if replicates else np.ones(N)
    counts[N - padding :] = 0.0
    y[N - padding :] = 0.0
    node = Node(by_name(kernel), jnp.array([2.0, 0.7]), jnp.array(1.7), jnp.array(1e-2))
    groups = grouped(x * np.array([2.0, 0.7]), counts > 0, n_near, OWN)
    squares = jnp.array(0.3 if replicates else 0.0)
    sites = Sites(jnp.array(counts), squares, jax.tree.map(jnp.array, groups))
    return node, jnp.array(x), jnp.array(y), sites


@functools.partial(jit, static_argnums=0)
def densities(solver, node, x, y, sites):
    """By a factor, by a fit with the scale free or not, and with a column that moves."""
    density = solver.log_density(solver.factor(node, x, sites), node, y, sites)
    fitted = [solver.fit(node, x, y, sites, free) for free in (True, False)]
    moving, resting = (
        dataclasses.replace(node, inverse_lengthscale=node.inverse_lengthscale[of])
        for of in (slice(1, None), slice(1))
    )
    at_rest = solver.at_rest(resting, x[:, :1], sites)
    return density, fitted, solver.log_density_moving(moving, x[:, 1:], at_rest, y, sites)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("replicates", [False, True])
def test_all_rows_before_give_the_exact_density(kernel, replicates):
    both = (densities(solver, *problem(kernel, replicates=replicates)) for solver in (EVERY, EXACT))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), *both)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("free", [False, True])
def test_all_rows_before_give_the_exact_slopes(kernel, free):
    given = *problem(kernel), free
    ours, exact = (call(solver, "derivatives", *given) for solver in (EVERY, EXACT))
    np.testing.assert_allclose(ours.gradient, exact.gradient, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.fit.value, exact.fit.value, rtol=1e-11)
    np.testing.assert_allclose(ours.fit.scale, exact.fit.scale, rtol=1e-11)


@pytest.mark.parametrize("kernel", KERNELS)
def test_slopes_in_the_inputs(kernel):
    """Of both solvers, against differences of the exact density."""
    node, x, y, sites = problem(kernel)
    value = lambda x: call(EXACT, "fit", node, x, y, sites, False).value  # noqa: E731
    for solver in (EVERY, EXACT):
        found, slopes = call(solver, "input_slopes", node, x, y, sites)
        np.testing.assert_allclose(found, value(x), rtol=1e-11)
        for place in [(0, 0), (3, 1), (N - 5, 0)]:
            step = jnp.zeros_like(x).at[place].set(1e-6)
            difference = (value(x + step) - value(x - step)) / 2e-6
            np.testing.assert_allclose(slopes[place], difference, rtol=1e-5, atol=1e-7)
        assert np.all(slopes[-3:] == 0.0)


def moved(node, logs):
    """The node after steps in (log γ, log η)."""
    inverse = node.inverse_lengthscale * jnp.exp(-logs[:-1])
    return dataclasses.replace(
        node, inverse_lengthscale=inverse, nugget=node.nugget * jnp.exp(logs[-1])
    )


@pytest.mark.parametrize("free", [False, True])
def test_slopes_with_few_neighbours(free):
    """Against differences; the information is that of draws: the covariance of the gradient."""
    node, x, y, sites = problem(n_near=4)
    value = lambda logs: call(FEW, "fit", moved(node, logs), x, y, sites, free).value  # noqa: E731
    steps = 1e-5 * np.eye(D + 1)
    differences = [(value(step) - value(-step)) / 2e-5 for step in steps]
    found = call(FEW, "derivatives", node, x, y, sites, free)
    np.testing.assert_allclose(found.gradient, differences, rtol=1e-6, atol=1e-7)


@functools.partial(jit, static_argnums=0)
def drawn(solver, node, x, sites, normals):
    """Draws from the prior given rows of standard normals."""
    factor = solver.factor(node, x, sites)
    return jax.vmap(lambda e: solver.draw_prior(factor, node, sites, e))(normals)


def test_information_is_the_covariance_of_the_gradient():
    node, x, y, sites = problem(n_near=4, replicates=False, padding=0)
    normals = np.random.default_rng(1).standard_normal((4000, N))
    draws = drawn(FEW, node, x, sites, normals)
    slopes = jit(jax.vmap(lambda y: FEW.derivatives(node, x, y, sites, False)))(draws)
    found = np.cov(np.asarray(slopes.gradient).T)
    expected = np.mean(np.asarray(slopes.information), axis=0)
    np.testing.assert_allclose(found, expected, rtol=0.1, atol=0.05 * np.abs(expected).max())


def rows_before(groups):
    """Each row and those that it is conditioned on: near its group, and in its group before it."""
    for near, own in zip(np.asarray(groups.near), np.asarray(groups.own), strict=True):
        for place, row in enumerate(own[own >= 0]):
            yield row, np.concatenate([near[near >= 0], own[:place]])


def implied_covariance(node, x, sites):
    """Σ of Vecchia's density, from its conditionals: Σ⁻¹ = (1 − B)ᵀ diag(1/σ²s²) (1 − B)."""
    n = int(np.sum(np.asarray(sites.counts) > 0))
    exact = np.asarray(dense.correlation(node, x, dataclasses.replace(sites, groups=None)))
    b, s2 = np.zeros((n, n)), np.zeros(n)
    for i, given in rows_before(sites.groups):
        b[i, given] = np.linalg.solve(exact[np.ix_(given, given)], exact[given, i])
        s2[i] = exact[i, i] - exact[i, given] @ b[i, given]
    precision = (np.eye(n) - b).T @ np.diag(1.0 / s2) @ (np.eye(n) - b)
    return float(node.scale) * np.linalg.inv(precision)


def test_density_and_draws_with_few_neighbours():
    node, x, y, sites = problem(n_near=4, replicates=False)
    covariance = implied_covariance(node, x, sites)
    n = len(covariance)
    quadratic = np.asarray(y)[:n] @ np.linalg.solve(covariance, np.asarray(y)[:n])
    expected = -0.5 * (quadratic + np.linalg.slogdet(covariance)[1] + n * np.log(2 * np.pi))
    found = jit(lambda *of: FEW.log_density(FEW.factor(node, x, sites), *of))(node, y, sites)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    root = np.asarray(drawn(FEW, node, x, sites, np.eye(N)))
    np.testing.assert_allclose((root.T @ root)[:n, :n], covariance, rtol=1e-9, atol=1e-12)
    assert np.all(root[:, n:] == 0.0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_predictions_from_all_rows_are_exact(kernel):
    node, x, y, sites = problem(kernel)
    at = jnp.array(np.random.default_rng(2).random((7, D)))
    normals = jnp.array(np.random.default_rng(3).standard_normal(7))

    @functools.partial(jit, static_argnums=0)
    def predictions(solver):
        ready, alpha = solver.condition(node, x, sites), solver.alpha(node, x, y, sites)
        return (
            solver.predict(node, ready, alpha, x, at),
            solver.predict(node, ready, jnp.stack([alpha, 2 * alpha]), x, at).mean,
            solver.mean(node, alpha, x, at, sites),
            solver.joint(node, ready, alpha, x, at),
            solver.draw_posterior(node, ready, alpha, x, at, normals),
            solver.alpha_of(ready, y) - alpha,
        )

    more = dataclasses.replace(EVERY, n_predict=N + len(at))
    both = (predictions(solver) for solver in (more, EXACT))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-9), *both)


def test_leave_one_out_from_all_rows_is_exact():
    node, x, y, sites = problem()
    ours, exact = (call(solver, "leave_one_out", node, x, y, sites) for solver in (EVERY, EXACT))
    used = np.asarray(sites.used)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(np.asarray(one)[used], np.asarray(other)[used], rtol=1e-9)


@pytest.mark.parametrize("n_uncertain", [0, 1, 2])
def test_linked_moments_from_all_rows_are_exact(n_uncertain):
    node, x, y, sites = problem("squared_exponential")
    rng = np.random.default_rng(4)
    mean, var = jnp.array(rng.random((3, D))), jnp.array(0.1 * rng.random((3, D)))
    at = Inputs(Gaussian(mean[:, :n_uncertain], var[:, :n_uncertain]), mean[:, n_uncertain:])

    @functools.partial(jit, static_argnums=0)
    def moments(solver):
        link = solver.link(node, x, y, sites)
        scheme = solver.schemes(node.kernel, n_uncertain)[-1]
        prepared = scheme.prepare(node, link, x, n_uncertain)
        return scheme.predict(node, link.alpha, prepared, x, at).moments

    ours, exact = map(moments, (EVERY, EXACT))
    np.testing.assert_allclose(ours.mean, exact.mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(ours.var, exact.var, rtol=1e-6)


@functools.partial(jit, static_argnums=0)
def predicted(solver, node, x, y, sites, at):
    ready, alpha = solver.condition(node, x, sites), solver.alpha(node, x, y, sites)
    return solver.predict(node, ready, alpha, x, at)


def test_a_prediction_is_that_of_the_exact_process_of_the_nearest_rows():
    node, x, y, sites = problem()
    at = jnp.array([[0.3, 0.8], [0.9, 0.1]])
    found = predicted(FEW, node, x, y, sites, at)
    apart = (np.asarray(x)[None] - np.asarray(at)[:, None]) * np.asarray(node.inverse_lengthscale)
    apart = np.where(np.asarray(sites.used), (apart**2).sum(axis=2), np.inf)
    for k, near in enumerate(np.argsort(apart, axis=1)[:, :6]):
        some = Sites(sites.counts[near], jnp.zeros(()))
        exact = predicted(EXACT, node, x[near], y[near], some, at[k : k + 1])
        np.testing.assert_allclose(found.mean[k], exact.mean[0], rtol=1e-9)
        np.testing.assert_allclose(found.var[k], exact.var[0], rtol=1e-9)


@pytest.mark.parametrize("slopes", [terms.slopes_of_each, terms.slopes_of_sums])
def test_slopes_of_terms_in_their_rows(slopes):
    """Against differences, where rows are missing too."""
    node, x, y, sites = problem(n_near=4)
    index = sites.groups.rows
    these = near_rows.gathered(node, index, x, near_rows.observed(node, sites), OWN)
    target = near_rows.at_rows(y, index)

    @jit
    def residuals(rows):
        white, variance = terms.residuals(dataclasses.replace(these, rows=rows), target)
        if slopes is terms.slopes_of_sums:
            return jnp.sum(white**2, axis=0), jnp.sum(jnp.log(variance), axis=0)
        return white * jnp.sqrt(variance), variance

    found = jit(lambda: slopes(these, terms.conditional(these, target)))()
    if slopes is terms.slopes_of_each:
        variance = residuals(these.rows)[1][None, None]
        found = found[0] * jnp.sqrt(variance), found[1] * variance
    for place in [(0, 0), (2, 1), (4, 0), (6, 1)]:
        step = jnp.zeros_like(these.rows).at[place].set(1e-6)
        up, down = residuals(these.rows + step), residuals(these.rows - step)
        for one, plus, minus in zip(found, up, down, strict=True):
            np.testing.assert_allclose(one[place], (plus - minus) / 2e-6, rtol=1e-5, atol=1e-7)


def test_padded_rows_change_nothing():
    node, x, y, sites = problem(n_near=4)
    garbage = x.at[-3:].set(99.0)
    slopes = [call(FEW, "derivatives", node, of, y, sites, True) for of in (x, garbage)]
    jax.tree.map(np.testing.assert_array_equal, *slopes)
    one, other = (call(FEW, "leave_one_out", node, of, y, sites) for of in (x, garbage))
    np.testing.assert_array_equal(one.mean[:-3], other.mean[:-3])


def test_many_terms_are_cut_into_chunks():
    """More than a chunk holds, and not a multiple of it."""
    n = terms.ON_CPU + 7
    values = jnp.arange(float(n))
    found = jit(lambda index: terms.in_chunks(lambda i, v: v[i] ** 2, index, values))(jnp.arange(n))
    np.testing.assert_array_equal(found, values**2)


def test_tables_are_needed():
    node, x, y, sites = problem()
    with pytest.raises(TypeError, match="no groups of rows are given"):
        FEW.fit(node, x, y, dataclasses.replace(sites, groups=None), True)
    assert linked.schemes(node.kernel, 1)
