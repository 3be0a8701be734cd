"""What is said of the paper's claims, and that it could have been otherwise."""

import numpy as np
import paper
import paper_claims
import paper_figures
import paper_judges
import paper_tables
import paper_verdicts
import problems
import pytest
from paper import Trial
from paper_claims import OPEN
from paper_verdicts import CONFIRMED, REFUTED, UNCLEAR, Missing

ONE, OTHER = ("si", 2), ("si", 3)
LOW, HIGH = np.linspace(0.1, 0.2, 10), np.linspace(0.3, 0.4, 10)
TIGHT = np.linspace(0.98, 1.02, 10)
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


def with_times(**seconds):
    results = results_of(**seconds)
    for record in results.records:
        record["fit_cpu_s"] = record["nrmsep"]
    return results


# --- trials --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [(LOW, HIGH, CONFIRMED), (HIGH, LOW, REFUTED), (LOW, LOW + 0.001, UNCLEAR)],
)
def test_errors_are_compared_by_a_rank_test(first, second, word):
    results = results_of(si_2=first, si_3=second)
    numbers = f"SI 2: {np.median(first):.4f}", f"SI 3: {np.median(second):.4f}"
    assert LOWER(results) == (word, numbers)


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
        (0.9 * TIGHT, TIGHT, UNCLEAR),  # clearly lower, by about a tenth
    ],
)
def test_no_gain_is_one_that_is_surely_less_than_a_tenth(first, second, word):
    judge = paper_judges.no_lower_error("vega", ONE, OTHER)
    assert judge(results_of(si_2=first, si_3=second)).word == word


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        (0.6, 1.0, CONFIRMED),
        (1.0, 0.6, REFUTED),
        (0.86, 1.0, UNCLEAR),  # every time is below all others, by less than a fifth
        (1.0, 0.86, UNCLEAR),
        (0.79, 1.0, UNCLEAR),  # about a fifth
    ],
)
def test_times_differ_where_they_surely_do_by_more_than_a_fifth(first, second, word):
    results = with_times(si_2=first * TIGHT, si_3=second * TIGHT)
    numbers = f"SI 2: {first:.3g} s", f"SI 3: {second:.3g} s"
    assert paper_judges.faster("vega", ONE, OTHER)(results) == (word, numbers)


@pytest.mark.parametrize(
    ("seconds", "word"), [(0.1, CONFIRMED), (1.9, CONFIRMED), (2.0, UNCLEAR), (2.2, REFUTED)]
)
def test_comparable_is_less_than_twice_the_time(seconds, word):
    results = with_times(si_2=seconds * TIGHT, si_3=TIGHT)
    assert paper_judges.as_efficient("vega", ONE, OTHER)(results).word == word


def test_training_and_prediction_have_clocks_of_their_own():
    results = with_times(si_2=TIGHT, si_3=TIGHT)
    for record in results.records:
        record["predict_cpu_s"] = 0.1 if record["depth"] == 2 else 0.2
        record["fit_cpu_s"] -= record["predict_cpu_s"]
    assert paper_judges.faster("vega", ONE, OTHER)(results).word == UNCLEAR
    verdict = paper_judges.predicts_faster("vega", ONE, OTHER)(results)
    assert verdict == (CONFIRMED, ("SI 2: 0.1 s", "SI 3: 0.2 s"))


def test_times_are_compared_where_they_were_measured():
    results = with_times(si_2=TIGHT, si_3=2 * TIGHT)
    for record in results.records[3:10]:
        del record["fit_cpu_s"]
    with pytest.raises(Missing, match="too few trials: times of SI 2$"):  # three are left
        paper_judges.faster("vega", ONE, OTHER)(results)


def test_times_of_different_sources_are_not_compared():
    """Another package has none, but where it took turns with this one."""
    results = with_times(si_2=TIGHT, si_3=2 * TIGHT, dsvi_2=2 * TIGHT)
    for record in results.records:
        if record["method"] == "si":
            record["source"] = f"source of {record['depth']}"
    for other, words in ((OTHER, "SI 2 and SI 3"), (("dsvi", 2), "SI 2 and DSVI 2")):
        with pytest.raises(Missing, match=f"times of different runs: {words}"):
            paper_judges.faster("vega", ONE, other)(results)
    together = [record | {"source": "one"} for record in results.records]
    judge = paper_judges.side_by_side(paper_judges.faster("vega", ONE, ("dsvi", 2)))
    assert judge(paper_figures.Results([], {}, [], together)).word == CONFIRMED
    with pytest.raises(Missing):
        judge(results)


