"""The report of a fit, in numbers and in words."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from deepemu.convergence import effective_sample_size, predictive_rhat, split_rhat
from deepemu.core.distributions import Gaussian, Mixture, mixture
from deepemu.diagnostics import LEVEL, CoverageTable, coverage_test, standardised_errors
from deepemu.errors import ConvergenceWarning, Message, Setting, warn
from deepemu.observations.choice import INTERPOLATES
from deepemu.posterior import stacking
from deepemu.posterior.comparison import rank_of, scores_of
from deepemu.posterior.stacking import Judged, Stacked
from deepemu.runtime import trees
from deepemu.training.chains import Trained
from deepemu.training.folds import HeldOut
from deepemu.training.structures import PlainGP, Structure

# A coverage less probable than this under the nominal level is not chance.
IMPROBABLE = 0.01
LARGEST_SCALE = 1.6
FURTHEST = 100.0
# A rule of thumb for designs of computer experiments (Loeppky, Sacks and Welch 2009).
ROWS_PER_INPUT = 10


@dataclass(frozen=True)
class Line:
    """A structure, or the mixture: the weights of its chains, held-out scores, and the standard
    deviation of the noise that was found, in units of that of y: its median over chains and its
    largest over outputs; None if it was given, or if outputs are not normal."""

    label: str
    weights: tuple[float, ...]
    crps: float | None = None
    log_score: float | None = None
    coverage: float | None = None
    noise: float | None = None

    @property
    def n_chains(self) -> int:
        return len(self.weights)

    @property
    def weight(self) -> float:
        return sum(self.weights)


@dataclass(frozen=True)
class Mixing:
    """Mixing diagnostics of one structure's chains.

    R-hat and effective sample size of the parameters are of the second half of the iterations
    with all rows: the largest and the smallest over parameters.
    """

    label: str
    n_iterations: int
    rhat: float
    effective: float
    angle: float
    evaluations: float


@dataclass(frozen=True)
class Report:
    """The report of a fit; ``print`` it, or read its fields. ``troubles`` are its warnings."""

    n_rows: int
    lines: tuple[Line, ...]
    mixing: tuple[Mixing, ...]
    scale: tuple[float, ...]
    prediction_rhat: float | None
    effective_chains: float
    troubles: tuple[str, ...]
    intervals: CoverageTable | None = None
    decisions: tuple[str, ...] = ()

    def warn(self) -> None:
        for trouble in self.troubles:
            warn(trouble, ConvergenceWarning)

    def __str__(self) -> str:
        return "\n".join(self.text_lines())

    __repr__ = __str__

    def text_lines(self) -> list[str]:
        """The printed lines; those that name a setting are messages."""
        return _in_words(self)


def report_on(
    structures: Sequence[Trained], stacked: Stacked, judged: Judged, decisions: tuple[str, ...]
) -> Report:
    """The report of a fit."""
    held_out = stacking.join(structures)
    lines = _lines(structures, stacked, held_out, judged)
    return Report(
        len(judged.y),
        lines,
        _mixings([each for each in structures if each.structure.network.n_imputed]),
        tuple(float(each) for each in stacked.stretch),
        None if held_out is None else _prediction_rhat(held_out, stacked.weights),
        float(1.0 / np.sum(stacked.weights**2)),
        _troubles(lines[-1], stacked, judged, structures[0].structure.network.n_inputs),
        _intervals(stacked, judged),
        decisions,
    )


def _lines(
    structures: Sequence[Trained], stacked: Stacked, held_out: HeldOut | None, judged: Judged
) -> tuple[Line, ...]:
    """One line per structure, those of one label together, and one for all.

    A structure is scored with equal weights of its chains and without a stretch, the mixture with
    weights and stretches from other rows.
    """
    label_of = np.repeat(
        [each.structure.label for each in structures], [len(each.chains) for each in structures]
    )
    lines = []
    for label in dict.fromkeys(label_of):
        mine = label_of == label
        alone = None if held_out is None else _mixture_of(held_out, mine)
        found = {} if alone is None else _scores(alone, judged)
        noise = _noise([each for each in structures if each.structure.label == label])
        lines.append(Line(str(label), _votes(stacked.weights[mine]), **found, noise=noise))
    found = {} if stacked.held_out is None else _scores(stacked.held_out, judged)
    return (*lines, Line("mixture", _votes(stacked.weights), **found))


def _noise(structures: Sequence[Trained]) -> float | None:
    """√(σ²η) of the last layer, if its nugget is the noise of the outputs: not where it is given
    and so small that outputs are interpolated."""
    network, start = structures[0].structure.network, structures[0].structure.start
    interpolates = np.all(np.exp(start[-1].log_nugget) <= INTERPOLATES)
    is_given = not network.layers[-1].free_nugget
    if network.n_imputed == network.depth or (is_given and interpolates):
        return None
    last = [chain.params[-1] for each in structures for chain in each.chains]
    logs = np.median([params.log_scale + params.log_nugget for params in last], axis=0)
    return float(np.exp(0.5 * np.max(logs)))


def _votes(weights: np.ndarray) -> tuple[float, ...]:
    return tuple(float(weight) for weight in weights)


def _mixture_of(held_out: HeldOut, some: np.ndarray) -> Mixture:
    """Predictions of held-out sites by some of the chains, with equal weights."""
    chosen = HeldOut(trees.row(held_out.latents, some), held_out.n_imputations[some])
    shares = stacking.shares_of_held_out(np.ones(some.sum()), chosen.mask)
    return stacking.held_out_mixture(chosen, shares)


def _scores(found: Mixture, judged: Judged) -> dict[str, float]:
    return scores_of(judged.y, judged.at_rows(found), *judged.model)


def _intervals(stacked: Stacked, judged: Judged) -> CoverageTable | None:
    if stacked.held_out is None:
        return None
    return rank_of(judged.y, judged.at_rows(stacked.held_out), *judged.model).intervals()


def _prediction_rhat(held_out: HeldOut, weights: np.ndarray) -> float | None:
    """The median over sites of R-hat among the chains that held them out."""
    found, of_chain = [], _moments_of_chains(held_out)
    for pattern in np.unique(held_out.mask, axis=1).T:
        sites = np.all(held_out.mask == pattern[:, None], axis=0)
        voting = pattern & (weights > 0.0)
        means, variances = (each[voting][:, sites] for each in (of_chain.mean, of_chain.var))
        if voting.sum() > 1:
            found.append(predictive_rhat(means, variances, weights[voting]).ravel())
    return float(np.median(np.concatenate(found))) if found else None


def _moments_of_chains(held_out: HeldOut) -> Gaussian:
    """Moments (chains, sites, P) of the last layer by the mixture of each chain's imputations."""
    places_first = jax.tree.map(lambda each: np.swapaxes(each, 0, 1), held_out.latents)
    return mixture(places_first, np.swapaxes(held_out.shares, 0, 1))


