"""The progress line, and Ctrl-C during training."""

import os
import signal
import sys
import threading

import builders
import numpy as np
import pytest

from deepemu import DGP, InterruptedFitWarning
from deepemu.ensembles import assembly
from deepemu.runtime.interrupt import deferred_interrupt
from deepemu.runtime.progress import Progress, wants_progress
from deepemu.training import blocks, structures

SMALL = {"verbose": False, **builders.SMALL}


@pytest.fixture(autouse=True)
def ctrl_c_interrupts():
    """As on a terminal; a shell starts what it runs in the background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def growing_blocks(monkeypatch):
    """Blocks of 1, 2, 4, … iterations, whatever time they take."""
    monkeypatch.setattr(blocks, "BLOCK_SECONDS", 1e9)


@pytest.fixture
def no_sweeps_before(monkeypatch):
    """Training begins with its first iteration, so that blocks can be counted."""
    monkeypatch.setattr(structures, "SWEEPS_BEFORE_FIRST_M_STEP", 0)


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def press_at(monkeypatch, *calls):
    """Ctrl-C when a chain has ended its block for the n-th time, for each n in ``calls``."""
    count = iter(range(1, 10_000))
    advance = Progress.advance

    def advance_and_press(self, amount=1):
        advance(self, amount)
        if next(count) in calls:
            ctrl_c()

    monkeypatch.setattr(Progress, "advance", advance_and_press)


# --- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_sweeps_before")
def test_ctrl_c_ends_training_and_leaves_an_emulator(problem, monkeypatch):
    x, y = problem
    before = signal.getsignal(signal.SIGINT)
    press_at(monkeypatch, 3)  # in the second block, of 2 iterations
    with pytest.warns(InterruptedFitWarning, match="after 3 of 40 iterations") as caught:
        emulator = DGP(**(SMALL | {"n_iter": 40})).fit(x, y)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert emulator.trace_["log_density"].shape == (2, 3)
    assert emulator.posterior_.structures[0].imputed.members.alpha.shape[:2] == (2, 2)
    np.testing.assert_allclose(emulator.predict(x), y, atol=5e-3)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("no_sweeps_before")
def test_an_interrupted_fit_is_the_shorter_fit(problem, monkeypatch):
    with monkeypatch.context() as patch:
        press_at(patch, 1)
        with pytest.warns(InterruptedFitWarning):
            stopped = DGP(**(SMALL | {"n_iter": 40})).fit(*problem)
    short = DGP(**(SMALL | {"n_iter": 1})).fit(*problem)
    np.testing.assert_array_equal(stopped.predict(problem[0]), short.predict(problem[0]))


def test_ctrl_c_before_the_first_m_step_leaves_an_emulator(problem, monkeypatch):
    press_at(monkeypatch, 1)
    with pytest.warns(InterruptedFitWarning, match="after 1 of 40 iterations"):
        emulator = DGP(**(SMALL | {"n_iter": 40})).fit(*problem)
    assert emulator.trace_["log_density"].shape == (2, 1)
    np.testing.assert_allclose(emulator.predict(problem[0]), problem[1], atol=5e-3)


def test_ctrl_c_between_imputations_keeps_those_that_are_there(problem, monkeypatch):
    build = assembly.build_members

    def build_and_interrupt(*arguments):
        ctrl_c()
        return build(*arguments)

    monkeypatch.setattr(assembly, "build_members", build_and_interrupt)
    with pytest.warns(InterruptedFitWarning, match="after 1 of 3 imputations"):
        emulator = DGP(**(SMALL | {"n_imputations": 3})).fit(*problem)
    assert emulator.posterior_.structures[0].imputed.members.alpha.shape[:2] == (2, 1)
    assert emulator.trace_["log_density"].shape == (2, 6)
    assert np.all(np.isfinite(emulator.predict(problem[0])))


@pytest.mark.parametrize(("sweep", "n_before"), [("node", 25), ("guided", 0)])
@pytest.mark.parametrize("n_iter", [5, 40])
def test_progress_counts_what_comes_before_and_reaches_its_end(
    problem, capsys, n_iter, sweep, n_before
):
    """25 iterations of 2 sweeps from the prior, those of training, 2 imputations; two chains."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "__exit__", lambda self, *_: seen.append((self._done, self._total)))
        DGP(sweep=sweep, **(SMALL | {"n_iter": n_iter, "verbose": True})).fit(*problem)
    total = 2 * (n_before + n_iter + 2)
    assert seen[-1] == (total, total)


def test_an_interrupted_update_leaves_an_emulator(problem, monkeypatch):
    x, y = problem
    emulator = DGP(**(SMALL | {"n_iter": 40})).fit(x[:9], y[:9])
    press_at(monkeypatch, 1)
    with pytest.warns(InterruptedFitWarning, match="after 1 of 8 iterations"):
        emulator.update(x[9:], y[9:])
    np.testing.assert_allclose(emulator.predict(x), y, atol=5e-3)


