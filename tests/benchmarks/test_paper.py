"""The reruns of the paper's experiments: what is planned, stored, gathered and drawn."""

import csv
import json
import os
import re
import sys
from concurrent.futures import Future
from pathlib import Path
from unittest import mock

import numpy as np
import paper
import paper_acceptances
import paper_claims
import paper_figures
import paper_store
import paper_tables
import paper_times
import problems
import pytest
from paper import Trial

DESIGN = problems.Design(
    X=np.linspace(0, 1, 10)[:, None],
    y=np.repeat([-1.0, 1.0], 5),
    X_test=np.linspace(0, 1, 20)[:, None],
    y_test=np.repeat([-1.0, 1.0], 10),
)
FACTS = {"package": "deepemu 0", "machine": "a machine"}


@pytest.fixture
def small_design(monkeypatch):
    for module in (paper, paper_store, paper_figures):
        monkeypatch.setattr(module, "load_design", lambda problem, index: DESIGN)


def planned(*arguments):
    return paper.planned(paper.options_of(list(arguments)))


# --- what is run ---------------------------------------------------------------------------------


def test_the_trials_are_those_of_the_paper():
    trials = planned("--methods", "gp", "si", "fb")
    counts = {}
    for trial in trials:
        counts[trial[:3]] = counts.get(trial[:3], 0) + 1
    assert counts["step", "si", 3] == 100
    assert counts["fived", "si", 2] == counts["fived", "si", 3] == 20
    for problem in ("vega", "delta", "gamma", "engine"):
        assert [counts[problem, "si", depth] for depth in (2, 3, 4)] == [40] * 3
        assert counts[problem, "fb", 3] == 40 and (problem, "fb", 4) not in counts
        assert counts[problem, "gp", 0] == 1


def test_a_quick_run_has_a_tenth():
    """But no fewer than a verdict needs."""
    trials = planned("--quick", "--problems", "step", "fived", "--methods", "si-ic")
    assert sum(trial.problem == "step" for trial in trials) == 10
    assert sum(trial.problem == "fived" for trial in trials) == 2 * paper.FEWEST


def test_a_group_that_fails_on_a_gpu_does_not_end_the_others(monkeypatch, capsys):
    outcomes = mock.Mock(side_effect=[RuntimeError("no memory"), None])
    monkeypatch.setattr(paper, "run_together", outcomes)
    trials = planned("--problems", "vega", "--methods", "si", "--depths", "2", "3", "--trials", "4")
    assert paper.run_on_gpu(trials, Path()) == 4
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "vega-si-2-000 and 3 more failed: RuntimeError: no memory"
    assert told[1].endswith("s: vega-si-3-000 and 3 more")


def test_peers_are_not_run_on_a_gpu(monkeypatch, capsys):
    paper.run_on_gpu(planned("--problems", "step", "--methods", "dsvi", "deepgp"), Path())
    told = capsys.readouterr().out.splitlines()
    assert told == [f"{name} is left out: it is not run on a GPU" for name in ("dsvi", "deepgp")]


def test_depths_that_are_asked_for_are_those_of_deep_methods():
    trials = planned(
        "--problems", "vega", "--methods", "gp", "si", "--depths", "3", "--trials", "2"
    )
    assert [trial[1:] for trial in trials] == [("gp", 0, 0), ("si", 3, 0), ("si", 3, 1)]


def test_first_trials_of_everything_come_first():
    trials = planned("--problems", "vega", "delta", "--methods", "si")
    first = trials[: 2 * 3 * paper.ROUND]
    assert {trial[:3] for trial in first} == {trial[:3] for trial in trials}
    assert max(trial.number for trial in first) == paper.ROUND - 1


def test_a_batch_has_one_structure_and_every_trial_is_in_one():
    trials = planned("--problems", "step", "vega", "--methods", "si", "default")
    batches = paper.batches(trials)
    assert sorted(trial for batch in batches for trial in batch) == sorted(trials)
    assert all(len({trial[:3] for trial in batch}) == 1 for batch in batches)


