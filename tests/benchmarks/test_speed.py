"""The speed benchmarks on made-up results: plans, tables, exponents and bars; nothing is timed."""

import json
import subprocess
import sys

import _report
import _speed_deepemu
import _speed_jobs
import _timing
import gpu
import numpy as np
import pytest
import speed

OURS = ["--sides", "deepemu"]


def record(side, result, repeat=0, **job):
    return {"side": side, "job": job, "repeat": repeat, "result": result}


def train_records(n, ours, theirs, sweep="layer", **job):
    job = {"kind": "train", "kernel": "squared_exponential", "depth": 2, "n": n, **job}
    pairs = (("deepemu", ours), ("dgpsi", theirs))
    return [record(side, {"seconds": s, "peak_mb": 300.0}, sweep=sweep, **job) for side, s in pairs]


def predict_record(side, seconds, n_test, n=1000, peak=700.0):
    job = {"kind": "predict", "kernel": "squared_exponential", "depth": 2, "n": n}
    return record(side, {"seconds": seconds, "predict_peak_mb": peak}, n_test=n_test, **job)


def accuracy_record(side, seed, result):
    return record(side, result, kind="accuracy", problem="vega", seed=seed, efforts=[{}])


def efforts(*tried):
    names = ("n_chains", "n_iter", "nrmsep", "seconds")
    return {"compile_s": 5.0, "efforts": [dict(zip(names, row, strict=True)) for row in tried]}


def bar(bars, measure):
    (found,) = (each for each in bars if each.measure == measure)
    return found


# --- arguments and plans -------------------------------------------------------------------------


def test_dgpsi_needs_an_interpreter(monkeypatch, capsys):
    monkeypatch.delenv("DGPSI_PYTHON", raising=False)
    with pytest.raises(SystemExit):
        speed.parse_arguments([])
    assert "DGPSI_PYTHON" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        speed.parse_arguments(["--dgpsi-python", "no-such-interpreter"])
    assert "no-such-interpreter" in capsys.readouterr().err
    assert speed.parse_arguments(OURS).sides == ["deepemu"]


def test_resume_needs_a_file(capsys):
    with pytest.raises(SystemExit):
        speed.parse_arguments([*OURS, "--resume"])
    assert "--json" in capsys.readouterr().err


def test_sides_take_turns():
    arguments = ["--dgpsi-python", sys.executable, "--sections", "train", "--repeats", "2"]
    args = speed.parse_arguments([*arguments, "--sizes", "10", "--depths", "2", "--sweeps", "node"])
    runs = list(speed.planned(args))
    assert [(side, repeat) for side, _, repeat in runs] == [
        ("deepemu", 0), ("dgpsi", 0), ("deepemu", 1), ("dgpsi", 1),
    ]  # fmt: skip
    job = runs[0][1]
    assert all(other == job for _, other, _ in runs)
    assert (job["lengthscale"], job["n_sweeps"]) == ("shared", 11)
    assert (job["settle"], job["n_iter"]) == speed.EFFORTS[10]


def test_all_sizes_depths_and_sweeps_are_planned():
    args = speed.parse_arguments([*OURS, "--sections", "train", "--repeats", "1"])
    jobs = [job for _, job, _ in speed.planned(args)]
    shapes = {(job["n"], job["depth"], job["sweep"]) for job in jobs}
    assert len(jobs) == len(shapes) == 4 * 2 * 2


def test_dgpsi_predicts_no_more_than_it_can():
    args = speed.parse_arguments(["--dgpsi-python", sys.executable, "--depths", "2"])
    sides = {(m.job["n"], m.job["n_test"]): m.sides for m in speed.plan_predict(args)}
    assert sides[100, 10_000] == sides[1000, 20] == speed.SIDES
    assert sides[1000, 500] == speed.OURS


@pytest.mark.parametrize(("n", "expected"), [(5, "a"), (10, "a"), (11, "b"), (2000, "b")])
def test_entry_for_a_size(n, expected):
    assert speed.up_to({10: "a", 100: "b"}, n) == expected


