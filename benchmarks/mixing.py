"""Which way of sampling the hidden layers makes chains agree soonest?

    python benchmarks/mixing.py --problems vega delta --variants default layer --json mixing.json

Agreement is the R-hat of the chains' predictions, its median over the test points. The merit of a
variant is 1 / ((R² - 1) x cpu seconds of the fit), relative to that of the default: R² - 1 is the
variance between chains over the variance within them. It compares variants of the same length
only: chains that have hardly moved from their common start agree as well, and predict badly.

Some variants are options of ``DGP``. The others (`WAYS`) are experiments: they drive or patch the
inside of deepemu, on a CPU only, and are no part of the package.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from _report import Table, number, positive, print_table, read_json, write_json
from _timing import timed
from problems import PROBLEMS, load_design
from scipy.linalg import cholesky, solve_triangular
from sklearn.covariance import LedoitWolf
from sklearn.gaussian_process.kernels import Matern

from deepemu import DGP, _boundary, _runtime, candidates, training, use_compilation_cache
from deepemu._types import Array, record
from deepemu.convergence import predictive_rhat
from deepemu.core import impute, linalg, network, sem, slice
from deepemu.diagnostics import scores
from deepemu.folds import pack

SETTINGS = {"stacking": False, "early_stopping": False, "n_jobs": 1, "verbose": False}
N_CHAINS, N_ITER, WARM_ITER = 8, 200, 10
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "bracket-8": {"bracket": 8.0},
    "bracket-32": {"bracket": 32.0},
    "full-circle": {"bracket": math.inf},
    "layer": {"sweep": "layer"},
    "10-sweeps": {"n_sweeps": 10, "n_iter": 0.5},
    "2-sweeps": {"n_sweeps": 2, "n_iter": 2.0},
    "short": {"n_iter": 0.6},
    "layer-long": {"sweep": "layer", "n_iter": 1.7},
}
HEAD = ("variant", "R-hat", "cpu s", "1000 evaluations", "merit", "CRPS/range", "coverage", "runs")
DISTORTION = 0.3
FIRST_POWER, SHARE_TEMPERED, TEMPERED_BLOCKS = 0.1, 0.2, 10
SHARE_BEFORE_POOL = 0.3
SHARE_LEARNING, SNAPSHOTS = 0.5, 10
EXPERIMENT_PART = 2  # of the stream of keys for training; deepemu uses parts 0 and 1

Chains = list[sem.Chain]
Way = Callable[[candidates.Deep, int, Any, bool], training.Trained]
Record = dict[str, Any]


# --- experiments: other starts -------------------------------------------------------------------


def start(deep: candidates.Deep, sites: Any) -> Chains:
    """Equal chains, as deepemu starts them."""
    size = _boundary.bucket(len(sites.x))
    latents = training.starting_latents(deep.network, sites.x, size)
    return training.start_chains(deep.plan, deep.start, latents, deep.n_chains)


def perturbed(deep: candidates.Deep, seed: int, sites: Any, shows: bool) -> training.Trained:
    """Hidden layers start at the inputs plus a smooth random distortion, one for each chain."""
    generator = np.random.default_rng(seed)
    chains = [distorted(generator, chain, sites.x) for chain in start(deep, sites)]
    return training.train(seed, deep.network, deep.plan, chains, sites, shows)


def distorted(generator: np.random.Generator, chain: sem.Chain, x: np.ndarray) -> sem.Chain:
    """The chain with a draw from a node's prior (lengthscales 1), scaled, added to each column."""
    root = cholesky(Matern(1.0, nu=2.5)(x) + 1e-6 * np.eye(len(x)), lower=True)

    def moved(latent: Array) -> Array:
        draws = DISTORTION * root @ generator.standard_normal((len(x), latent.shape[1]))
        return _boundary.array(np.asarray(latent) + _boundary.pad_rows(draws, len(latent)))

    return _boundary.with_latents(chain, jax.tree.map(moved, chain.imputation.latents))