@pytest.mark.parametrize(
    ("largest", "keeps", "loses"),
    [(0.002, CONFIRMED, REFUTED), (0.05, REFUTED, CONFIRMED), (0.01, UNCLEAR, UNCLEAR)],
)
def test_interpolation_is_a_standard_deviation_near_none(largest, keeps, loses):
    results = with_column("std_at_runs", si_2=largest * TIGHT[2:8])
    verdict = paper_judges.interpolates("vega", ONE)(results)
    assert verdict == (keeps, (f"SI 2: {largest:.2g}",))
    assert paper_judges.does_not_interpolate("vega", ONE)(results).word == loses


def test_one_outlier_does_not_make_a_sample_unsteady():
    """Its standard deviation is the larger, its distances from the median are not."""
    outlier = np.array([*np.repeat(0.5, 19), 0.9])
    wide = 0.5 + np.tile([-0.08, 0.08], 10)
    assert np.std(outlier) > np.std(wide)
    word, numbers = paper_judges.steadier("vega", ONE, OTHER)(results_of(si_2=outlier, si_3=wide))
    assert word == CONFIRMED and numbers == ("SI 2: ± 0.0200", "SI 3: ± 0.0800")


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
    judge = paper_verdicts.all_of(
        LOWER,
        paper_judges.lower_error("vega", OTHER, ONE),
        paper_judges.lower_error("vega", ONE, ("dsvi", 2)),
    )
    verdict = judge(results_of(si_2=LOW, si_3=HIGH))
    assert verdict.word == "in part (1 confirmed, 1 contradicted) (2 of 3 parts)"
    assert verdict.numbers == ("SI 2: 0.1500", "SI 3: 0.3500", "too few trials: DSVI 2")


def says(word):
    return lambda _: paper_verdicts.Verdict(word, ())


def cannot_say(_):
    raise Missing(("not run", "this"))


@pytest.mark.parametrize(
    ("judges", "word"),
    [
        ([CONFIRMED, UNCLEAR, UNCLEAR], CONFIRMED),
        ([CONFIRMED, CONFIRMED, REFUTED], CONFIRMED),
        ([CONFIRMED, REFUTED], UNCLEAR),
        ([UNCLEAR], UNCLEAR),
        ([CONFIRMED, REFUTED, REFUTED], REFUTED),
    ],
)
def test_on_balance_more_is_confirmed_than_contradicted(judges, word):
    parts = [*(says(each) for each in judges), cannot_say]
    verdict = paper_verdicts.more_often(parts, "{yes} for, {no} against, of {all}")(None)
    n_for, n_against = judges.count(CONFIRMED), judges.count(REFUTED)
    assert verdict == (word, (f"{n_for} for, {n_against} against, of {len(judges)}",))


def test_nothing_is_on_balance_where_nothing_was_run():
    with pytest.raises(Missing, match="^not run: this$"):
        paper_verdicts.more_often([cannot_say, cannot_say], "")(None)


def test_what_is_missing_is_named_by_its_reason():
    error = Missing(("too few", "a"), ("too old", "b"), ("too few", "c"), ("too few", "a"))
    assert str(error) == "too few: a, c; too old: b"


def test_lower_errors_balance_a_worse_rank_correlation_only_with_time():
    results = with_times(si_2=LOW, si_3=HIGH)
    for record in results.records:
        record["std_follows_error"] = record["nrmsep"]
        record["fit_cpu_s"] = 1.0
    judge = paper_judges.balances("vega", ONE, OTHER)
    assert judge(results) == (UNCLEAR, ("SI 3: 1 better, 1 worse of 3",))
    for record in results.records:
        record["fit_cpu_s"] = 1.0 if record["depth"] == 2 else 3.0
    assert judge(results) == (CONFIRMED, ("SI 3: 2 better, 1 worse of 3",))


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [(LOW, HIGH, REFUTED), (HIGH, LOW, CONFIRMED), (LOW, LOW + 0.001, CONFIRMED)],
)
def test_not_significantly_better_is_what_no_rank_test_finds_lower(first, second, word):
    judge = paper_judges.not_significantly_lower_error("vega", ONE, OTHER)
    assert judge(results_of(si_2=first, si_3=second)).word == word


