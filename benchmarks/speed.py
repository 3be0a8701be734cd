"""Speed on one CPU thread, deepemu against dgpsi: training, prediction, start, memory, growth.

    DGPSI_PYTHON=path/to/python python benchmarks/speed.py --json speed.json --resume

Every measurement is a fresh process pinned to one core with one thread; the packages take turns,
and the best of the repeats counts. dgpsi runs in its own environment. The sections:

train      seconds per SEM iteration: same network, same iterations, same sweeps; exponents in n
predict    mean and variance with 50 imputations: points per second and peak memory
accuracy   time to the NRMSEP that dgpsi's default training reaches, on Vega and in five dimensions
start      from the start of a process to the first prediction of the step function
floor      training at n = 1000 over the LAPACK time of the factorisations it cannot do without
default    a default fit of Vega, with and without compilation

A busy neighbour inflates times, so a ratio is worth quoting only from an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _report import (
    Bar,
    Table,
    bar_table,
    bars_as_json,
    load,
    machine,
    number,
    positive,
    print_table,
    ratio,
    read_json,
    write_json,
)

HERE = Path(__file__).resolve().parent
SIDES = ("deepemu", "dgpsi")
OURS = ("deepemu",)
SIZES = (10, 100, 300, 1000)
PROBLEMS = ("vega", "fived")
# One lengthscale per node is dgpsi's default; one per column is that of deepemu's default kernel.
LENGTHSCALES = {"squared_exponential": "shared", "matern52": "ard"}
MAIN_KERNEL = "squared_exponential"
DEFAULT_STRUCTURE = {"kernel": "matern52", "lengthscale": "ard"}
# Iterations before timing starts, and iterations that are timed, for sizes up to the given one.
EFFORTS = {10: (50, 500), 100: (30, 60), 300: (15, 15), 1000: (15, 3)}
N_SWEEPS = 11  # dgpsi's default: one more than its ess_burn
N_IMPUTATIONS = 50
N_TRAINED = 20  # iterations before a prediction: nearly known hidden layers are predicted faster
# Test points for sizes up to the given one. At n = 1000 dgpsi needs about a second per point.
TEST_POINTS = {100: (500, 10_000), 300: (500,), 1000: (20, 500)}
MOST_WORK_OF_DGPSI = 150_000_000  # n^2 times points, beyond which its time is not worth waiting for
COMMAND_ROWS = 60
# Jobs that are measured from the start of a process, and with which caches.
STARTED = ("start", "command")
PHASES = ("cold", "warm")
FLOOR_SIZE = 1000
SMALLEST_IN_EXPONENT = 100
# What changes for a trial; 500 iterations are dgpsi's default.
TRIAL_SETTINGS = {
    "effort": None,
    "points": None,
    "floor_size": FLOOR_SIZE,
    "dgpsi_iterations": 500,
}
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
BUSY = 0.3  # a load above which the head of the output says that the machine is not idle

TRAIN_BARS = {10: 15.0, 100: 6.0, 300: 4.0, 1000: 3.0}
PREDICT_BARS = {100: 12.0, 1000: 15.0}
ACCURACY_BAR = 8.0
MEMORY_BAR_GB = 1.0
FLOOR_BAR = 2.0
START_BARS = {"cold": 8.0, "warm": 3.0}
IMPORT_BAR = 0.8
COMMAND_BAR = 10.0
COMPILE_BAR = 4.0

Job = dict[str, Any]
Record = dict[str, Any]


class Measurement(NamedTuple):
    """A job for the named sides, so many times."""

    job: Job
    sides: tuple[str, ...]
    repeats: int


# --- what to measure -----------------------------------------------------------------------------


def up_to(table: dict[int, Any], n: int) -> Any:
    """The entry of the smallest size that is at least n, else of the largest."""
    return table[min((size for size in table if size >= n), default=max(table))]


def structure(kernel: str, depth: int, sweep: str) -> Job:
    return {
        "kernel": kernel,
        "lengthscale": LENGTHSCALES[kernel],
        "depth": depth,
        "sweep": sweep,
        "n_sweeps": N_SWEEPS,
    }


def effort(args: argparse.Namespace, n: int) -> dict[str, int]:
    settle, n_iter = args.effort or up_to(EFFORTS, n)
    return {"settle": settle, "n_iter": n_iter}


def plan_train(args: argparse.Namespace) -> Iterator[Measurement]:
    for kernel, depth, sweep, n in product(args.kernels, args.depths, args.sweeps, args.sizes):
        job = {"kind": "train", **structure(kernel, depth, sweep), "n": n, **effort(args, n)}
        yield Measurement(job, SIDES, args.repeats)


def plan_predict(args: argparse.Namespace) -> Iterator[Measurement]:
    for kernel, depth, n in product(args.kernels, args.depths, args.sizes):
        for n_test in args.points or up_to(TEST_POINTS, n):
            job = {
                "kind": "predict",
                **structure(kernel, depth, "layer"),
                "n": n,
                "n_iter": N_TRAINED,
                "n_imputations": N_IMPUTATIONS,
                "n_test": n_test,
            }
            bearable = n**2 * n_test <= MOST_WORK_OF_DGPSI
            yield Measurement(job, SIDES if bearable else OURS, args.repeats)


def plan_accuracy(args: argparse.Namespace) -> Iterator[Measurement]:
    """One run a seed; the efforts of deepemu share a process."""
    efforts = [
        {"n_chains": n_chains, "n_iter": n_iter}
        for n_chains, n_iter in product(args.chains, args.iterations)
    ]
    for problem, seed in product(args.problems, range(args.seeds)):
        job = {"kind": "accuracy", "problem": problem, "seed": seed, "efforts": efforts}
        yield Measurement({**job, "n_iter": args.dgpsi_iterations}, SIDES, 1)


def plan_start(args: argparse.Namespace) -> Iterator[Measurement]:
    job = {"kind": "start", **structure(MAIN_KERNEL, 3, "layer"), "n_iter": args.dgpsi_iterations}
    yield Measurement(job, SIDES, args.repeats)
    yield Measurement({"kind": "command", "n": COMMAND_ROWS}, OURS, args.repeats)
    yield Measurement({"kind": "compile"}, OURS, args.repeats)


def plan_floor(args: argparse.Namespace) -> Iterator[Measurement]:
    """deepemu with its default kernel, sweeps and brackets."""
    n = args.floor_size
    yield Measurement({"kind": "floor", "depth": 2, "n": n, **effort(args, n)}, OURS, args.repeats)


def plan_default(args: argparse.Namespace) -> Iterator[Measurement]:
    job = {"kind": "default", **DEFAULT_STRUCTURE, "depth": 2, "n_iter": args.dgpsi_iterations}
    yield Measurement(job, SIDES, args.repeats)


PLANS: dict[str, Callable[[argparse.Namespace], Iterator[Measurement]]] = {
    "train": plan_train,
    "predict": plan_predict,
    "accuracy": plan_accuracy,
    "start": plan_start,
    "floor": plan_floor,
    "default": plan_default,
}


def planned(args: argparse.Namespace) -> Iterator[tuple[str, Job, int]]:
    """All runs in order: the sides take turns within each repeat."""
    for section in args.sections:
        for job, sides, repeats in PLANS[section](args):
            for repeat, side in product(range(repeats), sides):
                if side in args.sides:
                    yield side, job, repeat


# --- running children ----------------------------------------------------------------------------


def one_thread_environment(cache: Path | None = None) -> dict[str, str]:
    """This environment with every library held to one thread.

    Compiled programs are kept in the given folder and nowhere else: without one JAX's cache is
    off, and numba's stays where it is.
    """
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment |= {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
    }
    if cache is None:
        return {**environment, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    return {
        **environment,
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(cache / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "NUMBA_CACHE_DIR": str(cache / "numba"),
        "XDG_CACHE_HOME": str(cache),
    }


def pinned(command: list[str]) -> list[str]:
    """The command held to one core, where the system has taskset."""
    if shutil.which("taskset") is None:
        return command
    return ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command]


def child_command(side: str, job: Job, dgpsi_python: str | None) -> list[str]:
    interpreters = {"deepemu": sys.executable, "dgpsi": str(dgpsi_python)}
    return [interpreters[side], str(HERE / f"_speed_{side}.py"), json.dumps(job)]


def run_child(command: list[str], environment: dict[str, str]) -> Record:
    """Start the command and read the JSON in the last line that it prints."""
    done = subprocess.run(
        pinned(command),
        env=environment,
        cwd=HERE,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return {"failed": f"exit status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def run_started(command: list[str]) -> Record:
    """Two processes with one cache, empty before the first, by the clock of this process."""
    result: Record = {}
    with tempfile.TemporaryDirectory() as folder:
        for phase in PHASES:
            began = time.time()
            answer = run_child(command, one_thread_environment(Path(folder)))
            if "failed" in answer:
                return answer
            answer["s"] = answer.pop("finished") - began
            result |= {f"{phase}_{name}": value for name, value in answer.items()}
    return result


def measure(side: str, job: Job, dgpsi_python: str | None) -> Record:
    command = child_command(side, job, dgpsi_python)
    if job["kind"] in STARTED:
        return run_started(command)
    return run_child(command, one_thread_environment())


def record_key(record: Record) -> str:
    """The identity of a record: the side, the job and the number of the repeat."""
    return json.dumps([record[name] for name in ("side", "job", "repeat")], sort_keys=True)


def versions(args: argparse.Namespace) -> dict[str, Record]:
    """What each side runs on, from its own interpreter."""
    found = {side: measure(side, {"kind": "versions"}, args.dgpsi_python) for side in args.sides}
    failed = [side for side, answer in found.items() if "failed" in answer]
    if failed:
        raise SystemExit(f"the interpreter for {failed[0]} does not run; see the message above")
    return {side: without(answer, "peak_mb") for side, answer in found.items()}


def without(record: Record, name: str) -> Record:
    return {key: value for key, value in record.items() if key != name}


def is_trial(args: argparse.Namespace) -> bool:
    """Whether any setting is one for trying the script out."""
    return any(getattr(args, name) != usual for name, usual in TRIAL_SETTINGS.items())


def stored_records(args: argparse.Namespace) -> dict[str, Record]:
    """Finished measurements of an earlier call, by key; failed ones are tried again.

    A file is never overwritten, and never mixes trials with measurements.
    """
    earlier = read_json(args.json)
    if earlier is None:
        return {}
    if not args.resume:
        raise SystemExit(f"{args.json} exists: go on with it by --resume, or name another file")
    if earlier["trial"] != is_trial(args):
        raise SystemExit(f"{args.json} has other settings for trying it out: name another file")
    return {record_key(r): r for r in earlier["records"] if "failed" not in r["result"]}


def contents(args: argparse.Namespace, facts: Record, records: list[Record]) -> Record:
    """The file of results; a trial is held to no bar."""
    results = {"machine": facts, "trial": is_trial(args), "records": records}
    return results if is_trial(args) else {**results, "bars": bars_as_json(bars(records))}


def measure_all(args: argparse.Namespace, facts: Record) -> list[Record]:
    """Those of the file and all planned runs; it is brought up to date after each of them."""
    stored, runs = stored_records(args), list(planned(args))
    for index, (side, job, repeat) in enumerate(runs, start=1):
        record = {"side": side, "job": job, "repeat": repeat, "load": load()}
        if record_key(record) in stored:
            continue
        record["result"] = measure(side, job, args.dgpsi_python)
        stored[record_key(record)] = record
        write_json(args.json, contents(args, facts, list(stored.values())))
        print(
            f"[{index}/{len(runs)}] {side} {job}: {record['result']}", file=sys.stderr, flush=True
        )
    return list(stored.values())


# --- reading records -----------------------------------------------------------------------------


def matching(records: list[Record], side: str, **match: Any) -> list[Record]:
    """Records of one side that did not fail, of the jobs whose fields have the given values."""
    return [
        record
        for record in records
        if record["side"] == side
        and "failed" not in record["result"]
        and match.items() <= without(record["job"], "efforts").items()
    ]


def results(records: list[Record], side: str, **match: Any) -> list[Record]:
    return [record["result"] for record in matching(records, side, **match)]


def values(records: list[Record], field: str, side: str, **match: Any) -> list[float]:
    return [r[field] for r in results(records, side, **match) if field in r]


def best(records: list[Record], field: str, side: str, **match: Any) -> float | None:
    """Least value of a field over the repeats; None if nothing was measured."""
    return min(values(records, field, side, **match), default=None)


def most(records: list[Record], field: str, side: str, **match: Any) -> float | None:
    """Largest value of a field over the repeats, for memory."""
    return max(values(records, field, side, **match), default=None)


def middle(records: list[Record], field: str, side: str, **match: Any) -> float | None:
    found = values(records, field, side, **match)
    return statistics.median(found) if found else None


def distinct(records: list[Record], kind: str, *names: str) -> list[tuple[Any, ...]]:
    """Values of the named fields in the jobs of a kind, each combination once, in order."""
    jobs = (record["job"] for record in records if record["job"]["kind"] == kind)
    return list(dict.fromkeys(tuple(job[name] for name in names) for job in jobs))


def iteration_seconds(records: list[Record], side: str, **match: Any) -> float | None:
    """Seconds per SEM iteration: the best timed, or the difference of the best two fits.

    None where noise leaves no positive difference.
    """
    short, long = (best(records, name, side, **match) for name in ("short_s", "long_s"))
    if short is None or long is None:
        return best(records, "seconds", side, **match)
    (n_iter,) = {r["job"]["n_iter"] for r in matching(records, side, **match)}
    return (long - short) / n_iter if long > short else None


def both(records: list[Record], **match: Any) -> tuple[float | None, float | None]:
    """Seconds per SEM iteration of deepemu and of dgpsi."""
    ours, theirs = (iteration_seconds(records, side, **match) for side in SIDES)
    return ours, theirs


def exponent(seconds: dict[int, float | None]) -> float | None:
    """Least-squares slope of log seconds against log n, over sizes from 100 on."""
    points = [(n, s) for n, s in seconds.items() if s and s > 0 and n >= SMALLEST_IN_EXPONENT]
    if len(points) < 2:
        return None
    return float(np.polyfit(*np.log(np.array(points, float)).T, 1)[0])


# --- tables --------------------------------------------------------------------------------------

SHAPE = ("kernel", "depth", "sweep")
SHAPE_HEAD = ("kernel", "layers", "sweep")


def _texts(values: tuple[Any, ...]) -> list[str]:
    return [str(value) for value in values]


def train_table(records: list[Record]) -> Table:
    rows = []
    for shape in distinct(records, "train", *SHAPE, "n"):
        match = {"kind": "train", **dict(zip((*SHAPE, "n"), shape, strict=True))}
        ours, theirs = both(records, **match)
        memory = [most(records, "peak_mb", side, **match) for side in SIDES]
        rows.append(
            [
                *_texts(shape),
                *(number(seconds, ".4g") for seconds in (ours, theirs)),
                number(ratio(theirs, ours), ".1f", "x"),
                *(number(peak, ".0f") for peak in memory),
            ]
        )
    head = (*SHAPE_HEAD, "n", "deepemu", "dgpsi", "ratio", "deepemu MB", "dgpsi MB")
    return Table(f"training: seconds per SEM iteration of {N_SWEEPS} sweeps", head, rows)


def growth_table(records: list[Record]) -> Table:
    rows = []
    for shape in distinct(records, "train", *SHAPE):
        match = {"kind": "train", **dict(zip(SHAPE, shape, strict=True))}
        slopes = [
            exponent(
                {
                    n: iteration_seconds(records, side, n=n, **match)
                    for (n,) in distinct(records, "train", "n")
                }
            )
            for side in SIDES
        ]
        rows.append([*_texts(shape), *(number(slope, ".2f") for slope in slopes)])
    return Table(
        f"training: exponent of n, from n = {SMALLEST_IN_EXPONENT} on",
        (*SHAPE_HEAD, *SIDES),
        rows,
    )


def prediction_rates(records: list[Record], **match: Any) -> tuple[float | None, float | None]:
    """Points per second of deepemu at this number of points, and of dgpsi.

    dgpsi's time is proportional to the points: where it ran with fewer, its rate there counts.
    """

    def rate(side: str, n_test: int) -> float | None:
        return ratio(n_test, best(records, "seconds", side, **{**match, "n_test": n_test}))

    counts = sorted(n for (n,) in distinct(records, "predict", "n_test") if n <= match["n_test"])
    theirs = [found for n in counts if (found := rate("dgpsi", n)) is not None]
    return rate("deepemu", match["n_test"]), theirs[-1] if theirs else None


def predict_table(records: list[Record]) -> Table:
    names, rows = ("kernel", "depth", "n", "n_test"), []
    for shape in distinct(records, "predict", *names):
        match = {"kind": "predict", **dict(zip(names, shape, strict=True))}
        ours, theirs = prediction_rates(records, **match)
        same_points = bool(results(records, "dgpsi", **match))
        memory = [most(records, "predict_peak_mb", side, **match) for side in SIDES]
        rows.append(
            [
                *_texts(shape),
                number(ours, ".4g"),
                number(theirs, ".4g", "" if same_points or theirs is None else "*"),
                number(ratio(ours, theirs), ".1f", "x"),
                *(number(peak, ".0f") for peak in memory),
            ]
        )
    head = ("kernel", "layers", "n", "points", *SIDES, "ratio", "deepemu MB", "dgpsi MB")
    title = (
        f"prediction: points per second, mean and variance, {N_IMPUTATIONS} imputations "
        "(*: rate at fewer points); peak memory while predicting"
    )
    return Table(title, head, rows)


class Reached(NamedTuple):
    """The cheapest effort that is as accurate as dgpsi; medians over the seeds."""

    effort: str
    nrmsep: float
    seconds: float
    compile_s: float


def reached(records: list[Record], problem: str) -> Reached | None:
    """None where no effort reaches the median NRMSEP of dgpsi, or one side is missing."""
    target = middle(records, "nrmsep", "dgpsi", kind="accuracy", problem=problem)
    runs = results(records, "deepemu", kind="accuracy", problem=problem)
    if target is None or not runs:
        return None
    tried: dict[str, list[Record]] = {}
    for effort_of_seed in (each for run in runs for each in run["efforts"]):
        name = f"{effort_of_seed['n_chains']} x {effort_of_seed['n_iter']}"
        tried.setdefault(name, []).append(effort_of_seed)
    compile_s = statistics.median(run["compile_s"] for run in runs)
    found = [
        Reached(
            name,
            *(statistics.median(each[field] for each in seeds) for field in ("nrmsep", "seconds")),
            compile_s,
        )
        for name, seeds in tried.items()
    ]
    enough = [option for option in found if option.nrmsep <= target]
    return min(enough, key=lambda option: option.seconds, default=None)


def accuracy_ratio(records: list[Record], problem: str) -> float | None:
    ours = reached(records, problem)
    theirs = middle(records, "seconds", "dgpsi", kind="accuracy", problem=problem)
    return None if ours is None else ratio(theirs, ours.seconds)


def accuracy_table(records: list[Record]) -> Table:
    rows = []
    for (problem,) in distinct(records, "accuracy", "problem"):
        ours, match = reached(records, problem), {"kind": "accuracy", "problem": problem}
        theirs = [middle(records, name, "dgpsi", **match) for name in ("nrmsep", "seconds")]
        rows.append(
            [
                problem,
                *(number(value, ".4g") for value in theirs),
                *(("none",) if ours is None else (ours.effort,)),
                *(number(value, ".4g") for value in ((None,) * 3 if ours is None else ours[1:])),
                number(accuracy_ratio(records, problem), ".1f", "x"),
            ]
        )
    head = (
        "problem", "dgpsi NRMSEP", "dgpsi s", "chains x iterations", "NRMSEP", "s", "compile s",
        "ratio",
    )  # fmt: skip
    return Table("time to dgpsi's accuracy: cheapest effort that reaches it, medians", head, rows)


def start_table(records: list[Record]) -> Table:
    rows = []
    for side in SIDES if distinct(records, "start") else ():
        names = (
            "warm_import_s", "cold_s", "cold_cpu_s", "warm_s", "warm_cpu_s",
            "cold_compile_s", "warm_compile_s", "cold_peak_mb",
        )  # fmt: skip
        found = [best(records, name, side, kind="start") for name in names]
        rows.append([side, *(number(value, ".3g") for value in found)])
    head = (
        "side", "import s", "cold s", "cold cpu s", "warm s", "warm cpu s",
        "XLA cold s", "XLA warm s", "peak MB",
    )  # fmt: skip
    return Table("start of a process to the first prediction of the step function", head, rows)


def command_table(records: list[Record]) -> Table:
    names = ("cold_s", "cold_cpu_s", "warm_s", "warm_cpu_s")
    found = [best(records, name, "deepemu", kind="command") for name in names]
    rows = [] if found[0] is None else [[number(value, ".3g") for value in found]]
    head = ("cold s", "cold cpu s", "warm s", "warm cpu s")
    return Table(f"deepemu fit of a table of {COMMAND_ROWS} runs, d = 3", head, rows)


def compile_table(records: list[Record]) -> Table:
    names = ("compilations", "compile_s", "fit_s")
    found = [best(records, name, "deepemu", kind="compile") for name in names]
    rows = [] if found[0] is None else [[number(value, ".3g") for value in found]]
    head = ("compilations", "seconds", "with tracing and one iteration")
    return Table("XLA compilation of a default fit, n = 100, d = 3", head, rows)


def over_floor(records: list[Record], n: int) -> float | None:
    """Time of an iteration over the LAPACK time of its factorisations, at their best both."""
    match = {"kind": "floor", "n": n}
    count, dpotrf = (
        best(records, name, "deepemu", **match) for name in ("factorisations", "dpotrf_s")
    )
    lapack = None if count is None or dpotrf is None else count * dpotrf
    return ratio(iteration_seconds(records, "deepemu", **match), lapack)


def floor_table(records: list[Record]) -> Table:
    rows = []
    for (n,) in distinct(records, "floor", "n"):
        match = {"kind": "floor", "n": n}
        found = [
            iteration_seconds(records, "deepemu", **match),
            *(best(records, name, "deepemu", **match) for name in ("factorisations", "dpotrf_s")),
            over_floor(records, n),
        ]
        rows.append([str(n), *(number(value, ".4g") for value in found)])
    head = ("n", "s per iteration", "factorisations", "dpotrf s", "time over floor")
    return Table("training over the LAPACK time of its factorisations", head, rows)


def default_table(records: list[Record]) -> Table:
    theirs = best(records, "fit_s", "dgpsi", kind="default")
    rows = []
    for label, side, prefix in (
        ("deepemu, first fit, compile included", "deepemu", ""),
        ("deepemu, second fit", "deepemu", "second_"),
        ("dgpsi, numba warm", "dgpsi", ""),
    ):
        names = ("fit_s", "fit_cpu_s", "compilations", "compile_s")
        found = [best(records, prefix + name, side, kind="default") for name in names]
        if found[0] is not None:
            gain = ratio(theirs, found[0]) if side == "deepemu" else None
            texts = [number(value, ".4g") for value in found]
            rows.append([label, *texts, number(gain, ".1f", "x")])
    head = ("default fit of Vega, design 0", "s", "cpu s", "compilations", "compile s", "ratio")
    return Table("default fit: n = 100, d = 3, Matérn-5/2", head, rows)


TABLES = (
    train_table,
    growth_table,
    predict_table,
    accuracy_table,
    start_table,
    command_table,
    compile_table,
    floor_table,
    default_table,
)


# --- bars ----------------------------------------------------------------------------------------


def least(found: list[float | None]) -> float | None:
    return min((value for value in found if value is not None), default=None)


def train_ratio(records: list[Record], n: int) -> float | None:
    """The worst ratio over depths and sweeps, with dgpsi's default kernel."""
    found = []
    for depth, sweep in distinct(records, "train", "depth", "sweep"):
        match = {"kind": "train", "kernel": MAIN_KERNEL, "depth": depth, "sweep": sweep, "n": n}
        ours, theirs = both(records, **match)
        found.append(ratio(theirs, ours))
    return least(found)


