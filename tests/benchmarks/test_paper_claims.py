"""What is said of the paper's claims, and that it could have been otherwise."""

import numpy as np
import paper
import paper_claims
import paper_figures
import paper_judges
import problems
import pytest
from paper import Trial
from paper_claims import OPEN
from paper_judges import CONFIRMED, REFUTED, UNCLEAR

ONE, OTHER = ("si", 2), ("si", 3)
LOW, HIGH = np.linspace(0.1, 0.2, 10), np.linspace(0.3, 0.4, 10)
LOWER = paper_judges.lower_error("vega", ONE, OTHER)


def record_of(problem, method, depth, number, error, seconds=1.0):
    trial = Trial(problem, method, depth, number)
    return {**trial._asdict(), "nrmsep": error, "coverage": error, "fit_cpu_s": seconds,
            "predict_cpu_s": 0.0}  # fmt: skip


def results_of(**errors):
    """Trials of Vega with the given NRMSEPs, by method and depth as in ``si_2``."""
    records = []
    for key, values in errors.items():
        method, depth = key.rsplit("_", 1)
        records += [
            record_of("vega", method, int(depth), number, value, 1 + value)
            for number, value in enumerate(values)
        ]
    return paper_figures.Results(records, {})


# --- trials --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [(LOW, HIGH, CONFIRMED), (HIGH, LOW, REFUTED), (LOW, LOW + 0.001, UNCLEAR)],
)
def test_errors_are_compared_by_a_rank_test(first, second, word):
    results = results_of(si_2=first, si_3=second)
    numbers = f"SI 2: {np.median(first):.4f}", f"SI 3: {np.median(second):.4f}"
    assert LOWER(results) == (word, numbers)
    opposite = paper_judges.not_clearly_lower_error("vega", ONE, OTHER)(results).word
    assert opposite == (REFUTED if word == CONFIRMED else CONFIRMED)


def test_ranks_and_not_medians_say_which_sample_is_lower():
    """The first is mostly higher, though its median is lower."""
    first = np.repeat([0.05, 1.0], [11, 9])
    second = np.repeat([0.04, 0.55], [9, 11])
    assert np.median(first) < np.median(second)
    assert paper_judges.compared(first, second) == REFUTED
    assert paper_judges.compared(second, first) == CONFIRMED


@pytest.mark.parametrize(
    ("plain", "word"), [(0.5, CONFIRMED), (0.05, REFUTED), (LOW.mean() + 1e-3, UNCLEAR)]
)
def test_trials_are_compared_with_the_one_value_of_a_plain_process(plain, word):
    for trials in (LOW, LOW[2:8]):  # six are enough
        results = results_of(si_2=trials, gp_0=[plain])
        assert paper_judges.lower_error("vega", ONE, ("gp", 0))(results).word == word


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        (HIGH, HIGH, UNCLEAR),  # the same, but they might differ by more than a tenth
        (HIGH[4:] - 0.03, HIGH[4:], UNCLEAR),
        (0.2 + 0.01 * LOW, 0.2 + 0.01 * HIGH, CONFIRMED),  # clearly lower, by a hundredth
        (HIGH, LOW, CONFIRMED),
        (LOW, HIGH, REFUTED),
    ],
)
def test_no_gain_is_one_that_is_surely_less_than_a_tenth(first, second, word):
    judge = paper_judges.no_lower_error("vega", ONE, OTHER)
    assert judge(results_of(si_2=first, si_3=second)).word == word


def test_times_are_compared_where_they_were_measured():
    results = results_of(si_2=LOW, si_3=HIGH)
    quicker = paper_judges.faster("vega", ONE, OTHER)
    assert quicker(results) == (CONFIRMED, ("SI 2: 1.15 s", "SI 3: 1.35 s"))
    for record in results.records[3:10]:
        del record["fit_cpu_s"]
    with pytest.raises(paper_judges.Missing, match="times of SI 2"):  # three are left
        quicker(results)


def test_the_steadier_one_varies_less():
    results = results_of(si_2=LOW, si_3=0.15 + 10 * (LOW - 0.15))
    assert paper_judges.steadier("vega", ONE, OTHER)(results).word == CONFIRMED
    assert paper_judges.steadier("vega", OTHER, ONE)(results).word == REFUTED
    alike = results_of(si_2=LOW, si_3=HIGH)
    assert paper_judges.steadier("vega", ONE, OTHER)(alike).word == UNCLEAR


