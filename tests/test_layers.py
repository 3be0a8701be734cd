"""The user's description of a network, its translation, and fits of networks of many shapes."""

import functools
import itertools

import mpmath
import numpy as np
import pytest

from deepemu import DGP, GP, InputError, Layer
from deepemu.core.kernels import families
from deepemu.core.model.priors import Gamma, Independent, InverseGamma, Reference
from deepemu.core.nodes.dense import Dense
from deepemu.observations.gaussian import GaussianNoise
from deepemu.training import layers as descriptions
from deepemu.training.layers import prior_by_name

SMALL = {"n_chains": 1, "n_iter": 3, "n_sweeps": 2, "n_imputations": 2}
SMOOTH = {"kernel": "squared_exponential"}  # has the smallest programs


def build_network(layers, n_inputs, n_outputs):
    return descriptions.build_network(layers, n_inputs, n_outputs, GaussianNoise(), Dense())


# --- translation ---------------------------------------------------------------------------------


def test_layers_read_the_one_below_and_the_inputs():
    network = build_network([Layer(width=3), Layer(width=2), Layer()], 4, 5)
    assert [spec.width for spec in network.layers] == [3, 2, 5]
    assert [spec.n_columns for spec in network.layers] == [4, 3 + 4, 2 + 4]
    assert all(all(map(all, spec.reads)) for spec in network.layers)
    assert (network.n_inputs, network.layers[-1].width, network.depth) == (4, 5, 3)


def test_layers_without_the_inputs_read_the_one_below():
    layers = [Layer(width=3, connect_input=False), Layer(connect_input=False)]
    network = build_network(layers, 4, 1)
    assert [spec.n_columns for spec in network.layers] == [4, 3]


def test_nodes_read_the_columns_they_name():
    layers = [Layer(width=2, reads=[[0], [2, 1]]), Layer(reads=[[0, 4]])]
    first, last = build_network(layers, 3, 1).layers
    assert first.reads == ((True, False, False), (False, True, True))
    assert last.reads == ((True, False, False, False, True),)


def test_choices_are_carried_over():
    layer = Layer(
        kernel="matern32",
        lengthscale="shared",
        scale="estimate",
        nugget="estimate",
        prior="reference",
    )
    (spec,) = build_network([layer], 1, 1).layers
    assert spec.kernel == families.Matern32()
    assert spec.shared_lengthscale and spec.free_scale and spec.free_nugget
    assert spec.prior == Reference()
    plain, last = build_network([Layer(1), Layer()], 1, 1).layers
    assert plain.kernel == families.Matern52()
    assert not (plain.shared_lengthscale or plain.free_scale or plain.free_nugget)
    assert last.free_scale and not last.free_nugget


def test_priors_have_names():
    assert prior_by_name("gamma") == Independent(Gamma(1.6, 0.3))
    assert prior_by_name("inverse_gamma") == Independent(InverseGamma(1.6, 0.3))
    assert prior_by_name("reference") == Reference(0.2)
    own = Independent(Gamma(2.0, 1.0))
    assert prior_by_name(own) is own
    with pytest.raises(InputError, match="prior is 'flat'; it must be one of gamma"):
        prior_by_name("flat")


def test_equal_descriptions_give_equal_networks():
    """So that programs are found again."""
    networks = [build_network([Layer(width=2), Layer()], 2, 1) for _ in range(2)]
    assert networks[0] == networks[1]
    assert hash(networks[0]) == hash(networks[1])


# --- fits ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problem():
    x = np.random.default_rng(0).random((12, 2))
    return x, np.sin(5 * x[:, 0]) + x[:, 1]


PAPER = {"lengthscale": "shared", "connect_input": False, **SMOOTH}
NOT_CONNECTED = "wider than the inputs and not connected"
NETWORKS = {
    "three layers of two kernels": [
        Layer(width=2, prior="none", **SMOOTH),
        Layer(width=1, prior="inverse_gamma", **SMOOTH),
        Layer(kernel="matern32", prior="reference", scale="estimate"),
    ],
    NOT_CONNECTED: [Layer(width=3, **PAPER), Layer(**PAPER)],
    "one lengthscale per layer": [
        Layer(width=2, lengthscale="layer", **SMOOTH),
        Layer(width=3, lengthscale="layer", **SMOOTH),
        Layer(lengthscale="layer", **SMOOTH),
    ],
    "some columns are read": [
        Layer(width=1, reads=[[0]], scale=2.0, nugget=1e-4, **SMOOTH),
        Layer(reads=[[0, 1]], scale=3.0, nugget=1e-5, **SMOOTH),  # of [hidden | first, second]
    ],
}


def two_outputs(x, y):
    return np.column_stack([y, 1e4 * np.cos(3 * x[:, 1]) - 5e6])


