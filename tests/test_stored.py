"""Programs on disk: who may use them, who may not, and what a second process is spared."""

import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from deepemu.core import joint, predict
from deepemu.core.model.priors import Gamma
from deepemu.runtime import stored

FIT = """
import json, sys
import jax, numpy as np
import deepemu
from deepemu.runtime import programs
traced = []
def listen(event, seconds, **about):
    if event.endswith("jaxpr_trace_duration"):
        traced.append(about["fun_name"])
jax.monitoring.register_event_duration_secs_listener(listen)
deepemu.use_compilation_cache(sys.argv[1])
programs.CPU_OPTIONS["xla_backend_optimization_level"] = 0  # compiles faster
x = np.linspace(0.0, 1.0, 8)[:, None]
emulator = deepemu.GP("squared_exponential").fit(x, np.sin(6.0 * x[:, 0]))
mean, std = emulator.predict(x + 0.05, return_std=True)
print(json.dumps([mean.tolist(), std.tolist(), traced]))
"""


def fit_in_a_new_process(folder: Path) -> tuple[list[list[float]], list[str]]:
    """Predictions of a plain emulator, and the names of what was traced for them."""
    done = subprocess.run(
        [sys.executable, "-c", FIT, folder],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    *numbers, traced = json.loads(done.stdout)
    return numbers, traced


def ours(traced: list[str]) -> list[str]:
    """Programs of the package have their key in their name."""
    return [name for name in traced if re.search(r"-[0-9a-f]{64}$", name)]


def files(folder: Path) -> list[Path]:
    return sorted((folder / "deepemu").iterdir())


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder, and the predictions of the first process that keeps its programs there."""
    folder = tmp_path_factory.mktemp("programs")
    numbers, traced = fit_in_a_new_process(folder)
    assert ours(traced)
    return folder, numbers


def test_a_second_process_traces_nothing_and_predicts_the_same(first):
    folder, numbers = first
    assert len(files(folder)) > 2
    second, traced = fit_in_a_new_process(folder)
    assert ours(traced) == []
    assert second == numbers


@pytest.fixture
def damaged(first):
    """The folder with one file cut and another one gone, and afterwards as it was."""
    before = {file: file.read_bytes() for file in files(first[0])}
    lost, cut, *_ = before
    lost.unlink()
    cut.write_bytes(before[cut][:100])
    yield first
    for file, content in before.items():
        file.write_bytes(content)


def test_a_damaged_file_is_compiled_anew_and_a_lost_one_too(damaged):
    """JAX still has these programs, in a form that cannot be written again: the damaged file and
    the missing one stay as they are, and every process is right all the same."""
    folder, numbers = damaged
    for _ in range(2):
        found, traced = fit_in_a_new_process(folder)
        assert found == numbers and len(ours(traced)) == 2


def scaled(x, factor, prior):
    return x * factor * prior.shape


@dataclasses.dataclass(frozen=True)
class Mine:
    """What a user may pass for a prior; the sources of the package do not know it."""

    shape: float = 2.0


@pytest.fixture
def cache_folder(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def key(x, options=None, prior=None, level=0):
    fixed = {"prior": Gamma(2.0, 1.0) if prior is None else prior, "level": level}
    return stored._key(predict.predict, options, fixed, (x, 2.0))


def test_the_key_tells_apart_whatever_changes_a_program():
    x = np.ones((3, 2))
    keys = [key(x)]
    with jax.enable_x64(True):
        assert key(x) == key(np.zeros((3, 2)))
        keys += [
            key(x),
            key(np.ones((4, 2))),
            key(np.ones((3, 2), np.float32)),
            key(x, options={"xla_cpu_multi_thread_eigen": False}),
            key(x, prior=Gamma(2.5, 1.0)),
            key(x, level=1),
            stored._key(joint.draw, None, {"prior": Gamma(2.0, 1.0), "level": 0}, (x, 2.0)),
        ]
        with jax.default_matmul_precision("float32"):
            keys.append(key(x))
    assert len(set(keys)) == len(keys)


def test_the_key_changes_with_a_source_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "PACKAGE", tmp_path)
    found = []
    for text in ("a = 1", "a = 2"):
        (tmp_path / "module.py").write_text(text)
        found.append(stored._hash_of_sources())
    assert found[0] != found[1]
    # A file that is edited while a process runs is not what the process runs.
    assert stored.SOURCES in stored._origin() and stored.SOURCES not in found


def test_programs_that_others_may_have_written_are_not_run(cache_folder, monkeypatch):
    monkeypatch.setattr(stored, "KNOWN", (*stored.KNOWN, raised.__module__.split(".")[0]))
    given = (np.array([3.0]), 2.0)
    ask = lambda: stored.ready_to_call(raised, ("exponent",), None, ((given[0],), {}), given, {})  # noqa: E731
    cache_folder.chmod(0o777)
    assert ask() is None and not (cache_folder / "deepemu").exists()
    cache_folder.chmod(0o700)
    assert ask() is not None


def raised(x, exponent):
    return x**exponent


def test_numbers_that_are_compiled_in_have_programs_of_their_own(cache_folder, monkeypatch):
    """The second call would find the program of the first."""
    monkeypatch.setattr(stored, "KNOWN", (*stored.KNOWN, raised.__module__.split(".")[0]))
    x = np.array([3.0])
    for exponent, expected in ((2, 9.0), (3, 27.0)):
        ready = stored.ready_to_call(raised, ("exponent",), None, ((x,), {}), (x, exponent), {})
        np.testing.assert_allclose(ready(x), expected)
    assert len(list((cache_folder / "deepemu").iterdir())) == 2


def test_what_a_user_defines_is_never_stored(cache_folder):
    with pytest.raises(pickle.PicklingError, match="Mine"):
        key(np.ones(3), prior=Mine())
    x = np.ones(3)
    arguments = (x, 2.0), {"prior": Mine()}
    assert stored.ready_to_call(scaled, ("prior",), None, (((x, 2.0), {})), *arguments) is None
    assert list(cache_folder.iterdir()) == []


def test_without_a_folder_nothing_is_stored(cache_folder):
    jax.config.update("jax_compilation_cache_dir", None)
    x = np.ones(3)
    given = (x, 2.0), {"prior": Gamma(2.0, 1.0)}
    assert stored.ready_to_call(scaled, ("prior",), None, ((x, 2.0), {}), *given) is None