@pytest.mark.parametrize(("inside", "word"), [(0.9, CONFIRMED), (0.99, REFUTED), (0.95, UNCLEAR)])
def test_coverage_is_compared_with_what_is_promised(inside, word):
    results = results_of(si_2=inside + np.linspace(-0.01, 0.012, 8))
    verdict = paper_judges.covers_too_little("vega", ONE)(results)
    assert verdict == (word, (f"SI 2: {inside:.2f} inside",))


def test_a_claim_in_several_parts_says_what_holds_and_what_is_missing():
    judge = paper_judges.all_of(
        LOWER,
        paper_judges.lower_error("vega", OTHER, ONE),
        paper_judges.lower_error("vega", ONE, ("dsvi", 2)),
    )
    verdict = judge(results_of(si_2=LOW, si_3=HIGH))
    assert verdict.word == "in part (1 confirmed, 1 not confirmed) (2 of 3 parts)"
    assert verdict.numbers == ("SI 2: 0.1500", "SI 3: 0.3500", "too few trials: DSVI 2")


def test_a_claim_without_trials_is_open():
    ((_, verdict),) = paper_claims.judged(results_of(), [paper_claims.CLAIMS[0]])
    assert verdict == (OPEN, ("too few trials: FB (ours) 3, DSVI 3, SI 3, SI-IC 3",))


def test_a_few_trials_decide_nothing():
    few, many = results_of(si_2=LOW[:5], si_3=HIGH), results_of(si_2=LOW[:6], si_3=HIGH)
    assert LOWER(many).word == CONFIRMED
    with pytest.raises(paper_judges.Missing, match="SI 2"):
        LOWER(few)


def test_no_claim_waits_for_networks_that_the_paper_does_not_have():
    found = paper_claims.at_every_depth("vega", "si", "fb")
    assert found == [("si", 2), ("fb", 2), ("si", 3), ("fb", 3), ("si", 4)]


# --- standard deviations -------------------------------------------------------------------------

N_POINTS = 200
TRUTH = np.linspace(0, 1, N_POINTS)
ERRORS = np.random.default_rng(0).permutation(np.linspace(0.001, 0.1, N_POINTS))
MEAN = TRUTH + np.where(TRUTH > 0.5, -1, 1) * ERRORS


@pytest.fixture
def profiles(monkeypatch):
    """Two methods with the given standard deviations, and errors of either sign."""
    monkeypatch.setattr(
        paper_judges, "load_design", lambda *_: problems.Design(None, None, None, TRUTH)
    )

    def of(first, second, mean=MEAN):
        others = [0.3] * 5  # the first trial is the best
        results = results_of(si_2=[0.1, *others], si_3=[0.2, *others])
        results.predictions["vega-si-2-000"] = np.array([mean, first])
        results.predictions["vega-si-3-000"] = np.array([mean, second])
        return results

    return of


def upper_half(truth):
    return truth > 0.5


HALVES = np.where(TRUTH > 0.5, 3.0, 1.0)
NOISE = 1 + np.random.default_rng(1).random(N_POINTS)
PROFILES = [
    # judge, what confirms it as the first's and what as the second's, both their numbers
    (paper_judges.knows_its_errors, 2 * ERRORS, 1 / ERRORS, ("SI 2: 1.00", "SI 3: -1.00")),
    (paper_judges.sure_where_wrong, 1 / ERRORS, 2 * ERRORS, None),
    (
        lambda *who: paper_judges.contrast(*who, upper_half),
        HALVES,
        1 / HALVES,
        ("SI 2: 3.00 times", "SI 3: 0.33 times"),
    ),
]


@pytest.mark.parametrize(("judge", "first", "second", "numbers"), PROFILES)
def test_standard_deviations_are_compared_over_test_points(profiles, judge, first, second, numbers):
    verdict = judge("vega", ONE, OTHER)(profiles(first, second))
    assert verdict.word == CONFIRMED and numbers in (None, verdict.numbers)
    assert judge("vega", ONE, OTHER)(profiles(second, first)).word == REFUTED
    same = judge("vega", ONE, OTHER)(profiles(NOISE, NOISE[::-1])).word
    assert same == UNCLEAR


