"""What a fresh process imports: no more than it uses."""

import subprocess
import sys

import pytest

SLOW = ("pandas", "scipy.stats", "sklearn", "matplotlib", "pyarrow", "polars", "arviz")

IMPORT = "import deepemu"
PREDICT = """
import numpy as np
from deepemu import DGP, GP
x = np.linspace(0.0, 1.0, 8)[:, None]
GP().fit(x, np.sin(6.0 * x[:, 0])).predict([[0.5]], return_std=True)
few = dict(n_iter=2, n_sweeps=1, n_imputations=1)
DGP(kernel="squared_exponential", n_chains=4, **few).fit(x, x[:, 0]).predict(x)
"""


def slow_imports(code: str) -> list[str]:
    """Which of the slow packages a new process has imported after the code."""
    look = f"\nimport sys\nprint(*(name for name in {SLOW} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code + look],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("code", [IMPORT, PREDICT], ids=["import", "predict"])
def test_no_slow_package_is_imported(code):
    assert slow_imports(code) == []


def test_slow_packages_would_be_noticed():
    assert "scipy.stats" in slow_imports("import deepemu, scipy.stats")