def test_settings_are_those_of_the_paper():
    model = paper.estimator(Trial("vega", "si-ic", 3, 7))
    assert (model.depth, model.random_state, model.n_chains, model.n_iter) == (3, 7, 1, 500)
    assert model.connect_input and model.kernel == "squared_exponential" and model.n_sweeps == 10
    assert (model.nugget, model.burn_in, model.n_imputations) == (1e-6, 0.75, 50)
    assert model.lengthscale == "shared" and not model.stacking
    assert not paper.estimator(Trial("vega", "si", 2, 0)).connect_input
    bayes = paper.estimator(Trial("vega", "fb", 2, 0))
    assert (bayes.inference, bayes.n_iter, bayes.n_sweeps) == ("full_bayes", 8000, 1)
    with pytest.raises(ValueError, match="dsvi is not a method of this package"):
        paper.estimator(Trial("vega", "dsvi", 2, 0))


def settings(trial):
    return paper.settings_of(paper.estimator(trial))


def test_settings_are_what_is_not_usual():
    assert settings(Trial("vega", "default", 3, 7)) == "DGP(depth=3)"
    assert settings(Trial("vega", "emulator", 0, 7)) == "Emulator()"
    given = settings(Trial("vega", "si", 3, 7))
    assert "connect_input=False" in given and "n_iter=500" in given
    assert not any(name in given for name in ("random_state", "device", "n_jobs", "verbose"))


# --- one trial after the other -------------------------------------------------------------------


@pytest.fixture
def quick_estimator(monkeypatch):
    real = paper.estimator
    monkeypatch.setattr(paper, "estimator", lambda trial: real(trial).set_params(n_iter=2))


def test_a_batch_leaves_a_file_a_trial(small_design, quick_estimator, tmp_path, monkeypatch):
    trials = [Trial("step", "si", 2, number) for number in (0, 1)]
    assert paper.run_batch(trials, tmp_path) == trials
    first, second = paper.stored(tmp_path)
    assert (first.record["number"], second.record["number"]) == (0, 1)
    assert first.mean.shape == first.std.shape == (20,)
    assert first.record["fit_cpu_s"] > 0 and first.record["device"] == "cpu"
    assert first.record["std_at_runs"] > 0
    assert [each.record["seed"] for each in (first, second)] == [0, 1]
    assert first.record["settings"].startswith("DGP(") and first.record["chain"] == 0
    error = np.sqrt(np.mean((first.mean - DESIGN.y_test) ** 2)) / 2
    assert first.record["nrmsep"] == pytest.approx(error)
    assert not np.array_equal(first.mean, second.mean)


def test_chains_of_one_fit_are_trials(small_design, quick_estimator):
    model = paper.estimator(Trial("step", "si", 2, 0)).set_params(n_chains=3)
    model.fit(DESIGN.X, DESIGN.y)
    means = np.array([alone.predict(DESIGN.X_test) for alone in paper.chains_of(model)])
    assert len(means) == 3 and np.ptp(means, axis=0).max() > 1e-3
    np.testing.assert_allclose(means.mean(axis=0), model.predict(DESIGN.X_test), atol=1e-10)


@pytest.mark.parametrize(
    ("method", "sizes"), [("si", [3]), ("fb", [3]), ("default", [1, 1, 1]), ("emulator", [1, 1, 1])]
)
def test_only_single_chains_share_a_fit_on_a_gpu(monkeypatch, method, sizes):
    fits = []
    monkeypatch.setattr(paper, "run_together", lambda trials, folder: fits.append(trials))
    trials = planned("--problems", "vega", "--methods", method, "--depths", "3", "--trials", "3")
    paper.run_on_gpu(trials, Path())
    assert [len(fit) for fit in fits] == sizes
    assert [trial for fit in fits for trial in fit] == trials


