"""Clocks and memory of this process; standard library only, since dgpsi's environment uses it."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PEAK_RESET = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """The value of the call, its wall-clock and its cpu seconds (all threads)."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = call()
    return value, time.perf_counter() - wall, time.process_time() - cpu


def finished() -> dict[str, float]:
    """The time of day, for a process that knows when this one began, and its cpu seconds so far."""
    return {"finished": time.time(), "cpu_s": time.process_time()}


def best_seconds(call: Callable[[], Any], times: int = 3, budget_s: float = 30.0) -> float:
    """Least wall-clock seconds of several calls; no further call once the budget is spent."""
    seconds: list[float] = []
    while len(seconds) < times and sum(seconds) < budget_s:
        seconds.append(timed(call)[1])
    return min(seconds)


def peak_mb() -> float:
    """Most resident memory of this process since its start, in megabytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def with_peak_mb(call: Callable[[], Any]) -> tuple[Any, float]:
    """The value of the call, and the most resident memory of this process meanwhile.

    Linux lets a process set its high-water mark back. Elsewhere it is that of the whole life.
    """
    try:
        PEAK_RESET.write_text("5")
    except OSError:
        return call(), peak_mb()
    value = call()
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return value, int(line.split()[1]) * 1024 / 1e6
