"""The files around the package say what is true: commands, examples, version, no local paths."""

import ast
import importlib
import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

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


def test_changelog_opens_with_this_version():
    versions = re.findall(r"^## \[(\d[^\]]*)\]", text("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == deepemu.__version__


def imported_names(file: Path) -> list[tuple[str, str]]:
    """(module, name) of what a script imports of the package, at its top and inside functions."""
    found = [node for node in ast.walk(ast.parse(file.read_text())) if type(node) is ast.ImportFrom]
    of_package = [node for node in found if (node.module or "").split(".")[0] == "deepemu"]
    return [(node.module, name.name) for node in of_package for name in node.names]


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda f: f.stem)
def test_scripts_import_what_the_package_has(file):
    """A name that is imported where it is used goes unnoticed until then."""
    for module, name in imported_names(file):
        assert hasattr(importlib.import_module(module), name) or find_spec(f"{module}.{name}")


# In pieces, so that this file does not match.
LOCAL_PATH = re.compile(rb"(?<![\w.])/" + rb"(?:work|tmp|home|root)" + rb"/")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the list of files is git's")
def test_no_file_names_a_path_of_one_machine():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    files = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    assert ROOT / "pyproject.toml" in files
    assert [file for file in files if file.is_file() and LOCAL_PATH.search(file.read_bytes())] == []
