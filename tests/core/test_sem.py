"""Training: a one-layer network against SciPy's optimum, and what a block leaves alone."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest
from core import builders
from core.builders import data_of, network
from oracles import Process
from programs import quick_jit as jit
from scipy import optimize

from deepemu.core.inference import impute, m_step, multistart, sem
from deepemu.core.inference.sem import Chain
from deepemu.core.kernels import families
from deepemu.core.model.network import LayerParams, LayerSpec
from deepemu.core.model.priors import Flat, Gamma, Independent, InverseGamma, Reference

N_ROWS = 14
BLOCK = 6
train_block = jit(sem.train_block, static_argnames="network")
fit_layers = jit(
    functools.partial(m_step.fit_layers, m_step.InTurn()), static_argnames=("network", "layers")
)
best_ascent = jit(
    functools.partial(multistart.best_ascent, nodes=m_step.InTurn()), static_argnames="network"
)
steps = functools.partial(builders.steps, block=BLOCK, adapt=True)


def spec(kernel, reads, prior, **changes):
    reads = tuple(tuple(bool(c) for c in row) for row in reads)
    plain = LayerSpec(families.by_name(kernel), reads, prior, False, True, True)
    return replace(plain, **changes)


def start_of(net, n_rows=N_ROWS, seed=0):
    """A chain with odd parameters, whose latents are random."""
    rng = np.random.default_rng(seed)
    params = tuple(
        LayerParams(
            np.full((layer.width, layer.n_columns), 0.3),
            rng.uniform(-1, 1, layer.width),
            np.full(layer.width, np.log(0.05)),
        )
        for layer in net.layers
    )
    latents = tuple(rng.normal(size=(n_rows, s.width)) for s in net.layers[:-1])
    return Chain(params, impute.start(latents, 16.0))


@pytest.fixture
def x(rng):
    return rng.uniform(size=(N_ROWS, 2))


@pytest.fixture
def y(rng, x):
    return np.sin(4 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + 0.15 * rng.normal(size=N_ROWS)


# --- the optimum of one layer ----------------------------------------------------------------
# Log priors once more, up to constants, as functions of lengthscales, nugget and inputs.


def gamma_prior(lengthscale, nugget, x):
    return np.sum(0.6 * np.log(lengthscale) - 0.3 * lengthscale)


def inverse_gamma_prior(lengthscale, nugget, x):
    return np.sum(-2.6 * np.log(lengthscale) - 0.3 / lengthscale) + (
        -3.0 * np.log(nugget) - 0.1 / nugget
    )


def reference_prior(lengthscale, nugget, x):
    per_axis = len(x) ** (1 / x.shape[1])
    t = np.sum(np.ptp(x, axis=0) / per_axis / lengthscale) + nugget
    return 0.2 * np.log(t) - (0.2 + x.shape[1]) / per_axis * t


def shared_prior(lengthscale, nugget, x):
    return 1.6 * np.log(lengthscale[0]) - 0.8 * lengthscale[0] + np.log(nugget) - 9.0 * nugget


both = [[1, 1]]
CASES = {
    "gamma": (spec("matern52", both, Independent(Gamma(), Flat())), gamma_prior),
    "inverse gamma": (
        spec("matern32", both, Independent(InverseGamma(), InverseGamma(2.0, 0.1))),
        inverse_gamma_prior,
    ),
    "reference": (spec("squared_exponential", both, Reference()), reference_prior),
    "shared, scale held": (
        spec(
            "squared_exponential", both, Independent(Gamma(2.6, 0.8), Gamma(2.0, 9.0)),
            shared_lengthscale=True, free_scale=False,
        ),
        shared_prior,
    ),
    "nugget held, one column": (
        spec("matern52", [[1, 0]], Independent(Gamma(), Flat()), free_nugget=False),
        gamma_prior,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_layer_reaches_the_optimum_of_scipy(case, x, y):
    layer, log_prior = CASES[case]
    net = network(2, layer)
    begin = start_of(net)
    read = np.array(layer.reads[0])
    n_free = 1 if layer.shared_lengthscale else int(read.sum())
    held_scale, held_nugget = np.exp(begin.params[0].log_scale[0]), 0.05
    name = {families.by_name(k): k for k in ("squared_exponential", "matern52", "matern32")}

    def process_at(theta):
        lengthscale = np.full(2, np.inf)
        lengthscale[read] = np.exp(theta[:n_free])
        nugget = float(np.exp(theta[n_free])) if layer.free_nugget else held_nugget
        process = Process(name[layer.kernel], lengthscale, float(held_scale), nugget)
        return process.best_scale(x, y) if layer.free_scale else process

    def objective(theta):
        process = process_at(theta)
        used = process.lengthscale[read]
        return process.log_density(x, y) + log_prior(used, process.nugget, x[:, read])

    first = np.append(np.full(n_free, 0.3), [np.log(0.05)] if layer.free_nugget else [])
    bounds = [(-6.9, 6.9)] * n_free + [(-18.4, 4.6)] * layer.free_nugget
    best = optimize.minimize(
        lambda theta: -objective(theta), first, bounds=bounds, method="L-BFGS-B",
        options={"ftol": 1e-14, "gtol": 1e-7},
    )  # fmt: skip

    chain, trace = train_block(
        np.zeros(2, np.uint32), net, steps(2, 20), begin, data_of(x, y), 0, 4
    )
    (params,) = chain.params
    lengthscale = np.asarray(params.log_lengthscale)[0]
    found = lengthscale[:1] if layer.shared_lengthscale else lengthscale[read]
    if layer.free_nugget:
        found = np.append(found, params.log_nugget[0])
    np.testing.assert_allclose(found, best.x, atol=2e-4)
    np.testing.assert_allclose(objective(found), -best.fun, atol=1e-7)
    np.testing.assert_allclose(trace.log_density[3], objective(found), rtol=1e-9)
    np.testing.assert_allclose(np.exp(params.log_scale[0]), process_at(found).scale, rtol=1e-9)
    if not layer.free_nugget:
        assert params.log_nugget[0] == begin.params[0].log_nugget[0]


@pytest.mark.parametrize("free_scale", [False, True])
def test_nodes_that_share_a_kernel_are_fitted_together(free_scale, rng, x):
    """Lengthscale and nugget maximise the sum of both nodes' log densities and one log prior."""
    hidden = spec(
        "matern52", both * 2, Independent(Gamma(2.6, 0.8), Gamma(2.0, 9.0)),
        shared_lengthscale=True, free_scale=free_scale, shares_kernel=True,
    )  # fmt: skip
    net = network(2, hidden, spec("matern52", [[1, 1, 0, 0]], Independent(Flat(), Flat())))
    begin = start_of(net)
    held = np.exp(begin.params[0].log_scale)
    targets = np.column_stack([np.sin(4 * x[:, 0]), x[:, 1] ** 2]) + 0.2 * rng.normal(size=x.shape)

    def processes_at(theta):
        lengthscale, nugget = np.full(2, np.exp(theta[0])), float(np.exp(theta[1]))
        given = [Process("matern52", lengthscale, float(scale), nugget) for scale in held]
        if not free_scale:
            return given
        return [process.best_scale(x, w) for process, w in zip(given, targets.T, strict=True)]

    def objective(theta):
        nodes = zip(processes_at(theta), targets.T, strict=True)
        return sum(process.log_density(x, w) for process, w in nodes) + shared_prior(
            np.exp(theta[:1]), np.exp(theta[1]), x
        )

    best = optimize.minimize(
        lambda theta: -objective(theta), [0.3, np.log(0.05)], method="L-BFGS-B",
        bounds=[(-6.9, 6.9), (-18.4, 4.6)], options={"ftol": 1e-14, "gtol": 1e-7},
    )  # fmt: skip
    given = begin.params, (targets,), data_of(x, x[:, 0])
    (fitted,), values = fit_layers(net, (0,), *given, 60)
    found = [fitted.log_lengthscale[0, 0], fitted.log_nugget[0]]
    np.testing.assert_allclose(found, best.x, atol=2e-4)
    np.testing.assert_allclose(values, [-best.fun], atol=1e-7)
    np.testing.assert_array_equal(fitted.log_lengthscale, np.full((2, 2), found[0]))
    np.testing.assert_array_equal(fitted.log_nugget, np.full(2, found[1]))
    scales = [process.scale for process in processes_at(np.asarray(found))]
    np.testing.assert_allclose(np.exp(fitted.log_scale), scales, rtol=1e-9)