def test_a_claim_without_trials_is_open():
    ((_, verdict),) = paper_claims.judged(results_of(), [paper_claims.CLAIMS[0]])
    assert verdict == (OPEN, ("too few trials: FB (ours) 3, DSVI 3, SI 3, SI-IC 3",))


def test_a_few_trials_decide_nothing():
    few, many = results_of(si_2=LOW[:5], si_3=HIGH), results_of(si_2=LOW[:6], si_3=HIGH)
    assert LOWER(many).word == CONFIRMED
    with pytest.raises(Missing, match="SI 2"):
        LOWER(few)


def test_no_claim_waits_for_networks_that_the_paper_does_not_have():
    found = paper_claims.at_every_depth("vega", "si", "fb")
    assert found == [("si", 2), ("fb", 2), ("si", 3), ("fb", 3), ("si", 4)]


# --- standard deviations -------------------------------------------------------------------------


def with_column(field, **values):
    """Trials of Vega with values of a column, and errors that say nothing."""
    results = results_of(**values)
    for record in results.records:
        record[field] = record["nrmsep"]
    return results


@pytest.mark.parametrize(
    ("judge", "field"),
    [
        (paper_judges.knows_its_errors, "std_follows_error"),
        (paper_judges.contrast, "region_ratio"),
    ],
)
def test_larger_is_what_confirms(judge, field):
    results = with_column(field, si_2=HIGH, si_3=LOW)
    word, numbers = judge("vega", ONE, OTHER)(results)
    assert word == CONFIRMED and numbers[0].startswith("SI 2: 0.35")
    assert judge("vega", OTHER, ONE)(results).word == REFUTED


def test_smaller_is_what_confirms_that_it_is_sure_where_it_is_wrong():
    results = with_column("std_where_wrong", si_2=LOW, si_3=HIGH)
    assert paper_judges.sure_where_wrong("vega", ONE, OTHER)(results).word == CONFIRMED
    assert paper_judges.sure_where_wrong("vega", OTHER, ONE)(results).word == REFUTED


def test_a_little_worse_is_as_well():
    judge = paper_judges.knows_its_errors_as_well("vega", ONE, OTHER)
    for loss, word in ((0.0, CONFIRMED), (0.05, CONFIRMED), (0.1, UNCLEAR), (0.2, REFUTED)):
        results = with_column("std_follows_error", si_2=HIGH - loss, si_3=HIGH)
        assert judge(results).word == word


@pytest.mark.parametrize(
    ("ratio", "less_sure", "no_less_sure"),
    [(0.8, REFUTED, CONFIRMED), (1.05, CONFIRMED, CONFIRMED), (1.5, CONFIRMED, REFUTED)],
)
def test_a_region_is_compared_with_the_rest(ratio, less_sure, no_less_sure):
    results = with_column("region_ratio", si_2=ratio + np.linspace(-0.01, 0.01, 8))
    judged = paper_judges.less_sure_in_the_region("vega", ONE)(results)
    assert judged == (less_sure, (f"SI 2: {ratio:.2f} times",))
    assert paper_judges.no_less_sure_in_the_region("vega", ONE)(results).word == no_less_sure


def test_a_plain_process_alone_is_compared_with_a_bound():
    results = with_column("region_ratio", gp_0=[1.2])
    assert paper_judges.less_sure_in_the_region("vega", ("gp", 0))(results).word == CONFIRMED
    assert paper_judges.no_less_sure_in_the_region("vega", ("gp", 0))(results).word == REFUTED


@pytest.mark.parametrize(
    ("of_ranks", "word"), [(-0.1, CONFIRMED), (0.05, UNCLEAR), (0.13, UNCLEAR), (0.3, REFUTED)]
)
def test_a_correlation_near_none_tells_nothing(of_ranks, word):
    """With 500 test points it is known to about 0.09."""
    results = with_column("std_follows_error", gp_0=[of_ranks])
    verdict = paper_judges.fails_to_tell("vega", ("gp", 0))(results)
    assert verdict == (word, (f"GP: {of_ranks:.2f}",))


