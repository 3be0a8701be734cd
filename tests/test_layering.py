"""The package's import order, the purity of its core, and that importing it does nothing."""

import ast
import re
import subprocess
import sys
from collections.abc import Container, Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

import deepemu

ROOT = Path(__file__).parents[1]
PACKAGE = "deepemu"
SOURCE = ROOT / "src" / PACKAGE

# Nothing imports a module below it. The package's own __init__ may import all of them.
ORDER = (
    "_types",
    "errors",
    "core.differentiation",
    "core.distributions",
    "core.keys",
    "core.platforms",
    "core.linalg",
    "core.kernels.exponential",
    "core.kernels.half_line",
    "core.kernels.kernel",
    "core.kernels.pairs",
    "core.kernels.families",
    "core.kernels.products",
    "core.model.priors",
    "core.nodes.node",
    "core.nodes.cubature",
    "core.nodes.expansion",
    "core.nodes.pair_sums",
    "core.nodes.linked",
    "core.nodes.solver",
    "core.nodes.dense",
    "core.nodes.anchored",
    "core.nodes.terms",
    "core.nodes.near_rows",
    "core.nodes.roots",
    "core.nodes.nearest",
    "core.nodes.vecchia",
    "core.nodes.over_anchors",
    "core.nodes.solvers",
    "core.model.observation",
    "core.model.network",
    "core.inference.free_node",
    "core.inference.scoring",
    "core.inference.slice_step",
    "core.inference.hit_and_run",
    "core.inference.steps",
    "core.inference.impute",
    "core.inference.last_layer",
    "core.inference.hidden_posterior",
    "core.inference.guided",
    "core.inference.m_step",
    "core.inference.multistart",
    "core.inference.sem",
    "core.ensemble",
    "core.predict",
    "core.moments",
    "core.joint",
    "core.extend",
    "runtime.cache",
    "runtime.interrupt",
    "runtime.padding",
    "runtime.progress",
    "runtime.stored",
    "runtime.trees",
    "data.checks",
    "runtime.devices",
    "runtime.programs",
    "data.frames",
    "data.known",
    "data.names",
    "data.scaling",
    "data.sites",
    "data.neighbours",
    "data.runs",
    "diagnostics",
    "convergence",
    "observations.mixture",
    "observations.by_cdf",
    "observations.model",
    "observations.gaussian",
    "observations.quadrature",
    "observations.imputed",
    "observations.counts",
    "observations.binomial",
    "observations.student",
    "observations.noise",
    "observations.categorical",
    "observations.choice",
    "ensembles.assembly",
    "ensembles.search",
    "ensembles.prediction",
    "training.growth",
    "training.layers",
    "training.plan",
    "training.blocks",
    "training.nearness",
    "training.keeper",
    "training.imputations",
    "training.folds",
    "training.chains",
    "training.plain",
    "training.start",
    "training.structures",
    "posterior.inputs",
    "posterior.components",
    "posterior.mixtures",
    "posterior.comparison",
    "posterior.stacking",
    "posterior.summary",
    "posterior.fit",
    "posterior.posterior",
    "plots.style",
    "plots.diagnostics",
    "plots.figures",
    "files.atomic",
    "files.archive",
    "files.codec",
    "files.state",
    "files.checkpoint",
    "estimators.regressor",
    "estimators.predictor",
    "estimators.base",
    "estimators.dgp",
    "estimators.gp",
    "estimators.classifier",
    "estimators.race",
    "estimators.emulator",
    "files.format_2",
    "files.format_1",
    "files.integrity",
    "files.persistence",
    "cli.settings",
    "cli.arguments",
    "cli.html_report",
    "cli.messages",
    "cli.tables",
    "cli.outputs",
    "cli.commands",
    "cli.main",
    "__main__",
)
# A folder's __init__ runs before its modules, so it stands above them and imports none of them,
# but for `plots`, which gathers the public figures.
FOLDERS = tuple(dict.fromkeys(name.rpartition(".")[0] for name in ORDER if "." in name))
RANK = {name: rank for rank, name in enumerate((*FOLDERS, *ORDER))} | {"plots": len(ORDER) + 99}

# Modules held to less than the order would allow.
ONLY = {
    "diagnostics": {"_types", "errors", "data.checks"},
    "convergence": {"diagnostics", "errors", "data.checks"},
    "plots.diagnostics": {
        "convergence", "diagnostics", "errors", "data.checks", "plots.style",
        "posterior.comparison", "posterior.posterior",
        "training.chains",
    },
}  # fmt: skip

NOT_IN_CORE = {"numpy", "scipy"}


