"""The observation models of the package: their distributions, data and fits."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from builders import brief_plain_gps
from scipy import stats
from scipy.special import expit

from deepemu import DGP, GP, InputError, load, save
from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.model.observation import Units
from deepemu.observations import quadrature
from deepemu.observations.binomial import Binomial
from deepemu.observations.choice import MODELS
from deepemu.observations.counts import (
    DISPERSION,
    ZEROS,
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from deepemu.observations.noise import CENTRE, HeteroscedasticNoise, KnownNoise
from deepemu.observations.student import HEAVINESS, SIZE, StudentT
from deepemu.posterior.comparison import scores_of
from deepemu.runtime import devices
from deepemu.training import structures

# --- predictive distributions, by sums over a fine grid of latents --------------------------------

GRID = np.linspace(-9.0, 9.0, 4001)
COARSE = np.linspace(-7.0, 7.0, 141)


def negative_binomial(mean, a):
    return stats.nbinom(1.0 / a, 1.0 / (1.0 + a * mean))


def inflated(part, share, name, y):
    """The density or distribution function of counts with more zeros."""
    zeros = y >= 0 if name == "cdf" else y == 0
    return share * zeros + (1.0 - share) * getattr(part, name)(y)


class Case:
    """A model, its units, moments of its latents, and P(y | latents) by SciPy."""

    def __init__(self, model, units, mean, var, given, outputs):
        self.model, self.units, self.given, self.outputs = model, units, given, np.array(outputs)
        self.mean, self.var = np.array(mean, float), np.array(var, float)

    def latents(self, n):
        return Gaussian(np.tile(self.mean, (1, n, 1)), np.tile(self.var, (1, n, 1)))

    @functools.cached_property
    def mixing(self):
        """Latents on a grid, a first one that varies finely, and their weights."""
        points = [GRID, *(COARSE if v else np.zeros(1) for v in self.var[1:])]
        mesh = [each.ravel() for each in np.meshgrid(*points, indexing="ij")]
        weights = np.prod([stats.norm.pdf(z) for z in mesh], axis=0)
        pairs = zip(self.mean, self.var, mesh, strict=True)
        return [m + np.sqrt(v) * z for m, v, z in pairs], weights / weights.sum()

    def expected(self, name, y):
        """E of a density ("pmf", "pdf") or of the distribution function at outputs y."""
        latents, weights = self.mixing
        return np.array([weights @ self.given(name, each, *latents) for each in y])


def count_case(model, scipys, mean, var, outputs, size=3.0):
    return Case(model, Units(np.zeros(1), np.array([size])), mean, var, scipys, outputs)


def of_poisson(name, y, f):
    return getattr(stats.poisson(3.0 * np.exp(f)), name)(y)


def of_negative_binomial(name, y, f, g):
    a = np.exp(DISPERSION[0] + DISPERSION[1] * g)
    return getattr(negative_binomial(3.0 * np.exp(f), a), name)(y)


def of_inflated_poisson(name, y, f, z):
    share = expit(ZEROS[0] + ZEROS[1] * z)
    return inflated(stats.poisson(3.0 * np.exp(f)), share, name, y)


def of_inflated_binomial(name, y, f, g, z):
    a, share = np.exp(DISPERSION[0] + DISPERSION[1] * g), expit(ZEROS[0] + ZEROS[1] * z)
    return inflated(negative_binomial(3.0 * np.exp(f), a), share, name, y)


def of_binomial(name, y, f):
    return getattr(stats.binom(20, expit(f)), name)(y)


def of_student(name, y, f, s, h):
    nu = 2.0 + np.exp(HEAVINESS[0] + HEAVINESS[1] * h)
    size = 3.0 * np.exp(SIZE[0] + SIZE[1] * s)
    return getattr(stats.t(nu, 5.0 + 3.0 * f, size), name)(y)


def of_heteroscedastic(name, y, f, g):
    return getattr(stats.norm(5.0 + 3.0 * f, 3.0 * np.exp(0.5 * (CENTRE + g))), name)(y)


def of_known(name, y, f):
    return getattr(stats.norm(5.0 + 3.0 * f, 0.7), name)(y)


CONTINUOUS = Units(np.array([5.0]), np.array([3.0]))
WITH_NOISE = Units(*(np.array([[each]]) for each in (5.0, 3.0, (0.7 / 3.0) ** 2)))
COUNTS, REALS = [0, 1, 2, 5, 9, 30], [-3.0, 4.0, 5.0, 6.5, 14.0]
CASES = {
    "poisson": count_case(Poisson(), of_poisson, [0.5], [0.4], COUNTS),
    # A density as a function of the latent is far narrower than the latent's distribution here.
    "poisson, large": count_case(
        Poisson(), of_poisson, [7.0], [0.5], [800, 2900, 3300, 3301, 15_000]
    ),
    "poisson, known rate": count_case(Poisson(), of_poisson, [0.5], [1e-14], COUNTS),
    "negative binomial": count_case(
        NegativeBinomial(), of_negative_binomial, [0.5, 0.4], [0.6, 0.0], COUNTS
    ),
    "negative binomial, varying": count_case(
        NegativeBinomial(varying=True), of_negative_binomial, [0.5, 0.4], [0.6, 0.2], COUNTS
    ),
    "zero inflated": count_case(
        ZeroInflatedPoisson(), of_inflated_poisson, [0.5, 0.3], [0.4, 0.5], COUNTS
    ),
    "zero inflated, dispersed": count_case(
        ZeroInflatedNegativeBinomial(), of_inflated_binomial,
        [0.5, 0.4, 0.3], [0.4, 0.0, 0.5], COUNTS,
    ),
    "binomial": count_case(Binomial(), of_binomial, [0.8], [0.9], [0, 1, 7, 19, 20], 20.0),
    "student": Case(StudentT(), CONTINUOUS, [0.2, 0.4, 0.1], [0.3, 0, 0], of_student, REALS),
    "heteroscedastic": Case(
        HeteroscedasticNoise(), CONTINUOUS, [0.2, 0.6], [0.3, 0.5], of_heteroscedastic, REALS
    ),
    "known": Case(KnownNoise(), WITH_NOISE, [0.2], [0.3], of_known, REALS),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_densities_are_averages_over_the_latents(case):
    name = "pdf" if case.model.spacing is None else "pmf"
    y = case.units.to_core(case.outputs[:, None].astype(float))
    found = case.model.log_density_of(y[None], case.latents(len(y)), case.units)
    found = found - case.model.log_size(case.units)
    np.testing.assert_allclose(np.exp(found[0, :, 0]), case.expected(name, case.outputs), rtol=1e-5)


def test_distribution_functions_are_averages_over_the_latents(case):
    y = case.units.to_core(case.outputs[:, None].astype(float))
    found = case.model.cdf(y[None], case.latents(len(y)), case.units)[0, :, 0]
    np.testing.assert_allclose(found, case.expected("cdf", case.outputs), rtol=1e-5, atol=1e-9)


def test_moments_are_those_of_draws_and_of_the_density(case, rng):
    """The variance of a t distribution needs many draws."""
    n = 400_000
    drawn = case.mean + np.sqrt(case.var) * rng.standard_normal((n, len(case.var)))
    y = case.model.draw(rng, drawn, case.units)[:, 0]
    with devices.float64():
        found = jax.tree.map(np.asarray, case.model.moments(case.latents(1), case.units))
    mean, var = found.mean.item(), found.var.item()
    assert abs(y.mean() - mean) < 4.0 * np.sqrt(var / n)
    error = np.std((y - mean) ** 2) / np.sqrt(n)
    assert abs(np.mean((y - mean) ** 2) - var) < 4.0 * error
    grid = case.model.spacing is not None
    if grid and mean * np.max(case.units.size) < 100.0:
        every = np.arange(8000.0)[:, None]
        log_mass = case.model.log_density_of(
            case.units.to_core(every)[None], case.latents(8000), case.units
        )
        mass, size = np.exp(log_mass[0, :, 0]), case.units.size.item()
        np.testing.assert_allclose(mass.sum(), 1.0, atol=1e-6)
        np.testing.assert_allclose(mass @ every[:, 0], size * mean, rtol=1e-5)
        second = mass @ (every[:, 0] - size * mean) ** 2
        np.testing.assert_allclose(second, size**2 * var, rtol=1e-4)


def test_quantiles_are_the_least_outputs_with_enough_below(case):
    found = Mixture(case.latents(3), np.ones((1, 3)))
    for level in (0.025, 0.5, 0.975):
        y = case.units.to_user(case.model.quantile(level, found, case.units))[0].ravel()[:1]
        step = case.model.spacing or 1e-3
        assert case.expected("cdf", np.round(y, 9)) >= level - 1e-5
        assert case.expected("cdf", np.round(y, 9) - step) < level


def logs_on_a_grid(log_given, mean, std, low, high):
    """log E p(y | f) by a fine sum over f between two ends."""
    f = np.linspace(low, high, 400_001)
    each = stats.norm.logpdf(f, mean, std) + log_given(f)
    return each.max() + np.log(np.trapezoid(np.exp(each - each.max()), f))


@pytest.mark.parametrize(
    ("model", "size", "y", "mean", "std"),
    [
        (Poisson(), 1.0, 1500, np.log(100), 0.3),
        (Poisson(), 1.0, 300, np.log(1000), 0.1),
        (Binomial(), 1000.0, 600, -2.0, 0.2),
        (Binomial(), 500.0, 100, 3.0, 0.2),
    ],
)
def test_outputs_many_deviations_off_have_their_density(model, size, y, mean, std):
    """Where the likelihood is far from the latent's mean, as at a step that was not foreseen."""
    latents = Gaussian(np.full((1, 1, 1), mean), np.full((1, 1, 1), std**2))
    units = Units(np.zeros(1), np.array([size]))
    found = model.log_density_of(np.array([[[y / size]]]), latents, units).item()
    given = {
        Poisson: lambda f: stats.poisson.logpmf(y, np.exp(f)),
        Binomial: lambda f: stats.binom.logpmf(y, int(size), expit(f)),
    }[type(model)]
    np.testing.assert_allclose(found, logs_on_a_grid(given, mean, std, -9.0, 9.0), rtol=1e-6)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("mean", "std"), [(0.3, 0.7), (2.0, 1.001), (5.0, 10.0), (10.0, 50.0)])
