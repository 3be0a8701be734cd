"""What the emulators promise: interpolation, units, shapes, formulas, growth, reproducibility."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_triangular
from sklearn.metrics import r2_score

from deepemu import DGP, GP, InputError

SMALL = {"n_chains": 2, "n_iter": 6, "n_sweeps": 2, "n_imputations": 2}

pytestmark = pytest.mark.usefixtures("quick_programs")


def curve(x):
    return np.sin(5 * x[:, 0]) + x[:, 1]


@pytest.fixture(scope="module")
def problem():
    x = np.random.default_rng(0).random((12, 2))
    return x, curve(x)


@pytest.fixture(scope="module")
def elsewhere():
    """Twelve test rows, as many as there are training rows: sampling compiles for one number."""
    return np.random.default_rng(1).random((12, 2))


@pytest.fixture(scope="module")
def gp(problem):
    return GP().fit(*problem)


@pytest.fixture(scope="module")
def dgp(problem):
    return DGP(**SMALL).fit(*problem)


@pytest.fixture(params=["gp", "dgp"])
def fitted(request):
    return request.getfixturevalue(request.param)


def closed_form_loo(emulator):
    """The closed form is all that a GP has, and for a DGP it must be asked for."""
    return emulator.loo() if isinstance(emulator, GP) else emulator.loo(conditional=True)


KINDS = pytest.mark.parametrize("make", [GP, lambda: DGP(**SMALL)], ids=["GP", "DGP"])


# --- the fit -------------------------------------------------------------------------------------


def test_training_points_are_interpolated(fitted, problem):
    x, y = problem
    mean, std = fitted.predict(x, return_std=True)
    np.testing.assert_allclose(mean, y, atol=3e-3 * y.std())
    assert np.all(std < 0.02 * y.std())
    assert np.all(np.abs(mean - y) < 3 * std)


def test_uncertainty_grows_away_from_the_data(fitted, problem):
    x, y = problem
    at_data = fitted.predict(x, return_std=True)[1]
    far_mean, far_std = fitted.predict(x + 1e3, return_std=True)
    assert far_std.min() > 10 * at_data.max()
    np.testing.assert_allclose(far_mean, y.mean(), atol=1e-6)  # the prior mean of a GP in y's units


def test_score_is_the_coefficient_of_determination(fitted, elsewhere):
    truth = curve(elsewhere)
    assert fitted.score(elsewhere, truth) == r2_score(truth, fitted.predict(elsewhere))
    assert 0.9 < fitted.score(elsewhere, truth) < 1.0


@KINDS
@pytest.mark.parametrize(("factor", "offset"), [(1e8, 0.0), (1e-8, 0.0), (1.0, 1e6), (-3.0, 7.0)])
def test_predictions_follow_the_units_of_y(make, problem, elsewhere, factor, offset):
    x, y = problem
    mean, std = make().fit(x, y).predict(elsewhere, return_std=True)
    moved_mean, moved_std = make().fit(x, factor * y + offset).predict(elsewhere, return_std=True)
    np.testing.assert_allclose((moved_mean - offset) / factor, mean, atol=1e-6)
    np.testing.assert_allclose(moved_std / abs(factor), std, rtol=1e-4)


@KINDS
@pytest.mark.parametrize("units", [(1e-8, 1e8), (1e8, 1e-8)])
def test_predictions_do_not_depend_on_the_units_of_x(make, problem, elsewhere, units):
    x, y = problem
    mean, std = make().fit(x, y).predict(elsewhere, return_std=True)
    other_mean, other_std = make().fit(x * units, y).predict(elsewhere * units, return_std=True)
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
        np.testing.assert_allclose(np.concatenate([p.ravel() for p in trace["nugget"]]), 1e-6)
    np.testing.assert_allclose(dgp.trace_["scale"][0], 1.0)  # hidden layers have unit variance


def test_each_member_has_its_chains_average_after_burn_in(dgp):
    kept = dgp.trace_["lengthscale"][1][:, 4:].mean(axis=1)  # 75 % of 6 iterations are 4
    log_lengthscale = dgp.ensembles_[0].members.params[1].log_lengthscale
    np.testing.assert_allclose(np.exp(log_lengthscale), np.repeat(kept, 2, axis=0))
    np.testing.assert_allclose(dgp.ensembles_[0].weights, [0.25] * 4)


# --- against the formulas, in NumPy --------------------------------------------------------------


def matern52(a, b, lengthscale):
    r = np.sqrt(5) * np.abs(a[:, None] - b[None]) / lengthscale
    return np.prod((1 + r + r**2 / 3) * np.exp(-r), axis=2)


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
    lower = np.linalg.cholesky(matern52(x, x, lengthscale) + nugget * np.eye(len(x)))
    whitened = solve_triangular(lower, matern52(x, at, lengthscale), lower=True)
    mean = whitened.T @ solve_triangular(lower, y, lower=True)
    return mean, np.sqrt(scale * (1 + nugget - np.sum(whitened**2, axis=0)))


def test_gp_predictions_are_the_textbook_formula(gp, problem, elsewhere):
    x, y = problem
    to_core, targets = scaled(x, y)
    expected = predicted(to_core(x), targets, to_core(elsewhere), *parameters(gp))
    mean, std = gp.predict(elsewhere, return_std=True)
    np.testing.assert_allclose(mean, expected[0] * y.std() + y.mean(), atol=1e-9)
    np.testing.assert_allclose(std, expected[1] * y.std(), rtol=1e-8)


def test_the_scale_of_a_gp_is_the_profiled_one(gp, problem):
    x, y = problem
    to_core, targets = scaled(x, y)
    lengthscale, scale, nugget = parameters(gp)
    covariance = matern52(to_core(x), to_core(x), lengthscale) + nugget * np.eye(12)
    assert scale == pytest.approx(targets @ np.linalg.solve(covariance, targets) / 12, rel=1e-6)


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


def test_a_dgp_of_one_layer_is_a_gp(problem, elsewhere):
    x, y = problem
    settings = {"depth": 1, "prior": "reference", "n_iter": 60, "n_scoring": 3}
    flat = DGP(**(SMALL | settings)).fit(x, y)
    mean, std = flat.predict(elsewhere, return_std=True)
    gp_mean, gp_std = GP().fit(x, y).predict(elsewhere, return_std=True)
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


def test_draws_are_joint(fitted):
    """Outputs of rows that nearly coincide nearly coincide; those of distant rows do not."""
    near = np.random.default_rng(4).random((6, 2)) + 1.0
    pairs = np.vstack([near, near + 1e-3])
    draws = fitted.sample_y(pairs, 60, random_state=0)
    draws = draws - draws.mean(axis=1, keepdims=True)
    assert np.all(np.mean((draws[:6] - draws[6:]) ** 2, axis=1) < 0.02 * draws[:6].var(axis=1))


def test_draws_are_reproducible(fitted, elsewhere):
    first = fitted.sample_y(elsewhere, 3, random_state=1)
    np.testing.assert_array_equal(fitted.sample_y(elsewhere, 3, random_state=1), first)
    assert np.all(fitted.sample_y(elsewhere, 3, random_state=2) != first)
    assert np.all(first[:, 0] != first[:, 1])


# --- growing -------------------------------------------------------------------------------------


@KINDS
def test_update_adds_rows_and_loses_none(make, problem):
    x, y = problem
    emulator = make().fit(x[:9], y[:9])
    uncertain = emulator.predict(x[9:], return_std=True)[1]
    assert emulator.update(x[9:], y[9:]) is emulator
    assert closed_form_loo(emulator)[0].shape == (12,)
    np.testing.assert_allclose(emulator.predict(x), y, atol=5e-3 * y.std())
    assert np.all(emulator.predict(x[9:], return_std=True)[1] < uncertain)


def test_an_updated_gp_is_the_gp_fitted_to_all_rows(problem, elsewhere):
    """Up to the scaling, which an update keeps: so the rows that set it come first."""
    x, y = problem
    order = np.argsort(-np.abs(x - 0.5).max(axis=1))
    x, y = x[order], y[order]
    grown = GP().fit(x[:9], y[:9]).update(x[9:], y[9:])
    np.testing.assert_allclose(
        grown.predict(elsewhere), GP().fit(x, y).predict(elsewhere), atol=0.05 * y.std()
    )


@KINDS
def test_updating_with_a_row_that_is_there_changes_little(make, problem, elsewhere):
    x, y = problem
    emulator = make().fit(x, y)
    before = emulator.predict(elsewhere)
    emulator.update(x[:1], y[:1])
    assert closed_form_loo(emulator)[0].shape == (13,)
    assert len(emulator.ensembles_[0].data.x) == 16
    np.testing.assert_allclose(emulator.predict(x), y, atol=5e-3 * y.std())
    np.testing.assert_allclose(emulator.predict(elsewhere), before, atol=0.3 * y.std())


@KINDS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:, :1], y), "1 features, but .* expecting 2"),
        (lambda x, y: (x, np.column_stack([y, y])), "2 column"),
        (lambda x, y: (x, y[:-1]), "inconsistent numbers of samples"),
        (lambda x, y: (x * np.nan, y), "NaN"),
        (lambda x, y: (x, y + [np.inf, *[0] * 11]), "infinity"),
        (lambda x, y: (x[:0], y[:0]), "minimum of 1"),
    ],
)
def test_a_refused_update_changes_nothing(make, problem, elsewhere, change, message):
    x, y = problem
    emulator = make().fit(x, y)
    before = emulator.predict(elsewhere, return_std=True)
    with pytest.raises(ValueError, match=message):
        emulator.update(*change(elsewhere, curve(elsewhere)))
    np.testing.assert_array_equal(emulator.predict(elsewhere, return_std=True), before)
    assert closed_form_loo(emulator)[0].shape == (12,)


@KINDS
def test_an_update_that_breaks_off_changes_nothing(make, problem, elsewhere, monkeypatch):
    x, y = problem
    emulator = make().fit(x, y)
    before = emulator.predict(elsewhere, return_std=True)

    def break_off(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(emulator._parts[0].candidate), "go_on", break_off)
        with pytest.raises(KeyboardInterrupt):
            emulator.update(elsewhere, curve(elsewhere))
    np.testing.assert_array_equal(emulator.predict(elsewhere, return_std=True), before)
    assert closed_form_loo(emulator)[0].shape == (12,)
    emulator.update(elsewhere[:2], curve(elsewhere[:2]))
    assert closed_form_loo(emulator)[0].shape == (14,)


# --- noise ---------------------------------------------------------------------------------------


def noise_sd(emulator, y):
    _, scale, nugget = parameters(emulator)
    return np.sqrt(scale * nugget) * y.std()


@pytest.mark.parametrize("n_replicates", [1, 4])
def test_an_estimated_nugget_recovers_the_noise(n_replicates):
    rng = np.random.default_rng(5)
    x = np.repeat(np.linspace(0, 1, 48 // n_replicates), n_replicates)[:, None]
    y = 10 * np.sin(6 * x[:, 0]) + rng.normal(0, 1.5, 48)
    emulator = GP(nugget="estimate").fit(x, y)
    assert noise_sd(emulator, y) == pytest.approx(1.5, rel=0.3)
    mean, std = emulator.predict(x, return_std=True)
    np.testing.assert_allclose(mean, 10 * np.sin(6 * x[:, 0]), atol=2.0)
    assert np.all(std > 1.0)  # of an observation, so the noise is part of it


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


def test_rows_are_predicted_one_by_one_as_all_together(fitted, elsewhere):
    together = fitted.predict(elsewhere, return_std=True)
    singly = [fitted.predict(elsewhere[i : i + 1], return_std=True) for i in range(12)]
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


@KINDS
def test_a_process_with_float64_on_gets_the_same_numbers(make, problem, elsewhere):
    expected = make().fit(*problem).predict(elsewhere, return_std=True)
    jax.config.update("jax_enable_x64", True)
    try:
        got = make().fit(*problem).predict(elsewhere, return_std=True)
        assert jnp.ones(1).dtype == jnp.float64
    finally:
        jax.config.update("jax_enable_x64", False)
    np.testing.assert_array_equal(got, expected)


def test_the_number_of_draws_is_checked(gp, elsewhere):
    for wrong in (0, -1, 1.5, "2", None):
        with pytest.raises(InputError, match="n_samples is"):
            gp.sample_y(elsewhere, wrong)
