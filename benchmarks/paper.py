"""Rerun the experiments of the stochastic-imputation paper, trial by trial.

    python benchmarks/paper.py                       # every trial of every experiment: hours
    python benchmarks/paper.py --quick               # a tenth of the trials, at least six
    python benchmarks/paper.py --problems step --methods si si-ic --trials 10

One training set per experiment, as in the paper; a trial is a new seed. Every trial leaves a file
in ``trials`` in the folder of the results, and what is there is not run again, so that an
interrupted run goes on where it stopped. At the end all of them are gathered in ``paper.csv`` (one
line per trial) and ``paper_predictions.npz`` (predictions that the figures need), from which
``paper_figures.py`` draws. ``--publish`` puts both into ``data/`` too, where the stored ones are.

Methods: ``gp`` is a plain process with the robust prior; ``si`` and ``si-ic`` are stochastic
imputation with the settings of the paper; ``fb`` samples the parameters too, with the same network
and one chain; ``default`` is ``DGP()``, several weighted chains; ``default-se`` is the same with
the paper's kernel, which tells what chains do from what kernels do; ``emulator`` is ``Emulator()``.
With ``--device gpu`` the trials of ``si``, ``si-ic`` and ``fb`` are the chains of one fit each, in
step, and the others one fit each; times are not measured then.
``dsvi`` is GPflux, by the interpreter of ``--gpflux-python``; ``deepgp`` is the R package, where
Rscript finds it. Where one is missing a line says so, and the rest is run.
"""

from __future__ import annotations

import argparse
import copy
import functools
import hashlib
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from _report import machine
from _timing import timed
from paper_store import (
    DESIGN,
    TABLE,
    Record,
    Stored,
    Trial,
    at_the_runs,
    names_in,
    path_of,
    read_trial,
    store,
    stored,
    trial_of,
    write_table,
)
from peers import answer_of
from problems import DATA, Design, load_design

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent / "build"
QUICK_SHARE = 0.1
FEWEST = 6  # trials of a method that a verdict needs: with five no rank test against one value,
# that of a plain process, can be clear
# Trials of one structure that a process runs, so that it starts and compiles once for them.
TOGETHER = {"step": 10}
TOGETHER_ELSEWHERE = 2
LONGEST_PEER = 7200.0  # seconds that a trial of another package may take
ROUND = 10  # trials of everything before the next ones of anything


@dataclass(frozen=True)
class Experiment:
    """How often the paper repeats an experiment, and the depths of its networks."""

    trials: int
    depths: tuple[int, ...]


EXPERIMENTS = {
    "step": Experiment(100, (3,)),
    "vega": Experiment(40, (2, 3, 4)),
    "delta": Experiment(40, (2, 3, 4)),
    "gamma": Experiment(40, (2, 3, 4)),
    "fived": Experiment(20, (2, 3)),
    "engine": Experiment(40, (2, 3, 4)),
}
OURS = ("gp", "si", "si-ic", "fb", "default", "default-se", "emulator")
PEERS = ("dsvi", "deepgp")
IN_STEP = ("si", "si-ic", "fb")  # one chain a trial: trials may be the chains of one fit
METHODS = (*OURS, *PEERS)
WITHOUT_DEPTH = ("gp", "emulator")
# The paper has no deeper ones, because deepgp has none; ours is kept to the same.
DEEPEST = {"fb": 3, "deepgp": 3}
KERNEL = {"kernel": "squared_exponential", "lengthscale": "shared"}
NO_SETTINGS = ("random_state", "device", "n_jobs", "verbose")  # they have columns, or no effect
# One sweep and one move of the parameters an iteration, as in deepgp, with its burn-in.
FULL_BAYES = {"inference": "full_bayes", "n_iter": 8000, "n_sweeps": 1, "n_scoring": 1}


# --- what to run ---------------------------------------------------------------------------------


