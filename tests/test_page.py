"""The report page: numbers are the emulator's, names are never markup, and a browser reads it."""

import json
import re
import shutil
import warnings
from itertools import pairwise

import numpy as np
import pytest

import deepemu
from deepemu import DGP, GP, ConvergenceWarning, DeepemuWarning, InputError
from deepemu.cli import html_report, main
from deepemu.cli.settings import in_arguments

SMALL = {
    "kernel": "squared_exponential",
    "n_chains": 4,
    "n_iter": 4,
    "n_sweeps": 2,
    "n_imputations": 2,
    "verbose": False,
}
EVIL = "<script>document.title='ran'</script>"
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.fixture(scope="module")
def emulator():
    x = np.random.default_rng(0).random((30, 4))
    y = np.column_stack([np.sin(5 * x[:, 2]) + x[:, 0] ** 2 + x[:, 3], 1e6 * x[:, 0] * x[:, 3]])
    return (
        GP()
        .fit(x, y)
        .name_columns(["width", "depth", EVIL, "heat & <b>mass</b>"], ["force", "flow"])
    )


@pytest.fixture(scope="module")
def contents(emulator):
    return html_report.contents(emulator, "Pump", lambda *_: None)


# --- numbers ---------------------------------------------------------------------------------


def test_the_grid_holds_predictions_of_the_inputs_that_matter(emulator, contents):
    grid = contents["grid"]
    assert grid["inputs"] == [0, 2, 3]  # depth does nothing
    assert [len(axis) for axis in grid["axes"]] == [13, 13, 13]
    place = (3 * 13 + 10) * 13 + 6  # the last input changes fastest
    row = np.median(emulator.training_inputs, axis=0)
    row[[0, 2, 3]] = [grid["axes"][0][3], grid["axes"][1][10], grid["axes"][2][6]]
    mean, std = emulator.predict(row[None], return_std=True)
    for k in (0, 1):
        assert grid["mean"][k][place] == pytest.approx(mean[0, k], rel=1e-9)
        reach = 1.959963984540054 * std[0, k]  # of a plain process, which is normal
        assert grid["low"][k][place] == pytest.approx(mean[0, k] - reach, rel=1e-6)
        assert grid["high"][k][place] == pytest.approx(mean[0, k] + reach, rel=1e-6)


def test_main_effects_are_means_over_the_other_inputs(emulator, contents):
    effects = np.array(contents["effects"])
    assert effects.shape == (2, 4, 21)
    x = emulator.training_inputs
    expected = np.linspace(x[:, 0].min(), x[:, 0].max(), 21) ** 2
    drawn = effects[0, 0] - effects[0, 0, 0]
    np.testing.assert_allclose(drawn, expected - expected[0], atol=0.02)
    assert np.ptp(effects[0, 1]) < 0.02


def test_left_out_runs_are_those_of_the_emulator(emulator, contents):
    left, (mean, std) = contents["leftOut"], emulator.loo()
    np.testing.assert_allclose(left["mean"], mean.T, rtol=1e-12)
    reach = 1.959963984540054 * std
    np.testing.assert_allclose(left["low"], (mean - reach).T, rtol=1e-6)
    np.testing.assert_allclose(left["high"], (mean + reach).T, rtol=1e-6)
    inside = np.abs(emulator.training_outputs - mean) <= reach
    np.testing.assert_array_equal(left["inside"], inside.T)
    np.testing.assert_allclose(left["coverage"], inside.mean(axis=0))
    assert left["heldOut"] is False


@pytest.mark.parametrize(("n_inputs", "points"), [(1, 201), (2, 41**2)])
def test_few_inputs_get_a_finer_grid(n_inputs, points):
    x = np.random.default_rng(1).random((12, n_inputs))
    found = html_report.contents(GP().fit(x, x.sum(axis=1)), "it", lambda *_: None)
    assert len(found["grid"]["mean"][0]) == points


def test_nothing_held_out_is_said(emulator):
    x = emulator.training_inputs[:12, :1]
    fitted = DGP(**SMALL, stacking=False).fit(x, x[:, 0] ** 2)
    assert html_report.contents(fitted, "it", lambda *_: None)["leftOut"] is None


