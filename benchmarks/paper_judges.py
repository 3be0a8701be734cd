"""How a claim of the stochastic-imputation paper is judged from stored trials.

A judge takes the results and gives a verdict. Errors and times of trials are compared by rank
tests. What is said of standard deviations is looked at in the trial with the lowest NRMSEP, as in
the paper's pictures, and must hold when the test points are drawn anew. All at 5 %, two-sided.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from paper import FEWEST
from paper_figures import NAMES, Results, best, column, times
from paper_store import Record
from problems import load_design
from scipy.stats import binomtest, levene, mannwhitneyu, rankdata, wilcoxon

LEVEL = 0.05
FEWEST_TIMES = 4  # measured ones, with which a rank test can be clear
MARGIN = 0.1  # a gain in the median error that matters
N_RESAMPLES = 2000
PROMISED = 0.95  # coverage
HALF_WIDTH = 1.96  # standard deviations
CONFIRMED, REFUTED, UNCLEAR = "confirmed", "not confirmed", "no clear difference"


class Missing(LookupError):
    """Trials that a claim needs were not run."""


class Verdict(NamedTuple):
    word: str
    numbers: tuple[str, ...]  # such as "SI 2: 0.0325"


Judge = Callable[[Results], Verdict]
Who = tuple[str, int]  # method and depth; depth 0 where it has none
Region = Callable[[np.ndarray], np.ndarray]  # which of the true outputs are in it


def trials(results: Results, problem: str, who: Who) -> list[Record]:
    """All trials of a method, if they are enough to judge it by."""
    found = results.select(problem, *who)
    if len(found) < (1 if who[0] == "gp" else FEWEST):  # a plain process has no randomness
        raise Missing(name(who))
    return found


def name(who: Who) -> str:
    method, depth = who
    return f"{NAMES[method]} {depth}" if depth else NAMES[method]


def named(*found: tuple[Who, float], form: str) -> tuple[str, ...]:
    return tuple(f"{name(who)}: {form.format(value)}" for who, value in found)


def all_of(*judges: Judge) -> Judge:
    """Confirmed if all are; what was not run is named, unless nothing was."""

    def judge(results: Results) -> Verdict:
        found, missing = [], []
        for each in judges:
            try:
                found.append(each(results))
            except Missing as error:
                missing.append(str(error))
        absent = ", ".join(dict.fromkeys(missing))
        if not found:
            raise Missing(absent)
        numbers = [number for verdict in found for number in verdict.numbers]
        left_out = [f"too few trials: {absent}"] if missing else []
        word = in_one_word([verdict.word for verdict in found])
        if missing:
            word += f" ({len(found)} of {len(judges)} parts)"
        return Verdict(word, tuple(dict.fromkeys(numbers + left_out)))

    return judge


def in_one_word(words: list[str]) -> str:
    if len(set(words)) == 1:
        return words[0]
    counts = (f"{words.count(w)} {w}" for w in (CONFIRMED, UNCLEAR, REFUTED) if w in words)
    return f"in part ({', '.join(counts)})"


# --- errors, times and coverage of trials --------------------------------------------------------


def compared(lower: np.ndarray, higher: np.ndarray) -> str:
    """Whether the first sample is clearly below the second; a single value is taken as exact."""
    if min(len(lower), len(higher)) == 1:
        test = partial(wilcoxon, lower - higher)
    else:
        test = partial(mannwhitneyu, lower, higher)
    if test(alternative="less").pvalue <= LEVEL / 2:
        return CONFIRMED
    return REFUTED if test(alternative="greater").pvalue <= LEVEL / 2 else UNCLEAR


def errors(results: Results, problem: str, *who: Who) -> list[np.ndarray]:
    return [column(trials(results, problem, each), "nrmsep") for each in who]


def medians(one: Who, a: np.ndarray, other: Who, b: np.ndarray, form: str) -> tuple[str, ...]:
    return named((one, np.median(a)), (other, np.median(b)), form=form)


def lower_error(problem: str, one: Who, other: Who) -> Judge:
    """The first has the lower NRMSEP."""

    def judge(results: Results) -> Verdict:
        a, b = errors(results, problem, one, other)
        return Verdict(compared(a, b), medians(one, a, other, b, "{:.4f}"))

    return judge


def not_clearly_lower_error(problem: str, one: Who, other: Who) -> Judge:
    """The first does not have a clearly lower NRMSEP."""

    def judge(results: Results) -> Verdict:
        word, numbers = lower_error(problem, one, other)(results)
        return Verdict(REFUTED if word == CONFIRMED else CONFIRMED, numbers)

    return judge


def no_lower_error(problem: str, one: Who, other: Who) -> Judge:
    """The first gains nothing that matters: surely less than a tenth of the median NRMSEP."""

    def judge(results: Results) -> Verdict:
        a, b = errors(results, problem, one, other)
        numbers = medians(one, a, other, b, "{:.4f}")
        if largest_gain(a, b) < MARGIN:
            return Verdict(CONFIRMED, numbers)
        return Verdict(REFUTED if compared(a, b) == CONFIRMED else UNCLEAR, numbers)

    return judge


def largest_gain(lower: np.ndarray, higher: np.ndarray) -> float:
    """Upper end of the interval, from trials drawn anew, for 1 - median(lower) / median(higher)."""
    rng = np.random.default_rng(0)
    a, b = (
        np.median(rng.choice(sample, (N_RESAMPLES, len(sample))), axis=1)
        for sample in (lower, higher)
    )
    return middle_of(1 - a / b)[1]


def middle_of(values: np.ndarray) -> np.ndarray:
    """The interval without the outermost 5 %."""
    return np.quantile(values, [LEVEL / 2, 1 - LEVEL / 2])


def steadier(problem: str, one: Who, other: Who) -> Judge:
    """The NRMSEP of the first varies less over trials, by Levene's test about the medians."""

    def judge(results: Results) -> Verdict:
        a, b = errors(results, problem, one, other)
        clear = levene(a, b).pvalue <= LEVEL
        word = (CONFIRMED if np.std(a) < np.std(b) else REFUTED) if clear else UNCLEAR
        return Verdict(word, named((one, np.std(a)), (other, np.std(b)), form="± {:.4f}"))

    return judge


