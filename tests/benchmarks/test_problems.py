"""The benchmark problems against the reference values, finite differences and stored designs."""

import functools
import sys

import make_designs
import numpy as np
import problems
import pytest
from scipy import stats

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


greeks_of_unit = problems._greeks_of_unit


@functools.cache
def greeks_of(inputs):
    return greeks_of_unit(np.frombuffer(inputs).reshape(-1, 3))


@pytest.fixture
def greeks_once(monkeypatch):
    """The Greeks of a design, which Vega, Delta and Gamma share, are computed once."""
    monkeypatch.setattr(problems, "_greeks_of_unit", lambda X: greeks_of(X.tobytes()))


@functools.cache
def table_of(name):
    return make_designs.SOURCES[name].table()


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
def test_stored_outputs_are_those_of_the_functions(name, index, greeks_once):
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
@pytest.mark.parametrize("name", problems.PAPER)
def test_shapes_and_domain(name, index, greeks_once):
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


# --- the problems of other packages --------------------------------------------------------------

N_TRAIN = {
    **dict.fromkeys(problems.SIMULATORS, 100),
    **{"borehole": 80, "franke": 60, "cliff": 60, "robotarm": 150, "welch": 200, "airfoil": 200},
    **{"sobolg30": 300, "morris30": 300},
}
TABLES = ("thrust", "airfoil")  # random splits of tables of runs
LATIN_HYPERCUBES = tuple(name for name in problems.SIMULATORS if name not in TABLES)
each_stored_design = pytest.mark.parametrize("index", range(problems.N_STORED))


def stored_runs(name, index):
    """Training and test points of a design in one: inputs in [0, 1] and outputs."""
    design = problems.load_design(name, index)
    return np.vstack([design.X, design.X_test]), np.concatenate([design.y, design.y_test])


def scaled(X, *ranges):
    """The columns of X, each scaled from [0, 1] to its range."""
    return [low + (high - low) * x for x, (low, high) in zip(X.T, ranges, strict=True)]


@each_stored_design
@pytest.mark.parametrize("name", problems.SIMULATORS)
def test_simulator_designs_have_their_shapes_and_domain(name, index):
    design, d = problems.load_design(name, index), problems.PROBLEMS[name].n_inputs
    assert [part.shape for part in design] == [
        (N_TRAIN[name], d),
        (N_TRAIN[name],),
        (500, d),
        (500,),
    ]
    assert all(np.all(np.isfinite(part)) and part.dtype == np.float64 for part in design)
    inputs = stored_runs(name, index)[0]
    assert inputs.min() >= 0.0
    assert inputs.max() <= 1.0
    assert len(np.unique(inputs, axis=0)) == len(inputs)
    assert np.ptp(design.y) > 0.0


@pytest.mark.parametrize("name", problems.SIMULATORS)
def test_simulator_designs_differ(name):
    first, second, third = (stored_runs(name, index)[0] for index in range(problems.N_STORED))
    for one, other in [(first, second), (first, third), (second, third)]:
        assert not np.any(np.all(one[:50] == other[:50], axis=1))


@each_stored_design
@pytest.mark.parametrize("name", LATIN_HYPERCUBES)
def test_simulator_designs_are_latin_hypercubes(name, index):
    design = problems.load_design(name, index)
    for X in (design.X, design.X_test):
        place_in_slice = len(X) * np.sort(X, axis=0) - np.arange(len(X))[:, None]
        # the stored inputs are rounded to single precision, perhaps across an edge
        assert place_in_slice.min() > -1e-4
        assert place_in_slice.max() < 1 + 1e-4


@pytest.mark.parametrize("name", problems.SIMULATORS)
def test_simulators_have_two_fresh_designs_or_none(name):
    few = problems.PROBLEMS[name].n_inputs <= make_designs.MOST_INPUTS
    first = stored_runs(name, 0)[0]
    for index in problems.FRESH if few else ():
        inputs, outputs = stored_runs(name, index)
        assert inputs.shape == (N_TRAIN[name] + 500, problems.PROBLEMS[name].n_inputs)
        assert np.all(np.isfinite(outputs))
        assert np.mean(np.all(inputs == first, axis=1)) < 0.05  # a table has few rows
    beyond = problems.FRESH[-1] + 1 if few else problems.FRESH[0]
    with pytest.raises(ValueError, match=f"{name} has no stored design {beyond}.*simulator"):
        problems.load_design(name, beyond)


