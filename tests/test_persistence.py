"""Emulators in files: the same after loading, whole or not at all, and nothing runs."""

import copy
import dataclasses
import functools
import importlib
import inspect
import io
import json
import os
import pickle
import pkgutil
import random
import shutil
import subprocess
import sys
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import deepemu
from deepemu import DGP, GP, ConvergenceWarning, Emulator, FileError, InputError, Layer
from deepemu.core.model.priors import Gamma, Independent
from deepemu.files import archive, codec, persistence
from deepemu.runtime import devices

SMALL = {"n_chains": 4, "n_iter": 4, "width": 1, "verbose": False}
SMOOTH = {"kernel": "squared_exponential"}
WRITTEN = Path(__file__).parent / "data"
LAYERS = [
    Layer(width=2, lengthscale="layer", prior=Independent(Gamma(2.0, 1.0)), **SMOOTH),
    Layer(lengthscale="shared", nugget="estimate", prior="inverse_gamma", **SMOOTH),
]
MAKERS = {
    "gp": GP,
    "dgp": lambda: DGP(**SMALL, **SMOOTH),  # one of the networks of the emulator
    "full_bayes_of_layers": lambda: DGP(
        layers=LAYERS, n_chains=2, n_iter=3, n_imputations=2, verbose=False,
        inference="full_bayes", random_state=np.random.RandomState(3),
    ),
    "emulator": lambda: Emulator(**SMALL),
}  # fmt: skip


def curve(x):
    return np.sin(5 * x[:, 0]) * x[:, 1]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x, at = rng.random((14, 2)), rng.random((9, 2))
    return pd.DataFrame(x, columns=["width", "depth"]), pd.Series(curve(x), name="force"), at


