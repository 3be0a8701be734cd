"""Scores, quantiles and the stretch of mixtures, against quadrature, sums, draws and grids."""

import numpy as np
import pytest
from poisson_model import Poisson
from scipy.stats import norm, poisson

from deepemu import diagnostics
from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.model.observation import Units, stretched_mixture
from deepemu.observations.gaussian import GaussianNoise
from deepemu.observations.mixture import side_by_side, without_zeros
from deepemu.observations.model import Observation
from deepemu.posterior import comparison, stacking
from deepemu.posterior.stacking import Judged
from deepemu.training.folds import HeldOut

NORMAL = GaussianNoise()
ONE = Units(np.zeros(1), np.ones(1))


def mixture_of(rng, n_components, n, q=1):
    """Components of very different widths; some without a weight."""
    weights = rng.dirichlet(np.full(n_components, 0.5), n).T
    weights[0, ::2] = 0.0
    var = np.exp(2.0 * rng.normal(size=(n_components, n, q)))
    return Mixture(Gaussian(rng.normal(size=var.shape), var), weights / weights.sum(axis=0))


def normals(found, i, c=0):
    """Weights, means and standard deviations of one output at one row."""
    return found.weights[:, i], found.latents.mean[:, i, c], np.sqrt(found.latents.var[:, i, c])


def crps_by_quadrature(y, weights, means, stds):
    """∫ (F − 1{y ≤ t})² dt over each side of y, where the integrand is smooth."""
    far = np.max(np.abs(means)) + 12 * np.max(stds) + abs(y)
    total = 0.0
    for low, high, above in ((-far, y, 0.0), (y, far, 1.0)):
        t = np.linspace(low, high, 400_001)
        F = sum(w * norm.cdf(t, m, s) for w, m, s in zip(weights, means, stds, strict=True))
        total += np.trapezoid((F - above) ** 2, t)
    return total


# --- the CRPS --------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [-30.0, -0.7, 0.0, 4.0])
def test_the_crps_of_a_normal_mixture_is_the_integral(rng, y):
    weights, means, stds = normals(mixture_of(rng, 5, 1), 0)
    (found,) = diagnostics.mixture_crps([y], means[:, None], stds[:, None] ** 2, weights)
    assert found == pytest.approx(crps_by_quadrature(y, weights, means, stds), rel=1e-6)


def test_the_crps_of_a_normal_mixture_is_that_of_draws(rng):
    """E|X − y| − E|X − X'| / 2."""
    weights, means, stds = normals(mixture_of(rng, 4, 1), 0)
    which = rng.choice(4, (2, 400_000), p=weights)
    first, second = rng.normal(means[which], stds[which])
    expected = np.mean(np.abs(first - 0.8)) - 0.5 * np.mean(np.abs(first - second))
    error = np.std(np.abs(first - 0.8) - 0.5 * np.abs(first - second)) / np.sqrt(400_000)
    (found,) = diagnostics.mixture_crps([0.8], means[:, None], stds[:, None] ** 2, weights)
    assert abs(found - expected) < 5 * error


def test_one_component_or_equal_ones_are_a_normal(rng):
    y, mean, std = rng.normal(size=7), rng.normal(size=7), rng.random(7)
    alone = diagnostics.mixture_crps(y, mean[None], std[None] ** 2)
    assert alone.mean() == pytest.approx(diagnostics.crps(y, mean, std), rel=1e-12)
    three = diagnostics.mixture_crps(y, np.tile(mean, (3, 1)), np.tile(std**2, (3, 1)), [1, 2, 3])
    np.testing.assert_allclose(three, alone, rtol=1e-10)


def test_points_have_the_crps_of_their_distribution():
    """Variance zero: half at 0, half at 2, so ∫ is 1/4 over the two units between them."""
    found = diagnostics.mixture_crps([1.0, 0.0], [[0.0, 0.0], [2.0, 2.0]], np.zeros((2, 2)))
    np.testing.assert_allclose(found, [0.5, 0.5])


