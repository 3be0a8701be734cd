"""Whether what a file holds goes together, so that a made-up one is refused before it is used."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from deepemu.core.distributions import Gaussian
from deepemu.core.model.network import Network
from deepemu.data.sites import pack
from deepemu.ensembles import assembly
from deepemu.estimators.base import Fitted
from deepemu.posterior.stacking import Part, Stacked
from deepemu.posterior.summary import Report
from deepemu.runtime import devices, padding

# Factors of more sites than that do not fit into a machine's memory.
MOST_SITES = 20_000
# Logarithms of numbers, and hidden variables of order one, whose squares must be numbers too.
LARGEST_LOGARITHM, LARGEST_LATENT = 300.0, 1e100
Shape = tuple[int, ...]


def require_sound(data: Fitted, parts: list[Part], stacked: Stacked, report: Report) -> None:
    """A ValueError, or another error, for whatever nothing would complain about before a
    prediction is wrong."""
    _require_data(data)
    for part in parts:
        _require_part(part, data)
    n_chains = sum(len(part.trained.chains) for part in parts)
    _require_votes(stacked, n_chains, data)
    _require_words(report)


def _require_finite(array: Any, shape: Shape, what: str, largest: float = np.inf) -> None:
    numbers = np.asarray(array)
    real = numbers.dtype.kind in "fiu" and np.all(np.isfinite(numbers))
    if numbers.shape != shape or not real or np.any(np.abs(numbers) > largest):
        raise ValueError(f"{what} is not {shape} finite numbers")


def _require_places(array: Any, shape: Shape, count: int, what: str) -> None:
    places = np.asarray(array)
    inside = places.dtype.kind in "iu" and np.all((places >= 0) & (places < count))
    if places.shape != shape or not inside:
        raise ValueError(f"{what} are not {shape} numbers below {count}")


def _require_data(data: Fitted) -> None:
    (n, d), (_, q), n_sites = data.x.shape, data.y.shape, len(data.sites.x)
    scaling, sites = data.scaling, data.sites
    shapes = {
        "x": (data.x, (n, d)), "y": (data.y, (n, q)),
        "x_low": (scaling.x_low, (d,)), "x_span": (scaling.x_span, (d,)),
        "y_mean": (scaling.y_mean, (q,)), "y_std": (scaling.y_std, (q,)),
        "x of sites": (sites.x, (n_sites, d)), "y of sites": (sites.y, (n_sites, q)),
        "counts": (sites.counts, (n_sites,)), "squares": (sites.squares, (n_sites, q)),
    }  # fmt: skip
    for name, (array, shape) in shapes.items():
        _require_finite(array, shape, name)
    if not np.all(np.concatenate([scaling.x_span, scaling.y_std, sites.counts]) > 0.0):
        raise ValueError("spans and counts are not all positive")
    _require_places(sites.site_of_row, (n,), n_sites, "sites of rows")
    for names, count in ((data.output_names, q), (data.input_names, d)):
        if len(set(names)) != count or not all(isinstance(name, str) for name in names):
            raise ValueError("columns have no names of their own")
    if not all(isinstance(flag, bool) for flag in (data.one_dimensional, data.compares_names)):
        raise ValueError("a word of yes or no is missing")


def _require_votes(stacked: Stacked, n_chains: int, data: Fitted) -> None:
    _require_finite(stacked.weights, (n_chains,), "weights")
    _require_finite(stacked.scale, (data.y.shape[1],), "scale")
    if not (np.all(stacked.weights >= 0.0) and np.isclose(stacked.weights.sum(), 1.0)):
        raise ValueError("weights do not add up to one")
    if not np.all(stacked.scale > 0.0):
        raise ValueError("scales are not all positive")
    if stacked.held_out is not None:
        _require_moments(stacked.held_out, data.sites.y.shape)


def _require_moments(moments: Gaussian, shape: Shape) -> None:
    _require_finite(moments.mean, shape, "held-out means")
    _require_finite(moments.var, shape, "held-out variances")
    if np.any(np.asarray(moments.var) < 0.0):
        raise ValueError("a held-out variance is negative")


def _require_part(part: Part, data: Fitted) -> None:
    """Networks of the data that the file says they are of, with parameters that are numbers."""
    imputed: assembly.Imputed = part.trained.ensemble  # type: ignore[assignment]
    network, trained, n_chains = imputed.network, part.trained, len(part.trained.chains)
    n_sites, q = data.sites.y.shape
    if part.candidate.network != network:
        raise ValueError("a structure has two networks")
    if (network.n_inputs, network.n_outputs) != (data.x.shape[1], q):
        raise ValueError("a network has other inputs or outputs")
    if n_sites > MOST_SITES or not _same_data(imputed, data):
        raise ValueError("a structure is of other data")
    _require_params(part.candidate.start, network, ())
    _require_networks(imputed, n_chains, padding.bucket(n_sites))
    for chain in trained.chains:
        _require_params(chain.params, network, ())
        _require_latents(chain.imputation.latents, network, (padding.bucket(n_sites),))
    _require_trace(part, n_chains)
    if trained.held_out is not None:
        _require_moments(trained.held_out.moments, (n_chains, n_sites, q))
        if np.shape(trained.held_out.unseen) != (n_chains, n_sites):
            raise ValueError("it is not said which sites were held out")


def _same_data(imputed: assembly.Imputed, data: Fitted) -> bool:
    with devices.float64():
        leaves = [jax.tree.leaves(each) for each in (imputed.data, pack(data.sites))]
        return all(np.array_equal(mine, its) for mine, its in zip(*leaves, strict=True))


def _require_networks(imputed: assembly.Imputed, n_chains: int, n_rows: int) -> None:
    members = np.shape(imputed.chain)
    n_sets = len(jax.tree.leaves(imputed.params)[0])
    _require_places(imputed.chain, members, n_chains, "chains of networks")
    _require_places(imputed.params_of, members, n_sets, "parameters of networks")
    _require_finite(imputed.weights, members, "weights of networks")
    _require_params(imputed.params, imputed.network, (n_sets,))
    _require_latents(imputed.latents, imputed.network, (*members, n_rows))


def _require_trace(part: Part, n_chains: int) -> None:
    trace = part.trained.trace
    n_iterations = np.shape(trace.log_density)[1]
    if np.shape(trace.log_density) != (n_chains, n_iterations):
        raise ValueError("the trace is of other chains")
    if part.trained.n_together not in range(n_iterations + 1):
        raise ValueError("more iterations had all sites than there are")
    _require_params(trace.params, part.candidate.network, (n_chains, n_iterations))


def _require_params(params: Any, network: Network, leading: Shape) -> None:
    for leaf, shape in zip(jax.tree.leaves(params), _of_params(network), strict=True):
        _require_finite(leaf, leading + shape, "a parameter", LARGEST_LOGARITHM)


def _of_params(network: Network) -> Iterator[Shape]:
    """Shapes of lengthscales, scales and nuggets, layer by layer."""
    for spec in network.layers:
        yield from ((spec.width, spec.n_columns), (spec.width,), (spec.width,))


def _require_latents(latents: Any, network: Network, leading: Shape) -> None:
    for leaf, spec in zip(latents, network.layers[:-1], strict=True):
        _require_finite(leaf, (*leading, spec.width), "a hidden variable", LARGEST_LATENT)


def _require_words(found: Report) -> None:
    """A report that can be printed."""
    str(found)
    for line in found.lines:
        numbers = [each for each in (line.crps, line.log_score, line.coverage) if each is not None]
        if not isinstance(line.label, str) or not np.all(np.isfinite([*line.votes, *numbers])):
            raise ValueError("a line of the report is not a name and numbers")