def test_a_sequential_design_picks_where_deviations_are_largest():
    """The first has 30 of its 50 most uncertain points in the region, the other 10."""
    truth = problems.load_design("gamma", 0).y_test
    places = np.argsort(-truth)
    spikes, rest = places[:50], places[50:]
    deviations = {"si": np.zeros(500), "gp": np.zeros(500)}
    for method, n_there in (("si", 30), ("gp", 10)):
        deviations[method][np.r_[spikes[:n_there], rest[: 50 - n_there]]] = 1.0
        deviations[method] += np.linspace(0, 1e-3, 500)
    results = paper_figures.Results(
        [record_of("gamma", "si", 2, 0, 0.3), record_of("gamma", "si", 2, 1, 0.1),
         record_of("gamma", "gp", 0, 0, 0.2)],
        {"gamma-si-2-001": np.array([truth, deviations["si"]]),
         "gamma-gp-0-000": np.array([truth, deviations["gp"]])},
    )  # fmt: skip
    deep, plain = ("si", 2), ("gp", 0)
    numbers = "SI 2: 60 % of its points", "GP: 20 % of its points"
    picks = paper_judges.picks_the_region
    assert picks("gamma", deep, plain)(results) == (CONFIRMED, numbers)
    assert picks("gamma", plain, deep)(results) == (REFUTED, numbers[::-1])
    assert picks("gamma", deep, deep)(results).word == UNCLEAR
    with pytest.raises(Missing, match="too few trials: DSVI 2"):
        picks("gamma", ("dsvi", 2), plain)(results)


def test_acceptances_are_compared_by_what_was_counted():
    rows = [record_of("vega", method, 2, number, 0.1) | {"evaluations": level + number / 100}
            for method, level in (("si-ic", 5.0), ("si", 8.0)) for number in range(6)]  # fmt: skip
    results = paper_figures.Results([], {}, rows)
    verdict = paper_judges.accepted_sooner("vega", ("si-ic", 2), ("si", 2))(results)
    assert verdict == (CONFIRMED, ("SI-IC 2: 5.0 evaluations", "SI 2: 8.0 evaluations"))
    with pytest.raises(Missing):
        paper_judges.accepted_sooner("vega", ("si-ic", 3), ("si", 3))(results)


# --- all claims ----------------------------------------------------------------------------------

# Errors of a world in which the paper is right, by method and depth.
GREEK = {"gp": {0: 0.2}, "fb": {2: 0.12, 3: 0.11}, "dsvi": {2: 0.1, 3: 0.09, 4: 0.09},
         "si": {2: 0.08, 3: 0.083, 4: 0.085}, "si-ic": {2: 0.07, 3: 0.05, 4: 0.06}}  # fmt: skip
WORLD = {
    "step": {"gp": {0: 0.1}, "fb": {3: 0.058}, "dsvi": {3: 0.06}, "si": {3: 0.08},
             "si-ic": {3: 0.062}},
    "vega": GREEK,
    "delta": GREEK,
    "gamma": {"gp": {0: 0.05}, "fb": {2: 0.1, 3: 0.1}, "dsvi": {2: 0.1, 3: 0.1, 4: 0.1},
              "si": {2: 0.1, 3: 0.103, 4: 0.105}, "si-ic": {2: 0.09, 3: 0.08, 4: 0.09}},
    "fived": {"gp": {0: 1.0}, "fb": {2: 0.5, 3: 0.7}, "dsvi": {2: 0.5, 3: 0.6},
              "si": {2: 0.5, 3: 0.7}, "si-ic": {2: 0.4, 3: 0.65}},
    "engine": {"gp": {0: 0.5}, "fb": {2: 0.3, 3: 0.3}, "dsvi": {2: 0.1, 3: 0.1, 4: 0.1},
               "si": {2: 0.105, 3: 0.105, 4: 0.2}, "si-ic": {2: 0.106, 3: 0.106, 4: 0.21}},
}  # fmt: skip
SECONDS = {"gp": 0.1, "fb": 50.0, "dsvi": 30.0, "si": 2.0, "si-ic": 1.0}  # a layer
EVALUATIONS = {"si": 8.0, "si-ic": 5.0}
SPREAD = {"si-ic": 1e-4}
# What the paper sees of standard deviations, by column: value of each method, or by depth.
SPREAD_WORLD = {
    "jump_std": {"fb": 0.3, "si": 0.3, "si-ic": 0.2, "dsvi": 0.1, "gp": 0.1},
    "runs_std": {"fb": 0.01, "si": 0.01, "si-ic": 0.01, "dsvi": 0.05, "gp": 0.01},
    "std_follows_error": {"fb": 0.5, "si": 0.45, "si-ic": 0.45, "dsvi": 0.2, "gp": 0.1},
    "std_where_wrong": {"fb": 0.5, "si": 0.5, "si-ic": 0.5, "dsvi": 0.1, "gp": 0.5},
    "region_ratio": {"fb": 1.5, "si": 2.0, "si-ic": 3.0, "dsvi": 1.2, "gp": 0.9},
    "region_coverage": {"fb": 0.9, "si": 0.7, "si-ic": 0.9, "dsvi": 0.7, "gp": 0.8},
    "zeros_ratio": {"fb": 0.2, "si": 0.2, "si-ic": 0.2, "dsvi": 0.2, "gp": 1.0},
    "std_at_runs": {"fb": 1e-3, "si": 1e-3, "si-ic": 1e-3, "dsvi": 0.1, "gp": 1e-3},
}
ABOUT_A_HUNDREDTH = 1e-4  # turned round: what is below it is above
# In five dimensions it is SI-IC that knows its errors best; and SI-IC of three layers stands out,
# but on Vega, where SI and FB mark what is large, as they do on the step function.
FIVED_KNOWS = {"fb": 0.5, "si": 0.45, "si-ic": 0.6, "dsvi": 0.2, "gp": 0.001}
VEGA_MARKS = {"fb": 4.0, "si": 4.0, "si-ic": 3.0, "dsvi": 1.2, "gp": 0.9}
# One trial of the paper (Fig. 4) is not like its hundred (Fig. 6).
AGAINST_EACH_OTHER = "Step: FB, SI and SI-IC have better means than DSVI"


