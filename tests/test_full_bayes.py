"""`DGP(inference="full_bayes")`: parameters that are draws, through the whole of the estimator."""

import dataclasses
import pickle

import jax
import numpy as np
import pytest
from sklearn.base import clone

from deepemu import DGP, InputError, Layer
from deepemu.core.nodes.dense import Dense
from deepemu.ensembles import prediction
from deepemu.observations.gaussian import Interpolated
from deepemu.training.structures import Problem

SMALL = {
    "inference": "full_bayes",
    "kernel": "squared_exponential",
    "n_chains": 2,
    "n_iter": 6,
    "n_sweeps": 2,
    "n_imputations": 3,
    "verbose": False,
}
X = np.linspace(0, 1, 12)[:, None]
Y = np.where(X[:, 0] < 0.5, -1.0, 1.0)
AT = np.linspace(0.02, 0.98, 25)[:, None]


@pytest.fixture(scope="module")
def fitted():
    return DGP(**SMALL).fit(X, Y)


def test_every_member_has_parameters_of_its_own(fitted):
    (trained,) = fitted.posterior_.structures
    for layer in trained.imputed.params:
        assert layer.log_lengthscale.shape[:2] == (2, 3)
        assert len(np.unique(layer.log_lengthscale[:, :, 0, 0])) == 6
    assert len(np.unique(trained.imputed.params[1].log_scale)) == 6
    assert trained.imputed.members.alpha.shape[:2] == (2, 3)
    np.testing.assert_allclose(fitted.posterior_.members(AT).weights, [1 / 6] * 6)
    for leaf in jax.tree.leaves(trained.imputed.conditioned):
        assert leaf.shape[:2] == (2, 3)


def test_members_are_ordered_by_chain(fitted):
    """The last member of each chain is where the chain stands."""
    (trained,) = fitted.posterior_.structures
    for place, chain in enumerate(trained.chains):
        held = trained.imputed.params[1].log_lengthscale[place, 2]
        np.testing.assert_array_equal(chain.params[1].log_lengthscale, held)


def test_the_trace_holds_the_paths(fitted):
    path = fitted.trace_["scale"][1]
    assert path.shape == (2, 6, 1)
    assert len(np.unique(path)) == 12


def only(imputed, chain, member):
    """The imputed network of one place, with its parameters."""
    take = lambda tree: jax.tree.map(lambda leaf: leaf[chain, member][None, None], tree)  # noqa: E731
    return dataclasses.replace(
        imputed,
        params=take(imputed.params),
        conditioned=take(imputed.conditioned),
        members=take(imputed.members),
    )