@pytest.mark.parametrize(
    ("std", "word"), [(HALVES, CONFIRMED), (1 / HALVES, REFUTED), (NOISE, UNCLEAR)]
)
def test_a_region_is_less_sure_if_its_standard_deviations_are_larger(profiles, std, word):
    results = profiles(std, std)
    assert paper_judges.less_sure_in("vega", ONE, upper_half)(results).word == word
    opposite = paper_judges.not_less_sure_in("vega", ONE, upper_half)(results).word
    assert opposite == (REFUTED if word == CONFIRMED else CONFIRMED)


@pytest.mark.parametrize(("width", "word"), [(0.02, CONFIRMED), (1.0, REFUTED), (0.05, UNCLEAR)])
def test_intervals_are_counted_in_a_region(profiles, width, word):
    """Errors are spread evenly up to 0.1; elsewhere intervals hold everything."""
    results = profiles(*[np.where(TRUTH > 0.5, width, 1.0)] * 2)
    inside = np.mean(ERRORS[TRUTH > 0.5] <= 1.96 * width)
    verdict = paper_judges.covers_too_little_in("vega", ONE, upper_half)(results)
    assert verdict == (word, (f"SI 2: {inside:.2f} inside",))


def test_a_little_worse_is_as_well(profiles):
    mixed = np.where(np.arange(N_POINTS) % 40 == 0, 0.05, ERRORS)
    judge = paper_judges.knows_its_errors_as_well("vega", ONE, OTHER)
    assert judge(profiles(mixed, ERRORS)).word == CONFIRMED
    assert judge(profiles(NOISE, ERRORS)).word == REFUTED
    closely = paper_judges.knows_its_errors("vega", ONE, OTHER)
    assert closely(profiles(mixed, ERRORS)).word == REFUTED


def test_zeros_that_are_none_are_found(profiles):
    mistaken = (TRUTH > 0.3) & (TRUTH < 0.4)
    mean = np.where(mistaken, 0.0, TRUTH)
    judge = paper_judges.sure_of_zeros("vega", ONE)
    sure, unsure = np.where(mistaken, 0.5, 1.0), np.where(mistaken, 2.0, 1.0)
    numbers = f"SI 2: {mistaken.sum()} points, 0.50 times the median"
    assert judge(profiles(sure, sure, mean)) == (CONFIRMED, (numbers,))
    assert judge(profiles(unsure, unsure, mean)).word == REFUTED
    assert judge(profiles(sure, sure)).numbers == ("SI 2: no such point",)


def test_the_step_is_looked_at_beside_the_jump_and_at_the_runs():
    x = problems.load_design("step", 0).X_test[:, 0]
    jump = paper_judges.beside_the_jump(x)
    assert jump.sum() == 22 and abs(x[jump].mean() - 0.5) < 1e-12
    runs = paper_judges.at_the_runs(x)
    assert runs.sum() == 10 and np.abs(x[runs] - np.linspace(0, 1, 10)).max() < 1 / 398
    records = [record_of("step", m, 3, k, 0.1) for m in ("si", "dsvi") for k in range(6)]
    results = paper_figures.Results(records, {})
    for k in range(6):
        results.predictions[f"step-si-3-00{k}"] = np.array([x, np.where(jump, 1 + k, 0.1)])
        results.predictions[f"step-dsvi-3-00{k}"] = np.array([x, np.full(len(x), 0.2)])
    surer = paper_judges.surer_on_the_step
    one, other = ("si", 3), ("dsvi", 3)
    at_runs = surer(one, other, paper_judges.at_the_runs)(results)
    assert at_runs == (CONFIRMED, ("SI 3: 0.1", "DSVI 3: 0.2"))
    assert surer(one, other, paper_judges.beside_the_jump)(results).word == REFUTED


# --- all claims ----------------------------------------------------------------------------------

# Errors of a world in which the paper is right, by method and depth.
GREEK = {"gp": {0: 0.2}, "fb": {2: 0.12, 3: 0.11}, "dsvi": {2: 0.1, 3: 0.09, 4: 0.09},
         "si": {2: 0.08, 3: 0.08, 4: 0.08}, "si-ic": {2: 0.07, 3: 0.05, 4: 0.06}}  # fmt: skip
