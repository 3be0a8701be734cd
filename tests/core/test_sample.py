"""Sampled parameters: posteriors by quadrature on a grid, Geweke's joint test, draws of scales."""

import functools
from dataclasses import replace

import jax
import numpy as np
import oracles
import pytest
from core import builders
from core.builders import data_of, network
from oracles import Process
from programs import jit, quick_jit
from scipy import stats

from deepemu.core import keys
from deepemu.core.inference import hit_and_run, impute, m_step, sem
from deepemu.core.inference.sem import Chain
from deepemu.core.kernels import families
from deepemu.core.model.network import LayerParams, LayerSpec
from deepemu.core.model.priors import Flat, Gamma, Independent, Reference

train_block, quickly = (of(sem.train_block, static_argnames="network") for of in (jit, quick_jit))
WORDS = np.array([3, 1], np.uint32)
steps = functools.partial(builders.steps, m_step=m_step.Sample())


@quick_jit
def draws_of_log_scale(words, profiled, n_observations):
    one = lambda key: hit_and_run.draw_log_scale(key, profiled, n_observations)  # noqa: E731
    return jax.vmap(one)(jax.random.split(keys.from_words(words), 20_000))


@pytest.mark.parametrize("n_observations", [2.0, 9.0])
def test_scales_are_inverse_gamma(n_observations):
    profiled = np.array(0.7)
    scales = np.exp(draws_of_log_scale(WORDS, profiled, n_observations))
    expected = stats.invgamma(n_observations / 2, scale=n_observations * profiled / 2)
    assert stats.kstest(scales, expected.cdf).pvalue > 0.01


# --- the posterior of one layer --------------------------------------------------------------

N_ROWS = 8
N_DRAWS, N_BATCHES = 12_000, 60
X = np.random.default_rng(1).random((N_ROWS, 2))
Y = np.sin(5 * X[:, 0]) + 0.4 * X[:, 1]
HELD_SCALE, HELD_NUGGET = 0.8, 0.02


def cells(natural):
    """Widths of the cells of a grid, with respect to which a density is summed."""
    return np.gradient(natural)


def reference_prior(inverse_lengthscale):
    span, per_axis = np.ptp(X[:, 0]), N_ROWS
    t = span / per_axis * inverse_lengthscale + HELD_NUGGET
    return 0.2 * np.log(t) - 1.2 / per_axis * t


GAMMA = Independent(Gamma(), Flat())
first_only, both = ((True, False),), ((True, True),)
plain = LayerSpec(families.by_name("matern52"), first_only, GAMMA, False, False, False)
LOGS = np.linspace(-6.9, 6.9, 241)


def grid_of_lengthscale():
    """Lengthscales, with prior probabilities of their cells up to a constant."""
    lengthscale = np.exp(LOGS)
    return lengthscale, stats.gamma(1.6, scale=1 / 0.3).pdf(lengthscale) * cells(lengthscale)


def weights(lengthscale, prior, scale=HELD_SCALE, nugget=HELD_NUGGET, columns=1):
    """Posterior probabilities of cells, given priors (lengthscales,) or (lengthscales, values)."""
    prior = prior.reshape(len(lengthscale), -1)
    unit = np.array([one_process(each, columns).correlation(X, X) for each in lengthscale])
    scales, nuggets = (np.broadcast_to(of, prior.shape)[..., None, None] for of in (scale, nugget))
    covariances = scales * (unit[:, None] + nuggets * np.eye(N_ROWS))
    quadratic = np.linalg.solve(covariances, np.broadcast_to(Y, (*prior.shape, N_ROWS))[..., None])
    log_density = -0.5 * (np.linalg.slogdet(covariances)[1] + (Y @ quadratic)[..., 0])
    posterior = np.exp(log_density - log_density.max()) * prior
    return (posterior / posterior.sum()).ravel()


def one_process(lengthscale, columns):
    lengthscales = np.where(np.arange(2) < columns, lengthscale, np.inf)
    return Process("matern52", lengthscales, HELD_SCALE, HELD_NUGGET)


def shared():
    lengthscale, prior = grid_of_lengthscale()
    return weights(lengthscale, prior, columns=2), LOGS[:, None]


def reference():
    inverse = np.exp(LOGS)
    prior = np.exp(reference_prior(inverse)) * cells(inverse)
    return weights(1 / inverse, prior), -LOGS[:, None]


def with_second(values, prior, name):
    """Another parameter on a coarser grid beside the lengthscale."""
    lengthscale, first = (of[::3] for of in grid_of_lengthscale())
    logs = np.array([(a, b) for a in LOGS[::3] for b in np.log(values)])
    return weights(lengthscale, np.outer(first, prior), **{name: values}), logs


def free_scale():
    scale = np.exp(np.linspace(-7, 12, 70))
    return with_second(scale, cells(scale) / scale, "scale")


def free_nugget():
    nugget = np.exp(np.linspace(-16.1, 4.6, 70))
    return with_second(
        nugget, stats.gamma(2.0, scale=1 / 9.0).pdf(nugget) * cells(nugget), "nugget"
    )