def test_shares_of_any_latent_are_averages(mean, std, power):
    z = np.linspace(-9.0, 9.0, 400_001)
    weights = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    latent = Gaussian(np.array(mean), np.array(std**2))
    found = quadrature.expected_share(quadrature.HOST, latent, power)
    np.testing.assert_allclose(found, weights @ expit(mean + std * z) ** power, rtol=1e-7)


@pytest.mark.parametrize("var", [1.0, 25.0, 70.0])
def test_quantiles_of_counts_of_any_spread(var):
    """The median of counts of a log-normal rate is near that of the rate."""
    found = Mixture(Gaussian(np.zeros((1, 1, 1)), np.full((1, 1, 1), var)), np.ones((1, 1)))
    units = Units(np.zeros(1), np.array([10.0]))
    assert abs(units.to_user(Poisson().quantile(0.5, found, units)).item() - 10.0) <= 1.0


def test_outputs_between_counts_have_no_probability():
    units, y = Units(np.zeros(1), np.array([4.0])), np.array([[[2.5 / 4.0]]])
    for model in (Poisson(), Binomial(), ZeroInflatedPoisson()):
        shape = (1, 1, model.n_latents(1))
        assert model.log_density_of(y, Gaussian(np.zeros(shape), np.ones(shape)), units) == -np.inf


