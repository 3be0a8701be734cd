"""Migration of format 2, whose held-out predictions are moments of chains and of the mixture."""

from typing import Any

import jax
import numpy as np

from deepemu.core.distributions import Gaussian, Mixture
from deepemu.files import codec
from deepemu.files.state import State
from deepemu.training.folds import HeldOut


def state_of_format_2(tree: Any, arrays: list[np.ndarray]) -> State:
    """The state in the JSON of a file of format 2."""
    state = codec.decode(tree, arrays, _record)
    return state | {"held_out": mixture_of(state["held_out"])}


def _record(name: str, fields: dict[str, Any]) -> Any:
    return by_chains(**fields) if name == "held out" else codec.record_of(name, fields)


def by_chains(latents: Gaussian, mask: np.ndarray) -> HeldOut:
    """Each chain's moments (chains, sites, P) as one component."""
    return HeldOut(jax.tree.map(lambda each: each[:, None], latents), np.asarray(mask, int))


def mixture_of(outputs: Gaussian | None) -> Mixture | None:
    """The mixture's moments (sites, q) as one component: outputs were the latents themselves."""
    if outputs is None:
        return None
    latents = jax.tree.map(lambda each: each[None], outputs)
    return Mixture(latents, np.ones(np.shape(latents.mean)[:2]))
