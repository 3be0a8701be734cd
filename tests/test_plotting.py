"""What the panels of the figure show, counted apart from the code that draws them."""

import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from scipy import stats

from deepemu import convergence
from deepemu.errors import InputError
from deepemu.plots import diagnostics


@pytest.fixture
def held_out(rng):
    """Outputs, means and standard deviations that are somewhat too small."""
    mean, std = rng.normal(size=120), rng.uniform(0.2, 1.0, size=120)
    return rng.normal(mean, 1.4 * std), mean, std


@pytest.fixture
def trace(rng):
    return rng.normal(size=(3, 40)).cumsum(axis=1)


def panel(figure, title):
    (axes,) = [a for a in figure.axes if a.get_title(loc="left").startswith(title)]
    return axes


def points(axes, label):
    """Coordinates of the markers of that label, and their colour."""
    (line,) = [line for line in axes.lines if str(line.get_label()).startswith(label)]
    return *line.get_data(), to_hex(line.get_color())


def bars(axes):
    (container,) = [c for c in axes.containers if isinstance(c, BarContainer)]
    return list(container)


@pytest.mark.parametrize(
    ("given", "titles"),
    [
        ({}, ["Held-out", "Standardised", "Probability", "Coverage"]),
        ({"weights": [1.0]}, ["Held-out", "Standardised", "Probability", "Coverage", "Weights"]),
        (
            {"weights": [0.3, 0.7], "trace": np.zeros((2, 9))},
            ["Held-out", "Standardised", "Probability", "Coverage", "Weights", "Log"],
        ),
    ],
)
def test_a_panel_without_data_is_left_out_and_no_gap_stays(held_out, given, titles):
    figure = diagnostics.plot_diagnostics(*held_out, **given)
    assert [axes.get_title(loc="left").split()[0] for axes in figure.axes] == titles
    assert all(axes.get_xlabel() for axes in figure.axes)
    figure.draw_without_rendering()
    for row in {round(axes.get_position().y1, 1) for axes in figure.axes}:
        ends = [a.get_position() for a in figure.axes if round(a.get_position().y1, 1) == row]
        assert min(box.x0 for box in ends) < 0.2
        assert max(box.x1 for box in ends) > 0.95


