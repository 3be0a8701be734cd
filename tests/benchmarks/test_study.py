"""Tables and verdicts of the accuracy study, from made-up records, and that the pages show them."""

import json
from pathlib import Path

import pytest
import study

ROOT = Path(__file__).parents[2]
PAGES = {
    page: (ROOT / page).read_text(encoding="utf-8") for page in ("docs/accuracy.md", "README.md")
}


def record(problem, method, crps, coverage=0.95, design=3, **more):
    scores = {"nrmsep": crps, "normalised_crps": crps, "coverage": coverage, "fit_cpu_s": 2.0}
    return {"problem": problem, "design": design, "method": method, **scores, **more}


RECORDS = [
    record("vega", "emulator", 0.1, 0.94, warned=False),
    record("vega", "emulator", 0.3, 0.5, design=4, warned=True, interval_coverage=0.96),
    record("vega", "gp", 0.4),
    record("vega", "gp", 0.4, design=4),
    record("vega", "gp", 9.9, design=5),  # ours has no such design
    record("delta", "emulator", 0.22, 0.80, warned=True),
    record("delta", "gp", 0.2),
    record("delta", "few", 0.9, 0.5, warned=False),
    record("delta", "one-chain", 0.9, 0.5, warned=False),
]
METHODS = ["emulator", "gp"]


def test_means_are_over_designs_that_all_methods_finished():
    scores = study.mean_scores(RECORDS, METHODS)
    assert scores["vega", "emulator"]["normalised_crps"] == pytest.approx(0.2)
    assert scores["vega", "emulator"]["coverage"] == pytest.approx(0.95), "of the own interval"
    assert scores["vega", "gp"]["normalised_crps"] == pytest.approx(0.4)
    assert study.ranks(scores, METHODS) == {"emulator": 1.5, "gp": 1.5}
    assert study.relative_crps(scores, "gp", "emulator") == pytest.approx((2 * 0.2 / 0.22) ** 0.5)


def test_the_best_plain_process_is_chosen_for_each_problem():
    more = [
        record("delta", "gp-matern52-least", 0.1, 0.9),
        record("vega", "gp-matern52-least", 9.0),
    ]
    scores = study.mean_scores(RECORDS + more, METHODS)
    best = study.values_of(scores, study.BEST_PLAIN, "normalised_crps")
    assert best == pytest.approx({"vega": 0.4, "delta": 0.1})
    ratio = study.ratios(scores, "emulator", study.BEST_PLAIN, "normalised_crps")
    assert ratio == pytest.approx({"vega": 0.5, "delta": 2.2})


def test_the_warning_is_judged_on_the_methods_that_can_warn():
    head, failed, held = study.confusion(RECORDS, ("emulator", "few"))
    assert head[1:] == ["warned", "silent"]
    assert failed[1:] == ["1", "1"] and held[1:] == ["1", "1"]


def test_the_verdict_names_what_is_above_the_bar():
    _, mean, least, rank, plain = study.verdict(RECORDS, METHODS)
    assert mean[-1] == "0.875" and least[-1] == "0.800 (delta)"
    assert rank == ["mean rank by CRPS among 2", "1.1 at most", "1.50, the next 1.50"]
    assert plain[-1] == "up to 1.10 (delta); above on delta"


def test_haste_is_judged_on_the_large_design_alone():
    more = [
        record("fived500", method, crps) for method, crps in (("emulator", 0.1), ("quick", 0.2))
    ]
    *rows, haste = study.verdict(RECORDS + more, METHODS)
    assert haste[-1] == "2.00, in 1.00 of the cpu time"
    assert rows == study.verdict(RECORDS, METHODS)


def test_one_method_alone_is_judged_by_its_coverage():
    records = [each for each in RECORDS if each["method"] == "emulator"]
    rows = study.verdict(records, ["emulator"])
    assert [row[0] for row in rows[1:]] == [
        "mean coverage of 95 % intervals",
        "least coverage of a problem",
    ]


def test_methods_are_compared_on_the_designs_of_each():
    records = [*RECORDS, record("vega", "slow", 0.2), record("delta", "slow", 0.11, 0.7)]
    groups = study.by_designs(records, ["emulator", "slow"])
    assert groups == {(3, 4): ["emulator"], (3,): ["slow"]}
    (_, ours, theirs) = study.overall_table(records, ["emulator", "slow"])
    assert ours[:3] == ["`Emulator()`", "3, 4", "1.50"]
    assert theirs[:6] == ["slow", "3", "1.50", "1.00", "0.825", "0.70"]


def test_the_command_prints_tables(tmp_path, capsys):
    file = tmp_path / "ours.json"
    file.write_text(json.dumps(RECORDS))
    study.main([str(file), "--methods", *METHODS, "--markdown"])
    printed = capsys.readouterr().out
    assert "| vega | **.2000** .95 | .4000 .95 | .4000 .95 |" in printed
    assert "| delta | .2200 .80 | **.2000** .95 | .2000 .95 |" in printed


def test_what_is_stored_is_brief_and_gives_the_same_tables(tmp_path):
    file, store = tmp_path / "ours.json", tmp_path / "study.json"
    file.write_text(json.dumps([{**each, "report": {}} for each in RECORDS]))
    study.main([str(file), "--store", str(store)])
    stored = study.read([store])
    assert "report" not in stored[0] and len(store.read_text().splitlines()) == len(stored) + 2
    expected = study.tables(RECORDS, METHODS, [3, 4])
    assert study.tables(stored, METHODS, [3, 4]) == expected


@pytest.fixture(scope="module")
def of_the_page():
    return study.tables(study.read([study.STORE]), list(study.LABELS), study.FRESH)


def test_the_page_shows_the_stored_runs(of_the_page):
    for rows in of_the_page:
        assert "\n".join(study.markdown(rows)) in PAGES["docs/accuracy.md"]


def test_the_readme_shows_the_table_over_all_problems(of_the_page):
    assert "\n".join(study.markdown(of_the_page[-3])) in PAGES["README.md"]
