"""Messages that know their settings, and warnings that point at the user's line."""

import ast
import inspect
import os
import pickle
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest

import deepemu
from deepemu import DGP, GP, ConvergenceWarning, DataWarning, Emulator, InterruptedFitWarning
from deepemu.cli.settings import ARGUMENTS, in_arguments
from deepemu.errors import DeepemuWarning, Message, Setting, warn
from deepemu.files import codec
from deepemu.runtime.progress import Progress

SOURCES = sorted(Path(deepemu.__file__).parent.rglob("*.py"))
SMALL = {"n_chains": 2, "n_iter": 4, "n_sweeps": 1, "n_imputations": 2, "verbose": False}
X = np.random.default_rng(0).random((12, 2))
Y = np.sin(5 * X[:, 0]) + X[:, 1]
ADVICE = Message(
    "uses their mean; fit with ", Setting("nugget", "estimate"), ", or train more chains (",
    Setting("n_chains"), ")", Message(", or pass ", Setting("stacking", False)), ".",
)  # fmt: skip


# --- messages --------------------------------------------------------------------------------


def test_a_message_is_the_text_of_the_library():
    assert ADVICE == (
        "uses their mean; fit with nugget='estimate', or train more chains (n_chains), "
        "or pass stacking=False."
    )
    assert isinstance(ADVICE, str)


def test_a_front_end_writes_settings_its_own_way():
    words = {"nugget": "noise!", "n_chains": "chains!", "stacking": "votes!"}
    found = ADVICE.phrased(lambda setting: f"{words[setting.name]}{setting.value}")
    assert found == (
        "uses their mean; fit with noise!estimate, or train more chains (chains!None), "
        "or pass votes!False."
    )


def test_a_clause_is_left_out_where_its_setting_cannot_be_written():
    assert in_arguments(ADVICE) == (
        "uses their mean; fit with --noise, or train more chains (--chains)."
    )


@pytest.mark.parametrize(
    ("setting", "written"),
    [
        (Setting("n_chains", 4), "--chains 4"),
        (Setting("device", "cpu"), "--device cpu"),
        (Setting("nugget", "estimate"), "--noise"),
        (Setting("nugget", 1e-5), "nugget=1e-05"),  # there is no argument for a number
        (Setting("Emulator"), "--model auto"),
        (Setting("width of layer 1"), "width of layer 1"),
    ],
)
def test_settings_are_arguments_of_the_command(setting, written):
    assert in_arguments(Message("use ", setting)) == f"use {written}"


def test_braces_and_percent_signs_are_text():
    assert Message("{0} {x} 95 % %s ", Setting("n_chains")).phrased(lambda _: "{}") == (
        "{0} {x} 95 % %s {}"
    )


def test_a_message_keeps_its_settings_in_a_pickle_and_in_a_file():
    for found in (
        pickle.loads(pickle.dumps(ADVICE)),
        pickle.loads(pickle.dumps(deepemu.InputError(ADVICE))).args[0],
        codec.decode(codec.encode((ADVICE,), []), [])[0],
    ):
        assert found == ADVICE and in_arguments(found) == in_arguments(ADVICE)


def settings_in_sources():
    """Name of each ``Setting("name", ...)`` that a source writes out."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_setting = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Setting"
            if is_setting and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value


def test_messages_name_what_there_is():
    kinds = (GP, DGP, Emulator)
    known = {kind.__name__ for kind in kinds}
    known |= {name for kind in kinds for name in inspect.signature(kind).parameters}
    named = set(settings_in_sources())
    assert named - known == {"loo(conditional=True)"}
    assert {"nugget", "n_chains", "stacking"} <= named
    assert set(ARGUMENTS) <= known


# --- warnings --------------------------------------------------------------------------------


def test_every_warning_of_the_package_goes_through_one_function():
    calls = [
        path.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "warn"
        if isinstance(node.value, ast.Name) and node.value.id == "warnings"
    ]
    assert calls == ["errors.py"]


def assert_names_its_line(call, category):
    """Of a function written in one line, which is what the warnings must point at."""
    with pytest.warns(category) as caught:
        call()
    expected = (__file__, call.__code__.co_firstlineno)
    assert {(each.filename, each.lineno) for each in caught} == {expected}


def test_a_warning_names_the_line_that_called_the_package():
    assert_names_its_line(lambda: warn("look here", DeepemuWarning), DeepemuWarning)


@pytest.mark.parametrize("kind", [GP, lambda: DGP(**SMALL, stacking=False)], ids=["GP", "DGP"])
def test_warnings_about_data_name_the_line_of_fit(kind):
    emulator = kind().set_params(nugget=1e-6)
    assert_names_its_line(lambda: emulator.fit(X, np.full(12, 3.0)), DataWarning)
    x, y = np.vstack([X, X[:1]]), np.append(Y, 9.0)
    assert_names_its_line(lambda: emulator.fit(x, y), DataWarning)


@pytest.mark.parametrize("n_chains", [2, 4])
def test_warnings_about_convergence_name_the_line_of_fit(n_chains):
    """Of the settings, and of what came of them: nine runs of two inputs are too few."""
    emulator = DGP(**(SMALL | {"n_chains": n_chains}))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert_names_its_line(lambda: emulator.fit(X[:9], Y[:9]), ConvergenceWarning)


def test_warnings_name_the_line_of_update():
    emulator = GP(nugget=1e-6).fit(X, Y)
    assert_names_its_line(lambda: emulator.update(X[:1], [9.0]), DataWarning)


@pytest.mark.parametrize("method", ["fit", "update"])
def test_an_interruption_names_the_line_of_the_call(monkeypatch, method):
    emulator = DGP(**(SMALL | {"n_iter": 20}), stacking=False).fit(X, Y)
    calls = {"fit": lambda: emulator.fit(X, Y), "update": lambda: emulator.update(X + 2, Y)}
    pressed = iter([True])

    def advance_and_press_once(self, amount=1):
        if next(pressed, False):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Progress, "advance", advance_and_press_once)
    assert_names_its_line(calls[method], InterruptedFitWarning)