def test_common_nodes_have_no_noise_of_rows():
    """Also where the last layer's nugget and scale are given."""
    x, y = FEW, np.array([1.0, 2, 0, 3, 4, 2])
    problem = GP(observation="negative_binomial", nugget=0.1)
    with brief_plain_gps(4):
        (trained,) = problem.fit(x, y).posterior_.structures
    nuggets = np.exp(np.asarray(trained.imputed.params[-1].log_nugget)).reshape(-1, 2)[0]
    np.testing.assert_allclose(nuggets, [0.1, 1e-6], rtol=1e-9)


def test_scores_and_draws_know_exposures():
    rng = np.random.default_rng(4)
    x, exposure = np.linspace(0, 1, 30)[:, None], np.linspace(1, 100, 30)
    y = rng.poisson(exposure * np.exp(x[:, 0])).astype(float)
    with brief_plain_gps(8):
        emulator = GP(observation="poisson").fit(x, y, exposure=exposure)
    assert emulator.score(x, y, exposure=exposure) > 0.95
    assert emulator.score(x, y) < 0.0
    drawn = emulator.sample_y(x, 200, exposure=exposure)
    mean = emulator.predict(x, exposure=exposure)
    np.testing.assert_allclose(drawn.mean(axis=1), mean, rtol=0.3)