def _most_points(records: list[Record], n: int) -> list[Job]:
    """For each depth the prediction job at size n with the most points."""
    jobs = distinct(records, "predict", "kernel", "depth", "n", "n_test")
    counts = {
        depth: max(j[3] for j in jobs if j[:3] == (MAIN_KERNEL, depth, n))
        for kernel, depth, size, _ in jobs
        if kernel == MAIN_KERNEL and size == n
    }
    return [
        {"kind": "predict", "kernel": MAIN_KERNEL, "depth": depth, "n": n, "n_test": n_test}
        for depth, n_test in counts.items()
    ]


def predict_ratio(records: list[Record], n: int) -> float | None:
    """The worst ratio over depths, with dgpsi's default kernel."""
    rates = [prediction_rates(records, **job) for job in _most_points(records, n)]
    return least([ratio(*pair) for pair in rates])


def predict_memory_gb(records: list[Record], n: int) -> float | None:
    """Most memory of deepemu while predicting, over depths."""
    peaks = [most(records, "predict_peak_mb", "deepemu", **j) for j in _most_points(records, n)]
    return max((peak / 1000 for peak in peaks if peak is not None), default=None)


def bars(records: list[Record]) -> list[Bar]:
    """Every bar with what was measured; training and prediction count with the worst structure."""
    start = [
        Bar(
            f"{phase} start to first prediction",
            best(records, f"{phase}_s", "deepemu", kind="start"),
            limit,
            " s",
            False,
        )
        for phase, limit in START_BARS.items()
    ]
    return [
        *(
            Bar(f"SEM iterations per second, n = {n}", train_ratio(records, n), limit, "x", True)
            for n, limit in TRAIN_BARS.items()
        ),
        *(
            Bar(f"time to dgpsi's accuracy, {name}", accuracy_ratio(records, name),
                ACCURACY_BAR, "x", True)
            for name in PROBLEMS
        ),
        *(
            Bar(f"prediction, n = {n}", predict_ratio(records, n), limit, "x", True)
            for n, limit in PREDICT_BARS.items()
        ),
        *(
            Bar(f"memory while predicting, n = {n}", predict_memory_gb(records, n),
                MEMORY_BAR_GB, " GB", False)
            for n in PREDICT_BARS
        ),
        Bar(
            f"training over dpotrf, n = {FLOOR_SIZE}",
            over_floor(records, FLOOR_SIZE),
            FLOOR_BAR,
            "",
            False,
        ),
        *start,
        Bar("import", best(records, "warm_import_s", "deepemu", kind="start"),
            IMPORT_BAR, " s", False),
        Bar("deepemu fit of a table, programs on disk",
            best(records, "warm_s", "deepemu", kind="command"), COMMAND_BAR, " s", False),
        Bar("XLA compilation of a default fit",
            best(records, "compile_s", "deepemu", kind="compile"), COMPILE_BAR, " s", False),
    ]  # fmt: skip


