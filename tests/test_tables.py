"""Tables that are read, predicted and written in parts: as in one part, or not at all."""

import datetime
import json
import os
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import curve

import deepemu
from deepemu import GP
from deepemu.cli import commands, main, outputs, tables
from deepemu.errors import FileError

ROWS, PART = 10, 3
HEAD = "name,depth,width\n"
LINES = [f"row {k},{0.1 * k:.1f},{1 - 0.1 * k:.1f}\n" for k in range(ROWS)]
MANY = HEAD + "".join(LINES)
PREDICT = ["predict", "it.deepemu"]


@pytest.fixture(scope="module")
def emulator_file(tmp_path_factory):
    x = np.random.default_rng(0).random((12, 2))
    emulator = GP().fit(x, curve(x)).name_columns(["width", "depth"], ["force"])
    file = tmp_path_factory.mktemp("fitted") / "it.deepemu"
    deepemu.save(emulator, file)
    return file


@pytest.fixture
def folder(tmp_path, monkeypatch, emulator_file):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(main, "use_compilation_cache", lambda: None)
    (tmp_path / "it.deepemu").write_bytes(emulator_file.read_bytes())
    (tmp_path / "new.csv").write_text(MANY)
    (tmp_path / "new.tsv").write_text(MANY.replace(",", "\t"))
    pd.read_csv("new.csv").to_parquet("new.parquet", row_group_size=4)
    return tmp_path


@pytest.fixture
def in_parts(monkeypatch):
    """Parts of three rows from here on; the numbers of rows that are predicted at once."""

    def begin():
        predict, sizes = commands._prediction_columns, []

        def noted(emulator, x, level):
            sizes.append(len(x))
            return predict(emulator, x, level)

        monkeypatch.setattr(commands, "_prediction_columns", noted)
        monkeypatch.setattr(tables, "ROWS_OF_PART", PART)
        return sizes

    return begin


def contents(folder):
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


@pytest.mark.parametrize("new", ["new.csv", "new.tsv", "new.parquet"])
@pytest.mark.parametrize("out", ["out.csv", "out.tsv", "out.parquet"])
def test_parts_make_the_same_table(folder, in_parts, new, out):
    assert main.main([*PREDICT, new, "-o", f"whole_{out}"]) == 0
    sizes = in_parts()
    assert main.main([*PREDICT, new, "-o", out]) == 0
    assert sizes == [3, 3, 3, 1]
    if out == "out.parquet":
        pd.testing.assert_frame_equal(pd.read_parquet(out), pd.read_parquet(f"whole_{out}"))
        assert pq.ParquetFile(out).metadata.num_row_groups == len(sizes)
    else:
        assert (folder / out).read_bytes() == (folder / f"whole_{out}").read_bytes()


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_parts_on_standard_output(folder, in_parts, capsys, more):
    assert main.main([*PREDICT, "new.csv", "-q", *more]) == 0
    whole = capsys.readouterr().out
    assert len(in_parts()) == 0
    assert main.main([*PREDICT, "new.csv", "-q", *more]) == 0
    assert capsys.readouterr().out == whole
    if more:
        assert json.loads(whole)["predictions"]["depth"] == [round(0.1 * k, 1) for k in range(ROWS)]
    else:
        assert len(whole.splitlines()) == ROWS + 1