@pytest.fixture(scope="module")
def fit(data):
    """One fit of each kind: a test that changes it copies it first."""

    @functools.cache
    def of_kind(name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return MAKERS[name]().fit(*data[:2])

    return of_kind


@pytest.fixture(scope="module", params=list(MAKERS))
def fitted(request, fit):
    return fit(request.param)


@pytest.fixture(scope="module")
def gp(fit):
    return fit("gp")


@pytest.fixture
def file(gp, tmp_path):
    path = tmp_path / "gp.deepemu"
    deepemu.save(gp, path)
    return path


def frame(at):
    return pd.DataFrame(at, columns=["width", "depth"])


# --- the same again --------------------------------------------------------------------------


def test_what_is_loaded_is_what_was_saved(fitted, data, tmp_path):
    """To the last bit, in all that it does."""
    deepemu.save(fitted, tmp_path / "it.deepemu")
    loaded, at = deepemu.load(tmp_path / "it.deepemu"), frame(data[2])
    assert type(loaded) is type(fitted)
    for mine, theirs in zip(
        loaded.predict(at, return_std=True), fitted.predict(at, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(loaded.sample_y(at, 3), fitted.sample_y(at, 3))
    np.testing.assert_array_equal(loaded.weights_, fitted.weights_)
    assert str(loaded.summary()) == str(fitted.summary())
    assert loaded.input_names == ("width", "depth")
    assert loaded.output_names == ("force",)
    if fitted.posterior_.held_out is not None:
        np.testing.assert_array_equal(loaded.loo(), fitted.loo())
    settings = {k: v for k, v in fitted.get_params().items() if k != "random_state"}
    assert {k: v for k, v in loaded.get_params().items() if k != "random_state"} == settings


def assert_same(mine, theirs, path=""):
    """Values of one type, down to the arrays."""
    assert type(mine) is type(theirs), path
    if dataclasses.is_dataclass(mine):
        names = [each.name for each in dataclasses.fields(mine)]
        mine, theirs = ({n: getattr(of, n) for n in names} for of in (mine, theirs))
    if isinstance(mine, dict):
        assert mine.keys() == theirs.keys(), path
        for key in mine:
            assert_same(mine[key], theirs[key], f"{path}.{key}")
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(theirs), path
        for place, pair in enumerate(zip(mine, theirs, strict=True)):
            assert_same(*pair, f"{path}[{place}]")
    else:
        np.testing.assert_array_equal(mine, theirs, err_msg=path)


def test_nothing_of_the_posterior_is_forgotten(fitted, tmp_path):
    """Every field of every part, so also one that is added later."""
    deepemu.save(fitted, tmp_path / "it.deepemu")
    machine = fitted.posterior_.machine
    assert_same(deepemu.load(tmp_path / "it.deepemu").posterior_.on(machine), fitted.posterior_)


def test_a_loaded_emulator_grows_as_the_original_does(fit, data, tmp_path):
    original, at, new = copy.deepcopy(fit("dgp")), frame(data[2]), data[2][:2]
    deepemu.save(original, tmp_path / "it.deepemu")
    loaded, before = deepemu.load(tmp_path / "it.deepemu"), original.predict(at)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for each in (original, loaded):
            each.update(frame(new), curve(new))
    assert np.all(original.predict(at) != before)
    np.testing.assert_array_equal(loaded.predict(at), original.predict(at))
    np.testing.assert_array_equal(loaded.loo(), original.loo())


def predicted_by_another_process(file, at, **environment):
    program = (
        "import sys, json, deepemu, numpy as np\n"
        "e = deepemu.load(sys.argv[1])\n"
        "import pandas as pd\n"
        "at = pd.DataFrame(json.loads(sys.argv[2]), columns=list(e.input_names))\n"
        "print(json.dumps([part.tolist() for part in e.predict(at, return_std=True)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file), json.dumps(at.tolist())],
        env=os.environ | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_another_process_predicts_the_same(file, gp, data):
    expected = gp.predict(frame(data[2]), return_std=True)
    np.testing.assert_allclose(predicted_by_another_process(file, data[2]), expected, rtol=1e-9)


@pytest.mark.skipif(not devices.has("gpu"), reason="JAX sees no GPU here")
def test_a_file_of_a_gpu_predicts_the_same_without_one(data, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = DGP(**SMALL, device="gpu").fit(*data[:2])
    deepemu.save(fitted, tmp_path / "it.deepemu")
    found = predicted_by_another_process(tmp_path / "it.deepemu", data[2], JAX_PLATFORMS="cpu")
    expected = fitted.set_params(device="cpu").predict(frame(data[2]), return_std=True)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_settings_of_the_machine_stay_there(data, tmp_path):
    deepemu.save(GP(n_jobs=1, device="cpu").fit(*data[:2]), tmp_path / "it.deepemu")
    loaded = deepemu.load(tmp_path / "it.deepemu")
    assert (loaded.device, loaded.n_jobs) == ("auto", -1)


STORED = ("format_1_gp", "format_1_dgp", "format_1_emulator", "format_2_gp", "format_2_dgp")


@pytest.mark.parametrize("stored", STORED)
def test_files_of_earlier_versions_are_read(stored):
    """Written once by the version that made the format, with what it predicted then: standard
    deviations with errors of up to a thousandth of the nugget's share."""
    emulator = deepemu.load(WRITTEN / f"{stored}.deepemu")
    expected = json.loads((WRITTEN / f"format_1_{stored.split('_')[2]}.json").read_text())
    found = emulator.predict(pd.DataFrame(expected["at"]), return_std=True)
    for values, key in zip(found, ("mean", "std"), strict=True):
        rtol = {"mean": 1e-6, "std": 1e-5}[key]
        np.testing.assert_allclose(values, expected[key], rtol=rtol)  # unoptimised programs


@pytest.mark.parametrize("name", ["gp", "dgp", "emulator"])
def test_what_format_1_held_is_saved_in_format_3(name, tmp_path):
    first, again = WRITTEN / f"format_1_{name}.deepemu", tmp_path / "again.deepemu"
    assert archive.read(first)[0]["version"] == 1
    emulator = deepemu.load(first)
    deepemu.save(emulator, again)
    assert archive.read(again)[0]["version"] == 3
    assert_same(deepemu.load(again).posterior_, emulator.posterior_)


def test_held_out_predictions_of_format_2_are_chains_with_one_component():
    """`loo` is what it was; weights and stretch are those of the file."""
    posterior = deepemu.load(WRITTEN / "format_2_dgp.deepemu").posterior_
    header, arrays = archive.read(WRITTEN / "format_2_dgp.deepemu")
    stored = header["emulator"]["dict"]["held_out"]["fields"]
    mean, var = (arrays[stored[name]["array"]] for name in ("mean", "var"))
    units, site = posterior.runs.sites.units, posterior.runs.sites.site_of_row
    found, expected = posterior.held_out, units.shift + units.size * mean
    np.testing.assert_allclose(found.mean, expected[site], rtol=1e-12)
    np.testing.assert_allclose(found.std, (units.size * np.sqrt(var))[site], rtol=1e-12)
    for trained in posterior.structures:
        assert trained.held_out.latents.mean.shape[1] == 1


def test_a_field_with_a_default_may_be_missing(file):
    """As in a file from before the field was added; one without a default may not."""
    header, _ = archive.read(file)
    fields = dict(header["emulator"]["dict"]["report"]["fields"])
    del fields["decisions"]
    rewritten(file, changed(*STATE, "report", "fields", value=fields))
    assert deepemu.load(file).summary().decisions == ()
    del fields["n_rows"]
    rewritten(file, changed(*STATE, "report", "fields", value=fields))
    with pytest.raises(FileError, match="a report has other fields"):
        deepemu.load(file)
    rewritten(file, changed(*STATE, "report", "fields", value=fields | {"n_rows": 3, "x": 1}))
    with pytest.raises(FileError, match="a report has other fields"):
        deepemu.load(file)


# --- names in files --------------------------------------------------------------------------


def classes_of_the_program():
    modules = [each.name for each in pkgutil.walk_packages(deepemu.__path__, "deepemu.")]
    return {
        kind
        for module in modules
        for _, kind in inspect.getmembers(importlib.import_module(module), inspect.isclass)
        if kind.__module__.startswith("deepemu.")
    }


def texts(tree):
    """Every name and word of a header."""
    if isinstance(tree, dict | list):
        for key, each in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from texts(key)
            yield from texts(each)
    elif isinstance(tree, str):
        yield tree


def test_a_file_has_no_name_of_a_class(fitted, tmp_path):
    """But for the kind of the emulator, which the user knows by that name."""
    deepemu.save(fitted, tmp_path / "it.deepemu")
    header, _ = archive.read(tmp_path / "it.deepemu")
    kind = header["emulator"]["dict"].pop("kind")
    assert kind == type(fitted).__name__
    names = {each.__name__ for each in classes_of_the_program()}
    assert {"Network", "LayerParams", "Trace", "Report", "Reference", kind} <= names
    words = set(texts(header))
    assert {"network", "parameters", "trace", "report"} <= words
    assert not words & names


@contextmanager
def renamed(kinds):
    """Classes with other names. (A monkeypatch cannot put the name of a class back.)"""
    before = {kind: (kind.__name__, kind.__qualname__) for kind in kinds}
    try:
        for number, kind in enumerate(before):
            kind.__name__ = kind.__qualname__ = f"Renamed{number}"
        yield
    finally:
        for kind, names in before.items():
            kind.__name__, kind.__qualname__ = names


def test_classes_can_be_renamed_without_breaking_a_file(fitted, data, tmp_path):
    """Files that are written before and after it; those of format 1 as well."""
    at = frame(data[2])
    expected = fitted.predict(at, return_std=True)
    deepemu.save(fitted, tmp_path / "before.deepemu")
    with renamed({kind for _, kind, _ in codec.RECORDS} | set(persistence.KINDS.values())):
        deepemu.save(fitted, tmp_path / "after.deepemu")
        for name in ("before", "after"):
            loaded = deepemu.load(tmp_path / f"{name}.deepemu")
            np.testing.assert_array_equal(loaded.predict(at, return_std=True), expected)
        deepemu.load(WRITTEN / "format_1_gp.deepemu")
    headers = [archive.read(tmp_path / f"{name}.deepemu")[0] for name in ("before", "after")]
    assert headers[0] == headers[1]


@pytest.mark.parametrize(
    ("name", "kind", "listed"), codec.RECORDS, ids=[each[0] for each in codec.RECORDS]
)
def test_the_table_has_every_field_of_a_record(name, kind, listed):
    """A field that is added to a class and not to the table would be lost in files."""
    attributes = [each.partition("=")[2] or each for each in listed.split()]
    assert attributes == [each.name for each in dataclasses.fields(kind)]


def test_no_name_or_class_is_listed_twice():
    names, kinds, _ = zip(*codec.RECORDS, strict=True)
    assert len(set(names)) == len(set(kinds)) == len(codec.RECORDS)


# --- what cannot be saved --------------------------------------------------------------------


def test_what_is_not_fitted_cannot_be_saved(tmp_path):
    with pytest.raises(Exception, match="not fitted"):
        deepemu.save(GP(), tmp_path / "it.deepemu")
    assert not list(tmp_path.iterdir())


def test_a_class_of_the_users_own_cannot_be_saved_and_the_old_file_stays(file, data):
    class Mine(GP):
        pass

    before = file.read_bytes()
    with pytest.raises(
        InputError, match="emulator is a Mine; only GP, DGP, Emulator, .* can be saved"
    ):
        deepemu.save(Mine().fit(*data[:2]), file)
    assert file.read_bytes() == before


def test_objects_of_others_cannot_be_saved_and_the_old_file_stays(file, gp):
    @dataclasses.dataclass(frozen=True)
    class Mine(Gamma):
        pass

    before = file.read_bytes()
    emulator = copy.deepcopy(gp).set_params(prior=Independent(Mine(2.0, 1.0)))
    with pytest.raises(InputError, match="Mine, which cannot be saved"):
        deepemu.save(emulator, file)
    assert file.read_bytes() == before


def test_a_crash_leaves_the_old_file(file, gp, monkeypatch):
    before = file.read_bytes()

    def crash(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="no space left"):
        deepemu.save(gp, file)
    assert file.read_bytes() == before
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_link_keeps_pointing_at_the_file(file, gp, tmp_path):
    link = tmp_path / "link.deepemu"
    link.symlink_to(file)
    deepemu.save(gp, link)
    assert link.is_symlink()
    deepemu.load(link)


# --- files of strangers ----------------------------------------------------------------------


def rewritten(file, change_header=lambda header: header, **members):
    """The file with another header, and some members in the place of its own."""
    with zipfile.ZipFile(file) as old:
        contents = {name: old.read(name) for name in old.namelist()}
    header = change_header(json.loads(contents["header.json"]))
    contents |= {"header.json": json.dumps(header).encode(), **members}
    with zipfile.ZipFile(file, "w") as new:
        for name, content in contents.items():
            new.writestr(name, content)


def changed(*path, value):
    def change(header):
        at = header
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        return header

    return change


def npy(array, **options):
    content = io.BytesIO()
    np.save(content, array, **options)
    return content.getvalue()


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('it ran')",)


def same(header):
    return header


STATE = ("emulator", "dict")
RUNS = ("runs", "dict")
STRUCTURE = ("structures", "list", 0, "dict")
NETWORK = (*STATE, *STRUCTURE, "network")
PICKLE = npy(np.array([Bomb()]), allow_pickle=True)
HOSTILE = {
    "other format": (changed("format", value="a poem"), {}, "is not a deepemu file"),
    "newer": (changed("version", value=4), {}, "has format 4.*reads formats up to 3"),
    "version of text": (changed("version", value="2"), {}, "has format '2'"),
    "version of a list": (changed("version", value=[2]), {}, "has format \\[2\\]"),
    "version of truth": (changed("version", value=True), {}, "has format True"),
    "no state": (changed("emulator", value={}), {}, "damaged"),
    "not an object": (lambda _: [1, 2], {}, "not an object"),
    "unknown class": (changed(*STATE, "kind", value="os.system"), {}, "damaged"),
    "unknown setting": (changed(*STATE, "settings", "dict", "evil", value=1), {}, "evil"),
    "unknown record": (changed(*NETWORK, "record", value="Popen"), {}, "Popen"),
    "other fields": (changed(*NETWORK, "fields", "extra", value=1), {}, "other fields"),
    "unknown kind": (changed(*STATE, "structures", value={"eval": "1"}), {}, "eval"),
    "bare list": (changed(*STATE, "structures", value=[1]), {}, "bare list"),
    "no such array": (changed(*STATE, *RUNS, "x", value={"array": 99}), {}, "no array"),
    "negative array": (changed(*STATE, *RUNS, "x", value={"array": -1}), {}, "no array"),
    "text for an array": (changed(*STATE, *RUNS, "x", value="x"), {}, "damaged"),
    "no structures": (changed(*STATE, "structures", value={"list": []}), {}, "damaged"),
    "pickle inside": (same, {"arrays/0.npy": PICKLE}, "announces"),
    "too many numbers": (same, {"arrays/0.npy": npy(np.zeros(3))[:-8]}, "announces"),
    "other shapes": (same, {"arrays/0.npy": npy(np.zeros((3, 7)))}, "damaged"),
    "no array": (same, {"arrays/0.npy": b"text"}, "damaged"),
    "more members": (same, {"evil.py": b"print(1)"}, "other names"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_sentence(file, name):
    change, members, message = HOSTILE[name]
    rewritten(file, change, **members)
    with pytest.raises(FileError, match=message) as caught:
        deepemu.load(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sources", "message"),
    [([-1, -1], "one of them twice"), ([-5], "not before it"), ([], "other columns")],
    ids=["twice", "too early", "none"],
)
def test_a_network_whose_layers_do_not_fit_is_damage(tmp_path, sources, message):
    file = Path(shutil.copy(WRITTEN / "format_2_dgp.deepemu", tmp_path / "it.deepemu"))
    second = (*NETWORK, "fields", "layers", "tuple", 1, "fields", "sources")
    rewritten(file, changed(*second, value={"tuple": sources}))
    with pytest.raises(FileError, match=message):
        deepemu.load(file)


def test_numbers_that_are_not_finite_are_damage(file):
    with zipfile.ZipFile(file) as archive_:
        header = json.loads(archive_.read("header.json"))
    number = header["emulator"]["dict"]["runs"]["dict"]["span"]["array"]
    rewritten(file, **{f"arrays/{number}.npy": npy(np.array([np.nan, 1.0]))})
    with pytest.raises(FileError, match="span is not"):
        deepemu.load(file)


def changed_array(file, value, *path):
    """The file with the array at a place of its state replaced, or changed by a function."""
    with zipfile.ZipFile(file) as archive_:
        at = json.loads(archive_.read("header.json"))["emulator"]["dict"]
        for step in path:
            at = at[step]
        name = f"arrays/{at['array']}.npy"
        old = np.load(io.BytesIO(archive_.read(name)))
    rewritten(file, **{name: npy(value(old) if callable(value) else value)})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*RUNS, "units", "fields", "size"), np.array([-1.0])),
        ((*RUNS, "span"), np.array([1.0, -1.0])),
        ((*RUNS, "span"), np.array([1.0, 1.0], dtype=">f8")),
        ((*RUNS, "low"), np.zeros(2, dtype=np.longdouble)),
        ((*RUNS, "x"), np.float64(3.0).reshape(())),
        ((*RUNS, "x"), np.zeros((3, 2))),
        ((*RUNS, "y"), np.full((14, 1), np.nan)),
        (("weights",), np.array([2.0])),
        (("weights",), np.array([0.5, 0.5])),
        (("stretch",), np.array([0.0])),
        ((*STRUCTURE, "params", "tuple", 0, "fields", "log_scale"), np.full((1, 1, 1), np.nan)),
        ((*STRUCTURE, "params", "tuple", 0, "fields", "log_scale"), np.zeros((2, 1, 1))),
        ((*STRUCTURE, "params", "tuple", 0, "fields", "log_scale"), np.zeros((1, 2, 1))),
        ((*STRUCTURE, "params", "tuple", 0, "fields", "log_scale"), np.zeros(())),
        ((*STRUCTURE, "start", "tuple", 0, "fields", "log_nugget"), np.full(1, 1e3)),
        ((*STRUCTURE, "trace", "fields", "log_density"), np.zeros((2, 1))),
        ((*STRUCTURE, "params", "tuple", 0, "fields", "log_scale"), lambda old: np.tile(old, 3)),
    ],
)
def test_numbers_that_do_not_fit_are_damage(file, path, value):
    changed_array(file, value, *path)
    with pytest.raises(FileError, match="damaged"):
        deepemu.load(file)


MIXTURE, OF_CHAINS = ("held_out", "fields"), (*STRUCTURE, "held_out", "fields")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*MIXTURE, "weights"), lambda old: 2.0 * old),
        ((*MIXTURE, "latents", "fields", "var"), lambda old: old - 1e3),
        ((*OF_CHAINS, "n_imputations"), lambda old: 1.0 * old),
        ((*OF_CHAINS, "n_imputations"), lambda old: 1 + old),
        ((*OF_CHAINS, "latents", "fields", "mean"), lambda old: old[:, :, 1:]),
    ],
)
def test_held_out_predictions_that_do_not_fit_are_damage(fit, tmp_path, path, value):
    file = tmp_path / "it.deepemu"
    deepemu.save(fit("dgp"), file)
    changed_array(file, value, *path)
    with pytest.raises(FileError, match="held"):
        deepemu.load(file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("report", "fields", "decisions"), None),
        (("report", "fields", "lines", "tuple", 0), 3),
        (("report", "fields", "lines", "tuple", 0, "fields", "label"), 3),
        (("report", "fields", "lines", "tuple", 0, "fields", "crps"), {"float": "nan"}),
        ((*STRUCTURE, "n_together"), 10**30),
        ((*RUNS, "x"), 10**30),
        ((*RUNS, "one_dimensional"), 3),
        ((*RUNS, "input_names", "tuple"), ["a", "a"]),
        ((*RUNS, "input_names", "tuple"), ["a", 5]),
    ],
)
def test_words_and_numbers_in_each_others_places_are_damage(file, path, value):
    rewritten(file, changed(*STATE, *path, value=value))
    with pytest.raises(FileError, match="damaged"):
        deepemu.load(file)


