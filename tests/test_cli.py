"""The command line: from a table to predictions, and one sentence for whatever cannot be used."""

import csv
import dataclasses
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import deepemu
from deepemu import GP
from deepemu.cli import arguments as command_arguments
from deepemu.cli import commands, main, outputs, settings, tables
from deepemu.errors import DataWarning, Message, Setting
from deepemu.posterior.comparison import compared_with_normals

pytestmark = pytest.mark.usefixtures("own_cache")

RUNS = "width,depth,force\n" + "".join(
    f"{w},{d},{np.sin(3 * w) + d}\n" for w, d in np.random.default_rng(0).random((12, 2)).round(3)
)
NEW = "name,depth,width\nfirst,0.5,0.25\nsecond,0.125,0.75\n"
# Of one input, as the demonstration is: they have the same programs.
ONE_INPUT = ["fit", "runs.csv", "--output", "force", "--inputs", "width"]
DEEP = [*ONE_INPUT, "--model", "dgp"]
FIT = ["fit", "runs.csv", "--output", "force", "--model", "gp", "-o", "it.deepemu"]


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """No program goes to the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "use_compilation_cache", lambda: None)
        yield


@pytest.fixture(scope="module")
def emulator_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    x, y = np.hsplit(np.array([line.split(",") for line in RUNS.split()[1:]], float), [2])
    emulator = GP().fit(x, y[:, 0]).name_columns(["width", "depth"], ["force"])
    deepemu.save(emulator, folder / "it.deepemu")
    return folder / "it.deepemu"


@pytest.fixture
def folder(tmp_path, monkeypatch, emulator_file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text(RUNS)
    (tmp_path / "new.csv").write_text(NEW)
    (tmp_path / "old.deepemu").write_bytes(emulator_file.read_bytes())
    return tmp_path


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


# --- the way through -------------------------------------------------------------------------


def test_three_commands_lead_from_runs_to_predictions(folder, capsys):
    assert main.main(FIT) == 0
    assert "wrote it.deepemu" in capsys.readouterr().out
    assert main.main(["predict", "it.deepemu", "new.csv", "-o", "out.csv"]) == 0
    assert main.main(["info", "it.deepemu"]) == 0
    shown = capsys.readouterr().out
    assert "GP fitted to 12 runs" in shown and "input width: " in shown and "GP, matern52" in shown
    emulator = deepemu.load("it.deepemu")
    assert emulator.input_names == ("width", "depth") and emulator.output_names == ("force",)
    mean, std = emulator.predict([[0.25, 0.5], [0.75, 0.125]], return_std=True)
    for row, m, s in zip(rows_of(folder / "out.csv"), mean, std, strict=True):
        assert row["name"] in ("first", "second")
        assert float(row["force_mean"]) == m and float(row["force_std"]) == s
        assert float(row["force_lower"]) == pytest.approx(m - 1.959964 * s, rel=1e-6)
        assert float(row["force_upper"]) == pytest.approx(m + 1.959964 * s, rel=1e-6)


def test_a_fit_says_in_ten_lines_what_a_user_needs(folder, capsys):
    arguments = ["--chains", "4", "--iterations", "4", "-o", "a pump.deepemu"]
    assert main.main([*DEEP, *arguments]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert len(lines) <= 10
    emulator = deepemu.load("a pump.deepemu")
    weights = {line.label: line.weight for line in emulator.summary().lines[:-1]}
    shown = re.findall(
        r"^(?:Weights:|        ) +(\d+) %  (.*?)(?:, noise of .*)?$", told.out, re.MULTILINE
    )
    assert [int(share) for share, _ in shown] == sorted(
        [round(100 * w) for w in weights.values() if w >= 0.005], reverse=True
    )[: commands.MOST_SHOWN]
    assert all(int(share) == round(100 * weights[label]) for share, label in shown)
    y, found = emulator.training_outputs, emulator.compared_runs()
    error, inside = (
        np.sqrt(np.mean((found.mean - y) ** 2)),
        np.sum((found.low <= y) & (y <= found.high)),
    )
    (check,) = [line for line in lines if line.strip().startswith("force:")]
    found = re.search(
        r"error (\S+) \((\S+) % of its range\), (\d+) of 12 .* \(11 expected\)", check
    )
    assert float(found[1]) == pytest.approx(error, rel=0.05)
    assert float(found[2]) == pytest.approx(100 * error / np.ptp(y), rel=0.05)
    assert int(found[3]) == inside
    assert "File:    wrote a pump.deepemu after " in told.out
    commands_shown = re.findall(r"deepemu ((?:predict|info) .*?)(?:  |$)", told.out, re.MULTILINE)
    assert len(commands_shown) == 2
    for command in commands_shown:
        assert main.main(shlex.split(command)) == 0
    assert len(rows_of(folder / "predictions.csv")) == 2


def test_a_fit_that_held_nothing_out_says_so(folder, capsys):
    assert main.main(FIT) == 0
    assert "Check:   no runs were held out, so nothing checks the intervals; --model auto" in (
        capsys.readouterr().out
    )


def test_a_fit_of_many_outputs_shows_three_and_where_the_others_are():
    truth, mean = np.tile(np.arange(20.0)[:, None], (1, 5)), np.zeros((20, 5))
    truth[:, 1] = 7.0  # without a range
    emulator = SimpleNamespace(
        output_names=tuple("abcde"),
        training_outputs=truth,
        summary=lambda: SimpleNamespace(lines=[SimpleNamespace(crps=1.0)]),
        compared_runs=lambda: compared_with_normals(truth, mean, np.full((20, 5), 5.0)),
    )
    _, *outputs, last = commands._check_in_words(emulator, "it.deepemu")
    # The root of the mean of 0, 1, ..., 361 is 11.1; 0 to 9 lie within 1.96 times 5.
    typical = (
        "typical error 11 (58 % of its range), 10 of 20 inside their 95 % interval (19 expected)"
    )
    assert outputs == [
        f"a: {typical}", "b: 20 of 20 inside their 95 % interval (19 expected)", f"c: {typical}",
    ]  # fmt: skip
    assert last == "and 2 more: deepemu validate it.deepemu"


def test_predictions_go_to_the_terminal_unless_a_file_is_named(folder, capsys):
    assert main.main(["predict", "old.deepemu", "new.csv", "--level", "0.5"]) == 0
    first, *rest = csv.DictReader(capsys.readouterr().out.splitlines())
    assert len(rest) == 1 and first["name"] == "first"
    reach = float(first["force_upper"]) - float(first["force_mean"])
    assert reach == pytest.approx(0.674490 * float(first["force_std"]), rel=1e-5)


@pytest.mark.parametrize("arguments", [["runs.csv"], []])
def test_validation_scores_runs_that_are_known(folder, capsys, arguments):
    assert main.main(["validate", "old.deepemu", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    emulator = deepemu.load("old.deepemu")
    x, y = emulator.training_inputs, emulator.training_outputs[:, 0]
    mean = emulator.predict(x) if arguments else emulator.loo()[0]
    expected = np.sqrt(np.mean((mean - y) ** 2)) / np.ptp(y)
    assert found["rows"] == 12
    assert found["scores"]["force"]["nrmsep"] == pytest.approx(expected, rel=1e-9)


def test_one_run_can_be_validated(folder, capsys):
    (folder / "one.csv").write_text("width,depth,force\n0.5,0.5,1.4\n")
    assert main.main(["validate", "old.deepemu", "one.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["scores"]["force"]
    mean, std = deepemu.load("old.deepemu").predict([[0.5, 0.5]], return_std=True)
    draws = np.random.default_rng(0).normal(mean, std, (2, 100_000))
    expected = np.mean(np.abs(draws - 1.4)) - np.mean(np.abs(draws[0] - draws[1])) / 2
    assert found["crps"] == pytest.approx(expected, rel=0.02)
    assert found["nrmsep"] is None
    assert main.main(["validate", "old.deepemu", "one.csv"]) == 0
    assert re.search(r"force +- ", capsys.readouterr().out)


def test_parquet_goes_in_and_out(folder):
    pd.read_csv("runs.csv").to_parquet("runs.parquet")
    pd.read_csv("new.csv").to_parquet("new.parquet")
    assert main.main(["fit", "runs.parquet", *FIT[2:]]) == 0
    assert main.main(["predict", "it.deepemu", "new.parquet", "-o", "out.parquet"]) == 0
    assert main.main(["predict", "old.deepemu", "new.csv", "-o", "out.csv"]) == 0
    a, b = pd.read_parquet("out.parquet"), pd.read_csv("out.csv")
    pd.testing.assert_frame_equal(a, b[list(a.columns)], rtol=1e-9)


def test_several_outputs_and_chosen_inputs(folder, capsys):
    arguments = ["fit", "runs.csv", "--output", "force", "depth", "--inputs", "width"]
    assert main.main([*arguments, "--model", "gp", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["file"] == "runs.deepemu" and list(facts["inputs"]) == ["width"]
    assert main.main(["predict", "runs.deepemu", "new.csv"]) == 0
    assert "force_mean,force_std,force_lower,force_upper,depth_mean" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "kind", "expected"),
    [
        (["--model", "gp", "--kernel", "matern32", "--noise"], "GP", {"kernel": "matern32", "nugget": "estimate"}),
        (["--model", "dgp", "--depth", "3", "--chains", "5", "--iterations", "7", "--seed", "4"], "DGP",
         {"depth": 3, "n_chains": 5, "n_iter": 7, "random_state": 4, "nugget": "auto"}),
        (["--depth", "3", "--effort", "quick"], "Emulator", {"max_depth": 3, "n_chains": None, "effort": "quick"}),
        (["--time-limit", "9.5"], "Emulator", {"time_limit": 9.5, "effort": "default"}),
        (["--observation", "poisson"], "Emulator", {"observation": "poisson"}),
        (["--device", "cpu", "--quiet"], "Emulator", {"max_depth": None, "device": "cpu", "verbose": False}),
    ],
)  # fmt: skip
def test_arguments_are_settings(arguments, kind, expected):
    options = command_arguments.build_parser().parse_args(
        ["fit", "runs.csv", "--output", "y", *arguments]
    )
    emulator = settings.estimator_of(options, not options.quiet)
    assert type(emulator).__name__ == kind
    assert {name: emulator.get_params()[name] for name in expected} == expected


def test_rows_outside_the_runs_are_noted(folder, capsys):
    (folder / "far.csv").write_text("width,depth\n0.5,0.5\n9,0.5\n")
    assert main.main(["predict", "old.deepemu", "far.csv", "--json"]) == 0
    told = capsys.readouterr()
    assert "1 of 2 rows lie outside the range of the runs in width" in told.err
    assert len(json.loads(told.out)["warnings"]) == 1


def test_counts_have_a_model_of_their_own(folder, capsys):
    counts = [*FIT, "--observation", "negative_binomial"]
    assert main.main(counts) == 1
    assert "with a fraction; counts are 0, 1, 2" in capsys.readouterr().err
    lines = [f"{k / 11},{(5 * k) % 12 / 11},{k // 3}" for k in range(12)]
    (folder / "runs.csv").write_text("\n".join(["width,depth,force", *lines]))
    assert main.main(counts) == 0
    assert main.main(["predict", "it.deepemu", "new.csv", "-o", "out.csv"]) == 0
    assert all(float(row["force_upper"]).is_integer() for row in rows_of(folder / "out.csv"))


def test_a_cache_folder_that_cannot_be_written_is_no_reason_to_stop(folder, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "runs.csv"))
    monkeypatch.setattr(main, "use_compilation_cache", deepemu.use_compilation_cache)
    assert main.main(["info", "old.deepemu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (warning,) = found["warnings"]
    assert "cannot be kept in" in warning and warning.endswith("Set XDG_CACHE_HOME to it.")


def test_quiet_commands_give_what_they_are_for(folder, capsys):
    for command, words in (
        (["info", "old.deepemu"], "GP fitted"),
        (["validate", "old.deepemu"], "NRMSEP"),
    ):
        assert main.main([*command, "-q"]) == 0
        assert words in capsys.readouterr().out
    assert main.main(["predict", "old.deepemu", "new.csv", "-o", "out.csv", "-q"]) == 0
    assert capsys.readouterr().out == ""


def test_the_demonstration_can_speak_json(folder, capsys, monkeypatch):
    monkeypatch.setitem(settings.MODELS, "auto", GP)  # what is trained is tried elsewhere
    assert main.main(["demo", "shown", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 4


def test_a_file_remembers_what_the_fit_warned_of(folder, capsys):
    with pytest.warns(DataWarning):
        emulator = GP(nugget=1e-6).fit([[0.1], [0.5], [0.5]], [1.0, 2.0, 3.0])
    deepemu.save(emulator, "t.deepemu")
    assert main.main(["info", "t.deepemu"]) == 0
    assert "note: Inputs occur more than once with different outputs" in capsys.readouterr().out
    assert deepemu.load("old.deepemu").posterior_.caveats == ()
    (folder / "level.csv").write_text("width,depth,force\n0.1,0.2,3\n0.5,0.4,3\n0.3,0.9,3\n")
    assert (
        main.main(["fit", "level.csv", "--output", "force", "--model", "gp", "-o", "l.deepemu"])
        == 0
    )
    assert deepemu.load("l.deepemu").posterior_.caveats == ("All outputs force are equal.",)


def test_identifiers_keep_their_digits(folder):
    (folder / "named.csv").write_text("id,long,depth,width\n007,12345678901234567890,0.5,0.25\n")
    assert main.main(["predict", "old.deepemu", "named.csv", "-o", "out.parquet"]) == 0
    (row,) = pd.read_parquet("out.parquet").to_dict("records")
    assert (row["id"], row["long"], row["depth"]) == ("007", "12345678901234567890", 0.5)


def test_quiet_prints_nothing_but_predictions(folder, capsys):
    assert main.main([*FIT, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main.main(["predict", "it.deepemu", "new.csv", "-q"]) == 0
    assert capsys.readouterr().out.startswith("name,depth,width,force_mean")


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for words in ("deepemu fit runs.csv --output y", "Exit codes", "cache folder"):
        assert words in shown


@pytest.mark.parametrize("command", ["fit", "predict", "validate", "info", "report", "demo"])
def test_help_of_a_command_has_an_example_and_a_word_on_every_argument(capsys, command):
    with pytest.raises(SystemExit):
        main.main([command, "--help"])
    shown = capsys.readouterr().out
    (example, *_) = [line for line in shown.splitlines() if line.startswith("  deepemu ")]
    assert (
        command_arguments.build_parser()
        .parse_args(shlex.split(example.split("   ")[0])[1:])
        .command
    )
    subcommands = next(
        a for a in command_arguments.build_parser()._actions if isinstance(a.choices, dict)
    )
    assert all(action.help for action in subcommands.choices[command]._actions)


def test_advice_is_in_arguments_of_the_command(folder, capsys):
    assert main.main([*DEEP, "--chains", "2", "--iterations", "2", "-o", "few.deepemu"]) == 0
    told = capsys.readouterr()
    assert "No rows can be held out with --chains 2" in told.err
    assert "n_chains" not in told.err + told.out


@pytest.mark.parametrize(
    "arguments",
    [["--model", "dgp", "--chains", "2", "--iterations", "2"], ["--chains", "2"], ["--depth", "7"]],
)
def test_no_name_of_a_setting_is_in_what_the_command_says(folder, capsys, arguments):
    main.main([*ONE_INPUT, "-o", "it.deepemu", *arguments])
    told = capsys.readouterr()
    said = " ".join([told.out, *(line for line in told.err.splitlines() if "training" not in line)])
    known = set(deepemu.DGP().get_params()) | set(deepemu.Emulator().get_params())
    assert [name for name in known if "_" in name and name in said] == []
    assert "stacking" not in said and "nugget" not in said


def test_a_file_gives_advice_in_arguments_too(folder, capsys, emulator_file):
    """A fit whose intervals are too narrow, read from its file."""
    emulator = deepemu.load(emulator_file)
    advice = Message("train more chains (", Setting("n_chains"), ").")
    report = dataclasses.replace(emulator.summary(), troubles=(advice,))
    emulator.posterior_ = dataclasses.replace(emulator.posterior_, report=report)
    deepemu.save(emulator, "narrow.deepemu")
    assert deepemu.load("narrow.deepemu").summary().troubles == ("train more chains (n_chains).",)
    for json_too in ([], ["--json"]):
        assert main.main(["info", "narrow.deepemu", *json_too]) == 0
        assert "train more chains (--chains)." in capsys.readouterr().out


def test_a_check_that_cannot_be_made_names_no_setting_of_the_library(folder, capsys):
    few = ["--chains", "2", "--iterations", "2", "-o", "few.deepemu"]
    assert main.main([*DEEP, *few]) == 0
    assert "so nothing checks the intervals, which may be far too narrow" in capsys.readouterr().err
    assert main.main(["validate", "few.deepemu"]) == 1
    assert capsys.readouterr().err == (
        "deepemu: No rows were held out in this fit; fit with at least 4 chains and 8 distinct "
        "rows.\n"
    )


def test_scripts_get_the_same_advice(folder, capsys):
    few = ["--chains", "2", "--iterations", "2", "-o", "few.deepemu", "--json"]
    assert main.main([*DEEP, *few]) == 0
    warning, *_ = json.loads(capsys.readouterr().out)["warnings"]
    assert "No rows can be held out with --chains 2" in warning


def test_a_table_on_the_terminal_is_the_table_of_the_file(folder, capsys):
    """Whatever the names and cells say, they are data."""
    new = "size (n_chains),depth,width\nmax_depth is\N{NO-BREAK SPACE}9,0.5,0.25\n"
    (folder / "odd.csv").write_text(new, encoding="utf-8")
    assert main.main(["predict", "old.deepemu", "odd.csv", "-o", "out.csv"]) == 0
    capsys.readouterr()
    assert main.main(["predict", "old.deepemu", "odd.csv"]) == 0
    assert capsys.readouterr().out == (folder / "out.csv").read_text(encoding="utf-8")


def test_a_name_with_another_ending_is_a_name(folder):
    assert main.main(["predict", "old.deepemu", "new.csv", "-o", "predictions_v1.2"]) == 0
    assert (folder / "predictions_v1.2").read_text().startswith("name,depth,width,force_mean")
    assert main.main(["predict", "old.deepemu", "new.csv", "-o", "out.tsv"]) == 0
    assert tables.read(folder / "out.tsv").names[-1] == "force_upper"
    assert "\t" in (folder / "out.tsv").read_text()


def test_what_pandas_keeps_of_its_rows_is_no_input(folder, capsys):
    table = pd.read_csv(folder / "runs.csv")
    table[table["width"] > 0.1].to_parquet(folder / "some.parquet")
    assert "__index_level_0__" in pq.read_schema(folder / "some.parquet").names
    arguments = ["fit", "some.parquet", "--output", "force", "--model", "gp", "--json"]
    assert main.main(arguments) == 0
    assert list(json.loads(capsys.readouterr().out)["inputs"]) == ["width", "depth"]


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (101324.981, 101325.045, "101324.981 to 101325.045"),
        (0.0, 1.0, "0 to 1"),
        (-3.0, 12.5, "-3 to 12.5"),
        (1e17, 1e17, "1e+17 to 1e+17"),
        (-1.7e308, 1.7e308, "-1.7e+308 to 1.7e+308"),
    ],
)
def test_ranges_are_told_apart(low, high, words):
    assert list(commands._ranges_in_words("input", {"p": [low, high]})) == [f"  input p: {words}"]


def test_a_reader_that_leaves_is_no_fault(folder, monkeypatch, capsys):
    def closed(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr("builtins.print", closed)
    assert main.main(["info", "old.deepemu"]) == 0
    sys.stdout.close()


def test_a_closed_output_is_told(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert main.main(["predict", "old.deepemu", "new.csv"]) == 1
    assert "Standard output is closed" in capsys.readouterr().err


def test_who_may_read_a_file_stays_as_it_was(folder):
    (folder / "out.csv").write_text("")
    (folder / "out.csv").chmod(0o640)
    assert main.main(["predict", "old.deepemu", "new.csv", "-o", "out.csv"]) == 0
    assert (folder / "out.csv").stat().st_mode & 0o777 == 0o640


def commands_on_pages():
    """What follows ``deepemu`` in code of the pages and notebooks."""
    root = Path(__file__).parents[1]
    for page in (root / "README.md", *sorted((root / "docs").glob("**/*.md"))):
        text = page.read_text(encoding="utf-8")
        for command in re.findall(r"(?:`|^)deepemu ([a-z][^`#\n]*)", text, re.MULTILINE):
            yield pytest.param(command, id=f"{page.stem}: {command}")
    for notebook in sorted((root / "docs").glob("**/*.ipynb")):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        words = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        for command in re.findall(r"^deepemu (.*)$", "\n".join(words), re.MULTILINE):
            yield pytest.param(command, id=f"{notebook.stem}: {command}")


@pytest.mark.parametrize("command", list(commands_on_pages()))
def test_commands_on_the_pages_can_be_typed(command):
    assert command_arguments.build_parser().parse_args(shlex.split(command)) is not None


def test_commands_are_found_on_pages_and_in_notebooks():
    pages = {param.id.split(":")[0] for param in commands_on_pages()}
    assert {"README", "command-line", "quick-start", "files", "several-outputs"} <= pages


def test_the_demonstration_shows_a_step(tmp_path, capsys, monkeypatch):
    """With the structures of a user's, in fewer iterations."""
    monkeypatch.setitem(settings.MODELS, "auto", functools.partial(deepemu.Emulator, n_iter=20))
    assert main.main(["demo", str(tmp_path / "demo")]) == 0
    assert "wrote 41 predictions" in capsys.readouterr().out
    for row in rows_of(tmp_path / "demo" / "predictions.csv"):
        x, mean = float(row["position"]), float(row["height_mean"])
        if abs(x - 0.5) > 0.1:
            assert abs(mean - np.sign(x - 0.5)) < 0.2


