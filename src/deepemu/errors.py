"""Everything that this package raises or warns with."""


class DeepemuError(Exception):
    """Base class of all errors raised by deepemu."""


class InputError(DeepemuError, ValueError):
    """What the user passed cannot be used; the message says what to change."""


class FileError(DeepemuError, ValueError):
    """A file is not what it should be; the message says what is wrong with it."""


class NumericalError(DeepemuError, ArithmeticError):
    """A computation that should be finite was not."""


class DeepemuWarning(UserWarning):
    """Base class of all warnings issued by deepemu."""


class DataWarning(DeepemuWarning):
    """The data can be used, but something about them deserves a look."""


class InterruptedFitWarning(DeepemuWarning):
    """Training was stopped early; the emulator uses what had been computed."""


class ConvergenceWarning(DeepemuWarning):
    """The emulator works, but its error bars deserve distrust; the message says what to do."""