def modules(source: Path) -> dict[str, Path]:
    """File of each module under `source`, by its name below the package ("" is the package)."""
    names = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


def imports(name: str, path: Path) -> Iterator[str]:
    """Absolute dotted names that a module imports, wherever in the file it does so."""
    dotted = f"{PACKAGE}.{name}"
    package = dotted if path.stem == "__init__" else dotted.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    annotations = [node for node in tree.body if isinstance(node, ast.If)]  # TYPE_CHECKING
    unused = {id(node) for block in annotations for node in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in unused:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def fault(name: str, target: str, known: Container[str]) -> str | None:
    """What is wrong with module `name` importing the dotted name `target`, if anything."""
    top, _, other = target.partition(".")
    if top != PACKAGE:
        impure = name.startswith("core.") and top in NOT_IN_CORE
        return f"{name} imports {top}" if impure else None
    while other not in known:  # from the imported name up to the module it lies in
        other = other.rpartition(".")[0]
    if RANK.get(other, len(RANK)) >= RANK[name]:
        return f"{name} imports {other or PACKAGE}, below it"
    if name in ONLY and other not in ONLY[name]:
        return f"{name} imports {other}, which it should not need"
    return None


def faults(source: Path) -> list[str]:
    """Breaches of the import order, and modules that have no place in it."""
    known = modules(source)
    placed = {name: path for name, path in known.items() if name in RANK}
    unplaced = [f"{name} is not in the table" for name in known if name and name not in RANK]
    checked = (fault(n, target, known) for n, p in placed.items() for target in imports(n, p))
    return unplaced + [breach for breach in checked if breach]


def test_the_package_keeps_the_order():
    assert {"", "errors", "estimators"} <= set(modules(SOURCE))
    assert faults(SOURCE) == []


@pytest.fixture
def small_package(tmp_path):
    """A package in order, to be spoilt."""
    (tmp_path / "core").mkdir()
    for name in ("errors", "convergence", "core/__init__", "core/linalg"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "__init__.py").write_text("from .convergence import GP\n")
    (tmp_path / "core/predict.py").write_text("import jax.numpy as np\nfrom .linalg import a\n")
    assert faults(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    ("module", "line", "target"),
    [
        ("errors", "import deepemu.convergence", "convergence"),
        ("errors", "from deepemu import convergence", "convergence"),
        ("errors", "from .convergence import GP", "convergence"),
        ("errors", "def f():\n    from . import convergence", "convergence"),
        ("core.linalg", "from ..errors import A\nfrom .predict import b", "core.predict"),
        ("core.linalg", "from deepemu.core import predict", "core.predict"),
        ("core", "from .linalg import a", "core.linalg"),
        ("convergence", "from . import GP", "deepemu"),
    ],
)
def test_an_import_from_below_is_found(small_package, module, line, target):
    modules(small_package)[module].write_text(line + "\n")
    assert faults(small_package) == [f"{module} imports {target}, below it"]


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("core/linalg.py", "import numpy as np", "core.linalg imports numpy"),
        ("core/linalg.py", "from scipy.special import erf", "core.linalg imports scipy"),
        ("helpers.py", "", "helpers is not in the table"),
        (
            "diagnostics.py",
            "from .errors import A\nfrom .core.linalg import a",
            "diagnostics imports core.linalg, which it should not need",
        ),
    ],
)
def test_other_faults_are_found(small_package, file, line, expected):
    (small_package / file).write_text(line + "\n")
    assert faults(small_package) == [expected]


def test_the_contributors_guide_states_this_order():
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"## Import order\n.*?```text\n(.*?)```", guide, re.DOTALL)
    assert block is not None
    assert tuple(re.findall(r"[\w.]+", block[1])) == ORDER


IMPORT = """
import os, pkgutil, importlib, sys
import jax, numpy, scipy, sklearn.base, sklearn.utils.validation
from jax._src import xla_bridge

settings, environment = dict(jax.config.values), dict(os.environ)
import deepemu
for module in pkgutil.walk_packages(deepemu.__path__, "deepemu."):
    importlib.import_module(module.name)
assert not jax.config.jax_enable_x64, "float64 was switched on"
assert dict(jax.config.values) == settings, "JAX was configured"
assert dict(os.environ) == environment, "the environment was changed"
assert not xla_bridge.backends_are_initialized(), "a JAX backend was started"
assert "matplotlib" not in sys.modules, "matplotlib was imported"
"""


def test_importing_every_module_does_nothing():
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_public_names_exist():
    assert "__version__" in dir(deepemu)
    assert deepemu.__all__
    assert [name for name in deepemu.__all__ if not hasattr(deepemu, name)] == []
