"""How a claim of the stochastic-imputation paper is judged from stored trials.

A judge takes the results and gives a verdict. All trials of a method have a part in it, by rank
tests at 5 %, two-sided: claims about errors and times as well as claims about standard deviations,
of which each trial has a few statistics (``paper_store.spread_statistics``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from paper import FEWEST
from paper_figures import NAMES, Results, column, times
from scipy.stats import levene, mannwhitneyu, wilcoxon

LEVEL = 0.05
FEWEST_TIMES = 4  # measured ones, with which a rank test can be clear
MARGIN = 0.1  # a gain in the median error that matters
AS_WELL = 0.1  # a loss of rank correlation that does not
N_RESAMPLES = 2000
PROMISED = 0.95  # coverage
CONFIRMED, REFUTED, UNCLEAR = "confirmed", "contradicted", "undecided"


class Missing(LookupError):
    """Trials that a claim needs were not run."""


class Verdict(NamedTuple):
    word: str
    numbers: tuple[str, ...]  # such as "SI 2: 0.0325"


Judge = Callable[[Results], Verdict]
Who = tuple[str, int]  # method and depth; depth 0 where it has none


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


# --- samples of trials ---------------------------------------------------------------------------


def values(results: Results, problem: str, who: Who, field: str) -> np.ndarray:
    """A column of all trials of a method, if they are enough to judge it by."""
    found = column(results.select(problem, *who), field)
    if len(found) < (1 if who[0] == "gp" else FEWEST):  # a plain process has no randomness
        raise Missing(name(who))
    return found


def name(who: Who) -> str:
    method, depth = who
    return f"{NAMES[method]} {depth}" if depth else NAMES[method]


def named(who: Who, value: float, form: str) -> str:
    return f"{name(who)}: {form.format(value)}"


def compared(lower: np.ndarray, higher: np.ndarray) -> str:
    """Whether the first sample is clearly below the second; a single value is taken as exact."""
    if len(lower) == len(higher) == 1:
        return CONFIRMED if lower[0] < higher[0] else REFUTED
    if min(len(lower), len(higher)) == 1:
        test = partial(wilcoxon, lower - higher)
    else:
        test = partial(mannwhitneyu, lower, higher)
    if test(alternative="less").pvalue <= LEVEL / 2:
        return CONFIRMED
    return REFUTED if test(alternative="greater").pvalue <= LEVEL / 2 else UNCLEAR


def lower(problem: str, one: Who, other: Who, field: str, form: str) -> Judge:
    """The first has the lower values of a column of the table."""

    def judge(results: Results) -> Verdict:
        a, b = (values(results, problem, who, field) for who in (one, other))
        return Verdict(compared(a, b), medians(one, a, other, b, form))

    return judge


def medians(one: Who, a: np.ndarray, other: Who, b: np.ndarray, form: str) -> tuple[str, str]:
    return named(one, np.median(a), form), named(other, np.median(b), form)


def below(problem: str, who: Who, field: str, bound: float, form: str) -> Judge:
    """The values of a column are below a bound."""

    def judge(results: Results) -> Verdict:
        found = values(results, problem, who, field)
        word = compared(found, np.array([bound]))
        return Verdict(word, (named(who, np.median(found), form),))

    return judge


def above(problem: str, who: Who, field: str, bound: float, form: str) -> Judge:
    """The values of a column are above a bound."""
    opposite = {CONFIRMED: REFUTED, REFUTED: CONFIRMED, UNCLEAR: UNCLEAR}

    def judge(results: Results) -> Verdict:
        word, numbers = below(problem, who, field, bound, form)(results)
        return Verdict(opposite[word], numbers)

    return judge


# --- errors and times ----------------------------------------------------------------------------


def lower_error(problem: str, one: Who, other: Who) -> Judge:
    """The first has the lower NRMSEP."""
    return lower(problem, one, other, "nrmsep", "{:.4f}")


def no_lower_error(problem: str, one: Who, other: Who) -> Judge:
    """The first gains nothing that matters: surely less than a tenth of the median NRMSEP."""

    def judge(results: Results) -> Verdict:
        a, b = (values(results, problem, who, "nrmsep") for who in (one, other))
        least, most = gains(a, b)
        word = CONFIRMED if most < MARGIN else REFUTED if least >= MARGIN else UNCLEAR
        return Verdict(word, medians(one, a, other, b, "{:.4f}"))

    return judge


def gains(lower: np.ndarray, higher: np.ndarray) -> np.ndarray:
    """Interval of 1 - median(lower) / median(higher), from trials drawn anew."""
    rng = np.random.default_rng(0)
    a, b = (
        np.median(rng.choice(sample, (N_RESAMPLES, len(sample))), axis=1)
        for sample in (lower, higher)
    )
    return np.quantile(1 - a / b, [LEVEL / 2, 1 - LEVEL / 2])


def steadier(problem: str, one: Who, other: Who) -> Judge:
    """The NRMSEP of the first varies less over trials: distances from the median, by Levene."""

    def judge(results: Results) -> Verdict:
        a, b = (values(results, problem, who, "nrmsep") for who in (one, other))
        spreads = [np.mean(np.abs(sample - np.median(sample))) for sample in (a, b)]
        clear = levene(a, b).pvalue <= LEVEL
        word = (CONFIRMED if spreads[0] < spreads[1] else REFUTED) if clear else UNCLEAR
        return Verdict(word, (named(one, spreads[0], "± {:.4f}"),
                              named(other, spreads[1], "± {:.4f}")))  # fmt: skip

    return judge


def faster(problem: str, one: Who, other: Who) -> Judge:
    """The first takes less time, of the trials whose time was measured."""

    def judge(results: Results) -> Verdict:
        a, b = (measured_times(results, problem, who) for who in (one, other))
        return Verdict(compared(a, b), medians(one, a, other, b, "{:.3g} s"))

    return judge


def measured_times(results: Results, problem: str, who: Who) -> np.ndarray:
    seconds = times(results.select(problem, *who))
    if len(seconds) < FEWEST_TIMES:
        raise Missing(f"times of {name(who)}")
    return seconds


# --- standard deviations -------------------------------------------------------------------------


def surer_at_the_jump(one: Who, other: Who) -> Judge:
    """Step function: the first has the smaller standard deviations beside the jump."""
    return lower("step", one, other, "jump_std", "{:.3f}")


def surer_at_the_runs(one: Who, other: Who) -> Judge:
    """Step function: the first has the smaller standard deviations next to the runs."""
    return lower("step", one, other, "runs_std", "{:.4f}")


def knows_its_errors(problem: str, one: Who, other: Who) -> Judge:
    """The first one's standard deviations follow its errors more closely, by rank correlation."""
    return reversed_numbers(lower(problem, other, one, "std_follows_error", "{:.2f}"))