WORLD = {
    "step": {"gp": {0: 0.1}, "fb": {3: 0.058}, "dsvi": {3: 0.06}, "si": {3: 0.08},
             "si-ic": {3: 0.062}},
    "vega": GREEK,
    "delta": GREEK,
    "gamma": {"gp": {0: 0.05}, "fb": {2: 0.1, 3: 0.1}, "dsvi": {2: 0.1, 3: 0.1, 4: 0.1},
              "si": {2: 0.1, 3: 0.1, 4: 0.1}, "si-ic": {2: 0.09, 3: 0.08, 4: 0.09}},
    "fived": {"gp": {0: 1.0}, "fb": {2: 0.5, 3: 0.7}, "dsvi": {2: 0.5, 3: 0.6},
              "si": {2: 0.5, 3: 0.7}, "si-ic": {2: 0.4, 3: 0.65}},
    "engine": {"gp": {0: 0.5}, "fb": {2: 0.3, 3: 0.3}, "dsvi": {2: 0.1, 3: 0.1, 4: 0.1},
               "si": {2: 0.105, 3: 0.105, 4: 0.2}, "si-ic": {2: 0.106, 3: 0.106, 4: 0.21}},
}  # fmt: skip
SECONDS = {"gp": 0.1, "fb": 5.0, "dsvi": 3.0, "si": 2.0, "si-ic": 1.0}
SPREAD = {"si-ic": 1e-4}
# Figures of predictions; and the paper's trial in Fig. 5 is not like its hundred in Fig. 7.
FIGURES_OF_PREDICTIONS = (
    "Fig. 5",
    "Fig. 6",
    "Fig. 11",
    "Fig. S.3",
    "Fig. S.5",
    "Fig. S.7",
    "Fig. S.9",
)


def needs_predictions(claim):
    return claim.where.endswith(FIGURES_OF_PREDICTIONS) or "know" in claim.text


def world(errors):
    rng = np.random.default_rng(0)
    return paper_figures.Results(
        [
            record_of(problem, method, depth, number,
                      error * (1 + SPREAD.get(method, 1e-2) * rng.normal()),
                      SECONDS[method] * (1 + 0.01 * rng.normal()))
            for problem, methods in errors.items()
            for method, by_depth in methods.items()
            for depth, error in by_depth.items()
            for number in range(1 if method == "gp" else 12)
        ],
        {},
    )  # fmt: skip


def test_every_claim_of_errors_and_times_holds_where_the_paper_is_right():
    claims = [claim for claim in paper_claims.CLAIMS if not needs_predictions(claim)]
    verdicts = paper_claims.judged(world(WORLD), claims)
    assert len(verdicts) > 30
    assert [(c.text, v) for c, v in verdicts if v.word != CONFIRMED] == []


def test_no_claim_of_errors_and_times_holds_where_everything_is_the_other_way_round():
    reversed_world = {
        problem: {m: {d: 0.01 / e for d, e in by_depth.items()} for m, by_depth in methods.items()}
        for problem, methods in WORLD.items()
    }
    results = world(reversed_world)
    for record in results.records:
        record["fit_cpu_s"] = 1 / record["fit_cpu_s"]
    words = ("beat", "lowe", "fast", "largest", "errors")
    lower = [
        claim
        for claim in paper_claims.CLAIMS
        if not needs_predictions(claim) and any(word in claim.text for word in words)
    ]
    verdicts = paper_claims.judged(results, lower)
    assert len(verdicts) > 15
    assert [(c.text, v) for c, v in verdicts if v.word == CONFIRMED] == []


def test_our_default_is_set_beside_single_chains():
    records = [
        {**record_of("vega", method, 2, number, error), "normalised_crps": error + number / 2500}
        for method, error in (("default", 0.1), ("si-ic", 0.2), ("si", 0.3))
        for number in range(paper.FEWEST)
    ]
    lines = paper_claims.story_in_markdown(paper_figures.Results(records, {})).splitlines()
    errors, crps = "0.1000, 0.2000, 0.3000", "0.1010, 0.2010, 0.3010"
    assert lines[2:] == [f"| Vega, 2 | {errors} | {crps} | lower | 0.10, 0.20, 0.30 |"]
