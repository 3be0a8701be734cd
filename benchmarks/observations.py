"""Observation models on the protocols of the page on them: counts, noise that differs, classes.

    python benchmarks/observations.py counts --seeds 5 --methods gp emulator
    python benchmarks/observations.py motorcycle --data motorcycle.csv --methods gp quick
    python benchmarks/observations.py ato --data ato.npz --methods gp

Parts: ``counts``, 30 sites with three runs each, a smooth log rate and one with a step: excess of
the mean negative log probability of 2000 new counts over that of the true model, and failures.
``motorcycle``, 20 random splits 106/27 of the 133 points of MASS: mcycle. ``sir``, an epidemic of
200 sites with 1 to 20 runs each. ``ato``, the assemble-to-order inventory simulator of hetGP, whose
score is the mean of -r²/s² - log s². ``classes``, iris and wine, five stratified splits.
``replicates``, seconds of a fit with one and with a hundred runs at each site. Data sets that are
absent are left out, with a line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _report import Table, positive, print_table, write_json
from scipy import stats
from scipy.stats import qmc

from deepemu import DGP, GP, DGPClassifier, Emulator, GPClassifier, NumericalError

METHODS: dict[str, Callable[..., Any]] = {
    "gp": GP,
    "dgp": DGP,
    "quick": lambda **given: Emulator(effort="quick", **given),
    "emulator": Emulator,
    "gp-classifier": GPClassifier,
    "dgp-classifier": DGPClassifier,
}
COUNT_MODELS = (
    "poisson", "negative_binomial", "zero_inflated_poisson", "zero_inflated_negative_binomial"
)  # fmt: skip
HETEROSCEDASTIC = {"observation": "heteroscedastic"}
Scores = dict[str, Any]


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


# --- counts --------------------------------------------------------------------------------------


def log_rate(x: np.ndarray, shape: str) -> np.ndarray:
    if shape == "smooth":
        return 1.2 + 1.2 * np.sin(7 * x)
    return np.where(x < 0.45, 0.3, 2.8) + 0.3 * np.sin(12 * x)


def log_mass(y: np.ndarray, x: np.ndarray, shape: str, model: str) -> np.ndarray:
    """That of the true model, with r = 2 and a quarter of zeros."""
    mean = np.exp(log_rate(x, shape))
    of_counts = stats.nbinom(2, 2 / (2 + mean)) if "negative" in model else stats.poisson(mean)
    mass = of_counts.pmf(y)
    return np.log(0.75 * mass + 0.25 * (y == 0) if "zero" in model else mass)


def drawn_counts(rng: np.random.Generator, x: np.ndarray, shape: str, model: str) -> np.ndarray:
    mean = np.exp(log_rate(x, shape))
    dispersed = "negative" in model
    y = rng.negative_binomial(2, 2 / (2 + mean)) if dispersed else rng.poisson(mean)
    return np.where(rng.random(len(x)) < 0.25, 0, y) if "zero" in model else y


def counts(options: argparse.Namespace) -> Iterator[Scores]:
    for model in COUNT_MODELS:
        for shape in ("smooth", "step"):
            for seed in range(options.seeds):
                for method in options.methods:
                    yield one_of_counts(model, shape, seed, method)


def one_of_counts(model: str, shape: str, seed: int, method: str) -> Scores:
    rng = np.random.default_rng(seed)
    x, new = np.repeat(np.linspace(0, 1, 30), 3), rng.random(2000)
    y, y_new = (drawn_counts(rng, at, shape, model) for at in (x, new))
    found: Scores = {"problem": f"{model}, {shape}", "seed": seed, "method": method}
    try:
        emulator, seconds = timed(lambda: METHODS[method](observation=model).fit(x[:, None], y))
        nlpd = -float(np.mean(emulator.log_density(new[:, None], y_new)))
    except NumericalError:
        return found | {"failed": 1}
    true = -float(np.mean(log_mass(y_new, new, shape, model)))
    return found | {
        "nlpd": nlpd,
        "excess_%": 100 * (nlpd / true - 1),
        "fit_s": seconds,
        "failed": 0,
    }


# --- noise that differs --------------------------------------------------------------------------


def scored(emulator: Any, X: np.ndarray, y: np.ndarray) -> Scores:
    found = emulator.posterior_.compared(X, y)
    error = y - found.mean[:, 0]
    return {
        "nlpd": -float(np.mean(emulator.log_density(X, y))),
        "crps": float(np.mean(found.crps)),
        "rmse": float(np.sqrt(np.mean(error**2))),
        "coverage": float(np.mean(found.rank.inside())),
        "score": float(np.mean(-((error / found.std[:, 0]) ** 2) - 2 * np.log(found.std[:, 0]))),
    }


def of_split(
    problem: str, seed: int, method: str, runs: tuple[np.ndarray, ...], new: tuple[np.ndarray, ...]
) -> Scores:
    emulator, seconds = timed(lambda: METHODS[method](**HETEROSCEDASTIC).fit(*runs))
    names = {"problem": problem, "seed": seed, "method": method}
    return names | scored(emulator, *new) | {"fit_s": seconds}


def motorcycle(options: argparse.Namespace) -> Iterator[Scores]:
    table = np.genfromtxt(options.data, delimiter=",", skip_header=1)[:, -2:]
    x, y = table[:, :1], table[:, 1]
    for seed in range(options.seeds):
        order = np.random.default_rng(seed).permutation(len(y))
        test, train = order[:27], order[27:]
        for method in options.methods:
            runs, new = (x[train], y[train]), (x[test], y[test])
            yield of_split("motorcycle", seed, method, runs, new)


def epidemic(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """How many of 2000 are infected before an epidemic ends, over 800, at inputs (n, 2).

    The embedded jump chain of the susceptible-infected-recovered model: S = ⌊600 x₁ + 1200⌋ and
    I = ⌊200 x₂⌋ at first; the next event is an infection with the probability
    β S I / (β S I + γ M I), with β = γ = ½ and M = 2000. As sirEval of the R package hetGP
    (Binois and Gramacy, Journal of Statistical Software 98(13), 2021).
    """
    susceptible = np.floor(600 * x[:, 0] + 1200)
    infected, total = np.floor(200 * x[:, 1]), 2000.0
    caught = np.zeros(len(x))
    while np.any(goes_on := infected > 0):
        infects = goes_on & (rng.random(len(x)) < susceptible / (susceptible + total))
        susceptible, caught = susceptible - infects, caught + infects
        infected += np.where(infects, 1, -1) * goes_on
    return caught / 800


def sir(options: argparse.Namespace) -> Iterator[Scores]:
    """Sites and test rows where nobody is infected at first have no noise, and are left out."""
    for seed in range(options.seeds):
        rng = np.random.default_rng(seed)
        sites = qmc.LatinHypercube(2, rng=rng).random(200)
        x = np.repeat(sites, rng.integers(1, 21, 200), axis=0)
        new = rng.random((1000, 2))
        new = new[np.floor(200 * new[:, 1]) >= 1]
        runs, tests = (x, epidemic(rng, x)), (new, epidemic(rng, new))
        for method in options.methods:
            yield of_split("sir", seed, method, runs, tests)


def ato(options: argparse.Namespace) -> Iterator[Scores]:
    held = np.load(options.data)
    runs, new = (held["X"], held["y"]), (held["X_test"], held["y_test"])
    for method in options.methods:
        yield of_split("ato", 0, method, runs, new)


def replicates(options: argparse.Namespace) -> Iterator[Scores]:
    for method in options.methods:
        for place, count in enumerate((1, 100, 1, 100)):
            rng = np.random.default_rng(0)
            x = np.repeat(np.linspace(0, 1, 60), count)[:, None]
            y = np.sin(6 * x[:, 0]) + (0.1 + 0.3 * x[:, 0]) * rng.standard_normal(len(x))
            _, seconds = timed(lambda: METHODS[method](**HETEROSCEDASTIC).fit(x, y))  # noqa: B023
            if place > 1:  # the first two compile
                names = {"problem": f"{count} per site", "seed": 0, "method": method}
                yield names | {"fit_s": seconds}


# --- classes -------------------------------------------------------------------------------------


def classes(options: argparse.Namespace) -> Iterator[Scores]:
    from sklearn.datasets import load_iris, load_wine
    from sklearn.model_selection import StratifiedShuffleSplit

    for name, loaded in (("iris", load_iris), ("wine", load_wine)):
        X, y = loaded(return_X_y=True)
        splits = StratifiedShuffleSplit(options.seeds, test_size=0.25, random_state=0)
        for seed, (train, test) in enumerate(splits.split(X, y)):
            for method in options.methods:
                fit = lambda: METHODS[method]().fit(X[train], y[train])  # noqa: B023, E731
                classifier, seconds = timed(fit)
                log_loss = -float(np.mean(classifier.log_density(X[test], y[test])))
                accuracy = classifier.score(X[test], y[test])
                names = {"problem": name, "seed": seed, "method": method}
                yield names | {"log_loss": log_loss, "accuracy": accuracy, "fit_s": seconds}


# --- the table -----------------------------------------------------------------------------------

PARTS = {
    "counts": counts, "motorcycle": motorcycle, "sir": sir, "ato": ato, "classes": classes,
    "replicates": replicates,
}  # fmt: skip
NEEDS_DATA = ("motorcycle", "ato")


def summary(title: str, records: list[Scores]) -> Table:
    """Means over seeds, and how many there are."""
    names = [name for name in records[0] if name not in ("problem", "seed", "method")]
    names = list(dict.fromkeys([*names, *(name for each in records for name in each)]))
    names = [name for name in names if name not in ("problem", "seed", "method")]
    kinds = list(dict.fromkeys((each["problem"], each["method"]) for each in records))
    rows = []
    for problem, method in kinds:
        mine = [e for e in records if (e["problem"], e["method"]) == (problem, method)]
        means = (np.mean([e[name] for e in mine if name in e] or [np.nan]) for name in names)
        rows.append([problem, method, str(len(mine)), *(f"{mean:.4g}" for mean in means)])
    return Table(title, ["problem", "method", "fits", *names], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=["gp"])
    parser.add_argument("--seeds", type=positive, default=3)
    parser.add_argument("--data", type=Path, help="motorcycle.csv or ato.npz")
    parser.add_argument("--json", type=Path, help="file for the scores of each fit")
    options = parser.parse_args()
    if options.part in NEEDS_DATA and not (options.data and options.data.exists()):
        print(f"{options.part}: its data are absent; name the file with --data.")
        return
    records = list(PARTS[options.part](options))
    print_table(summary(options.part, records))
    if options.json:
        write_json(options.json, records)


if __name__ == "__main__":
    main()
