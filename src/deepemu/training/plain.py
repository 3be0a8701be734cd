"""Training of a plain Gaussian process: the best of several starts."""

from typing import Any

import jax
import numpy as np

from deepemu.core.inference import impute, sem
from deepemu.core.inference.multistart import best_ascent
from deepemu.core.model.network import Data, LayerParams, Network
from deepemu.data.sites import SiteData, pack, pack_without
from deepemu.ensembles import assembly
from deepemu.ensembles.prediction import chain_latents, chains_of
from deepemu.runtime import padding
from deepemu.runtime.programs import compiled
from deepemu.runtime.trees import to_numpy
from deepemu.training import folds
from deepemu.training.chains import Trained
from deepemu.training.folds import HeldOut
from deepemu.training.plan import nodes_of_device

GP_STARTS = (0.05, 0.2, 0.5, 1.0, 3.0)
GP_SCOUT_STEPS = 15
GP_STEPS = 200
GP_TOLERANCE = 1e-7
NOTHING_IMPUTED = impute.Imputation((), (), np.int32(0), np.int32(0))  # type: ignore[arg-type]


def train_plain(
    structure: Any, start: LayerParams, sites: SiteData, seed: int, n_folds: int
) -> Trained:
    """A plain Gaussian process, as one chain with one network and no imputed layer."""
    network, starts, data = structure.network, _gp_starts(start, seed), pack(sites)
    fitted, values = fit_plain(network, starts, data)
    add_axes = lambda each: np.asarray(each)[None, None]  # noqa: E731
    trace = jax.tree.map(add_axes, sem.Trace((fitted,), np.sum(np.asarray(values))))
    assembly.require_finite(trace.log_density)
    chains = [to_numpy(sem.Chain((fitted,), NOTHING_IMPUTED))]
    held_out = _refit_folds(network, sites, starts, seed, n_folds) if n_folds else None
    imputed = assembly.as_they_are(network, data, chains)
    return Trained(structure, imputed, chains, trace, 1, held_out)


def fit_plain(network: Network, starts: LayerParams, data: Data) -> tuple[LayerParams, Any]:
    """The best parameters, and the objective of each node."""
    program = compiled(best_ascent, ("network", "nodes"), brief=True)
    steps = np.int32(GP_SCOUT_STEPS), np.int32(GP_STEPS), np.float64(GP_TOLERANCE)
    return program(network, nodes_of_device(), starts, data, *steps)


def _refit_folds(
    network: Network, sites: SiteData, starts: LayerParams, seed: int, n_folds: int
) -> HeldOut:
    """Held-out predictions of each fold by the process fitted without it, with the same program."""
    n_folds = min(n_folds, sites.n_sites)
    mask = folds.held_out_sites(seed, sites.n_sites, n_folds, n_folds)
    parts = []
    for rows in mask:
        data = pack_without(sites, rows)
        params, _ = fit_plain(network, starts, data)
        imputed = assembly.as_they_are(network, data, [sem.Chain((params,), NOTHING_IMPUTED)])
        parts.append(chain_latents(chains_of(imputed), sites.x[rows]))
    return folds.one_chain(parts, mask)


def _gp_starts(params: LayerParams, seed: int) -> LayerParams:
    """Starting lengthscales: equal ones of several sizes and some random ones, in units of the
    inputs."""
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
