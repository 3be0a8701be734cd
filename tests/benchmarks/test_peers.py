"""The runner of the peer packages on made-up processes: scores, errors, resumption and tables."""

import json
import math
import sys
from statistics import NormalDist

import _peer_jobs
import _peer_trees
import numpy as np
import peers
import problems
import pytest

RUN = peers.Run("step", 0, "sklearn-rbf")
OUTPUTS = problems.Design(
    X=np.array([[0.0], [0.5], [1.0]]),
    y=np.array([1.0, 2.0, 6.0]),
    X_test=np.array([[0.2], [0.4], [0.6], [0.8]]),
    y_test=np.array([0.0, 1.0, 2.0, 10.0]),
)
SECONDS = {"fit_s": 2.0, "predict_s": 0.5, "fit_cpu_s": 1.5}
QUICK = ["--methods", "sklearn-rbf", "--problems", "step", "vega", "--designs", "0"]


def program(text):
    """The command of a peer that runs the given Python text."""
    return [sys.executable, "-c", text]


def printing(answer):
    return program(f"print('noise'); print({json.dumps(answer)!r})")


def scores_record(problem, method, value, design=0):
    return {**peers.Run(problem, design, method)._asdict(), **dict.fromkeys(peers.COLUMNS, value)}


def error_record(problem, method, design=0):
    return {**peers.Run(problem, design, method)._asdict(), "error": "it broke"}


