"""Training time on one CPU thread: ``deepemu.DGP().fit`` against dgpsi, in one run.

    DGPSI_PYTHON=path/to/python python benchmarks/fit_time.py --repeats 3

Both train on Vega, design 0 (100 points, 3 inputs), each in a fresh process pinned to one core,
in turn; the best of the repeats counts. Cpu seconds are given too: where they are well below
the wall-clock seconds, something else ran on the core. A busy neighbour core inflates both, so a
ratio is worth quoting only from an otherwise idle machine.

deepemu's time includes tracing and compiling, without a cache; a second fit in the same process
shows the time without, and how often it compiled (it should not). dgpsi's numba code is loaded by
a short training first, timed apart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)

Times = dict[str, float]


# --- in the child process ------------------------------------------------------------------------


@contextmanager
def counted_compilations() -> Iterator[list[float]]:
    """A list that receives the seconds of every XLA compilation inside the block."""
    from jax import monitoring

    seconds: list[float] = []
    active = True

    def listen(event: str, duration: float, **_) -> None:
        if active and event == COMPILE_EVENT:
            seconds.append(duration)

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seconds
    finally:
        active = False  # there is no public way to take a listener out again


def timed_fit(X, y) -> Times:
    """Wall and cpu seconds of one default fit, with the number and seconds of compilations."""
    import deepemu

    with counted_compilations() as compilations:
        wall, cpu = time.perf_counter(), time.process_time()
        deepemu.DGP(random_state=0).fit(X, y)
        times = {"fit_s": time.perf_counter() - wall, "fit_cpu_s": time.process_time() - cpu}
    return {**times, "compilations": len(compilations), "compile_s": sum(compilations)}


def fit_deepemu() -> Times:
    """Two fits in this process, the first with everything still to be compiled."""
    from problems import load_design

    start = time.perf_counter()
    import deepemu  # noqa: F401

    imported = time.perf_counter() - start
    design = load_design("vega", 0)
    first, second = (timed_fit(design.X, design.y) for _ in range(2))
    return {"import_s": imported, **first, **{f"second_{k}": v for k, v in second.items()}}


# --- in the parent -------------------------------------------------------------------------------


def one_thread_environment() -> dict[str, str]:
    """This environment with every library held to one thread and JAX's disk cache off."""
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    return {
        **environment,
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
    }


def pinned(command: list[str]) -> list[str]:
    """The command held to one core, where the system has taskset."""
    if shutil.which("taskset") is None:
        return command
    return ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command]


def run_child(command: list[str]) -> Times:
    """Start the command and read the JSON in the last line that it prints."""
    done = subprocess.run(
        pinned(command),
        env=one_thread_environment(),
        cwd=HERE,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed with exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def side_commands(args: argparse.Namespace) -> dict[str, list[str]]:
    commands = {
        "deepemu": [sys.executable, str(HERE / "fit_time.py"), "--child"],
        "dgpsi": [args.dgpsi_python, str(HERE / "_dgpsi_fit.py")],
    }
    return {side: commands[side] for side in args.sides}


def measure(args: argparse.Namespace) -> dict[str, list[Times]]:
    """All repeats of both sides, one after the other in turn."""
    times: dict[str, list[Times]] = {side: [] for side in args.sides}
    for repeat in range(args.repeats):
        for side, command in side_commands(args).items():
            times[side].append(run_child(command))
            print(f"[{repeat + 1}/{args.repeats}] {side}: {times[side][-1]}", file=sys.stderr)
    return times


def best(repeats: list[Times], name: str) -> float:
    return min(times[name] for times in repeats)


def _line(label: str, repeats: list[Times], name: str, detail: str) -> str:
    wall, cpu = best(repeats, f"{name}_s"), best(repeats, f"{name}_cpu_s")
    return f"{label:<31}{wall:8.2f} s, cpu {cpu:8.2f} s   ({detail})"


def describe_deepemu(repeats: list[Times]) -> list[str]:
    compiled = f"{best(repeats, 'compile_s'):.2f} s in {best(repeats, 'compilations'):.0f}"
    again = max(times["second_compilations"] for times in repeats)
    first = f"{compiled} compilations; import {best(repeats, 'import_s'):.2f} s"
    return [
        _line("deepemu fit, compile included", repeats, "fit", first),
        _line("deepemu second fit", repeats, "second_fit", f"{again} compilations, expected 0"),
    ]


def describe_dgpsi(repeats: list[Times]) -> list[str]:
    slowest = max(times["warm_up_s"] for times in repeats)
    warm_up = f"short first training {best(repeats, 'warm_up_s'):.2f}-{slowest:.2f} s"
    detail = f"{warm_up}; import {best(repeats, 'import_s'):.2f} s"
    return [_line("dgpsi training, numba warm", repeats, "fit", detail)]


def describe_ratio(times: dict[str, list[Times]], name: str) -> str:
    """How many times longer dgpsi takes than the named deepemu fit, by wall clock and by cpu."""
    wall, cpu = (
        best(times["dgpsi"], f"fit{unit}") / best(times["deepemu"], f"{name}{unit}")
        for unit in ("_s", "_cpu_s")
    )
    return f"{'dgpsi / deepemu ' + name.replace('_', ' '):<31}{wall:8.2f}  , cpu {cpu:8.2f}"


def report(times: dict[str, list[Times]]) -> None:
    describe = {"deepemu": describe_deepemu, "dgpsi": describe_dgpsi}
    print("vega design 0: n = 100, d = 3, one thread, best of the repeats")
    for side, repeats in times.items():
        print(*describe[side](repeats), sep="\n")
    if set(times) == set(describe):
        print(*(describe_ratio(times, name) for name in ("fit", "second_fit")), sep="\n")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--dgpsi-python", default=os.environ.get("DGPSI_PYTHON"), help="interpreter with dgpsi")
    add("--repeats", type=int, default=3)
    add("--sides", nargs="+", choices=("deepemu", "dgpsi"), default=["deepemu", "dgpsi"])
    add("--json", type=Path, help="file for the times of every repeat")
    add("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if "dgpsi" in args.sides and not args.dgpsi_python and not args.child:
        parser.error("give --dgpsi-python or set DGPSI_PYTHON, or leave it out by --sides deepemu")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    if args.child:
        print(json.dumps(fit_deepemu()))
        return
    times = measure(args)
    if args.json is not None:
        args.json.write_text(json.dumps(times, indent=1))
    report(times)


if __name__ == "__main__":
    main()
