"""Test problems and their designs: six of the stochastic-imputation paper, and other packages'.

All inputs lie in the unit hypercube. ``load_design`` gives training and test data: indices 0-2 are
stored. Of the paper's problems these are the reference designs, on which the incumbents' scores in
``data/incumbents.json`` were measured, and higher indices are drawn afresh, seeded by the index.
The other problems come from simulators of other packages and have stored designs only, 3 to 7 in a
file of their own for what was chosen on 0-2; ``make_designs.py`` made them.

Needs NumPy only, so that the incumbents' interpreters can import it too; the fresh engine designs
need ``smt`` as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

DATA = Path(__file__).resolve().parent / "data"
N_STORED = 3
FRESH = (3, 4, 5, 6, 7)  # of the simulators of up to ten inputs
N_TRAIN, N_TEST = 100, 500
N_STEP_TRAIN, N_STEP_TEST = 10, 200


class Design(NamedTuple):
    """Training and test data; inputs are (n, d) in [0, 1], outputs (n,)."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


# --- the two synthetic functions -----------------------------------------------------------------


def step(X: np.ndarray) -> np.ndarray:
    """-1 left of 0.5 and 1 from there on (section 4)."""
    return np.where(X[:, 0] < 0.5, -1.0, 1.0)


def fived(X: np.ndarray) -> np.ndarray:
    """exp(sum_i x_i / i^2) where every x_i > 0.2, and 0 elsewhere (supplement, 5-D example)."""
    exponent = X @ (1.0 / np.arange(1, 6) ** 2)
    return np.where(np.all(X > 0.2, axis=1), np.exp(exponent), 0.0)


# --- Heston call option and its Greeks (section 5) -----------------------------------------------


@dataclass(frozen=True)
class Heston:
    """Parameters of the Heston model; the defaults are the paper's."""

    r: float = 0.03
    q: float = 0.02
    v0: float = 0.04
    kappa: float = 0.04
    theta: float = 0.3
    sigma: float = 0.9
    rho: float = -0.5


class Greeks(NamedTuple):
    """Call price and its derivatives: vega = dC/dv0, delta = dC/dS, gamma = d2C/dS2."""

    price: np.ndarray
    vega: np.ndarray
    delta: np.ndarray
    gamma: np.ndarray


LOWER = np.array([10.0, 10.0, 1.0 / 12.0])  # (S, K, tau)
UPPER = np.array([200.0, 200.0, 3.0])
ROWS_PER_BLOCK = 64  # bounds the memory of the rows x nodes arrays