def test_equal_outputs_have_a_finite_score():
    found = Mixture(Gaussian(np.zeros((1, 5, 1)), np.ones((1, 5, 1))), np.ones((1, 5)))
    scores = scores_of(np.ones((5, 1)), found, Poisson(), Units(np.zeros(1), np.ones(1)))
    assert np.isfinite(scores["crps"])


def test_outputs_that_cannot_be_have_no_probability(case):
    if case.model.spacing is None:
        return
    y = case.units.to_core(np.array([[-1.0]]))
    assert case.model.log_density_of(y[None], case.latents(1), case.units).item() == -np.inf
    assert case.model.cdf(y[None], case.latents(1), case.units).item() == 0.0


# --- likelihoods of replicates --------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if "known rate" not in name])
def test_the_likelihood_of_replicates_is_that_of_all_outputs(name, rng):
    """By SciPy, output by output; but for what does not depend on the latents."""
    case, site = CASES[name], np.repeat(np.arange(4), [1, 3, 5, 2])
    latents = case.mean + 0.3 * rng.standard_normal((2, 4, len(case.mean)))
    units = Units(*(np.asarray(each).ravel() for each in (case.units.shift, case.units.size)))
    if case.units.noise is not None:
        units = case.model.units_of_rows(units, np.full((11, 1), 0.49))
    y = np.round(case.model.draw(rng, latents[0][site], units), 12)
    observed = case.model.collapse(y, site, units)
    density = "pdf" if case.model.spacing is None else "pmf"
    with devices.float64():
        found = [case.model.log_density(observed, each, np.ones(4)).item() for each in latents]
    shift, size = (np.ravel(each)[0] for each in (units.shift, units.size))
    rows = [shift + size * value for value in y[:, 0]]
    rows = rows if density == "pdf" else np.round(rows)
    expected = [
        sum(np.log(case.given(density, each, *at[s])) for each, s in zip(rows, site, strict=True))
        for at in latents
    ]
    np.testing.assert_allclose(found[1] - found[0], expected[1] - expected[0], rtol=1e-8, atol=1e-8)


def test_replicates_cost_what_one_costs():
    """Statistics of a hundred replicates have the shape of those of one, where there are such."""
    site = np.repeat(np.arange(5), 100)
    y = np.random.default_rng(0).poisson(3.0, (500, 2)).astype(float)
    one = np.arange(5)
    for model in (HeteroscedasticNoise(), Poisson(), Binomial()):
        units = Units(np.zeros(2), np.full(2, 20.0))
        many, few = model.collapse(y / 20.0, site, units), model.collapse(y[:5] / 20.0, one, units)
        shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(each)] for each in (many, few)]
        assert shapes[0] == shapes[1]
    tabled = NegativeBinomial().collapse(y / 20.0, site, units)
    assert tabled.y.shape[1] <= 16  # different counts
    np.testing.assert_array_equal(tabled.weights.sum(axis=1), np.full((5, 2), 100.0))