@pytest.mark.parametrize("q", [1, 2])
def test_the_model_and_any_other_agree_about_the_crps(rng, q):
    """The closed form, and what a model without one inherits."""
    found, y = mixture_of(rng, 6, 9, q), 3.0 * rng.normal(size=(9, q))
    units = Units(np.zeros(q), np.ones(q))
    closed = NORMAL.crps(y, found, units)
    np.testing.assert_allclose(Observation.crps(NORMAL, y, found, units), closed, rtol=1e-3)
    for i in range(9):
        by_hand = crps_by_quadrature(y[i, 0], *normals(found, i))
        assert closed[i, 0] == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("size", [0.6, 8.0, 3000.0])
def test_the_crps_of_counts_is_the_sum_over_counts(rng, size):
    """Of mixed log-normal rates; the largest has thousands of counts in its range."""
    units = Units(np.zeros(1), np.array([size]))
    var = np.array([0.02, 0.3])[:, None, None] * np.ones((2, 3, 1))
    found = Mixture(Gaussian(rng.normal(0.0, 0.5, size=(2, 3, 1)), var), np.full((2, 3), 0.5))
    y = rng.poisson(size * np.exp(rng.normal(size=(3, 1))))
    z, of_z = np.polynomial.hermite_e.hermegauss(30)
    counts = np.arange(int(60 * size) + 60)
    for i in range(3):
        F = np.zeros(len(counts))
        for k in range(2):
            rates = size * np.exp(found.latents.mean[k, i, 0] + np.sqrt(var[k, i, 0]) * z)
            F += 0.5 * poisson.cdf(counts[:, None], rates) @ of_z / of_z.sum()
        expected = np.sum((F - (counts >= y[i, 0])) ** 2)
        got = size * Poisson().crps(y / size, found, units)[i, 0]
        assert got == pytest.approx(expected, rel=2e-3)


# --- ranks, quantiles, coverage --------------------------------------------------------------


def test_an_output_is_inside_if_it_lies_between_the_quantiles(rng):
    found, y = mixture_of(rng, 4, 60), 2.0 * rng.normal(size=(60, 1))
    rank = comparison.rank_of(y, found, NORMAL, ONE)
    low, high = (NORMAL.quantile(level, found, ONE) for level in (0.1, 0.9))
    inside = (low <= y) & (y <= high)
    assert 0 < inside.sum() < 60
    np.testing.assert_array_equal(rank.inside(0.8), inside)
    assert rank.intervals([0.8]).n_inside == (inside.sum(),)
    expected = [w @ norm.cdf(y[i, 0], m, s) for i in range(60) for w, m, s in [normals(found, i)]]
    np.testing.assert_allclose(rank.pit[:, 0], expected, rtol=1e-10)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_counts_at_the_ends_of_an_interval_are_inside(rng, level):
    units = Units(np.zeros(1), np.array([4.0]))
    latents = Gaussian(rng.normal(size=(2, 30, 1)), np.full((2, 30, 1), 0.1))
    found, y = Mixture(latents, np.full((2, 30), 0.5)), rng.poisson(4.0, (30, 1)) / 4.0
    rank = comparison.rank_of(y, found, Poisson(), units)
    tails = diagnostics.tails(level)
    low, high = (Poisson().quantile(each, found, units) for each in tails)
    on_ends = np.isclose(y, low) | np.isclose(y, high)
    assert on_ends.any()
    between = on_ends | ((low < y) & (y < high))
    np.testing.assert_array_equal(rank.inside(level), between)
    assert np.all(rank.below < rank.pit) and np.all(rank.pit < rank.up_to)


def test_log_densities_of_outputs_are_in_user_units_and_of_counts_probabilities():
    units = Units(np.zeros(1), np.array([5.0]))
    np.testing.assert_allclose(NORMAL.log_size(units), np.log(5.0))
    np.testing.assert_array_equal(Poisson().log_size(units), 0.0)