# --- experiments: training in two parts ----------------------------------------------------------


def iterate(
    deep: candidates.Deep, seed: int, sites: Any, chains: Chains, first: int, n_iter: int
) -> tuple[Chains, np.ndarray]:
    """``n_iter`` iterations of training from the ``first``, and the last log densities."""
    plan, data = deep.plan, [pack(sites)] * len(chains)
    keys = _boundary.keys(len(chains), seed, _boundary.TRAIN_STREAM, EXPERIMENT_PART)
    effort = _boundary.effort(plan.n_sweeps, plan.n_scoring, plan.sampling.bracket, True)
    end, log_density = first + n_iter, np.zeros((len(chains), 0))
    for begin in range(first, end, training.CHECK_EVERY):
        chains, trace = _boundary.train_block(
            keys, deep.network, plan.sampling.schedule, effort, chains, data, begin,
            min(training.CHECK_EVERY, end - begin), lambda _: None,
        )  # fmt: skip
        log_density = np.asarray(trace.log_density)
    return chains, log_density


def finish(
    deep: candidates.Deep, seed: int, sites: Any, chains: Chains, n_done: int
) -> training.Trained:
    """The iterations that are left; parameters are averaged over the same ones as by default."""
    plan = deep.plan
    n_left = plan.n_iter - n_done
    burn_in = 1.0 - (1.0 - plan.burn_in) * plan.n_iter / n_left
    rest = dataclasses.replace(plan, n_iter=n_left, burn_in=burn_in)
    return training.train(seed, deep.network, rest, chains, sites, False)


def pooled(deep: candidates.Deep, seed: int, sites: Any, shows: bool) -> training.Trained:
    """After a first part all chains start again from states drawn from the pool of chains."""
    n_first = round(SHARE_BEFORE_POOL * deep.plan.n_iter)
    chains, log_density = iterate(deep, seed, sites, start(deep, sites), 0, n_first)
    picks = picked(seed, log_density.mean(axis=1))
    restarted = [taken_over(mine, chains[k]) for mine, k in zip(chains, picks, strict=True)]
    return finish(deep, seed, sites, restarted, n_first)


def picked(seed: int, log_density: np.ndarray) -> np.ndarray:
    """Chains with replacement, by the exponential of their standardised log densities.

    The densities themselves differ by so much that the best chain would take all places.
    """
    odds = np.exp((log_density - log_density.max()) / log_density.std())
    return np.random.default_rng(seed).choice(len(odds), len(odds), p=odds / odds.sum())


def taken_over(mine: sem.Chain, other: sem.Chain) -> sem.Chain:
    """Parameters and hidden layers of another chain, with the counts and brackets of this one."""
    chain = _boundary.with_latents(mine, other.imputation.latents)
    return dataclasses.replace(chain, params=other.params)


# --- experiments: another sampler ----------------------------------------------------------------


@record
class Extended:
    """What deepemu tells a block of training, and one thing more."""

    effort: sem.Effort
    extra: Any


Change = Callable[[Any], AbstractContextManager[Any]]
"""What is patched while the training program is traced, given the (traced) extra."""


@functools.cache
def program_with(change: Change) -> Callable[..., Any]:
    """`sem.train_block` traced under the change: a program of its own."""
    train_block = sem.train_block

    def changed_block(key, network, schedule, effort, **rest):
        with change(effort.extra):
            return train_block(key, network, schedule, effort.effort, **rest)

    return changed_block


@contextmanager
def sampling(change: Change, extra: Any) -> Iterator[None]:
    """Training inside runs the changed program and hands the extra on to it."""
    effort = _boundary.effort
    with ExitStack() as stack:
        for where, name, new in (
            (sem, "train_block", program_with(change)),
            (_boundary, "effort", lambda *of: Extended(effort(*of), extra)),
        ):
            stack.enter_context(mock.patch.object(where, name, new))
        yield


