"""A fit that is killed goes on from its checkpoint, to the result that it would have had."""

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from builders import curve
from eigen_solver import ByEigenvalues
from sklearn.base import clone

from deepemu import (
    DGP,
    GP,
    DeepemuWarning,
    Emulator,
    FileError,
    InputError,
    InterruptedFitWarning,
    load,
    save,
)
from deepemu.cli import main
from deepemu.core.nodes.vecchia import Vecchia
from deepemu.files import archive, checkpoint, codec
from deepemu.files.state import state_of
from deepemu.runtime.devices import Runtime
from deepemu.training import blocks, chains, plain

pytestmark = [
    # Few rows and iterations: error bars are not what is asked about here.
    pytest.mark.filterwarnings("ignore::deepemu.ConvergenceWarning"),
]

KINDS = {
    "emulator": functools.partial(
        Emulator, max_depth=2, n_iter=6, n_chains=6, width=1, verbose=False, n_jobs=1
    ),
    "vecchia": functools.partial(
        DGP, width=1, kernel="squared_exponential", n_chains=4, n_iter=8, n_imputations=2,
        solver=Vecchia(n_near=4, n_predict=8, n_group=3), verbose=False, n_jobs=1,
    ),
    "full Bayes": functools.partial(
        DGP, n_chains=2, n_iter=2, n_sweeps=1, n_imputations=2, inference="full_bayes",
        stacking=False, verbose=False, n_jobs=1,
    ),
}  # fmt: skip
AT = np.random.default_rng(1).random((5, 2))


def runs():
    x = np.random.default_rng(0).random((14, 2))
    return x, curve(x)


def fit(kind, **changes):
    return KINDS[kind](**changes).fit(*runs())


class KilledError(BaseException):
    """As final as a signal: nothing in the package catches it."""


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Blocks of one iteration, and a write after each."""
    monkeypatch.setattr(blocks, "BLOCK_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(checkpoint, "TIMES_THE_WRITE", 0.0)


class Work(list):
    """Pieces of work: blocks of all chains, and fits of plain processes. When ``most`` are done,
    the next one stops the fit."""

    most = np.inf
    stop: Callable[[], None]

    def counted(self, function, describe):
        def do(*arguments):
            if len(self) == self.most:
                self.stop()
            found = function(*arguments)
            self.append(describe(*arguments))
            return found

        return do


def kill():
    raise KilledError


@pytest.fixture
def work(monkeypatch):
    done = Work()
    block = done.counted(
        blocks.train_block,
        lambda keys, network, steps, chains, data, first, n_iter, advance: (
            "block", keys.tolist(), first, n_iter,
        ),
    )  # fmt: skip
    monkeypatch.setattr(chains, "train_block", block)
    monkeypatch.setattr(blocks, "train_block", block)
    monkeypatch.setattr(plain, "fit_plain", done.counted(plain.fit_plain, lambda *_: ("plain",)))
    return done


def stopped(work, n_more, kind, stop=kill, **changes):
    """A fit that is stopped before another piece of work after ``n_more``, or None if that kills
    it."""
    work.most, work.stop = len(work) + n_more, stop
    try:
        return fit(kind, **changes)
    except KilledError:
        return None
    finally:
        work.most = np.inf


def begin(work, n_more, kind, **changes):
    assert stopped(work, n_more, kind, **changes) is None, "the fit ended before"


@pytest.fixture(scope="module")
def all_whole():
    return {}


@pytest.fixture
def whole(all_whole, work):
    """The fit of a kind that nothing stopped, and the work of it."""

    def fitted(kind):
        if kind not in all_whole:
            all_whole[kind] = fit(kind), sorted(work)
            work.clear()
        return all_whole[kind]

    return fitted


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.checkpoint"


def require_equal(one, other):
    """Two emulators are the same, bit by bit."""
    for name in ("predict", "interval", "sample_y"):
        found = (getattr(each, name)(AT) for each in (one, other))
        jax.tree.map(np.testing.assert_array_equal, *found)
    (tree, arrays), (other_tree, others) = map(in_a_file, (one, other))
    assert tree == other_tree
    jax.tree.map(np.testing.assert_array_equal, arrays, others)
    for left, right in zip(one.posterior_.structures, other.posterior_.structures, strict=True):
        jax.tree.map(np.testing.assert_array_equal, left.imputed, right.imputed)


def in_a_file(emulator):
    arrays = []
    return codec.encode(state_of(emulator.posterior_), arrays), arrays


# --- going on --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "stops"),
    [("emulator", (3, 12, 6, 13)), ("vecchia", (5, 3, 4)), ("full Bayes", (9, 42))],
)
def test_a_fit_killed_again_and_again_ends_as_if_it_had_not_been(kind, stops, whole, work, path):
    """And no piece of work is done twice."""
    expected, all_work = whole(kind)
    for n_more in stops:
        begin(work, n_more, kind, checkpoint=path)
    require_equal(fit(kind, checkpoint=path), expected)
    assert sorted(work) == all_work
    assert not any(path.parent.iterdir())


def test_between_writes_work_is_lost_and_done_again(whole, work, path, monkeypatch):
    """But trained structures are written at once."""
    expected, all_work = whole("emulator")
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 1e9)
    begin(work, len(all_work) - 3, "emulator", checkpoint=path)
    first = work.copy()
    work.clear()
    again = fit("emulator", checkpoint=path)
    require_equal(again, expected)
    # Of the last structure: iterations without a fold, its imputations, and with all rows.
    assert len(work) == 4 + 5 + 2 + 5
    assert work[:-3] == first[-len(work) + 3 :]


KILLED_BY_THE_SYSTEM = """
import os, signal, sys
from deepemu.files import checkpoint
from deepemu.runtime import programs
from deepemu.training import blocks, chains
from test_checkpoint import fit