def faster(problem: str, one: Who, other: Who) -> Judge:
    """The first takes less time, of the trials whose time was measured."""

    def judge(results: Results) -> Verdict:
        found = []
        for who in (one, other):
            seconds = times(trials(results, problem, who))
            if len(seconds) < FEWEST_TIMES:
                raise Missing(f"times of {name(who)}")
            found.append(seconds)
        a, b = found
        return Verdict(compared(a, b), medians(one, a, other, b, "{:.3g} s"))

    return judge


def covers_too_little(problem: str, who: Who) -> Judge:
    """The 95 % intervals hold clearly fewer test points than that, over trials."""

    def judge(results: Results) -> Verdict:
        inside = column(trials(results, problem, who), "coverage")
        numbers = named((who, float(inside.mean())), form="{:.2f} inside")
        return Verdict(compared(inside, np.array([PROMISED])), numbers)

    return judge


# --- the step function ---------------------------------------------------------------------------


def step_deviations(results: Results, who: Who, near: Callable[[np.ndarray], np.ndarray]):
    """Mean standard deviation of each trial at the test points that are near."""
    points = near(load_design("step", 0).X_test[:, 0])
    return np.array(
        [results.moments(record)[1][points].mean() for record in trials(results, "step", who)]
    )


def beside_the_jump(x: np.ndarray) -> np.ndarray:
    """Between the two runs on either side of it."""
    return np.abs(x - 0.5) < 1 / 18


def at_the_runs(x: np.ndarray) -> np.ndarray:
    """The test point that is nearest to each of the ten runs."""
    runs = np.linspace(0, 1, 10)
    return np.isin(np.arange(len(x)), np.abs(x[:, None] - runs).argmin(axis=0))


def surer_on_the_step(one: Who, other: Who, near: Callable[[np.ndarray], np.ndarray]) -> Judge:
    """The first has the smaller standard deviations there, over trials."""

    def judge(results: Results) -> Verdict:
        a, b = (step_deviations(results, who, near) for who in (one, other))
        return Verdict(compared(a, b), medians(one, a, other, b, "{:.3g}"))

    return judge


# --- standard deviations at the test points ------------------------------------------------------


class Profile(NamedTuple):
    """Of the best trial of a method, by test point."""

    truth: np.ndarray
    mean: np.ndarray
    std: np.ndarray

    @property
    def error(self) -> np.ndarray:
        return np.abs(self.mean - self.truth)


def profile(results: Results, problem: str, who: Who) -> Profile:
    truth = load_design(problem, 0).y_test
    mean, std = results.moments(best(trials(results, problem, who)))
    return Profile(truth, mean, std)


Statistic = Callable[[Profile, np.ndarray], np.ndarray]  # of resampled points (resamples, points)


def larger(
    problem: str, one: Who, other: Who, statistic: Statistic, form: str, margin: float = 0.0
) -> Judge:
    """The first has the larger statistic of its profile, or one that is smaller by less."""

    def judge(results: Results) -> Verdict:
        a, b = (profile(results, problem, who) for who in (one, other))
        drawn = points_drawn_anew(len(a.truth))
        word = sign_of(statistic(a, drawn) - statistic(b, drawn) + margin)
        return Verdict(word, numbers_of(statistic, form, (one, a), (other, b)))

    return judge


def points_drawn_anew(n_points: int) -> np.ndarray:
    return np.random.default_rng(0).integers(n_points, size=(N_RESAMPLES, n_points))


