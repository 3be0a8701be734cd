"""Draw the stored designs of the problems that come from published simulators.

    python benchmarks/make_designs.py
    python benchmarks/make_designs.py --problems ignition barrier
    python benchmarks/make_designs.py --fresh

The first call makes ``data/more_designs.npz`` anew; the second one replaces two problems in it and
keeps the rest; the third makes designs 3 to 7 of simulators with up to ten inputs, in
``data/fresh_designs.npz``. Every design has a seed of its own, made of its problem and index, so
that neither the order nor the choice of problems matters.

Needs uqtestfuns, smt, cantera and QuantLib, each for its own problems only. The stored file was
made with uqtestfuns 0.7.0, smt 2.15.0, cantera 3.2.0 and QuantLib 1.44.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from problems import (
    DATA,
    FRESH,
    N_STORED,
    N_TEST,
    N_TRAIN,
    PROBLEMS,
    Design,
    engine_table,
    latin_hypercube,
    random_split,
)

FILE, FRESH_FILE = DATA / "more_designs.npz", DATA / "fresh_designs.npz"
MOST_INPUTS = 10
Function = Callable[[np.ndarray], np.ndarray]


def rowwise(simulate: Callable[..., float]) -> Function:
    """The function of (n, d) arrays that runs a simulator of d numbers on every row."""
    return lambda inputs: np.array([simulate(*map(float, row)) for row in inputs])


def on_unit_cube(function: Function, lower: Any, upper: Any) -> Function:
    """The function of inputs that are scaled from the box to [0, 1]^d."""
    low, width = np.asarray(lower), np.subtract(upper, lower)
    return lambda X: function(low + width * X)


# --- uqtestfuns: analytical functions and small models of the literature -------------------------


def marginal_range(marginal: Any) -> tuple[float, float]:
    """The range of a uniform marginal, and the central 99 % of any other."""
    if marginal.distribution == "uniform":
        return marginal.lower, marginal.upper
    low, high = np.ravel(marginal.icdf(np.array([0.005, 0.995])))
    return float(low), float(high)


def literature_function(name: str, **options: Any) -> Callable[[], Function]:
    """What builds the function ``name`` of uqtestfuns, on the unit cube."""

    def build() -> Function:
        import uqtestfuns

        function = uqtestfuns.create(name, **options)
        ranges = [marginal_range(marginal) for marginal in function.prob_input.marginals]
        return on_unit_cube(function, *zip(*ranges, strict=True))

    return build


# --- smt: tables of runs of larger simulators ----------------------------------------------------


def thrust_table() -> tuple[np.ndarray, np.ndarray]:
    """The 1056 runs of the B777 engine model, with the thrust as output."""
    return engine_table(output=0)


def airfoil_table() -> tuple[np.ndarray, np.ndarray]:
    """The 42039 drag coefficients of airfoils that smt has from Bouhlel, He and Martins (2019).

    RANS flow at 14 shape modes, a Mach number of 0.3-0.6 and an angle of attack.
    """
    from smt.examples.airfoil_parameters.learning_airfoil_parameters import load_cd_training_data

    inputs, drag = (np.asarray(part, dtype=float) for part in load_cd_training_data()[:2])
    low, high = inputs.min(axis=0), inputs.max(axis=0)
    return (inputs - low) / (high - low), drag


# --- cantera: combustion -------------------------------------------------------------------------

LONGEST_DELAY = 10.0  # seconds; a mixture that has not ignited by then counts as this
IGNITION_RISE = 200.0  # kelvin; every mixture of the box that ignites rises further


def ignition_delay(gas: Any) -> float:
    """Seconds until the gas, in a closed adiabatic vessel, is hotter by ``IGNITION_RISE``."""
    import cantera

    reactor = cantera.IdealGasReactor(gas, clone=False)
    network = cantera.ReactorNet([reactor])
    network.rtol, network.atol = 1e-9, 1e-18
    target, before = reactor.T + IGNITION_RISE, (0.0, reactor.T)
    while before[0] < LONGEST_DELAY:
        now = network.step(), reactor.T
        if now[1] >= target:  # the steps are the solver's: interpolate between the last two
            share = (target - before[1]) / (now[1] - before[1])
            return min(before[0] + share * (now[0] - before[0]), LONGEST_DELAY)
        before = now
    return LONGEST_DELAY


def ignition() -> Function:
    """log10 of the ignition delay of hydrogen, oxygen and nitrogen, with the kinetics of h2o2.yaml.

    Over temperature (K), log10 of the pressure (atm), equivalence ratio and moles of nitrogen per
    mole of oxygen. The box crosses the second and third explosion limits: along them the delay
    jumps by several orders of magnitude, and beyond them lies the plateau of ``LONGEST_DELAY``.
    """
    import cantera

    gas = cantera.Solution("h2o2.yaml")

    def log_delay(temperature: float, log_pressure: float, ratio: float, nitrogen: float) -> float:
        gas.set_equivalence_ratio(ratio, "H2:1", f"O2:1, N2:{nitrogen!r}")
        gas.TP = temperature, 10.0**log_pressure * cantera.one_atm
        return float(np.log10(ignition_delay(gas)))

    return on_unit_cube(rowwise(log_delay), (750.0, -1.5, 0.5, 2.0), (1150.0, 1.0, 2.0, 8.0))


def nitric_oxide() -> Function:
    """Mole fraction of NO after adiabatic combustion of methane in air, with gri30.yaml.

    Equilibrium at constant pressure, over equivalence ratio, initial temperature (K) and log10 of
    the pressure (atm).
    """
    import cantera

    gas = cantera.Solution("gri30.yaml")

    def fraction(ratio: float, temperature: float, log_pressure: float) -> float:
        gas.set_equivalence_ratio(ratio, "CH4:1", "O2:1, N2:3.76")
        gas.TP = temperature, 10.0**log_pressure * cantera.one_atm
        gas.equilibrate("HP", rtol=1e-10)
        return float(gas["NO"].X[0])

    return on_unit_cube(rowwise(fraction), (0.4, 300.0, 0.0), (1.8, 900.0, 1.5))


# --- QuantLib: options ---------------------------------------------------------------------------

STRIKE = 100.0


def black_scholes(
    spot: float, volatility: float, years: float, rate: float, dividend: float
) -> tuple[Any, Any]:
    """The Black-Scholes process and the date of maturity.

    QuantLib counts whole days, which would make steps of the time to maturity. Prices depend on
    it only through volatility * sqrt(years), rate * years and dividend * years, so the maturity is
    always one year and the other three are scaled.
    """
    import QuantLib as ql

    today, days = ql.Date(2, 1, 2023), ql.Actual365Fixed()
    ql.Settings.instance().evaluationDate = today

    def curve(annual: float) -> Any:
        return ql.YieldTermStructureHandle(ql.FlatForward(today, annual * years, days))

    spread = ql.BlackConstantVol(today, ql.NullCalendar(), volatility * years**0.5, days)
    process = ql.BlackScholesMertonProcess(
        ql.QuoteHandle(ql.SimpleQuote(spot)),
        curve(dividend),
        curve(rate),
        ql.BlackVolTermStructureHandle(spread),
    )
    return process, today + 365


def barrier_call(
    spot: float, barrier: float, volatility: float, years: float, rate: float
) -> float:
    """Price of a call that dies once the spot reaches the barrier; 0 if it is there already."""
    import QuantLib as ql

    if spot >= barrier:
        return 0.0
    process, maturity = black_scholes(spot, volatility, years, rate, dividend=0.0)
    payoff = ql.PlainVanillaPayoff(ql.Option.Call, STRIKE)
    exercise = ql.EuropeanExercise(maturity)
    option = ql.BarrierOption(ql.Barrier.UpOut, barrier, 0.0, payoff, exercise)
    option.setPricingEngine(ql.AnalyticBarrierEngine(process))
    return option.NPV()


def barrier() -> Function:
    """Up-and-out call, strike 100, over spot, barrier, volatility, years and interest rate.

    The price falls to zero at the barrier, steeply where little time or volatility is left, and
    stays zero beyond, in an eighth of the box.
    """
    lower, upper = (70.0, 110.0, 0.1, 0.1, 0.0), (140.0, 160.0, 0.4, 1.5, 0.08)
    return on_unit_cube(rowwise(barrier_call), lower, upper)


def american_put(
    spot: float, volatility: float, years: float, rate: float, dividend: float
) -> float:
    """Price of an American put by the fixed-point method of Andersen, Lake and Offengenden."""
    import QuantLib as ql

    process, maturity = black_scholes(spot, volatility, years, rate, dividend)
    payoff = ql.PlainVanillaPayoff(ql.Option.Put, STRIKE)
    exercise = ql.AmericanExercise(ql.Settings.instance().evaluationDate, maturity)
    option = ql.VanillaOption(payoff, exercise)
    option.setPricingEngine(ql.QdFpAmericanEngine(process))
    return option.NPV()


def american() -> Function:
    """American put, strike 100, over spot, volatility, years, interest rate and dividend yield.

    In a twelfth of the box it is exercised at once and the price is 100 - spot, to 2e-4: the error
    of the method.
    """
    lower, upper = (60.0, 0.1, 0.1, 0.01, 0.0), (140.0, 0.5, 2.0, 0.1, 0.06)
    return on_unit_cube(rowwise(american_put), lower, upper)


# --- simulators with numerical noise -------------------------------------------------------------


def lotka() -> Function:
    """log of the prey after ten years, by SciPy's solver with a relative tolerance of 1e-3.

    Over the four rates of the Lotka-Volterra equations and both starting populations.
    """
    from scipy.integrate import solve_ivp

    def log_prey(a: float, b: float, c: float, d: float, prey: float, hunters: float) -> float:
        rates = lambda t, z: (a * z[0] - b * z[0] * z[1], d * z[0] * z[1] - c * z[1])  # noqa: E731
        found = solve_ivp(rates, (0.0, 10.0), (prey, hunters), rtol=1e-3, atol=1e-6)
        return float(np.log(found.y[0, -1]))

    lower, upper = (0.6, 0.5, 0.7, 0.3, 0.8, 0.6), (1.0, 0.8, 1.1, 0.5, 1.4, 1.2)
    return on_unit_cube(rowwise(log_prey), lower, upper)


def rounded() -> Function:
    """The flow through a borehole, as a meter with marks every two cubic metres shows it."""
    flow = literature_function("Borehole")()
    return lambda X: 2.0 * np.round(flow(X) / 2.0)


def tabulated() -> Function:
    """The cycle time of a piston, from a table with forty steps along each input."""
    cycle_time = literature_function("Piston")()
    return lambda X: cycle_time(np.round(40.0 * X) / 40.0)


# --- the collection ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Where a problem comes from: what builds its function, or its table of runs."""

    package: str
    n_train: int
    function: Callable[[], Function] | None = None
    table: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None