# --- what a block does -----------------------------------------------------------------------

of_one_kind = functools.partial(spec, "squared_exponential", prior=Independent(Flat(), Flat()))
TWO_LAYERS = network(
    2,
    of_one_kind([[1, 1], [1, 1]], free_scale=False),
    of_one_kind([[1, 1, 0, 0], [1, 1, 1, 1]]),
)


@pytest.fixture(params=[m_step.Maximise(), m_step.Sample()], ids=["maximise", "sample"])
def train(request, x, y):
    """Train two layers with two outputs for some iterations of a block."""
    data = data_of(x, np.stack([y, x[:, 0] ** 2], axis=1))
    return lambda spent, n_iterations, seed=0, first=0, start=None: train_block(
        np.array([0, seed], np.uint32), TWO_LAYERS, replace(spent, m_step=request.param),
        start or start_of(TWO_LAYERS), data, first, n_iterations,
    )  # fmt: skip


def test_only_the_iterations_that_ran_are_in_the_trace(train):
    chain, trace = train(steps(1, 2), 4)
    for path, now in zip(jax.tree.leaves(trace.params), jax.tree.leaves(chain.params), strict=True):
        assert path.shape[0] == BLOCK
        np.testing.assert_array_equal(path[3], now)
        np.testing.assert_array_equal(path[4:], 0.0)
    assert np.all(trace.log_density[:4] != 0)
    np.testing.assert_array_equal(trace.log_density[4:], 0.0)


