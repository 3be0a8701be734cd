"""Solvers, observation models and kernels from outside the package train and predict through it."""

from pathlib import Path

import numpy as np
import pytest
from builders import brief_plain_gps
from eigen_solver import ByEigenvalues
from normal_kernel import SHORTER, Normal
from poisson_model import Poisson
from scipy.stats import poisson

from deepemu import DGP, GP
from deepemu.core.kernels import families
from deepemu.core.nodes.vecchia import Vecchia
from deepemu.errors import InputError

SHORT = {"n_chains": 4, "kernel": "squared_exponential"}
AT = np.array([[0.21], [0.5], [0.93]])
NEAR_ROWS = Vecchia(12, 16, 6)  # compiled in half of the time that the default takes


def lines_of(name):
    return len((Path(__file__).parent / name).read_text().splitlines())


def test_they_are_short():
    assert lines_of("eigen_solver.py") < 80
    assert lines_of("poisson_model.py") < 60
    assert lines_of("normal_kernel.py") < 60


# --- a second solver: the same numbers by another factorisation ----------------------------------


@pytest.fixture(scope="module")
def curve():
    x = np.linspace(0, 1, 14)[:, None]
    return x, np.sin(6 * x[:, 0])


DEEP = SHORT | {"n_iter": 4, "n_scoring": 20, "sweep": "node"}  # it has no guided moves


@pytest.mark.parametrize(
    ("kind", "more"), [(GP, {}), (DGP, DEEP), (DGP, DEEP | {"lengthscale": "layer", "width": 2})]
)
def test_another_solver_gives_the_same_emulator(kind, more, curve):
    """The same draws; M-steps that converge do not depend on how slopes were computed."""
    settings = {"nugget": 1e-3} | more
    ours = kind(**settings).fit(*curve)
    other = kind(**settings, solver=ByEigenvalues()).fit(*curve)
    for a, b in zip(
        ours.predict(AT, return_std=True), other.predict(AT, return_std=True), strict=True
    ):
        np.testing.assert_allclose(b, a, rtol=5e-3, atol=1e-4)
    np.testing.assert_allclose(other.loo()[0], ours.loo()[0], atol=4e-3)
    assert np.all(np.isfinite(other.sample_y(AT, 2)))


# --- a second observation model: counts -----------------------------------------------------------


@pytest.fixture(scope="module")
def counts():
    """Counts of a rate that changes thirtyfold, each input four times."""
    rng = np.random.default_rng(3)
    x = np.repeat(np.linspace(0, 1, 15), 4)[:, None]
    return x, rng.poisson(rate(x)).astype(float)


@pytest.fixture(scope="module")
def plain(counts):
    return GP(observation=Poisson()).fit(*counts)


@pytest.fixture(scope="module")
def deep(counts):
    return DGP(observation=Poisson(), n_iter=15, **SHORT).fit(*counts)


@pytest.fixture(scope="module")
def plain_large(counts):
    with brief_plain_gps(80):
        return GP(observation=Poisson(), solver=NEAR_ROWS).fit(*counts)


def rate(x):
    return np.exp(1.5 + 1.7 * np.sin(5 * x[:, 0]))


@pytest.mark.parametrize("kind", ["plain", "deep", "plain_large"])
def test_another_observation_model_finds_the_rate(kind, request):
    emulator = request.getfixturevalue(kind)
    mean, std = emulator.predict(AT, return_std=True)
    true = rate(AT)
    # A count has the rate for its variance; the rate is known to some 20 %.
    assert np.all(np.abs(mean - true) < 0.35 * true + 0.5)
    assert np.all(std > 0.8 * np.sqrt(true))
    low, high = emulator.interval(AT, 0.9)
    assert np.all(low == np.floor(low)) and np.all(high == np.floor(high))
    inside = poisson.cdf(high, true) - poisson.cdf(low - 1, true)
    assert np.all(inside > 0.85)
    drawn = emulator.sample_y(AT, 200)
    assert np.all(drawn == np.round(drawn))
    np.testing.assert_allclose(drawn.mean(axis=1), mean, rtol=0.25)


@pytest.mark.parametrize("kind", [GP, DGP])
def test_outputs_that_cannot_be_counts_are_refused(kind, counts):
    """Also by a model that has no check of its own."""
    x, y = counts
    with pytest.raises(InputError, match="cannot have come from the observation model"):
        kind(observation=Poisson()).fit(x, y - 10.0)


def test_densities_of_counts_add_up_to_one(plain):
    posterior = plain.posterior_
    every = np.arange(80.0)
    mass = np.exp(posterior.log_density(np.repeat(AT[1:2], 80, axis=0), every))
    np.testing.assert_allclose(mass.sum(), 1.0, atol=1e-6)
    mean = posterior.moments(AT[1:2]).mean
    np.testing.assert_allclose((every * mass).sum(), mean[0, 0], rtol=1e-6)


def test_members_of_another_model_mix_to_its_moments(deep):
    """In double precision, though the model computes with JAX."""
    members, mixed = deep.posterior_.members(AT), deep.posterior_.moments(AT)
    assert members.outputs.mean.dtype == members.outputs.std.dtype == np.float64
    mean = np.tensordot(members.weights, members.outputs.mean, axes=1)
    np.testing.assert_allclose(mean, mixed.mean, rtol=1e-12)
    squares = members.outputs.var + (members.outputs.mean - mean) ** 2
    np.testing.assert_allclose(np.tensordot(members.weights, squares, axes=1), mixed.var, rtol=1e-9)


# --- another kernel: the squared exponential in other units --------------------------------------


@pytest.fixture
def normal(monkeypatch):
    monkeypatch.setitem(families.KERNELS, "normal", Normal())
    return "normal"


def lengthscale_of(plain):
    (structure,) = plain.posterior_.structures
    return np.exp(structure.imputed.params[0].log_lengthscale).item()


def test_another_kernel_gives_the_same_plain_emulator(normal, curve):
    """Without a prior the best lengthscale is the shorter one, at known and uncertain inputs."""
    ours, other = (
        GP(kernel=kernel, prior="none", nugget=1e-3).fit(*curve)
        for kernel in ("squared_exponential", normal)
    )
    assert lengthscale_of(other) / lengthscale_of(ours) == pytest.approx(SHORTER, rel=1e-3)
    for more in ({}, {"input_std": 0.1}):
        found = other.predict(AT, return_std=True, **more)
        np.testing.assert_allclose(found, ours.predict(AT, return_std=True, **more), rtol=1e-3)


def test_another_kernel_trains_a_deep_emulator(normal, curve):
    """Every scheme of linked moments is asked for what a kernel says of itself."""
    emulator = DGP(**DEEP | {"kernel": normal}).fit(*curve)
    mean, std = emulator.predict(AT, return_std=True)
    np.testing.assert_allclose(mean, np.sin(6 * AT[:, 0]), atol=0.05)
    assert np.all((std > 0) & (std < 0.2))