# --- fits -----------------------------------------------------------------------------------------

AT = np.linspace(0.06, 0.94, 9)[:, None]
X = np.repeat(np.linspace(0, 1, 30), 4)[:, None]


def function(x):
    return 1.0 + np.sin(5.0 * x[:, 0])


def noise_sd(x):
    return 0.1 + 0.6 * x[:, 0]


def simulated(name, rng):
    """Outputs at X, what is known of them, and P(output ≤ y) of new ones at AT by SciPy."""
    f, at = function(X), function(AT)
    exposure, trials = rng.uniform(0.5, 4.0, len(X)), rng.integers(5, 40, len(X))
    zero = rng.random(len(X)) < 0.25
    counts = rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(f)))
    true_counts = negative_binomial(np.exp(at), 0.5)
    found = {
        "heteroscedastic": (f + noise_sd(X) * rng.standard_normal(len(X)), {}, None),
        "poisson": (rng.poisson(exposure * np.exp(f)), {"exposure": exposure}, np.exp(at)),
        "negative_binomial": (counts, {}, true_counts.mean()),
        "zero_inflated_poisson": (np.where(zero, 0, rng.poisson(np.exp(f))), {}, 0.75 * np.exp(at)),
        "zero_inflated_negative_binomial": (np.where(zero, 0, counts), {}, 0.75 * np.exp(at)),
        "binomial": (rng.binomial(trials, expit(f)), {"trials": trials}, expit(at)),
        "student_t": (f + 0.15 * rng.standard_t(3, len(X)), {}, at),
    }
    return found[name]


@pytest.fixture(scope="module")
def fits():
    """A plain process of each model, to what was simulated from it."""
    made = {}

    def fit(name):
        if name not in made:
            y, known, true = simulated(name, np.random.default_rng(0))
            made[name] = GP(observation=name).fit(X, y.astype(float), **known), y, known, true
        return made[name]

    return fit


def test_models_find_the_means_that_data_were_simulated_from(fits):
    """Standard deviations are those given the lengthscales that were found, so that errors are
    somewhat larger: 1.5 to 1.8 times, over six models and three simulations."""
    every = []
    for name in (name for name in MODELS if name != "heteroscedastic"):
        emulator, *_, true = fits(name)
        mean, std = emulator.predict(AT, return_std=True, latent=True)
        every.append((mean - true) / std)
        assert np.sqrt(np.mean(every[-1] ** 2)) < 3.0
        assert np.all(std < 0.6 * np.abs(true) + 0.2)
        _, std_of_output = emulator.predict(AT, return_std=True)
        assert np.all(std_of_output > 1.2 * std)
    assert np.sqrt(np.mean(np.square(every))) < 2.0


def test_common_parameters_are_found(fits):
    """The dispersion ½ and the share of zeros ¼, as the last layer's last nodes say."""
    emulator, *_ = fits("zero_inflated_negative_binomial")
    latents = emulator.posterior_.structures[0].imputed.members.latents[-1][:, :, :30]
    spread = np.ptp(latents[..., 1:], axis=2)
    assert np.all(spread < 0.02)  # one number
    assert np.all(np.ptp(latents[..., 0], axis=2) > 0.5)
    drawn = latents[:, :, 0].reshape(-1, 3)
    dispersion = DISPERSION[0] + DISPERSION[1] * drawn[:, 1]
    logit = ZEROS[0] + ZEROS[1] * drawn[:, 2]
    assert abs(dispersion.mean() - np.log(0.5)) < 1.0
    assert abs(expit(logit).mean() - 0.25) < 0.12