def _mixings(structures: Sequence[Trained]) -> tuple[Mixing, ...]:
    """Chains that were added to a structure later have a line of their own."""
    found: list[Mixing] = []
    for trained in structures:
        label = trained.structure.label
        first = all(label != each.label for each in found)
        found.append(_mixing(trained, label + ("" if first else ", chains added")))
    return tuple(found)


def _mixing(trained: Trained, label: str) -> Mixing:
    trace, n_iterations = trained.trace, trained.trace.log_density.shape[1]
    first = n_iterations - max(trained.n_together // 2, 1)
    late = [path[:, first:] for path in jax.tree.leaves(trace.params)]
    moving = [path[..., np.ptp(path, axis=(0, 1)) > 0.0] for path in late]  # not the fixed ones
    moving = [path for path in moving if path.size]
    states = [chain.imputation for chain in trained.chains]
    n_updates = _updates_in_a_sweep(trained.structure)
    evaluations = [s.evaluations / max(float(s.sweeps) * n_updates, 1.0) for s in states]
    return Mixing(
        label,
        n_iterations,
        max((float(np.max(split_rhat(path))) for path in moving), default=np.nan),
        min((float(np.min(effective_sample_size(path))) for path in moving), default=np.nan),
        float(np.mean([np.mean(angle) for state in states for angle in state.angles])),
        float(np.mean(evaluations)),
    )


def _updates_in_a_sweep(structure: Structure) -> int:
    if isinstance(structure, PlainGP):
        return 0
    imputed = structure.network.layers[: structure.network.n_imputed]
    return structure.plan.moves.n_updates([spec.width for spec in imputed])


def _troubles(mixture: Line, stacked: Stacked, judged: Judged, n_inputs: int) -> tuple[str, ...]:
    """Warnings about the error bars."""
    more_chains = "add runs, or train more chains (", Setting("n_chains"), ")."
    if mixture.coverage is None:
        return ()
    n_outputs, n_sites, scale = judged.y.size, len(np.unique(judged.site)), max(stacked.stretch)
    inside = round(mixture.coverage * n_outputs)
    too_narrow = coverage_test(inside, n_outputs, LEVEL).lower < IMPROBABLE
    furthest = _furthest(stacked, judged)
    found = {
        f"A held-out output lies {furthest:.0f} standard deviations from its prediction: the "
        "response changes between runs in a way the design does not resolve; add runs near the "
        "one whose held-out prediction is furthest off.": furthest > FURTHEST,
        Message(
            f"The 95 % intervals hold only {mixture.coverage:.0%} of {n_outputs} held-out outputs: "
            "they are too narrow here and probably elsewhere; ",
            *more_chains,
        ): too_narrow,
        Message(
            f"Held-out errors are {scale:.1f} times what the chains expected, and standard "
            "deviations were multiplied by that: predictions between the runs are guesses; ",
            *more_chains,
        ): scale > LARGEST_SCALE,
        f"{n_sites} distinct runs of {n_inputs} inputs are too few to check the intervals, which "
        f"may be too narrow; {ROWS_PER_INPUT * n_inputs} would do (ten for each input).": (
            n_sites < ROWS_PER_INPUT * n_inputs
        ),
    }
    return tuple(text for text, is_true in found.items() if is_true)


def _furthest(stacked: Stacked, judged: Judged) -> float:
    """The largest held-out error in standard deviations."""
    if stacked.held_out is None:
        return 0.0
    rows = judged.observation.mixed_moments(judged.at_rows(stacked.held_out), judged.units)
    return float(np.max(np.abs(standardised_errors(judged.y, rows.mean, np.sqrt(rows.var)))))


def _in_words(report: Report) -> list[str]:
    heads = ("structure", "chains", "weight", "CRPS", "log score", "in 95 %", "noise")
    rows = [heads, *(_cells(line) for line in report.lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    table = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    return [
        *table,
        "",
        *_remarks(report),
        *_noise_in_words(report),
        *_weights_in_words(report),
        *report.decisions,
        *_mixing_in_words(report),
        *report.troubles,
    ]


def _cells(line: Line) -> tuple[str, ...]:
    number = lambda value, style: "-" if value is None else format(value, style)  # noqa: E731
    return (
        line.label,
        str(line.n_chains),
        f"{line.weight:.2f}",
        number(line.crps, ".4f"),
        number(line.log_score, ".2f"),
        number(line.coverage, ".1%"),
        number(line.noise, ".1g"),
    )


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The first column to the left, the others to the right."""
    first, *others = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]


def _remarks(report: Report) -> list[str]:
    if report.lines[-1].crps is None:
        return [
            "Nothing was held out, so nothing checks the intervals.",
            Message(
                Setting("Emulator"), " holds rows out; so does ", Setting("DGP"),
                " with ", Message(Setting("stacking", True), ", "),
                "four chains, two iterations and eight distinct rows.",
            ),
        ]  # fmt: skip
    scale = ", ".join(f"{each:.2f}" for each in report.scale)
    return [
        f"Scores: {report.n_rows} rows, each predicted by chains trained without it; CRPS in units",
        "of the standard deviation of y. Those of a structure give its chains equal weights.",
        f"Standard deviations are multiplied by {scale}, which fits the held-out errors best.",
        *_intervals_in_words(report.intervals),
        f"R-hat of predictions {_rhat_in_words(report)}; the weights are worth "
        f"{report.effective_chains:.1f} equal chains.",
    ]


def _intervals_in_words(table: CoverageTable | None) -> list[str]:
    if table is None:
        return []
    shares = zip(table.levels, table.shares, strict=True)
    held = ", ".join(f"{share:.1%} (of {level:.0%})" for level, share in shares)
    return [f"Intervals of the mixture hold {held} of the held-out outputs."]


def _rhat_in_words(report: Report) -> str:
    found = report.prediction_rhat
    return (
        "- (one chain has all the weight)" if found is None else f"{found:.2f} (median over rows)"
    )


def _noise_in_words(report: Report) -> list[str]:
    if all(line.noise is None for line in report.lines):
        return []
    return ["Noise is the standard deviation of a run about the function, found, in that of y."]


def _weights_in_words(report: Report) -> list[str]:
    several = [line for line in report.lines[:-1] if line.n_chains > 1]
    return [
        f"Weights of {line.label}: " + ", ".join(f"{w:.3f}" for w in line.weights) + "."
        for line in several
    ]


def _mixing_in_words(report: Report) -> list[str]:
    return [
        f"{each.label}: {each.n_iterations} iterations, {_agreement_in_words(each)}mean accepted "
        f"angle {each.angle:.3f}, {each.evaluations:.1f} evaluations per update."
        for each in report.mixing
    ]


def _agreement_in_words(mixing: Mixing) -> str:
    if np.isnan(mixing.rhat):
        return "too few of them for an R-hat of the parameters, "
    return (
        f"parameters' R-hat up to {mixing.rhat:.2f}, effective sample size from "
        f"{mixing.effective:.0f}, "
    )
