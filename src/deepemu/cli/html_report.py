"""A report of a fitted emulator as one HTML page that needs no network.

Everything on the page is a prediction of the emulator, computed here: sliders choose among values
on a grid of the inputs that matter most, with all other inputs held at their medians.
"""

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np

from deepemu.cli.settings import in_arguments
from deepemu.diagnostics import nrmsep
from deepemu.errors import InputError
from deepemu.estimators.base import BaseEmulator
from deepemu.files.atomic import PathLike, replacing
from deepemu.plots.figures import along
from deepemu.posterior.mixtures import Bands
from deepemu.runtime.trees import joined

# Grid points along each input that has a slider, by the number of those inputs.
GRID = {1: 201, 2: 41, 3: 13}
N_EFFECT, N_BASE = 21, 16
BATCH = 200
Tell = Callable[[int, int], None]
"""Progress callback: (done, total)."""


def write(emulator: BaseEmulator, path: PathLike, title: str, tell: Tell = lambda *_: None) -> None:
    """Write the page to ``path`` once it is complete."""
    content = html(emulator, title, tell)
    with replacing(path) as file:
        file.write(content.encode())


def html(emulator: BaseEmulator, title: str, tell: Tell = lambda *_: None) -> str:
    """The page; names and titles stand in it as data, never as markup."""
    template = files("deepemu.cli").joinpath("page.html").read_text(encoding="utf-8")
    with np.errstate(over="ignore", invalid="ignore"):
        shown = contents(emulator, title, tell)
    try:
        data = json.dumps(shown, allow_nan=False)
    except ValueError as error:
        largest = max(
            np.abs(emulator.training_inputs).max(), np.abs(emulator.training_outputs).max()
        )
        raise InputError(
            f"The page would hold numbers that are not finite: the runs reach {largest:.3g}, which "
            "is too large for means and intervals; fit them in larger units."
        ) from error
    return template.replace("@@DATA@@", data.replace("<", "\\u003c"))


def contents(emulator: BaseEmulator, title: str, tell: Tell) -> dict[str, Any]:
    """The contents of the page, as plain numbers and names."""
    effect_rows = _effect_rows(emulator)
    n_effects, n_sliders = len(effect_rows), min(emulator.n_features_in_, max(GRID))
    total = n_effects + GRID[n_sliders] ** n_sliders
    effects = _effects(emulator, _predicted(emulator, effect_rows, 0, total, tell).mean)
    chosen = _most_important(effects, n_sliders)
    axes, rows = _grid_rows(emulator, chosen)
    found = _predicted(emulator, rows, n_effects, total, tell)
    summary = emulator.summary()
    return {
        "title": title,
        "kind": type(emulator).__name__,
        "runs": len(emulator.training_inputs),
        "averaged": summary.lines[-1].crps is not None
        and summary.n_rows < len(emulator.training_outputs),
        "inputs": _columns(emulator.input_names, emulator.training_inputs),
        "outputs": _columns(emulator.output_names, emulator.training_outputs),
        "leftOut": _held_out(emulator),
        "structures": [_line(line) for line in summary.lines],
        "troubles": [*map(in_arguments, summary.troubles), *emulator.posterior_.caveats],
        "decisions": list(summary.decisions),
        "effects": effects.tolist(),
        "base": N_BASE,
        "grid": {
            "inputs": chosen,
            "axes": [axis.tolist() for axis in axes],
            "mean": found.mean.T.tolist(),
            "low": found.low.T.tolist(),
            "high": found.high.T.tolist(),
        },
        "summary": "\n".join(map(in_arguments, summary.text_lines())),
    }


def _predicted(
    emulator: BaseEmulator, rows: np.ndarray, done: int, total: int, tell: Tell
) -> Bands:
    """Mean and 95 % interval (m, q), some rows at a time."""
    parts = []
    for first in range(0, len(rows), BATCH):
        parts.append(emulator.posterior_.bands(rows[first : first + BATCH]))
        tell(done + min(first + BATCH, len(rows)), total)
    return joined(parts)


def _effect_rows(emulator: BaseEmulator) -> np.ndarray:
    """For each input and each place along it, the same points in all other inputs."""
    from scipy.stats import qmc  # slow to import, and only the report needs it

    low, high = emulator.posterior_.runs.input_range
    base = low + (high - low) * qmc.Sobol(len(low), seed=0).random(N_BASE)
    rows = []
    for j in range(len(low)):
        for value in np.linspace(low[j], high[j], N_EFFECT):
            rows.append(base.copy())
            rows[-1][:, j] = value
    return np.concatenate(rows)


def _effects(emulator: BaseEmulator, mean: np.ndarray) -> np.ndarray:
    """Main effects (q, d, places): the mean of the output over all other inputs."""
    by_place = mean.reshape(emulator.n_features_in_, N_EFFECT, N_BASE, -1)
    return np.moveaxis(by_place.mean(axis=2), -1, 0)


def _most_important(effects: np.ndarray, count: int) -> list[int]:
    """The inputs whose main effects vary most, in units of each output's largest."""
    spread = effects.std(axis=2)
    share = spread / np.maximum(spread.max(axis=1, keepdims=True), np.finfo(float).tiny)
    return sorted(np.argsort(-share.max(axis=0), kind="stable")[:count].tolist())


def _grid_rows(emulator: BaseEmulator, chosen: list[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """Axes of the grid and its points, the last input changing fastest."""
    low, high = emulator.posterior_.runs.input_range
    axes = [np.linspace(low[j], high[j], GRID[len(chosen)]) for j in chosen]
    mesh = np.meshgrid(*axes, indexing="ij")
    moving = {j: values.ravel() for j, values in zip(chosen, mesh, strict=True)}
    return axes, along(np.median(emulator.training_inputs, axis=0), moving)


def _columns(names: tuple[str, ...], values: np.ndarray) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "low": float(column.min()),
            "high": float(column.max()),
            "median": float(np.median(column)),
        }
        for name, column in zip(names, values.T, strict=True)
    ]


def _held_out(emulator: BaseEmulator) -> dict[str, Any] | None:
    """Held-out predictions of all runs and their scores, by output, if there are any."""
    try:
        found = emulator.compared_runs()
    except InputError:  # nothing was held out
        return None
    inside, pairs = found.rank.inside(), zip(found.y.T, found.mean.T, strict=True)
    return {
        "heldOut": emulator.summary().intervals is not None,
        "truth": found.y.T.tolist(),
        "mean": found.mean.T.tolist(),
        "low": found.low.T.tolist(),
        "high": found.high.T.tolist(),
        "inside": inside.T.tolist(),
        "error": [nrmsep(y, mean) if np.ptp(y) > 0 else None for y, mean in pairs],
        "coverage": inside.mean(axis=0).tolist(),
    }


def _line(line: Any) -> dict[str, Any]:
    scores = {"crps": line.crps, "logScore": line.log_score, "coverage": line.coverage}
    return {"label": line.label, "chains": line.n_chains, "weight": line.weight, **scores}