programs.ready_to_call = lambda *_: None
programs.CPU_OPTIONS["xla_backend_optimization_level"] = 0
checkpoint.SECONDS_BETWEEN = checkpoint.TIMES_THE_WRITE = 0.0
train_block, n_blocks = blocks.train_block, iter(range(100))

def train_or_die(*arguments):
    if next(n_blocks) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return train_block(*arguments)

chains.train_block = train_or_die
fit("full Bayes", checkpoint=sys.argv[1])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no such signal")
def test_a_process_that_the_system_kills(whole, path):
    expected, _ = whole("full Bayes")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED_BY_THE_SYSTEM, path],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    require_equal(fit("full Bayes", checkpoint=path), expected)


@pytest.mark.parametrize(
    ("n_more", "after"),
    [(2, "4 of 6 iterations"), (6, "5 of 6 iterations"), (12, "2 of 5 imputations")],
)
def test_a_fit_that_ctrl_c_has_ended_goes_on_too(whole, work, path, n_more, after):
    """The emulator predicts from what is trained, and the next fit trains the rest."""
    expected, all_work = whole("emulator")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        press = functools.partial(signal.raise_signal, signal.SIGINT)
        n_plain = sum(what == "plain" for what, *_ in all_work)
        with pytest.warns(InterruptedFitWarning, match=after):
            emulator = stopped(work, n_plain + n_more, "emulator", press, checkpoint=path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert np.all(np.isfinite(emulator.predict(AT)))
    n_before = len(work)
    require_equal(fit("emulator", checkpoint=path), expected)
    assert len(work) - n_before < len(all_work) - n_plain
    assert not path.exists()


def test_what_was_begun_in_time_is_trained_when_the_time_is_over(whole, work, path):
    """Time before the kill counts, and the limit may be set afterwards."""
    _, all_work = whole("emulator")
    n_plain = sum(what == "plain" for what, *_ in all_work)
    begin(work, n_plain + 5, "emulator", checkpoint=path)
    emulator = fit("emulator", checkpoint=path, time_limit=1e-9)
    depths = [each.structure.network.depth for each in emulator.posterior_.structures]
    assert depths.count(2) == 1 and depths.count(1) >= 2


def test_the_seconds_before_are_kept(work, path):
    begin(work, 5, "vecchia", checkpoint=path)
    header, arrays = archive.read(path)
    assert 0.0 < codec.decode(header["fit"], arrays)["seconds"] < 600.0


def test_without_a_seed_the_fit_keeps_that_which_it_drew(whole, work, path):
    np.random.seed(1)  # noqa: NPY002 - what scikit-learn takes for None
    expected = fit("full Bayes", random_state=None)
    np.random.seed(1)  # noqa: NPY002
    begin(work, 4, "full Bayes", random_state=None, checkpoint=path)
    np.random.seed(2)  # noqa: NPY002
    require_equal(fit("full Bayes", random_state=None, checkpoint=path), expected)


def test_it_is_said_what_a_fit_goes_on_from(work, path, capsys):
    settings = {"checkpoint": path, "verbose": True}
    begin(work, 7, "full Bayes", **settings)
    assert "going on" not in capsys.readouterr().err
    fit("full Bayes", **settings)
    expected = f"going on from {path}: 0 trained structures and a part of the next, after 0 s"
    assert expected in capsys.readouterr().err


# --- what a fit does not go on from ----------------------------------------------------------


@pytest.fixture
def begun(work, path):
    """The checkpoint of a fit that was killed, and what it holds."""
    begin(work, 4, "full Bayes", checkpoint=path)
    return path, path.read_bytes()


def other_columns(x, y):
    import pandas as pd

    return pd.DataFrame(x, columns=["a", "b"]), y


@pytest.mark.parametrize(
    ("change", "settings", "named"),
    [
        (lambda x, y: (x + 1e-9, y), {}, "X"),
        (lambda x, y: (x[:-1], y[:-1]), {}, "X, another y"),
        (lambda x, y: (x, 2 * y), {}, "y"),
        (other_columns, {}, "names of columns"),
        (lambda x, y: (x, y), {"n_iter": 3}, "n_iter"),
        (lambda x, y: (x, y), {"random_state": 1, "kernel": "matern32"},
         "kernel, another random_state"),
    ],
)  # fmt: skip
def test_another_fit_is_refused(begun, work, change, settings, named):
    path, content = begun
    work.clear()
    expected = f"{path} is the checkpoint of a fit with another {named}; delete it or name another"
    with pytest.raises(InputError, match=expected):
        KINDS["full Bayes"](checkpoint=path, **settings).fit(*change(*runs()))
    assert work == [] and path.read_bytes() == content


def test_another_estimator_version_or_device_is_refused(begun, monkeypatch):
    path, content = begun
    with pytest.raises(InputError, match="a fit with another estimator, "):
        GP(checkpoint=path).fit(*runs())
    with monkeypatch.context() as patch, pytest.raises(InputError, match="another version of dee"):
        patch.setattr(checkpoint, "version", lambda _: "9.9")
        fit("full Bayes", checkpoint=path)
    with monkeypatch.context() as patch, pytest.raises(InputError, match="another kind of device;"):
        patch.setattr(checkpoint, "current", lambda: Runtime("gpu"))
        fit("full Bayes", checkpoint=path)
    assert path.read_bytes() == content


def test_settings_of_the_machine_may_differ(begun, whole):
    path, _ = begun
    again = fit("full Bayes", checkpoint=path, n_jobs=2, device="cpu")
    require_equal(again, whole("full Bayes")[0])


@pytest.mark.parametrize("spoil", [
    lambda content: b"width,depth\n1,2\n",
    lambda content: content[: len(content) // 2],
    lambda content: content[:2000] + bytes([content[2000] ^ 1]) + content[2001:],
], ids=["a table", "cut short", "a bit"])  # fmt: skip
def test_a_file_that_is_no_checkpoint_is_refused(begun, spoil):
    path, content = begun
    path.write_bytes(spoil(content))
    expected = "is not the checkpoint of a fit, or is damaged; delete it or name another file"
    with pytest.raises(FileError, match=expected):
        fit("full Bayes", checkpoint=path)
    assert path.read_bytes() == spoil(content)


def test_an_emulator_is_no_checkpoint(path, gp):
    save(gp, path)
    with pytest.raises(FileError, match="is not the checkpoint of a fit"):
        GP(checkpoint=path).fit(*runs())
    assert np.array_equal(load(path).training_inputs, gp.training_inputs)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (3, InputError, "checkpoint is 3; it must be the name of a file or None"),
        (True, InputError, "checkpoint is True"),
        (".", FileError, "is a folder; name a file to write to"),
        ("no/such/folder/a", FileError, "cannot be written"),
    ],
)
def test_only_the_name_of_a_file_that_can_be_written_will_do(given, error, message):
    with pytest.raises(error, match=message):
        GP(checkpoint=given).fit(*runs())


