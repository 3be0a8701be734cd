"""Training of a plain Gaussian process: the best of several ascents."""

import jax
import jax.numpy as jnp
import numpy as np

from deepemu._types import Array
from deepemu.core.inference import m_step, sem
from deepemu.core.model.network import Data, LayerParams, Network, layer_sites
from deepemu.data.sites import Replicates, pack, pack_without
from deepemu.ensembles import assembly, prediction
from deepemu.runtime import padding
from deepemu.runtime.programs import compiled
from deepemu.runtime.trees import to_numpy
from deepemu.training import folds
from deepemu.training.blocks import nodes_of_device
from deepemu.training.chains import Trained
from deepemu.training.folds import HeldOut
from deepemu.training.start import starting_imputation

GP_STARTS = (0.05, 0.2, 0.5, 1.0, 3.0)
GP_SCOUT_STEPS = 15
GP_STEPS = 200
GP_TOLERANCE = 1e-7


def train_single_layer(
    network: Network, sites: Replicates, params: LayerParams, seed: int, n_folds: int
) -> Trained:
    """A plain Gaussian process: the best of several ascents, and one member."""
    starts, data = _gp_starts(params, seed), pack(sites)
    fitted, values = _best_ascent(network, starts, data)
    add_axes = lambda each: np.asarray(each)[None, None]  # noqa: E731
    trace = jax.tree.map(add_axes, sem.Trace((fitted,), np.sum(np.asarray(values))))
    assembly.require_finite(trace.log_density)
    chains = [to_numpy(sem.Chain((fitted,), starting_imputation((), 1.0)))]
    held_out = _refit_folds(network, sites, starts, seed, n_folds) if n_folds else None
    return Trained(assembly.as_they_are(network, data, chains), chains, trace, 1, held_out)


def _best_ascent(network: Network, starts: LayerParams, data: Data) -> tuple[LayerParams, Array]:
    return fit_single_layer(network, starts, data, GP_SCOUT_STEPS, GP_STEPS, GP_TOLERANCE)


def _refit_folds(
    network: Network, sites: Replicates, starts: LayerParams, seed: int, n_folds: int
) -> HeldOut:
    """Predictions of each fold by the process that was fitted without it, by the same program."""
    n_folds = min(n_folds, len(sites.x))
    left_out = folds.left_out(seed, len(sites.x), n_folds, n_folds)
    parts = []
    for rows in left_out:
        data = pack_without(sites, rows)
        params, _ = _best_ascent(network, starts, data)
        chains = [sem.Chain((params,), starting_imputation((), 1.0))]
        ensemble = assembly.as_they_are(network, data, chains)
        parts.append(prediction.predict_chains([(ensemble, 0)], sites.x[rows]))
    return folds.one_row(parts, left_out)


def _gp_starts(params: LayerParams, seed: int) -> LayerParams:
    """Equal lengthscales of several sizes, and some random ones, in units of the inputs."""
    given = np.asarray(params.log_lengthscale)
    equal = [np.full(given.shape, np.log(start)) for start in GP_STARTS]
    log_lengthscale = np.stack([given, *equal, *_random_logs(seed, given.shape)])
    repeat = lambda values: padding.array(np.tile(values, (len(log_lengthscale), 1)))  # noqa: E731
    return LayerParams(
        padding.array(log_lengthscale), repeat(params.log_scale), repeat(params.log_nugget)
    )


def _random_logs(seed: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng([seed, 1])  # not the stream that draws the folds
    low, high = np.log(GP_STARTS[0]), np.log(GP_STARTS[-1])
    return [generator.uniform(low, high, shape) for _ in range(2)]


def fit_single_layer(
    net: Network, starts: LayerParams, data: Data, n_scout: int, n_polish: int, tolerance: float
) -> tuple[LayerParams, Array]:
    """A one-layer network's best parameters and objective, node by node.

    A few steps from each start (along the first axis) choose the one that is followed to the top.
    """
    return compiled(_fit_single_layer, ("network_", "nodes"))(
        net,
        nodes_of_device(),
        starts,
        data,
        np.int32(n_scout),
        np.int32(n_polish),
        np.float64(tolerance),
    )


def _fit_single_layer(
    network_: Network,
    nodes: m_step.Nodes,
    starts: LayerParams,
    data: Data,
    n_scout: Array,
    n_polish: Array,
    tolerance: Array,
) -> tuple[LayerParams, Array]:
    sites = layer_sites(network_, 0, data)

    def ascend(start: LayerParams, n_steps: Array) -> tuple[LayerParams, Array]:
        task = m_step.LayerTask(network_.layers[0], start, data.x, data.y, sites)
        (fitted,), values = m_step.fit_layers(nodes, [task], n_steps, tolerance)
        return fitted, values

    ends, values = jax.lax.map(lambda start: ascend(start, n_scout), starts)
    best = jnp.argmax(jnp.where(jnp.isnan(values), -jnp.inf, values), axis=0)
    choose = jax.vmap(lambda tries, i: tries[i], (1, 0))
    return ascend(jax.tree.map(lambda each: choose(each, best), ends), n_polish)