def test_parts_have_fewer_rows_where_columns_are_many(folder, monkeypatch):
    monkeypatch.setattr(tables, "CELLS_OF_PART", 6)
    for name in ("new.csv", "new.parquet"):
        with tables.opened(name) as new:
            assert [len(part) for part in new.parts()] == [2] * (ROWS // 2)
    monkeypatch.setattr(tables, "CELLS_OF_PART", 1)
    with tables.opened("new.csv") as new:
        assert [len(part) for part in new.parts()] == [1] * ROWS


def test_memory_holds_one_part(folder, monkeypatch):
    """Only so much of a file has been read as its parts so far take."""
    monkeypatch.setattr(tables, "ROWS_OF_PART", 100)
    (folder / "long.csv").write_text(HEAD + "".join(LINES * 10_000))
    size = os.path.getsize("long.csv")
    with open("long.csv", "rb") as file:
        parts = tables._csv_parts(folder / "long.csv", file)
        assert len(next(parts)) == 100 and file.tell() < size / 10
        parts.close()


def test_a_column_is_numbers_if_all_parts_are(folder, in_parts):
    lines = [line.replace("row ", "") for line in LINES]
    (folder / "all.csv").write_text(HEAD + "".join(lines))
    (folder / "most.csv").write_text(HEAD + "".join([*lines[:-1], "007,0.5,0.5\n"]))
    in_parts()
    for name, kind in (("all", pa.float64()), ("most", pa.string())):
        assert main.main([*PREDICT, f"{name}.csv", "-o", f"{name}.parquet"]) == 0
        assert pq.read_schema(f"{name}.parquet").field("name").type == kind
    assert pd.read_parquet("most.parquet")["name"].tolist() == [*map(str, range(9)), "007"]


def test_columns_of_parquet_keep_their_types(folder, in_parts):
    given = pa.table({
        "width": pa.array([0.1, 0.2, 0.3, 0.4], pa.float32()), "depth": [0, 1, 0, 1],
        "large": pa.array([2**64 - 1, 1, 2, 3], pa.uint64()),
        "code": ["1", "2", "3", "4"], "gap": pa.array([None, None, None, 1], pa.int8()),
        "when": pa.array([1, 2, 3, 4], pa.timestamp("ns")),
        "kind": pa.array(["a", "b", "b", "c"]).dictionary_encode(),
    })  # fmt: skip
    pq.write_table(given, "typed.parquet")
    in_parts()
    assert main.main([*PREDICT, "typed.parquet", "-o", "out.parquet"]) == 0
    found = pq.read_table("out.parquet")
    assert found.select(given.column_names).to_pydict() == given.to_pydict()
    assert found.schema.types[:-4] == given.schema.types
    assert found.column_names[-4:] == ["force_mean", "force_std", "force_lower", "force_upper"]


def test_dates_that_python_does_not_have_are_text(folder, in_parts):
    """The same in each part, whatever else is in it."""
    far = 10**15  # in the year 33658
    when = pa.array([0, far, 0, 0, far], pa.timestamp("ms"))
    inputs = dict.fromkeys(("width", "depth"), [0.5] * 5)
    pq.write_table(pa.table(inputs | {"when": when}), "dates.parquet")
    in_parts()
    (first, second) = (part.columns["when"] for part in _parts_of("dates.parquet"))
    epoch = datetime.datetime(1970, 1, 1)
    assert first[::2] == [epoch, epoch] and second[0] == epoch
    assert isinstance(first[1], str) and first[1] == second[1]


def _parts_of(name):
    with tables.opened(name) as table:
        return list(table.parts())


# --- what cannot be used ---------------------------------------------------------------------


LATE = {
    "text": (MANY + "\n\nlast,0.5,high\n", "new.csv, line 14: column 'width' has 'high'"),
    "after a cell of two lines": (
        MANY + '"two\nlines",0.5,0.5\nlast,,0.5\n', "new.csv, line 14: column 'depth' is empty",
    ),
    "a row too short": (MANY + "last,0.5\n", "new.csv, line 12: 2 cell"),
    "an open quote": (MANY + '"last,0.5,0.5\n', "new.csv is not a CSV file"),
    "zero bytes": (MANY + "la\0st,0.5,0.5\n", "it has zero bytes"),
    "latin-1": (MANY.encode() + "größe,0.5,0.5\n".encode("latin-1"), "not a CSV file in UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
def test_a_mistake_in_a_later_part_is_found_before_any_prediction(folder, in_parts, capsys, name):
    content, message = LATE[name]
    (folder / "new.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    before, sizes = contents(folder), in_parts()
    for where in (["-o", "out.csv"], []):
        assert main.main([*PREDICT, "new.csv", *where]) == 1
        told = capsys.readouterr()
        assert message in told.err and len(told.err.splitlines()) == 1 and told.out == ""
    assert contents(folder) == before and sizes == []


def test_a_gap_in_a_later_row_group(folder, in_parts, capsys):
    frame = pd.read_parquet("new.parquet")
    frame.loc[8, "depth"] = None
    frame.to_parquet("new.parquet", row_group_size=4)
    before, sizes = contents(folder), in_parts()
    assert main.main([*PREDICT, "new.parquet", "-o", "out.parquet"]) == 1
    assert "new.parquet, row 9: column 'depth' " in capsys.readouterr().err
    assert contents(folder) == before and sizes == []


@pytest.mark.parametrize("out", ["out.csv", "out.parquet"])
def test_a_ctrl_c_between_parts_leaves_no_file(folder, in_parts, capsys, monkeypatch, out):
    before, sizes = contents(folder), in_parts()
    predict = commands._prediction_columns

    def interrupted(*given):
        if len(sizes) == 2:
            raise KeyboardInterrupt
        return predict(*given)

    monkeypatch.setattr(commands, "_prediction_columns", interrupted)
    assert main.main([*PREDICT, "new.csv", "-o", out]) == 130
    assert "interrupted; nothing was written" in capsys.readouterr().err
    assert contents(folder) == before and sizes == [3, 3]


# --- on the way ------------------------------------------------------------------------------


def test_long_tables_show_progress(folder, in_parts, capsys):
    assert main.main([*PREDICT, "new.csv", "-o", "out.csv"]) == 0
    assert "predicting" not in capsys.readouterr().err
    in_parts()
    assert main.main([*PREDICT, "new.csv", "-o", "out.csv"]) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("predicting: ended after")
    assert main.main([*PREDICT, "new.csv", "-o", "out.csv", "--json"]) == 0
    assert "predicting" not in capsys.readouterr().err


def test_rows_outside_the_runs_are_counted_over_all_parts(folder, in_parts, capsys):
    (folder / "far.csv").write_text(MANY + "far,0.5,9\nfarther,9,0.5\n")
    in_parts()
    assert main.main([*PREDICT, "far.csv", "-q"]) == 0
    told = capsys.readouterr().err
    low, high = deepemu.load("it.deepemu").posterior_.runs.input_range
    x = np.array([[1 - 0.1 * k, 0.1 * k] for k in range(ROWS)] + [[9, 0.5], [0.5, 9]]).round(1)
    n_outside = np.any((x < low) | (x > high), axis=1).sum()
    assert f"{n_outside} of 12 rows lie outside the range of the runs in width, depth" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("name", ["new.csv", "new.parquet"])
def test_a_pipe_is_a_table(folder, in_parts, name):
    assert main.main([*PREDICT, name, "-o", "whole.csv"]) == 0
    content, pipe = (folder / name).read_bytes(), folder / f"pipe.{name}"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    in_parts()
    assert main.main([*PREDICT, pipe.name, "-o", "out.csv"]) == 0
    writer.join()
    assert (folder / "out.csv").read_bytes() == (folder / "whole.csv").read_bytes()


def test_read_joins_the_parts(folder, in_parts):
    in_parts()
    for name, first in (("new.csv", 2), ("new.parquet", 1)):
        table = tables.read(name)
        assert len(table) == ROWS and list(table.lines) == list(range(first, first + ROWS))
        expected = pd.read_csv("new.csv")[["width", "depth"]]
        np.testing.assert_array_equal(table.numbers(["width", "depth"]), expected)


def test_a_column_that_is_not_there(folder):
    with tables.opened("new.parquet") as new, pytest.raises(FileError, match="no column 'height'"):
        next(new.parts()).numbers(["height"])


def test_written_numbers_are_numbers_in_parquet(tmp_path):
    outputs.write(tmp_path / "it.parquet", {"v": [0.1, 2.0], "id": ["01", "2"], "n": ["1", " 2e3"]})
    found = pq.read_table(tmp_path / "it.parquet").to_pydict()
    assert found == {"v": [0.1, 2.0], "id": ["01", "2"], "n": [1.0, 2000.0]}