# --- the stretch -----------------------------------------------------------------------------


@pytest.mark.parametrize("c", [0.4, 1.0, 2.5])
def test_a_stretched_mixture_has_the_stretched_distribution(rng, c):
    """F_c(y) = F(μ + (y − μ)/c), and CRPS(F_c, y) = c CRPS(F, μ + (y − μ)/c)."""
    found, y = mixture_of(rng, 5, 8), rng.normal(size=(8, 1))
    wide, back = (
        stretched_mixture(NORMAL, found, np.array([c])),
        found.centre + (y - found.centre) / c,
    )
    np.testing.assert_allclose(wide.centre, found.centre, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        NORMAL.mixed_cdf(y, wide, ONE), NORMAL.mixed_cdf(back, found, ONE), rtol=1e-9
    )
    np.testing.assert_allclose(
        NORMAL.crps(y, wide, ONE), c * NORMAL.crps(back, found, ONE), rtol=1e-9
    )


def stretch_by_grid(y, found):
    """The factor of the least mean CRPS, and the least with 95 % of outputs inside, on a grid."""
    scores, shares, grid = [], [], np.exp(np.linspace(np.log(0.3), np.log(3.0), 461))
    for c in grid:
        wide = stretched_mixture(NORMAL, found, np.array([c]))
        scores.append(np.mean(NORMAL.crps(y, wide, ONE)))
        shares.append(np.mean(comparison.rank_of(y, wide, NORMAL, ONE).inside(0.95)))
    enough = np.flatnonzero(np.array(shares) >= 0.95)
    return grid[np.argmin(scores)], grid[enough[0]] if len(enough) else 3.0


@pytest.mark.parametrize("spread", [0.5, 1.0, 1.6])
def test_the_stretch_is_between_the_best_crps_and_the_right_coverage(rng, spread):
    n = 1500
    found = mixture_of(rng, 3, n)
    which = np.array([rng.choice(3, p=found.weights[:, i]) for i in range(n)])
    mean, var = (each[which, np.arange(n)] for each in (found.latents.mean, found.latents.var))
    y = found.centre + spread * (mean + np.sqrt(var) * rng.normal(size=(n, 1)) - found.centre)
    best, covering = stretch_by_grid(y, found)
    between = np.sqrt(best * covering)
    expected = between ** (n / (n + (140 if between < 1.0 else 20)))
    assert NORMAL.stretch(y, found, ONE)[0] == pytest.approx(expected, rel=0.01)
    assert expected == pytest.approx(spread, rel=0.15)


def test_a_few_percent_of_a_bad_chain_do_not_shrink_the_others(rng):
    """Three per cent of the weight, twenty times as wide: moments alone would call the mixture too
    wide by a factor of three."""
    n = 500
    y = rng.normal(size=(n, 1))
    var = np.stack([np.ones((n, 1)), np.full((n, 1), 400.0)])
    found = Mixture(Gaussian(np.zeros((2, n, 1)), var), np.tile([[0.97], [0.03]], (1, n)))
    std = np.sqrt(NORMAL.mixed_moments(found, ONE).var)
    squeezed = Mixture(Gaussian(np.zeros((1, n, 1)), std[None] ** 2), np.ones((1, n)))
    assert NORMAL.stretch(y, squeezed, ONE)[0] < 0.4
    assert NORMAL.stretch(y, found, ONE)[0] > 0.6


def test_a_mean_beyond_its_interval_is_no_trouble():
    """One per cent far away takes the mean out of the interval; such a row is never covered."""
    n = 40
    mean = np.stack([np.zeros((n, 1)), np.full((n, 1), 1e4)])
    found = Mixture(Gaussian(mean, np.ones((2, n, 1))), np.tile([[0.99], [0.01]], (1, n)))
    stretch = NORMAL.stretch(np.zeros((n, 1)), found, ONE)
    assert np.all(np.isfinite(stretch)) and 0.3 < stretch[0] < 3.0


