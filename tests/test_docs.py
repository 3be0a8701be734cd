"""The pages, pictures and notebooks: every example runs, every name in a table exists."""

import functools
import inspect
import re
from pathlib import Path
from types import FunctionType

import nbformat
import numpy as np
import pytest
from builders import as_many_inputs
from matplotlib import pyplot as plt
from scipy import integrate

import deepemu
from deepemu import DGP, GP, Emulator, Layer, plots
from deepemu.estimators import emulator, race
from deepemu.runtime import padding
from deepemu.training import plain, structures

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
TESTS = ROOT / "tests"
NOTEBOOKS = sorted((DOCS / "examples").glob("*.ipynb"))

pytestmark = [
    pytest.mark.filterwarnings("ignore::deepemu.ConvergenceWarning"),  # of short training
]


def python_blocks(markdown: str) -> list[str]:
    """Python code blocks, each behind as many empty lines as stand before it in the page."""
    found = re.finditer(r"^```python\b[^\n]*\n(.*?)^```", markdown, re.DOTALL | re.MULTILINE)
    return ["\n" * markdown.count("\n", 0, block.start(1)) + block[1] for block in found]


def with_defaults(monkeypatch, kind, **changes):
    names = list(inspect.signature(kind.__init__).parameters)[1:]
    defaults = dict(zip(names, kind.__init__.__defaults__, strict=True))
    assert changes.keys() <= defaults.keys()
    monkeypatch.setattr(kind.__init__, "__defaults__", tuple((defaults | changes).values()))


# The kernel with the smallest programs.
KERNEL = "squared_exponential"


@pytest.fixture
def short_training(monkeypatch):
    """Fits with the defaults of everything but the amount of work; two kernels are compared as
    usual, but they are the same one."""
    few = {"n_iter": 4, "n_chains": 4, "width": 1}
    with_defaults(monkeypatch, DGP, n_imputations=1, kernel=KERNEL, **few)
    with_defaults(monkeypatch, Emulator, **few)
    for kind in (GP, Layer):
        with_defaults(monkeypatch, kind, kernel=KERNEL)
    for module in (structures, emulator, race):
        monkeypatch.setattr(module, "KERNELS", (KERNEL, KERNEL))
    assert Emulator().n_iter == DGP().n_iter == 4 and DGP().n_imputations == 1


def without_depth(monkeypatch):
    """One plain process where `Emulator` would go on to deep ones: the calls are the same."""
    with_defaults(monkeypatch, Emulator, max_depth=1)
    monkeypatch.setattr(structures, "KERNELS", (KERNEL,))