def tempered(deep: candidates.Deep, seed: int, sites: Any, shows: bool) -> training.Trained:
    """In the first iterations the likelihood is raised to a power that grows to 1."""
    n_first = round(SHARE_TEMPERED * deep.plan.n_iter)
    ends = np.linspace(0, n_first, min(TEMPERED_BLOCKS, n_first) + 1).astype(int)
    chains = start(deep, sites)
    for power, first, end in zip(
        np.geomspace(FIRST_POWER, 1.0, len(ends) - 1), ends[:-1], ends[1:], strict=True
    ):
        with sampling(with_power, np.float64(power)):
            chains, _ = iterate(deep, seed, sites, chains, int(first), int(end - first))
    return finish(deep, seed, sites, chains, n_first)


def with_power(power: Array) -> AbstractContextManager[Any]:
    """Slice steps whose target is prior times likelihood to the power.

    A point is on the slice if power x log L > power x log L(now) + log u, and that is the usual
    rule with u to the power 1 / power in place of u.
    """
    step = slice.step

    def tempered_step(uniforms: Array, *rest: Any) -> Any:
        first = -jnp.expm1(jnp.log1p(-uniforms[0]) / power)
        return step(uniforms.at[0].set(first), *rest)

    return mock.patch.object(slice, "step", tempered_step)


@record
class Ellipses:
    """A Gaussian for the white coordinates of each node of a layer: centres (P, n) and Cholesky
    factors (P, n, n)."""

    centre: Array
    factor: Array