# --- hostile files and tables ----------------------------------------------------------------


def text(content):
    return lambda path: path.write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )


def broken_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("evil.py", "print(1)")


def parquet_of_text(path):
    pd.DataFrame({"width": ["a"], "depth": [1.0], "force": [2.0]}).to_parquet(path)


def parquet_with_gap(path):
    pd.DataFrame({"width": [0.1, None], "depth": [1.0, 2.0]}).to_parquet(path)


PREDICT = ["predict", "old.deepemu", "bad.csv", "-o", "out.csv"]
BAD_FIT = ["fit", "bad.csv", "--output", "force", "--model", "gp", "-o", "out.deepemu"]
HEAD = "width,depth,force\n"
# name: (the file "bad" and what is in it, the command, its exit code, what it says)
HOSTILE = {
    "no such table": (None, ["fit", "none.csv", *BAD_FIT[2:]], 1, "none.csv: No such file"),
    "a folder": (None, ["fit", ".", *BAD_FIT[2:]], 1, "Is a directory"),
    "empty": (text(""), BAD_FIT, 1, "bad.csv is empty"),
    "blank lines": (text("\n\n  \n"), BAD_FIT, 1, "bad.csv is empty"),
    "header only": (text(HEAD), BAD_FIT, 1, "a header but no rows"),
    "one row": (text(HEAD + "1,2,3\n"), BAD_FIT, 1, "bad.csv has one run"),
    "equal rows": (text(HEAD + "1,2,3\n1,2,4\n"), BAD_FIT, 1, "All 2 rows of X are equal"),
    "no header": (text("1,2,3\n4,5,6\n"), BAD_FIT, 1, "numbers in its first line"),
    "text in a number column": (text(HEAD + "1,2,3\n4,high,6\n"), BAD_FIT, 1, "line 3: column 'depth' has 'high'"),
    "text in the output": (text(HEAD + "1,2,3\n4,5,six\n"), BAD_FIT, 1, "line 3: column 'force' has 'six'"),
    "empty cell": (text(HEAD + "1,,3\n"), BAD_FIT, 1, "line 2: column 'depth' is empty"),
    "nan": (text(HEAD + "1,nan,3\n"), BAD_FIT, 1, "column 'depth' has 'nan'"),
    "inf": (text(HEAD + "1,2,inf\n"), BAD_FIT, 1, "column 'force' has 'inf'"),
    "too large": (text(HEAD + "1,2,1e999\n"), BAD_FIT, 1, "column 'force' has '1e999'"),
    "decimal commas": (text("width;depth;force\n0,1;2;3\n"), BAD_FIT, 1, "column 'width' has '0,1'"),
    "underscores": (text(HEAD + "1_000,2,3\n"), BAD_FIT, 1, "column 'width' has '1_000'"),
    "truth values": (text(HEAD + "True,2,3\n"), BAD_FIT, 1, "column 'width' has 'True'"),
    "dates": (text(HEAD + "2024-01-01,2,3\n"), BAD_FIT, 1, "column 'width' has '2024-01-01'"),
    "a row too short": (text(HEAD + "1,2\n"), BAD_FIT, 1, "line 2: 2 cell"),
    "a row too long": (text(HEAD + "1,2,3,4\n"), BAD_FIT, 1, "line 2: 4 cell"),
    "a column twice": (text("width,width,force\n1,2,3\n"), BAD_FIT, 1, "'width' more than once"),
    "a column without name": (text("width,,force\n1,2,3\n"), BAD_FIT, 1, "column 2 has no name"),
    "no such output": (text("width,depth\n1,2\n"), BAD_FIT, 1, "no column 'force'; its columns are 'width', 'depth'"),
    "many columns": (text(",".join(f"c{k}" for k in range(99)) + "\n"), BAD_FIT, 1, "and 91 more|no rows"),
    "only the output": (text("force\n1\n2\n"), BAD_FIT, 1, "no column besides the output"),
    "no such input": (text(RUNS), [*BAD_FIT, "--inputs", "colour"], 1, "no column 'colour'"),
    "output as input": (text(RUNS), [*BAD_FIT, "--inputs", "force"], 1, "named twice"),
    "input twice": (text(RUNS), [*BAD_FIT, "--inputs", "width", "width"], 1, "named twice"),
    "output twice": (text(RUNS), [*BAD_FIT, "--output", "force", "force"], 1, "named twice"),
    "an open quote": (text(HEAD + '1,"2,3\n'), BAD_FIT, 1, "is not a CSV file"),
    "zero bytes": (text(HEAD.encode() + b"1,\x00,3\n"), BAD_FIT, 1, "zero bytes"),
    "latin-1": (text("größe,depth,force\n1,2,3\n".encode("latin-1")), BAD_FIT, 1, "not a CSV file in UTF-8"),
    "a picture": (text(b"\x89PNG\r\n\x1a\n\x00\xff\xfe"), BAD_FIT, 1, "not a CSV file in UTF-8"),
    "output into no folder": (text(RUNS), [*BAD_FIT[:-1], "no/out.deepemu"], 1, "cannot be written"),
    "output into a folder": (text(RUNS), [*BAD_FIT[:-1], "."], 1, "is a folder"),
    "output onto the runs": (text(RUNS), [*BAD_FIT[:-1], "bad.csv"], 1, "is an input file"),
    "a depth of zero": (text(RUNS), [*BAD_FIT, "--depth", "0"], 2, "not a positive whole number"),
    "an unknown model": (text(RUNS), [*BAD_FIT, "--model", "magic"], 2, "invalid choice"),
    "no output named": (text(RUNS), ["fit", "bad.csv"], 2, "--output"),
    "no command": (None, [], 2, "command"),
    "unknown command": (None, ["train"], 2, "invalid choice"),
    "too deep": (text(RUNS), [*BAD_FIT[:4], "--depth", "9"], 1, "--depth is 9"),
    "a text for an emulator": (text("hello"), ["info", "bad.csv"], 1, "is not an emulator, or is damaged"),
    "an archive of others": (broken_zip, ["info", "bad.csv"], 1, "other names"),
    "an emulator that is not there": (None, ["info", "none.deepemu"], 1, "none.deepemu: No such file"),
    "a table for an emulator": (text(RUNS), ["predict", "bad.csv", "new.csv"], 1, "is not an emulator"),
    "an input is missing": (text("width\n1\n"), PREDICT, 1, "no column 'depth'"),
    "text in an input": (text("width,depth\n1,x\n"), PREDICT, 1, "line 2: column 'depth' has 'x'"),
    "nothing to predict": (text("width,depth\n"), PREDICT, 1, "no rows"),
    "predictions onto the rows": (text("width,depth\n1,2\n"), [*PREDICT[:-1], "bad.csv"], 1, "is an input file"),
    "predictions onto the emulator": (text("width,depth\n1,2\n"), [*PREDICT[:-1], "old.deepemu"], 1, "is an input file"),
    "predictions into no folder": (text("width,depth\n1,2\n"), [*PREDICT[:-1], "no/out.csv"], 1, "cannot be written"),
    "a level of two": (text("width,depth\n1,2\n"), [*PREDICT, "--level", "2"], 2, "not between 0 and 1"),
    "a level of one": (text("width,depth\n1,2\n"), [*PREDICT, "--level", "0.9999999999999999"], 2, "not between 0 and 1"),
    "a negative seed": (text(RUNS), [*BAD_FIT, "--seed", "-1"], 2, "expected one argument|not a whole number"),
    "a column of predictions": (text("width,depth,force_mean\n1,2,3\n"), PREDICT, 1, "already has a column 'force_mean'"),
    "quoted nothing": (text('""\n""\n'), BAD_FIT, 1, "bad.csv is empty"),
    "only separators": (text(",,\n,,\n"), BAD_FIT, 1, "bad.csv is empty"),
    "a folder with files for the example": (None, ["demo", "."], 1, "is not empty"),
    "output onto a device": (text(RUNS), [*BAD_FIT[:-1], "/dev/null"], 1, "is not a regular file"),
    "a level of text": (text("width,depth\n1,2\n"), [*PREDICT, "--level", "high"], 2, "not between 0 and 1"),
    "validation without outputs": (text("width,depth\n1,2\n"), ["validate", "old.deepemu", "bad.csv"], 1, "no column 'force'"),
    "depth of a plain process": (text(RUNS), [*BAD_FIT, "--depth", "3"], 2, "--depth does not go with --model gp"),
    "chains of a plain process": (text(RUNS), [*BAD_FIT, "--chains", "3"], 2, "--chains does not go with --model gp"),
    "a kernel for all": (text(RUNS), [*BAD_FIT[:4], "--kernel", "matern32"], 2, "--kernel does not go with --model auto"),
    "the table after the inputs": (text(RUNS), ["fit", "--inputs", "width", "bad.csv", "--output", "force"], 2, "before --output and --inputs"),
    "the table after the output": (text(RUNS), ["fit", "--output", "force", "bad.csv"], 2, "the table stands before --output"),
    "a device without end": (None, ["fit", "/dev/zero", *BAD_FIT[2:]], 1, "/dev/zero is a device"),
    "predictions into a spreadsheet": (text("width,depth\n1,2\n"), [*PREDICT[:-1], "out.xlsx"], 1, "would not be a .xlsx file"),
    "an example in an option": (None, ["demo", "--", "-x"], 1, "looks like an option"),
    "a page in place of a table": (None, ["report", "old.deepemu", "-o", "new.csv"], 1, "has the extension of a table"),
    "an emulator in place of a table": (text(RUNS), [*BAD_FIT[:-1], "runs.csv"], 1, "has the extension of a table"),
    "an input called as a prediction": (text("force_mean,depth,force\n1,2,3\n4,5,6\n"), BAD_FIT, 1, "'force_mean' is reserved for predictions"),
    "a link to itself": (lambda path: (path.parent / "loop").symlink_to("loop"), ["predict", "old.deepemu", "new.csv", "-o", "loop"], 1, "leads nowhere"),
    "digits of another script": (text(HEAD + "١,2,3\n"), BAD_FIT, 1, "column 'width' has"),
    "too many chains": (text(RUNS), [*BAD_FIT, "--chains", "9" * 5000], 2, "not a positive whole number up to 1000000"),
    "too long a seed": (text(RUNS), [*BAD_FIT, "--seed", "9" * 5000], 2, "is not a whole number from 0"),
    "no columns in Parquet": (lambda path: pd.DataFrame(index=[1, 2]).to_parquet(path, index=False), ["predict", "old.deepemu", "bad.parquet"], 1, "has no columns"),
    "no GPU": (text(RUNS), [*BAD_FIT, "--device", "gpu"], 1, "or use --device cpu"),
    "no Parquet": (text("hello"), ["predict", "old.deepemu", "bad.parquet"], 1, "is not a Parquet file"),
    "text in Parquet": (parquet_of_text, ["predict", "old.deepemu", "bad.parquet"], 1, "column 'width' has 'a'"),
    "a gap in Parquet": (parquet_with_gap, ["predict", "old.deepemu", "bad.parquet"], 1, "column 'width' (is empty|has nan)"),
}  # fmt: skip