def without_comparison(monkeypatch):
    """One chain, and no plain processes beside it."""
    with_defaults(monkeypatch, DGP, n_chains=1, stacking=False)


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """An empty working directory, no compilation cache of the user's, figures closed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deepemu, "use_compilation_cache", lambda: None)
    yield tmp_path
    plt.close("all")


N_RUNS, N_NEW = 10, 6  # which fit into one bucket


def output(X):
    return np.sin(6 * X[:, 0]) + X[:, 1] ** 2 + 2.0


@pytest.fixture
def given(working_folder, rng):
    """Simulator runs, as tables in the working directory and under the names of the pages."""
    X, X_new = rng.random((N_RUNS, 2)), rng.random((N_NEW, 2))
    runs, new = np.column_stack([X, output(X)]), X_new
    for name, columns, table in (("runs", "x1,x2,y", runs), ("new", "x1,x2", new)):
        np.savetxt(f"{name}.csv", table, delimiter=",", header=columns, comments="")
    return {
        "X": X, "y": output(X), "X_new": X_new, "y_new": output(X_new),
        "y_noisy": output(X) + 0.1 * rng.normal(size=N_RUNS),
    }  # fmt: skip


def test_a_model_of_your_own_takes_less_than_sixty_lines():
    page = (DOCS / "tasks" / "observations.md").read_text(encoding="utf-8")
    (model,) = (block.strip() for block in python_blocks(page) if "class Gamma" in block)
    assert len(model.splitlines()) < 60


def run(code: str, file: Path, namespace: dict) -> None:
    exec(compile(code, str(file), "exec"), namespace)


WITH_PYTHON = [page for page in PAGES if python_blocks(page.read_text(encoding="utf-8"))]


def test_pages_with_examples_are_found():
    assert {"README.md", "quick-start.md", "error-bars.md", "noise.md"} <= {
        page.name for page in WITH_PYTHON
    }


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_examples_of_a_page_run(page, given, short_training, monkeypatch):
    """In sequence, as a reader would paste them into one session."""
    as_many_inputs(monkeypatch, 2)
    if page.name in ("noise.md", "outputs.md"):  # deep ones would be compiled for these alone
        without_depth(monkeypatch)
    if page.name in ("structure.md", "full-bayes.md"):
        without_comparison(monkeypatch)
    namespace = {"__name__": "__main__", **given}
    if page.name == "plots.md":  # shows emulators that were fitted elsewhere
        namespace["emulator"] = Emulator().fit(given["X"], given["y"])
        namespace["emulator_of_one_input"] = GP().fit(given["X"][:, :1], given["y"])
    text = page.read_text(encoding="utf-8")
    for block in python_blocks(text):
        run(block, page, namespace)
    written = [Path(name) for name in re.findall(r'savefig\("([^"]+)"\)', text)]
    assert [file for file in written if file.stat().st_size <= 10_000] == []


def test_the_page_of_plots_shows_all_of_them():
    page = (DOCS / "tasks" / "plots.md").read_text(encoding="utf-8")
    for name in plots.__all__:
        assert f"plots.{name}(" in page, name
        assert f"images/{name.replace('_', '-')}.png" in page, name


def test_every_picture_is_drawn_by_the_script_or_taken_from_the_product():
    script = namespace_of(DOCS / "figures.py")
    stored = {path.stem for path in (DOCS / "images").glob("*.png")}
    of_the_paper = {
        name for name in stored if name.startswith("paper-fig-")
    }  # tested with its script
    assert stored - of_the_paper == {*script["FIGURES"], "report", "step_function"}
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in sorted(stored) if f"{name}.png" not in text] == []


@pytest.mark.parametrize("name", ["idea-slice", "idea-warp"])
def test_pictures_are_drawn(name, tmp_path, short_training, monkeypatch):
    without_comparison(monkeypatch)
    as_many_inputs(monkeypatch, 2)
    script = namespace_of(DOCS / "figures.py")
    monkeypatch.setitem(script, "N_ITER", 4)
    script["main"](["--only", name, "--folder", str(tmp_path)])
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_the_picture_of_linked_moments_agrees_with_draws():
    """The two legends are a formula and a simulation of it."""
    figure = namespace_of(DOCS / "figures.py")["idea_linked"]()
    words = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    plt.close(figure)
    (drawn, drawn_std), (computed, computed_std) = (
        map(float, re.findall(r"\d\.\d\d", each)) for each in words
    )
    assert abs(drawn - computed) <= 0.02 and abs(drawn_std - computed_std) <= 0.02


@functools.cache
def namespace_of(path: Path) -> dict:
    namespace = {"__name__": path.stem, "__file__": str(path)}
    run(path.read_text(encoding="utf-8"), path, namespace)
    return namespace


# --- notebooks -------------------------------------------------------------------------------


def test_all_notebooks_are_on_the_site():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 5
    assert [each.stem for each in NOTEBOOKS if f"examples/{each.stem}\n" not in index] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_the_outputs_of_its_own_code(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(out.output_type == "error" for cell in code for out in cell.outputs)
    digest = namespace_of(DOCS / "run_notebooks.py")["digest"](notebook)
    assert notebook.metadata["executed"] == digest, "run `make notebooks`"
    pictures = [out for cell in code for out in cell.outputs if "image/png" in out.get("data", {})]
    assert len(pictures) >= 2
    assert path.stat().st_size < 500_000


@pytest.fixture
def few_programs(monkeypatch):
    """The notebooks share one number of inputs and of rows; a few steps and rough simulators will
    do."""
    without_depth(monkeypatch)
    without_comparison(monkeypatch)
    as_many_inputs(monkeypatch, 3)
    monkeypatch.setattr(padding, "SMALLEST_BUCKET", 112)
    monkeypatch.setattr(plain, "GP_STARTS", (1.0,))
    monkeypatch.setattr(plain, "GP_SCOUT_STEPS", 1)
    monkeypatch.setattr(plain, "GP_STEPS", 3)
    monkeypatch.setattr(structures, "SWEEPS_BEFORE_FIRST_M_STEP", 1)
    rough = {"rtol": 1e-3, "atol": 1e-3}
    solve = integrate.solve_ivp
    monkeypatch.setattr(integrate, "solve_ivp", lambda *of, **how: solve(*of, **how | rough))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_runs(path, working_folder, short_training, few_programs):
    namespace = {"__name__": "__main__"}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            run(cell.source, path, namespace)
    assert plt.get_fignums()


# --- tables ----------------------------------------------------------------------------------


def functions_named(page: str) -> list[tuple[str, str]]:
    """(file, function) for every name behind a file's in a cell of a table."""
    found = []
    for cell in re.findall(r"\| ([^|]*`[\w/]+\.py`[^|]*) \|", page):
        for file, rest in re.findall(r"`([\w/]+\.py)`((?:(?!`[\w/]+\.py`).)*)", cell):
            found += [(file, name) for name in re.findall(r"`(\w+)`", rest)]
    return found