def test_prediction_is_the_mixture_over_members(fitted):
    """Each member alone, as the only one of its chain."""
    (trained,) = fitted.posterior_.structures
    runs, imputed = fitted.posterior_.runs, trained.imputed
    with jax.enable_x64(True):
        alone = [
            prediction.predict_chains(prediction.chains_of(only(imputed, chain, k)), AT)
            for chain in range(2)
            for k in range(3)
        ]
    means, variances = (
        np.concatenate([getattr(found, name) for (found,) in alone]) for name in ("mean", "var")
    )
    np.testing.assert_array_equal(runs.scale.to_core(AT), AT)
    mixed = fitted.posterior_.moments(AT)
    mean = (mixed.mean - Y.mean()) / Y.std()
    var = mixed.var / Y.std() ** 2
    assert np.ptp(means, axis=0).max() > 1e-3
    np.testing.assert_allclose(mean, means.mean(axis=0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(var, variances.mean(axis=0) + means.var(axis=0), rtol=1e-8)


def test_the_same_seed_gives_the_same_answer_whatever_the_threads(fitted):
    again, other = (DGP(**SMALL, n_jobs=jobs).fit(X, Y).predict(AT, True) for jobs in (1, 2))
    np.testing.assert_array_equal(again, other)
    np.testing.assert_array_equal(again, fitted.predict(AT, return_std=True))
    reseeded = DGP(**SMALL, random_state=1).fit(X, Y)
    assert np.all(reseeded.trace_["log_density"] != fitted.trace_["log_density"])


def test_all_methods_work(fitted):
    assert fitted.sample_y(AT, 4).shape == (25, 4)
    mean, std = fitted.loo(conditional=True)
    assert mean.shape == std.shape == (12,) and np.all(std > 0)
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.predict(AT), fitted.predict(AT))
    assert clone(fitted).get_params() == fitted.get_params()
    grown = copy.update([[0.3], [0.7]], [-1.0, 1.0])
    assert grown.posterior_.structures[0].imputed.members.alpha.shape[:2] == (2, 3)
    assert np.all(np.isfinite(grown.predict(AT)))


def test_a_free_nugget_and_one_layer_are_sampled_too():
    rng = np.random.default_rng(0)
    settings = SMALL | {"depth": 1, "nugget": "estimate", "n_iter": 60, "n_imputations": 10}
    emulator = DGP(**settings).fit(X, np.sin(4 * X[:, 0]) + 0.1 * rng.normal(size=12))
    nuggets = emulator.trace_["nugget"][0]
    assert len(np.unique(nuggets)) > 100
    assert np.abs(emulator.predict(AT) - np.sin(4 * AT[:, 0])).max() < 0.3


def test_a_nugget_that_is_found_is_sampled_near_the_smallest():
    """Without noise; the prior falls as the one that is maximised."""
    emulator = DGP(**SMALL | {"depth": 1, "n_iter": 60}).fit(X, np.sin(4 * X[:, 0]))
    nuggets = emulator.trace_["nugget"][0][:, 30:]
    assert np.median(nuggets) < 1e-5 and np.min(nuggets) >= 1e-8 and np.ptp(nuggets) > 0


def test_a_step_is_emulated():
    settings = SMALL | {"n_chains": 4, "n_iter": 150, "n_sweeps": 5, "n_imputations": 5}
    mean, std = DGP(**settings).fit(X, Y).predict(AT, return_std=True)
    truth = np.where(AT[:, 0] < 0.5, -1.0, 1.0)
    flat = np.abs(AT[:, 0] - 0.5) > 0.1
    assert np.abs(mean - truth)[flat].max() < 0.15
    assert std[~flat].max() > 3 * np.median(std[flat])
    assert np.mean(np.abs(mean - truth) < 3 * std) > 0.9


def test_a_sampled_nugget_does_not_drift_into_noise(rng):
    """Flat in the nugget, all mass lies where everything is noise."""
    x = np.linspace(0, 1, 10)[:, None]
    y = np.sin(4 * x[:, 0]) + 0.1 * rng.normal(size=10)
    settings = SMALL | {"depth": 1, "nugget": "estimate", "n_iter": 200, "n_sweeps": 5}
    emulator = DGP(**settings).fit(x, y)
    assert np.median(emulator.trace_["nugget"][0][:, 100:]) < 1.0
    assert np.corrcoef(emulator.predict(x), np.sin(4 * x[:, 0]))[0, 1] > 0.9


def test_a_hidden_scale_cannot_be_sampled():
    layers = [Layer(1, scale="estimate"), Layer()]
    with pytest.raises(InputError, match="scale of a hidden layer"):
        DGP(layers=layers, inference="full_bayes").fit([[0.0], [0.5], [1.0]], [0.0, 1.0, 0.0])


def test_a_last_layer_whose_width_is_written_out_is_no_hidden_one():
    layers = [Layer(2), Layer(1, scale="estimate")]
    problem = Problem(1, Interpolated(), Dense(), ("x1", "x2"))
    structure = DGP(layers=layers, inference="full_bayes").structure(problem, 0)
    assert [spec.free_scale for spec in structure.network.layers] == [False, True]


def test_parameters_are_sampled_given_values_at_all_rows(fitted):
    """Values at rows that are no anchors depend on the parameters."""
    plan = fitted.posterior_.structures[0].structure.plan
    assert not plan.is_guided
    with pytest.raises(InputError, match="has anchors in hidden layers"):
        DGP(**SMALL, solver="vecchia").fit(X, Y)
