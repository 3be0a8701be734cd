"""How often XLA compiles: once for a network and a bucket of rows, never for a number of rows."""

import functools
from unittest import mock

import jax
import numpy as np
import pytest
from builders import closed_form_loo

from deepemu import DGP, GP
from deepemu.runtime import programs
from deepemu.training import plain

KERNEL = "squared_exponential"
SMALL = {
    "kernel": KERNEL,
    "width": 1,
    "n_chains": 1,
    "n_iter": 5,
    "n_sweeps": 1,
    "n_imputations": 1,
}
KINDS = pytest.mark.parametrize(
    "make", [lambda: GP(KERNEL), lambda: DGP(**SMALL)], ids=["GP", "DGP"]
)


class Compilations:
    """Counts what XLA's backend compiles in this process."""

    def __init__(self):
        self.count = 0

    def __call__(self, event, duration, **_):
        self.count += event == "/jax/core/compile/backend_compile_duration"

    def during(self, function):
        before = self.count
        function()
        return self.count - before


@pytest.fixture(scope="module")
def compilations():
    counter = Compilations()
    jax.monitoring.register_event_duration_secs_listener(counter)
    yield counter
    jax.monitoring.unregister_event_duration_listener(counter)


def unseen(function):
    """What does the same, and is another function to JAX, which has compiled nothing of it."""

    @functools.wraps(function)
    def same(*args, **kwargs):
        return function(*args, **kwargs)

    return same


@pytest.fixture(autouse=True)
def new_programs():
    """None that another test has compiled, whichever runs first, and few steps."""
    make = programs._program.__wrapped__
    fresh = functools.cache(lambda function, *of: make(unseen(function), *of))
    with mock.patch.object(plain, "GP_STEPS", 2), mock.patch.object(programs, "_program", fresh):
        yield


def data(n):
    x = np.random.default_rng(0).random((60, 1))[:n]
    return x, np.sin(6 * x[:, 0])


@KINDS
def test_a_second_fit_compiles_nothing(make, compilations):
    at = data(20)[0]
    assert compilations.during(lambda: make().fit(*data(20)).predict(at)) > 0
    for n in (20, 21, 32):
        x, y = data(n)
        again = make().set_params(random_state=1)
        assert compilations.during(lambda x=x, y=y, e=again: e.fit(x, -3 * y).predict(at)) == 0


@KINDS
def test_the_number_of_test_rows_compiles_nothing(make, compilations):
    emulator = make().fit(*data(20))
    emulator.predict(data(5)[0])
    for n in (1, 2, 17, 60):
        assert compilations.during(lambda n=n: emulator.predict(data(n)[0], return_std=True)) == 0


def test_settings_that_are_no_shapes_compile_nothing(compilations):
    x, y = data(20)
    DGP(**SMALL).fit(x, y).predict(x)
    for change in ({"n_iter": 7}, {"n_sweeps": 3}, {"n_scoring": 2}, {"bracket": 2.0}):
        emulator = DGP(**(SMALL | change))
        assert compilations.during(lambda e=emulator: e.fit(x, y)) == 0, change


@KINDS
def test_growing_by_fit_compiles_at_new_buckets_only(make, compilations):
    """Training, building, whitening, two levels of predicting: nothing outside of programs."""
    at = data(20)[0]
    make().fit(*data(20)).predict(at)
    counts = {
        n: compilations.during(lambda n=n: make().fit(*data(n)).predict(at)) for n in range(21, 49)
    }
    assert {n for n, count in counts.items() if count} == {33}
    assert counts[33] <= (4 if isinstance(make(), GP) else 5), counts


@KINDS
def test_growing_by_update_compiles_at_new_buckets_only(make, compilations):
    """Training, building, whitening, three levels of predicting; the row after a new bucket is
    the first to be placed given data of that bucket."""
    x, y = data(60)
    emulator = make().fit(x[:20], y[:20])
    emulator.update(x[20:21], y[20:21]).predict(x)
    counts = {}
    for n in range(22, 49):
        new = slice(n - 1, n)
        counts[n] = compilations.during(lambda s=new: emulator.update(x[s], y[s]).predict(x))
    assert closed_form_loo(emulator)[0].shape == (48,)
    assert {n for n, count in counts.items() if count} <= {33, 34}, counts
    assert sum(counts.values()) <= (4 if isinstance(make(), GP) else 7), counts


def test_an_option_that_this_version_of_xla_lacks_is_noticed():
    assert not programs._are_known({"xla_no_such_option": False})