def test_the_table_of_equations_names_functions_that_exist():
    page = (DOCS / "equations.md").read_text(encoding="utf-8")
    named = functions_named(page)
    assert len(named) >= 30 and ("core/predict.py", "propagate") in named
    sources = {file: (ROOT / "src/deepemu" / file).read_text("utf-8") for file, _ in named}
    found = [(f, name) for f, name in named if re.search(rf"^ *def {name}\(", sources[f], re.M)]
    assert found == named


def test_every_numbered_equation_and_algorithm_has_a_line():
    page = (DOCS / "equations.md").read_text(encoding="utf-8")
    first = re.findall(r"^\| (equations? [^|]*|Algorithm \d) \|", page, re.MULTILINE)
    numbers = [int(n) for n in re.findall(r"\((\d)\)", " ".join(first))]
    assert sorted(numbers) == list(range(1, 10))
    assert [n for n in (1, 2, 3) if f"Algorithm {n}" not in first] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_table_is_cut_in_two(page):
    """A line of a table behind an empty one begins a table: the next one has its rule."""
    lines = ["", *page.read_text(encoding="utf-8").splitlines(), ""]
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        if line.startswith("| ") and not before.startswith("|"):
            assert after.startswith("|---"), line


def test_the_reference_names_everything_public():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    errors = {name for name in deepemu.__all__ if name.endswith(("Error", "Warning"))}
    assert ".. automodule:: deepemu.errors" in page
    missing = [n for n in deepemu.__all__ if n not in errors and f":: deepemu.{n}\n" not in page]
    assert missing == []
    for module in (deepemu.diagnostics, deepemu.convergence):
        assert [n for n in module.__all__ if not re.search(rf"\b{n}\b", page)] == []


def public_methods() -> set[str]:
    """Of the estimators, those that scikit-learn gives them aside."""
    bases = {base for kind in (GP, DGP, Emulator) for base in kind.__mro__}
    ours = [vars(base) for base in bases if base.__module__.startswith("deepemu.")]
    return {
        name
        for names in ours
        for name, value in names.items()
        if isinstance(value, FunctionType | classmethod) and not name.startswith("_")
    }


def test_what_users_can_call_is_called_by_a_test():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"\b(?:emulator|gp|dgp|deepemu)\.([a-z]\w*)\(", pages))
    assert {"predict", "save", "to_arviz"} <= named | public_methods()
    tests = "".join(file.read_text(encoding="utf-8") for file in sorted(TESTS.rglob("*.py")))
    assert [n for n in sorted(named | public_methods()) if f".{n}(" not in tests] == []
