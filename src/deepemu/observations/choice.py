"""Observation models by name."""

from deepemu.data.checks import is_real, require
from deepemu.observations.binomial import Binomial
from deepemu.observations.counts import (
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from deepemu.observations.gaussian import GaussianNoise, Interpolated, PerhapsNoise
from deepemu.observations.model import Observation
from deepemu.observations.noise import HeteroscedasticNoise, KnownNoise
from deepemu.observations.student import StudentT

GAUSSIAN = "gaussian"
MODELS: dict[str, Observation] = {
    "heteroscedastic": HeteroscedasticNoise(),
    "poisson": Poisson(),
    "negative_binomial": NegativeBinomial(),
    "zero_inflated_poisson": ZeroInflatedPoisson(),
    "zero_inflated_negative_binomial": ZeroInflatedNegativeBinomial(),
    "binomial": Binomial(),
    "student_t": StudentT(),
}
NAMES = (GAUSSIAN, *MODELS)
# A nugget up to this one is there for the arithmetic; a larger one is noise. (It may come back from
# its logarithm with an error in the last digit.)
INTERPOLATES = 1e-6 * (1.0 + 1e-9)


def observation_of(choice: object, nugget: object, noise_is_known: bool = False) -> Observation:
    """The model that a user named, or the object that was passed.

    With "gaussian", outputs have noise if the last layer's nugget is estimated, or above 1e-6, and
    may have some if it is to be found; unless the variance of each output's noise is known.
    """
    if isinstance(choice, str) and choice in MODELS:
        return MODELS[choice]
    if isinstance(choice, str) and choice == GAUSSIAN:
        return KnownNoise() if noise_is_known else _gaussian(nugget)
    is_model = not isinstance(choice, type) and hasattr(choice, "log_density_of")
    listed = ", ".join(map(repr, NAMES))
    require(is_model, f"observation is {choice!r}; it must be {listed} or an observation model.")
    return choice  # type: ignore[return-value]


def _gaussian(nugget: object) -> Observation:
    if isinstance(nugget, str) and nugget == "auto":
        return PerhapsNoise()
    without_noise = is_real(nugget) and nugget <= INTERPOLATES
    return Interpolated() if without_noise else GaussianNoise()