def test_what_is_stored_is_not_run_again(small_design, tmp_path, monkeypatch):
    """Ten trials are planned, one is there: the other nine are run."""
    folder = tmp_path / "trials"
    folder.mkdir()
    put(folder, Trial("step", "si", 3, 4), 0.5)
    asked = []
    monkeypatch.setattr(paper, "run_all", lambda trials, options: asked.extend(trials))
    options = ["--problems", "step", "--methods", "si", "--quick", "--folder", str(tmp_path)]
    assert paper.main(options) == 0
    assert [trial.number for trial in asked] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert len(paper.names_in(tmp_path)) == 1


@pytest.fixture
def three_stored(small_design, tmp_path):
    folder = tmp_path / "trials"
    folder.mkdir()
    for number in range(3):
        put(folder, Trial("step", "si", 3, number), 0.5)
    return tmp_path


THREE = ["--problems", "step", "--methods", "si", "--trials", "3"]


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "other", "foreign"])
def test_a_damaged_trial_is_left_out_and_run_again(three_stored, monkeypatch, capsys, damage):
    path = three_stored / "trials" / "step-si-3-001.npz"
    whole = path.read_bytes()
    if damage == "other":
        path.write_bytes((path.parent / "step-si-3-000.npz").read_bytes())
    elif damage == "foreign":
        np.savez(path, x=np.ones(3))
    else:
        path.write_bytes({"cut": whole[:300], "empty": b"", "text": b"no zip"}[damage])
    asked = []
    monkeypatch.setattr(paper, "run_all", lambda trials, options: asked.extend(trials))
    assert paper.main([*THREE, "--folder", str(three_stored)]) == 0
    assert [trial.number for trial in asked] == [1]
    assert f"{path} is not the file of a whole trial" in capsys.readouterr().err
    assert len(paper.names_in(three_stored)) == 2


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(mock.Mock(return_value=0), 0), (mock.Mock(return_value=2), 1),
     (mock.Mock(side_effect=KeyboardInterrupt), 130)],
)  # fmt: skip
def test_what_is_there_is_gathered_however_the_run_ends(
    three_stored, monkeypatch, capsys, outcome, status
):
    monkeypatch.setattr(paper, "run_all", outcome)
    options = [*THREE[:-1], "5", "--folder", str(three_stored)]
    assert paper.main(options) == status
    assert len(paper.names_in(three_stored)) == 3
    assert ("stopped; the same command goes on" in capsys.readouterr().err) == (status == 130)


def test_published_trials_are_not_lost(three_stored, monkeypatch, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setattr(paper, "DATA", data)
    options = [*THREE, "--folder", str(three_stored), "--gather-only", "--publish"]
    paper.main(options)
    assert len(paper.names_in(data)) == 3
    (three_stored / "trials" / "step-si-3-002.npz").unlink()
    with pytest.raises(
        SystemExit, match="is kept: 1 of its trials are not here, such as step-si-3-002"
    ):
        paper.main(options)
    assert len(paper.names_in(data)) == 3


def test_a_folder_that_cannot_be_written_is_told_first(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="cannot be written to .*name another --folder"):
        paper.main([*THREE, "--folder", str(tmp_path / "file")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trials", "0"], "'0' is no whole number above 0"),
        (["--workers", "-1"], "'-1' is no whole number above 0"),
        (["--depths", "7", "--methods", "si"], "there is no such trial"),
    ],
)
def test_arguments_that_ask_for_nothing_are_refused(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        paper.options_of(arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["--gpflux-python", "nowhere/python"],
                                   ["--gpflux-python", sys.executable]])  # fmt: skip
def test_a_peer_that_is_missing_is_left_out_with_a_line(capsys, given):
    options = paper.options_of(given)
    trials = [Trial("vega", "dsvi", 2, 0), Trial("vega", "dsvi", 3, 0)]
    assert paper.peer_commands(trials, options) == {}
    line = (
        "dsvi is left out: --gpflux-python names the interpreter of an environment that has GPflux"
    )
    assert capsys.readouterr().out == f"{line}\n"


@pytest.fixture
def r_that_knows_deepgp(tmp_path, monkeypatch):
    """A program in the place of Rscript that predicts as many zeros as there are test points."""
    program = tmp_path / "bin" / "Rscript"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -e ]; then exit 0; fi\n'
        'if [ "$4" = 7 ]; then echo "no memory" >&2; exit 3; fi\n'
        'zeros=$(sed "s/.*/0/" "$2/X_test.csv" | paste -sd ,)\n'
        'ones=$(sed "s/.*/1/" "$2/X_test.csv" | paste -sd ,)\n'
        'echo "{\\"mean\\": [$zeros], \\"std\\": [$ones],'
        ' \\"fit_cpu_s\\": $3, \\"version\\": \\"deepgp 1\\"}"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    paper.succeeds.cache_clear()
    yield
    paper.succeeds.cache_clear()