CASES = {
    "shared": (replace(plain, reads=both, shared_lengthscale=True), shared),
    "reference": (replace(plain, prior=Reference()), reference),
    "free scale": (replace(plain, free_scale=True), free_scale),
    "free nugget": (
        replace(plain, free_nugget=True, prior=Independent(Gamma(), Gamma(2.0, 9.0))),
        free_nugget,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_layer_has_the_posterior_of_a_grid(case):
    """Mean and variance of the logarithms, with standard errors from batch means."""
    spec, posterior = CASES[case]
    probability, logs = posterior()
    mean = probability @ logs
    expected = np.concatenate([mean, probability @ (logs - mean) ** 2])

    begin = Chain(builders.params_of([[one_process(1.0, columns=2)]]), impute.start((), 16.0))
    n_iterations = N_DRAWS + 400
    _, trace = train_block(
        WORDS, network(2, spec), steps(0, 2, block=n_iterations), begin, data_of(X, Y), 0,
        n_iterations,
    )  # fmt: skip
    (paths,) = trace.params
    second = paths.log_scale if spec.free_scale else paths.log_nugget
    drawn = np.column_stack([paths.log_lengthscale[:, 0, 0], second])[400:, : logs.shape[1]]
    batches = oracles.batch_means(np.hstack([drawn, (drawn - mean) ** 2]), N_BATCHES)
    assert np.abs(oracles.in_standard_errors(batches, expected)).max() < 4
    # The test has power: standard errors are a small part of the posterior's spread.
    spread = np.sqrt(expected[logs.shape[1] :])
    assert np.all(batches.std(axis=0)[: logs.shape[1]] / np.sqrt(N_BATCHES) < 0.05 * spread)


# --- two layers ------------------------------------------------------------------------------

N_CHAINS, N_SITES = 3000, 5
AT = np.linspace(0, 1, N_SITES)[:, None]
COUNTS = np.array([1.0, 2.0, 1.0, 1.0, 3.0])
LENGTHSCALE, NUGGET = stats.gamma(3.0, scale=1 / 4.0), stats.gamma(2.0, scale=1 / 9.0)
proper = Independent(Gamma(3.0, 4.0), Gamma(2.0, 9.0))
deep = LayerSpec(families.by_name("matern52"), ((True,),), proper, False, False, True)
DEEP = network(1, deep, replace(deep, reads=((True, True),)))


def draw_joint(rng):
    """Parameters from their priors, latents and observations given them; the latter as sites."""
    hidden = Process("matern52", LENGTHSCALE.rvs(1, random_state=rng), 1.0,
                     float(NUGGET.rvs(random_state=rng)))  # fmt: skip
    last = Process("matern52", LENGTHSCALE.rvs(2, random_state=rng), 1.0,
                   float(NUGGET.rvs(random_state=rng)))  # fmt: skip
    latent = hidden.draw(rng, AT)[:, None]
    inputs = np.repeat(np.hstack([latent, AT]), COUNTS.astype(int), axis=0)
    rows = last.draw(rng, inputs)
    site = np.repeat(np.arange(N_SITES), COUNTS.astype(int))
    means = np.bincount(site, rows) / COUNTS
    params = tuple(
        LayerParams(np.log(of.lengthscale)[None], np.zeros(1), np.log([of.nugget]))
        for of in (hidden, last)
    )
    return params, latent, means[:, None], np.array([[np.sum((rows - means[site]) ** 2)]])


def joint_statistics(params, latents, y):
    """First and second moments, and products that tie parameters to what they explain."""
    logs = np.hstack([np.hstack([p.log_lengthscale[:, 0], p.log_nugget]) for p in params])
    w, y = latents[..., 0], y[..., 0]
    rough = np.log(np.sum(np.diff(w, axis=1) ** 2, axis=1))[:, None]
    return np.hstack([logs, logs**2, w, w**2, w * y, logs * rough, np.abs(w[:, :1]) * logs])


def test_the_joint_distribution_is_invariant():
    """Geweke (2004): chains that start from exact draws of everything end in exact draws."""
    rng = np.random.default_rng(2)
    params, latents, y, squares = jax.tree.map(
        lambda *each: np.stack(each), *[draw_joint(rng) for _ in range(N_CHAINS)]
    )

    def run(start):
        key, params, latents, y, squares = start
        data = data_of(AT, y, COUNTS, squares)
        chain = Chain(params, impute.start((latents,), 16.0))
        end, _ = sem.train_block(key, DEEP, steps(2, 3, block=3), chain, data, 0, 3)
        return end.params, end.imputation.latents[0]

    words = rng.integers(2**32, size=(N_CHAINS, 2), dtype=np.uint32)
    ends, moved = jit(functools.partial(jax.lax.map, run))((words, params, latents, y, squares))
    before, after = (joint_statistics(*of, y) for of in ((params, latents), (ends, moved)))
    assert np.abs(oracles.in_standard_errors(after - before, 0.0)).max() < 4.5
    # Standing still would pass so far.
    for one, two in zip(jax.tree.leaves(params), jax.tree.leaves(ends), strict=True):
        if np.any(one != 0.0):
            assert np.corrcoef(np.ravel(one), np.ravel(two))[0, 1] < 0.9


def test_nodes_in_turn_and_together_are_the_same_draws(rng):
    """Layers of different kinds have no columns added, on which draws might depend."""
    net = network(1, replace(deep, kernel=families.by_name("matern32")), DEEP.layers[1])
    params, latent, y, squares = draw_joint(rng)
    data, chain = data_of(AT, y, COUNTS, squares), Chain(params, impute.start((latent,), 16.0))
    ends = [
        quickly(WORDS, net, steps(1, 2, block=4, nodes=nodes), chain, data, 0, 4)[0]
        for nodes in (m_step.InTurn(), m_step.Together())
    ]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-8), *ends)
    numbers = [np.asarray(p.log_nugget) for p in ends[0].params]
    assert numbers[0] != numbers[1]