SOURCES = {
    "borehole": Source("uqtestfuns", 80, literature_function("Borehole")),
    "piston": Source("uqtestfuns", 100, literature_function("Piston")),
    "wingweight": Source("uqtestfuns", 100, literature_function("WingWeight")),
    "ishigami": Source("uqtestfuns", 100, literature_function("Ishigami")),
    "franke": Source("uqtestfuns", 60, literature_function("Franke1")),
    "cliff": Source("uqtestfuns", 60, literature_function("McLainS5")),
    "robotarm": Source("uqtestfuns", 150, literature_function("RobotArm")),
    "sobolg": Source("uqtestfuns", 100, literature_function("SobolG", input_dimension=5)),
    "oscillator": Source("uqtestfuns", 100, literature_function("DampedOscillator")),
    "welch": Source("uqtestfuns", 200, literature_function("Welch20D")),
    "sobolg30": Source(
        "uqtestfuns",
        300,
        # the parameters with three inputs that matter and 27 that matter little
        literature_function("SobolG", input_dimension=30, parameters_id="Saltelli1995-2"),
    ),
    "morris30": Source("uqtestfuns", 300, literature_function("MorrisM", input_dimension=30)),
    "thrust": Source("smt", N_TRAIN, table=thrust_table),
    "airfoil": Source("smt", 200, table=airfoil_table),
    "ignition": Source("cantera", 100, ignition),
    "nitricoxide": Source("cantera", 100, nitric_oxide),
    "barrier": Source("QuantLib", 100, barrier),
    "american": Source("QuantLib", 100, american),
    "lotka": Source("scipy", 100, lotka),
    "rounded": Source("uqtestfuns", 100, rounded),
    "tabulated": Source("uqtestfuns", 100, tabulated),
}


