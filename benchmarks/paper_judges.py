"""How a claim of the stochastic-imputation paper is judged from stored trials.

A judge takes the results and gives a verdict. All trials of a method have a part in it, by rank
tests at 5 %, two-sided: claims about errors and times as well as claims about standard deviations,
of which each trial has a few statistics (``paper_store.spread_statistics``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from paper import DESIGN, FEWEST
from paper_figures import NAMES, Results, best, column, prediction_times, times
from paper_store import REGIONS, Record, upper_tenth
from paper_verdicts import (
    CONFIRMED,
    REFUTED,
    TOO_FEW,
    UNCLEAR,
    Judge,
    Missing,
    Verdict,
    more_often,
)
from problems import load_design
from scipy.stats import fisher_exact, levene, mannwhitneyu, norm, wilcoxon

LEVEL = 0.05
FEWEST_TIMES = 4  # measured ones, with which a rank test can be clear
MARGIN = 0.1  # a gain in the median error that matters
AS_WELL = 0.1  # a loss of rank correlation that does not; and a correlation that is as good as none
TIME_MARGIN = 0.2  # of the larger time: one machine differs from itself by that, from hour to hour
COMPARABLE = 2.0  # times: what takes less than so many times another's is as efficient
N_RESAMPLES = 2000
PROMISED = 0.95  # coverage
OTHER_RUNS = "times of different runs"
INTERPOLATES = 0.01  # standard deviation at a run, over the range of outputs

Who = tuple[str, int]  # method and depth; depth 0 where it has none


# --- samples of trials ---------------------------------------------------------------------------


def values(results: Results, problem: str, who: Who, field: str) -> np.ndarray:
    """A column of all trials of a method, if they are enough to judge it by."""
    found = column(results.select(problem, *who), field)
    if len(found) < (1 if who[0] == "gp" else FEWEST):  # a plain process has no randomness
        raise Missing((TOO_FEW, name(who)))
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


def not_significantly_lower_error(problem: str, one: Who, other: Who) -> Judge:
    """The rank test does not find the first one's NRMSEP lower."""

    def judge(results: Results) -> Verdict:
        word, numbers = lower_error(problem, one, other)(results)
        return Verdict(REFUTED if word == CONFIRMED else CONFIRMED, numbers)

    return judge


Clock = Callable[[Sequence[Record]], np.ndarray]


def faster(problem: str, one: Who, other: Who, clock: Clock = times) -> Judge:
    """The first takes less time, surely by more than a fifth of the other's."""

    def judge(results: Results) -> Verdict:
        a, b = measured_times(results, problem, one, other, clock)
        less, more = (compared(x, (1 - TIME_MARGIN) * y) for x, y in ((a, b), (b, a)))
        word = CONFIRMED if less == CONFIRMED else REFUTED if more == CONFIRMED else UNCLEAR
        return Verdict(word, medians(one, a, other, b, "{:.3g} s"))

    return judge


def predicts_faster(problem: str, one: Who, other: Who) -> Judge:
    return faster(problem, one, other, prediction_times)


def as_efficient(problem: str, one: Who, other: Who) -> Judge:
    """The first takes surely less than twice the time of the other."""

    def judge(results: Results) -> Verdict:
        a, b = measured_times(results, problem, one, other, times)
        return Verdict(compared(a, COMPARABLE * b), medians(one, a, other, b, "{:.3g} s"))

    return judge


def measured_times(
    results: Results, problem: str, one: Who, other: Who, clock: Clock
) -> tuple[np.ndarray, np.ndarray]:
    """Of the trials that have one, if the same sources ran them; other packages have none, but
    where they ran side by side with this one."""
    found = [
        [record for record in results.select(problem, *who) if "fit_cpu_s" in record]
        for who in (one, other)
    ]
    few = [who for who, trials in zip((one, other), found, strict=True)
           if len(trials) < FEWEST_TIMES]  # fmt: skip
    if few:
        raise Missing(*((TOO_FEW, f"times of {name(who)}") for who in few))
    if len({record.get("source") for trials in found for record in trials}) > 1:
        raise Missing((OTHER_RUNS, f"{name(one)} and {name(other)}"))
    a, b = (clock(trials) for trials in found)
    return a, b


