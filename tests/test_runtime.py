"""Devices, threads and precision: what a scope sets, and that it is put back."""

import functools
import gc
import threading
import time

import jax
import joblib
import numpy as np
import pytest
from builders import SMALL, curve
from jax.experimental.compilation_cache import compilation_cache
from threadpoolctl import threadpool_info, threadpool_limits

import deepemu
from deepemu import DGP, GP, InputError
from deepemu.core.inference import m_step
from deepemu.runtime import cache, devices, programs
from deepemu.runtime.devices import Runtime
from deepemu.runtime.programs import compiled, in_threads
from deepemu.training import blocks, plan


def blas_threads():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_a_scope_sets_everything_and_puts_it_back():
    before = (blas_threads(), jax.config.jax_enable_x64, devices.current())
    with devices.running(Runtime("cpu", 3)):
        assert blas_threads() == {1}
        assert jax.config.jax_enable_x64
        assert devices.current() == Runtime("cpu", 3)
        assert jax.numpy.zeros(1).devices() == {jax.local_devices(backend="cpu")[0]}
    assert (blas_threads(), jax.config.jax_enable_x64, devices.current()) == before


def test_tasks_run_in_threads_of_the_same_scope():
    seen = set()
    barrier = threading.Barrier(3, timeout=30)

    def task():
        barrier.wait()  # all three are there at once
        seen.add(threading.get_ident())
        return jax.config.jax_enable_x64, devices.current().platform

    with devices.running(Runtime("cpu", 3)):
        results = dict(in_threads([task] * 3))
    assert results == dict.fromkeys(range(3), (True, "cpu"))
    assert len(seen) == 3


def test_one_thread_runs_tasks_in_order():
    with devices.running(Runtime("cpu", 1)):
        assert list(in_threads([lambda k=k: k for k in range(4)])) == [
            (0, 0), (1, 1), (2, 2), (3, 3),
        ]  # fmt: skip


def test_no_tasks_have_no_results():
    with devices.running(Runtime("cpu", 3)):
        assert list(in_threads([])) == []


def test_overlapping_scopes_leave_lapack_as_they_found_it():
    """The first to enter leaves first: the one that stays keeps its limit."""
    before = blas_threads()
    first, second = (devices.running(Runtime("cpu", 1)) for _ in range(2))
    first.__enter__()
    second.__enter__()
    with devices._blas().at_most(1):
        pass
    assert blas_threads() == {1}
    second.__exit__(None, None, None)
    assert blas_threads() == {1}
    first.__exit__(None, None, None)
    assert blas_threads() == before


def test_lapack_is_never_given_more_than_the_user_allows():
    with threadpool_limits(1, user_api="blas"), devices.running(Runtime("cpu", 8), 8):
        assert blas_threads() == {1}


def test_an_error_does_not_wait_for_the_rest_of_the_queue():
    ran = []

    def fail():
        raise ZeroDivisionError

    def work():
        time.sleep(0.2)
        ran.append(1)

    with devices.running(Runtime("cpu", 2)), pytest.raises(ZeroDivisionError):
        list(in_threads([fail, *[work] * 50]))
    assert len(ran) < 10


def test_an_error_in_a_thread_reaches_the_caller():
    def fail():
        raise ZeroDivisionError

    with devices.running(Runtime("cpu", 2)), pytest.raises(ZeroDivisionError):
        list(in_threads([fail, fail]))


def test_threads_compile_a_program_once():
    count = []

    def listen(event, duration, **_):
        count.append(event == "/jax/core/compile/backend_compile_duration")

    def program(x):
        return x * 3.5 + x.shape[0]

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        with devices.running(Runtime("cpu", 4)):
            run = compiled(program)
            x = np.ones(311)
            before = sum(count)
            dict(in_threads([lambda: run(x)] * 8))
            assert sum(count) - before == 1
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_not_collected_while_tracing_and_then_as_before(enabled):
    seen = []

    def program(x):
        seen.append(gc.isenabled())
        return x + 1.0

    (gc.enable if enabled else gc.disable)()
    try:
        with devices.running(Runtime()):
            compiled(program)(np.ones(3))
        assert seen == [False]
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("threads", "programs", "rows", "expected"),
    [(8, 1, 2000, 8), (8, 4, 2000, 2), (8, 8, 2000, 1), (2, 8, 2000, 1), (8, 1, 100, 1)],
)
def test_lapack_gets_the_cores_that_programs_leave(threads, programs, rows, expected):
    assert devices.blas_threads(Runtime("cpu", threads), programs, rows) == expected


@pytest.mark.parametrize("device", ["tpu", "GPU", None])
def test_unknown_devices_are_named(device):
    with pytest.raises(InputError, match=r"device is .*; it must be one of auto, cpu, gpu\."):
        GP(device=device).fit([[0.0], [1.0]], [0.0, 1.0])


def test_the_host_helps_a_gpu_with_all_its_cores(monkeypatch):
    """Programs on a GPU run one by one; on a CPU each has a core."""
    monkeypatch.setattr(devices, "has", lambda platform: True)
    on_gpu, on_cpu = (devices.choose(device, 3, False) for device in ("gpu", "cpu"))
    assert (on_gpu.threads, on_gpu.cores, on_gpu.per_program) == (1, 3, 3)
    assert (on_cpu.threads, on_cpu.cores, on_cpu.per_program) == (3, 3, 1)