def make_design(problem: str, index: int) -> Design:
    """Training and test data; the seed is made of the problem and the index."""
    source, rng = SOURCES[problem], np.random.default_rng([index, *problem.encode()])
    if source.function is None:
        return random_split(rng, *source.table(), source.n_train)
    d, function = PROBLEMS[problem].n_inputs, source.function()
    X, X_test = (short(latin_hypercube(rng, n, d)) for n in (source.n_train, N_TEST))
    return Design(X, function(X), X_test, function(X_test))


def short(X: np.ndarray) -> np.ndarray:
    """The inputs rounded to single precision: the zeros at their ends halve the stored file."""
    return X.astype(np.float32).astype(np.float64)


# --- command line --------------------------------------------------------------------------------


def named_arrays(problem: str, indices: Sequence[int]) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of designs with their names in the file."""
    for index in indices:
        for part, array in zip("Xyzw", make_design(problem, index), strict=True):
            yield f"{problem}_{index}_{part}", array


def stored_arrays(file: Path, problems: list[str]) -> dict[str, np.ndarray]:
    """What the file already holds of the given problems."""
    if not problems or not file.exists():
        return {}
    with np.load(file) as arrays:
        return {key: arrays[key] for key in arrays.files if key.split("_")[0] in problems}


def missing_packages(problems: list[str]) -> dict[str, list[str]]:
    """The packages that are not installed, each with the problems that need it."""
    packages = dict.fromkeys(SOURCES[problem].package for problem in problems)
    return {
        package: [problem for problem in problems if SOURCES[problem].package == package]
        for package in packages
        if find_spec(package) is None
    }


def explained(missing: dict[str, list[str]]) -> str:
    """What to install, or what to leave out."""
    needs = [f"{package} for {', '.join(names)}" for package, names in missing.items()]
    return f"not installed: {'; '.join(needs)}. Run: pip install {' '.join(missing)}"


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--problems", nargs="+", choices=SOURCES, default=list(SOURCES), metavar="NAME"
    )
    parser.add_argument("--fresh", action="store_true", help="designs 3 to 7, of few inputs")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    file, indices = (FRESH_FILE, FRESH) if args.fresh else (FILE, range(N_STORED))
    few = [problem for problem in args.problems if PROBLEMS[problem].n_inputs <= MOST_INPUTS]
    chosen = few if args.fresh else args.problems
    missing = missing_packages(chosen)
    if missing:
        raise SystemExit(explained(missing))
    arrays = stored_arrays(file, [problem for problem in SOURCES if problem not in chosen])
    for problem in chosen:
        print(problem, flush=True)
        arrays |= dict(named_arrays(problem, indices))
    ordered = {key: arrays[key] for key in sorted(arrays)}
    np.savez_compressed(file, **ordered)


if __name__ == "__main__":
    main()
