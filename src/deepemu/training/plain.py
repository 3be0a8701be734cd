"""Training of a plain Gaussian process: the best of several starts."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from deepemu.core.distributions import Gaussian
from deepemu.core.inference import impute, sem
from deepemu.core.inference.last_layer import weights_near
from deepemu.core.inference.multistart import best_ascent
from deepemu.core.model.network import Data, LayerParams, Network
from deepemu.core.model.priors import Flat
from deepemu.core.nodes.solvers import EXACT
from deepemu.data.sites import SiteData, pack, pack_without
from deepemu.ensembles import assembly
from deepemu.ensembles.prediction import chain_latents, chains_of
from deepemu.observations.gaussian import GaussianNoise, SiteMeans
from deepemu.runtime import padding
from deepemu.runtime.programs import compiled, in_order
from deepemu.runtime.trees import to_numpy
from deepemu.training import folds
from deepemu.training.chains import Trained
from deepemu.training.folds import HeldOut, gathered
from deepemu.training.keeper import Keeper
from deepemu.training.nearness import with_near_rows
from deepemu.training.plan import nodes_of_device

GP_STARTS = (0.05, 0.2, 0.5, 1.0, 3.0)
GP_SCOUT_STEPS = 15
GP_STEPS = 200
GP_TOLERANCE = 1e-7
# From so many rows on, the exact fit of some of them is the start; how often near rows are found;
# and steps end at a gain that no prediction of many rows can tell.
MANY_ROWS, ROWS_OF_STARTS, N_SEARCHES = 450, 300, 3
TOLERANCE_OF_MANY = 1e-3
# log of the noise of first latents, relative to their scale.
FIRST_NOISE = -2.0
# Of a latent about which the likelihood says next to nothing.
LEAST_COUNT = 1e-3
NOTHING_IMPUTED = impute.Imputation((), (), np.int32(0), np.int32(0))  # type: ignore[arg-type]


def train_plain(
    structure: Any,
    start: LayerParams,
    sites: SiteData,
    seed: int,
    n_folds: int,
    keeper: Keeper,
) -> Trained:
    """A plain Gaussian process, as one chain with one network and no imputed layer."""
    network, starts, data = structure.network, _gp_starts(start, seed), pack(sites)
    fit = functools.partial(fit_plain, network, starts, data, seed)
    fitted, values = keeper.once("all rows", fit)
    add_axes = lambda each: np.asarray(each)[None, None]  # noqa: E731
    trace = jax.tree.map(add_axes, sem.Trace((fitted,), np.sum(np.asarray(values))))
    assembly.require_finite(trace.log_density)
    chains = [to_numpy(sem.Chain((fitted,), NOTHING_IMPUTED))]
    refit = functools.partial(_refitted, network, starts, fitted, seed)
    held_out = _predict_folds(network, sites, refit, seed, n_folds, keeper) if n_folds else None
    imputed = assembly.as_they_are(network, data, chains)
    return Trained(structure, imputed, chains, trace, 1, held_out)


def fit_plain(
    network: Network, starts: LayerParams, data: Data, seed: int
) -> tuple[LayerParams, Any]:
    """The best parameters, and the objective of each node.

    Of many rows, some tell the best of the starts. Near rows are found anew several times, because
    lengthscales say which rows are near.
    """
    if not _has_many(network, data):
        return _ascend(network, starts, data, GP_SCOUT_STEPS, GP_TOLERANCE)
    exactly, some = dataclasses.replace(network, solver=EXACT), _some_rows(data, seed)
    params, _ = _ascend(exactly, starts, some, GP_SCOUT_STEPS, GP_TOLERANCE)
    return _refined(network, params, data, N_SEARCHES if network.solver.n_near else 1)


def fit_latents(
    network: Network, params: LayerParams, latents: np.ndarray, sites: SiteData, seed: int
) -> LayerParams:
    """Where parameters of a plain process begin whose outputs are imputed: the best ones for the
    first latents (n, P) as outputs with normal noise, of some of many rows.

    The noise has the variances 1/W of the observations that stand for the likelihood near them, but
    for a factor that is found. From parameters of no use the first imputations are smooth, an
    M-step makes the next ones smoother, and chains come back from there slowly. Nodes whose first
    latents are all equal, and nuggets, stay as they are.
    """
    (spec,) = network.layers
    any_noise = dataclasses.replace(spec.prior, nugget=Flat())
    layer = dataclasses.replace(spec, free_nugget=True, prior=any_noise)
    noisy = dataclasses.replace(network, observation=GaussianNoise(), solver=EXACT, layers=(layer,))
    data = _some_rows(pack(_as_outputs(network, latents, sites)), seed)
    first = dataclasses.replace(params, log_nugget=np.full_like(params.log_nugget, FIRST_NOISE))
    found, _ = _ascend(noisy, _gp_starts(first, seed), data, GP_SCOUT_STEPS, GP_TOLERANCE)
    moves = (np.ptp(latents, axis=0) > 0.0) & np.any(spec.reads, axis=1)
    return LayerParams(
        np.where(moves[:, None], found.log_lengthscale, params.log_lengthscale),
        np.where(moves & spec.free_scale, found.log_scale, params.log_scale),
        params.log_nugget,
    )


def _as_outputs(network: Network, latents: np.ndarray, sites: SiteData) -> SiteData:
    """Sites with first latents as outputs, observed as often as their weights say, once on
    average."""
    data, n_sites = pack(sites), sites.n_sites
    padded = padding.pad_rows(latents, len(data.x))
    weights = np.asarray(compiled(weights_near, ("network",))(network, padded, data))[:n_sites]
    counts = weights / np.maximum(weights.mean(axis=0), np.finfo(float).tiny)
    counts = np.maximum(counts, LEAST_COUNT)
    return dataclasses.replace(sites, observed=SiteMeans(latents, counts, np.zeros_like(counts)))


def _has_many(network: Network, data: Data) -> bool:
    return network.solver.n_near > 0 or int(np.sum(np.asarray(data.used))) >= MANY_ROWS


def _refined(
    network: Network, params: LayerParams, data: Data, n_searches: int
) -> tuple[LayerParams, Any]:
    """From one start, to the end; near rows are found before."""
    values: Any = None
    for _ in range(n_searches):
        near = with_near_rows(network, params, (), data)
        params, values = _ascend(network, _alone(params), near, 0, TOLERANCE_OF_MANY)
    return params, values


def _refitted(
    network: Network, starts: LayerParams, fitted: LayerParams, seed: int, data: Data
) -> LayerParams:
    """Parameters without some rows: of many, from those of all rows, which are near."""
    if _has_many(network, data):
        return _refined(network, fitted, data, 1)[0]
    return fit_plain(network, starts, data, seed)[0]


def _some_rows(data: Data, seed: int) -> Data:
    """A few of many rows, by chance."""
    rows = np.flatnonzero(np.asarray(data.used))
    if len(rows) < MANY_ROWS:
        return data
    some = np.random.default_rng([seed, 2]).choice(rows, ROWS_OF_STARTS, replace=False)
    return gathered(data, np.sort(some), padding.bucket(ROWS_OF_STARTS))


def _ascend(
    network: Network, starts: LayerParams, data: Data, n_scout: int, tolerance: float
) -> tuple[LayerParams, Any]:
    program = compiled(best_ascent, ("network", "nodes"), brief=True)
    steps = np.int32(n_scout), np.int32(GP_STEPS), np.float64(tolerance)
    return program(network, nodes_of_device(), starts, data, *steps)


def _alone(params: LayerParams) -> LayerParams:
    """One start."""
    return jax.tree.map(lambda each: np.asarray(each)[None], params)


def _predict_folds(
    network: Network,
    sites: SiteData,
    refit: Callable[[Data], LayerParams],
    seed: int,
    n_folds: int,
    keeper: Keeper,
) -> HeldOut:
    """Held-out predictions of each fold by the process fitted without it, with the same program."""
    n_folds = min(n_folds, sites.n_sites)
    mask = folds.held_out_sites(seed, sites.n_sites, n_folds, n_folds)

    def without(fold: int) -> Gaussian:
        data = pack_without(sites, mask[fold])
        params = keeper.once(f"without fold {fold}", functools.partial(refit, data))
        imputed = assembly.as_they_are(network, data, [sem.Chain((params,), NOTHING_IMPUTED)])
        return chain_latents(chains_of(imputed), sites.x[mask[fold]])

    tasks = [functools.partial(without, fold) for fold in range(n_folds)]
    return folds.one_chain(in_order(tasks), mask)


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
