"""A progress line for long work."""

import sys
import time
from typing import Self

BAR_WIDTH = 24
SECONDS_BETWEEN_LINES = 10.0
SHARE_THAT_TELLS = 0.05


class Progress:
    """Writes ``label ████░░ 40 % 3 s left`` to standard error.

    A terminal shows one line that is rewritten; a log gets a line without the bar every ten
    seconds, and at the end.
    """

    def __init__(self, label: str, total: int, shown: bool) -> None:
        self._label, self._total, self._shown = label, total, shown
        self._done = self._done_before = 0
        self._on_terminal = shown and sys.stderr.isatty()
        self._began = self._last_line = time.monotonic()

    def advance(self, amount: int = 1) -> None:
        self._done += amount
        if self._on_terminal:
            self._write("\r" + self.line() + "\x1b[K")
        elif self._shown and time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._write(self.plain_line() + "\n")

    def resume(self, amount: int) -> None:
        """Count steps that an earlier process made: they tell nothing of the time left."""
        self._done += amount
        self._done_before += amount

    def reach(self, done: int, total: int) -> None:
        """Continue at ``done`` of a new total."""
        self._total = total
        self.advance(done - self._done)

    def skip(self, amount: int) -> None:
        """Remove steps that will not be run from the total."""
        self._total -= amount

    def line(self) -> str:
        filled = round(self._share() * BAR_WIDTH)
        bar = "█" * filled + "░" * (BAR_WIDTH - filled)
        return f"{self._label} {bar} {self._share():4.0%}  {self._times()}"

    def plain_line(self) -> str:
        return f"{self._label}: {self._share():.0%} done, {self._times()}"

    def _share(self) -> float:
        return min(self._done / max(self._total, 1), 1.0)

    def _spent(self) -> float:
        return time.monotonic() - self._began

    def _times(self) -> str:
        """Time spent and left; the latter once enough is done to tell."""
        spent, done = self._spent(), self._done - self._done_before
        if done < SHARE_THAT_TELLS * max(self._total - self._done_before, 1):
            return f"{spent:.0f} s"
        left = spent * max(self._total - self._done, 0) / done
        return f"{spent:.0f} s, {left:.0f} s left"

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._on_terminal:
            self._write("\n")
        elif self._shown and kind is None:
            self._write(f"{self._label}: ended after {self._spent():.0f} s\n")


def say(text: str) -> None:
    """A line on standard error, between progress lines."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def wants_progress(verbose: bool | None) -> bool:
    """``None`` means: on a terminal."""
    return sys.stderr.isatty() if verbose is None else bool(verbose)
