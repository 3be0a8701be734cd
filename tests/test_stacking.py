"""Weights of chains and the scale of the error bars, against loops and numbers known beforehand."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from deepemu.core.distributions import Gaussian, Mixture
from deepemu.core.ensemble import member_weights
from deepemu.core.model.observation import Units
from deepemu.observations.gaussian import GaussianNoise, PerhapsNoise
from deepemu.posterior import stacking
from deepemu.posterior.stacking import Gain, Judged
from deepemu.training.folds import HeldOut, held_out_sites


def judged_of(y, site):
    """Outputs (n, q) in core units that are normal about the last layer."""
    q = y.shape[1]
    return Judged(y, site, GaussianNoise(), Units(np.zeros(q), np.ones(q)))


def held_out_of(mean, var, mask):
    """Predictions (chains, sites, q), one of each chain."""
    return HeldOut(Gaussian(mean[:, None], var[:, None]), mask.astype(int))


def moments_of(found):
    """Mean and variance (n, q) of a mixture, from its second moment."""
    weights = found.weights[..., None]
    mean = np.sum(weights * found.latents.mean, axis=0)
    second = np.sum(weights * (found.latents.var + found.latents.mean**2), axis=0)
    return SimpleNamespace(mean=mean, var=second - mean**2)


def mixture_of(held_out, weights):
    """Moments at the sites (n, q) of made-up predictions."""
    shares = stacking.shares_of_held_out(weights, held_out.mask)
    return moments_of(stacking.held_out_mixture(held_out, shares))


def stretch_of(y, mean, var):
    """Of normal predictions (n, q)."""
    return stretch_of_mixture(y, mean[None], var[None], np.ones((1, len(y))))


def stretch_of_mixture(y, mean, var, weights):
    units = Units(np.zeros(y.shape[1]), np.ones(y.shape[1]))
    return GaussianNoise().stretch(y, Mixture(Gaussian(mean, var), weights), units)


def textbook_em(log_density, n_steps):
    """Weights of K fixed densities (K, n): w_k <- mean_i of w_k p_ki / sum_j w_j p_ji."""
    n_chains, n = log_density.shape
    weights = [1.0 / n_chains] * n_chains
    for _ in range(n_steps):
        sums = [0.0] * n_chains
        for i in range(n):
            each = [weights[k] * np.exp(log_density[k, i]) for k in range(n_chains)]
            for k in range(n_chains):
                sums[k] += each[k] / sum(each) / n
        weights = sums
    return np.array(weights)


def em_with_gaps(log_density, mask, n_steps):
    """The same, where each row has its own set of chains, as the docstring states it."""
    n_chains, n = log_density.shape
    weights = [1.0 / n_chains] * n_chains
    for _ in range(n_steps):
        new = []
        for k in range(n_chains):
            posterior = prior = 0.0
            for i in range(n):
                if mask[k, i]:
                    known = [j for j in range(n_chains) if mask[j, i]]
                    total = sum(weights[j] * np.exp(log_density[j, i]) for j in known)
                    posterior += weights[k] * np.exp(log_density[k, i]) / total
                    prior += weights[k] / sum(weights[j] for j in known)
            new.append(weights[k] * posterior / prior)
        weights = [each / sum(new) for each in new]
    return np.array(weights)


def objective(weights, log_density, mask):
    total = 0.0
    for i in range(log_density.shape[1]):
        mine = mask[:, i]
        total += np.log(weights[mine] @ np.exp(log_density[mine, i]) / weights[mine].sum())
    return total


def gaps(rng, n_chains, n):
    """Every row held out by two chains or more, every chain with rows that it held out."""
    mask = rng.random((n_chains, n)) < 0.5
    mask[0], mask[1] = True, np.arange(n) % 2 == 0
    mask[2] |= ~mask[1]
    return mask


def weights_of(log_density, mask, n_steps=10):
    """From equal weights."""
    equal = np.full(len(log_density), 1.0 / len(log_density))
    return stacking.stacking_weights(log_density, mask, equal, n_steps)


# --- weights ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_steps", [1, 3, 10])
def test_weights_are_the_em_algorithm_of_stacking(rng, n_steps):
    log_density = rng.normal(size=(4, 15))
    everywhere = np.ones((4, 15), bool)
    found = weights_of(log_density[..., None], everywhere, n_steps)
    np.testing.assert_allclose(found, textbook_em(log_density, n_steps), rtol=1e-10)


@pytest.mark.parametrize("n_steps", [1, 3, 10])
def test_weights_with_gaps_are_those_of_loops(rng, n_steps):
    log_density, mask = rng.normal(size=(4, 15)), gaps(rng, 4, 15)
    found = weights_of(log_density[..., None], mask, n_steps)
    np.testing.assert_allclose(found, em_with_gaps(log_density, mask, n_steps), rtol=1e-10)


def test_what_a_chain_says_of_rows_it_has_seen_is_ignored(rng):
    log_density, mask = rng.normal(size=(4, 15, 1)), gaps(rng, 4, 15)
    flattering = np.where(mask[..., None], log_density, 1e3)
    np.testing.assert_array_equal(
        weights_of(flattering, mask),
        weights_of(log_density, mask),
    )


def test_outputs_count_as_rows(rng):
    log_density, mask = rng.normal(size=(3, 8, 2)), np.ones((3, 8), bool)
    side_by_side = np.concatenate([log_density[..., 0], log_density[..., 1]], axis=1)
    np.testing.assert_allclose(
        weights_of(log_density, mask), textbook_em(side_by_side, 10), rtol=1e-10
    )


@pytest.mark.parametrize("with_gaps", [False, True])
def test_many_steps_find_the_maximum(rng, with_gaps):
    log_density = rng.normal(size=(3, 25))
    mask = gaps(rng, 3, 25) if with_gaps else np.ones((3, 25), bool)

    def loss(logits):
        weights = np.exp([*logits, 0.0])
        return -objective(weights / weights.sum(), log_density, mask)

    best = minimize(loss, np.zeros(2), method="BFGS")
    expected = np.exp([*best.x, 0.0]) / np.exp([*best.x, 0.0]).sum()
    assert expected.min() > 0.01  # inside, where a maximum is a stationary point
    found = weights_of(log_density[..., None], mask, 3000)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_the_objective_rises_at_every_step(seed):
    rng = np.random.default_rng(seed)
    log_density, mask = rng.normal(size=(4, 15)), gaps(rng, 4, 15)
    path = [
        objective(weights_of(log_density[..., None], mask, n), log_density, mask) for n in range(12)
    ]
    assert all(later > earlier for earlier, later in itertools.pairwise(path))


def test_equal_chains_stay_equal(rng):
    log_density = np.tile(rng.normal(size=(1, 9, 1)), (5, 1, 1))
    found = weights_of(log_density, np.ones((5, 9), bool))
    np.testing.assert_allclose(found, 0.2, rtol=1e-12)


def test_a_chain_that_is_far_better_gets_nearly_all(rng):
    log_density = 0.1 * rng.normal(size=(4, 20, 1))
    log_density[2] += 3.0
    found = weights_of(log_density, np.ones((4, 20), bool))
    assert found[2] > 0.99


@pytest.mark.parametrize("how_bad", [20.0, 1e4])
def test_a_chain_that_is_far_off_loses_its_vote(rng, how_bad):
    log_density = 0.1 * rng.normal(size=(4, 20, 1))
    log_density[1] -= how_bad
    found = weights_of(log_density, np.ones((4, 20), bool))
    assert found[1] == 0.0
    assert found.sum() == pytest.approx(1.0, rel=1e-12)
    assert found[[0, 2, 3]].min() > 0.2


def test_weights_start_where_they_are_told(rng):
    """Without evidence they keep it; chains that are alike share what one of them would have."""
    start, everywhere = np.array([0.5, 0.25, 0.25]), np.ones((3, 12), bool)
    found = stacking.stacking_weights(np.zeros((3, 12, 1)), everywhere, start)
    np.testing.assert_allclose(found, start, rtol=1e-12)
    log_density = rng.normal(size=(3, 12, 1))
    log_density[2] = log_density[1]
    found = stacking.stacking_weights(log_density, everywhere, start)
    of_two = weights_of(log_density[:2], everywhere[:2])
    np.testing.assert_allclose(found, [of_two[0], of_two[1] / 2, of_two[1] / 2], rtol=1e-10)


def test_many_deep_chains_do_not_outvote_a_few_plain_processes():
    depths_and_chains = [(1, 1), (1, 1), (2, 4), (3, 4)]
    both = [part(None, None, n_chains=n, depth=depth) for depth, n in depths_and_chains]
    np.testing.assert_allclose(stacking.starting_weights(both), [0.25] * 2 + [1 / 16] * 8)
    np.testing.assert_allclose(stacking.starting_weights(both[:2]), 0.5)
    np.testing.assert_allclose(stacking.starting_weights(both[2:]), 1 / 8)


def test_rows_that_no_chain_foresees_say_nothing(rng):
    """All log densities -inf, or a chain without weight far ahead of the others."""
    log_density = rng.normal(size=(3, 12, 1))
    start, everywhere = np.array([0.5, 0.5, 0.0]), np.ones((3, 12), bool)
    usual = stacking.stacking_weights(log_density[:, 1:], everywhere[:, 1:], start)
    log_density[:, 0] = -np.inf
    for ahead in (-np.inf, 2000.0):
        log_density[2, 0] = ahead
        found = stacking.stacking_weights(log_density, everywhere, start)
        assert found[2] == 0.0 and np.all(np.isfinite(found))
        np.testing.assert_allclose(found[:2], usual[:2], atol=0.05)


@pytest.mark.parametrize(("narrow", "is_refuted"), [(0.2, True), (1.05, False)])
def test_twins_that_noise_clearly_beats_have_no_weight(rng, narrow, is_refuted):
    """Outputs are standard normal; twins predict a smaller standard deviation, far too small or
    about right. Deep chains without noise are not twins."""
    n, about_zero = 60, np.zeros((1, 60, 1))
    judged = judged_of(rng.normal(size=(n, 1)), np.arange(n))
    noisy = part(about_zero, about_zero + 1.0)
    twin = part(about_zero, about_zero + narrow**2, is_noisy=False)
    deep = part(about_zero, about_zero + 0.9, depth=2, is_noisy=False)
    weights = stacking.stack([noisy, twin, deep], judged).weights
    assert (weights[1] == 0.0) == is_refuted
    assert weights[0] > 0.2 and weights[2] > 0.2
    np.testing.assert_allclose(weights.sum(), 1.0)
    without = stacking.stack([noisy, deep], judged).weights
    if is_refuted:
        np.testing.assert_allclose(weights[[0, 2]], without, rtol=1e-12)


# --- the mixture of those that had not seen a site -------------------------------------------


def test_the_mixture_of_the_unaware_is_that_of_loops(rng):
    n_chains, n, q = 4, 11, 2
    mask, weights = gaps(rng, n_chains, n), np.array([0.4, 0.3, 0.2, 0.1])
    mean, var = rng.normal(size=(n_chains, n, q)), rng.random((n_chains, n, q))
    mixed = mixture_of(held_out_of(mean, var, mask), weights)
    for i in range(n):
        voices = [k for k in range(n_chains) if mask[k, i]]
        total = sum(weights[k] for k in voices)
        for c in range(q):
            first = sum(weights[k] * mean[k, i, c] for k in voices) / total
            second = sum(weights[k] * (var[k, i, c] + mean[k, i, c] ** 2) for k in voices) / total
            assert mixed.mean[i, c] == pytest.approx(first, rel=1e-6)
            assert mixed.var[i, c] == pytest.approx(second - first**2, rel=1e-6)


def test_chains_without_weights_count_the_same_where_no_other_is_unaware(rng):
    mean, var = rng.normal(size=(3, 2, 1)), np.ones((3, 2, 1))
    mask = np.array([[True, False], [False, True], [False, True]])
    held_out = held_out_of(mean, var, mask)
    mixed = mixture_of(held_out, np.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(mixed.mean[:, 0], [mean[0, 0, 0], mean[1:, 1, 0].mean()])


def test_chains_that_have_all_lost_their_weights_still_have_a_mixture(rng):
    """The line of a report on a structure that is not asked."""
    mean, var = rng.normal(size=(2, 3, 1)), np.ones((2, 3, 1))
    held_out = held_out_of(mean, var, np.ones((2, 3), bool))
    mixed = mixture_of(held_out, np.zeros(2))
    np.testing.assert_allclose(mixed.mean, mean.mean(axis=0))


# --- the scale -------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.7])
def test_the_scale_recovers_a_known_factor(rng, factor):
    n = 8000
    mean, std = rng.normal(size=(n, 1)), np.exp(rng.normal(size=(n, 1)))
    y = mean + factor * std * rng.normal(size=(n, 1))
    # The standard error of either factor is about 1 %; the power n / (n + 140) takes off 1 %.
    assert stretch_of(y, mean, std**2)[0] == pytest.approx(factor, rel=0.05)


def test_outputs_have_scales_of_their_own(rng):
    n, factors = 8000, np.array([0.5, 2.0])
    noise = rng.normal(size=(n, 2))
    found = stretch_of(factors * noise, np.zeros((n, 2)), np.ones((n, 2)))
    np.testing.assert_allclose(found, factors, rtol=0.05)
    alone = stretch_of(2.0 * noise[:, 1:], np.zeros((n, 1)), np.ones((n, 1)))
    assert found[1] == pytest.approx(alone[0], rel=1e-12)


@pytest.mark.parametrize(("n", "residual", "factor"), [(1, 1e6, 3.0), (5, 1e6, 3.0), (1, 0.0, 0.3)])
def test_few_outputs_move_the_scale_little(n, residual, factor):
    """At most to the bounds 0.3 and 3, to the power n / (n + 20), or n / (n + 140) below 1."""
    prior = 140 if factor < 1.0 else 20
    y = np.full((n, 1), residual)
    found = stretch_of(y, np.zeros((n, 1)), np.ones((n, 1)))
    assert found[0] == pytest.approx(factor ** (n / (n + prior)), rel=1e-4)


# --- parts -----------------------------------------------------------------------------------


def part(mean, var, mask=None, n_chains=None, depth=1, is_noisy=True):
    """A structure with predictions (chains, sites, q) and nothing else."""
    held_out = None
    if mean is not None:
        mask = np.ones(mean.shape[:2], bool) if mask is None else mask
        held_out = held_out_of(mean, var, mask)
        n_chains = len(mean)
    layers = (SimpleNamespace(free_nugget=is_noisy),) * depth
    network = SimpleNamespace(depth=depth, layers=layers)
    structure = SimpleNamespace(network=network, observation=PerhapsNoise())
    return SimpleNamespace(structure=structure, chains=[None] * n_chains, held_out=held_out)


@pytest.fixture
def two_parts(rng):
    """Predictions of 6 sites by two structures of one chain each; 8 rows, of which 2 repeat."""
    site = np.array([0, 1, 2, 3, 4, 5, 0, 3])
    moments = [(rng.normal(size=(1, 6, 2)), 0.5 + rng.random((1, 6, 2))) for _ in range(2)]
    return [part(*each) for each in moments], judged_of(rng.normal(size=(8, 2)), site), moments


def test_the_gain_is_the_mean_difference_of_log_densities(two_parts):
    (first, second), observed, moments = two_parts
    difference = []
    for y, site in zip(observed.y, observed.site, strict=True):
        scores = [
            sum(norm(mean[0, site, c], np.sqrt(var[0, site, c])).logpdf(y[c]) for c in range(2))
            for mean, var in moments
        ]
        difference.append(scores[0] - scores[1])
    found = stacking.gain([first], [second], observed)
    assert found.mean == pytest.approx(sum(difference) / 8, rel=1e-10)
    spread = sum((each - found.mean) ** 2 for each in difference) / 8
    assert found.error == pytest.approx(np.sqrt(spread / 8), rel=1e-10)
    back = stacking.gain([second], [first], observed)
    assert back.mean == pytest.approx(-found.mean) and back.error == pytest.approx(found.error)


def test_held_out_errors_are_distances_from_the_mean_of_chains(two_parts):
    parts, observed, ((first, _), (second, _)) = two_parts
    mean = (first[0] + second[0])[observed.site] / 2.0
    found = stacking.held_out_errors(parts, observed)
    np.testing.assert_allclose(found, np.abs(observed.y - mean), rtol=1e-12)
    with pytest.raises(ValueError, match="without held-out predictions"):
        stacking.held_out_errors([part(None, None, n_chains=2)], observed)


def test_a_gain_is_clear_from_two_standard_errors_on():
    assert Gain(1.0, 0.4).is_clear and not Gain(1.0, 0.6).is_clear
    assert Gain(-1.0, 0.4).is_clear_loss and not Gain(-1.0, 0.6).is_clear_loss
    assert not Gain(1.0, 0.4).is_clear_loss and not Gain(-1.0, 0.4).is_clear
    assert str(Gain(0.5, 0.25)) == "+0.50 ± 0.25"


def test_parts_without_held_out_predictions_cannot_be_compared(two_parts):
    (first, _), observed, _ = two_parts
    with pytest.raises(ValueError, match="without held-out predictions"):
        stacking.gain([first], [part(None, None, n_chains=2)], observed)


def test_without_held_out_predictions_all_chains_count_the_same(two_parts):
    (first, _), observed, _ = two_parts
    stacked = stacking.stack([first, part(None, None, n_chains=3)], observed)
    np.testing.assert_allclose(stacked.weights, 0.25)
    np.testing.assert_array_equal(stacked.stretch, [1.0, 1.0])
    assert stacked.held_out is None


def test_parts_are_stacked_one_after_the_other(two_parts):
    parts, observed, moments = two_parts
    stacked = stacking.stack(parts, observed)
    log_density = np.array(
        [norm(m[0, observed.site], np.sqrt(v[0, observed.site])).logpdf(observed.y).ravel()
         for m, v in moments]
    )  # fmt: skip
    weights = textbook_em(log_density, 10)
    np.testing.assert_allclose(stacked.weights, weights, rtol=1e-10)


def test_a_site_is_judged_by_weights_and_scales_of_other_groups(two_parts):
    """Groups take turns; written out for each site."""
    parts, observed, moments = two_parts
    stacked = stacking.stack(parts, observed)
    densities = [
        norm(m[0, observed.site], np.sqrt(v[0, observed.site])).logpdf(observed.y)
        for m, v in moments
    ]
    n_sites = moments[0][0].shape[1]
    means, variances = (np.concatenate(each) for each in zip(*moments, strict=True))
    shares = np.empty((2, n_sites))
    for site in range(n_sites):
        others = observed.site % 5 != site % 5
        shares[:, site] = textbook_em(np.array([d[others].ravel() for d in densities]), 10)
    rows = means[:, observed.site], variances[:, observed.site], shares[:, observed.site]
    np.testing.assert_allclose(stacked.stretch, stretch_of_mixture(observed.y, *rows), rtol=1e-9)
    np.testing.assert_allclose(stacked.held_out.weights, shares, rtol=1e-9)
    for site in range(n_sites):
        others = observed.site % 5 != site % 5
        c = stretch_of_mixture(observed.y[others], *(each[:, others] for each in rows))
        mean = sum(shares[k, site] * means[k, site] for k in range(2))
        for k in range(2):
            got = stacked.held_out.latents.mean[k, site], stacked.held_out.latents.var[k, site]
            np.testing.assert_allclose(got[0], mean + c * (means[k, site] - mean), rtol=1e-9)
            np.testing.assert_allclose(got[1], c**2 * variances[k, site], rtol=1e-9)


def test_members_share_the_weight_of_their_chain():
    def with_members(n_chains, n_imputations):
        members = SimpleNamespace(alpha=np.zeros((n_chains, n_imputations, 1, 4)))
        imputed = SimpleNamespace(members=members)
        return SimpleNamespace(chains=[None] * n_chains, imputed=imputed)

    structures = [with_members(2, 3), with_members(1, 1)]
    first, second = (
        member_weights(each.imputed, weights)
        for each, weights in stacking.by_structure(structures, np.array([0.6, 0.3, 0.1]))
    )
    np.testing.assert_allclose(first, [0.2, 0.2, 0.2, 0.1, 0.1, 0.1])
    np.testing.assert_allclose(second, [0.1])


# --- what once went wrong --------------------------------------------------------------------


@pytest.mark.parametrize("n", [8, 9, 12])
def test_a_chain_that_has_seen_all_rows_of_a_vote_keeps_its_weight(n, rng):
    """Few rows: a fold may lie within a group, whose weight then knows nothing of some chains."""

    for seed in range(40):
        mask = np.vstack([held_out_sites(seed, n, 4, 4), np.ones((1, n), bool)])
        for group in range(5):
            others = np.arange(n) % 5 != group
            density = rng.normal(size=(5, others.sum(), 1))
            weights = weights_of(density, mask[:, others])
            assert np.all(np.isfinite(weights)) and weights.sum() == pytest.approx(1.0)


def test_an_output_that_does_not_vary_has_no_vote(rng):
    """Its density is that of the round-off, which differs between chains by orders of magnitude."""
    y = np.column_stack([rng.normal(size=30), np.zeros(30)])
    mean = np.stack([y, y + [[0.5, 0.0]]])
    var = np.full(mean.shape, 0.04)
    var[1, :, 1] = 1e-18
    held_out = held_out_of(mean, var, np.ones((2, 30), bool))
    observed = judged_of(y, np.arange(30))
    scores = stacking.log_scores(held_out, observed)
    np.testing.assert_array_equal(scores[..., 1], 0.0)
    weights = weights_of(scores, held_out.mask)
    alone = weights_of(scores[..., :1], held_out.mask)
    assert weights[0] > 0.6 and alone[0] > 0.9


def test_more_than_a_thousand_equal_chains_keep_their_weights():
    weights = weights_of(np.zeros((1500, 4, 1)), np.ones((1500, 4), bool))
    np.testing.assert_allclose(weights, 1 / 1500)