def places(tree, path=()):
    """The way to every plain value of a header."""
    if isinstance(tree, dict | list):
        for key, each in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(each, (*path, key))
    else:
        yield path


def spoilt(array, how):
    changed = array.copy()
    if changed.dtype.kind == "f" and changed.size:
        changed.reshape(-1)[changed.size // 2] = {"huge": 1e300, "nan": np.nan}.get(how, 0.5)
    others = {"cut": lambda: array[1:], "float": lambda: array.astype(float),
              "scalar": lambda: np.float64(3.0)}  # fmt: skip
    return np.ascontiguousarray(others.get(how, lambda: changed)()) if array.ndim else changed


def used(emulator):
    """Everything that a file is read for."""
    x = pd.DataFrame(emulator.training_inputs[:2], columns=emulator.input_names)
    posterior = emulator.posterior_
    checks = [posterior.leave_one_out(), posterior.held_out or posterior.leave_one_out()]
    str(emulator.summary())
    assert all(isinstance(each, str) for each in posterior.caveats)
    moments = [each for of in checks for each in (of.mean, of.var)]
    return [*emulator.predict(x, return_std=True), *moments, emulator.sample_y(x)]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_one_change_anywhere_is_refused_or_does_no_harm(tmp_path, seed, version):
    """Numbers of another kind, size or shape, and other values in the header."""
    source = WRITTEN / f"format_{min(version, 2)}_dgp.deepemu"
    if version == 3:
        written = deepemu.load(source)
        source = tmp_path / "format_3.deepemu"
        deepemu.save(written, source)
    with zipfile.ZipFile(source) as old:
        header = json.loads(old.read("header.json"))
        arrays = {name: old.read(name) for name in old.namelist() if name.endswith(".npy")}
    draw, every = random.Random(seed), list(places(header["emulator"]))
    for _ in range(25):
        file = Path(shutil.copy(source, tmp_path / "it.deepemu"))
        if draw.random() < 0.5:
            name = draw.choice(sorted(arrays))
            how = draw.choice(["cut", "float", "huge", "nan", "half", "scalar"])
            content = spoilt(np.load(io.BytesIO(arrays[name])), how)
            rewritten(file, **{name: npy(content)})
        else:
            name, how = draw.choice(every), draw.choice([None, "x", -1, 1e300, True, []])
            rewritten(file, changed("emulator", *name, value=how))
        try:
            emulator = deepemu.load(file)
        except FileError:
            continue
        assert all(np.all(np.isfinite(each)) for each in used(emulator)), (name, how)


def test_a_machine_without_devices_is_no_damage(file, monkeypatch):
    monkeypatch.setattr(devices, "has", lambda platform: False)
    with pytest.raises(InputError, match="neither a CPU nor a GPU here; add cpu to JAX_PLATFORMS"):
        deepemu.load(file)


def test_settings_of_another_machine_are_not_taken_over(file):
    rewritten(file, changed(*STATE, "settings", "dict", "device", value="gpu"))
    assert deepemu.load(file).device == "auto"


@pytest.mark.parametrize("header", [b"(" * 5000, b"-" * 9000 + b"1", b"{[]: 1}", b"{'descr': 1}"])
def test_headers_of_arrays_cannot_do_harm(file, header):
    length = len(header).to_bytes(2, "little")
    rewritten(file, **{"arrays/0.npy": b"\x93NUMPY\x01\x00" + length + header})
    with pytest.raises(FileError, match="damaged"):
        deepemu.load(file)


def test_bytes_changed_at_random_never_raise_anything_else(file):
    """Flags and versions inside the archive among them."""
    whole, rng, n_refused = file.read_bytes(), np.random.default_rng(1), 0
    for _ in range(300):
        changed_bytes = bytearray(whole)
        for place in rng.integers(0, len(whole), 3):
            changed_bytes[place] = rng.integers(256)
        file.write_bytes(changed_bytes)
        try:
            archive.read(file)
        except FileError:
            n_refused += 1
    assert n_refused > 250


def test_what_unpacks_to_more_than_the_file_is_refused(file):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("header.json", b" " * 10_000_000)
    with pytest.raises(FileError, match="larger than the file"):
        deepemu.load(file)


def test_headers_without_end_are_refused(file):
    with zipfile.ZipFile(file, "w") as deep:
        deep.writestr("header.json", '{"a":' * 100_000)
    with pytest.raises(FileError, match="damaged"):
        deepemu.load(file)


@pytest.mark.parametrize(
    "content", [b"", b"x,y\n1,2\n", pickle.dumps({"a": 1}), b"PK\x03\x04 and so on"]
)
def test_other_files_are_no_emulators(file, content):  # fmt: skip
    file.write_bytes(content)
    with pytest.raises(FileError, match="is not an emulator, or is damaged"):
        deepemu.load(file)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.99])