def test_a_large_design_is_fresh_at_every_index():
    first, other = (problems.load_design("fived500", index) for index in (0, 3))
    assert first.X.shape == (500, 5) and first.X_test.shape == (500, 5)
    np.testing.assert_array_equal(first.y, problems.fived(first.X))
    assert not np.any(first.X == other.X)


def test_every_simulator_problem_has_a_source():
    assert tuple(make_designs.SOURCES) == problems.SIMULATORS
    assert {name: source.n_train for name, source in make_designs.SOURCES.items()} == N_TRAIN


@each_stored_design
def test_borehole_by_hand(index):
    """Harper and Gupta's formula; radius and radius of influence over the central 99 %."""
    X, y = stored_runs("borehole", index)
    radius = stats.norm(0.1, 0.0161812).ppf([0.005, 0.995])
    influence = np.exp(stats.norm(7.71, 1.0056).ppf([0.005, 0.995]))
    upper, lower = [(63070, 115600), (990, 1100)], [(63.1, 116), (700, 820)]
    length, conductivity = (1120, 1680), (9985, 12045)
    rw, r, Tu, Hu, Tl, Hl, L, Kw = scaled(
        X, radius, influence, *upper, *lower, length, conductivity
    )
    log_ratio = np.log(r / rw)
    resistance = log_ratio * (1 + 2 * L * Tu / (log_ratio * rw**2 * Kw) + Tu / Tl)
    np.testing.assert_allclose(y, 2 * np.pi * Tu * (Hu - Hl) / resistance, rtol=1e-9)


@each_stored_design
def test_ishigami_by_hand(index):
    X, y = stored_runs("ishigami", index)
    a, b, c = np.pi * (2 * X.T - 1)
    expected = np.sin(a) + 7 * np.sin(b) ** 2 + 0.1 * c**4 * np.sin(a)
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-12)


@each_stored_design
@pytest.mark.parametrize(
    ("name", "importance"), [("sobolg", np.arange(5) / 2), ("sobolg30", np.r_[0, 0, 3, [9] * 27])]
)
def test_sobol_g_by_hand(name, importance, index):
    X, y = stored_runs(name, index)
    factors = (np.abs(4 * X - 2) + importance) / (1 + importance)
    np.testing.assert_allclose(y, np.prod(factors, axis=1), rtol=1e-9)


@each_stored_design
def test_robot_arm_by_hand(index):
    """The distance of the hand from the shoulder, as a sum of complex numbers."""
    X, y = stored_runs("robotarm", index)
    angles = np.cumsum(2 * np.pi * X[:, 4:], axis=1)
    np.testing.assert_allclose(y, np.abs(np.sum(X[:, :4] * np.exp(1j * angles), axis=1)), rtol=1e-9)


@each_stored_design
def test_barrier_prices_are_expectations_over_the_surviving_paths(index):
    """The payoff integrated against the density of a Brownian motion killed at the barrier."""
    X, y = stored_runs("barrier", index)
    spot, level, volatility, years, rate = scaled(
        X, (70, 140), (110, 160), (0.1, 0.4), (0.1, 1.5), (0, 0.08)
    )
    nodes, weights = np.polynomial.legendre.leggauss(200)
    low, top = np.log(100 / spot), np.log(level / spot)  # of the log return, strike and barrier
    returns = ((top + low) / 2 + np.outer(nodes, top - low) / 2).T
    drift, spread = rate - volatility**2 / 2, volatility * np.sqrt(years)
    around = [
        stats.norm.pdf(returns, (centre + drift * years)[:, None], spread[:, None])
        for centre in (0 * top, 2 * top)
    ]
    density = around[0] - np.exp(2 * drift * top / volatility**2)[:, None] * around[1]
    payoff = spot[:, None] * np.exp(returns) - 100
    value = (payoff * density) @ weights * (top - low) / 2 * np.exp(-rate * years)
    np.testing.assert_allclose(y, np.where(spot < level, value, 0.0), rtol=1e-7, atol=1e-9)
    assert 0.1 < np.mean(y == 0.0) < 0.2


@each_stored_design
def test_american_puts_are_worth_at_least_exercise_now_or_at_maturity(index):
    X, y = stored_runs("american", index)
    spot, volatility, years, rate, dividend = scaled(
        X, (60, 140), (0.1, 0.5), (0.1, 2), (0.01, 0.1), (0, 0.06)
    )
    spread = volatility * np.sqrt(years)
    d1 = (np.log(spot / 100) + (rate - dividend) * years) / spread + spread / 2
    strike, share = 100 * np.exp(-rate * years), spot * np.exp(-dividend * years)
    european = strike * stats.norm.cdf(spread - d1) - share * stats.norm.cdf(-d1)
    floor = np.maximum(european, 100 - spot)
    assert np.all(y >= floor - 1e-3)
    # the right to exercise early is worth at most the interest on the strike
    assert np.all(y <= floor + 100 - strike + 1e-3)


