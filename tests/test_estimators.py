"""What the emulators promise: interpolation, units, shapes, formulas, reproducibility."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import KINDS, SMALL, closed_form_loo, curve, step
from oracles import Process
from scipy.linalg import solve_triangular
from sklearn.base import clone
from sklearn.metrics import r2_score

from deepemu import DGP, GP, InputError

# --- the fit -------------------------------------------------------------------------------------


def test_training_points_are_interpolated(either, problem):
    x, y = problem
    mean, std = either.predict(x, return_std=True)
    np.testing.assert_allclose(mean, y, atol=3e-3 * y.std())
    assert np.all(std < 0.02 * y.std())
    assert np.all(np.abs(mean - y) < 3 * std)


def test_uncertainty_grows_away_from_the_data(either, problem):
    x, y = problem
    at_data = either.predict(x, return_std=True)[1]
    far_mean, far_std = either.predict(x + 1e3, return_std=True)
    assert far_std.min() > 10 * at_data.max()
    np.testing.assert_allclose(far_mean, y.mean(), atol=1e-6)  # the prior mean of a GP in y's units


def test_score_is_the_coefficient_of_determination(either, elsewhere):
    truth = curve(elsewhere)
    assert either.score(elsewhere, truth) == r2_score(truth, either.predict(elsewhere))
    assert 0.9 < either.score(elsewhere, truth) < 1.0


@pytest.mark.parametrize(("factor", "offset"), [(1e8, 0.0), (1e-8, 0.0), (1.0, 1e6), (-3.0, 7.0)])
def test_predictions_follow_the_units_of_y(either, problem, elsewhere, factor, offset):
    x, y = problem
    mean, std = either.predict(elsewhere, return_std=True)
    moved = clone(either).fit(x, factor * y + offset)
    moved_mean, moved_std = moved.predict(elsewhere, return_std=True)
    np.testing.assert_allclose((moved_mean - offset) / factor, mean, atol=1e-6)
    np.testing.assert_allclose(moved_std / abs(factor), std, rtol=1e-4)


@pytest.mark.parametrize("units", [(1e-8, 1e8), (1e8, 1e-8)])
def test_predictions_do_not_depend_on_the_units_of_x(either, problem, elsewhere, units):
    x, y = problem
    mean, std = either.predict(elsewhere, return_std=True)
    other = clone(either).fit(x * units, y)
    other_mean, other_std = other.predict(elsewhere * units, return_std=True)
    np.testing.assert_allclose(other_mean, mean, atol=1e-6)
    np.testing.assert_allclose(other_std, std, rtol=1e-4)


@KINDS
def test_the_data_are_not_modified(make, problem, elsewhere):
    x, y = (values.copy() for values in problem)
    at = elsewhere.copy()
    emulator = make().fit(x, y)
    emulator.predict(at, return_std=True)
    emulator.update(at[:1], curve(at[:1]))
    np.testing.assert_array_equal(x, problem[0])
    np.testing.assert_array_equal(y, problem[1])
    np.testing.assert_array_equal(at, elsewhere)


@KINDS
def test_the_emulator_keeps_a_copy_of_the_data(make, problem):
    x, y = (values.copy() for values in problem)
    emulator = make().fit(x, y)
    before = emulator.predict(problem[0])
    x[:], y[:] = 0.0, 0.0
    emulator.update(problem[0][:1] + 0.01, curve(problem[0][:1] + 0.01))
    np.testing.assert_allclose(emulator.predict(problem[0]), before, atol=0.02)


# --- shapes --------------------------------------------------------------------------------------


@KINDS
def test_outputs_come_back_in_the_shape_they_were_given(make, problem, elsewhere):
    x, y = problem
    flat, column = make().fit(x, y), make().fit(x, y[:, None])
    for emulator, shape in ((flat, (12,)), (column, (12, 1))):
        mean, std = emulator.predict(elsewhere, return_std=True)
        assert mean.shape == std.shape == shape
        assert all(each.shape == shape for each in closed_form_loo(emulator))
        assert emulator.sample_y(elsewhere, 3).shape == (*shape, 3)
        assert emulator.n_outputs_ == 1
    np.testing.assert_array_equal(flat.predict(elsewhere), column.predict(elsewhere)[:, 0])


def test_outputs_of_a_gp_are_fitted_separately(problem, elsewhere):
    x, y = problem
    other = 1e3 * np.cos(4 * x[:, 1]) + 50
    both = GP().fit(x, np.column_stack([y, other]))
    mean, std = both.predict(elsewhere, return_std=True)
    assert mean.shape == std.shape == (12, 2)
    assert both.sample_y(elsewhere, 3).shape == (12, 2, 3)
    for column, target in enumerate((y, other)):
        alone_mean, alone_std = GP().fit(x, target).predict(elsewhere, return_std=True)
        np.testing.assert_allclose(mean[:, column], alone_mean, atol=1e-4 * target.std())
        np.testing.assert_allclose(std[:, column], alone_std, rtol=1e-2)


def test_traces_have_a_row_for_each_chain_and_iteration(dgp, gp):
    assert set(dgp.trace_) == set(gp.trace_) == {"lengthscale", "scale", "nugget", "log_density"}
    assert [path.shape for path in dgp.trace_["lengthscale"]] == [(2, 6, 2, 2), (2, 6, 1, 4)]
    for name in ("scale", "nugget"):
        assert [path.shape for path in dgp.trace_[name]] == [(2, 6, 2), (2, 6, 1)]
    assert dgp.trace_["log_density"].shape == (2, 6)
    assert [path.shape for path in gp.trace_["lengthscale"]] == [(1, 1, 1, 2)]
    assert gp.trace_["log_density"].shape == (1, 1)
    for trace in (dgp.trace_, gp.trace_):
        for path in (*trace["lengthscale"], *trace["scale"], *trace["nugget"]):
            assert np.all(path > 0) and np.all(np.isfinite(path))
        *hidden, last = trace["nugget"]
        assert all(np.allclose(path, 1e-6, rtol=1e-12) for path in hidden)
        assert np.all((last > 0.99e-8) & (last <= 1e-3)), "it starts at a thousandth and is found"
    np.testing.assert_allclose(dgp.trace_["scale"][0], 1.0)  # hidden layers have unit variance


def test_each_member_has_its_chains_average_after_burn_in(dgp):
    kept = dgp.trace_["lengthscale"][1][:, 4:].mean(axis=1)  # 75 % of 6 iterations are 4
    log_lengthscale = dgp.posterior_.structures[0].imputed.params[1].log_lengthscale
    # One set of parameters per chain, which its imputations share.
    np.testing.assert_allclose(np.exp(log_lengthscale), kept[:, None])
    members = dgp.posterior_.members(np.full((1, 2), 0.5))
    np.testing.assert_allclose(members.weights, [0.25] * 4)


# --- against the formulas, in NumPy --------------------------------------------------------------


def scaled(x, y):
    low, span = x.min(axis=0), np.ptp(x, axis=0)
    return (lambda at: (at - low) / span), (y - y.mean()) / y.std()


def parameters(emulator):
    trace = emulator.trace_
    return (trace[name][0][0, -1, 0] for name in ("lengthscale", "scale", "nugget"))


def predicted(x, y, at, lengthscale, scale, nugget):
    """Zero-mean Gaussian process: moments of an observation at the rows of ``at``.

    By a Cholesky factor: an explicit inverse would be right to five digits of the variance only.
    """
    process = Process("matern52", lengthscale, 1.0, nugget)
    lower = np.linalg.cholesky(process.covariance(x))
    whitened = solve_triangular(lower, process.correlation(x, at), lower=True)
    mean = whitened.T @ solve_triangular(lower, y, lower=True)
    return mean, np.sqrt(scale * (1 + nugget - np.sum(whitened**2, axis=0)))


def test_gp_predictions_are_the_textbook_formula(problem, elsewhere):
    """With a nugget that leaves eight digits of the smallest standard deviation."""
    x, y = problem
    gp = GP(nugget=1e-6).fit(x, y)
    to_core, targets = scaled(x, y)
    expected = predicted(to_core(x), targets, to_core(elsewhere), *parameters(gp))
    mean, std = gp.predict(elsewhere, return_std=True)
    np.testing.assert_allclose(mean, expected[0] * y.std() + y.mean(), atol=1e-9)
    np.testing.assert_allclose(std, expected[1] * y.std(), rtol=1e-8)


def test_the_scale_of_a_gp_is_the_profiled_one(gp, problem):
    x, y = problem
    to_core, targets = scaled(x, y)
    lengthscale, scale, nugget = parameters(gp)
    process = Process("matern52", lengthscale, 1.0, nugget)
    assert scale == pytest.approx(process.best_scale(to_core(x), targets).scale, rel=1e-6)


def test_gp_leaves_one_out_as_if_it_had_not_been_there(gp, problem):
    x, y = problem
    to_core, targets = scaled(x, y)
    core = to_core(x)
    mean, std = gp.loo()
    for i in range(12):
        rest = np.arange(12) != i
        expected = predicted(core[rest], targets[rest], core[[i]], *parameters(gp))
        assert mean[i] == pytest.approx(expected[0][0] * y.std() + y.mean(), abs=1e-8)
        assert std[i] == pytest.approx(expected[1][0] * y.std(), rel=1e-8)


def test_loo_of_a_row_that_occurs_twice_leaves_out_both(problem):
    x, y = problem
    emulator = GP().fit(np.vstack([x, x[:1]]), np.append(y, y[0]))
    mean, std = emulator.loo()
    assert mean.shape == std.shape == (13,)
    assert mean[12] == mean[0] and std[12] == std[0]
    assert abs(mean[0] - y[0]) > 1e-4  # it was not simply read off the copy


def test_conditional_loo_of_a_dgp_has_the_units_of_y(problem):
    x, y = problem
    mean, std = DGP(**SMALL).fit(x, 1e6 * y + 5).loo(conditional=True)
    assert mean.shape == std.shape == (12,)
    assert np.all(np.isfinite(mean)) and np.all(std > 0)
    assert r2_score(1e6 * y + 5, mean) > 0.5
    assert 1e2 < np.median(std) < 1e6


def test_conditional_leave_one_out_with_a_structure_that_lost_its_vote(dgp, gp):
    """Its weights sum to zero, and once made all of it NaN."""
    emulator = copy.deepcopy(dgp)
    both = (*dgp.posterior_.structures, *gp.posterior_.structures)
    weights = np.array([0.0, 0.0, 1.0])  # two deep chains, a plain process
    without = dataclasses.replace(dgp.posterior_.stacked, weights=weights)
    emulator.posterior_ = dataclasses.replace(dgp.posterior_, structures=both, stacked=without)
    np.testing.assert_allclose(emulator.loo(conditional=True), gp.loo(), rtol=1e-12)


def test_a_dgp_of_one_layer_is_a_gp(gp, problem, elsewhere):
    x, y = problem
    settings = {"depth": 1, "prior": "reference", "n_iter": 60, "n_scoring": 3}
    flat = DGP(**(SMALL | settings)).fit(x, y)
    mean, std = flat.predict(elsewhere, return_std=True)
    gp_mean, gp_std = gp.predict(elsewhere, return_std=True)
    np.testing.assert_allclose(mean, gp_mean, atol=2e-3 * y.std())
    np.testing.assert_allclose(std, gp_std, rtol=0.05)


# --- draws ---------------------------------------------------------------------------------------


def test_draws_have_the_moments_that_predict_reports(dgp, elsewhere):
    n = 600
    draws = dgp.sample_y(elsewhere, n, random_state=3)
    assert draws.shape == (12, n)
    mean, std = dgp.predict(elsewhere, return_std=True)
    assert np.all(np.abs(draws.mean(axis=1) - mean) < 5 * std / np.sqrt(n))
    np.testing.assert_allclose(draws.std(axis=1), std, rtol=0.25)


def test_draws_are_joint(either):
    """Outputs of rows that nearly coincide nearly coincide; those of distant rows do not."""
    near = np.random.default_rng(4).random((6, 2)) + 1.0
    pairs = np.vstack([near, near + 1e-3])
    draws = either.sample_y(pairs, 60, random_state=0)
    draws = draws - draws.mean(axis=1, keepdims=True)
    assert np.all(np.mean((draws[:6] - draws[6:]) ** 2, axis=1) < 0.02 * draws[:6].var(axis=1))


def test_joint_draws_do_not_depend_on_rows_that_follow(dgp):
    at = np.random.default_rng(1).random((20, 2))
    few, many = (dgp.sample_y(at[:n], 3, random_state=5) for n in (4, 20))
    np.testing.assert_allclose(many[:4], few, rtol=1e-6)


def test_draws_are_reproducible(either, elsewhere):
    first = either.sample_y(elsewhere, 3, random_state=1)
    np.testing.assert_array_equal(either.sample_y(elsewhere, 3, random_state=1), first)
    assert np.all(either.sample_y(elsewhere, 3, random_state=2) != first)
    assert np.all(first[:, 0] != first[:, 1])


# --- settings and reproducibility ----------------------------------------------------------------


def test_the_settings_of_the_paper():
    expected = {
        "depth": 2,
        "kernel": "squared_exponential",
        "lengthscale": "shared",
        "connect_input": False,
        "nugget": 1e-6,
        "n_chains": 1,
        "n_iter": 500,
        "burn_in": 0.75,
        "n_sweeps": 10,
        "n_imputations": 50,
        "sweep": "node",
        "bracket": np.inf,
        "stacking": False,
    }
    assert expected.items() <= DGP.paper().get_params().items()
    changed = DGP.paper(connect_input=True, n_iter=7).get_params()
    assert (changed["connect_input"], changed["n_iter"]) == (True, 7)
    assert changed["n_imputations"] == 50


@pytest.mark.parametrize("seed", [1, 7, 16])
def test_a_single_chain_does_not_take_a_step_for_noise(seed):
    """Fitted to hidden layers that still were copies of the inputs, the scale went to 1e5."""
    x = np.linspace(0, 1, 10)[:, None]
    emulator = DGP.paper(depth=3, random_state=seed, n_iter=150, n_imputations=5, verbose=False)
    emulator.fit(x, step(x[:, 0]))
    at = np.concatenate([np.linspace(0.05, 0.4, 20), np.linspace(0.6, 0.95, 20)])
    error = emulator.predict(at[:, None]) - step(at)
    assert np.abs(error).max() < 0.3


def test_the_same_seed_gives_the_same_emulator(dgp, problem, elsewhere):
    again = DGP(**SMALL).fit(*problem)
    for mine, theirs in zip(
        dgp.predict(elsewhere, return_std=True),
        again.predict(elsewhere, return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)
    other = DGP(**SMALL, random_state=1).fit(*problem)
    assert np.all(other.predict(elsewhere) != dgp.predict(elsewhere))


def test_chains_differ(dgp):
    first, second = dgp.trace_["log_density"]
    assert np.all(first != second)


def test_a_generator_as_seed_is_used_up(problem, elsewhere):
    generator = np.random.RandomState(0)
    first = DGP(**SMALL, random_state=generator).fit(*problem).predict(elsewhere)
    second = DGP(**SMALL, random_state=generator).fit(*problem).predict(elsewhere)
    assert np.all(first != second)


def test_rows_are_predicted_one_by_one_as_all_together(either, elsewhere):
    together = either.predict(elsewhere, return_std=True)
    singly = [either.predict(elsewhere[i : i + 1], return_std=True) for i in range(12)]
    np.testing.assert_allclose(np.hstack(singly), together, rtol=1e-9)


# --- the user's JAX ------------------------------------------------------------------------------


@KINDS
def test_the_precision_of_the_users_process_is_left_alone(make, problem, elsewhere):
    emulator = make().fit(*problem)
    emulator.sample_y(elsewhere)
    emulator.update(elsewhere[:1], curve(elsewhere[:1]))
    closed_form_loo(emulator)
    assert emulator.predict(elsewhere).dtype == np.float64
    assert not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == jnp.float32


def test_a_process_with_float64_on_gets_the_same_numbers(either, problem, elsewhere):
    expected = either.predict(elsewhere, return_std=True)
    jax.config.update("jax_enable_x64", True)
    try:
        got = clone(either).fit(*problem).predict(elsewhere, return_std=True)
        assert jnp.ones(1).dtype == jnp.float64
    finally:
        jax.config.update("jax_enable_x64", False)
    np.testing.assert_array_equal(got, expected)


def test_the_number_of_draws_is_checked(gp, elsewhere):
    for wrong in (0, -1, 1.5, "2", None):
        with pytest.raises(InputError, match="n_samples is"):
            gp.sample_y(elsewhere, wrong)