def test_one_thread_and_a_cache_only_where_one_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    without, given = speed.one_thread_environment(), speed.one_thread_environment(tmp_path)
    assert {without[name] for name in speed.THREAD_VARIABLES} == {"1"}
    assert "JAX_COMPILATION_CACHE_DIR" not in without
    assert without["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert given["JAX_COMPILATION_CACHE_DIR"].startswith(str(tmp_path))
    assert given["JAX_ENABLE_COMPILATION_CACHE"] == "true"


# --- running -------------------------------------------------------------------------------------


@pytest.fixture
def counted_measure(monkeypatch):
    """A stand-in for the child processes that fails on its second call."""
    calls = []

    def measure(side, job, _):
        calls.append(job["n"])
        return {"failed": "exit status 1"} if len(calls) == 2 else {"seconds": 1.0}

    monkeypatch.setattr(speed, "measure", measure)
    return calls


def test_resume_repeats_only_what_failed(tmp_path, counted_measure, capsys):
    arguments = [*OURS, "--sections", "train", "--sizes", "10", "20", "30", "--depths", "2"]
    arguments += ["--sweeps", "layer", "--repeats", "1", "--json", str(tmp_path / "r.json")]
    speed.measure_all(speed.parse_arguments(arguments), {})
    assert counted_measure == [10, 20, 30]
    stored = json.loads((tmp_path / "r.json").read_text())
    assert len(stored["records"]) == 3
    assert {each["met"] for each in stored["bars"]} == {None}
    records = speed.measure_all(speed.parse_arguments([*arguments, "--resume"]), {})
    assert counted_measure == [10, 20, 30, 20]
    assert [r["result"] for r in records] == [{"seconds": 1.0}] * 3


def test_a_file_is_not_overwritten_and_trials_stay_apart(tmp_path, counted_measure, capsys):
    arguments = [*OURS, "--sections", "floor", "--repeats", "1", "--json", str(tmp_path / "r.json")]
    trial = ["--effort", "1", "1"]
    speed.measure_all(speed.parse_arguments([*arguments, *trial]), {})
    stored = json.loads((tmp_path / "r.json").read_text())
    assert stored["trial"] is True
    assert "bars" not in stored
    with pytest.raises(SystemExit, match="--resume"):
        speed.measure_all(speed.parse_arguments([*arguments, *trial]), {})
    with pytest.raises(SystemExit, match="another file"):
        speed.measure_all(speed.parse_arguments([*arguments, "--resume"]), {})
    assert json.loads((tmp_path / "r.json").read_text()) == stored


def test_a_child_answers_and_a_failing_one_is_said_to():
    environment = speed.one_thread_environment()
    command = speed.child_command("deepemu", {"kind": "versions"}, None)
    answer = speed.run_child(command, environment)
    assert answer["numpy"] == np.__version__
    assert answer["peak_mb"] > 5
    assert speed.run_child([sys.executable, "-c", "raise SystemExit(3)"], environment) == {
        "failed": "exit status 3"
    }


def test_deepemu_trains_a_tiny_job():
    job = {"n": 10, "settle": 1, "n_iter": 2, **speed.structure("squared_exponential", 2, "node")}
    result = _speed_deepemu.timed_training({**job, "n_sweeps": 2})
    assert result["evaluations"] >= 2 * 3  # an update of each of three nodes in each sweep
    assert min(result["short_s"], result["long_s"]) > 0


def test_peak_memory_of_a_call():
    block, peak = _timing.with_peak_mb(lambda: np.ones(40_000_000))
    assert peak > block.nbytes / 1e6


def test_data_are_the_same_for_both_sides():
    x, y = _speed_jobs.design(30)
    np.testing.assert_array_equal(x, _speed_jobs.design(30)[0])
    assert x.shape == (30, 3)
    assert abs(y.mean()) < 1e-12
    assert abs(y.std() - 1) < 1e-12


# --- counting ------------------------------------------------------------------------------------


def test_factorisations_of_two_layers():
    # Ten evaluations of one output node, two prior draws for each of three nodes, and twice two
    # in the M-step for each of four.
    assert _speed_deepemu.factorisations(10, 2, 3) == 10 + 2 * 3 + 2 * 2 * 4
    assert _speed_deepemu.factorisations(10, 1, 3, n_outputs=2) == 20 + 3 + 2 * 5


def test_lapack_factorises_the_kernel_matrix():
    matrix = _speed_deepemu.kernel_matrix(20)
    assert matrix.flags.f_contiguous
    np.linalg.cholesky(matrix)
    assert _speed_deepemu.lapack_seconds(20, times=2) > 0


def test_exponent_is_the_slope_from_100_on():
    seconds = {n: 1e-6 * n**2.5 for n in (100, 300, 1000)} | {10: 7.0, 500: None}
    assert speed.exponent(seconds) == pytest.approx(2.5)
    assert speed.exponent({10: 1.0, 100: 2.0}) is None


# --- tables and bars -----------------------------------------------------------------------------


def test_training_table_and_its_worst_ratio():
    records = train_records(10, 0.001, 0.02) + train_records(10, 0.002, 0.02, sweep="node")
    records.append({**records[0], "repeat": 1, "result": {"seconds": 0.0008, "peak_mb": 310.0}})
    rows = speed.train_table(records).rows
    assert [row[3:] for row in rows] == [
        ["10", "0.0008", "0.02", "25.0x", "310", "300"],
        ["10", "0.002", "0.02", "10.0x", "300", "300"],
    ]
    found = bar(speed.bars(records), "SEM iterations per second, n = 10")
    assert found.value == pytest.approx(10)
    assert found.met is False
    assert bar(speed.bars(records[:2]), "SEM iterations per second, n = 10").met is True


def test_the_difference_is_that_of_the_best_fits():
    """Not the least difference, which a disturbed shorter fit would win."""
    job = {"kind": "train", "n_iter": 10}
    pairs = ((1.0, 3.0), (2.5, 3.2))
    records = [
        record("deepemu", {"short_s": short, "long_s": long}, repeat, **job)
        for repeat, (short, long) in enumerate(pairs)
    ]
    assert speed.iteration_seconds(records, "deepemu", kind="train") == pytest.approx(0.2)
    noise = [record("deepemu", {"short_s": 2.0, "long_s": 1.0}, **job)]
    assert speed.iteration_seconds(noise, "deepemu", kind="train") is None


def test_another_kernel_does_not_count_for_the_bar():
    records = train_records(100, 1.0, 2.0, kernel="matern52")
    assert speed.train_ratio(records, 100) is None
    assert speed.train_table(records).rows[0][-3] == "2.0x"


def test_growth_table():
    records = [r for n in (100, 1000) for r in train_records(n, n**2.0, n**3.0)]
    assert speed.growth_table(records).rows == [
        ["squared_exponential", "2", "layer", "2.00", "3.00"]
    ]


def test_prediction_is_compared_by_the_point():
    records = [
        predict_record("deepemu", 0.5, 20),
        predict_record("dgpsi", 20.0, 20, peak=8000.0),
        predict_record("deepemu", 5.0, 500, peak=900.0),
    ]
    rows = speed.predict_table(records).rows
    assert [row[3:] for row in rows] == [
        ["20", "40", "1", "40.0x", "700", "8000"],
        ["500", "100", "1*", "100.0x", "900", "-"],
    ]
    found = speed.bars(records)
    assert bar(found, "prediction, n = 1000").value == pytest.approx(100)
    assert bar(found, "memory while predicting, n = 1000").value == pytest.approx(0.9)
    assert bar(found, "prediction, n = 100").met is None


def test_time_to_accuracy_takes_the_cheapest_effort_that_reaches_it():
    records = [
        accuracy_record("dgpsi", seed, {"nrmsep": 0.03, "seconds": s})
        for seed, s in enumerate((50.0, 60.0, 40.0))
    ] + [
        accuracy_record(
            "deepemu", seed, efforts((2, 10, 0.05, 1.0), (2, 20, last, 2.0), (8, 20, 0.02, 6.0))
        )
        for seed, last in enumerate((0.03, 0.029, 0.04))
    ]
    assert speed.reached(records, "vega") == ("2 x 20", 0.03, 2.0, 5.0)
    assert speed.accuracy_ratio(records, "vega") == pytest.approx(25)
    assert speed.accuracy_table(records).rows[0][3] == "2 x 20"
    worse = [accuracy_record("deepemu", 0, efforts((2, 10, 0.5, 1.0)))]
    assert speed.reached(records[:3] + worse, "vega") is None
    assert speed.accuracy_table(records[:3] + worse).rows[0][3] == "none"


def test_start_floor_and_default_tables():
    start = {"cold_s": 9.5, "warm_s": 2.0, "cold_compile_s": 5.0, "cold_peak_mb": 400.0}
    start |= {"warm_import_s": 0.7, "warm_cpu_s": 1.9}
    command = {"cold_s": 30.0, "warm_s": 11.0, "cold_cpu_s": 29.0, "warm_cpu_s": 10.5}
    floor = {"short_s": 2.0, "long_s": 8.0, "factorisations": 100.0, "dpotrf_s": 0.02}
    fit = {"fit_s": 20.0, "fit_cpu_s": 20.0, "compilations": 9, "compile_s": 6.0}
    default = {**fit, **{f"second_{name}": value / 2 for name, value in fit.items()}}
    records = [
        record("deepemu", start, kind="start"),
        record("deepemu", command, kind="command"),
        record("deepemu", fit, kind="compile"),
        record("deepemu", floor, kind="floor", n=1000, n_iter=2),
        record("deepemu", default, kind="default"),
        record("dgpsi", {"fit_s": 50.0, "fit_cpu_s": 50.0}, kind="default"),
        record("dgpsi", {"failed": "exit status 1"}, kind="start"),
    ]
    assert speed.start_table(records).rows == [
        ["deepemu", "0.7", "9.5", "-", "2", "1.9", "5", "-", "400"],
        ["dgpsi", *"--------"],
    ]
    assert speed.command_table(records).rows == [["30", "29", "11", "10.5"]]
    assert speed.compile_table(records).rows == [["9", "6", "20"]]
    assert speed.floor_table(records).rows == [["1000", "3", "100", "0.02", "1.5"]]
    assert [row[-1] for row in speed.default_table(records).rows] == ["2.5x", "5.0x", "-"]
    met = {each.measure.partition(",")[0]: each.met for each in speed.bars(records)}
    assert met["cold start to first prediction"] is False
    assert met["warm start to first prediction"] is True
    assert met["import"] is True
    assert met["deepemu fit of a table"] is False
    assert met["training over dpotrf"] is True
    assert met["XLA compilation of a default fit"] is False


def test_no_results_give_empty_tables(capsys):
    for build in speed.TABLES:
        _report.print_table(build([]))
    assert capsys.readouterr().out == ""
    assert {each.met for each in speed.bars([])} == {None}


def test_columns_are_aligned():
    assert _report.aligned([["a", "bb"], ["ccc", "d"]]) == ["a    bb", "ccc   d"]


# --- gpu -----------------------------------------------------------------------------------------


def test_gpu_arguments():
    args = gpu.parse_arguments(["--sections", "large", "--iterations", "5", "--tiny"])
    assert (args.sections, args.iterations, args.device) == (["large"], 5, "gpu")
    assert args.sizes == gpu.TINY


def test_gpu_extrapolates_by_the_difference():
    # Three seconds an iteration, two seconds besides, ten of compiling.
    assert gpu.extrapolated(15.0, 2 + 5 * 3.0, 2 + 10 * 3.0, 5) == pytest.approx(10 + 2 + 300)


def test_gpu_tables_and_bars():
    fit = {"fit_s": 9.0, "compile_s": 4.0, "n_iter": 100, "second_fit_s": 3.0}
    large = {"fit_s": 400.0, "compile_s": 5.0, "n_iter": 5, "extrapolated": True}
    predict = {"points_per_s": 40_000.0, "compile_s": 1.0, "n_test": 100_000, "n": 100}
    records = [
        {"section": "fit", "n": 100, **fit},
        {"section": "large", "n": 5000, **large},
        {"section": "predict", "kernel": "squared_exponential", **predict},
        {"section": "predict", "kernel": "matern52", **predict},
        {"section": "predict", "failed": "out of memory"},
    ]
    assert [row[3] for row in gpu.fit_table(records).rows] == ["100", "5 -> 100"]
    assert [row[3] for row in gpu.predict_table(records).rows] == ["40,000"] * 2
    found = gpu.bars(records)
    assert [each.met for each in found] == [True, False, False, None, True, None]
    assert "extrapolated" in found[1].measure
    assert _report.bar_table(found).rows[2][1:] == (
        "at least 100,000 points/s", "40,000 points/s", "NO",
    )  # fmt: skip


def test_gpu_goes_on_after_a_failure(tmp_path, monkeypatch, capsys):
    def fails(args):
        yield {"n": 1}
        raise MemoryError("too large")

    monkeypatch.setattr(gpu, "SECTIONS", {"large": fails, "fit": lambda args: iter([{"n": 2}])})
    args = gpu.parse_arguments(["--sections", "large", "fit", "--json", str(tmp_path / "g.json")])
    records = gpu.measure_all(args, {})
    assert [r.get("n") for r in records] == [1, None, 2]
    assert records[1]["failed"] == "MemoryError: too large"
    assert json.loads((tmp_path / "g.json").read_text())["records"] == records


def test_gpu_says_in_a_sentence_that_there_is_none():
    command = [sys.executable, gpu.__file__, "--tiny"]
    environment = speed.one_thread_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "JAX sees no GPU here; --device cpu tries the script out on the CPU.\n"