@pytest.mark.usefixtures("r_that_knows_deepgp", "small_design")
def test_deepgp_is_given_the_design_and_scored_here(tmp_path, capsys):
    options = paper.options_of(["--folder", str(tmp_path)])
    trials = [Trial("step", "deepgp", 3, 5), Trial("step", "deepgp", 3, 7)]
    found = paper.peer_commands(trials, options)
    assert [paper.run_peer(trial, found[trial], tmp_path) for trial in trials] == [trials[:1], []]
    assert "step-deepgp-3-007 failed: exit status 3: no memory" in capsys.readouterr().out
    ((record, mean, std),) = paper.stored(tmp_path)
    assert (record["package"], record["fit_cpu_s"]) == ("deepgp 1", 3)
    assert mean.shape == std.shape == DESIGN.y_test.shape
    assert record["nrmsep"] == pytest.approx(0.5)  # of a step between -1 and 1
    np.testing.assert_array_equal(
        np.loadtxt(tmp_path / "designs" / "step" / "X.csv"), DESIGN.X[:, 0]
    )


@pytest.mark.usefixtures("small_design")
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ('{"mean": [null], "std": [1], "version": "1"}', "have no score"),
        ("Killed", "no JSON"),
        ("[1, 2]", "has not all of mean, std, version"),
        ('{"a": 1}', "has not all of mean, std, version"),
    ],
)
def test_a_peer_that_says_nothing_of_use_is_told(tmp_path, capsys, said, message):
    assert paper.run_peer(Trial("step", "deepgp", 3, 0), ["echo", said], tmp_path) == []
    assert re.search(f"step-deepgp-3-000 failed: .*{message}", capsys.readouterr().out)
    assert list(paper.stored(tmp_path)) == []


def test_peers_have_their_turn_among_ours():
    """Of each structure the first trials, then the next ones, whoever runs them."""
    trials = planned("--problems", "vega", "--methods", "si", "dsvi", "--depths", "2", "--trials",
                     "12")  # fmt: skip
    commands = {trial: ["gpflux"] for trial in trials if trial.method == "dsvi"}
    pool = mock.Mock()
    jobs = [batch for _, batch in paper.submitted(pool, trials, commands, Path())]
    assert [trial for batch in jobs for trial in batch] == trials
    assert {len(batch) for batch in jobs if batch[0].method == "dsvi"} == {1}
    assert [call.args[0].__name__ for call in pool.submit.call_args_list] == (
        ["run_batch"] * 5 + ["run_peer"] * 10 + ["run_batch"] + ["run_peer"] * 2
    )


def test_a_batch_that_fails_is_told_and_is_not_counted():
    batch = [Trial("step", "si", 3, 0), Trial("step", "si", 3, 1)]
    done, failed, nothing = Future(), Future(), Future()
    done.set_result(batch)
    failed.set_exception(MemoryError("no memory"))
    nothing.set_result([])
    assert paper.finished_in(done, batch) == (2, "step-si-3-000 and 1 more")
    words = "step-si-3-000 and 1 more failed: MemoryError: no memory"
    assert paper.finished_in(failed, batch) == (0, words)
    assert paper.finished_in(nothing, batch[:1]) == (0, "nothing of step-si-3-000")


