"""`Posterior.condition_on`: new runs without training, against models that are built anew."""

import dataclasses

import builders
import numpy as np
import pytest
from eigen_solver import ByEigenvalues
from oracles import Process
from poisson_model import Poisson

from deepemu import DGP, GP
from deepemu.core.nodes import anchored
from deepemu.errors import InputError

X = np.random.default_rng(0).random((14, 2))
Y = builders.curve(X)
AT = np.random.default_rng(1).random((5, 2))
# Rows that stay in the bucket of sixteen, rows that leave it, and runs that repeat old ones.
NEW = {
    "two rows": np.random.default_rng(2).random((2, 2)),
    "a new bucket": np.random.default_rng(3).random((4, 2)),
    "repeats": np.vstack([X[3], X[3], [0.2, 0.9]]),
}
DEEP = {"kernel": "squared_exponential", "width": 1, "nugget": 1e-4} | builders.SMALL


@pytest.fixture(scope="module", params=["node", "guided"])
def deep(request):
    return DGP(sweep=request.param, **DEEP).fit(X, Y)


@pytest.mark.parametrize("new", NEW.values(), ids=NEW)
def test_a_plain_process_is_that_of_all_runs(new):
    """In the parameters and the units of the first fit, against a direct computation."""
    posterior = GP(nugget="estimate").fit(X, Y + 0.1 * np.sin(50 * X[:, 1])).posterior_
    y_new = builders.curve(new) + 0.3
    found = posterior.condition_on(new, y_new).moments(AT)
    (trained,), runs = posterior.structures, posterior.runs
    logs = [np.asarray(of)[0, 0, 0] for of in (
        trained.imputed.params[0].log_lengthscale, trained.imputed.params[0].log_scale,
        trained.imputed.params[0].log_nugget,
    )]  # fmt: skip
    process = Process("matern52", *map(np.exp, logs))
    rows = runs.scale.to_core(np.vstack([runs.x, new]))
    y = runs.sites.units.to_core(np.append(runs.y[:, 0], y_new))
    mean, covariance = process.predict(rows, y, runs.scale.to_core(AT))
    size, stretch = runs.sites.units.size[0], posterior.stacked.stretch[0]
    expected = runs.sites.units.to_user(mean)
    std = size * stretch * np.sqrt(np.diag(covariance))
    assert np.all(np.abs(found.mean[:, 0] - expected) < 1e-7 * std)
    np.testing.assert_allclose(found.std[:, 0], std, rtol=1e-7)


@pytest.mark.parametrize("new", NEW.values(), ids=NEW)
def test_a_deep_one_is_the_network_with_latents_at_their_conditional_means(deep, new):
    """The last layer's mean at a hidden row is that of its process given all latents and runs."""
    y_new = builders.curve(new) + 0.3
    grown = deep.posterior_.condition_on(new, y_new)
    (trained,), sites = grown.structures, grown.runs.sites
    imputed, n_old = trained.imputed, deep.posterior_.runs.sites.n_sites
    hidden = np.asarray(imputed.members.latents[0])[0, 0, : sites.n_sites]
    before = deep.posterior_.structures[0].imputed
    np.testing.assert_array_equal(
        hidden[:n_old], np.asarray(before.members.latents[0])[0, 0, :n_old]
    )

    def process(layer):
        logs = imputed.params[layer]
        return Process("squared_exponential", *(
            np.exp(np.asarray(of)[0, 0, 0])
            for of in (logs.log_lengthscale, logs.log_scale, logs.log_nugget)
        ))  # fmt: skip

    first = process(0)
    if deep.sweep == "guided":  # all of so few rows are anchors, and have no nugget
        first = dataclasses.replace(first, nugget=anchored.JITTER)
    at_new, _ = first.predict(sites.x[:n_old], hidden[:n_old, 0], sites.x[n_old:])
    np.testing.assert_allclose(hidden[n_old:, 0], at_new, rtol=1e-6, atol=1e-9)
    counts = np.bincount(sites.site_of_row)
    inputs = np.hstack([hidden, sites.x])
    y = np.asarray(imputed.data.observed.y)[: sites.n_sites, 0]
    alpha = np.linalg.solve(process(1).covariance(inputs, counts), y) * process(1).scale
    found = np.asarray(imputed.members.links[0].alpha)[0, 0, 0, : sites.n_sites]
    np.testing.assert_allclose(found, alpha, rtol=1e-5, atol=1e-7 * np.abs(alpha).max())


def test_chains_go_on_with_all_rows(deep):
    grown = deep.posterior_.condition_on(NEW["two rows"], [0.5, 0.7])
    for chain in grown.structures[0].chains:
        latents = np.asarray(chain.imputation.latents[0])
        assert np.all(latents[14:16] != 0.0)
    assert len(grown.runs.y) == 16 and len(deep.posterior_.runs.y) == 14


def test_a_solver_without_an_update_of_its_own_computes_anew(deep):
    other = DGP(solver=ByEigenvalues(), **DEEP).fit(X, Y).posterior_
    new, y_new = NEW["a new bucket"], np.full(4, 5.0)
    grown = other.condition_on(new, y_new)
    (trained,) = grown.structures
    for k in range(2):
        root = np.asarray(trained.imputed.conditioned)[k, 0, 0]
        process = trained.imputed.params[0]
        logs = (process.log_lengthscale, process.log_scale, process.log_nugget)
        one = Process("squared_exponential", *(np.exp(np.asarray(of)[k, 0, 0]) for of in logs))
        inverse = np.linalg.inv(one.covariance(grown.runs.sites.x) / one.scale)
        np.testing.assert_allclose((root.T @ root)[:18, :18], inverse, rtol=1e-5, atol=1e-6)


def test_counts_are_refused():
    """Their latents would have to be sampled again."""
    settings = {"n_chains": 1, "n_iter": 2, "n_imputations": 1, "stacking": False}
    fitted = DGP(depth=1, observation=Poisson(), **settings).fit(X, np.round(5 * np.abs(Y)))
    with pytest.raises(InputError, match="condition_on keeps imputed latents.*call update"):
        fitted.posterior_.condition_on(NEW["two rows"], [1.0, 2.0])


@pytest.mark.filterwarnings("ignore::deepemu.ConvergenceWarning")  # of few runs
def test_new_runs_are_predicted_before_they_are_added():
    """So their predictions are held out, as those of the fit are."""
    posterior = DGP(**builders.FOUR_CHAINS).fit(X, Y).posterior_
    new = NEW["two rows"]
    expected = posterior.moments(new)
    held_out = posterior.condition_on(new, [0.5, 0.7]).held_out
    np.testing.assert_array_equal(held_out.mean[:14], posterior.held_out.mean)
    np.testing.assert_allclose(held_out.mean[14:], expected.mean, rtol=1e-12)
    np.testing.assert_allclose(held_out.std[14:], expected.std, rtol=1e-12)