def normal_crps(error, std):
    """The formula of Gneiting and Raftery (2007), with the error function of the standard library.

    CRPS = sigma [z (2 Phi(z) - 1) + 2 phi(z) - 1/sqrt(pi)]
    """
    z = error / std
    density = math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return std * (z * math.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


@pytest.fixture
def small_design(monkeypatch):
    """Four test points instead of the stored design."""
    for module in (peers, _peer_jobs):
        monkeypatch.setattr(module, "load_design", lambda problem, index: OUTPUTS)


# --- one run -------------------------------------------------------------------------------------


def test_scores_of_a_peer_process(small_design):
    """Errors 1, 0, -1 and 4 on a range of 10; only the last is beyond 1.96 standard deviations."""
    answer = {"mean": [-1.0, 1.0, 3.0, 6.0], "std": [1.0, 1.0, 2.0, 2.0], **SECONDS}
    record = peers.record_of(RUN, peers.answer_of(printing(answer), 60))
    pairs = ((1, 1), (0, 1), (-1, 2), (4, 2))
    crps = sum(normal_crps(*pair) for pair in pairs) / 4
    assert record["nrmsep"] == pytest.approx(math.sqrt((1 + 0 + 1 + 16) / 4) / 10)
    assert record["normalised_crps"] == pytest.approx(crps / 10)
    assert record["coverage"] == 0.75
    assert {name: record[name] for name in SECONDS} == SECONDS
    assert peers.run_of(record) == RUN
    assert not {"mean", "std"} & set(record)


def test_the_crps_of_quantiles_is_that_of_their_distribution(rng):
    """Against the closed form of a normal, and of a point."""
    y, levels = rng.normal(size=50), np.linspace(0.0005, 0.9995, 1000)
    mean, std = rng.normal(size=50), np.exp(rng.normal(size=50))
    quantiles = np.array([NormalDist().inv_cdf(level) for level in levels])[:, None] * std + mean
    expected = np.mean([normal_crps(*each) for each in zip(mean - y, std, strict=True)])
    assert peers.quantile_crps(y, levels, quantiles) == pytest.approx(expected, rel=2e-3)
    points = np.repeat(mean[None], 1000, axis=0)
    distance = np.mean(np.abs(mean - y))
    assert peers.quantile_crps(y, levels, points) == pytest.approx(distance, rel=1e-6)


def test_scores_of_quantiles(small_design):
    """Medians -1, 1, 3 and 6; the last interval does not hold its output."""
    quantiles = [[-2.0, 0.0, 1.0, 5.0], [-1.0, 1.0, 3.0, 6.0], [0.0, 2.0, 5.0, 7.0]]
    answer = {"levels": [0.025, 0.5, 0.975], "quantiles": quantiles, **SECONDS}
    record = peers.record_of(RUN, peers.answer_of(printing(answer), 60))
    assert record["coverage"] == 0.75
    assert record["nrmsep"] == pytest.approx(math.sqrt((1 + 0 + 1 + 16) / 4) / 10)
    assert not {"levels", "quantiles"} & set(record)


@pytest.mark.parametrize("name", ["forest", "boosting"])
def test_conformal_intervals_of_trees_hold_new_outputs(rng, name, monkeypatch):
    monkeypatch.setattr(_peer_trees, "N_TREES", 60)
    monkeypatch.setattr(_peer_trees, "N_BOOSTS", 40)
    x, noise = rng.random((500, 2)), rng.normal(size=500)
    y = np.sin(6 * x[:, 0]) + 0.2 * noise
    found = getattr(_peer_trees, name)(x[:200], y[:200])(x[200:])
    low, high = (found.values[np.flatnonzero(found.levels == end)[0]] for end in (0.025, 0.975))
    assert 0.88 < np.mean((low <= y[200:]) & (y[200:] <= high)) < 0.99


def test_quantiles_of_boosting_are_in_order(rng, monkeypatch):
    monkeypatch.setattr(_peer_trees, "N_BOOSTS", 10)
    x = rng.random((60, 2))
    found = _peer_trees.quantile_boosting(x, x[:, 0] + 0.1 * rng.normal(size=60))(x[:5])
    assert np.all(np.diff(found.levels) > 0.0)
    assert np.all(np.diff(found.values, axis=0) >= 0.0)
    assert np.ptp(found.values, axis=0).min() > 0.1


def test_a_process_that_fails_or_lasts_gives_one_sentence():
    failed = peers.answer_of(program("import no_such_package"), 60)
    assert failed == {
        "error": "exit status 1: ModuleNotFoundError: No module named 'no_such_package'"
    }
    late = peers.answer_of(program("import time; time.sleep(60)"), 0.2)
    assert late == {"error": "it took longer than 0.2 s"}
    assert peers.record_of(RUN, late) == {**RUN._asdict(), **late}


def test_predictions_without_a_score_are_an_error(small_design):
    answer = {"mean": [0.0, 1.0, 2.0, float("nan")], "std": [1.0] * 4, **SECONDS}
    record = peers.record_of(RUN, peers.answer_of(printing(answer), 60))
    assert "mean contains NaN" in record["error"]
    assert "nrmsep" not in record


def test_each_method_is_a_job_for_the_interpreter_of_its_package():
    python = ["--dgpsi-python", "sh", "--gpytorch-python", "env"]
    args = peers.parse_arguments([*QUICK[2:], *python])
    commands = [peers.child_command(run, args) for run in peers.planned_runs(args)]
    assert len(commands) == 2 * len(peers.PACKAGES)
    jobs = {json.loads(job)["kind"]: (python, script) for python, script, job in commands}
    assert {python for python, _ in jobs.values()} == {sys.executable, "sh", "env"}
    assert jobs["dsvi"] == ("env", str(peers.HERE / "_peer_gpytorch.py"))
    assert json.loads(commands[0][2]) == {"kind": "sklearn-matern", "problem": "step", "design": 0}


def test_peers_see_standardised_outputs_and_answer_in_the_units_of_the_data(small_design):
    seen = {}

    def fit(X, y):
        seen.update(X=X, y=y)
        return lambda X_test: (X_test[:, 0], np.full(4, 2.0))

    answer = _peer_jobs.answer(fit, "numpy", {"problem": "step", "design": 0})
    assert seen["y"].mean() == pytest.approx(0)
    assert seen["y"].std() == pytest.approx(1)
    spread = math.sqrt((4 + 1 + 9) / 3)  # of 1, 2, 6 about their mean 3
    np.testing.assert_allclose(answer["mean"], 3 + spread * OUTPUTS.X_test[:, 0])
    np.testing.assert_allclose(answer["std"], 2 * spread)
    assert answer["version"] == f"numpy {np.__version__}"
    assert min(answer["fit_s"], answer["predict_cpu_s"]) >= 0


# --- all runs ------------------------------------------------------------------------------------


@pytest.fixture
def counted_answers(monkeypatch, small_design):
    """A stand-in for the processes that fails on vega as long as it is told to."""
    calls = []
    good = {"mean": [0.0, 1.0, 2.0, 10.0], "std": [1.0] * 4, **SECONDS}

    def answer_of(command, limit_s):
        calls.append(json.loads(command[-1])["problem"])
        return {"error": "it broke"} if calls.count("vega") == 1 and calls[-1] == "vega" else good

    monkeypatch.setattr(peers, "answer_of", answer_of)
    return calls


def test_a_failure_is_recorded_and_resumption_repeats_only_it(tmp_path, counted_answers, capsys):
    file = tmp_path / "folder" / "peers.json"
    arguments = [*QUICK, "--json", str(file)]
    records = peers.measure_all(peers.parse_arguments(arguments))
    assert [r.get("error") for r in records] == [None, "it broke"]
    assert json.loads(file.read_text()) == records
    assert "vega design 0 sklearn-rbf: it broke" in capsys.readouterr().err
    records = peers.measure_all(peers.parse_arguments([*arguments, "--resume"]))
    assert counted_answers == ["step", "vega", "vega"]
    assert [r["nrmsep"] for r in records] == [0.0, 0.0]
    peers.measure_all(peers.parse_arguments([*arguments, "--problems", "step"]))
    assert counted_answers[-1] == "step"
    assert len(json.loads(file.read_text())) == 2


def test_jobs_run_at_the_same_time(monkeypatch, small_design):
    """Each of two processes would wait for ever for the other if they took turns."""
    from threading import Barrier

    together = Barrier(2, timeout=10)

    def answer_of(command, limit_s):
        together.wait()
        return {"error": "it broke"}

    monkeypatch.setattr(peers, "answer_of", answer_of)
    assert len(peers.measure_all(peers.parse_arguments([*QUICK, "--jobs", "2"]))) == 2


def test_interpreters_are_asked_for_by_name(monkeypatch, capsys):
    monkeypatch.delenv("DGPSI_PYTHON", raising=False)
    for arguments, message in (
        (["--methods", "dgpsi-gp"], "--dgpsi-python"),
        (["--methods", "dsvi", "--gpytorch-python", "no-such-python"], "no-such-python"),
    ):
        with pytest.raises(SystemExit):
            peers.parse_arguments(arguments)
        assert message in capsys.readouterr().err
    assert peers.parse_arguments(QUICK).limit == 900


# --- tables --------------------------------------------------------------------------------------


def test_means_are_over_the_designs_that_all_methods_finished():
    records = [
        scores_record("step", "dsvi", 0.1),
        scores_record("step", "dsvi", 0.3, design=1),
        scores_record("vega", "dsvi", 0.4),
        scores_record("delta", "dsvi", 9.0),
        scores_record("step", "dgpsi-gp", 0.6),
        scores_record("step", "dgpsi-gp", 0.8, design=1),
        scores_record("vega", "dgpsi-gp", 0.9),
        error_record("delta", "dgpsi-gp"),
    ]
    rows = peers.mean_rows(records, ["dsvi", "dgpsi-gp", "sklearn-rbf"])
    assert [row.label for row in rows] == ["dsvi", "dgpsi-gp"]
    assert [row.designs for row in rows] == ["3", "3"]
    assert rows[0].cells == pytest.approx([(0.2 + 0.4) / 2] * len(peers.COLUMNS))
    assert rows[1].cells == pytest.approx([(0.7 + 0.9) / 2] * len(peers.COLUMNS))


def test_tables_name_what_failed(capsys):
    methods = ["dsvi", "sklearn-rbf"]
    args = peers.parse_arguments(["--methods", *methods, "--problems", "step", "vega"])
    records = [scores_record("step", m, 0.25) for m in methods] + [
        scores_record("vega", "dsvi", 0.5, design=1),
        *(error_record("vega", "sklearn-rbf", design) for design in (0, 1)),
    ]
    peers.print_tables(records, args)
    printed = capsys.readouterr().out
    step, vega, mean, failed = (table.splitlines() for table in printed.strip().split("\n\n"))
    assert step[2].split() == ["dsvi", "0", "0.2500", "0.2500", "0.250", "0.25", "0.25"]
    assert vega[2].split()[:3] == ["dsvi", "1", "0.5000"]
    assert vega[3].split() == ["sklearn-rbf", *"------"]
    assert mean[0] == "means over problems that all methods finished: 1"
    assert mean[2] == step[2].replace(" 0 ", " 1 ")  # one design, whose number is 0
    assert failed[1:] == [f"vega design {k} sklearn-rbf: it broke" for k in (0, 1)]


def test_no_results_give_no_means(capsys):
    peers.print_means([error_record("step", "dsvi")], ["dsvi"])
    assert capsys.readouterr().out == ""