def test_the_digest_tells_sources_apart(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = paper.source_digest(tmp_path)
    paper.source_digest.cache_clear()
    (tmp_path / "a.py").write_text("x = 2\n")
    assert len(before) == 8 and paper.source_digest(tmp_path) != before


def test_deepgp_goes_no_deeper_than_three_layers():
    assert paper.depths("vega", "deepgp") == (2, 3)


# --- tables and figures --------------------------------------------------------------------------


def put(folder, trial, level, **facts):
    """A trial that predicts ``level`` times the truth; its standard deviation is a tenth of it."""
    mean, std = level * DESIGN.y_test, np.full(20, 0.1 * level)
    seconds = {"fit_cpu_s": 2.0, "predict_cpu_s": 0.5}
    paper.store(folder, trial, seconds | facts, FACTS, mean, std)


def gather(folder, into):
    found = list(paper.stored(folder))
    paper.write_table(found, into)
    return len(found)


@pytest.fixture
def gathered(small_design, tmp_path):
    for number, level in enumerate((0.5, 0.9, 0.7)):
        for problem, depth in (("step", 3), ("vega", 2), ("vega", 3)):
            for method in ("si", "si-ic"):
                put(tmp_path, Trial(problem, method, depth, number), level)
    for problem in ("step", "vega"):
        put(tmp_path, Trial(problem, "gp", 0, 0), 0.3)
    results = tmp_path / "results"
    results.mkdir()
    assert gather(tmp_path, results) == 20
    return results


def test_the_table_has_a_line_a_trial_with_scores_and_facts(gathered):
    with (gathered / "paper.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    assert all(row["package"] == "deepemu 0" and row["machine"] == "a machine" for row in rows)
    (row,) = [r for r in rows if (r["problem"], r["method"], r["number"]) == ("vega", "gp", "0")]
    assert float(row["nrmsep"]) == pytest.approx(0.35)


def test_predictions_of_all_steps_and_of_the_best_of_everything_else_are_kept(gathered):
    names = set(np.load(gathered / "paper_predictions.npz").files)
    assert {f"step-si-3-{k:03d}" for k in range(3)} <= names
    assert "vega-si-2-001" in names and "vega-si-2-000" not in names


def test_half_a_file_is_never_there(small_design, tmp_path, monkeypatch):
    monkeypatch.setattr(json, "dumps", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        put(tmp_path, Trial("step", "si", 3, 0), 0.5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["fig-4", "fig-5", "fig-6", "fig-9", "fig-10"])
def test_figures_are_drawn_from_what_is_stored(gathered, name, capsys):
    paper_figures.main(["--only", name, "--results", str(gathered), "--folder", str(gathered)])
    assert (gathered / f"paper-{name}.png").stat().st_size > 5_000


def test_a_figure_without_trials_is_left_out_with_a_line(small_design, tmp_path, capsys):
    """One method of one experiment is enough for its own figures."""
    folder = tmp_path / "trials"
    folder.mkdir()
    put(folder, Trial("step", "si", 3, 0), 0.5)
    gather(folder, tmp_path)
    paper_figures.main(["--results", str(tmp_path), "--folder", str(tmp_path), "--only",
                        "fig-4", "fig-5", "fig-6", "fig-9", "fig-s3"])  # fmt: skip
    drawn = sorted(path.stem for path in tmp_path.glob("*.png"))
    assert drawn == ["paper-fig-4", "paper-fig-5", "paper-fig-6"]
    told = capsys.readouterr().out
    assert "paper-fig-9.png needs trials of vega and is left out" in told
    assert "paper-fig-s3.png needs trials of fived and is left out" in told


def test_a_digest_that_looks_like_a_number_stays_a_word(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("problem,number,source,chain\nvega,3,12345e67,\n")
    assert paper_figures.records_in(table) == [
        {"problem": "vega", "number": 3, "source": "12345e67"}
    ]


def test_figures_of_nothing_say_what_to_do(tmp_path):
    with pytest.raises(SystemExit, match=r"no paper\.csv in .*; run benchmarks/paper\.py first"):
        paper_figures.main(["--results", str(tmp_path)])


def test_bars_are_mean_times_and_a_time_that_is_missing_has_none(gathered):
    figure = paper_figures.FIGURES["fig-9"].draw(paper_figures.read(gathered))
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    assert heights == pytest.approx([2.5] * 4)


def test_all_standard_deviations_are_inside_the_axes(gathered):
    figure = paper_figures.FIGURES["fig-5"].draw(paper_figures.read(gathered))
    panels = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in panels] == ["GP", "SI", "SI-IC"]
    for ax in panels:
        drawn = np.concatenate([line.get_ydata() for line in ax.lines])
        assert ax.get_ylim()[0] == 0 and drawn.max() < ax.get_ylim()[1]


def test_profiles_are_truth_against_mean_by_depth_and_method(gathered):
    """Of the best trial; the design's truth is -1 and 1, so that 0 and 1 are its scaled values."""
    results = paper_figures.read(gathered)
    figure = paper_figures.FIGURES["fig-10"].draw(results)
    titles = [ax.get_title().split(":")[0] for ax in figure.axes if ax.get_title()]
    assert titles == ["SI, 2", "SI-IC, 2", "GP", "SI, 3", "SI-IC, 3"]
    points = np.array(figure.axes[0].collections[0].get_offsets())
    best = paper_figures.best(results.select("vega", "si", 2))
    mean, _ = results.moments(best)
    np.testing.assert_allclose(np.sort(points[:, 0]), np.sort((mean + 1) / 2), rtol=1e-6)
    np.testing.assert_allclose(np.unique(points[:, 1]), [0, 1])


def test_violins_are_in_the_order_of_depths(gathered):
    found = paper_figures.bars("vega", ["si", "si-ic"], paper_figures.read(gathered))
    assert [label for _, label, _, _ in found] == ["SI, 2", "SI-IC, 2", "SI, 3", "SI-IC, 3"]


# --- standard deviations in the table -------------------------------------------------------------

TRUTH = np.linspace(0, 1, 100)


def statistics(problem, mean, std, truth=TRUTH):
    data = problems.Design(None, None, np.linspace(0, 1, len(truth))[:, None], truth)
    with mock.patch.object(paper_store, "load_design", lambda *_: data):
        return paper_store.spread_statistics(paper.Stored({"problem": problem}, mean, std))


def test_standard_deviations_that_follow_the_errors_are_known_by_rank():
    errors = np.random.default_rng(0).permutation(np.linspace(0.001, 0.1, 100))
    mean = TRUTH + np.where(TRUTH > 0.5, -1, 1) * errors
    follows, flees = (statistics("fived", mean, std) for std in (errors**2, 1 / errors))
    assert follows["std_follows_error"] == pytest.approx(1)
    assert flees["std_follows_error"] == pytest.approx(-1)
    scaled = (errors**2 - 0.001**2) / (0.1**2 - 0.001**2)
    assert follows["std_where_wrong"] == pytest.approx(np.sort(scaled)[-10:].mean())
    assert flees["std_where_wrong"] < 0.01


@pytest.mark.parametrize(
    ("problem", "there"), [("gamma", TRUTH > 0.9), ("delta", (TRUTH > 0.1) & (TRUTH < 0.9))]
)
def test_a_region_has_a_ratio_and_a_coverage(problem, there):
    std = np.where(there, 0.3, 0.1)
    mean = TRUTH + np.where(there & (np.arange(100) % 2 == 0), 0.6, 0.0)  # 2 standard deviations
    found = statistics(problem, mean, std)
    assert found["region_ratio"] == pytest.approx(3)
    assert found["region_coverage"] == pytest.approx(np.mean(np.arange(100)[there] % 2))
    assert "region_ratio" not in statistics("fived", mean, std)


def test_zeros_that_are_none_have_a_ratio_where_there_are_some():
    mistaken = (TRUTH > 0.3) & (TRUTH < 0.4)
    std = np.where(mistaken, 0.5, 1.0)
    assert statistics("fived", np.where(mistaken, 0, TRUTH), std)["zeros_ratio"] == 0.5
    assert "zeros_ratio" not in statistics("fived", np.where(TRUTH < 0.1, 0, TRUTH), std)


def test_the_step_has_deviations_at_the_jump_and_at_the_runs():
    x = problems.load_design("step", 0).X_test[:, 0]
    jump = (x > 4 / 9) & (x < 5 / 9)
    std = np.where(jump, 2.0, 0.0)
    std[np.abs(x[:, None] - np.arange(10) / 9).argmin(axis=0)] = 0.5
    found = paper_store.on_the_step(x, std)
    assert found["runs_std"] == 0.5
    assert found["jump_std"] == pytest.approx(2.0, abs=0.2)  # a run may lie in it


# --- the page ------------------------------------------------------------------------------------


PAGE = Path(__file__).parents[2] / "docs" / "paper.md"


def test_tables_go_between_the_marks_of_a_page(monkeypatch):
    monkeypatch.setattr(paper_claims, "TABLES", {"one": lambda _: "a\n", "two": lambda _: "b\n"})
    page = "x\n<!-- one -->\nold\n<!-- end -->\ny\n<!-- two -->\n<!-- end -->\nz\n"
    new = "x\n<!-- one -->\n\na\n\n<!-- end -->\ny\n<!-- two -->\n\nb\n\n<!-- end -->\nz\n"
    assert paper_claims.filled_in(page, None) == new
    assert paper_claims.filled_in(new, None) == new


@pytest.mark.parametrize("page", ["no mark\n", "<!-- one -->\nno end\n"])
def test_a_page_without_marks_is_left_alone(monkeypatch, page):
    monkeypatch.setattr(paper_claims, "TABLES", {"one": lambda _: "a\n"})
    with pytest.raises(ValueError, match="needs the lines <!-- one --> and <!-- end -->"):
        paper_claims.filled_in(page, None)


def test_the_page_has_the_tables_of_the_stored_trials():
    page = PAGE.read_text(encoding="utf-8")
    assert paper_claims.filled_in(page, paper_figures.read(problems.DATA)) == page
    assert page.count("<!-- end -->") == len(paper_claims.TABLES)


def test_the_page_shows_every_figure():
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in paper_figures.FIGURES if f"images/paper-{name}.png" not in page] == []


def test_captions_have_the_numbers_of_their_pictures():
    page = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"images/paper-fig-(s?)(\d+)\.png\)\n\n\*Figure (S\.)?(\d+)", page)
    assert len(shown) == len(paper_figures.FIGURES)
    assert [each for each in shown if (bool(each[0]), each[1]) != (bool(each[2]), each[3])] == []


def test_the_plain_process_is_set_beside_robustgasp():
    published = json.loads((problems.DATA / "incumbents.json").read_text())["design_0"]
    records = [
        paper.Trial(problem, "gp", 0, 0)._asdict() | {"nrmsep": 1.1 * found["RobustGaSP SE"][0]}
        for problem, found in published.items()
    ]
    lines = paper_tables.plain_in_markdown(paper_figures.Results(records, {})).splitlines()[2:]
    assert len(lines) == 6 and all(line.endswith("| 10 % |") for line in lines)
    assert lines[2].startswith("| Delta | 0.1192 | 0.1084 |")


# --- acceptances ---------------------------------------------------------------------------------


class Chain:
    """A model whose one chain needs as many evaluations as it has iterations."""

    def set_params(self, n_iter):
        self.n_iter = n_iter
        return self

    def fit(self, X, y):
        mixing = mock.Mock(evaluations=float(self.n_iter))
        self.posterior_ = mock.Mock(report=mock.Mock(mixing=(mixing,)))
        return self


def test_acceptances_are_counted_with_and_without_the_input_connection(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(paper_acceptances, "estimator", lambda _: Chain())
    monkeypatch.setattr(paper_acceptances, "facts_of", lambda seed, _: {"source": "12345e67"})
    paper_acceptances.main(["--folder", str(tmp_path / "new")])
    rows = paper_figures.records_in(tmp_path / "new" / "paper_acceptances.csv")
    assert {row["evaluations"] for row in rows} == {paper_acceptances.N_ITER}
    for method in ("si", "si-ic"):
        own = [(r["problem"], r["depth"]) for r in rows if r["method"] == method]
        assert sorted(set(own)) == [
            ("engine", 2),
            ("fived", 2),
            ("step", 3),
            ("vega", 2),
            ("vega", 3),
        ]
        assert len(own) == 5 * paper.FEWEST
    capsys.readouterr()
    paper_acceptances.main(["--folder", str(tmp_path / "new")])
    assert capsys.readouterr().out.endswith(
        "is there and is kept; remove it to have it made again\n"
    )


def test_the_stored_acceptances_are_of_one_source_and_of_all_chains():
    rows = paper_figures.records_in(problems.DATA / "paper_acceptances.csv")
    names = [paper.Trial(r["problem"], r["method"], r["depth"], r["number"]) for r in rows]
    assert names == paper_acceptances.planned()
    assert len({row["source"] for row in rows}) == 1


# --- methods in turn -----------------------------------------------------------------------------


@pytest.mark.usefixtures("small_design", "quick_estimator")
def test_methods_take_turns_and_have_one_source(tmp_path, monkeypatch):
    """A program in the place of an interpreter with GPflux."""
    said = {"mean": [0], "std": [1], "version": "gpflux 0", "settings": "few steps",
            "fit_cpu_s": 3.0, "predict_cpu_s": 0.5, "std_at_runs": 0.1}  # fmt: skip
    gpflux = tmp_path / "python"
    gpflux.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    gpflux.chmod(0o755)
    monkeypatch.setattr(paper_times, "NETWORKS", {"step": (2,)})
    monkeypatch.setattr(paper_times, "FEWEST", 2)
    paper_times.main(["--folder", str(tmp_path), "--gpflux-python", str(gpflux)])
    rows = paper_figures.records_in(tmp_path / "paper_times.csv")
    assert [row["method"] for row in rows] == 2 * ["si", "si-ic", "dsvi"]
    assert len({row["source"] for row in rows}) == 1
    assert rows[2]["package"] == "gpflux 0" and rows[2]["settings"] == "few steps"
    assert all(row["fit_cpu_s"] > 0 and row["std_at_runs"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("said", "message"),
    [("exit 1", "has no GPflux"), ('[ "$1" = -c ] || echo "[]"', "failed: its last line has not")],
)
def test_a_peer_that_fails_ends_the_turns(tmp_path, said, message):
    paper.succeeds.cache_clear()
    gpflux = tmp_path / "python"
    gpflux.write_text(f"#!/bin/sh\n{said}\n")
    gpflux.chmod(0o755)
    options = mock.Mock(gpflux_python=gpflux)
    with pytest.raises(SystemExit, match=message):
        paper_times.of_peer(Trial("step", "dsvi", 3, 0), options)


def test_at_the_runs_the_largest_deviation_counts():
    y = np.array([-3.0, 1.0, 0.0])
    assert paper_store.at_the_runs(np.array([0.1, 0.4, 0.2]), y) == {"std_at_runs": 0.1}


def test_the_stored_times_are_of_one_run():
    rows = paper_figures.records_in(problems.DATA / "paper_times.csv")
    names = [paper.Trial(r["problem"], r["method"], r["depth"], r["number"]) for r in rows]
    assert names == paper_times.planned()
    assert len({row["source"] for row in rows}) == 1
