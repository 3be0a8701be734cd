"""The output of the command: results, warnings, one sentence about an error; and its exit codes."""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from deepemu.cli.settings import WrongArgumentsError, in_arguments
from deepemu.errors import DeepemuError, DeepemuWarning, Message

DONE, UNUSABLE, WRONG_ARGUMENTS, INTERRUPTED = 0, 1, 2, 130
# Their text is what they are for, and not a remark about a file.
ASKED_FOR = ("info", "validate")


def show(options: argparse.Namespace, text: str, facts: dict[str, Any]) -> None:
    """The result of a command, as text or as one JSON object."""
    if options.json:
        print(json.dumps(_without_nan(facts), default=str, allow_nan=False))
    elif text and (not options.quiet or options.command in ASKED_FOR):
        print(_printable(text))


def show_rows(rows: str) -> None:
    """Rows of a table on standard output: as they are, if they go to a file or another program."""
    print(_printable(rows) if sys.stdout.isatty() else rows, end="", flush=True)


def is_talkative(options: argparse.Namespace) -> bool:
    """Whether the command reports its progress."""
    return not (options.quiet or options.json)


def say(options: argparse.Namespace, line: str) -> None:
    if is_talkative(options):
        print(_printable(line), flush=True)


def complain(sentence: str) -> None:
    print(_printable(f"deepemu: {' '.join(sentence.split())}"), file=sys.stderr)


def text_of(error: BaseException | str) -> str:
    """The message of an error or a warning, in arguments of the command."""
    given = error.args if isinstance(error, BaseException) else (error,)
    is_message = len(given) == 1 and isinstance(given[0], Message)
    return in_arguments(given[0]) if is_message else str(error)


def excused(error: BaseException) -> int:
    """Report an error in one sentence; returns the exit code."""
    match error:
        case KeyboardInterrupt():
            complain("interrupted; nothing was written.")
            return INTERRUPTED
        case BrokenPipeError():  # the reader of our output has closed it
            sys.stdout = open(os.devnull, "w")
            return DONE
        case OSError():
            complain(f"{error.filename or 'file'}: {error.strerror or error}.")
        case WrongArgumentsError():
            complain(str(error))
            return WRONG_ARGUMENTS
        case DeepemuError() | ValueError() | ImportError():
            complain(text_of(error))
        case _ if os.environ.get("DEEPEMU_TRACEBACK"):
            raise error
        case _:
            complain(
                f"{type(error).__name__}: {error}. That should not happen: please report it with "
                "what DEEPEMU_TRACEBACK=1 in the environment shows."
            )
    return UNUSABLE


@contextmanager
def warnings_in_one_line() -> Iterator[list[Warning | str]]:
    """The package's own warnings go to standard error as they come, and into the list."""
    collected: list[Warning | str] = []

    def complain_of(message: Warning | str, *_: Any) -> None:
        collected.append(message)
        complain(f"warning: {text_of(message)}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", DeepemuWarning)
        warnings.showwarning = complain_of  # type: ignore[assignment]
        yield collected


def _printable(text: str) -> str:
    """Replace control characters, so that names from files cannot control the terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _without_nan(facts: Any) -> Any:
    """None for NaN and infinity, which JSON does not have."""
    if isinstance(facts, dict):
        return {name: _without_nan(each) for name, each in facts.items()}
    if isinstance(facts, list | tuple):
        return [_without_nan(each) for each in facts]
    return None if isinstance(facts, float) and not np.isfinite(facts) else facts