def contents(folder):
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_used_gets_one_sentence(folder, capsys, name):
    make, command, code, message = HOSTILE[name]
    bad = folder / ("bad.parquet" if "bad.parquet" in command else "bad.csv")
    if make is not None:
        make(bad)
    before = contents(folder)
    try:
        found = main.main(command)
    except SystemExit as ended:  # argparse
        found = ended.code
    told = capsys.readouterr()
    assert found == code
    assert contents(folder) == before, "a file was left behind or changed"
    assert "Traceback" not in told.err
    last = told.err.strip().splitlines()[-1]
    assert last.startswith("deepemu")
    assert re.search(message, last), last
    if code == 1:
        assert len(told.err.strip().splitlines()) == 1


def test_a_ctrl_c_before_the_end_writes_nothing(folder, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(GP, "fit", interrupted)
    assert main.main(FIT) == 130
    assert "interrupted" in capsys.readouterr().err
    assert not (folder / "it.deepemu").exists()


def test_a_real_ctrl_c_of_the_command_as_installed_keeps_what_is_trained(tmp_path):
    (tmp_path / "runs.csv").write_text(RUNS)
    command = [sys.executable, "-m", "deepemu", "fit", "runs.csv", "--output", "force",
               "--inputs", "width", "--model", "dgp", "--kernel", "squared_exponential",
               "--chains", "2", "--iterations", "100000", "-o", "it.deepemu"]  # fmt: skip
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONUNBUFFERED": "1"}
    running = subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert "fitting 12 runs" in running.stdout.readline()
    assert "No rows can be held out with --chains 2" in running.stderr.readline()
    told = running.stderr.readline()
    assert re.match(r"DGP, 2 layers, squared exponential: \d+% done", told)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=120)
    assert running.returncode == 130
    assert "interrupted after" in told and "Traceback" not in told
    deepemu.load(tmp_path / "it.deepemu")