def test_a_second_ctrl_c_interrupts_at_once(problem, monkeypatch):
    x, y = problem
    emulator = DGP(**(SMALL | {"n_iter": 5})).fit(x, y)
    expected = emulator.predict(x)
    before = signal.getsignal(signal.SIGINT)
    press_at(monkeypatch, 1, 2)
    with pytest.raises(KeyboardInterrupt):
        emulator.set_params(n_iter=40).fit(x, y)
    assert signal.getsignal(signal.SIGINT) is before
    np.testing.assert_array_equal(emulator.predict(x), expected)


def test_the_handler_is_restored_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyError), deferred_interrupt():
        assert signal.getsignal(signal.SIGINT) is not before
        raise KeyError
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_after_training_is_ctrl_c():
    with deferred_interrupt() as interrupt:
        pass
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
        sum(range(1000))
    assert not interrupt.requested


def test_a_handler_of_the_users_own_gets_the_second_ctrl_c():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append("mine"))
    try:
        with deferred_interrupt() as interrupt:
            ctrl_c()
            assert interrupt.requested and seen == []
            ctrl_c()
            assert seen == ["mine"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_fitting_works_in_another_thread(problem):
    """Where signal handlers cannot be set."""
    results, errors = [], []

    def fit():
        try:
            results.append(DGP(**(SMALL | {"n_iter": 5})).fit(*problem).predict(problem[0]))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    thread.join(timeout=120)
    assert errors == []
    expected = DGP(**(SMALL | {"n_iter": 5})).fit(*problem).predict(problem[0])
    np.testing.assert_array_equal(results[0], expected)


# --- the line ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_sweeps_before")
def test_progress_is_shown_when_asked_for(problem, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    DGP(**(SMALL | {"n_iter": 5, "verbose": True})).fit(*problem)
    written = capsys.readouterr()
    assert written.out == ""
    assert "DGP, 2 layers, matern52 █" in written.err
    assert " 43%" in written.err  # 6 of 14: 5 iterations and 2 imputations of two chains
    assert "100%" in written.err
    assert written.err.endswith("\n")


@pytest.mark.parametrize("verbose", [False, None])
def test_progress_is_not_shown_otherwise(problem, capsys, verbose):
    DGP(**(SMALL | {"n_iter": 5, "verbose": verbose})).fit(*problem)
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", "")


def test_the_default_is_to_show_progress_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert wants_progress(None) and wants_progress(True) and not wants_progress(False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert not wants_progress(None) and wants_progress(True)


def test_the_line_tells_share_and_time_left(monkeypatch):
    clock = iter([100.0, 130.0])
    monkeypatch.setattr("deepemu.runtime.progress.time.monotonic", lambda: next(clock))
    progress = Progress("training", 8, False)
    progress.advance(6)
    assert progress.line() == "training " + "█" * 18 + "░" * 6 + "  75%  30 s, 10 s left"


def test_a_log_gets_a_plain_line_every_ten_seconds_and_one_at_the_end(monkeypatch, capsys):
    clock = [100.0]
    monkeypatch.setattr("deepemu.runtime.progress.time.monotonic", lambda: clock[-1])
    with Progress("training", 8, True) as progress:
        for now in (104.0, 110.0, 112.0, 119.0):
            clock.append(now)
            progress.advance(2)
    assert capsys.readouterr().err == (
        "training: 50% done, 10 s, 10 s left\ntraining: ended after 19 s\n"
    )


def test_a_terminal_gets_one_line_that_is_written_over(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("training", 2, True) as progress:
        progress.advance()
        progress.advance()
    written = capsys.readouterr().err
    assert written.count("\n") == 1 and written.count("\r") == 2


def test_a_log_promises_nothing_when_training_breaks_off(capsys):
    with pytest.raises(KeyError), Progress("training", 2, True) as progress:
        progress.advance()
        raise KeyError
    assert capsys.readouterr().err == ""


def test_the_line_ends_when_training_breaks_off(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with pytest.raises(KeyError), Progress("training", 2, True) as progress:
        progress.advance()
        raise KeyError
    assert capsys.readouterr().err.endswith("\n")


@pytest.mark.parametrize(
    ("before", "first", "second"),
    [
        (0, "2% done, 30 s", "31% done, 31 s, 69 s left"),
        (50, "52% done, 30 s", "81% done, 31 s, 19 s left"),
    ],
)
def test_no_time_is_promised_before_there_is_something_to_tell_it_from(
    monkeypatch, before, first, second
):
    """Steps that an earlier process made tell nothing."""
    clock = iter([100.0, 130.0, 131.0])
    monkeypatch.setattr("deepemu.runtime.progress.time.monotonic", lambda: next(clock))
    progress = Progress("training", 100, False)
    progress.resume(before)
    progress.advance(2)
    assert progress.plain_line() == f"training: {first}"
    progress.advance(29)
    assert progress.plain_line() == f"training: {second}"