def spreads(problem, method, depth, factor):
    found = {field: by_method[method] for field, by_method in SPREAD_WORLD.items()}
    if problem == "fived":
        found["std_follows_error"] = FIVED_KNOWS[method]
    if (method, depth) == ("si-ic", 3):
        found["region_ratio"] = 3.5
        found["std_follows_error"] += 0.03
    if problem == "vega":
        found["region_ratio"] = VEGA_MARKS[method]
    return {field: value * factor for field, value in found.items()}


def near(rng, value, spread=1e-2):
    return value * (1 + spread * rng.normal())


def world(errors=WORLD):
    """Trials about those numbers."""
    rng = np.random.default_rng(0)
    records = [
        record_of(problem, method, depth, number, near(rng, error, SPREAD.get(method, 1e-2)),
                  near(rng, SECONDS[method] * (depth or 1)))
        | {"predict_cpu_s": near(rng, 0.1 * SECONDS[method])}
        | spreads(problem, method, depth, near(rng, 1.0))
        for problem, methods in errors.items()
        for method, by_depth in methods.items()
        for depth, error in by_depth.items()
        for number in range(1 if method == "gp" else 12)
    ]  # fmt: skip
    profiles = profiles_of_gamma(records, rng)
    return paper_figures.Results(records, profiles, acceptances(rng), side_by_side=records)


def profiles_of_gamma(records, rng):
    """Standard deviations of every trial: those of deep ones rise with Gamma."""
    truth = problems.load_design("gamma", 0).y_test
    return {
        Trial("gamma", record["method"], record["depth"], record["number"]).name: np.array(
            [truth, rng.uniform(size=500) if record["method"] == "gp" else 1 + truth]
        )
        for record in records
        if record["problem"] == "gamma"
    }


def acceptances(rng):
    return [
        record_of(problem, method, depth, number, 0.1) | {"evaluations": near(rng, mean)}
        for problem in WORLD
        for method, mean in EVALUATIONS.items()
        for depth in (2, 3)
        for number in range(6)
    ]


def turned_round(results):
    """Where something was large, it is small."""
    for record in results.records:
        for field in (*SPREAD_WORLD, "nrmsep", "fit_cpu_s", "predict_cpu_s"):
            turned = 1 - record[field] if field == "std_follows_error" else 1 / record[field]
            record[field] = turned
        record["std_at_runs"] *= ABOUT_A_HUNDREDTH
        record["coverage"] = record["region_coverage"] = 0.99 + 1e-4 * record["number"]  # no ties
    for record in results.acceptances:
        record["evaluations"] = 1 / record["evaluations"]
    for name, (_, deviations) in results.predictions.items():
        if "-gp-" not in name:
            deviations[:] = 3 - deviations
    return results


