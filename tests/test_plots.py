"""Figures of fitted emulators: what is drawn is what the emulator says, under the user's names."""

import copy
import sys
import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import PathCollection
from scipy.optimize import brentq
from scipy.stats import norm

from deepemu import DGP, GP, ConvergenceWarning, InputError, Layer
from deepemu.plots.figures import (
    plot_fit,
    plot_hidden,
    plot_left_out,
    plot_predictions,
    plot_profile,
    plot_slices,
    plot_structure,
    plot_surface,
    plot_traces,
    plot_weights,
)

SMALL = {"n_chains": 4, "n_iter": 6, "n_sweeps": 2, "n_imputations": 5, "verbose": False}
SMOOTH = {"kernel": "squared_exponential"}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def line():
    x = np.linspace(2, 4, 9)[:, None]
    return GP().fit(x, np.sin(3 * x[:, 0])).name_columns(["position"], ["height"])


@pytest.fixture(scope="module")
def surface():
    x = np.random.default_rng(0).random((12, 2))
    y = np.column_stack([np.sin(5 * x[:, 0]) + x[:, 1], x[:, 0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        layers = [Layer(2, **SMOOTH), Layer(1, **SMOOTH), Layer(**SMOOTH)]
        emulator = DGP(layers=layers, **SMALL).fit(x, y)
    return emulator.name_columns(["width", "depth"], ["force", "heat"])


def test_the_fit_shows_mean_interval_and_runs(line):
    ax = plot_fit(line)
    curve, runs = ax.lines
    x = curve.get_xdata()
    mean, std = line.predict(x[:, None], return_std=True)
    np.testing.assert_allclose(curve.get_ydata(), mean)
    np.testing.assert_array_equal(runs.get_xydata()[:, 0], np.linspace(2, 4, 9))
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices[:, 1]
    assert corners.max() == pytest.approx(np.max(mean + 1.959964 * std), rel=1e-5)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("position", "height")


def test_a_fit_of_several_inputs_is_drawn_otherwise(surface):
    with pytest.raises(InputError, match="has 2 inputs.*plot_slices"):
        plot_fit(surface)


@pytest.mark.parametrize("output", [0, 1])
def test_slices_go_through_the_point(surface, output):
    axes = plot_slices(surface, at=[0.3, 0.6], output=output)
    assert axes.shape == (1, 2)
    assert [ax.get_xlabel() for ax in axes[0]] == ["width", "depth"]
    assert axes[0, 0].get_ylabel() == ("force", "heat")[output]
    along_width, along_depth = (ax.lines[0] for ax in axes[0])
    rows = np.column_stack([along_width.get_xdata(), np.full(201, 0.6)])
    np.testing.assert_allclose(along_width.get_ydata(), surface.predict(rows)[:, output])
    rows = np.column_stack([np.full(201, 0.3), along_depth.get_xdata()])
    np.testing.assert_allclose(along_depth.get_ydata(), surface.predict(rows)[:, output])


def test_bands_of_a_mixture_end_at_its_quantiles(surface):
    """By root finding on the distribution function of the weighted members."""
    ax = plot_slices(surface, at=[0.3, 0.6])[0, 0]
    corners = ax.collections[0].get_paths()[0].vertices
    rows = np.column_stack([ax.lines[0].get_xdata()[[20, 100, 180]], np.full(3, 0.6)])
    members = surface.posterior_.members(rows)
    for k, width in enumerate(rows[:, 0]):
        drawn = corners[np.isclose(corners[:, 0], width), 1]
        mean, std = members.outputs.mean[:, k, 0], np.sqrt(members.outputs.var[:, k, 0])
        ends = np.min(mean - 9 * std), np.max(mean + 9 * std)
        for found, level in ((drawn.min(), 0.025), (drawn.max(), 0.975)):
            past = lambda y, m=mean, s=std, p=level: members.weights @ norm.cdf(y, m, s) - p  # noqa: E731
            assert found == pytest.approx(brentq(past, *ends, xtol=1e-12), rel=1e-6)


def test_the_surface_has_mean_and_standard_deviation(surface):
    axes = plot_surface(surface, inputs=(1, 0))
    for ax, what in zip(axes.flat, ("mean", "standard deviation"), strict=True):
        assert ax.get_title(loc="left") == f"force: {what}"
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("depth", "width")
        (runs,) = ax.lines
        np.testing.assert_array_equal(runs.get_xydata(), surface.training_inputs[:, ::-1])


def markers(ax):
    """Coordinates of the runs inside and outside their intervals."""
    return [line.get_xydata() for line in ax.lines if "side (" in str(line.get_label())]


def test_left_out_runs_stand_against_themselves(surface):
    ax = plot_left_out(surface, output=1)
    assert ax.get_xlabel() == "heat" and ax.get_ylabel() == "heat, predicted"
    drawn = np.concatenate(markers(ax))
    expected = np.column_stack([surface.training_outputs[:, 1], surface.loo()[0][:, 1]])
    np.testing.assert_allclose(drawn[np.lexsort(drawn.T)], expected[np.lexsort(expected.T)])


def test_outputs_and_inputs_have_names(surface):
    by_name, by_number = plot_left_out(surface, "heat"), plot_left_out(surface, 1)
    for mine, other in zip(markers(by_name), markers(by_number), strict=True):
        np.testing.assert_array_equal(mine, other)
    axes = plot_surface(surface, inputs=("depth", "width"), output="heat")
    assert axes[0, 0].get_title(loc="left") == "heat: mean"
    assert (axes[0, 0].get_xlabel(), axes[0, 0].get_ylabel()) == ("depth", "width")
    predictions, errors, *_ = surface.plot_diagnostics("heat").axes
    assert (predictions.get_xlabel(), predictions.get_ylabel()) == (
        "heat, observed", "heat, predicted")  # fmt: skip
    assert errors.get_xlabel() == "heat, predicted"


def test_long_names_are_not_cut(line):
    """All that is written lies inside the figure."""
    long = "thrust_specific_fuel_consumption at the design point of the engine, kg per N and s"
    emulator = copy.copy(line).name_columns([f"x: {long}"], [f"y: {long}"])
    figures = [plot_fit(emulator), plot_left_out(emulator),
               plot_slices(emulator)[0, 0]]  # fmt: skip
    for ax in figures:
        ax.figure.canvas.draw()
        edge = ax.figure.bbox
        for words in (ax.xaxis.label, ax.yaxis.label):
            box = words.get_window_extent()
            assert "N and s" in words.get_text().replace("\n", " ")
            assert edge.x0 <= box.x0 and box.x1 <= edge.x1
            assert edge.y0 <= box.y0 and box.y1 <= edge.y1


def test_held_out_outputs_have_their_name():
    y, mean, std = pd.Series([1.0, 2.0, 3.0], name="thrust (N)"), [1.1, 2.0, 2.9], [0.1, 0.1, 0.1]
    ax = plot_predictions(y, mean, std)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("thrust (N), true", "thrust (N), predicted")
    ax = plot_predictions(y, mean, std, output="drag")
    assert ax.get_xlabel() == "drag, true"
    ax = plot_profile(y, mean, std)
    assert ax.get_ylabel() == "thrust (N), normalised mean"
    assert plot_profile(y.to_numpy(), mean, std).get_xlabel() == "normalised truth"


def test_ticks_of_close_numbers_stand_apart_and_in_full():
    x = np.linspace(101325.01, 101325.09, 9)[:, None]
    emulator = GP().fit(x, x[:, 0]).name_columns(["pressure"], ["pressure out"])
    for ax in (plot_fit(emulator), plot_slices(emulator)[0, 0]):
        ax.figure.canvas.draw()
        assert ax.xaxis.get_offset_text().get_text() == ""
        labels = [each for each in ax.get_xticklabels() if each.get_text()]
        boxes = [each.get_window_extent() for each in labels if each.get_visible()]
        assert len(boxes) >= 2
        assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
        assert all(each.get_text().startswith("101325") for each in labels)


def test_a_structure_with_long_names_is_drawn_to_size(line):
    emulator = copy.copy(line).name_columns(["p" * 70], ["q" * 70])
    ax = plot_structure(emulator)
    ax.figure.canvas.draw()
    edge = ax.figure.bbox
    for words in ax.texts:
        box = words.get_window_extent()
        assert edge.x0 <= box.x0 and box.x1 <= edge.x1
    assert {each.get_text() for each in ax.texts} >= {"p" * 17 + "…", "q" * 17 + "…"}


def test_the_profile_is_normalised():
    y, mean, std = np.array([10.0, 20.0, 30.0]), np.array([12.0, 20.0, 28.0]), np.array([1, 4, 2])
    ax = plot_profile(y, mean, std)
    (points,) = (each for each in ax.collections if isinstance(each, PathCollection))
    np.testing.assert_allclose(points.get_offsets(), [[0.0, 0.1], [1.0, 0.9], [0.5, 0.5]])
    np.testing.assert_allclose(points.get_array(), [0.25, 0.5, 1.0])


def test_bars_are_the_weights_of_chains(surface):
    ax = plot_weights(surface)
    widths = np.concatenate([[bar.get_width() for bar in row] for row in ax.containers])
    np.testing.assert_allclose(np.sort(widths), np.sort(surface.weights_), atol=1e-12)
    assert ax.get_yticklabels()[0].get_text() == "DGP, 3 layers, squared exponential (4)"


def test_traces_are_lengthscales_on_their_own_scale(surface):
    ax = plot_traces(surface, layer=0)
    *paths, _ = ax.lines
    expected = surface.trace_["lengthscale"][0]
    assert len(paths) == 4 * 2 * 2
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "chain 1", "chain 2", "chain 3", "chain 4", "all rows"]  # fmt: skip
    np.testing.assert_array_equal(paths[0].get_xdata(), np.arange(1, 7))
    np.testing.assert_allclose(paths[0].get_ydata(), expected[0, :, 0, 0])
    assert ax.get_ylabel() == "lengthscales of layer 1"
    assert plot_traces(surface).get_ylabel() == "lengthscales of layer 3"
    with pytest.raises(InputError, match="layer is 3; it must be between 0 and 2"):
        plot_traces(surface, layer=3)


def test_traces_of_other_parameters(surface):
    *paths, _ = plot_traces(surface, what="scale").lines
    np.testing.assert_allclose(paths[0].get_ydata(), surface.trace_["scale"][2][0, :, 0])
    ax = plot_traces(surface, what="log_density")
    *paths, _ = ax.lines
    assert len(paths) == 4 and ax.get_ylabel() == "log density" and ax.get_yscale() == "linear"
    np.testing.assert_allclose(paths[3].get_ydata(), surface.trace_["log_density"][3])
    with pytest.raises(InputError, match="what is 'weights'"):
        plot_traces(surface, what="weights")


def test_legends_keep_to_axes_that_are_given(surface):
    figure, panels = plt.subplots(3, 2)
    plot_traces(surface, ax=panels[0, 0])
    plot_hidden(surface, axes=panels[1:])
    figure.canvas.draw()
    for ax in (panels[0, 0], panels[1, 1]):
        box, frame = ax.get_legend().get_window_extent(), ax.get_window_extent()
        assert frame.x0 <= box.x0 and box.x1 <= frame.x1


def test_hidden_nodes_stand_over_the_inputs(surface):
    axes = plot_hidden(surface)
    assert axes.shape == (2, 2)
    assert len(axes[0, 1].get_legend().get_texts()) == len(axes[0, 1].lines)
    assert axes[1, 1].get_xlabel() == "depth" and axes[1, 0].get_ylabel() == "node 2"
    members = surface.posterior_.structures[0].imputed.members
    best = int(np.argmax(surface.weights_[:4]))
    drawn = axes[0, 1].lines[0].get_xydata()
    order = np.argsort(surface.training_inputs[:, 1])
    np.testing.assert_allclose(drawn[:, 0], surface.training_inputs[order, 1])
    np.testing.assert_allclose(drawn[:, 1], members.latents[0][best, 0][order, 0])


def test_the_structure_has_an_arrow_for_everything_that_is_read(surface):
    settings = surface.get_params() | {"stacking": False, "n_chains": 1}
    emulator = DGP(**settings).fit(surface.training_inputs, surface.training_outputs)
    ax = plot_structure(emulator.name_columns(["width", "depth"], ["force", "heat"]))
    arrows = [each for each in ax.texts if each.get_text() == ""]
    assert len(arrows) == 2 * 2 + (2 + 2) * 1 + (1 + 2) * 2
    words = [each.get_text() for each in ax.texts if each.get_text()]
    assert words == ["width", "depth", "1", "2", "1", "force", "heat"]


def test_a_plain_process_has_a_structure_but_nothing_hidden(line):
    assert len([each for each in plot_structure(line).texts if not each.get_text()]) == 1
    for draw in (plot_hidden, plot_traces):
        with pytest.raises(InputError, match="no deep structure"):
            draw(line)


def test_a_dollar_in_a_name_is_a_dollar(line):
    emulator = GP().fit(line.training_inputs, line.training_outputs[:, 0])
    emulator.name_columns([r"$\frac$"], ["a$b_c$d"])
    for draw in (plot_fit, plot_structure, plot_left_out):
        draw(emulator).figure.canvas.draw()
    ax = plot_fit(emulator)
    for words, expected in ((ax.xaxis.label, r"$\frac$"), (ax.yaxis.label, "a$b_c$d")):
        assert words.get_text() == expected and not words.get_parse_math()


def test_axes_that_are_given_are_used(line, surface):
    figure, (one, other) = plt.subplots(1, 2)
    assert plot_fit(line, ax=one) is one
    assert plot_slices(surface, axes=[one, other])[0, 1] is other
    with pytest.raises(InputError, match="axes are 1; this figure needs 2"):
        plot_slices(surface, axes=[one])
    assert plt.get_fignums() == [figure.number]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: plot_slices(e, at=[1.0]), r"at has shape \(1,\); it must be 2"),
        (lambda e: plot_slices(e, at=[np.nan, 1.0]), "2 finite number"),
        (lambda e: plot_slices(e, output=2), "output is 2; it must be between 0 and 1"),
        (lambda e: plot_slices(e, output=True), "output is True"),
        (lambda e: e.plot_diagnostics(output=True), "output is True"),
        (lambda e: plot_slices(e, output="colour"), "or one of 'force', 'heat'"),
        (lambda e: plot_slices(e, output=1.5), "output is 1.5"),
        (lambda e: plot_traces(e, 0, "log_density"), "log_density has no layer"),
        (lambda e: plot_slices(e, output=1.0), "output is 1.0"),
        (lambda e: plot_slices(e, output=np.True_), "output is .*True"),
        (lambda e: plot_slices(e, output=np.array([0, 1])), "it must be between 0 and 1"),
        (lambda e: plot_surface(e, inputs="width"), "two different inputs"),
        (lambda e: plot_surface(e, inputs=(0, 0)), "two different inputs"),
        (
            lambda e: plot_surface(e, inputs=(0, 5)),
            "inputs is 5; .* or one of 'width', 'depth'",
        ),
        (lambda e: plot_surface(e, inputs=(False, True)), "inputs is False"),
    ],
)
def test_mistakes_get_one_sentence(surface, call, message):
    with pytest.raises(InputError, match=message):
        call(surface)


def test_without_matplotlib_it_says_what_to_install(line, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'deepemu\[plot\]'"):
        plot_fit(line)
