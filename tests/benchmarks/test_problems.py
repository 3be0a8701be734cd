"""The benchmark problems against the reference values, finite differences and stored designs."""

import sys

import numpy as np
import problems
import pytest

# Prices are differences of terms up to S = 200, known to about 200 * 1e-14; reference values
# below 1e-9 are therefore mostly rounding error, and the tolerance stops shrinking with them.
# The stored Deltas carry a constant offset of 6e-12 as well.
SMALLEST_VALUE = 1e-9
ROUNDING = 1e-11


def assert_agree(actual, reference):
    """Relative error below 1e-6 where the reference means something, else an absolute floor."""
    small = np.abs(reference) < SMALLEST_VALUE
    np.testing.assert_allclose(actual[~small], reference[~small], rtol=1e-6, atol=ROUNDING)
    np.testing.assert_allclose(actual[small], reference[small], atol=ROUNDING)


@pytest.fixture(scope="module")
def reference():
    return np.genfromtxt(problems.DATA / "heston_greeks.csv", delimiter=",", names=True)


@pytest.fixture(scope="module")
def options(reference):
    return reference["S"], reference["K"], reference["tau"]


@pytest.fixture(scope="module")
def greeks(options):
    return problems.heston_greeks(*options)


@pytest.mark.parametrize(
    ("name", "column"),
    [("price", "price"), ("vega", "vega_v0"), ("delta", "delta"), ("gamma", "gamma")],
)
def test_greeks_agree_with_the_reference(greeks, reference, name, column):
    assert_agree(getattr(greeks, name), reference[column])


def test_delta_and_gamma_are_derivatives_in_the_spot(greeks, options):
    S, K, tau = options
    h = 1e-3 * S
    up, down = (problems.heston_greeks(S + s * h, K, tau).price for s in (1, -1))
    np.testing.assert_allclose(greeks.delta, (up - down) / (2 * h), atol=2e-5)
    np.testing.assert_allclose(
        greeks.gamma, (up - 2 * greeks.price + down) / h**2, rtol=1e-3, atol=1e-7
    )


def test_vega_is_the_derivative_in_the_initial_variance(greeks, options):
    h = 1e-4
    up, down = (
        problems.heston_greeks(*options, problems.Heston(v0=0.04 + s * h)).price for s in (1, -1)
    )
    np.testing.assert_allclose(greeks.vega, (up - down) / (2 * h), rtol=1e-4, atol=1e-6)


def test_almost_constant_variance_gives_black_scholes():
    """With a tiny volatility of variance started at its mean the price is Black and Scholes's."""
    from scipy.special import ndtr

    S, K, tau = np.array([90.0, 100.0, 120.0]), np.full(3, 100.0), np.array([0.5, 1.0, 2.0])
    model = problems.Heston(v0=0.09, theta=0.09, kappa=1.0, sigma=1e-3, rho=0.0)
    spread = 0.3 * np.sqrt(tau)
    d1 = (np.log(S / K) + (model.r - model.q) * tau) / spread + spread / 2
    spot, strike = S * np.exp(-model.q * tau), K * np.exp(-model.r * tau)
    expected = spot * ndtr(d1) - strike * ndtr(d1 - spread)
    actual = problems.heston_greeks(S, K, tau, model)
    np.testing.assert_allclose(actual.price, expected, rtol=1e-5)
    np.testing.assert_allclose(actual.delta, np.exp(-model.q * tau) * ndtr(d1), rtol=1e-5)


def test_blocks_of_rows_do_not_show(options):
    many = problems.heston_greeks(*(np.tile(column, 3) for column in options))
    alone = problems.heston_greeks(*(column[:1] for column in options))
    for name in many._fields:
        np.testing.assert_allclose(getattr(many, name)[[0, 60, 120]], getattr(alone, name)[0])


def test_step_jumps_at_one_half():
    np.testing.assert_array_equal(
        problems.step(np.array([[0.0], [0.4999], [0.5], [1.0]])), [-1, -1, 1, 1]
    )


def test_fived_by_hand():
    X = np.array([[1.0, 1.0, 1.0, 1.0, 1.0], [0.2, 1.0, 1.0, 1.0, 1.0]])
    expected = [np.exp(1 + 1 / 4 + 1 / 9 + 1 / 16 + 1 / 25), 0.0]
    np.testing.assert_allclose(problems.fived(X), expected)


@pytest.mark.parametrize("index", range(problems.N_STORED))
@pytest.mark.parametrize("name", ["step", "fived", "vega", "delta", "gamma"])
def test_stored_outputs_are_those_of_the_functions(name, index):
    design, function = problems.load_design(name, index), problems.PROBLEMS[name].function
    assert_agree(function(design.X), design.y)
    assert_agree(function(design.X_test), design.y_test)


@pytest.mark.parametrize("index", range(problems.N_STORED))
def test_stored_engine_runs_are_rows_of_the_table(index):
    pytest.importorskip("smt")
    inputs, outputs = problems.engine_table()
    table = dict(zip(map(tuple, np.round(inputs, 9)), outputs, strict=True))
    design = problems.load_design("engine", index)
    assert [table[tuple(x)] for x in np.round(design.X, 9)] == list(design.y)


@pytest.mark.parametrize("index", [0, problems.N_STORED])
@pytest.mark.parametrize("name", problems.PROBLEMS)
def test_shapes_and_domain(name, index):
    if name == "engine" and index >= problems.N_STORED:
        pytest.importorskip("smt")
    n, m = (10, 200) if name == "step" else (100, 500)
    design, d = problems.load_design(name, index), problems.PROBLEMS[name].n_inputs
    assert [part.shape for part in design] == [(n, d), (n,), (m, d), (m,)]
    for X in (design.X, design.X_test):
        assert X.min() >= 0.0
        assert X.max() <= 1.0


@pytest.mark.parametrize("name", ["fived", "vega"])
def test_fresh_designs_are_latin_hypercubes_fixed_by_the_index(name):
    first, again, other = (problems.load_design(name, index) for index in (7, 7, 8))
    for part, same, different in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(part, same)
        assert not np.array_equal(part, different)
    for X in (first.X, first.X_test):
        slices = np.sort(np.floor(X * len(X)), axis=0)
        np.testing.assert_array_equal(slices, np.tile(np.arange(len(X))[:, None], X.shape[1]))


def test_fresh_engine_split_is_disjoint_and_fixed_by_the_index():
    pytest.importorskip("smt")
    first, again = problems.load_design("engine", 5), problems.load_design("engine", 5)
    np.testing.assert_array_equal(first.X, again.X)
    assert not {tuple(x) for x in first.X} & {tuple(x) for x in first.X_test}


def test_engine_without_smt_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "smt.examples.b777_engine.b777_engine", None)
    with pytest.raises(ImportError, match="pip install smt"):
        problems.load_design("engine", problems.N_STORED)


def test_unknown_problems_and_negative_indices_are_refused():
    with pytest.raises(ValueError, match="unknown problem"):
        problems.load_design("rho", 0)
    with pytest.raises(ValueError, match="0 or more"):
        problems.load_design("vega", -1)