def learned(deep: candidates.Deep, seed: int, sites: Any, shows: bool) -> training.Trained:
    """Generalised elliptical slice sampling (Nishihara, Murray and Adams 2014): in the second part
    ellipses belong to a Gaussian that was learned from all chains in the first part."""
    n_first = round(SHARE_LEARNING * deep.plan.n_iter)
    ends = np.linspace(n_first // 2, n_first, min(SNAPSHOTS, n_first - n_first // 2) + 1)
    chains, done, draws = start(deep, sites), 0, []
    for end in ends.astype(int):
        chains, _ = iterate(deep, seed, sites, chains, done, int(end) - done)
        done = int(end)
        draws += [white_latents(deep.network, chain, sites) for chain in chains]
    size = _boundary.bucket(len(sites.x))
    ellipses = tuple(fitted(np.stack(of_layer), size) for of_layer in zip(*draws, strict=True))
    with sampling(on_learned_ellipses, ellipses):
        return finish(deep, seed, sites, chains, n_first)


def white_latents(net: network.Network, chain: sem.Chain, sites: Any) -> list[np.ndarray]:
    """z (P, n) of each hidden layer: w = σ L z has a standard normal prior."""
    n, latents = len(sites.x), chain.imputation.latents
    of_layer = _runtime.compiled(network.layer_cholesky, ("network", "layer"))
    white = []
    for layer, latent in enumerate(latents):
        lower = of_layer(
            network=net, layer=layer, params=chain.params, latents=latents, data=pack(sites)
        )
        scale = np.exp(0.5 * np.asarray(chain.params[layer].log_scale))
        columns = zip(np.asarray(lower)[:, :n, :n], np.asarray(latent)[:n].T, scale, strict=True)
        white.append(np.stack([solve_triangular(l, w / s, lower=True) for l, w, s in columns]))
    return white


def fitted(draws: np.ndarray, size: int) -> Ellipses:
    """Mean and shrunk covariance (Ledoit and Wolf) of draws (draws, P, n), node by node."""
    n_nodes, n = draws.shape[1:]
    centre, factor = np.zeros((n_nodes, size)), np.tile(np.eye(size), (n_nodes, 1, 1))
    for node in range(n_nodes):
        found = LedoitWolf().fit(draws[:, node])
        centre[node, :n] = found.location_
        factor[node, :n, :n] = cholesky(found.covariance_, lower=True)
    return Ellipses(_boundary.array(centre), _boundary.array(factor))


def on_learned_ellipses(ellipses: tuple[Ellipses, ...]) -> AbstractContextManager[Any]:
    return mock.patch.object(impute, "_update_layer", functools.partial(update_layer, ellipses))


def update_layer(
    ellipses: tuple[Ellipses, ...],
    key: Array,
    fixed: impute.Fixed,
    layer: int,
    state: impute.Imputation,
    prior: Array,
    current: Array,
) -> tuple[impute.Imputation, Array]:
    """As `impute._update_layer` does, node by node, on learned ellipses."""
    width, of_layer = fixed.network.layers[layer].width, ellipses[layer]
    lower = whitened_by(fixed, layer, prior)
    normals, uniforms = randomness(key, fixed, layer, prior.dtype)
    rate = jnp.where(fixed.brackets.adapt, impute.learning_rate(state.sweeps), 0.0)

    def update(index: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        latent, angles, current, evaluations = carry
        likelihood = impute._likelihood_of_block(fixed, layer, state.latents, latent, index, 1)
        bracket = jnp.minimum(fixed.brackets.factor * angles[index], impute.FULL_CIRCLE)
        column, current, info = move(
            uniforms[index], normals[index], _boundary.row(of_layer, index), lower[index],
            latent[:, index], likelihood, current, bracket,
        )  # fmt: skip
        angles = angles.at[index].add(rate * (impute.turn(info.angle) - angles[index]))
        return latent.at[:, index].set(column), angles, current, evaluations + info.evaluations

    begin = (state.latents[layer], state.angles[layer], current, state.evaluations)
    latent, angles, current, evaluations = jax.lax.fori_loop(0, width, update, begin)
    put = lambda all_, new: (*all_[:layer], new, *all_[layer + 1 :])  # noqa: E731
    latents, angles = put(state.latents, latent), put(state.angles, angles)
    moved = dataclasses.replace(state, latents=latents, angles=angles, evaluations=evaluations)
    return moved, current


def whitened_by(fixed: impute.Fixed, layer: int, prior: Array) -> Array:
    """σ L (P, n, n) of the nodes of a layer, whose correlations have the factors ``prior``."""
    scale = network.layer_nodes(fixed.network.layers[layer], fixed.params[layer]).scale
    return jnp.sqrt(scale)[:, None, None] * prior


def randomness(
    key: Array, fixed: impute.Fixed, layer: int, dtype: jnp.dtype
) -> tuple[Array, Array]:
    """Standard normals (P, n), zero in padded rows, and uniforms for the slices of a layer."""
    key_draw, key_slice = jax.random.split(key)
    used = network.layer_sites(fixed.network, layer, fixed.data).used
    normals = jnp.where(used, jax.random.normal(key_draw, used.shape, dtype), 0.0)
    return normals, jax.random.uniform(key_slice, (len(used), slice.N_UNIFORMS), dtype)


def move(
    uniforms: Array,
    normals: Array,
    ellipse: Ellipses,
    lower: Array,
    column: Array,
    log_likelihood: Callable[[Array], Array],
    current: Array,
    bracket: Array,
) -> tuple[Array, Array, slice.SliceInfo]:
    """One slice step of a node's values w = σ L z on an ellipse of N(m, C).

    z has the prior N(0, I). Where d = z - m moves on an ellipse of N(0, C), the target stays prior
    times likelihood if log L gets the correction dᵀC⁻¹d / 2 - zᵀz / 2.
    """

    def correction(away: Array) -> Array:
        inside = linalg.solve_vector(ellipse.factor, away)
        return 0.5 * (jnp.sum(inside**2) - jnp.sum((ellipse.centre + away) ** 2))

    def corrected(away: Array) -> Array:
        proposal = lower @ (ellipse.centre + away)
        return log_likelihood(proposal[:, None]) + correction(away)

    away = linalg.solve_vector(lower, column) - ellipse.centre
    direction, level = ellipse.factor @ normals, current + correction(away)
    moved, value, info = slice.step(uniforms, away, direction, corrected, level, bracket)
    return lower @ (ellipse.centre + moved), value - correction(moved), info


WAYS: dict[str, Way] = {
    "perturbed": perturbed,
    "tempered": tempered,
    "pooled": pooled,
    "learned": learned,
}
VARIANTS = (*OPTIONS, *WAYS)


# --- measuring -----------------------------------------------------------------------------------


class Run(NamedTuple):
    """One fit; the identity of a record."""

    problem: str
    variant: str
    seed: int
    n_iter: int


def planned_runs(args: argparse.Namespace) -> list[Run]:
    """The default with more seeds than the others: it shows the noise."""
    return [
        Run(problem, variant, seed, args.n_iter)
        for problem in args.problems
        for variant in args.variants
        for seed in range(args.default_seeds if variant == "default" else args.seeds)
    ]


def make_emulator(run: Run, n_iter: int) -> DGP:
    """An emulator with the variant's options; its ``n_iter`` is a factor there."""
    options = dict(OPTIONS.get(run.variant, {}))
    n_iter = round(options.pop("n_iter", 1.0) * n_iter)
    return DGP(n_chains=N_CHAINS, n_iter=n_iter, random_state=run.seed, **SETTINGS, **options)


def fit(run: Run, design: Any, n_iter: int) -> DGP:
    """The variant, fitted; where it is an experiment, by its own way of training."""
    way = WAYS.get(run.variant)
    patched = mock.patch.object(candidates.Deep, "train", way) if way else nullcontext()
    with patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_emulator(run, n_iter).fit(design.X, design.y)


def measure(run: Run) -> Record:
    """The record of the run; a short fit before it compiles the programs."""
    design = load_design(run.problem, 0)
    fit(run, design, WARM_ITER)
    emulator, _, seconds = timed(lambda: fit(run, design, run.n_iter))
    trained = emulator._parts[0].trained
    with emulator._running(False, 1, len(design.X)):
        voices = [(trained.ensemble, chain) for chain in range(N_CHAINS)]
        found = _boundary.predict_chains(voices, emulator._to_core(design.X_test))
    evaluations = sum(int(chain.imputation.evaluations) for chain in trained.chains)
    return {
        **run._asdict(),
        **agreement(found.mean, found.var),
        **mixture_scores(emulator, design, found.mean, found.var),
        "fit_cpu_s": seconds,
        "evaluations": evaluations,
    }


def agreement(mean: np.ndarray, var: np.ndarray) -> dict[str, float]:
    """R-hat of the predictions (chains, points, 1), and what it is made of: medians."""
    rhat = predictive_rhat(mean, var)
    return {
        "rhat": float(np.median(rhat)),
        "rhat_90": float(np.quantile(rhat, 0.9)),
        "between_sd": float(np.median(mean.std(axis=0, ddof=1))),
        "within_sd": float(np.median(np.sqrt(var.mean(axis=0)))),
    }


def mixture_scores(
    emulator: DGP, design: Any, mean: np.ndarray, var: np.ndarray
) -> dict[str, float]:
    """Scores of the mixture of all chains, with equal weights."""
    spread = var.mean(axis=0) + mean.var(axis=0)
    prediction = emulator._in_user_units(mean.mean(axis=0), spread, True)
    return scores(design.y_test, *(np.asarray(part) for part in prediction))


def measure_all(args: argparse.Namespace) -> list[Record]:
    """The records of all planned runs; the file is brought up to date after each of them."""
    stored = {Run(*(r[f] for f in Run._fields)): r for r in read_json(args.json) or []}
    runs = planned_runs(args)
    for run in runs:
        if args.resume and run in stored:
            continue
        stored[run] = measure(run)
        write_json(args.json, list(stored.values()))
        report_progress(stored[run])
    return [stored[run] for run in runs]


def report_progress(record: Record) -> None:
    shown = ("rhat", "fit_cpu_s", "normalised_crps", "coverage", "between_sd", "within_sd")
    values = ", ".join(f"{name} {record[name]:.4g}" for name in shown)
    name = f"{record['problem']} {record['variant']} seed {record['seed']}"
    print(f"{name}: {values}", file=sys.stderr, flush=True)


# --- tables --------------------------------------------------------------------------------------


def select(records: Sequence[Record], problem: str, variant: str) -> list[Record]:
    return [r for r in records if (r["problem"], r["variant"]) == (problem, variant)]


def merit(records: Sequence[Record]) -> float | None:
    """1 / ((R² - 1) x seconds), its geometric mean over runs."""
    logs = [-math.log((r["rhat"] ** 2 - 1.0) * r["fit_cpu_s"]) for r in records]
    return math.exp(sum(logs) / len(logs)) if logs else None


def relative_merit(records: Sequence[Record], problem: str, variant: str) -> float | None:
    of, default = (merit(select(records, problem, name)) for name in (variant, "default"))
    return None if of is None or default is None else of / default


def mean_of(records: Sequence[Record], name: str) -> float:
    return float(np.mean([r[name] for r in records]))


def table(records: Sequence[Record], problem: str, variants: Sequence[str]) -> Table:
    """One row for each variant: means over its runs."""
    rows = []
    for variant in variants:
        mine = select(records, problem, variant)
        values = (
            number(mean_of(mine, "rhat"), ".3f"),
            number(mean_of(mine, "fit_cpu_s"), ".1f"),
            number(mean_of(mine, "evaluations") / 1000, ".0f"),
            number(relative_merit(records, problem, variant), ".2f"),
            number(mean_of(mine, "normalised_crps"), ".4f"),
            number(mean_of(mine, "coverage"), ".3f"),
        )
        rows.append((variant, *values, str(len(mine))))
    return Table(problem, HEAD, rows)


def noise_table(records: Sequence[Record], problems: Sequence[str]) -> Table:
    """Least and largest values of the default over its seeds, the merit relative to its mean."""
    rows = []
    for problem in problems:
        mine = select(records, problem, "default")
        merits = [merit([r]) / merit(mine) for r in mine]
        columns = [[r[name] for r in mine] for name in ("rhat", "fit_cpu_s", "normalised_crps")]
        ends = [(min(of), max(of)) for of in (columns[0], columns[1], merits, columns[2])]
        styles = (".3f", ".1f", ".2f", ".4f")
        cells = [f"{low:{s}}-{high:{s}}" for (low, high), s in zip(ends, styles, strict=True)]
        rows.append((problem, *cells))
    head = ("problem", "R-hat", "cpu s", "merit", "CRPS/range")
    return Table("the default over its seeds", head, rows)


def overall_table(records: Sequence[Record], args: argparse.Namespace) -> Table:
    """Geometric mean over problems of the merit, and of the CRPS over that of the default."""
    rows = []
    for variant in args.variants:
        merits = [relative_merit(records, problem, variant) for problem in args.problems]
        crps = [
            mean_of(select(records, problem, variant), "normalised_crps")
            / mean_of(select(records, problem, "default"), "normalised_crps")
            for problem in args.problems
        ]
        means = (math.exp(np.mean(np.log(of))) for of in (merits, crps))
        rows.append((variant, *(number(mean, ".2f") for mean in means)))
    return Table("all problems, relative to the default", ("variant", "merit", "CRPS"), rows)


# --- command line --------------------------------------------------------------------------------


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--problems", nargs="+", choices=PROBLEMS, default=["vega", "delta"], metavar="NAME")
    add("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    add("--seeds", type=positive, default=1, help="fits of each variant")
    add("--default-seeds", type=positive, default=3, help="fits of the default")
    add("--n-iter", type=positive, default=N_ITER, help="iterations of the default")
    add("--json", type=Path, help="file of records, brought up to date after every fit")
    add("--resume", action="store_true", help="take runs already in the --json file from there")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    use_compilation_cache()
    records = measure_all(args)
    for problem in args.problems:
        print_table(table(records, problem, args.variants))
    if "default" in args.variants:
        print_table(noise_table(records, args.problems))
        print_table(overall_table(records, args))


if __name__ == "__main__":
    main()