def test_more_iterations_go_on_from_fewer(train):
    """The number of iterations is not a shape, and the random numbers do not depend on it."""
    _, short = train(steps(1, 2), 2)
    _, long = train(steps(1, 2), 5)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:2], b[:2]), short, long)


def test_blocks_may_be_cut_anywhere(train):
    """Draws belong to the iteration: two blocks end exactly where one does."""
    whole, _ = train(steps(2, 1), 5)
    half, _ = train(steps(2, 1), 2)
    rest, _ = train(steps(2, 1), 3, first=2, start=half)
    jax.tree.map(np.testing.assert_array_equal, whole, rest)


@pytest.mark.parametrize("train", [m_step.Maximise()], indirect=True)
def test_the_trace_holds_the_complete_data_log_density(train, x, y):
    chain, trace = train(steps(1, 3), 1)
    outputs = np.stack([y, x[:, 0] ** 2], axis=1)
    latent = np.asarray(chain.imputation.latents[0])
    total = 0.0
    for layer, inputs, targets, params in zip(
        TWO_LAYERS.layers, (x, np.hstack([latent, x])), (latent, outputs), chain.params, strict=True
    ):
        for node in range(2):
            lengthscale = np.where(layer.reads[node], np.exp(params.log_lengthscale[node]), np.inf)
            scale, nugget = np.exp(params.log_scale[node]), np.exp(params.log_nugget[node])
            process = Process("squared_exponential", lengthscale, float(scale), float(nugget))
            total += process.log_density(inputs, targets[:, node])
    np.testing.assert_allclose(trace.log_density[0], total, rtol=1e-8)


def test_held_parameters_are_held(train):
    begin, (chain, _) = start_of(TWO_LAYERS), train(steps(1, 3), 2)
    hidden, last = chain.params
    np.testing.assert_allclose(hidden.log_scale, begin.params[0].log_scale, rtol=1e-14)
    assert np.all(last.log_scale != begin.params[1].log_scale)
    not_read = ~np.array(TWO_LAYERS.layers[1].reads)
    before, after = begin.params[1].log_lengthscale, last.log_lengthscale
    np.testing.assert_array_equal(np.asarray(after)[not_read], np.asarray(before)[not_read])
    assert np.all(np.asarray(after)[~not_read] != np.asarray(before)[~not_read])


def test_without_scoring_steps_parameters_stay_bit_for_bit(train):
    begin, (chain, _) = start_of(TWO_LAYERS), train(steps(2, 0, adapt=False), 3)
    jax.tree.map(np.testing.assert_array_equal, chain.params, begin.params)
    jax.tree.map(np.testing.assert_array_equal, chain.imputation.angles, begin.imputation.angles)
    assert np.all(chain.imputation.latents[0] != begin.imputation.latents[0])