# --- command line --------------------------------------------------------------------------------


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sections", nargs="+", choices=PLANS, default=list(PLANS), metavar="NAME")
    add("--sides", nargs="+", choices=SIDES, default=list(SIDES), metavar="NAME")
    add("--sizes", nargs="+", type=positive, default=list(SIZES), metavar="N")
    add("--depths", nargs="+", type=positive, default=[2, 3], metavar="LAYERS")
    add("--sweeps", nargs="+", choices=("layer", "node"), default=["layer", "node"])
    add("--kernels", nargs="+", choices=LENGTHSCALES, default=[MAIN_KERNEL], metavar="NAME")
    add("--repeats", type=positive, default=3)
    add("--json", type=Path, help="file of results, brought up to date after every measurement")
    add("--resume", action="store_true", help="take finished measurements from the --json file")
    add("--dgpsi-python", default=os.environ.get("DGPSI_PYTHON"), help="interpreter with dgpsi")
    add("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS), help="of accuracy")
    add("--seeds", type=positive, default=3, help="of accuracy")
    add("--chains", nargs="+", type=positive, default=[2, 4, 8], help="deepemu's in accuracy")
    add("--iterations", nargs="+", type=positive, default=[10, 20, 40, 80, 160],
        help="deepemu's in accuracy")  # fmt: skip
    parser.set_defaults(**TRIAL_SETTINGS)
    quick = parser.add_argument_group("for trying it out, without bars")
    add = quick.add_argument
    add("--effort", nargs=2, type=positive, metavar=("SETTLE", "TIMED"), help="iterations")
    add("--points", nargs="+", type=positive, help="numbers of test points")
    add("--floor-size", type=positive, metavar="N")
    add("--dgpsi-iterations", type=positive, help="500 is dgpsi's default")
    args = parser.parse_args(argv)
    if "dgpsi" in args.sides and not args.dgpsi_python:
        parser.error("give --dgpsi-python or set DGPSI_PYTHON, or leave it out by --sides deepemu")
    if "dgpsi" in args.sides and shutil.which(args.dgpsi_python) is None:
        parser.error(f"{args.dgpsi_python} is no interpreter that can be started")
    if args.resume and args.json is None:
        parser.error("--resume needs the file of an earlier call, by --json")
    return args


def print_head(facts: Record) -> None:
    print(f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}; one thread each")
    for side, found in facts["versions"].items():
        print(f"{side}: " + ", ".join(f"{name} {version}" for name, version in found.items()))
    if (facts["load"] or 0) > BUSY:
        print(f"the machine is not idle (load {facts['load']:.2f}): do not quote these numbers")


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    facts = {**machine(), "load": load(), "versions": versions(args)}
    print_head(facts)
    records = measure_all(args, facts)
    for build in TABLES:
        print_table(build(records))
    if not is_trial(args):
        print_table(bar_table(bars(records)))


if __name__ == "__main__":
    main()