def test_predictions_outside_their_intervals_stand_out(held_out):
    y, mean, std = held_out
    outside = (y < mean - 1.96 * std) | (y > mean + 1.96 * std)
    assert 5 < outside.sum() < 60
    axes = panel(diagnostics.plot_diagnostics(*held_out), "Held-out")
    labels = [f"inside ({(~outside).sum()})", f"outside ({outside.sum()})"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == labels
    colours = set()
    for chosen, label, lines in zip((~outside, outside), labels, axes.collections, strict=True):
        *at, colour = points(axes, label)
        np.testing.assert_array_equal(at, [y[chosen], mean[chosen]])
        ends = np.array([segment[:, 1] for segment in lines.get_segments()])
        reach = 1.959964 * std[chosen]
        np.testing.assert_allclose(ends[:, 0], mean[chosen] - reach, atol=1e-6)
        np.testing.assert_allclose(ends[:, 1], mean[chosen] + reach, atol=1e-6)
        colours.add(colour)
    assert len(colours) == 2


def test_standardised_errors_are_drawn_over_the_predictions(held_out):
    y, mean, std = held_out
    errors = (y - mean) / std
    axes = panel(diagnostics.plot_diagnostics(*held_out), "Standardised")
    (x_in, z_in, colour_in), (x_out, z_out, colour_out) = (
        points(axes, label) for label in ("inside", "outside")
    )
    outside = np.abs(errors) > 1.96
    np.testing.assert_array_equal(x_in, mean[~outside])
    np.testing.assert_array_equal(x_out, mean[outside])
    np.testing.assert_allclose(z_in, errors[~outside])
    np.testing.assert_allclose(z_out, errors[outside])
    assert colour_in != colour_out
    (band,) = axes.patches
    np.testing.assert_allclose([band.get_y(), band.get_height()], [-1.96, 3.92], rtol=1e-4)


def test_an_infinite_error_is_drawn_at_the_edge():
    y, mean, std = np.array([[4.0, 1.0, -2.0, 0.5], [0.0] * 4, [1.0, 0.0, 0.0, 1.0]])
    axes = panel(diagnostics.plot_diagnostics(y, mean, std), "Standardised")
    _, errors, _ = points(axes, "outside")
    np.testing.assert_allclose(errors, [4.0, 4.4, -4.4])
    assert axes.get_ylim()[0] < -4.4 < 4.4 < axes.get_ylim()[1]


def test_pit_histogram_counts_all_outputs(held_out):
    y, mean, std = held_out
    axes = panel(diagnostics.plot_diagnostics(*held_out), "Probability")
    heights = [bar.get_height() for bar in bars(axes)]
    edges = mean[:, None] + std[:, None] * stats.norm.ppf(np.arange(1, 10) / 10)
    expected = np.bincount(np.sum(y[:, None] > edges, axis=1), minlength=10)
    np.testing.assert_array_equal(heights, expected)
    assert sum(heights) == 120
    band = next(patch for patch in axes.patches if patch not in bars(axes))
    low, high = band.get_y(), band.get_y() + band.get_height()
    chance = stats.binom(120, 0.1).pmf(np.arange(low, high + 1)).sum()
    assert 0.95 <= chance < 0.98
    (middle,) = axes.lines
    assert set(middle.get_ydata()) == {12.0}


def test_pit_of_cautious_predictions_heaps_up_in_the_middle_of_the_unit_interval(held_out):
    y, mean, std = held_out
    axes = panel(diagnostics.plot_diagnostics(y, mean, 50 * std), "Probability")
    filled = [bar.get_x() + bar.get_width() / 2 for bar in bars(axes) if bar.get_height() > 0]
    np.testing.assert_allclose(filled, [0.45, 0.55])


def test_coverage_panel(held_out):
    y, mean, std = held_out
    axes = panel(diagnostics.plot_diagnostics(*held_out), "Coverage")
    levels, shares, _ = points(axes, "observed")
    central = np.abs(2 * stats.norm(mean, std).cdf(y) - 1)
    np.testing.assert_allclose(shares, [np.mean(central <= level) for level in levels])
    assert np.min(levels) <= 0.05
    assert np.max(levels) >= 0.95
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    at_half = np.sort(corners[np.isclose(corners[:, 0], 0.5), 1])
    np.testing.assert_allclose(at_half, np.array(stats.binom.interval(0.95, 120, 0.5)) / 120)


def test_bars_are_as_long_as_the_weights(held_out):
    weights, labels = [0.5, 0.2, 0.3], ["GP", "two layers", "three layers"]
    figure = diagnostics.plot_diagnostics(*held_out, weights=weights, labels=labels)
    axes = panel(figure, "Weights")
    assert [bar.get_width() for bar in bars(axes)] == weights
    assert [text.get_text() for text in axes.get_yticklabels()] == labels
    assert axes.yaxis_inverted()  # the first on top


def test_components_have_numbers_if_no_labels(held_out):
    axes = panel(diagnostics.plot_diagnostics(*held_out, weights=[0.6, 0.4]), "Weights")
    assert [text.get_text() for text in axes.get_yticklabels()] == ["component 1", "component 2"]


def test_each_chain_has_its_trace(held_out, trace):
    axes = panel(diagnostics.plot_diagnostics(*held_out, trace=trace), "Log density")
    assert len(axes.lines) == 3
    for line, path in zip(axes.lines, trace, strict=True):
        np.testing.assert_array_equal(line.get_data(), [np.arange(1, 41), path])
    assert len({to_hex(line.get_color()) for line in axes.lines}) == 3
    late = float(convergence.split_rhat(trace[:, 20:]))
    assert re.search(rf"= {late:.2f} \(second half\)$", axes.get_title(loc="left"))


@pytest.mark.parametrize(
    ("rhat", "words"),
    [(1.234, "= 1.23"), ({"log density": 1.5, "mean": 2.0}, "= 1.50 (log density), 2.00 (mean)")],
)
def test_rhat_that_is_given_is_shown(held_out, trace, rhat, words):
    axes = panel(diagnostics.plot_diagnostics(*held_out, trace=trace, rhat=rhat), "Log density")
    assert axes.get_title(loc="left").endswith(words)


def test_lines_of_many_chains_can_be_told_apart(held_out):
    figure = diagnostics.plot_diagnostics(*held_out, trace=np.zeros((16, 5)))
    lines = panel(figure, "Log density").lines
    assert len({(to_hex(line.get_color()), line.get_linestyle()) for line in lines}) == 16


def test_the_first_iterations_do_not_set_the_scale(held_out, trace):
    trace[:, :4] -= 1e6
    trace[1, 2] = -np.inf
    axes = panel(diagnostics.plot_diagnostics(*held_out, trace=trace), "Log density")
    low, high = axes.get_ylim()
    assert low < trace[:, 4:].min() < trace[:, 4:].max() < high
    assert high - low < 1.2 * np.ptp(trace[:, 4:])


def test_the_figure_can_be_saved_and_shown_and_leaves_nothing_behind(held_out, trace, tmp_path):
    from matplotlib import pyplot as plt

    settings, numbers = dict(matplotlib.rcParams), plt.get_fignums()
    figure = diagnostics.plot_diagnostics(*held_out, weights=[1.0], trace=trace)
    figure.savefig(tmp_path / "figure.png")
    assert isinstance(figure, Figure)
    assert figure._repr_png_().startswith(b"\x89PNG")
    image = plt.imread(tmp_path / "figure.png")
    assert image[..., :3].std() > 0.05  # something is drawn
    assert dict(matplotlib.rcParams) == settings
    assert plt.get_fignums() == numbers


def test_all_outputs_are_pooled(held_out):
    columns = [values.reshape(60, 2) for values in held_out]
    axes = panel(diagnostics.plot_diagnostics(*columns), "Probability")
    assert sum(bar.get_height() for bar in bars(axes)) == 120


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": ["a"]}, "give weights too"),
        ({"rhat": 1.0}, "give trace too"),
        ({"weights": [0.5, 0.5], "labels": ["a"]}, r"shape \(2,\) do not go with 1 labels"),
        ({"weights": [[0.5, 0.5]]}, "do not go with"),
        ({"weights": [-0.5, 1.5]}, "negative"),
        ({"trace": np.zeros(5)}, r"\(chains, iterations\), got \(5,\)"),
    ],
)
def test_wrong_inputs_are_refused(held_out, given, message):
    with pytest.raises(InputError, match=message):
        diagnostics.plot_diagnostics(*held_out, **given)


def test_shapes_that_differ_are_refused():
    with pytest.raises(InputError, match="same shape"):
        diagnostics.plot_diagnostics(np.zeros(4), np.zeros((4, 1)), np.ones(4))


def test_without_matplotlib_it_says_what_to_install(held_out, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'deepemu\[plot\]'"):
        diagnostics.plot_diagnostics(*held_out)


HEADLESS = """
import sys
from deepemu.plots.diagnostics import plot_diagnostics
assert "matplotlib" not in sys.modules, "importing the module imports matplotlib"
plot_diagnostics([0.0, 1.0], [0.1, 0.8], [0.2, 0.2]).savefig(sys.argv[1])
assert "matplotlib.pyplot" not in sys.modules, "a figure needs pyplot"
"""


def test_a_figure_needs_neither_display_nor_pyplot(tmp_path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    file = tmp_path / "figure.png"
    done = subprocess.run(
        [sys.executable, "-c", HEADLESS, file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert file.stat().st_size > 10_000