def test_every_claim_holds_where_the_paper_is_right():
    verdicts = paper_claims.judged(world())
    assert len(verdicts) > 70
    wrong = [(claim.text, verdict) for claim, verdict in verdicts if verdict.word != CONFIRMED]
    assert [text for text, _ in wrong] == [AGAINST_EACH_OTHER]


def test_no_claim_holds_where_everything_is_the_other_way_round():
    """But that there is no loss, where there is a gain, and that what varies least varies least."""
    verdicts = paper_claims.judged(turned_round(world()))
    held = [claim for claim, verdict in verdicts if verdict.word == CONFIRMED]
    words = ("no better", "as accurate", "no clear gain", "comes near", "as well", "steadiest")
    left = [c.text for c in held if not any(word in c.text for word in words)]
    assert left == []


def test_sources_are_those_of_the_table():
    """The most frequent one needs no list; a share is told where it is not all."""
    records = [record_of("vega", "si", 2, number, 0.1) | {"source": "new"} for number in range(5)]
    records += [record_of("vega", "default", 4, 0, 0.1) | {"source": "old"},
                record_of("vega", "default", 4, 1, 0.1) | {"source": "new"},
                record_of("step", "gp", 0, 0, 0.1) | {"source": "old"},
                record_of("vega", "dsvi", 2, 0, 0.1)]  # fmt: skip
    lines = paper_tables.sources_in_markdown(paper_figures.Results(records, {})).splitlines()
    assert lines[2:] == ["| `new` | 6 | all others |",
                         "| `old` | 2 | Step: GP; Vega: DGP() 4 (1 of 2) |"]  # fmt: skip


def test_our_default_is_set_beside_single_chains():
    records = [
        {**record_of("vega", method, 2, number, error), "normalised_crps": error + number / 2500}
        for method, error in (("default", 0.1), ("si-ic", 0.2), ("si", 0.3))
        for number in range(paper.FEWEST)
    ]
    lines = paper_tables.story_in_markdown(paper_figures.Results(records, {})).splitlines()
    errors, crps = "0.1000, 0.2000, 0.3000", "0.1010, 0.2010, 0.3010"
    assert lines[2:] == [f"| Vega, 2 | {errors} | {crps} | lower | 0.10, 0.20, 0.30 |"]


def test_methods_that_took_turns_have_a_line_each():
    rounds = [
        record_of("vega", method, 2, number, 0.1, seconds + number) | {"predict_cpu_s": 0.25}
        for method, seconds in (("si", 10.0), ("dsvi", 20.0))
        for number in range(3)
    ]
    lines = paper_tables.times_in_markdown(paper_figures.Results([], {}, [], rounds)).splitlines()
    assert lines[2:] == ["| Vega, 2 | DSVI | 3 | 21 | 0.25 |", "| Vega, 2 | SI | 3 | 11 | 0.25 |"]


def test_numbers_of_the_text_are_those_of_the_trials():
    """Coverages are the errors of ``record_of``; hours are those with a time."""
    networks = (("vega", "si", 2), ("delta", "si-ic", 3), ("step", "si", 3))
    records = [
        record_of(*network, number, error, 1800.0)
        for network, level in zip(networks, (0.5, 0.7, 0.1), strict=True)
        for number, error in enumerate((level, level, 0.9))
    ]
    results = paper_figures.Results(records, {})
    assert paper_tables.inside(("si", "si-ic"))(results) == "50 to 70 %"
    assert paper_tables.inside(("si",))(results) == "50 %"
    assert paper_tables.inside(("si-ic",), ("delta",), (3,))(results) == "70 %"
    assert paper_tables.hours(("si",))(results) == "3.0 h"
    del records[0]["fit_cpu_s"]
    assert paper_tables.hours(("si",))(results) == "2.5 h"


def test_gains_on_gamma_are_shares_of_the_error_of_the_plain_process():
    records = [
        record_of("gamma", "si-ic", depth, number, error)
        for depth, error in ((2, 0.5), (3, 0.9), (4, 0.95))
        for number in range(3)
    ]
    records.append(record_of("gamma", "gp", 0, 0, 1.0))
    found = paper_tables.below_the_plain_process(paper_figures.Results(records, {}))
    assert found == "10 %, 5 %"
