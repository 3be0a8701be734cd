"""deepemu on an NVIDIA GPU: a default-like fit, a large exact one, and prediction.

    python benchmarks/gpu.py --json gpu.json

fit        8 chains, 100 iterations of 5 sweeps, n = 100: first fit with compilation, then a second
large      4 chains, 100 iterations of 5 sweeps, n = 5000: one fit with compilation; fewer
           ``--iterations`` are extrapolated to 100, and the table says so
predict    mean and variance with 50 imputations: points per second once compiled

Needs deepemu and what it depends on. ``--device cpu --tiny`` tries the script out elsewhere.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from _report import (
    Bar,
    Table,
    bar_table,
    bars_as_json,
    machine,
    number,
    positive,
    print_table,
    write_json,
)
from _speed_deepemu import compiling, counted_compilations, emulator_in_full
from _speed_jobs import design, test_points, versions
from _timing import best_seconds, timed

KERNELS = ("squared_exponential", "matern52")
FULL_ITERATIONS = 100
N_SWEEPS = 5
FIT_CHAINS, LARGE_CHAINS = 8, 4
PREDICT_CHAINS, PREDICT_IMPUTATIONS = 10, 5

FIT_BAR = 10.0
LARGE_BAR = 360.0
PREDICT_BARS = {100: 100_000.0, 1000: 6_000.0}
MATERN_SHARE = 1 / 3

Result = dict[str, Any]


class Sizes(NamedTuple):
    """Training points (and iterations) of the fits, training and test points of prediction."""

    fit: int
    fit_iterations: int
    large: int
    predict: dict[int, int]


SIZES = Sizes(100, FULL_ITERATIONS, 5000, {100: 100_000, 1000: 6_000})
TINY = Sizes(10, 2, 12, {10: 20})


# --- measuring -----------------------------------------------------------------------------------


def trained(args: argparse.Namespace, n: int, n_chains: int, n_iter: int) -> None:
    """A fit with default structure and the sweeps of this benchmark."""
    emulator_in_full(args.device, n_chains=n_chains, n_iter=n_iter, n_sweeps=N_SWEEPS).fit(
        *design(n)
    )


def fit_twice(args: argparse.Namespace) -> Iterator[Result]:
    """A fit in this process with everything to be compiled, and the same again."""
    n, n_iter = args.sizes.fit, args.sizes.fit_iterations
    first, second = (compiling(lambda: trained(args, n, FIT_CHAINS, n_iter)) for _ in range(2))
    again = {f"second_{name}": value for name, value in second.items()}
    yield {"n": n, "n_iter": n_iter, **first, **again}


def extrapolated(first_s: float, short_s: float, long_s: float, n_short: int) -> float:
    """Seconds of a first fit with 100 iterations.

    From a first fit with one iteration, and warm ones with ``n_short`` and with twice as many.
    """
    return first_s + (FULL_ITERATIONS - 1) * (long_s - short_s) / n_short


def fit_large(args: argparse.Namespace) -> Iterator[Result]:
    """One fit of all iterations, or what it would take by three shorter ones."""
    n, n_iter = args.sizes.large, args.iterations
    fit = lambda k: trained(args, n, LARGE_CHAINS, k)  # noqa: E731
    result: Result = {"n": n, "n_iter": n_iter, "extrapolated": n_iter < FULL_ITERATIONS}
    if not result["extrapolated"]:
        yield {**result, **compiling(lambda: fit(n_iter))}
        return
    first = compiling(lambda: fit(1))
    short, long = (timed(lambda k=k: fit(k))[1] for k in (n_iter, 2 * n_iter))
    total = extrapolated(first["fit_s"], short, long, n_iter)
    yield {**result, **first, "fit_s": total, "short_s": short, "long_s": long}


def predict(args: argparse.Namespace) -> Iterator[Result]:
    """Points per second after a prediction that compiles; the networks are hardly trained."""
    for kernel, (n, n_test) in product(args.kernels, args.sizes.predict.items()):
        settings = {"n_iter": 1, "n_sweeps": 1, "kernel": kernel}
        emulator = emulator_in_full(
            args.device, n_chains=PREDICT_CHAINS, n_imputations=PREDICT_IMPUTATIONS, **settings
        ).fit(*design(n))
        x = test_points(n_test)
        call = lambda e=emulator, x=x: e.predict(x, return_std=True)  # noqa: E731
        with counted_compilations() as compilations:
            _, first, _ = timed(call)
        seconds = best_seconds(call)
        yield {
            "n": n,
            "kernel": kernel,
            "n_test": n_test,
            "first_s": first,
            "compile_s": sum(compilations),
            "seconds": seconds,
            "points_per_s": n_test / seconds,
        }


SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[Result]]] = {
    "fit": fit_twice,
    "large": fit_large,
    "predict": predict,
}


def attempted(found: Iterator[Result]) -> Iterator[Result]:
    """The results; where one fails, for want of memory perhaps, its message ends the section."""
    try:
        yield from found
    except Exception as error:
        yield {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}


def measure_all(args: argparse.Namespace, facts: Result) -> list[Result]:
    """All sections; the file is brought up to date after every measurement."""
    records: list[Result] = []
    for section in args.sections:
        for result in attempted(SECTIONS[section](args)):
            records.append({"section": section, **result})
            write_json(args.json, {"machine": facts, "records": records})
            print(f"{section}: {result}", flush=True)
    return records


# --- tables and bars -----------------------------------------------------------------------------


def of_section(records: list[Result], section: str) -> list[Result]:
    return [r for r in records if r["section"] == section and "failed" not in r]


def fit_table(records: list[Result]) -> Table:
    """Both kinds of fit, with the number of iterations that were really run."""
    rows = []
    for section, chains in (("fit", FIT_CHAINS), ("large", LARGE_CHAINS)):
        for r in of_section(records, section):
            iterations = f"{r['n_iter']} -> {FULL_ITERATIONS}" if r.get("extrapolated") else None
            times = (r["fit_s"], r["compile_s"], r.get("second_fit_s"))
            rows.append(
                [
                    section,
                    str(r["n"]),
                    str(chains),
                    iterations or str(r["n_iter"]),
                    *(number(seconds, ".4g") for seconds in times),
                ]
            )
    head = ("fit", "n", "chains", "iterations", "s, compile included", "compile s", "second fit s")
    return Table(f"training, {N_SWEEPS} sweeps (a -> b: extrapolated)", head, rows)


def predict_table(records: list[Result]) -> Table:
    rows = [
        [
            r["kernel"],
            str(r["n"]),
            str(r["n_test"]),
            number(r["points_per_s"], ",.0f"),
            number(r["compile_s"], ".3g"),
        ]
        for r in of_section(records, "predict")
    ]
    head = ("kernel", "n", "points", "points per second", "compile s")
    n_imputations = PREDICT_CHAINS * PREDICT_IMPUTATIONS
    return Table(f"prediction, mean and variance, {n_imputations} imputations", head, rows)


def _value(records: list[Result], section: str, field: str, **match: Any) -> float | None:
    found = [r[field] for r in of_section(records, section) if match.items() <= r.items()]
    return found[0] if found else None


def bars(records: list[Result]) -> list[Bar]:
    """Every bar with what was measured at its size."""
    fit = _value(records, "fit", "fit_s", n=SIZES.fit)
    large = _value(records, "large", "fit_s", n=SIZES.large)
    guessed = _value(records, "large", "extrapolated", n=SIZES.large)
    return [
        Bar(f"fit, n = {SIZES.fit}, compile included", fit, FIT_BAR, " s", False),
        Bar(
            f"fit, n = {SIZES.large}{', extrapolated' if guessed else ''}",
            large,
            LARGE_BAR,
            " s",
            False,
        ),
        *(
            Bar(
                f"prediction, {kernel}, n = {n}",
                _value(records, "predict", "points_per_s", n=n, kernel=kernel),
                limit * (MATERN_SHARE if kernel == "matern52" else 1.0),
                " points/s",
                True,
            )
            for kernel, (n, limit) in product(KERNELS, PREDICT_BARS.items())
        ),
    ]


# --- command line --------------------------------------------------------------------------------


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="NAME")
    add("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS), metavar="NAME")
    add("--iterations", type=positive, default=FULL_ITERATIONS, help="of large")
    add("--device", choices=("gpu", "cpu"), default="gpu")
    add("--tiny", action="store_true", help="a few points everywhere, to try the script out")
    add("--json", type=Path, help="file of results, brought up to date after every measurement")
    args = parser.parse_args(argv)
    args.sizes = TINY if args.tiny else SIZES
    return args


def set_up_jax(device: str) -> str:
    """Choose the device, without a cache on disk; its name. Call before anything imports JAX."""
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    found = jax.devices()[0]
    if found.platform != device:
        raise SystemExit("JAX sees no GPU here; --device cpu tries the script out on the CPU.")
    return found.device_kind


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    name, started, _ = timed(lambda: set_up_jax(args.device))
    facts = {**machine(), "device": name, "jax_start_s": started, "versions": versions()}
    print(f"{name}; {facts['cpu']}, {facts['cores']} cores; JAX started in {started:.1f} s")
    print(", ".join(f"{package} {version}" for package, version in facts["versions"].items()))
    records = measure_all(args, facts)
    for table in (fit_table(records), predict_table(records), bar_table(bars(records))):
        print_table(table)
    results = {"machine": facts, "records": records, "bars": bars_as_json(bars(records))}
    write_json(args.json, results)


if __name__ == "__main__":
    main()
