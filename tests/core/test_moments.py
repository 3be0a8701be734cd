"""The traceable prediction against the host's, and its derivatives against finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from core.builders import data_of, network_of, params_of
from oracles import Process

from deepemu import DGP
from deepemu.core import ensemble
from deepemu.core.ensemble import Ensemble, Imputed
from deepemu.core.kernels.exponential import exp_negative
from deepemu.core.model.observation import Units
from deepemu.core.moments import gradients, moments

quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
STEP = 1e-4
LOW, SPAN = np.array([-2.0, 10.0]), np.array([4.0, 0.5])
CASES = {
    "one layer, matern52": ("matern52", 1, True),
    "one layer, squared exponential": ("squared_exponential", 1, True),
    "two layers, connected": ("matern52", 2, True),
    "two layers": ("squared_exponential", 2, False),
    "three layers, connected": ("squared_exponential", 3, True),
    "three layers": ("matern52", 3, False),
}


SLOW = "three layers"  # of Matern kernels: a minute to compile
PARAMS = [
    pytest.param(case, id=name, marks=[pytest.mark.slow] if name == SLOW else [])
    for name, case in CASES.items()
]


@pytest.fixture(scope="module", params=PARAMS)
def emulator(request):
    """Of two inputs and outputs in odd units, with noise that no round-off comes near."""
    kernel, depth, connect_input = request.param
    rng = np.random.default_rng(1)
    x = rng.random((12, 2))
    y = np.stack([np.sin(5 * x[:, 0]) + x[:, 1], 40.0 + 7.0 * x[:, 0] * x[:, 1]], axis=1)
    return DGP(
        depth=depth, kernel=kernel, connect_input=connect_input, nugget=1e-4,
        n_chains=1, n_iter=4, n_imputations=2, stacking=False,
    ).fit(LOW + SPAN * x, y + 0.01 * rng.normal(size=y.shape))  # fmt: skip


@pytest.fixture(scope="module")
def at():
    """Rows between and beside the runs."""
    return LOW + SPAN * np.random.default_rng(2).uniform(-0.2, 1.2, (4, 2))


@pytest.fixture(scope="module")
def by_host(emulator, at):
    """Moments (m, q) at the rows, and their slopes (m, q, d) by central differences."""
    steps = STEP * SPAN * np.eye(2)[:, None]
    rows = np.concatenate([at[None], at + steps, at - steps])
    found = emulator.posterior_.moments(rows.reshape(-1, 2))
    each = [np.asarray(of).reshape(5, 4, 2) for of in (found.mean, found.var)]
    slopes = [(of[1:3] - of[3:]) / (2 * STEP * SPAN[:, None, None]) for of in each]
    return [of[0] for of in each], [np.moveaxis(of, 0, -1) for of in slopes]


@quick
def row_by_row(fitted, x):
    """Moments at each row, with their Jacobians by both modes."""

    def one(row):
        of_row = functools.partial(moments, fitted)
        return of_row(row), jax.jacfwd(of_row)(row), jax.jacrev(of_row)(row)

    return jax.vmap(one)(x)


def assert_equal_moments(found, expected, depth):
    """To 1e-9 of the standard deviation, and of the variance; of three layers to 1e-7.

    A variance is a sum over pairs whose terms are as large as σ²/η; its round-off is that of an
    input of the next layer.
    """
    mean, var = expected
    assert np.all(np.abs(found.mean - mean) < 1e-9 * np.sqrt(var))
    np.testing.assert_allclose(found.var, var, rtol=1e-7 if depth == 3 else 1e-9)


def test_moments_are_those_of_the_host(emulator, at, by_host):
    found = quick(moments)(emulator.posterior_.ensemble, at)
    assert_equal_moments(found, by_host[0], emulator.depth)


# Both modes take the rule of `moments` itself; through Matern layers they take minutes to compile.
BOTH_MODES = [case for case in CASES if "squared" in case or case == "two layers"]


@pytest.mark.parametrize(
    "emulator", [CASES[case] for case in BOTH_MODES], ids=BOTH_MODES, indirect=True, scope="module"
)
def test_slopes_by_both_modes_are_those_of_the_host(emulator, at, by_host):
    """Mapped over rows."""
    (mean, var), slopes = by_host
    values, forward, reverse = row_by_row(emulator.posterior_.ensemble, at)
    assert_equal_moments(values, (mean, var), emulator.depth)
    # A difference quotient is known to about STEP² of the third derivative, and to the round-off
    # of the moments over STEP.
    sizes = np.sqrt(var), var
    for name, slope, size in zip(("mean", "var"), slopes, sizes, strict=True):
        one, two = np.asarray(getattr(forward, name)), np.asarray(getattr(reverse, name))
        scale = (np.abs(slope).max() * SPAN).max() + size.max()
        np.testing.assert_allclose(one * SPAN, two * SPAN, rtol=1e-9, atol=1e-12 * scale)
        np.testing.assert_allclose(one * SPAN, slope * SPAN, rtol=1e-5, atol=1e-6 * scale)


def test_gradient_of_the_emulator_is_in_user_units(emulator, at):
    """Here `predict` is differenced; standard deviations are squared first."""
    steps = STEP * SPAN * np.eye(2)[:, None]
    mean, std = emulator.predict(np.concatenate([at + steps, at - steps]).reshape(-1, 2), True)
    for found, values in zip(emulator.gradient(at), (mean, std**2), strict=True):
        up, down = values.reshape(2, 2, 4, 2)
        slopes = np.moveaxis((up - down) / (2 * STEP * SPAN[:, None, None]), 0, -1)
        assert found.shape == (4, 2, 2)
        scale = np.abs(slopes * SPAN).max() + values.max()
        np.testing.assert_allclose(found * SPAN, slopes * SPAN, rtol=1e-5, atol=1e-6 * scale)


# --- networks that no estimator makes by default ------------------------------------------------


def ensemble_of(model, x, y, latents):
    """One imputed network, in core units."""
    net, params, data = network_of(model, x.shape[1]), params_of(model), data_of(x, y)
    member = ensemble.build_member(net, params, tuple(map(jnp.asarray, latents)), data)
    found = params, ensemble.conditioned(net, params, data), member
    imputed = Imputed(net, data, *jax.tree.map(lambda of: jnp.asarray(of)[None, None], found))
    one, none = jnp.ones(y.shape[1]), jnp.zeros(x.shape[1])
    units = Units(0.0 * one, one)
    return Ensemble((imputed,), (jnp.ones(1),), none, jnp.ones(x.shape[1]), units, one)


@pytest.mark.parametrize("kernel", ["matern52", "squared_exponential"])
def test_slopes_where_a_node_does_not_read_a_hidden_column(rng, kernel):
    """Such a column has variance zero in lengthscales, at which a square root has no slope.

    At a row near the runs, where hidden nodes are nearly known, and at one far from them.
    """
    x = rng.random((9, 2))
    w = np.stack([x[:, 0] + x[:, 1], np.sin(2 * x[:, 1])], axis=1)
    model = [
        [Process(kernel, np.array([1.5, 2.0]), 1.0, 1e-6)] * 2,
        [Process(kernel, np.array([2.0, np.inf, np.inf, 1.0]), 1.3, 1e-3)],
    ]
    fitted = jax.jit(lambda: ensemble_of(model, x, np.cos(w[:, :1]) + x[:, 1:], [w]))()
    at = jnp.array([x[0] + 1e-3, [1.8, -0.6]])
    slopes = jax.tree.leaves(quick(gradients)(fitted, at))
    compiled = quick(moments)

    def both(step):
        found = compiled(fitted, at + step[None])
        return np.stack([found.mean, found.var])

    numeric = np.moveaxis(oracles.central_difference(both, np.zeros(2)), 0, -1)
    for of, value, expected in zip(slopes, both(np.zeros(2)), numeric, strict=True):
        size = np.abs(value).max()
        np.testing.assert_allclose(of, expected, rtol=1e-5, atol=1e-6 * size)


def test_the_exponential_has_its_derivatives():
    """JAX takes the derivative of a shuffle of bits for zero."""
    at = np.array([-3.0, 0.0, 1e-9, 0.7, 30.0, 700.0, 1e3])
    first, second = jax.jit(
        lambda at: (
            jax.vmap(jax.grad(exp_negative))(at),
            jax.vmap(jax.jacfwd(jax.grad(exp_negative)))(at),
        )
    )(at)
    expected = np.where(at < 708, np.exp(-at), 0.0)
    np.testing.assert_allclose(first, -expected, rtol=1e-15)
    np.testing.assert_allclose(second, expected, rtol=1e-15)
