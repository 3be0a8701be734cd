"""A Ctrl-C that waits for the current block."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupt:
    """Set once the user has pressed Ctrl-C."""

    requested = False


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Turn the first Ctrl-C into a request; a second one interrupts at once.

    Signal handlers belong to the main thread; in any other, Ctrl-C keeps its meaning.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    before = signal.getsignal(signal.SIGINT)

    def note(signum: int, frame: Any) -> None:
        interrupt.requested = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
