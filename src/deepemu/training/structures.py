"""The structures: plain Gaussian processes, and networks with imputed layers."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from deepemu.core.inference import sem
from deepemu.core.inference.m_step import Maximise
from deepemu.core.inference.steps import Guided, NodeWise
from deepemu.core.model.network import Data, Latents, LayerSpec, Network, Params
from deepemu.core.nodes.solver import Solver
from deepemu.core.nodes.solvers import over_anchors
from deepemu.data.checks import is_real
from deepemu.data.neighbours import spread_rows
from deepemu.data.sites import SiteData, pack
from deepemu.ensembles import assembly
from deepemu.ensembles.prediction import chain_latents, chains_of
from deepemu.errors import DataWarning, warn
from deepemu.observations.choice import INTERPOLATES
from deepemu.observations.gaussian import PerhapsNoise
from deepemu.observations.model import Observation
from deepemu.runtime.padding import bucket_before
from deepemu.training import growth
from deepemu.training.chains import Trained, train
from deepemu.training.folds import HeldOut, with_new_sites
from deepemu.training.keeper import NOTHING_KEPT, Keeper
from deepemu.training.layers import (
    FOUND_NUGGET,
    SMALLEST_NUGGET,
    Layer,
    build_network,
)
from deepemu.training.plain import fit_latents, train_plain
from deepemu.training.plan import N_FOLDS, SCORING_OF_LATENTS, Plan
from deepemu.training.start import (
    start_chains,
    start_guided_chains,
    starting_latents,
    starting_params,
)

# Hidden layers start as copies of the inputs. An M-step before they have adapted to the outputs can
# take a chain to a mode in which the outputs are a smooth function plus noise, and it stays there:
# one in six single chains on a step function.
SWEEPS_BEFORE_FIRST_M_STEP = 50
# Hidden layers have so many degrees of freedom per node. With as many as rows, chains follow noise
# and small features; few cannot follow what many rows show.
FEWEST_ANCHORS, ANCHORS, ROWS_OF_ANCHORS, MOST_ANCHORS = 20, 100, 2000, 256
# Share of a fit's iterations that an update runs: the chains resume from their last state.
SHARE_OF_UPDATE = 0.2


@dataclass(frozen=True)
class _Structure:
    label: str
    network: Network
    start: Params

    @property
    def observation(self) -> Observation:
        return self.network.observation  # type: ignore[return-value]


@dataclass(frozen=True)
class PlainGP(_Structure):
    """A plain Gaussian process: one layer, with parameters at the best of several local maxima."""

    n_folds: int

    def train(
        self, seed: int, sites: SiteData, show_progress: bool, keeper: Keeper = NOTHING_KEPT
    ) -> Trained:
        """From scratch, or from what the keeper holds."""
        (start,) = self.start
        return train_plain(self, start, sites, seed, self.n_folds, keeper)

    def resume(
        self, seed: int, before: Trained, sites: SiteData, n_old: int, show_progress: bool
    ) -> Trained:
        """Resume from the parameters for the first ``n_old`` sites."""
        (start,) = before.chains[0].params
        trained = train_plain(self, start, sites, seed, 0, NOTHING_KEPT)
        return dataclasses.replace(trained, held_out=_with_new_sites(before, sites, n_old))


@dataclass(frozen=True)
class DeepGP(_Structure):
    """A network with imputed layers, trained by several chains."""

    plan: Plan

    def train(
        self, seed: int, sites: SiteData, show_progress: bool, keeper: Keeper = NOTHING_KEPT
    ) -> Trained:
        """From scratch, or from what the keeper holds."""
        if self.plan.is_guided:
            return self._train_guided(seed, sites, show_progress, keeper)
        latents = starting_latents(self.network, self.observation, sites)
        chains = start_chains(self.plan, self.start, latents)
        return train(
            seed, self, self.plan, chains, sites, show_progress, SWEEPS_BEFORE_FIRST_M_STEP, keeper
        )

    def _train_guided(
        self, seed: int, sites: SiteData, show_progress: bool, keeper: Keeper
    ) -> Trained:
        if self.network.hidden_solver is not None:
            anchors = spread_rows(sites.x, n_anchors(sites.n_sites))
            sites = dataclasses.replace(sites, anchors=anchors)
        latents = starting_latents(self.network, self.observation, sites)
        chains = start_guided_chains(seed, self.plan, self._start(seed, sites, latents), latents)
        return train(seed, self, self.plan, chains, sites, show_progress, 0, keeper)

    def _start(self, seed: int, sites: SiteData, latents: Latents) -> Params:
        """The first parameters: of a plain process, those that first latents suggest."""
        if self.network.depth > 1:
            return self.start
        of_sites = np.asarray(latents[0])[: sites.n_sites]
        return (fit_latents(self.network, self.start[0], of_sites, sites, seed),)

    def resume(
        self, seed: int, before: Trained, sites: SiteData, n_old: int, show_progress: bool
    ) -> Trained:
        """Resume with all sites in every chain; new sites are predicted before they are added, so
        these predictions are held out."""
        held_out = _with_new_sites(before, sites, n_old)
        sites = with_anchors(sites, before)
        chains = growth.extend_chains(
            self.network, before.chains, before.imputed.data, pack(sites), n_old,
            sites.n_sites - n_old,
        )  # fmt: skip
        n_iter = max(int(SHARE_OF_UPDATE * self.plan.n_iter), 1)
        plan = dataclasses.replace(self.plan, n_iter=n_iter, n_folds=0)
        trained = train(seed, self, plan, chains, sites, show_progress, 0, NOTHING_KEPT)
        return dataclasses.replace(trained, held_out=held_out)


Structure = PlainGP | DeepGP
S = TypeVar("S", PlainGP, DeepGP)


def n_anchors(n_sites: int) -> int:
    """About half of the rows, at least 20 (or all) and at most 100; from 2000 rows on growing with
    the root of their number. The same for all numbers of rows that have the same programs, from 20
    rows on."""
    n_rows = bucket_before(n_sites)
    few = min(max(n_rows // 2, FEWEST_ANCHORS), ANCHORS, n_sites)
    grown = int(ANCHORS * np.sqrt(n_rows / ROWS_OF_ANCHORS))
    return min(max(grown, few), MOST_ANCHORS)


def with_anchors(sites: SiteData, before: Trained) -> SiteData:
    """Sites with the anchors of a structure that was trained on the first of them."""
    return dataclasses.replace(sites, anchors=before.imputed.data.anchors)


def conditioned_on(before: Trained, sites: SiteData, n_old: int) -> Trained:
    """Add new sites; parameters and imputations are kept.

    Runs that repeat old sites change their statistics, and all factors are computed again.
    """
    sites = with_anchors(sites, before)
    network, grown, n_new = before.structure.network, pack(sites), sites.n_sites - n_old
    held_out = _with_new_sites(before, sites, n_old)
    chains = growth.extend_chains(network, before.chains, before.imputed.data, grown, n_old, n_new)
    imputed = before.imputed
    if n_new:
        imputed = assembly.extended(imputed, grown, n_old, n_new)
    if not repeats_nothing(before.imputed.data, grown, n_old):
        latents = imputed.members.latents
        imputed = assembly.rebuilt(network, grown, imputed.params, latents)
    return dataclasses.replace(before, imputed=imputed, chains=chains, held_out=held_out)


def repeats_nothing(data: Data, grown: Data, n_old: int) -> bool:
    """Whether no old site has new observations."""
    pairs = zip(jax.tree.leaves(data.observed), jax.tree.leaves(grown.observed), strict=True)
    return all(np.array_equal(old[:n_old], new[:n_old]) for old, new in pairs)


def _with_new_sites(before: Trained, sites: SiteData, n_old: int) -> HeldOut | None:
    """Held-out predictions of the old sites, followed by those of new sites, which no chain has
    yet."""
    held_out, x = before.held_out, sites.x[n_old:]
    if held_out is None or not len(x):
        return held_out
    new = chain_latents(chains_of(before.imputed), x)
    return with_new_sites(held_out, new)


STARTING_NUGGET = 1e-3
# Of an imputed last layer, whose noise is that of the observation model: as of hidden layers.
NUGGET_OF_LATENTS = 1e-6
KERNELS = ("matern52", "squared_exponential")
# Nugget of the plain GPs beside a deep network, where nuggets are for numerical stability only.
NUGGET_OF_ONE_LAYER = SMALLEST_NUGGET
NOTHING_FOUND = 1.5 * SMALLEST_NUGGET


@dataclass(frozen=True)
class Problem:
    """The problem that structures are built for: columns, observation model, solver, and that of
    plain processes if it is another one."""

    n_outputs: int
    observation: Observation
    solver: Solver
    input_names: tuple[str, ...]
    plain_solver: Solver | None = None

    def network(self, layers: Sequence[Layer]) -> Network:
        of_plain = self.plain_solver or self.solver
        solver = self.solver if len(layers) > 1 else of_plain
        return build_network(
            layers, len(self.input_names), self.n_outputs, self.observation, solver,
            self.input_names,
        )  # fmt: skip

    @property
    def guided(self) -> "Problem | None":
        """The same with guided moves of imputed layers, if the solver has them."""
        solver, of_plain = over_anchors(self.solver), self.plain_solver or self.solver
        if solver is None:
            return None
        if self.observation.imputed:
            of_plain = over_anchors(of_plain) or of_plain
        return dataclasses.replace(self, solver=solver, plain_solver=of_plain)

    @property
    def n_inputs(self) -> int:
        return len(self.input_names)


# For a plain GP whose last layer is imputed: numbers of chains and iterations as in `DGP`.
IMPUTED_PLAIN = Plan(
    NodeWise(), Maximise(), n_chains=4, n_iter=200, burn_in=0.75, n_sweeps=5, n_scoring=1,
    n_imputations=5, bracket=16.0, stops_early=True, n_folds=0,
)  # fmt: skip

# Parameters follow latents of little evidence slowly: on the motorcycle data a fit that ends once
# its paths look settled loses 0.1 in log density for each row.
GUIDED_PLAIN = dataclasses.replace(
    IMPUTED_PLAIN, moves=Guided(), n_iter=240, n_sweeps=1, n_scoring=SCORING_OF_LATENTS,
    n_imputations=10, stops_early=False,
)  # fmt: skip


def plain_gp(layer: Layer, problem: Problem, n_folds: int) -> Structure:
    """A plain Gaussian process; trained by chains, if the observation model has latents to
    impute."""
    moving = problem.guided if problem.observation.imputed else None
    network = (moving or problem).network([layer])
    start, label = starting_params_of(network, [layer]), f"GP, {kernels_in_words([layer])}"
    if network.n_imputed:
        plan = GUIDED_PLAIN if network.is_guided else IMPUTED_PLAIN
        return DeepGP(label, network, start, dataclasses.replace(plan, n_folds=n_folds))
    return PlainGP(label, network, start, n_folds)


def plain_gps(nugget: float | str, problem: Problem) -> list[Structure]:
    """Plain Gaussian processes with the noise model of a deep network.

    A number of 1e-6 or less serves the equations of several layers. A very smooth function has a
    process variance of some hundred times that of the outputs, and errors so small that a millionth
    of it matters; one layer needs less.
    """
    if is_real(nugget) and nugget <= INTERPOLATES:
        nugget = NUGGET_OF_ONE_LAYER
    layers = [Layer(kernel=k, prior="reference", nugget=nugget) for k in KERNELS]
    return [plain_gp(layer, problem, N_FOLDS) for layer in layers]


def without_noise(trained: Sequence[Trained], sites: SiteData) -> list[Structure]:
    """The plain Gaussian processes whose nugget was found above the smallest, with the smallest.

    The mode of the nugget is no average over it: a smooth function with few runs can look like
    noise. Held-out predictions decide. Repeated runs that differ leave no doubt.
    """
    found = [each.structure for each in trained if found_noise(each)]
    return [_interpolating(each) for each in found if not _repeats_differ(trained, sites)]


def warn_of_new_spread(trained: Sequence[Trained], before: SiteData, sites: SiteData) -> None:
    """Warn of repeated runs that differ where the fit had none, and parameters are kept."""
    may_have_noise = isinstance(trained[0].structure.observation, PerhapsNoise)
    if may_have_noise and _repeats_differ(trained, sites) and not _repeats_differ(trained, before):
        message = (
            "New runs repeat others with different outputs, but the noise that was found is kept; "
            "call update of the emulator to find it again."
        )
        warn(message, DataWarning)


def without_twins(trained: Sequence[Trained], sites: SiteData) -> list[Trained]:
    """Those without the ones of `without_noise`, once repeated runs differ."""
    if not _repeats_differ(trained, sites):
        return list(trained)
    return [each for each in trained if not is_twin(each.structure)]


def is_twin(structure: Structure) -> bool:
    """A plain process without noise among those that may have some."""
    *hidden, last = structure.network.layers
    may_have_noise = isinstance(structure.observation, PerhapsNoise)
    return may_have_noise and not hidden and not last.free_nugget


def _repeats_differ(trained: Sequence[Trained], sites: SiteData) -> bool:
    return trained[0].structure.observation.repeats_differ(sites.observed)


def found_noise(trained: Trained) -> bool:
    """Whether a plain process with held-out predictions has found a nugget above the smallest."""
    structure = trained.structure
    if not isinstance(structure, PlainGP) or not structure.n_folds:
        return False
    (spec,) = structure.network.layers
    if not spec.free_nugget or spec.prior.nugget != FOUND_NUGGET:
        return False
    return bool(np.any(np.exp(trained.chains[0].params[0].log_nugget) > NOTHING_FOUND))


def _interpolating(structure: PlainGP) -> PlainGP:
    """The same process with the smallest nugget."""
    smallest = np.full(len(structure.start[0].log_nugget), SMALLEST_NUGGET)
    return with_nugget(structure, smallest)


def with_nugget(structure: S, nugget: np.ndarray) -> S:
    """The same structure with given nuggets (P,) of the last layer, the largest in its label."""
    label = f"{structure.label}, {np.max(nugget):.0e}".replace("e-0", "e-")
    *hidden, last = structure.network.layers
    *below, start = structure.start
    fixed = dataclasses.replace(last, free_nugget=False)
    network = dataclasses.replace(structure.network, layers=(*hidden, fixed))
    params = dataclasses.replace(start, log_nugget=np.log(nugget))
    return dataclasses.replace(structure, label=label, network=network, start=(*below, params))


def noise_variance(trained: Trained) -> np.ndarray:
    """σ²η (P,) of a plain process, in core units; at least the smallest nugget."""
    (last,) = trained.chains[0].params
    variance = np.exp(np.asarray(last.log_scale) + np.asarray(last.log_nugget))
    return np.maximum(variance, SMALLEST_NUGGET)


def layers_in_words(depth: int) -> str:
    return "1 layer" if depth == 1 else f"{depth} layers"


def kernels_in_words(layers: Sequence[Layer]) -> str:
    return " / ".join(dict.fromkeys(words(layer.kernel) for layer in layers))


def words(kernel: str) -> str:
    return kernel.replace("_", " ")


def starting_params_of(network: Network, layers: Sequence[Layer]) -> Params:
    scales = [float(layer.scale) if is_real(layer.scale) else 1.0 for layer in layers]
    pairs = zip(layers, network.layers, strict=True)
    return starting_params(network, scales, [_starting_nugget(*pair) for pair in pairs])


def _starting_nugget(layer: Layer, spec: LayerSpec) -> float:
    if spec.free_nugget:
        return STARTING_NUGGET
    return NUGGET_OF_LATENTS if isinstance(layer.nugget, str) else float(layer.nugget)


def trace_in_words(trace: sem.Trace) -> dict[str, Any]:
    """Paths on the natural scale: for each layer an array (chains, iterations, nodes, …)."""
    return {
        "lengthscale": [np.exp(layer.log_lengthscale) for layer in trace.params],
        "scale": [np.exp(layer.log_scale) for layer in trace.params],
        "nugget": [np.exp(layer.log_nugget) for layer in trace.params],
        "log_density": np.asarray(trace.log_density),
    }
