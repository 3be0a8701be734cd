"""The demonstration that `make demo` runs, and what it must show."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from builders import step

from deepemu import DGP
from deepemu.diagnostics import nrmsep

ROOT = Path(__file__).parents[1]
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def demo():
    """The script; no program goes to the user's cache folder."""
    script = runpy.run_path(str(ROOT / "examples" / "step_function.py"))
    script["main"].__globals__["use_compilation_cache"] = lambda: None
    return script


@pytest.fixture(scope="module")
def step_emulator():
    x = np.linspace(0, 1, 10)
    return DGP(depth=3).fit(x[:, None], step(x))


def test_demo_prints_scores_of_both_emulators_and_writes_a_picture(demo, tmp_path, capsys):
    picture = tmp_path / "step.png"
    demo["main"](["--output", str(picture), "--n-iter", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NRMSEP", "CRPS", "coverage"]
    for line, name in zip(lines[1:3], ("Gaussian process", "Deep Gaussian process"), strict=True):
        assert line.startswith(name)
        error, crps, coverage = (float(word) for word in line.split()[-3:])
        assert 0 < error < 0.3 and 0 < crps < 0.3 and 0.5 < coverage <= 1
    assert picture.read_bytes().startswith(PNG_SIGNATURE)
    assert picture.stat().st_size > 10_000


def test_step_function_is_followed(step_emulator):
    x = np.linspace(0, 1, 200)
    assert nrmsep(step(x), step_emulator.predict(x[:, None])) < 0.09


def test_step_function_is_interpolated(step_emulator):
    x = np.linspace(0, 1, 10)
    mean, std = step_emulator.predict(x[:, None], return_std=True)
    np.testing.assert_allclose(mean, step(x), atol=5e-3)
    assert np.all(std < 2e-2)


def test_uncertainty_is_largest_at_the_jump(step_emulator):
    """Between the runs on either side of 0.5, against every other gap between runs."""
    x = np.linspace(0, 1, 181)
    _, std = step_emulator.predict(x[:, None], return_std=True)
    gap = np.minimum((x * 9).astype(int), 8)
    largest = np.array([std[gap == g].max() for g in range(9)])
    assert np.argmax(largest) == 4
