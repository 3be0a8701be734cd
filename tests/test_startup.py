"""What a fresh process imports: no more than it uses."""

import subprocess
import sys

import pytest

SLOW = ("pandas", "scipy.stats", "sklearn", "matplotlib", "pyarrow", "polars", "arviz")

STEPS = {
    "import": "import deepemu",
    "predict": """
import numpy as np
from deepemu import DGP, GP
from deepemu.runtime import programs
from deepemu.training import structures
programs.CPU_OPTIONS["xla_backend_optimization_level"] = 0  # compiles faster
structures.KERNELS = ("squared_exponential",)
x = np.linspace(0.0, 1.0, 8)[:, None]
GP(*structures.KERNELS).fit(x, np.sin(6.0 * x[:, 0])).predict([[0.5]], return_std=True)
few = dict(n_iter=2, n_sweeps=1, n_imputations=1)
DGP(kernel="squared_exponential", n_chains=4, **few).fit(x, x[:, 0]).predict(x)
""",
    "more": "import scipy.stats",
}


@pytest.fixture(scope="module")
def slow_imports() -> dict[str, list[str]]:
    """Which of the slow packages a new process has imported after each step."""
    look = f"\nimport sys\nprint(*(name for name in {SLOW} if name in sys.modules))\n"
    code = "".join(step + look for step in STEPS.values())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(STEPS, map(str.split, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("step", ["import", "predict"])
def test_no_slow_package_is_imported(slow_imports, step):
    assert slow_imports[step] == []


def test_slow_packages_would_be_noticed(slow_imports):
    assert "scipy.stats" in slow_imports["more"]