@each_stored_design
def test_hot_mixtures_ignite_and_some_cold_ones_do_not(index):
    X, y = stored_runs("ignition", index)
    unburnt = y == np.log10(make_designs.LONGEST_DELAY)
    assert y.max() == np.log10(make_designs.LONGEST_DELAY)
    assert 0.05 < unburnt.mean() < 0.15
    assert X[unburnt, 0].max() < 0.25
    assert np.all(y[X[:, 0] > 0.9] < -1.0)


@each_stored_design
def test_lean_flames_make_the_nitric_oxide(index):
    X, y = stored_runs("nitricoxide", index)
    ratio = 0.4 + 1.4 * X[:, 0]
    assert 0.7 < ratio[y.argmax()] < 0.9
    assert y[ratio > 1.6].max() < 1e-4


@each_stored_design
def test_a_meter_with_few_marks_rounds(index):
    _, y = stored_runs("rounded", index)
    assert np.all(y % 2.0 == 0.0) and len(np.unique(y)) > 20


def test_a_loose_solver_has_errors_that_jump():
    """Where the number of its steps changes; a smooth curve has small third differences."""
    X = np.full((400, 6), 0.5)
    X[:, 0] = np.linspace(0.0, 1.0, 400)
    bends = np.abs(np.diff(make_designs.lotka()(X), 3))
    assert bends.max() > 50 * np.median(bends)


@each_stored_design
@pytest.mark.parametrize("name", problems.SIMULATORS)
def test_stored_runs_can_be_repeated(name, index):
    source = make_designs.SOURCES[name]
    pytest.importorskip(source.package)
    if source.table is not None:
        pytest.skip("a table of runs, tested below")
    X, y = stored_runs(name, index)
    np.testing.assert_allclose(source.function()(X[:3]), y[:3], rtol=1e-5, atol=1e-10)


@each_stored_design
@pytest.mark.parametrize("name", TABLES)
def test_stored_splits_are_rows_of_the_tables(name, index):
    pytest.importorskip("smt")
    inputs, outputs = table_of(name)
    table = dict(zip(map(tuple, np.round(inputs, 9)), outputs, strict=True))
    X, y = stored_runs(name, index)
    assert [table[tuple(x)] for x in np.round(X, 9)] == list(y)


@pytest.fixture
def two_sources(monkeypatch, tmp_path):
    """A collection of two problems that need nothing, and an empty place for its file."""
    sums = make_designs.Source("numpy", 7, lambda: lambda X: X.sum(axis=1))
    monkeypatch.setattr(make_designs, "SOURCES", {"franke": sums, "cliff": sums})
    monkeypatch.setattr(make_designs, "FILE", tmp_path / "designs.npz")
    return make_designs.FILE


def test_a_call_for_one_problem_keeps_the_other(two_sources, monkeypatch):
    make_designs.main([])
    before = dict(np.load(two_sources))
    zeros = make_designs.Source("numpy", 7, lambda: lambda X: 0 * X[:, 0])
    monkeypatch.setitem(make_designs.SOURCES, "franke", zeros)
    make_designs.main(["--problems", "franke"])
    after = dict(np.load(two_sources))
    assert after.keys() == before.keys()
    assert len(after) == 2 * problems.N_STORED * 4
    changed = {key for key in after if not np.array_equal(before[key], after[key])}
    assert changed == {f"franke_{index}_{part}" for index in range(3) for part in "yw"}


def test_fresh_designs_go_to_a_file_of_their_own(two_sources, monkeypatch, tmp_path):
    monkeypatch.setattr(make_designs, "FRESH_FILE", tmp_path / "fresh.npz")
    make_designs.main(["--fresh"])
    assert not two_sources.exists()
    names = {key.rsplit("_", 1)[0] for key in np.load(tmp_path / "fresh.npz").files}
    assert names == {f"{name}_{index}" for name in ("franke", "cliff") for index in range(3, 8)}


def test_missing_simulators_are_listed_before_any_work(two_sources, monkeypatch):
    absent = make_designs.Source("no_such_simulator", 7)
    monkeypatch.setitem(make_designs.SOURCES, "cliff", absent)
    with pytest.raises(SystemExit, match="not installed: no_such_simulator for cliff"):
        make_designs.main([])
    assert not two_sources.exists()