def depths(problem: str, method: str) -> tuple[int, ...]:
    if method in WITHOUT_DEPTH:
        return (0,)
    return tuple(d for d in EXPERIMENTS[problem].depths if d <= DEEPEST.get(method, d))


def n_trials(problem: str, method: str, options: argparse.Namespace) -> int:
    """As in the paper, or as asked for; a plain process has no randomness."""
    if method == "gp":
        return 1
    all_of_them = EXPERIMENTS[problem].trials
    if options.trials is not None:
        return min(options.trials, all_of_them)
    return max(FEWEST, round(QUICK_SHARE * all_of_them)) if options.quick else all_of_them


def planned(options: argparse.Namespace) -> list[Trial]:
    """The first trials of everything first, so that an interrupted run has some of each."""
    trials = [
        Trial(problem, method, depth, number)
        for problem in options.problems
        for method in options.methods
        for depth in depths(problem, method)
        if options.depths is None or depth in (0, *options.depths)
        for number in range(n_trials(problem, method, options))
    ]
    return sorted(trials, key=lambda trial: trial.number // ROUND)


def batches(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Trials of one structure, a few at a time."""

    def batch(trial: Trial) -> tuple[Any, ...]:
        size = TOGETHER.get(trial.problem, TOGETHER_ELSEWHERE)
        return (*trial[:3], trial.number // size)

    return grouped(trials, batch)


def grouped(trials: Iterable[Trial], key: Callable[[Trial], tuple[Any, ...]]) -> list[list[Trial]]:
    """Trials with the same key together, in the order of their first ones."""
    found: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in trials:
        found.setdefault(key(trial), []).append(trial)
    return list(found.values())


# --- one trial -----------------------------------------------------------------------------------


def estimator(trial: Trial) -> Any:
    """Unfitted, with the number of the trial as its seed; one thread on a CPU."""
    from deepemu import DGP, GP, Emulator

    common = {"random_state": trial.number, "device": "cpu", "n_jobs": 1}
    deep = common | {"verbose": False}
    match trial.method:
        case "gp":
            return GP("squared_exponential", **common)
        case "emulator":
            return Emulator(**deep)
        case "default":
            return DGP(depth=trial.depth, **deep)
        case "default-se":
            return DGP(depth=trial.depth, **KERNEL, **deep)
        case "fb":
            return DGP.paper(depth=trial.depth, **FULL_BAYES, **deep)
        case "si" | "si-ic":
            connected = trial.method == "si-ic"
            return DGP.paper(depth=trial.depth, connect_input=connected, **deep)
    raise ValueError(f"{trial.method} is not a method of this package")


def settings_of(model: Any) -> str:
    """What the estimator is given that it does not have by itself, such as ``DGP(depth=3)``."""
    usual = type(model)().get_params(deep=False)
    given = [
        f"{name}={value!r}"
        for name, value in model.get_params(deep=False).items()
        if name not in NO_SETTINGS and value != usual[name]
    ]
    return f"{type(model).__name__}({', '.join(given)})"


def run_trial(trial: Trial) -> tuple[Record, np.ndarray, np.ndarray]:
    """Record, means and standard deviations of a trial. Nothing is compiled for it."""
    data, model = load_design(trial.problem, DESIGN), estimator(trial)
    _, _, fit_cpu_s = timed(lambda: model.fit(data.X, data.y))
    (mean, std), _, predict_cpu_s = timed(lambda: model.predict(data.X_test, return_std=True))
    seconds = {"fit_cpu_s": fit_cpu_s, "predict_cpu_s": predict_cpu_s, "device": "cpu"}
    return seconds | interpolation(model, data), mean, std


def interpolation(model: Any, data: Design) -> Record:
    """What the emulator says at its own runs."""
    return at_the_runs(model.predict(data.X, return_std=True)[1], data.y)


def compile_for(trial: Trial) -> None:
    """Fit and predict with as few iterations as there may be: they are no part of a shape."""
    data, model = load_design(trial.problem, DESIGN), estimator(trial)
    if trial.method != "gp":
        model.set_params(n_iter=2)
    model.fit(data.X, data.y).predict(data.X_test, return_std=True)


def run_batch(trials: Sequence[Trial], folder: Path) -> list[Trial]:
    """All trials of a batch, each stored when it is done. In a process of its own."""
    warnings.simplefilter("ignore")  # of convergence: single chains are what is studied here
    compile_for(trials[0])
    for trial in trials:
        record, mean, std = run_trial(trial)
        store(folder, trial, record, facts_of(trial.number, estimator(trial)), mean, std)
    return list(trials)


def run_together(trials: Sequence[Trial], folder: Path) -> None:
    """Trials that share one fit on a GPU; the first one's number seeds it.

    Chains of ``DGP.paper`` know nothing of each other, so that each is a trial.
    """
    import jax

    first, data = trials[0], load_design(trials[0].problem, DESIGN)
    model = estimator(first).set_params(device="gpu")
    if first.method in IN_STEP:
        model.set_params(n_chains=len(trials))
    model.fit(data.X, data.y)
    emulators = chains_of(model) if first.method in IN_STEP else [model]
    facts = facts_of(first.number, model) | {"device": "gpu"}
    facts["machine"] = f"{jax.devices('gpu')[0].device_kind}, {facts['machine']}"
    for chain, (trial, alone) in enumerate(zip(trials, emulators, strict=True)):
        mean, std = alone.predict(data.X_test, return_std=True)
        store(folder, trial, interpolation(alone, data), facts | {"chain": chain}, mean, std)


def chains_of(model: Any) -> Iterator[Any]:
    """The emulators that each chain of a fit without stacking is alone."""
    posterior = model.posterior_
    for weights in np.eye(model.n_chains):
        alone = copy.copy(model)
        stacked = replace(posterior.stacked, weights=weights)
        alone.posterior_ = replace(posterior, stacked=stacked)
        yield alone


def facts_of(seed: int, model: Any) -> Record:
    """How to run a trial again: seed and chain, settings, versions, machine."""
    import jax

    import deepemu

    return {
        "seed": seed,
        "chain": 0,
        "settings": settings_of(model),
        "package": f"deepemu {deepemu.__version__}, jax {jax.__version__}",
        "source": source_digest(Path(deepemu.__file__).parent),
        **machine_words(),
    }


@functools.cache
def source_digest(folder: Path) -> str:
    """Eight digits that tell the sources of two trials apart, where their versions do not."""
    texts = [path.read_bytes() for path in sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:8]


def machine_words() -> dict[str, str]:
    return {"machine": f"{machine()['cpu']}, Python {platform.python_version()}"}


# --- other packages ------------------------------------------------------------------------------


def peer_command(trial: Trial, options: argparse.Namespace) -> list[str] | None:
    """What runs a trial of another package, or None where it is not installed."""
    if trial.method == "deepgp":
        if not has_deepgp():
            return None
        folder = as_text(trial.problem, options.folder / "designs")
        script = str(HERE / "_peer_deepgp.R")
        return ["Rscript", script, str(folder), str(trial.depth), str(trial.number)]
    if options.gpflux_python is None or not has_gpflux(options.gpflux_python):
        return None
    job = json.dumps(trial._asdict())
    return [str(options.gpflux_python), str(HERE / "_peer_gpflux.py"), job]


def has_deepgp() -> bool:
    return succeeds("Rscript", "-e", "library(deepgp)")


def has_gpflux(python: Path) -> bool:
    question = "import sys, importlib.util as u; sys.exit(u.find_spec('gpflux') is None)"
    return succeeds(str(python), "-c", question)


@functools.cache
def succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:  # there is no such program
        return False


@functools.cache
def as_text(problem: str, folder: Path) -> Path:
    """The folder with the design as tables without headers, for programs that are not Python."""
    folder = folder / problem
    folder.mkdir(parents=True, exist_ok=True)
    data = load_design(problem, DESIGN)
    for name in ("X", "y", "X_test"):
        np.savetxt(folder / f"{name}.csv", getattr(data, name), delimiter=",", fmt="%.17g")
    return folder


def run_peer(trial: Trial, command: list[str], folder: Path) -> list[Trial]:
    """Scored here, from the moments in the last line that the peer prints; a failure is told."""
    from deepemu.errors import InputError

    answer = checked_answer(answer_of(command, LONGEST_PEER))
    if "error" in answer:
        print(f"{trial.name} failed: {answer['error']}", flush=True)
        return []
    moments = (np.array(answer.pop(name), dtype=float) for name in ("mean", "std"))
    try:
        store(folder, trial, answer, facts_of_peer(trial, answer.pop("version")), *moments)
    except InputError as error:
        print(f"{trial.name} failed: its predictions have no score ({error})", flush=True)
        return []
    return [trial]


def facts_of_peer(trial: Trial, version: str) -> Record:
    return {"seed": trial.number, "chain": 0, "package": version, **machine_words()}


def checked_answer(answer: Any) -> Record:
    """The answer itself, or an error if it does not have what a trial needs."""
    needed = {"mean", "std", "version"}
    if isinstance(answer, dict) and ("error" in answer or needed <= answer.keys()):
        return answer
    return {"error": f"its last line has not all of {', '.join(sorted(needed))}"}


# --- all of them ---------------------------------------------------------------------------------


def run_on_gpu(trials: Sequence[Trial], folder: Path) -> int:
    """Trials that are chains together, structure by structure; the others one by one.

    Returns the number of trials that failed.
    """
    for method in dict.fromkeys(trial.method for trial in trials if trial.method in PEERS):
        print(f"{method} is left out: it is not run on a GPU", flush=True)
    ours = [trial for trial in trials if trial.method in OURS]
    n_failed = 0
    for group in grouped(ours, lambda trial: trial[:3] if trial.method in IN_STEP else trial):
        start = time.perf_counter()
        try:
            run_together(group, folder)
        except Exception as error:  # noqa: BLE001 - the next ones may do without it
            n_failed += len(group)
            print(failure(group, error), flush=True)
        else:
            print(f"{time.perf_counter() - start:.0f} s: {words_for(group)}", flush=True)
    return n_failed


def words_for(batch: Sequence[Trial]) -> str:
    return batch[0].name if len(batch) == 1 else f"{batch[0].name} and {len(batch) - 1} more"


def failure(batch: Sequence[Trial], error: Exception) -> str:
    return f"{words_for(batch)} failed: {type(error).__name__}: {error}"


def run_all(trials: Sequence[Trial], options: argparse.Namespace) -> int:
    """In processes of one thread each, with a line for everything that is done or has failed.

    Returns the number of trials that failed.
    """
    commands = peer_commands([trial for trial in trials if trial.method in PEERS], options)
    left = [trial for trial in trials if trial.method in OURS or trial in commands]
    n_done, start = 0, time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        options.workers, mp_context=spawn, max_tasks_per_child=1, initializer=end_at_interrupt
    ) as pool:
        try:
            jobs = dict(submitted(pool, left, commands, trials_in(options.folder)))
            for job in as_completed(jobs):
                finished, what = finished_in(job, jobs[job])
                n_done += finished
                minutes = (time.perf_counter() - start) / 60
                print(f"[{n_done}/{len(left)}] {minutes:.1f} min: {what}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return len(left) - n_done


def end_at_interrupt() -> None:
    """Without a traceback: the parent says that it was stopped."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def submitted(
    pool: ProcessPoolExecutor,
    trials: Sequence[Trial],
    commands: dict[Trial, list[str]],
    folder: Path,
) -> Iterator[tuple[Future[list[Trial]], list[Trial]]]:
    """Jobs in the order of the trials, and what each runs."""
    for batch in batches(trials):
        if batch[0] not in commands:
            yield pool.submit(run_batch, batch, folder), batch
            continue
        for trial in batch:
            yield pool.submit(run_peer, trial, commands[trial], folder), [trial]


def finished_in(job: Future[list[Trial]], batch: Sequence[Trial]) -> tuple[int, str]:
    """How many trials are done, and the words for it; a failure does not end the others."""
    try:
        n_finished = len(job.result())
    except Exception as error:  # noqa: BLE001 - whatever it is, the next trial may do without it
        return 0, failure(batch, error)
    return n_finished, words_for(batch) if n_finished else f"nothing of {words_for(batch)}"


HOW_TO_HAVE = {
    "dsvi": "--gpflux-python names the interpreter of an environment that has GPflux",
    "deepgp": "it needs Rscript and the R package deepgp",
}


def peer_commands(trials: Sequence[Trial], options: argparse.Namespace) -> dict[Trial, list[str]]:
    found = {trial: peer_command(trial, options) for trial in trials}
    for method in dict.fromkeys(trial.method for trial, command in found.items() if not command):
        print(f"{method} is left out: {HOW_TO_HAVE[method]}", flush=True)
    return {trial: command for trial, command in found.items() if command is not None}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--depths", nargs="+", type=int, help="only networks of so many layers")
    parser.add_argument("--trials", type=positive, help="at most so many of each")
    parser.add_argument(
        "--quick", action="store_true", help=f"a tenth of the trials, at least {FEWEST}"
    )
    parser.add_argument("--workers", type=positive, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, default=BUILD / "paper", help="of the results")
    parser.add_argument("--gpflux-python", type=Path, help="an interpreter that has GPflux")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--gather-only", action="store_true", help="run nothing")
    parser.add_argument("--publish", action="store_true", help="replace the stored results")
    options = parser.parse_args(arguments)
    if not planned(options):
        parser.error("there is no such trial: the experiments have other depths")
    return options


def positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def trials_in(folder: Path) -> Path:
    return folder / "trials"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 1 if a trial failed, or 130 if the run was stopped."""
    options = options_of(arguments)
    prepare(options.folder)
    status = 0 if options.gather_only else run(options)
    found = list(stored(trials_in(options.folder)))
    write_table(found, options.folder)
    sources = {each.record["source"] for each in found if "source" in each.record}
    where = options.folder / TABLE
    print(f"{len(found)} trials in {where}, of {len(sources)} versions of this package's sources")
    if options.publish:
        publish(found)
    return status


def prepare(folder: Path) -> None:
    """Say before long work that its results could not be written."""
    try:
        trials_in(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=trials_in(folder)):
            pass
    except OSError as error:
        sys.exit(f"{folder} cannot be written to ({error.strerror}); name another --folder")


def run(options: argparse.Namespace) -> int:
    folder = trials_in(options.folder)
    left = [trial for trial in planned(options) if read_trial(path_of(folder, trial)) is None]
    try:
        n_failed = run_on_gpu(left, folder) if options.device == "gpu" else run_all(left, options)
        return 1 if n_failed else 0
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130


def publish(found: Sequence[Stored]) -> None:
    """Into the stored results, unless some of those would be lost."""
    lost = names_in(DATA) - {trial_of(each.record).name for each in found}
    if lost:
        sys.exit(
            f"the stored table is kept: {len(lost)} of its trials are not here, such as "
            f"{min(lost)}; remove the table to replace it"
        )
    write_table(found, DATA)


if __name__ == "__main__":
    from speed import one_thread_environment

    if options_of(None).device == "cpu":  # the processes that are started inherit it
        os.environ.update(one_thread_environment(cache=BUILD / "cache"))
    sys.exit(main())