def test_dates_and_large_numbers_pass_through(folder, capsys):
    frame = pd.DataFrame({"width": [0.2, 0.3], "depth": [0.1, 0.2]})
    frame["when"] = pd.to_datetime(["2024-01-01", "2024-06-01"])
    frame["large"] = np.array([2**64 - 1, 1], dtype=np.uint64)
    frame.to_parquet("new.parquet")
    assert main.main(["predict", "old.deepemu", "new.parquet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert found["when"][0].startswith("2024-01-01") and found["width"] == [0.2, 0.3]
    assert main.main(["predict", "old.deepemu", "new.parquet", "-o", "out.parquet"]) == 0
    assert main.main(["predict", "old.deepemu", "new.parquet", "-o", "out.csv"]) == 0
    assert len(pd.read_parquet("out.parquet")) == 2


def test_numbers_of_csv_are_numbers_in_parquet_and_json(folder, capsys):
    assert main.main(["predict", "old.deepemu", "new.csv", "-o", "out.parquet"]) == 0
    found = pd.read_parquet("out.parquet")
    assert found["width"].tolist() == [0.25, 0.75] and found["name"].tolist() == ["first", "second"]
    capsys.readouterr()
    assert main.main(["predict", "old.deepemu", "new.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"]["width"] == [0.25, 0.75]


def test_what_should_not_happen_has_no_traceback_unless_asked_for(folder, capsys, monkeypatch):
    def broken(*_):
        raise TypeError("two\nlines \x1b[31m")

    monkeypatch.setattr(commands, "load", broken)
    assert main.main(["info", "old.deepemu"]) == 1
    told = capsys.readouterr().err
    assert "TypeError: two lines" in told and "\x1b" not in told and len(told.splitlines()) == 1
    monkeypatch.setenv("DEEPEMU_TRACEBACK", "1")
    with pytest.raises(TypeError):
        main.main(["info", "old.deepemu"])


def test_parquet_without_pyarrow_says_what_to_install(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main.main(["fit", "runs.parquet", *FIT[2:]]) == 1
    assert "pip install 'deepemu[parquet]'" in capsys.readouterr().err


# --- tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "a,b\n1,2\n3,4\n",
        "\ufeffa,b\r\n1,2\r\n\r\n3,4\r\n",
        "a;b\n1;2\n3;4",
        "a\tb\n1\t2\n3\t4\n",
        ' a ,"b"\n 1 ,"2"\n+3,4e0\n',
        'a,b,"x;y;z;w"\n1,2,3\n3,4,5\n',
    ],
)
def test_dialects_of_csv(tmp_path, content):
    (tmp_path / "it.csv").write_bytes(content.encode())
    table = tables.read(tmp_path / "it.csv")
    assert table.names[:2] == ("a", "b")
    np.testing.assert_array_equal(table.numbers(["b", "a"]), [[2, 1], [4, 3]])


def test_numbers_keep_their_digits(tmp_path):
    values = [0.1 + 0.2, 1e-300, -1.7976931348623157e308, 3.0]
    outputs.write(tmp_path / "it.csv", {"v": values, "name": ['a "quoted"', "b,c", "d\ne", "ü"]})
    table = tables.read(tmp_path / "it.csv")
    np.testing.assert_array_equal(table.numbers(["v"])[:, 0], values)
    assert list(table.columns["name"]) == ['a "quoted"', "b,c", "d\ne", "ü"]
