"""Observation models by name."""

from deepemu.data.checks import is_real, require
from deepemu.observations.gaussian import GaussianNoise, Interpolated, PerhapsNoise
from deepemu.observations.model import Observation

NAMES = ("gaussian",)
# A nugget up to this one is there for the arithmetic; a larger one is noise. (It may come back from
# its logarithm with an error in the last digit.)
INTERPOLATES = 1e-6 * (1.0 + 1e-9)


def observation_of(choice: object, nugget: object) -> Observation:
    """The model that a user named, or the object that was passed.

    With "gaussian", outputs have noise if the last layer's nugget is estimated, or above 1e-6, and
    may have some if it is to be found.
    """
    if isinstance(choice, str) and choice in NAMES:
        if isinstance(nugget, str) and nugget == "auto":
            return PerhapsNoise()
        without_noise = is_real(nugget) and nugget <= INTERPOLATES
        return Interpolated() if without_noise else GaussianNoise()
    is_model = not isinstance(choice, type) and hasattr(choice, "log_density_of")
    listed = ", ".join(map(repr, NAMES))
    require(is_model, f"observation is {choice!r}; it must be {listed} or an observation model.")
    return choice  # type: ignore[return-value]
