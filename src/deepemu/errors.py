"""The errors and warnings of the package, and their messages."""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Self

PACKAGE = __name__.partition(".")[0]


class DeepemuError(Exception):
    """Base class of all errors raised by deepemu."""


class InputError(DeepemuError, ValueError):
    """An argument cannot be used; the message says what to change."""


class FileError(DeepemuError, ValueError):
    """A file cannot be used; the message says what is wrong with it."""


class NumericalError(DeepemuError, ArithmeticError):
    """A computation that should be finite was not."""


class DeepemuWarning(UserWarning):
    """Base class of all warnings issued by deepemu."""


class DataWarning(DeepemuWarning):
    """The data can be used, but should be checked."""


class InterruptedFitWarning(DeepemuWarning):
    """Training was interrupted; the emulator uses the iterations completed so far."""


class ConvergenceWarning(DeepemuWarning):
    """The emulator works, but its error bars may be unreliable; the message says what to do."""


@dataclass(frozen=True)
class Setting:
    """An argument of an estimator that a message names, with the value that it has or should have.

    A class can be named too: the command line knows it as another argument.
    """

    name: str
    value: bool | int | float | str | None = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"


Phrase = Callable[[Setting], str | None]
"""How a front end writes a setting; None if it has no such setting."""


class Message(str):
    """A text that knows which settings it names, so that a front end can write them its own way.

    As a string it is the library's text. A message inside a message is a clause, which is left out
    where its settings cannot be written.

    >>> clause = Message(", or pass ", Setting("stacking", False))
    >>> message = Message("train more chains (", Setting("n_chains"), ")", clause, ".")
    >>> print(message)
    train more chains (n_chains), or pass stacking=False.
    >>> message.phrased(lambda setting: {"n_chains": "--chains"}.get(setting.name))
    'train more chains (--chains).'
    """

    parts: tuple[str | Setting, ...]

    def __new__(cls, *parts: str | Setting) -> Self:
        message = super().__new__(cls, "".join(map(str, parts)))
        message.parts = parts
        return message

    def phrased(self, phrase: Phrase) -> str:
        """The text with settings as ``phrase`` writes them; as in the library where it cannot."""
        return "".join(_part(each, phrase) for each in self.parts)

    def _can_be(self, phrase: Phrase) -> bool:
        return all(phrase(each) is not None for each in self.parts if isinstance(each, Setting))


def _part(part: str | Setting, phrase: Phrase) -> str:
    match part:
        case Setting():
            return phrase(part) or str(part)
        case Message():
            return part.phrased(phrase) if part._can_be(phrase) else ""
    return part


NOT_POSITIVE_DEFINITE = Message(
    "A correlation matrix was not positive definite in double precision; ",
    Message("raise the nugget (for instance ", Setting("nugget", 1e-5), ") or "),
    "remove rows of X that nearly coincide.",
)


def warn(message: str, category: type[DeepemuWarning]) -> None:
    """Warn of the line outside the package that called it, however deep inside this is."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(category(message), stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == PACKAGE