@pytest.mark.skipif(devices.has("gpu"), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(InputError, match="JAX sees no GPU here; .* use device='cpu'"):
        GP(device="gpu").fit([[0.0], [1.0]], [0.0, 1.0])
    assert devices.choose("auto", 1, worth_a_gpu=True) == Runtime("cpu", 1)


def test_all_cores_are_used_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = joblib.cpu_count()
    for n_jobs, threads in ((None, 1), (3, 3), (-1, cores), (-2, max(cores - 1, 1)), (-99, 1)):
        assert devices.choose("cpu", n_jobs, False).threads == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert devices.choose("cpu", -1, False).threads == 1


@pytest.mark.parametrize("n_jobs", [0, 2.5, "x", True])
def test_other_numbers_of_threads_are_refused(n_jobs):
    with pytest.raises(InputError, match=r"n_jobs is .*; it must be None, a positive integer"):
        GP(n_jobs=n_jobs).fit([[0.0], [1.0]], [0.0, 1.0])


@pytest.mark.parametrize("early_stopping", ["no", 1, None])
def test_early_stopping_is_a_truth_value(early_stopping):
    with pytest.raises(InputError, match="early_stopping is .*; it must be True or False"):
        DGP(early_stopping=early_stopping).fit([[0.0], [1.0]], [0.0, 1.0])


# Two chains of the smallest programs.
SHORT = {
    "kernel": "squared_exponential",
    "n_chains": 2,
    "n_iter": 2,
    "n_sweeps": 1,
    "n_imputations": 1,
}


def test_another_generator_as_the_default_changes_nothing(rng):
    """Predictions are a function of the imputed networks."""
    x = rng.random((10, 2))
    expected = DGP(**SHORT).fit(x, x[:, 0]).posterior_.structures[0].imputed
    with jax.default_prng_impl("rbg"):
        found = DGP(**SHORT).fit(x, x[:, 0]).posterior_.structures[0].imputed
    assert np.ptp(expected.members.latents[0], axis=0).max() > 0.0  # something was drawn
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_threads_change_no_number(rng):
    x = rng.random((12, 2))
    one, many = (DGP(**SMALL | {"n_chains": 3}, n_jobs=n).fit(x, curve(x)) for n in (1, 3))
    for name, path in one.trace_.items():
        jax.tree.map(np.testing.assert_array_equal, path, many.trace_[name])
    # Several pieces, with rows near the design and far from it: all levels of prediction.
    at = rng.random((2500, 2))
    at[:12], at[::7], at[5] = x, 30 * at[::7], 1e6
    np.testing.assert_array_equal(
        one.predict(at, return_std=True), many.predict(at, return_std=True)
    )


def test_a_folder_that_cannot_keep_programs_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="give another folder"):
            cache.use_compilation_cache(folder)


@pytest.fixture
def jax_cache():
    """JAX's cache of programs, and afterwards as it was."""
    before = {name: getattr(jax.config, name) for name in CACHE_SETTINGS}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


CACHE_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


def test_compiled_programs_are_kept_on_disk(tmp_path, monkeypatch, jax_cache):
    for name, value in zip(CACHE_SETTINGS, (None, 1.0, 0), strict=True):
        jax.config.update(name, value)  # as a user has them
    folder = deepemu.use_compilation_cache(tmp_path / "here")
    assert folder == tmp_path / "here" and not any(folder.iterdir())
    jax.jit(lambda x: x + 311.0)(np.ones(3))
    assert any(folder.iterdir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert deepemu.use_compilation_cache() == tmp_path / "home" / "deepemu" / "xla"


def test_chains_in_step_are_the_chains_apart(rng, monkeypatch):
    """What a GPU runs, on this CPU: the first iterations agree to rounding."""
    x = rng.random((10, 2))
    apart = DGP(**SHORT).fit(x, x[:, 0] ** 2)
    monkeypatch.setattr(blocks, "_train_apart", blocks._train_together)
    monkeypatch.setattr(plan, "nodes_of_device", m_step.Together)
    in_step = DGP(**SHORT).fit(x, x[:, 0] ** 2)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(close, apart.trace_, in_step.trace_)


def test_unknown_compiler_options_are_left_out(monkeypatch):
    """A later XLA may drop a flag."""
    monkeypatch.setitem(programs.CPU_OPTIONS, "xla_no_such_option", True)
    options = programs._known_options.__wrapped__("cpu")
    assert "xla_no_such_option" not in options


@pytest.mark.parametrize(
    ("brief", "n_rows", "level"), [(True, 32, 0), (True, 33, 1), (False, 32, 1)]
)
def test_only_brief_programs_of_few_rows_are_not_optimised(monkeypatch, brief, n_rows, level):
    monkeypatch.setattr(programs, "_known_options", lambda platform: {programs.LEVEL: 1})
    levels, jit = [], jax.jit

    def listening(function, *, compiler_options, **settings):
        levels.append(compiler_options[programs.LEVEL])
        return jit(function, compiler_options=compiler_options, **settings)

    monkeypatch.setattr(jax, "jit", listening)
    double = lambda x, factor: factor * x  # noqa: E731
    with devices.running(Runtime()):
        found = compiled(double, brief=brief)(np.ones((3, n_rows)), factor=2.0)
    np.testing.assert_array_equal(found, np.full((3, n_rows), 2.0))
    assert levels == [level]


def test_without_levels_of_optimisation_brief_programs_are_as_others(monkeypatch):
    """A later XLA may drop the flag; other devices have no options."""
    for known in ({"xla_cpu_multi_thread_eigen": False}, None):
        monkeypatch.setattr(programs, "_known_options", lambda platform, known=known: known)
        assert programs._options("cpu", unoptimised=True) == known


def test_programs_of_several_threads_all_finish(rng):
    x = rng.random((12, 2))
    y = curve(x)
    expected = GP().fit(x, y).predict(x)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(GP().fit(x, y).predict(x)), daemon=True)
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, expected)
