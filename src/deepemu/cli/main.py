"""The entry point of the command ``deepemu``."""

import argparse
import sys
from collections.abc import Sequence

from deepemu.cli.arguments import build_parser
from deepemu.cli.commands import COMMANDS
from deepemu.cli.messages import DONE, INTERRUPTED, excused, show, text_of, warnings_in_one_line
from deepemu.errors import DeepemuWarning, FileError, InputError, InterruptedFitWarning, warn
from deepemu.runtime.cache import use_compilation_cache


def run() -> None:
    """The entry point of the installed command."""
    sys.exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = build_parser().parse_args(arguments)
    try:
        return _run(options)
    except (Exception, KeyboardInterrupt) as error:
        return excused(error)


def _run(options: argparse.Namespace) -> int:
    if sys.stdout is None:
        raise FileError("Standard output is closed; give the command somewhere to write to.")
    with warnings_in_one_line() as warned:
        _keep_programs()
        text, facts = COMMANDS[options.command](options)
    show(options, text, facts | {"warnings": [text_of(each) for each in warned]})
    interrupted = any(isinstance(each, InterruptedFitWarning) for each in warned)
    return INTERRUPTED if interrupted else DONE


def _keep_programs() -> None:
    """In the user's cache folder, if it can be written: it only saves time."""
    try:
        use_compilation_cache()
    except InputError as error:
        warn(f"{error} Set XDG_CACHE_HOME to it.", DeepemuWarning)
