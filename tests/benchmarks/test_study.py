"""Tables and verdicts of the accuracy study, from made-up records."""

import json

import pytest
import study


def record(problem, method, crps, coverage=0.95, design=0, **more):
    scores = {"nrmsep": crps, "normalised_crps": crps, "coverage": coverage, "fit_cpu_s": 2.0}
    return {"problem": problem, "design": design, "method": method, **scores, **more}


RECORDS = [
    record("vega", "emulator", 0.1, 0.94, warned=False),
    record("vega", "emulator", 0.3, 0.96, design=1, warned=True),
    record("vega", "gp", 0.4),
    record("vega", "gp", 0.4, design=1),
    record("vega", "gp", 9.9, design=2),  # ours has no such design
    record("delta", "emulator", 0.22, 0.80, warned=True),
    record("delta", "gp", 0.2),
    record("delta", "few", 0.9, 0.5, warned=False),
    record("delta", "one-chain", 0.9, 0.5, warned=False),
]


def test_means_are_over_designs_that_all_methods_finished():
    scores = study.mean_scores(RECORDS, ["emulator", "gp"])
    assert scores["vega", "emulator"]["normalised_crps"] == pytest.approx(0.2)
    assert scores["vega", "gp"]["normalised_crps"] == pytest.approx(0.4)
    assert study.ranks(scores, ["emulator", "gp"]) == {"emulator": 1.5, "gp": 1.5}
    relative = study.relative_crps(scores, ["emulator", "gp"], "emulator")
    assert relative["gp"] == pytest.approx((2.0 * (0.2 / 0.22)) ** 0.5)


def test_the_warning_is_judged_on_the_methods_that_can_warn():
    head, failed, held = study.confusion(RECORDS, ("emulator", "few"))
    assert head[1:] == ["warned", "silent"]
    assert failed[1:] == ["1", "1"] and held[1:] == ["1", "1"]


def test_the_verdict_names_what_is_above_the_bar():
    scores = study.mean_scores(RECORDS, ["emulator", "gp"])
    coverage, rank, plain = study.verdict(scores, ["emulator", "gp"], "emulator")
    assert "mean coverage 0.875" in coverage and "least 0.800 on delta" in coverage
    assert "mean rank by CRPS 1.50" in rank
    assert "at most 1.10 on delta" in plain and plain.endswith("above on delta")


def test_one_method_alone_is_judged_by_its_coverage():
    scores = study.mean_scores(RECORDS, ["emulator"])
    (line,) = study.verdict(scores, ["emulator"], "emulator")
    assert line.startswith("mean coverage")


def test_the_command_prints_tables(tmp_path, capsys):
    file = tmp_path / "ours.json"
    file.write_text(json.dumps(RECORDS))
    study.main(["--ours", str(file), "--methods", "emulator", "gp", "--markdown"])
    printed = capsys.readouterr().out
    assert "| vega | **.2000** .95 | .4000 .95 |" in printed
    assert "| delta | .2200 .80 | **.2000** .95 |" in printed