def knows_its_errors_as_well(problem: str, one: Who, other: Who) -> Judge:
    """Or nearly: by a rank correlation that is less than 0.1 below the other's."""

    def judge(results: Results) -> Verdict:
        a, b = (values(results, problem, who, "std_follows_error") for who in (one, other))
        return Verdict(compared(b - AS_WELL, a), medians(one, a, other, b, "{:.2f}"))

    return judge


def reversed_numbers(judge: Judge) -> Judge:
    """The same verdict with the numbers of the other one first."""

    def same(results: Results) -> Verdict:
        word, numbers = judge(results)
        return Verdict(word, numbers[::-1])

    return same


def sure_where_wrong(problem: str, one: Who, other: Who) -> Judge:
    """The first has the smaller standard deviations where its own errors are largest."""
    return lower(problem, one, other, "std_where_wrong", "{:.2f}")


def contrast(problem: str, one: Who, other: Who) -> Judge:
    """The first one's standard deviations in the region, against those elsewhere, are larger."""
    return reversed_numbers(lower(problem, other, one, "region_ratio", "{:.2f} times"))


def less_sure_in_the_region(problem: str, who: Who) -> Judge:
    """Standard deviations are larger in the region than elsewhere."""
    return above(problem, who, "region_ratio", 1.0, "{:.2f} times")


def no_less_sure_in_the_region(problem: str, who: Who) -> Judge:
    """Standard deviations in the region are at most a tenth larger than elsewhere."""
    return below(problem, who, "region_ratio", 1 + MARGIN, "{:.2f} times")


def covers_too_little(problem: str, who: Who, field: str = "coverage") -> Judge:
    """The 95 % intervals hold fewer test points than that."""
    return below(problem, who, field, PROMISED, "{:.2f} inside")


def covers_too_little_in_the_region(problem: str, who: Who) -> Judge:
    return covers_too_little(problem, who, "region_coverage")


def sure_of_zeros(problem: str, who: Who) -> Judge:
    """Where a response is taken for zero that is none, standard deviations are below usual."""
    return below(problem, who, "zeros_ratio", 1.0, "{:.2f} times the median")