def sign_of(differences: np.ndarray) -> str:
    low, high = middle_of(differences)
    return CONFIRMED if low > 0 else REFUTED if high < 0 else UNCLEAR


def numbers_of(statistic: Statistic, form: str, *found: tuple[Who, Profile]) -> tuple[str, ...]:
    """The statistic of the test points as they are."""
    return named(
        *((who, statistic(each, np.arange(len(each.truth))[None])[0]) for who, each in found),
        form=form,
    )


def knows_its_errors(problem: str, one: Who, other: Who) -> Judge:
    """The first one's standard deviations follow its errors more closely, by rank correlation."""
    return larger(problem, one, other, rank_correlation, "{:.2f}")


def knows_its_errors_as_well(problem: str, one: Who, other: Who) -> Judge:
    """Or nearly: by a rank correlation that is less than 0.1 below the other's."""
    return larger(problem, one, other, rank_correlation, "{:.2f}", margin=0.1)


def rank_correlation(found: Profile, points: np.ndarray) -> np.ndarray:
    ranks = (rankdata(values)[points] for values in (found.error, found.std))
    a, b = (each - each.mean(axis=1, keepdims=True) for each in ranks)
    return (a * b).sum(axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))


def contrast(problem: str, one: Who, other: Who, region: Region) -> Judge:
    """The first one's standard deviations are the larger in a region, against those elsewhere."""
    return larger(problem, one, other, partial(ratio, region=region), "{:.2f} times")


def ratio(found: Profile, points: np.ndarray, region: Region) -> np.ndarray:
    """Mean standard deviation in the region over that elsewhere."""
    inside = region(found.truth)[points]
    std = found.std[points]
    return mean_where(std, inside) / mean_where(std, ~inside)


def mean_where(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return (values * chosen).sum(axis=1) / chosen.sum(axis=1)


def less_sure_in(problem: str, who: Who, region: Region) -> Judge:
    """Standard deviations are larger in a region than elsewhere."""

    def judge(results: Results) -> Verdict:
        found = profile(results, problem, who)
        statistic = partial(ratio, region=region)
        word = sign_of(statistic(found, points_drawn_anew(len(found.truth))) - 1)
        return Verdict(word, numbers_of(statistic, "{:.2f} times", (who, found)))

    return judge


def not_less_sure_in(problem: str, who: Who, region: Region) -> Judge:
    """Standard deviations are not clearly larger in a region than elsewhere."""

    def judge(results: Results) -> Verdict:
        word, numbers = less_sure_in(problem, who, region)(results)
        return Verdict(REFUTED if word == CONFIRMED else CONFIRMED, numbers)

    return judge


def covers_too_little_in(problem: str, who: Who, region: Region) -> Judge:
    """The 95 % intervals hold clearly fewer test points of a region than that."""

    def judge(results: Results) -> Verdict:
        found = profile(results, problem, who)
        there = region(found.truth)
        inside = (found.error <= HALF_WIDTH * found.std)[there]
        tests = (
            binomtest(int(inside.sum()), len(inside), PROMISED, alternative=side).pvalue
            for side in ("less", "greater")
        )
        fewer, more = (p <= LEVEL / 2 for p in tests)
        word = CONFIRMED if fewer else REFUTED if more else UNCLEAR
        return Verdict(word, named((who, inside.mean()), form="{:.2f} inside"))

    return judge


def sure_where_wrong(problem: str, one: Who, other: Who) -> Judge:
    """The first has the smaller standard deviations where its own errors are largest."""
    return larger(problem, other, one, doubt_where_wrong, "{:.2f}")


def doubt_where_wrong(found: Profile, points: np.ndarray) -> np.ndarray:
    """Mean standard deviation, scaled to [0, 1], over the tenth with the largest errors."""
    scaled = (found.std - found.std.min()) / np.ptp(found.std)
    return mean_where(scaled[points], upper_tenth(found.error)[points])


def upper_tenth(values: np.ndarray) -> np.ndarray:
    return values >= np.quantile(values, 0.9)


def sure_of_zeros(problem: str, who: Who) -> Judge:
    """Where a response that is not zero is taken for zero, standard deviations are below usual."""

    def judge(results: Results) -> Verdict:
        found = profile(results, problem, who)
        scale = np.ptp(found.truth)
        mistaken = (found.truth > 0.1 * scale) & (np.abs(found.mean) < 0.02 * scale)
        if not mistaken.any():
            return Verdict(REFUTED, (f"{name(who)}: no such point",))
        there, usual = np.median(found.std[mistaken]), np.median(found.std)
        numbers = f"{name(who)}: {mistaken.sum()} points, {there / usual:.2f} times the median"
        return Verdict(CONFIRMED if there < usual else REFUTED, (numbers,))

    return judge