@pytest.fixture(scope="module")
def fit(problem):
    x, y = problem

    @functools.cache
    def of_network(name):
        changed = {"some columns are read": np.sin(5 * x[:, 0]), NOT_CONNECTED: two_outputs(x, y)}
        return DGP(layers=NETWORKS[name], **SMALL).fit(x, changed.get(name, y))

    return of_network


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_many_shapes_interpolate(name, fit, problem):
    emulator, x = fit(name), problem[0]
    y = emulator.training_outputs
    mean, std = (each.reshape(y.shape) for each in emulator.predict(x, return_std=True))
    assert np.all(np.abs(mean - y) < 0.02 * y.std(axis=0))
    assert np.all(std < 0.1 * y.std(axis=0)) and np.all(std > 0)
    assert len(emulator.trace_["lengthscale"]) == len(NETWORKS[name])


def test_depth_and_width_are_short_for_layers():
    short = DGP(depth=3, width=1, connect_input=False, nugget=1e-4, **SMOOTH)
    hidden = Layer(width=1, connect_input=False, **SMOOTH)
    assert short._layers(2) == [hidden, hidden, Layer(connect_input=False, nugget=1e-4, **SMOOTH)]


def test_the_settings_of_the_paper_train(problem):
    """With brackets of the full circle, written as infinite."""
    x, y = problem[0], two_outputs(*problem)
    emulator = DGP.paper(width=3, n_iter=5, n_sweeps=2, n_imputations=2).fit(x, y)
    assert emulator.score(x, y) > 0.99
    first, second = emulator.posterior_.structures[0].imputed.members.latents[0][0, :, :12]
    assert np.all(np.isfinite(first)) and np.all(first != second)


def test_the_default_width_is_that_of_the_inputs_up_to_six():
    widths = [DGP()._layers(n)[0].width for n in (1, 3, 6, 20)]
    assert widths == [1, 3, 6, 6]
    assert DGP(width=4)._layers(2)[0].width == 4
    assert len(DGP(depth=1)._layers(2)) == 1


def test_a_column_that_is_not_read_has_no_influence(fit, problem):
    emulator, (x, _) = fit("some columns are read"), problem
    moved = x + [0.0, 7.0]
    np.testing.assert_array_equal(
        emulator.predict(moved, return_std=True), emulator.predict(x, return_std=True)
    )
    assert np.all(emulator.predict(x + [0.05, 0.0]) != emulator.predict(x))


def test_a_shared_lengthscale_is_one_number(fit):
    for shared in fit(NOT_CONNECTED).trace_["lengthscale"]:
        np.testing.assert_array_equal(shared, shared[..., :1] + np.zeros(shared.shape[-1]))
    own = fit("three layers of two kernels").trace_["lengthscale"][2]
    assert np.all(own[..., 0] != own[..., 1])


def test_a_layer_may_have_one_lengthscale(fit):
    emulator = fit("one lengthscale per layer")
    for path in emulator.trace_["lengthscale"]:
        np.testing.assert_array_equal(path, np.broadcast_to(path[..., :1, :1], path.shape))
        assert np.ptp(path) > 0.0
    layers = emulator.posterior_.structures[0].structure.network.layers
    assert [spec.shares_kernel for spec in layers] == [True, True, False]


def test_nodes_of_one_lengthscale_read_the_same_columns(problem):
    layers = [Layer(width=2, lengthscale="layer", reads=[[0], [0, 1]]), Layer()]
    with pytest.raises(InputError, match="lengthscale of layer 1 is 'layer', but its nodes read"):
        DGP(layers=layers).fit(*problem)


def test_a_fixed_scale_and_nugget_stay_where_they_are(fit):
    emulator = fit("some columns are read")
    for name, values in (("scale", (2.0, 3.0)), ("nugget", (1e-4, 1e-5))):
        for path, value in zip(emulator.trace_[name], values, strict=True):
            np.testing.assert_allclose(path, value)


def test_a_network_of_several_outputs(fit, problem):
    x, both = problem[0], two_outputs(*problem)
    emulator = fit(NOT_CONNECTED)
    mean, std = emulator.predict(x, return_std=True)
    assert mean.shape == std.shape == (12, 2)
    assert np.all(np.abs(mean - both) < 0.02 * both.std(axis=0))
    assert emulator.sample_y(x, 2).shape == (12, 2, 2)


def test_a_deep_emulator_estimates_noise():
    x = np.linspace(0, 1, 16)[:, None].repeat(4, axis=0)
    rng = np.random.default_rng(3)
    y = np.sin(6 * x[:, 0]) + rng.normal(0, 0.2, len(x))
    settings = {**SMALL, "n_iter": 40, "n_scoring": 3}
    emulator = DGP(width=1, nugget="estimate", **settings, **SMOOTH).fit(x, y)
    scale, nugget = (emulator.trace_[name][-1][0, 10:, 0] for name in ("scale", "nugget"))
    assert np.mean(np.sqrt(scale * nugget)) * y.std() == pytest.approx(0.2, rel=0.3)


# --- small nuggets ---------------------------------------------------------------------------


def test_nuggets_have_a_smallest_value():
    build_network([Layer(nugget=1e-8)], 2, 1)
    build_network([Layer(width=2), Layer(nugget=1e-8)], 2, 1)
    with pytest.raises(InputError, match="nugget of layer 1 is 9e-09; it must be .* least 1e-08"):
        build_network([Layer(nugget=9e-9)], 2, 1)
    with pytest.raises(InputError, match="nugget of layer 2 is 9e-09; it must be .* least 1e-08"):
        build_network([Layer(width=2), Layer(nugget=9e-9)], 2, 1)


