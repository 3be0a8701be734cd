"""The traceable prediction against the host's, and its derivatives against finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import quick_jit as jit

from deepemu import DGP, GP, Layer
from deepemu.core.differentiation import differentiable
from deepemu.core.kernels.exponential import exp_negative
from deepemu.core.moments import moments

STEP = 2e-5
LOW, SPAN = np.array([-2.0, 10.0]), np.array([4.0, 0.5])
X = np.random.default_rng(1).random((12, 2))


def layers(kernel, depth, connect_input):
    """In two layers the second output does not read the second hidden column."""
    hidden = [Layer(2, kernel, connect_input=connect_input) for _ in range(depth - 1)]
    inputs = [2, 3] if connect_input else []
    reads = [[0, 1, *inputs], [0, *inputs[1:]]] if depth == 2 else None
    last = Layer(kernel=kernel, connect_input=connect_input, nugget=1e-3, reads=reads)
    return [*hidden, last]


CASES = {
    "one layer, matern52": layers("matern52", 1, True),
    "one layer, squared exponential": layers("squared_exponential", 1, True),
    "two layers, connected": layers("matern52", 2, True),
    "two layers": layers("squared_exponential", 2, False),
    "three layers, connected": layers("squared_exponential", 3, True),
    "three layers": layers("matern52", 3, False),
}
SLOW = "three layers"  # of Matern kernels: a minute to compile
PARAMS = [
    pytest.param(case, id=name, marks=[pytest.mark.slow] if name == SLOW else [])
    for name, case in CASES.items()
]


@pytest.fixture(scope="module", params=PARAMS)
def emulator(request):
    """Of two inputs and outputs in odd units, with noise that no round-off comes near."""
    rng = np.random.default_rng(2)
    y = np.stack([np.sin(5 * X[:, 0]) + X[:, 1], 40.0 + 7.0 * X[:, 0] * X[:, 1]], axis=1)
    return DGP(layers=request.param, n_chains=1, n_iter=4, n_imputations=2, stacking=False).fit(
        LOW + SPAN * X, y + 0.01 * rng.normal(size=y.shape)
    )


@pytest.fixture(scope="module")
def at():
    """Rows between and beside the runs, one near a run and one far from all."""
    between = np.random.default_rng(3).uniform(-0.2, 1.2, (2, 2))
    return LOW + SPAN * np.vstack([between, X[:1] + 1e-3, [[1.8, -0.6]]])


@pytest.fixture(scope="module")
def by_host(emulator, at):
    """Moments (m, q) at the rows, and their slopes (m, q, d) by central differences."""
    steps = STEP * SPAN * np.eye(2)[:, None]
    rows = np.concatenate([at[None], at + steps, at - steps])
    mean, std = emulator.predict(rows.reshape(-1, 2), return_std=True)
    each = [of.reshape(5, 4, 2) for of in (mean, std**2)]
    slopes = [(of[1:3] - of[3:]) / (2 * STEP * SPAN[:, None, None]) for of in each]
    return [of[0] for of in each], [np.moveaxis(of, 0, -1) for of in slopes]


def assert_equal_moments(found, expected, depth):
    """To 1e-9 of the standard deviation, and of the variance; of three layers to 1e-7.

    A variance is a sum over pairs whose terms are as large as σ²/η; its round-off is that of an
    input of the next layer.
    """
    mean, var = expected
    assert np.all(np.abs(found.mean - mean) < 1e-9 * np.sqrt(var))
    np.testing.assert_allclose(found.var, var, rtol=1e-7 if depth == 3 else 1e-9)


def test_moments_are_those_of_the_host(emulator, at, by_host):
    found = jit(moments)(emulator.posterior_.ensemble, at)
    assert_equal_moments(found, by_host[0], len(emulator.layers))


def test_gradient_of_the_emulator_is_in_user_units(emulator, at, by_host):
    """Standard deviations are squared before they are differenced.

    A column that a node does not read has variance zero in lengthscales, at which a square root has
    no slope. A difference quotient is known to about STEP² of the third derivative, and to the
    round-off of the moments over STEP, which is larger for three layers.
    """
    for found, values, slopes in zip(emulator.gradient(at), *by_host, strict=True):
        assert found.shape == (4, 2, 2)
        if len(emulator.layers) == 3:
            size = np.abs(slopes * SPAN).max() + values.max()
        else:
            size = np.ptp(values, axis=0)[:, None]  # of each output, whatever its offset
        np.testing.assert_allclose(found * SPAN / size, slopes * SPAN / size, rtol=1e-5, atol=1e-6)


# Both modes take the rule of `moments` itself; through Matern layers they take minutes to compile.
BOTH_MODES = [case for case in CASES if "squared" in case or case == "two layers"]


@jit
def row_by_row(fitted, x):
    """Jacobians by the reverse mode, with the moments at each row."""
    twice = lambda row: (found := moments(fitted, row), found)  # noqa: E731
    return jax.vmap(jax.jacrev(twice, has_aux=True))(x)


@pytest.mark.parametrize(
    "emulator", [CASES[case] for case in BOTH_MODES], ids=BOTH_MODES, indirect=True, scope="module"
)
def test_both_modes_have_the_same_slopes(emulator, at, by_host):
    """The reverse one mapped over rows, the forward one as the emulator's gradient takes it."""
    reverse, values = row_by_row(emulator.posterior_.ensemble, at)
    assert_equal_moments(values, by_host[0], len(emulator.layers))
    each = (reverse.mean, np.sqrt(values.var)), (reverse.var, values.var)
    for one, (two, size), slope in zip(emulator.gradient(at), each, by_host[1], strict=True):
        scale = (np.abs(slope).max() * SPAN).max() + size.max()
        other = np.asarray(two) * SPAN
        np.testing.assert_allclose(one * SPAN, other, rtol=1e-9, atol=1e-12 * scale)