def test_scoring_learns_the_nugget_from_replicates(rng):
    """Twenty observations at each of six sites: three scoring steps come near the optimum."""
    x, deviation = np.linspace(0, 1, 6)[:, None], 0.3
    net = network(1, spec("matern52", [[1]], Independent(Gamma(), Flat()), free_scale=False))
    begin = LayerParams(np.zeros((1, 1)), np.zeros(1), np.full(1, np.log(0.02)))
    data = data_of(x, np.sin(3 * x), np.full(6, 20.0), 6 * 19 * deviation**2)
    ((short,), value), ((long,), best) = (
        fit_layers(net, (0,), (begin,), (), data, n) for n in (4, 200)
    )
    np.testing.assert_allclose(np.exp(long.log_nugget), deviation**2, rtol=0.05)
    np.testing.assert_allclose(value, best, atol=0.1)
    np.testing.assert_allclose(short.log_nugget, long.log_nugget, atol=0.05)


def test_each_node_is_polished_from_its_best_start(rng, x):
    """A start that is not a number is never chosen, in whatever place."""
    alike = spec("squared_exponential", [[1, 1], [1, 1]], Independent(Gamma(), Flat()))
    net, n_scout, n_polish = network(2, alike), 2, 5
    data = data_of(x, np.stack([np.sin(9 * x[:, 0]), x[:, 1] ** 2], axis=1))
    starts = LayerParams(
        rng.uniform(-3, 1, (5, 2, 2)), np.zeros((5, 2)), np.full((5, 2), np.log(0.05))
    )
    starts.log_lengthscale[[0, 3]] = np.nan
    row = lambda k: jax.tree.map(lambda each: each[k], starts)  # noqa: E731
    tries = [fit_layers(net, (0,), (row(k),), (), data, n_scout) for k in range(5)]
    best = np.nanargmax([values for _, values in tries], axis=0)
    pick = lambda *each: np.stack([each[k][node] for node, k in enumerate(best)])  # noqa: E731
    chosen = jax.tree.map(pick, *(fitted for (fitted,), _ in tries))
    (expected,), value = fit_layers(net, (0,), (chosen,), (), data, n_polish)
    found = best_ascent(
        net, starts=starts, data=data, n_scout=n_scout, n_polish=n_polish, tolerance=0.0
    )
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9)
    jax.tree.map(close, found, (expected, value))


@pytest.mark.parametrize("shared", [False, True])
def test_layers_of_any_size_are_fitted_as_if_alone(shared, rng):
    """Two nodes of one column, and three of three columns, not all read, with scales held."""
    alike = functools.partial(
        spec, "squared_exponential", prior=Independent(Gamma(), Flat()), shared_lengthscale=shared
    )
    wide = alike([[1, 1, 1], [1, 0, 1], [0, 1, 1]], free_scale=False)
    net = network(1, alike([[1], [1]]), wide)
    params = tuple(
        LayerParams(*(np.zeros(shape) for shape in ((p, d), p)), np.full(p, -9.0))
        for p, d in ((layer.width, layer.n_columns) for layer in net.layers)
    )
    given = params, (rng.normal(size=(8, 2)),), data_of(rng.random((8, 1)), rng.normal(size=(8, 3)))
    fitted, values = fit_layers(net, (0, 1), *given, 2)
    alone = [fit_layers(net, (layer,), *given, 2) for layer in (0, 1)]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-10)
    jax.tree.map(functools.partial(close, atol=1e-12), fitted, [one for (one,), _ in alone])
    close(values, np.concatenate([value for _, value in alone]))


def test_layers_of_one_kind_are_fitted_together():
    """In turn; a batch is one layer's, because of its memory."""
    flat, gamma = Independent(Flat(), Flat()), Independent(Gamma(), Flat())
    plain, same = spec("matern52", [[1, 1]], flat), spec("matern52", [[1]], flat, free_scale=False)
    other = {
        "kernel": spec("matern32", [[1, 1]], flat),
        "prior": spec("matern52", [[1, 1]], gamma),
        "shared": spec("matern52", [[1, 1]], flat, shared_lengthscale=True),
    }
    without_noise = spec("matern52", [[1, 1]], flat, free_nugget=False)
    assert m_step.InTurn().groups(network(2, plain, without_noise, same)) == [[0, 1, 2]]
    for layer in other.values():
        assert m_step.InTurn().groups(network(2, plain, layer, same)) == [[0, 2], [1]]
    assert m_step.Together().groups(network(2, plain, same)) == [[0], [1]]
