"""The files around the package say what is true: commands, examples, version, no local paths."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import deepemu

ROOT = Path(__file__).parents[1]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("target", ["demo", "test"])
def test_readme_gives_the_commands_of_the_makefile(target):
    assert re.search(rf"\bmake {target}\b", text("README.md"))
    assert re.search(rf"^{target}:", text("Makefile"), re.MULTILINE)


def test_ci_runs_the_command_of_the_readme():
    assert "make test" in text(".ci/run").splitlines()
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_licence():
    assert text("LICENSE").startswith("MIT License\n")
    assert "Copyright (c) 2026 the deepemu developers" in text("LICENSE")


def test_changelog_opens_with_this_version():
    versions = re.findall(r"^## \[(\d[^\]]*)\]", text("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == deepemu.__version__


def python_blocks(markdown: str) -> list[str]:
    """Python code blocks, each behind as many empty lines as stand before it in the page."""
    found = re.finditer(r"^```python\b[^\n]*\n(.*?)^```", markdown, re.DOTALL | re.MULTILINE)
    return ["\n" * markdown.count("\n", 0, block.start(1)) + block[1] for block in found]


def test_python_blocks_keep_their_lines():
    page = "Title\n\n```python\na = 1\n```\n```text\nb\n```\n\n```python\nc = a\n```\n"
    assert python_blocks(page) == ["\n\n\na = 1\n", "\n" * 10 + "c = a\n"]


@pytest.fixture
def folder_with_runs(tmp_path, rng, monkeypatch):
    """A working directory with simulator runs as the README reads them."""
    inputs = rng.random((80, 2))
    output = np.sin(6 * inputs[:, 0]) + inputs[:, 1] ** 2
    runs = np.column_stack([inputs, output])[:60]
    for name, columns, table in (("runs", "x1,x2,y", runs), ("new", "x1,x2", inputs[60:])):
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", header=columns, comments="")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readme_examples_run(folder_with_runs):
    """In sequence, as a reader would paste them into one session."""
    run_blocks("README.md", {})


def test_examples_of_the_page_on_error_bars_run(folder_with_runs):
    runs = np.loadtxt("runs.csv", delimiter=",", skiprows=1)
    given = {"X": runs[:30, :2], "y": runs[:30, 2], "X_new": runs[30:, :2]}
    run_blocks("docs/error-bars.md", given)
    assert (folder_with_runs / "diagnostics.png").stat().st_size > 10_000


def run_blocks(page, given):
    blocks = python_blocks(text(page))
    assert blocks, f"{page} shows no Python"
    namespace = {"__name__": "__main__", **given}
    for block in blocks:
        exec(compile(block, str(ROOT / page), "exec"), namespace)


# In pieces, so that this file does not match.
LOCAL_PATH = re.compile(rb"(?<![\w.])/" + rb"(?:work|tmp|home|root)" + rb"/")


@pytest.mark.parametrize("folder", ["work", "tmp", "home"])
def test_local_path_is_recognised(folder):
    assert LOCAL_PATH.search(f'open("/{folder}/x.csv")'.encode())
    assert not LOCAL_PATH.search(f"example.org/{folder}/x.csv, ./{folder}/x.csv".encode())


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the list of files is git's")
def test_no_file_names_a_path_of_one_machine():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    files = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    assert ROOT / "pyproject.toml" in files
    assert [file for file in files if file.is_file() and LOCAL_PATH.search(file.read_bytes())] == []