def test_a_file_that_is_cut_short_is_refused(file, share):
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(FileError, match="damaged or cut short"):
        deepemu.load(file)


def test_a_flipped_bit_is_found_or_harmless(file, gp, data):
    whole, at = file.read_bytes(), frame(data[2])
    expected, n_found = gp.predict(at, return_std=True), 0
    for place in np.random.default_rng(0).integers(0, len(whole), 60):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        file.write_bytes(flipped)
        try:
            found = deepemu.load(file).predict(at, return_std=True)
        except FileError:
            n_found += 1
        else:
            np.testing.assert_array_equal(found, expected)
    assert n_found > 40


def test_a_file_that_is_not_there_or_a_folder_is_an_oserror(tmp_path, gp):
    with pytest.raises(FileNotFoundError):
        deepemu.load(tmp_path / "none.deepemu")
    with pytest.raises(IsADirectoryError):
        deepemu.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder/it.deepemu"):
        deepemu.save(gp, tmp_path / "no folder" / "it.deepemu")


# --- records ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -1.5, float("inf"), "text", (1, (2.0, None)), [1, [2]], {"a": (1,)},
        Gamma(1.0, 2.0),
    ],
)  # fmt: skip
def test_plain_values_come_back_as_they_were(value):
    arrays = []
    tree = json.loads(json.dumps(codec.encode(value, arrays)))
    again = codec.decode(tree, arrays)
    assert again == value and type(again) is type(value)


def test_nan_comes_back():
    assert np.isnan(codec.decode(codec.encode(float("nan"), []), []))


@pytest.mark.parametrize(
    "array",
    [
        np.float64(3.0).reshape(()),
        np.arange(6).reshape(2, 3).T,
        np.zeros((0, 2)),
        np.array([True, False]),
    ],
)
def test_arrays_keep_shape_and_type(tmp_path, array):  # fmt: skip
    archive.write(tmp_path / "it", {}, [array])
    _, (again,) = archive.read(tmp_path / "it")
    np.testing.assert_array_equal(again, array)
    assert (again.shape, again.dtype) == (array.shape, array.dtype)