def test_a_model_that_says_nothing_about_a_stretch_has_none(rng):
    found, y = mixture_of(rng, 3, 5), rng.normal(size=(5, 1))
    model = Poisson()
    np.testing.assert_array_equal(model.stretch(y, found, ONE), 1.0)
    same = stretched_mixture(model, found, np.array([2.0]))
    np.testing.assert_array_equal(same.latents.mean, found.latents.mean)
    drawn = model.stretched_draws(y[None], found.centre, np.array([2.0]))
    np.testing.assert_array_equal(drawn, y[None])


# --- mixtures as arrays ----------------------------------------------------------------------


def test_components_without_weight_are_left_out(rng):
    found = mixture_of(rng, 6, 10)
    found.weights[3] = 0.0
    weights = found.weights / found.weights.sum(axis=0)
    short = without_zeros(Mixture(found.latents, weights))
    assert len(short.weights) == 5
    y = rng.normal(size=(10, 1))
    for i in range(10):
        w, m, s = weights[:, i], *normals(found, i)[1:]
        assert NORMAL.mixed_cdf(y, short, ONE)[i, 0] == pytest.approx(w @ norm.cdf(y[i, 0], m, s))


def test_mixtures_of_other_sizes_stand_side_by_side(rng):
    first, second = mixture_of(rng, 3, 4), mixture_of(rng, 5, 2)
    both, y = side_by_side(first, second), rng.normal(size=(6, 1))
    expected = [NORMAL.crps(y[:4], first, ONE), NORMAL.crps(y[4:], second, ONE)]
    np.testing.assert_allclose(NORMAL.crps(y, both, ONE), np.concatenate(expected), rtol=1e-10)


# --- held-out chains -------------------------------------------------------------------------


def test_a_chain_is_scored_by_the_mean_density_of_its_imputations(rng):
    """Not by the density of a normal with their moments."""
    mean, var = rng.normal(size=(2, 3, 4, 1)), 0.1 + rng.random((2, 3, 4, 1))
    held_out = HeldOut(Gaussian(mean, var), np.array([[3, 0, 2, 3], [1, 3, 3, 3]]))
    site = np.array([0, 1, 2, 3, 2])
    y = rng.normal(size=(5, 1))
    found = stacking.log_scores(held_out, Judged(y, site, NORMAL, ONE))
    for chain in range(2):
        for i, s in enumerate(site):
            n = held_out.n_imputations[chain, s]
            if n:
                each = norm.pdf(y[i, 0], mean[chain, :n, s, 0], np.sqrt(var[chain, :n, s, 0]))
                assert found[chain, i, 0] == pytest.approx(np.log(each.mean()), rel=1e-10)
    assert np.all(np.isfinite(found))


def test_the_held_out_mixture_has_a_component_for_each_imputation(rng):
    mean, var = rng.normal(size=(2, 3, 4, 1)), 0.1 + rng.random((2, 3, 4, 1))
    held_out = HeldOut(Gaussian(mean, var), np.array([[3, 0, 2, 3], [1, 3, 3, 3]]))
    shares = stacking.shares_of_held_out(np.array([0.75, 0.25]), held_out.mask)
    found, t = stacking.held_out_mixture(held_out, shares), np.full((4, 1), 0.3)
    F = NORMAL.mixed_cdf(t, found, ONE)[:, 0]
    for site, (first, second) in enumerate(held_out.n_imputations.T):
        weights = (0.75, 0.25) if first else (0.0, 1.0)
        expected = sum(
            w * np.mean(norm.cdf(0.3, mean[k, :n, site, 0], np.sqrt(var[k, :n, site, 0])))
            for k, (w, n) in enumerate(zip(weights, (first, second), strict=True))
            if n
        )
        assert F[site] == pytest.approx(expected, rel=1e-10)
    assert len(found.weights) == 6  # the most that a site has
