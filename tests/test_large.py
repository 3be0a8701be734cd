"""Emulators of many runs: near rows, anchors and guided moves through the public estimators."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from builders import curve

from deepemu import DGP, GP, Emulator, load, save
from deepemu.core.distributions import Gaussian
from deepemu.core.nodes.over_anchors import DenseOverAnchors
from deepemu.core.nodes.solvers import SOLVERS
from deepemu.core.nodes.vecchia import Vecchia
from deepemu.data.neighbours import Tree
from deepemu.ensembles import prediction, search
from deepemu.errors import InputError
from deepemu.posterior import fit as posteriors
from deepemu.runtime.devices import Machine
from deepemu.runtime.padding import bucket
from deepemu.training.structures import FEWEST_ANCHORS, n_anchors

# Fewer near rows than by default are compiled in half of the time.
NEAR_ROWS = Vecchia(12, 16, 6)
FEW = {"n_chains": 4, "n_iter": 4, "n_imputations": 2, "solver": NEAR_ROWS}


def runs(n, seed=0):
    x = np.random.default_rng(seed).random((n, 2))
    return x, curve(x)


@pytest.fixture(scope="module")
def deep():
    return DGP(**FEW).fit(*runs(30))


@pytest.fixture(scope="module")
def plain():
    return GP(solver=NEAR_ROWS).fit(*runs(30))


EMULATORS = pytest.mark.parametrize("kind", ["deep", "plain"])


@pytest.fixture
def emulator(request, kind):
    return request.getfixturevalue(kind)


@EMULATORS
def test_predicts(emulator):
    """A smooth function is learnt, and joint draws have the moments of predictions."""
    at, truth = runs(40, seed=1)
    mean, std = emulator.predict(at, return_std=True)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.2
    low, high = emulator.interval(at)
    assert np.all((low < mean) & (mean < high)) and np.mean((low < truth) & (truth < high)) > 0.7
    draws = emulator.sample_y(at[:5], n_samples=400)
    assert np.all(np.abs(draws.mean(axis=1) - mean[:5]) < 5 * std[:5] / 20 + 0.01)
    np.testing.assert_allclose(draws.std(axis=1), std[:5], rtol=0.35)


@EMULATORS
def test_trees_are_grown_once(emulator, monkeypatch):
    """One for each chain, whatever the number of pieces, threads and calls."""
    grown, posterior = [], emulator.posterior_.on(Machine(n_jobs=2))
    monkeypatch.setattr(search, "Tree", lambda *given: grown.append(given) or Tree(*given))
    monkeypatch.setattr(prediction, "CPU_BLOCKS_NEAR", (1, 8))
    at = runs(40, seed=1)[0]
    cut = [posterior.moments(at), posterior.moments(at[::-1])]
    assert len(grown) == sum(weight > 0 for weight in emulator.weights_)
    monkeypatch.undo()
    for found, expected in zip(
        (cut[0].mean, cut[1].std[::-1, 0]),
        (emulator.posterior_.moments(at).mean, emulator.predict(at, return_std=True)[1]),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_memory_holds_the_components_of_a_slab(deep, monkeypatch):
    """Rows add what the results take, and nothing else."""

    def standard(chains, x):
        shapes = [(chain.n_members, len(x), 1) for chain in chains]
        return [Gaussian(np.zeros(shape), np.ones(shape)) for shape in shapes]

    def peak(function, n):
        x = np.full((n, 2), 0.5)
        tracemalloc.start()
        try:
            function(x)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(prediction, "predict_chains", standard)
    monkeypatch.setattr(posteriors, "ROWS_AT_ONCE", 1024)
    posterior, few, many = deep.posterior_, 4096, 65536
    quantiles = lambda x: posterior.quantiles(x, [0.1, 0.5, 0.9])  # noqa: E731
    density = lambda x: posterior.log_density(x, np.zeros(len(x)))  # noqa: E731
    for function, columns in (
        (posterior.moments, 2), (posterior.bands, 4), (quantiles, 3), (density, 1 + 1),
    ):  # fmt: skip
        function(np.full((few, 2), 0.5))
        per_row = (peak(function, many) - peak(function, few)) / (many - few)
        # A copy of the two inputs would be more, and so would any component.
        assert 8 * columns * 0.9 < per_row < 8 * (columns + 1)


@EMULATORS
def test_gradient_is_that_of_the_prediction(emulator):
    at = runs(3, seed=2)[0]
    slopes, _ = emulator.gradient(at)
    for column, step in enumerate(1e-5 * np.eye(2)):
        difference = (emulator.predict(at + step) - emulator.predict(at - step)) / 2e-5
        np.testing.assert_allclose(slopes[:, column], difference, rtol=1e-3, atol=1e-4)


@EMULATORS
def test_files_hold_all_of_it(emulator, tmp_path):
    at = runs(5, seed=2)[0]
    save(emulator, tmp_path / "a.deepemu")
    again = load(tmp_path / "a.deepemu")
    np.testing.assert_allclose(again.predict(at), emulator.predict(at), rtol=1e-9)
    for one, other in zip(again.posterior_.structures, emulator.posterior_.structures, strict=True):
        assert one.structure.network == other.structure.network
        anchors = one.imputed.data.anchors, other.imputed.data.anchors
        assert (anchors[0] is None) == (anchors[1] is None)
        np.testing.assert_array_equal(*anchors)


@EMULATORS
def test_new_runs(emulator, tmp_path):
    """Without training and with it; new runs are interpolated."""
    x, y = runs(32)  # the programs of 30
    more = emulator.posterior_.condition_on(x[30:], y[30:])
    error = np.abs(more.moments(x[30:]).mean[:, 0] - y[30:])
    before = np.abs(emulator.predict(x[30:]) - y[30:])
    assert np.all(error < np.maximum(before, 0.02))
    save(emulator, tmp_path / "a.deepemu")
    trained = load(tmp_path / "a.deepemu").update(x[30:], y[30:])
    assert np.all(np.abs(trained.predict(x[30:]) - y[30:]) < 0.05)


def test_uncertain_inputs(plain):
    """The closed form, by the rows near each point, against draws."""
    at = np.array([[0.4, 0.6]])
    mean, std = plain.predict(at, return_std=True, input_std=0.05)
    noise = 0.05 * np.random.default_rng(0).standard_normal((4000, 2))
    means, stds = plain.predict(at + noise, return_std=True)
    np.testing.assert_allclose(mean, means.mean(), atol=0.01)
    np.testing.assert_allclose(std, np.sqrt(means.var() + np.mean(stds**2)), rtol=0.05)


def test_leave_one_out_is_that_of_the_exact_process(plain):
    """30 rows are all near each other."""
    exact = GP().fit(*runs(30))
    given = exact.posterior_.structures[0].imputed.params[0]
    ours = plain.posterior_.structures[0].imputed.params[0]
    np.testing.assert_allclose(ours.log_lengthscale, given.log_lengthscale, atol=0.1)
    for one, other in zip(plain.loo(), exact.loo(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.1, atol=0.02)


def test_the_same_seed_gives_the_same_emulator(deep):
    at = runs(5, seed=2)[0]
    again, other = (DGP(**FEW, random_state=seed).fit(*runs(30)) for seed in (0, 1))
    np.testing.assert_array_equal(again.predict(at), deep.predict(at))
    assert np.all(other.predict(at) != deep.predict(at))


def test_hidden_layers_follow_their_anchors(deep):
    """What is stored of each imputation is what the network predicts at its own rows."""
    trained = deep.posterior_.structures[0]
    imputed, x = trained.imputed, deep.posterior_.runs.sites.x
    params = [each[0, 0] for each in (imputed.params[0].log_lengthscale,)][0]
    anchors, latents = np.asarray(imputed.data.anchors), np.asarray(imputed.members.latents[0])
    assert len(anchors) == 20
    scaled = np.sqrt(5) * np.abs(x[:, None] - x[anchors][None])[..., None, :] / np.exp(params)
    kernel = ((1 + scaled + scaled**2 / 3) * np.exp(-scaled)).prod(axis=-1)
    for node in range(latents.shape[-1]):
        k, values = kernel[..., node], latents[0, 0, :30, node]
        weights = np.linalg.solve(k[anchors] + 1e-10 * np.eye(len(anchors)), values[anchors])
        np.testing.assert_allclose(k @ weights, values, atol=1e-4)


@pytest.mark.slow
def test_three_layers_and_two_outputs():
    x, y = runs(24)
    both = np.column_stack([y, y**2])
    emulator = DGP(depth=3, width=1, **FEW).fit(x, both)
    mean, std = emulator.predict(x, return_std=True)
    assert mean.shape == (24, 2) and np.all(np.isfinite(std))
    assert np.sqrt(np.mean((mean - both) ** 2)) < 0.5


def test_repeated_runs_are_one_site():
    """Replicates of one site are weighed exactly: each run twice is the same with twice the
    evidence about the noise."""
    x, y = runs(20)
    noise = 0.1 * np.random.default_rng(1).standard_normal((2, 20))
    twice = np.vstack([x, x]), np.concatenate([y + noise[0], y + noise[1]])
    solvers = (Vecchia(n_near=20, n_predict=20), SOLVERS["dense"])
    ours, exact = (GP(nugget="estimate", solver=solver).fit(*twice) for solver in solvers)
    at = runs(5, seed=2)[0]
    for one, other in zip(
        ours.predict(at, return_std=True), exact.predict(at, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_solver_is_chosen_by_the_number_of_runs(monkeypatch):
    from deepemu.estimators import base

    monkeypatch.setattr(base, "ROWS_FOR_VECCHIA", (25, 32))
    monkeypatch.setitem(SOLVERS, "vecchia", NEAR_ROWS)  # its programs are there
    few = {name: value for name, value in FEW.items() if name != "solver"}
    chosen = {
        n: [
            each.structure.network.solver for each in DGP(**few).fit(*runs(n)).posterior_.structures
        ]
        for n in (24, 30)
    }
    dense, vecchia = SOLVERS["dense"], SOLVERS["vecchia"]
    assert chosen[24] == [DenseOverAnchors(), dense, dense]
    assert chosen[30][0] == vecchia and set(chosen[30][1:]) == {dense}
    assert GP().fit(*runs(32)).posterior_.structures[0].structure.network.solver == vecchia


def test_emulator_weighs_deep_and_plain_processes():
    changes = {"n_chains": 4, "n_iter": 4, "solver": NEAR_ROWS, "effort": "quick"}
    emulator = Emulator(**changes).fit(*runs(30))
    labels = [each.structure.label for each in emulator.posterior_.structures]
    assert sum("DGP" in label for label in labels) >= 1
    assert emulator.posterior_.stacked.held_out is not None


def test_more_runs_have_more_anchors():
    assert [n_anchors(n) for n in (10, 30, 60, 100, 400, 2000)] == [10, 20, 24, 48, 100, 100]
    assert [n_anchors(n) for n in (8000, 10**6)] == [195, 256]


def test_anchors_compile_no_programs_of_their_own():
    """Their number is a shape: it changes with the bucket of rows, and not within it."""
    counts = {}
    for n in range(FEWEST_ANCHORS, 10_000):
        counts.setdefault(bucket(n), set()).add(n_anchors(n))
    assert all(len(each) == 1 for each in counts.values())


def test_unknown_solver():
    with pytest.raises(InputError, match="solver is 'sparse'; it must be 'auto', 'dense'"):
        GP(solver="sparse").fit(*runs(10))


def test_settings_of_guided_chains(deep):
    plan = deep.posterior_.structures[0].structure.plan
    assert plan.is_guided and plan.n_sweeps == 1
    assert dataclasses.replace(plan, n_imputations=3).kept == (4, 2, 2)