def test_noise_that_differs_is_found(fits):
    emulator, *_ = fits("heteroscedastic")
    mean, std = emulator.predict(AT, return_std=True)
    _, of_function = emulator.predict(AT, return_std=True, latent=True)
    z = (mean - function(AT)) / of_function
    assert np.sqrt(np.mean(z**2)) < 3.0  # as of the other models
    np.testing.assert_allclose(np.sqrt(std**2 - of_function**2), noise_sd(AT), rtol=0.5)
    low, high = emulator.interval(AT)
    inside = stats.norm.cdf(high, function(AT), noise_sd(AT))
    inside -= stats.norm.cdf(low, function(AT), noise_sd(AT))
    assert abs(inside.mean() - 0.95) < 0.04


def test_known_noise_is_that_of_the_exact_process(monkeypatch):
    """The mean of many draws from the posterior given the parameters, by linear algebra."""
    many = dataclasses.replace(structures.GUIDED_PLAIN, n_imputations=150)
    monkeypatch.setattr(structures, "GUIDED_PLAIN", many)
    rng = np.random.default_rng(5)
    x, variance = np.linspace(0, 1, 25)[:, None], np.linspace(0.01, 0.3, 25)
    y = function(x) + np.sqrt(variance) * rng.standard_normal(25)
    emulator = GP(kernel="squared_exponential").fit(x, y, noise_variance=variance)
    (trained,) = emulator.posterior_.structures
    params = jax.tree.map(lambda each: each[:, 0, 0], trained.imputed.params[-1])
    scale, lengthscale = np.exp(params.log_scale), np.exp(params.log_lengthscale[..., 0])
    expected = []
    for s, g in zip(scale, lengthscale, strict=True):
        covariance = lambda a, b: s * np.exp(-(((a - b.T) / g) ** 2))  # noqa: B023, E731
        gain = covariance(AT, x) @ np.linalg.inv(covariance(x, x) + np.diag(variance) / y.var())
        expected.append(gain @ (y - y.mean()) + y.mean())
    mean, std = emulator.predict(AT, return_std=True)
    assert np.max(np.abs(mean - np.mean(expected, axis=0)) / std) < 0.15
    with_noise = emulator.predict(AT, return_std=True, noise_variance=0.09)[1]
    np.testing.assert_allclose(with_noise, np.hypot(std, 0.3), rtol=1e-8)


def test_equal_noise_is_left_out_of_the_function():
    """The variance of a plain process without σ²η."""
    rng = np.random.default_rng(1)
    y = function(X) + 0.3 * rng.standard_normal(len(X))
    emulator = GP(nugget="estimate").fit(X, y)
    std, of_function = (
        emulator.predict(AT, return_std=True, latent=latent)[1] for latent in (False, True)
    )
    noise = np.sqrt(std**2 - of_function**2)
    np.testing.assert_allclose(noise, noise[0])
    np.testing.assert_allclose(noise, 0.3, rtol=0.2)