def _panel_rule(edges: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss-Legendre quadrature on consecutive panels."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    return (middle[:, None] + half[:, None] * nodes).ravel(), (half[:, None] * weights).ravel()


def _frequencies() -> tuple[np.ndarray, np.ndarray]:
    """Quadrature rule on [0, 1000] for the Heston integrals.

    The integrand decays like exp(-v0 sqrt(1 - rho^2) u / sigma) = exp(-0.0385 u), so the tail
    beyond 1000 is below 1e-16. The panels are narrow near 0, where the pole at u = i/2 is close;
    further out a panel of width 6 spans at most 3 periods of exp(i u log(F/K)).
    """
    edges = np.concatenate([np.linspace(0.0, 10.0, 20, endpoint=False), np.arange(10.0, 1001.0, 6)])
    return _panel_rule(edges, order=24)


def _log_cf_coefficients(
    u: np.ndarray, tau: np.ndarray, model: Heston
) -> tuple[np.ndarray, np.ndarray]:
    """A and B with E[(S_T/F)^(1/2 + iu)] = exp(A + B v0), F the forward price.

    This is the branch-cut-free ("little trap") form, with exp(-d tau) instead of exp(d tau).
    """
    beta = model.kappa - model.rho * model.sigma * (0.5 + 1j * u)
    d = np.sqrt(beta**2 + model.sigma**2 * (u**2 + 0.25))
    g = (beta - d) / (beta + d)
    decay = np.exp(-d * tau)
    log_ratio = np.log((1 - g * decay) / (1 - g))
    A = model.kappa * model.theta / model.sigma**2 * ((beta - d) * tau - 2 * log_ratio)
    B = (beta - d) / model.sigma**2 * (1 - decay) / (1 - g * decay)
    return A, B


def _greeks_block(S: np.ndarray, K: np.ndarray, tau: np.ndarray, model: Heston) -> Greeks:
    """Lewis's formula and its derivatives, taken under the integral sign.

    C = S e^{-q tau} - m / pi * int_0^inf Re[e^{iuk} phi(u)] / (u^2 + 1/4) du, with
    k = log(F/K), phi the transform above and m = sqrt(S K) exp(-(r + q) tau / 2). Since
    m e^{iuk} is proportional to S^(1/2 + iu), each derivative in S is a factor, and the second
    one, (1/2 + iu)(-1/2 + iu) / S^2 = -(u^2 + 1/4) / S^2, cancels the denominator.
    """
    u, weights = _frequencies()
    k = np.log(S / K) + (model.r - model.q) * tau
    A, B = _log_cf_coefficients(u, tau[:, None], model)
    wave = np.exp(A + B * model.v0 + 1j * u * k[:, None])
    damped = wave / (u**2 + 0.25)
    m = np.sqrt(S * K) * np.exp(-(model.r + model.q) * tau / 2) / np.pi
    spot_discount = np.exp(-model.q * tau)
    return Greeks(
        price=S * spot_discount - m * (damped.real @ weights),
        vega=-m * ((damped * B).real @ weights),
        delta=spot_discount - m / S * ((damped * (0.5 + 1j * u)).real @ weights),
        gamma=m / S**2 * (wave.real @ weights),
    )


def heston_greeks(
    S: np.ndarray, K: np.ndarray, tau: np.ndarray, model: Heston | None = None
) -> Greeks:
    """Price and Greeks of European calls with spot S, strike K and maturity tau (1-d arrays)."""
    model = Heston() if model is None else model
    starts = range(0, len(S), ROWS_PER_BLOCK)
    rows = [slice(i, i + ROWS_PER_BLOCK) for i in starts]
    blocks = [_greeks_block(S[part], K[part], tau[part], model) for part in rows]
    return Greeks(*(np.concatenate(columns) for columns in zip(*blocks, strict=True)))


def _greeks_of_unit(X: np.ndarray) -> Greeks:
    return heston_greeks(*(LOWER + (UPPER - LOWER) * X).T)


def vega(X: np.ndarray) -> np.ndarray:
    """dC/dv0 at (S, K, tau) scaled to the unit cube."""
    return _greeks_of_unit(X).vega


def delta(X: np.ndarray) -> np.ndarray:
    """dC/dS at (S, K, tau) scaled to the unit cube."""
    return _greeks_of_unit(X).delta


def gamma(X: np.ndarray) -> np.ndarray:
    """d2C/dS2 at (S, K, tau) scaled to the unit cube."""
    return _greeks_of_unit(X).gamma


# --- aircraft engine -----------------------------------------------------------------------------


def engine_table(output: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """All 1056 runs of the B777 engine model: (Mach, altitude, throttle) in [0, 1]^3 and TSFC.

    Output 0 is the thrust instead.
    """
    try:
        from smt.examples.b777_engine.b777_engine import get_b777_engine
    except ImportError as error:
        raise ImportError(
            "fresh engine designs need the data set of the package smt: pip install smt"
        ) from error
    inputs, outputs = get_b777_engine()[:2]
    low, high = inputs.min(axis=0), inputs.max(axis=0)
    return (inputs - low) / (high - low), outputs[:, output]


# --- designs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A test problem: its function (None if only runs of it exist), inputs, depth, and the number
    of training points of fresh designs."""

    function: Callable[[np.ndarray], np.ndarray] | None
    n_inputs: int
    depth: int = 2  # layers in the paper's smallest network for it; two where the paper has none
    n_train: int = N_TRAIN


PAPER_PROBLEMS = {
    "step": Problem(step, 1, depth=3),
    "fived": Problem(fived, 5),
    "vega": Problem(vega, 3),
    "delta": Problem(delta, 3),
    "gamma": Problem(gamma, 3),
    "engine": Problem(None, 3),
}
SIMULATOR_PROBLEMS = {
    "borehole": Problem(None, 8),
    "piston": Problem(None, 7),
    "wingweight": Problem(None, 10),
    "ishigami": Problem(None, 3),
    "franke": Problem(None, 2),
    "cliff": Problem(None, 2),
    "robotarm": Problem(None, 8),
    "sobolg": Problem(None, 5),
    "oscillator": Problem(None, 7),
    "welch": Problem(None, 20),
    "sobolg30": Problem(None, 30),
    "morris30": Problem(None, 30),
    "thrust": Problem(None, 3),
    "airfoil": Problem(None, 16),
    "ignition": Problem(None, 4),
    "nitricoxide": Problem(None, 3),
    "barrier": Problem(None, 5),
    "american": Problem(None, 5),
    "lotka": Problem(None, 6),
    "rounded": Problem(None, 8),
    "tabulated": Problem(None, 7),
}
LARGE_PROBLEMS = {"fived500": Problem(fived, 5, n_train=500)}  # fresh designs only
PROBLEMS = PAPER_PROBLEMS | SIMULATOR_PROBLEMS | LARGE_PROBLEMS
PAPER, SIMULATORS = tuple(PAPER_PROBLEMS), tuple(SIMULATOR_PROBLEMS)


def load_design(problem: str, index: int) -> Design:
    """Training and test data of ``problem``; indices 0-2 are stored, higher ones are fresh.

    The paper's problems have any number of fresh designs, others two, or none.
    """
    if problem not in PROBLEMS:
        raise ValueError(f"unknown problem {problem!r}; choose one of {', '.join(PROBLEMS)}")
    if index < 0:
        raise ValueError(f"a design index is 0 or more, got {index}")
    if index < N_STORED and problem not in LARGE_PROBLEMS:
        return _stored_design(problem, index)
    return (
        _fresh_simulations(problem, index)
        if problem in SIMULATORS
        else _fresh_design(problem, index)
    )


def _stored_design(problem: str, index: int) -> Design:
    return _read("designs.npz" if problem in PAPER else "more_designs.npz", problem, index)


def _fresh_simulations(problem: str, index: int) -> Design:
    try:
        return _read("fresh_designs.npz", problem, index)
    except KeyError:
        raise ValueError(
            f"{problem} has no stored design {index}: others need its simulator, see "
            "make_designs.py"
        ) from None


def _read(file: str, problem: str, index: int) -> Design:
    with np.load(DATA / file) as arrays:
        return Design(*(arrays[f"{problem}_{index}_{part}"] for part in "Xyzw"))


def _fresh_design(problem: str, index: int) -> Design:
    rng = np.random.default_rng(index)
    if problem == "engine":
        return random_split(rng, *engine_table())
    X, X_test = _fresh_inputs(problem, rng)
    function = PROBLEMS[problem].function
    return Design(X, function(X), X_test, function(X_test))


def _fresh_inputs(problem: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    if problem == "step":  # the paper's design is a fixed grid
        return _grid(N_STEP_TRAIN), _grid(N_STEP_TEST)
    d, n_train = PROBLEMS[problem].n_inputs, PROBLEMS[problem].n_train
    return latin_hypercube(rng, n_train, d), latin_hypercube(rng, N_TEST, d)


def _grid(n: int) -> np.ndarray:
    return np.linspace(0.0, 1.0, n)[:, None]


def latin_hypercube(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Points in [0, 1]^d, n of them, one in each of n equal slices of every axis."""
    slices = rng.permuted(np.tile(np.arange(n), (d, 1)), axis=1).T
    return (slices + rng.uniform(size=(n, d))) / n


def random_split(
    rng: np.random.Generator, X: np.ndarray, y: np.ndarray, n_train: int = N_TRAIN
) -> Design:
    """Training and test rows of a table of runs, without overlap."""
    rows = rng.permutation(len(y))
    train, test = rows[:n_train], rows[n_train : n_train + N_TEST]
    return Design(X[train], y[train], X[test], y[test])