def test_the_exponential_has_derivatives_or_says_that_it_has_none():
    """In a loop too, where JAX drops a custom rule: a shuffle of bits has a derivative of zero."""
    at = np.array([-3.0, 0.0, 1e-9, 0.7, 30.0, 700.0])
    in_a_loop = lambda e: jax.lax.map(lambda s: exp_negative(s * e), jnp.ones(1))[0]  # noqa: E731
    with differentiable():
        first = jax.vmap(jax.grad(in_a_loop))(at)
        second = [jax.vmap(outer(jax.grad(in_a_loop)))(at) for outer in (jax.grad, jax.jacfwd)]
    np.testing.assert_allclose(first, -np.exp(-at), rtol=1e-14)
    np.testing.assert_allclose(second, [np.exp(-at)] * 2, rtol=1e-14)
    for function in (exp_negative, in_a_loop):
        with pytest.raises(TypeError, match="no derivative"):
            jax.grad(function)(0.7)


@pytest.mark.parametrize("kernel", ["matern52", "squared_exponential"])
def test_second_derivatives_of_the_mean(kernel):
    """Hessians against differences of gradients, in both modes."""
    x = np.random.default_rng(0).random((16, 2))
    emulator = GP(kernel, nugget=1e-6).fit(x, np.sin(5 * x[:, 0]) * x[:, 1])
    ensemble, at, step = emulator.posterior_.ensemble, np.array([0.4, 0.7]), 1e-5
    mean = lambda row: moments(ensemble, row).mean[0]  # noqa: E731
    with jax.enable_x64(True):
        found = [jit(outer(jax.grad(mean)))(at) for outer in (jax.jacfwd, jax.jacrev)]
    ends = (emulator.gradient(at + sign * step * np.eye(2))[0] for sign in (1.0, -1.0))
    expected = (next(ends) - next(ends)) / (2 * step)
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-4)


def test_inputs_of_another_shape_are_refused(gp):
    with jax.enable_x64(True), pytest.raises(ValueError, match=r"must be \(2,\) or \(m, 2\)"):
        moments(gp.posterior_.ensemble, [1.0, 2.0, 3.0])


def test_single_precision_is_refused(gp):
    ensemble = gp.posterior_.ensemble
    with jax.enable_x64(False), pytest.raises(TypeError, match="double precision"):
        moments(ensemble, np.zeros((1, 2)))
