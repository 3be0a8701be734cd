"""Consistency checks on a loaded file; a corrupt or forged one is rejected before it is used."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.model.network import LayerSpec, Network
from deepemu.data.runs import Runs
from deepemu.files.state import State, n_members
from deepemu.posterior.summary import Report
from deepemu.runtime import padding
from deepemu.training.folds import HeldOut

# Factors of more sites than this do not fit into memory.
MOST_SITES = 20_000
# Bounds on logarithms, and on hidden variables of order one, whose squares must be finite too.
LARGEST_LOGARITHM, LARGEST_LATENT = 300.0, 1e100
Shape = tuple[int, ...]


def require_sound(state: State, runs: Runs) -> None:
    """Raise a ValueError, or another error, for any inconsistency that would only show as a wrong
    prediction."""
    _require_runs(state["runs"], runs)
    for structure in state["structures"]:
        _require_structure(structure, runs)
    n_chains = sum(len(structure["chains"]) for structure in state["structures"])
    _require_weights(state, n_chains, runs)
    _require_words(state["report"])


def _require_finite(array: Any, shape: Shape, what: str, largest: float = np.inf) -> None:
    numbers = np.asarray(array)
    real = numbers.dtype.kind in "fiu" and np.all(np.isfinite(numbers))
    if numbers.shape != shape or not real or np.any(np.abs(numbers) > largest):
        raise ValueError(f"{what} is not {shape} finite numbers")


def _require_runs(held: State, runs: Runs) -> None:
    (n, d), (_, q) = runs.x.shape, runs.y.shape
    shapes = {
        "x": (runs.x, (n, d)), "y": (runs.y, (n, q)),
        "low": (runs.scale.low, (d,)), "span": (runs.scale.span, (d,)),
        "shift": (held["units"].shift, (q,)), "size": (held["units"].size, (q,)),
    }  # fmt: skip
    if runs.known is not None:
        shapes["known"] = runs.known, (n, q)
    for name, (array, shape) in shapes.items():
        _require_finite(array, shape, name)
    if not np.all(np.concatenate([runs.scale.span, np.asarray(held["units"].size)]) > 0.0):
        raise ValueError("spans and sizes are not all positive")
    if runs.sites.n_sites > MOST_SITES:
        raise ValueError("there are more runs than fit into memory")
    for names, count in ((runs.columns.outputs, q), (runs.columns.inputs, d)):
        if len(set(names)) != count or not all(isinstance(name, str) for name in names):
            raise ValueError("columns have no names of their own")
    flags = runs.columns.one_dimensional, runs.columns.compares_names
    if not all(isinstance(flag, bool) for flag in flags):
        raise ValueError("one_dimensional and compares_names must be booleans")


def _require_weights(state: State, n_chains: int, runs: Runs) -> None:
    weights, stretch = state["weights"], state["stretch"]
    _require_finite(weights, (n_chains,), "weights")
    _require_finite(stretch, (runs.y.shape[1],), "stretch")
    if not (np.all(weights >= 0.0) and np.isclose(weights.sum(), 1.0)):
        raise ValueError("weights do not add up to one")
    if not np.all(stretch > 0.0):
        raise ValueError("stretches are not all positive")
    if state["held_out"] is not None:
        _require_mixture(state["held_out"], runs.sites.n_sites, _n_latents(state, runs))


def _n_latents(state: State, runs: Runs) -> int:
    observation = state["structures"][0]["network"].observation
    return int(observation.n_latents(runs.y.shape[1]))


def _require_mixture(found: Mixture, n_sites: int, width: int) -> None:
    """Weights that add up to one at each site, and variances that are positive."""
    n_components = len(found.weights)
    _require_finite(found.weights, (n_components, n_sites), "held-out weights")
    _require_moments(found.latents, (n_components, n_sites, width))
    if np.any(found.weights < 0.0) or not np.allclose(found.weights.sum(axis=0), 1.0):
        raise ValueError("held-out weights do not add up to one")


def _require_moments(moments: Gaussian, shape: Shape) -> None:
    _require_finite(moments.mean, shape, "held-out means")
    _require_finite(moments.var, shape, "held-out variances")
    if np.any(np.asarray(moments.var) < 0.0):
        raise ValueError("a held-out variance is negative")


def _require_structure(state: State, runs: Runs) -> None:
    """A network that fits the runs, with finite parameters and latents."""
    network, n_chains, n_sites = state["network"], len(state["chains"]), runs.sites.n_sites
    width = network.observation.n_latents(runs.y.shape[1])
    if (network.n_inputs, network.layers[-1].width) != (runs.x.shape[1], width):
        raise ValueError("a network has other inputs or outputs")
    for layer, spec in enumerate(network.layers):
        _require_columns(network, layer, spec)
    rows, members = padding.bucket(n_sites), n_members(state)
    n_sets = np.shape(jax.tree.leaves(state["params"])[0])[1]
    if n_sets not in (1, members):
        raise ValueError("there are as many sets of parameters as neither chains nor networks")
    _require_params(state["start"], network, ())
    _require_params(state["params"], network, (n_chains, n_sets))
    _require_latents(state["latents"], network, (n_chains, members, rows))
    for chain in state["chains"]:
        _require_params(chain.params, network, ())
        _require_latents(chain.imputation.latents, network, (rows,))
    _require_trace(state, n_chains)
    if state["held_out"] is not None:
        _require_held_out(state["held_out"], (n_chains, n_sites), width)


def _require_held_out(found: HeldOut, shape: Shape, width: int) -> None:
    n_chains, n_sites = shape
    n_places, counts = np.shape(found.latents.mean)[1], np.asarray(found.n_imputations)
    _require_moments(found.latents, (n_chains, n_places, n_sites, width))
    if counts.shape != shape or counts.dtype.kind not in "iu":
        raise ValueError("it is not said which sites were held out")
    if np.any((counts < 0) | (counts > n_places)):
        raise ValueError("there are other held-out predictions than it is said")


def _require_columns(network: Network, layer: int, spec: LayerSpec) -> None:
    """Earlier layers, each once, and then all inputs or none of them."""
    earlier = set(spec.sources) <= set(range(-layer, 0)) or layer == 0
    if not earlier or len(set(spec.sources)) != len(spec.sources):
        raise ValueError("a layer reads layers that are not before it, or one of them twice")
    n_known = spec.n_columns - network.n_hidden(layer)
    even = all(len(of_node) == spec.n_columns for of_node in spec.reads)
    if not even or n_known not in (0, network.n_inputs) or spec.n_columns == 0:
        raise ValueError("a layer has other columns than the layers and inputs that it reads")


def _require_trace(state: State, n_chains: int) -> None:
    trace = state["trace"]
    n_iterations = np.shape(trace.log_density)[1]
    if np.shape(trace.log_density) != (n_chains, n_iterations):
        raise ValueError("the trace is of other chains")
    if state["n_together"] not in range(n_iterations + 1):
        raise ValueError("more iterations had all sites than there are")
    _require_params(trace.params, state["network"], (n_chains, n_iterations))


def _require_params(params: Any, network: Network, leading: Shape) -> None:
    for leaf, shape in zip(jax.tree.leaves(params), _of_params(network), strict=True):
        _require_finite(leaf, leading + shape, "a parameter", LARGEST_LOGARITHM)


def _of_params(network: Network) -> Iterator[Shape]:
    """Shapes of lengthscales, scales and nuggets, layer by layer."""
    for spec in network.layers:
        yield from ((spec.width, spec.n_columns), (spec.width,), (spec.width,))


def _require_latents(latents: Any, network: Network, leading: Shape) -> None:
    for leaf, spec in zip(latents, network.layers[: network.n_imputed], strict=True):
        _require_finite(leaf, (*leading, spec.width), "a hidden variable", LARGEST_LATENT)


def _require_words(found: Report) -> None:
    """A report that can be printed."""
    str(found)
    for line in found.lines:
        numbers = [each for each in (line.crps, line.log_score, line.coverage) if each is not None]
        if not isinstance(line.label, str) or not np.all(np.isfinite([*line.weights, *numbers])):
            raise ValueError("a line of the report is not a name and numbers")