def test_warnings_are_on_the_page():
    x = np.random.default_rng(2).random((9, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = DGP(**SMALL).fit(x, np.sign(x[:, 0] - 0.5))
    found = html_report.contents(fitted, "it", lambda *_: None)
    assert found["troubles"] == list(map(in_arguments, fitted.summary().troubles))
    assert found["troubles"] and "n_chains" not in str(found)
    assert found["leftOut"]["heldOut"] is True


def test_scores_of_means_of_equal_inputs_are_called_so():
    x = np.append(np.linspace(0, 1, 11), 0.5)[:, None]
    y = np.append(np.sin(5 * x[:-1, 0]), 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeepemuWarning)
        interpolating = DGP(**SMALL | {"nugget": 1e-6})
        scored, plain = interpolating.fit(x, y), GP(nugget=1e-6).fit(x, y)
    assert html_report.contents(scored, "it", lambda *_: None)["averaged"]
    assert not html_report.contents(plain, "it", lambda *_: None)["averaged"]  # it has no scores
    assert not html_report.contents(DGP(**SMALL).fit(x[:-1], y[:-1]), "it", lambda *_: None)[
        "averaged"
    ]


def test_outputs_that_cannot_be_summed_get_a_sentence():
    x = np.linspace(0, 1, 9)[:, None]
    emulator = GP().fit(x, 1e307 * (1 + np.sin(5 * x[:, 0])))
    with pytest.raises(InputError, match="reach 1.95e.307, .*fit them in larger units"):
        html_report.html(emulator, "it")


def test_progress_counts_all_predictions(emulator):
    told = []
    html_report.contents(emulator, "it", lambda *each: told.append(each))
    total = 4 * 21 * 16 + 13**3
    assert told[-1] == (total, total)
    assert all(a < b for (a, _), (b, _) in zip(told, told[1:], strict=False))


# --- the file --------------------------------------------------------------------------------


def test_the_page_is_one_file_without_links(emulator):
    text = html_report.html(emulator, "Pump")
    assert not re.search(r"(src|href)\s*=|@import|url\(", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert EVIL not in text and "@@" not in text
    embedded = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(embedded)["inputs"][2]["name"] == EVIL


def test_the_command_writes_it(emulator, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(main, "use_compilation_cache", lambda: None)
    deepemu.save(emulator, tmp_path / "pump.deepemu")
    assert main.main(["report", str(tmp_path / "pump.deepemu")]) == 0
    assert "pump.html" in capsys.readouterr().out
    assert (tmp_path / "pump.html").read_text().startswith("<!doctype html>")
    assert (
        main.main(["report", str(tmp_path / "pump.deepemu"), "-o", str(tmp_path / "no" / "x")]) == 1
    )
    assert "cannot be written" in capsys.readouterr().err


# --- in a browser ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium here: the report is not tested in a browser")
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize(
    ("low", "high"),
    [(101300.0, 101400.0), (2019.1, 2019.9), (1e17, 1e17), (-1e-7, 1e-7), (101325.01, 101325.09)],
)
def test_ticks_tell_values_apart(browser, tmp_path, low, high):  # fmt: skip
    x = np.column_stack([np.linspace(low, high, 9), np.linspace(0, 1, 9)])
    html_report.write(
        GP().fit(x, low + (high - low or abs(low)) * np.sin(x[:, 1])), tmp_path / "it.html", "it"
    )
    view = browser.new_page()
    faults = []
    view.on("pageerror", lambda error: faults.append(str(error)))
    view.goto((tmp_path / "it.html").as_uri())
    labels = view.eval_on_selector_all(
        "#slices figure:first-child svg text[text-anchor=middle]",
        "all => all.map(t => t.textContent)",
    )[:-2]  # the names of the axes come last
    boxes = view.eval_on_selector_all(
        "#slices figure:first-child svg",
        """([svg]) => [...svg.querySelectorAll("text")].map(t => {
            const box = t.getBoundingClientRect(), edge = svg.getBoundingClientRect();
            return [box.left - edge.left, edge.right - box.right, box.left, box.right];
        })""",
    )
    view.close()
    assert faults == []
    inside = [min(box[:2]) for box in boxes]
    assert min(inside) > -1.0, "a label is cut at the edge"
    below = [box[2:] for box in boxes[: len(labels)]]
    assert all(a[1] < b[0] for a, b in pairwise(below)), "labels lie upon one another"
    assert len(set(labels)) == len(labels) >= (1 if low == high else 2)


@pytest.fixture(scope="module")
def report_file(emulator, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    html_report.write(emulator, path, EVIL)
    return path


@pytest.fixture
def shown(browser, report_file):
    """The page without a network, and everything that went wrong on it."""
    context = browser.new_context(offline=True, viewport={"width": 1000, "height": 800})
    view = context.new_page()
    view.faults = []
    view.on("console", lambda message: view.faults.append(message.text))
    view.on("pageerror", lambda error: view.faults.append(str(error)))
    view.goto(report_file.as_uri())
    yield view
    assert view.faults == []
    context.close()


def curves(view, section):
    return view.eval_on_selector_all(
        f"#{section} path.mean", "all => all.map(p => p.getAttribute('d'))"
    )


def test_a_slider_moves_the_other_curves(shown):
    before = curves(shown, "slices")
    assert len(before) == 3
    shown.locator("#sliders input").first.fill("0")
    after = curves(shown, "slices")
    assert after[0] == before[0]  # along the input itself nothing changes
    assert after[1] != before[1] and after[2] != before[2]
    assert "width = " in shown.locator("#sliders label").first.inner_text()


def test_curves_stand_where_the_numbers_are(shown, contents):
    """Heights of a curve are a straight line in the predictions that it joins."""
    points = [list(map(float, p.split(","))) for p in curves(shown, "slices")[0][1:].split("L")]
    at = shown.evaluate("state.at")
    mean = np.reshape(contents["grid"]["mean"][0], (13, 13, 13))[:, at[1], at[2]]
    heights = np.array(points)[:, 1]
    slope, offset = np.polyfit(mean, heights, 1)
    assert slope < 0  # SVG counts downwards
    np.testing.assert_allclose(slope * mean + offset, heights, atol=0.02)


def test_another_output_redraws_everything(shown):
    before = {section: curves(shown, section) for section in ("slices", "effects")}
    shown.locator("#output").select_option("1")
    for section, drawn in before.items():
        assert len(curves(shown, section)) == len(drawn)
        assert curves(shown, section) != drawn
    assert "range of flow" in shown.locator("#trust").inner_text()


def test_names_are_text(shown):
    assert shown.title() == EVIL  # and not "ran"
    assert EVIL in shown.locator("#columns").inner_text()
    assert "heat & <b>mass</b>" in shown.locator("#columns").inner_text()


def test_names_of_structures_can_be_read_on_a_phone(shown):
    """Whole words, not a letter a line."""
    shown.set_viewport_size({"width": 360, "height": 700})
    for table in ("#structures", "#columns"):
        widths = shown.eval_on_selector_all(
            f"{table} td:first-child", "all => all.map(cell => cell.getBoundingClientRect().width)"
        )
        assert min(widths) > 100
        seen = shown.eval_on_selector_all(
            f"{table} tr:last-child td:last-child",
            "all => all.map(c => c.getBoundingClientRect().right)",
        )
        assert max(seen) <= 360, "the last number, which matters most, is off the screen"


@pytest.mark.parametrize("width", [320, 400, 1000])
def test_nothing_sticks_out_at_any_width(shown, width):
    shown.set_viewport_size({"width": width, "height": 700})
    assert shown.evaluate("document.scrollingElement.scrollWidth") <= width
    boxes = shown.eval_on_selector_all(
        "svg", "all => all.map(s => s.getBoundingClientRect().width)"
    )
    assert len(boxes) == 1 + 3 + 4 and min(boxes) > 200


def test_print_leaves_out_what_cannot_be_used_on_paper(shown):
    shown.emulate_media(media="print")
    assert not shown.locator("#sliders input").first.is_visible()
    assert shown.locator("#sliders label").first.is_visible()  # says where the slider stands
    assert shown.locator("#slices svg").first.is_visible()
    assert len(shown.pdf()) > 10_000