def balances(problem: str, one: Who, other: Who) -> Judge:
    """The first is clearly better in more of errors, rank correlation and time than it is worse."""
    criteria = (lower_error, knows_its_errors, faster)
    return more_often(
        [criterion(problem, one, other) for criterion in criteria],
        f"{name(other)}: {{yes}} better, {{no}} worse of {{all}}",
    )


def side_by_side(judge: Judge) -> Judge:
    """The judge asked about the trials of several packages that took turns in one run."""
    return lambda results: judge(Results(results.side_by_side, {}))


def accepted_sooner(problem: str, one: Who, other: Who) -> Judge:
    """Updates of hidden nodes take fewer evaluations with the first."""
    judge = lower(problem, one, other, "evaluations", "{:.1f} evaluations")
    return lambda results: judge(Results(results.acceptances, {}))


# --- standard deviations -------------------------------------------------------------------------


def surer_at_the_jump(one: Who, other: Who) -> Judge:
    """Step function: the first has the smaller standard deviations beside the jump."""
    return lower("step", one, other, "jump_std", "{:.3f}")


def surer_at_the_runs(one: Who, other: Who) -> Judge:
    """Step function: the first has the smaller standard deviations next to the runs."""
    return lower("step", one, other, "runs_std", "{:.4f}")


def interpolates(problem: str, who: Who) -> Judge:
    """The largest standard deviation at a run is below a hundredth of the range of outputs."""
    return below(problem, who, "std_at_runs", INTERPOLATES, "{:.2g}")


def does_not_interpolate(problem: str, who: Who) -> Judge:
    """The largest standard deviation at a run is above a hundredth of the range of outputs."""
    return above(problem, who, "std_at_runs", INTERPOLATES, "{:.2g}")


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


def fails_to_tell(problem: str, who: Who) -> Judge:
    """The rank correlation of a single emulator's standard deviations with its errors is surely
    below 0.1, by Fisher's z with Fieller's variance over test points."""

    def judge(results: Results) -> Verdict:
        (found,) = values(results, problem, who, "std_follows_error")
        n_points = len(load_design(problem, DESIGN).y_test)
        error = norm.ppf(1 - LEVEL / 2) * np.sqrt(1.06 / (n_points - 3))
        low, high = np.tanh(np.arctanh(found) + np.array([-error, error]))
        word = CONFIRMED if high < AS_WELL else REFUTED if low > AS_WELL else UNCLEAR
        return Verdict(word, (named(who, found, "{:.2f}"),))

    return judge


def picks_the_region(problem: str, one: Who, other: Who) -> Judge:
    """Of the tenth of the test points with the largest standard deviations, more are in the region
    with the first: of the best trials, by Fisher's test on points that are in one tenth only."""

    def judge(results: Results) -> Verdict:
        there = REGIONS[problem](load_design(problem, DESIGN).y_test)
        a, b = (upper_tenth(best_deviations(results, problem, who)) for who in (one, other))
        counts = [[np.sum(only & there), np.sum(only & ~there)] for only in (a & ~b, b & ~a)]
        word = UNCLEAR
        for possible, side in ((CONFIRMED, "greater"), (REFUTED, "less")):
            if fisher_exact(counts, alternative=side).pvalue <= LEVEL / 2:
                word = possible
        shares = (named(who, 100 * there[picked].mean(), "{:.0f} % of its points")
                  for who, picked in ((one, a), (other, b)))  # fmt: skip
        return Verdict(word, tuple(shares))

    return judge


def best_deviations(results: Results, problem: str, who: Who) -> np.ndarray:
    found = results.select(problem, *who)
    if not found:
        raise Missing((TOO_FEW, name(who)))
    return results.moments(best(found))[1]