@pytest.mark.parametrize("kernel", ["squared_exponential", "matern52"])
def test_the_smallest_nugget_leaves_the_variance_its_digits(kernel):
    """Against a computation with 60 digits: correlations near one, a condition of 1e10."""
    rng = np.random.default_rng(0)
    x, at = rng.random((30, 2)), rng.random((5, 2))
    emulator = GP(kernel=kernel, nugget=1e-8).fit(x, x[:, 0] + 0.1 * x[:, 1] ** 2)
    lengthscale, scale = emulator.trace_["lengthscale"][0][0, 0, 0], emulator.trace_["scale"][0]
    core, core_at = (emulator.posterior_.runs.scale.to_core(each) for each in (x, at))
    _, std = emulator.predict(at, return_std=True)
    exact = exact_variances(kernel, core, core_at, lengthscale, 1e-8)
    unit = emulator.training_outputs.std() * np.sqrt(scale.item())
    np.testing.assert_allclose(std / unit, np.sqrt(exact), rtol=1e-3)
    draws = emulator.sample_y(at, 4000)
    np.testing.assert_allclose(draws.std(axis=1), std, rtol=0.06)  # five standard errors


def exact_variances(kernel, x, at, lengthscale, nugget):
    """1 + η - rᵀ(R + ηI)⁻¹r for each row of ``at``, in mpmath."""
    with mpmath.workdps(60):
        square_root = mpmath.sqrt(5)

        def correlation(a, b):
            product = mpmath.mpf(1)
            for first, second, length in zip(a, b, lengthscale, strict=True):
                r = abs(mpmath.mpf(first) - mpmath.mpf(second)) / mpmath.mpf(length)
                smooth = mpmath.exp(-(r**2))
                rough = (1 + square_root * r + 5 * r**2 / 3) * mpmath.exp(-square_root * r)
                product *= smooth if kernel == "squared_exponential" else rough
            return product

        matrix = mpmath.eye(len(x)) * (1 + mpmath.mpf(nugget))
        for i, j in itertools.combinations(range(len(x)), 2):
            matrix[i, j] = matrix[j, i] = correlation(x[i], x[j])
        lower = mpmath.cholesky(matrix)
        found = []
        for row in at:
            whitened = []  # forward substitution
            for i, one in enumerate(x):
                below = mpmath.fdot((lower[i, j], whitened[j]) for j in range(i))
                whitened.append((correlation(one, row) - below) / lower[i, i])
            found.append(float(1 + mpmath.mpf(nugget) - mpmath.fdot(whitened, whitened)))
        return np.array(found)


def test_layers_are_read_by_number_or_by_name():
    hidden = [Layer(width=1, name="first"), Layer(width=2)]
    by_number, by_name, mixed = (
        build_network([*hidden, Layer(connect_input=False, sources=sources)], 3, 1)
        for sources in ([1, 2], ["first", "layer2"], ["first", 2])
    )
    assert by_number == by_name == mixed
    assert by_number.sources(2) == (0, 1) and by_number.n_hidden(2) == 3


@pytest.mark.parametrize("source", [0, 3, "last", True, 1.5])
def test_layers_that_are_not_before_cannot_be_read(source):
    layers = [Layer(width=1), Layer(width=1), Layer(sources=[source])]
    with pytest.raises(InputError, match=r"sources.*1 to 2"):
        build_network(layers, 3, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sources": 1}, "sources of layer 2 is 1; it must be a list of different earlier layers"),
        ({"sources": ["b"]}, r"is \['b'\]; .* earlier layers \(1, or 'layer1'\)"),
        ({"reads": 3}, "reads of layer 2 is 3; it must be a list of lists of columns"),
        ({"reads": "x1"}, "reads of layer 2 is 'x1'; it must be a list of lists"),
        ({"reads": [np.array([[0, 1]])]}, "reads of layer 2 has"),
        ({"reads": [[True]]}, r"reads of layer 2 has \[True\]"),
        ({"reads": [["x1", 1]]}, "at least one column, all different, between 0 and 2 or by name"),
        ({"reads": [["x1"]]}, r"layer\(s\) \[1\] are read by no other"),
        ({"name": "layer1"}, "name of a layer is 'layer1' twice"),
        ({"name": ""}, "name of a layer is ''; it must be a word"),
        ({"name": 3}, "name of a layer is 3; it must be a word"),
    ],
)
def test_mistakes_in_a_layer_are_told_in_a_sentence(wrong, message):
    layers = [Layer(1), Layer(1, **wrong)]
    with pytest.raises(InputError, match=message):
        DGP(layers=layers, **{"n_chains": 1, "stacking": False}).fit(
            np.eye(3)[:, :2], [1.0, 2.0, 3.0]
        )


def test_the_first_layer_has_no_sources():
    with pytest.raises(InputError, match="sources of layer 1 is .*; it must be empty: the first"):
        build_network([Layer(width=1, sources=[1]), Layer()], 3, 1)