def test_exposure_and_trials_of_new_counts(fits):
    """Means grow with them, and quantiles are those of the sum of so many."""
    emulator, *_ = fits("poisson")
    np.testing.assert_allclose(
        emulator.predict(AT, exposure=np.full(9, 3.0)), 3.0 * emulator.predict(AT), rtol=1e-9
    )
    share, *_ = fits("binomial")
    np.testing.assert_allclose(share.predict(AT, trials=30), 30 * share.predict(AT), rtol=1e-9)
    low, high = share.interval(AT, trials=np.arange(1, 10))
    assert np.all(low >= 0) and np.all(high <= np.arange(1, 10))
    mass = np.exp(share.log_density(np.repeat(AT[:1], 31, axis=0), np.arange(31), trials=30))
    np.testing.assert_allclose(mass.sum(), 1.0, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_files_hold_every_model(name, fits, tmp_path):
    emulator, _, known, _ = fits(name)
    save(emulator, tmp_path / "a.deepemu")
    again = load(tmp_path / "a.deepemu")
    np.testing.assert_array_equal(again.predict(AT), emulator.predict(AT))
    if known:
        np.testing.assert_array_equal(
            again.posterior_.runs.known, next(iter(known.values()))[:, None]
        )


def test_an_update_takes_new_exposures(fits, tmp_path):
    emulator, y, known, _ = fits("poisson")
    save(emulator, tmp_path / "a.deepemu")
    again = load(tmp_path / "a.deepemu")
    again.update(AT, np.full(9, 12.0), exposure=np.full(9, 4.0))
    np.testing.assert_array_equal(again.posterior_.runs.known[-9:, 0], 4.0)
    assert np.all(np.isfinite(again.predict(AT)))
    with pytest.raises(InputError, match="was fitted with exposure; give new runs with it"):
        again.update(AT + 0.01, np.ones(9))


@pytest.fixture(scope="module")
def deep():
    """Two outputs: counts of two kinds, with dispersions of their own."""
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 20)[:, None]
    y = rng.negative_binomial(5, 5 / (5 + np.exp(np.column_stack([function(x), 2 - function(x)]))))
    few = {"n_chains": 4, "n_iter": 6, "kernel": "squared_exponential"}
    with brief_plain_gps(8):
        return DGP(observation="negative_binomial", **few).fit(x, y)


def test_a_deep_emulator_of_two_kinds_of_counts(deep):
    """With plain processes of the same model beside it, held-out rows and scores."""
    assert len(deep.posterior_.structures) == 3
    assert {each.structure.observation for each in deep.posterior_.structures} == {
        NegativeBinomial()
    }
    mean, std = deep.predict(AT, return_std=True)
    assert np.corrcoef(np.log(mean[:, 0]), function(AT))[0, 1] > 0.7
    assert np.all(std > np.sqrt(mean))
    assert deep.log_density(AT, np.ones((9, 2))).shape == (9,)
    assert deep.quantiles(AT, [0.1, 0.5, 0.9]).shape == (3, 9, 2)


# --- what cannot be -------------------------------------------------------------------------------

FEW = np.linspace(0, 1, 6)[:, None]


@pytest.mark.parametrize(
    ("name", "y", "known", "message"),
    [
        ("poisson", [1, 2, -1, 0, 3, 4], {}, "y has 1 negative value"),
        ("negative_binomial", [1, 2.5, 1, 0, 3, 4], {}, "y has 1 value.* with a fraction"),
        ("zero_inflated_poisson", [0] * 6, {}, "All counts of y are zero"),
        ("poisson", [1] * 6, {"exposure": [1, 1, 0, 1, 1, 1]}, "no finite numbers above 0"),
        ("poisson", [1] * 6, {"trials": 3}, "trials cannot be used with this observation model"),
        ("poisson", [1] * 6, {"exposure": [1, 2]}, r"exposure has the shape \(2,\)"),
        ("binomial", [1, 0, 2, 1, 0, 1], {}, "1 value.* above the number of trials; give"),
        ("binomial", [1, 0, 4, 1, 0, 1], {"trials": 3}, "above the number of trials."),
        ("binomial", [1, 0, 2, 1, 0, 1], {"trials": 2.5}, "trials has entries with a fraction"),
        ("binomial", [0] * 6, {}, "Every count of y is zero"),
        ("binomial", [3] * 6, {"trials": 3}, "Every count of y is equal to its trials"),
        ("gaussian", [1, 2, 3, 1, 2, 3], {"noise_variance": -1.0}, "no finite numbers of at least"),
        ("heteroscedastic", [1, 2, 3, 1, 2, 3], {"noise_variance": 1.0}, "cannot be used"),
        ("weibull", [1, 2, 3, 1, 2, 3], {}, "observation is 'weibull'; it must be 'gaussian',"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(name, y, known, message):
    with pytest.raises(InputError, match=message) as refused:
        GP(observation=name).fit(FEW, np.array(y, float), **known)
    assert str(refused.value).count(". ") == 0