def test_what_cannot_be_stored_is_refused_before_training(path, work):
    with pytest.raises(InputError, match="ByEigenvalues, which cannot be saved"):
        GP(checkpoint=path, solver=ByEigenvalues()).fit(*runs())
    assert work == []


def test_a_full_disk_does_not_end_a_fit(whole, path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "write", fail)
    with pytest.warns(DeepemuWarning, match=r"cannot be written \(No space left on device\)"):
        emulator = fit("full Bayes", checkpoint=path)
    require_equal(emulator, whole("full Bayes")[0])


# --- a setting like others -------------------------------------------------------------------


def test_it_is_a_setting_of_the_machine(path, gp):
    emulator = GP(checkpoint=str(path))
    assert clone(emulator).checkpoint == emulator.get_params()["checkpoint"] == str(path)
    save(emulator.fit(*runs()), path)
    assert load(path).checkpoint is None
    assert all(kind().checkpoint is None for kind in (GP, DGP, Emulator))


def test_an_update_keeps_nothing(path, monkeypatch):
    x, y = runs()
    emulator = KINDS["full Bayes"](checkpoint=path).fit(x[:-1], y[:-1])
    path.write_text("of another fit")
    emulator.update(x[-1:], y[-1:])
    assert path.read_text() == "of another fit"


def test_the_command_goes_on_and_names_its_arguments(tmp_path, monkeypatch, capsys, work):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(main, "use_compilation_cache", lambda: None)
    x, y = runs()
    lines = [f"{a},{b},{c}" for (a, b), c in zip(x, y, strict=True)]
    Path("runs.csv").write_text("\n".join(["a,b,y", *lines]))
    command = [
        "fit", "runs.csv", "--output", "y", "--model", "dgp", "--chains", "2", "--iterations", "2",
        "--checkpoint", "a.checkpoint",
    ]  # fmt: skip
    work.most, work.stop = 6, kill
    with pytest.raises(KilledError):
        main.main(command)
    work.most = np.inf
    assert main.main([*command, "--seed", "3"]) == 1
    expected = "a.checkpoint is the checkpoint of a fit with another --seed; delete it"
    assert expected in capsys.readouterr().err
    assert main.main(command) == 0
    assert "going on from a.checkpoint" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["runs.csv", "runs.deepemu"]
