"""Settings of the estimators as arguments of the command, there and back."""

import argparse

from deepemu.errors import DeepemuError, Message, Setting
from deepemu.estimators.base import BaseEmulator
from deepemu.estimators.dgp import DGP
from deepemu.estimators.emulator import Emulator
from deepemu.estimators.gp import GP

MODELS: dict[str, type[BaseEmulator]] = {"auto": Emulator, "dgp": DGP, "gp": GP}
# The argument that stands for a setting or a class of the library.
ARGUMENTS = {
    "Emulator": "--model auto",
    "DGP": "--model dgp",
    "max_depth": "--depth",
    "depth": "--depth",
    "kernel": "--kernel",
    "n_chains": "--chains",
    "n_iter": "--iterations",
    "effort": "--effort",
    "time_limit": "--time-limit",
    "checkpoint": "--checkpoint",
    "nugget": "--noise",
    "observation": "--observation",
    "random_state": "--seed",
    "device": "--device",
}


class WrongArgumentsError(DeepemuError):
    """Arguments that are valid one by one but not together."""


def estimator_of(options: argparse.Namespace, verbose: bool) -> BaseEmulator:
    """The estimator that the arguments of ``fit`` describe."""
    kind = MODELS[options.model]
    known = kind().get_params()
    asked = {
        "max_depth" if options.model == "auto" else "depth": options.depth,
        "kernel": options.kernel,
        "n_chains": options.chains,
        "n_iter": options.iterations,
        "effort": options.effort,
        "time_limit": options.time_limit,
        "checkpoint": options.checkpoint,
        "nugget": "estimate" if options.noise else None,
        "observation": options.observation,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    for name in given:
        if name not in known:
            raise WrongArgumentsError(
                f"{ARGUMENTS[name]} does not go with --model {options.model}; leave one of them "
                "out."
            )
    always = {"random_state": options.seed, "device": options.device, "verbose": verbose}
    return kind(**given, **{name: value for name, value in always.items() if name in known})


def in_arguments(text: str) -> str:
    """A text of the package with arguments of the command for the settings that it names."""
    return text.phrased(_argument) if isinstance(text, Message) else text


def _argument(setting: Setting) -> str | None:
    """The argument with its value; None if the command has none."""
    argument = ARGUMENTS.get(setting.name)
    if setting.name == "nugget":  # can be estimated, but not given
        return argument if setting.value == "estimate" else None
    is_bare = argument is None or setting.value is None
    return argument if is_bare else f"{argument} {setting.value}"
