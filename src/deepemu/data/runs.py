"""The training runs of an emulator."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deepemu.core.model.observation import Units
from deepemu.data.checks import outputs_of, place_of, real_array, require_value
from deepemu.data.frames import array_of, names_of, require_numbers
from deepemu.data.known import require_alike
from deepemu.data.names import require_order
from deepemu.data.scaling import InputScale, input_scale_of
from deepemu.data.sites import SiteData, first_rows, require_two_sites, sites_of
from deepemu.errors import InputError


@dataclass(frozen=True)
class Columns:
    """Names of inputs and outputs. If X had names, those of new rows are compared with them; if y
    had one dimension, so have predictions."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    compares_names: bool
    one_dimensional: bool

    def inputs_of(self, X: Any) -> np.ndarray:
        """Rows (m, d) of finite numbers; the columns of a frame have the names of the fit, in their
        order."""
        names = self.inputs
        self.require_input_names(X)
        if type(X) is np.ndarray and X.dtype == np.float64:
            x = X
        else:
            require_numbers(X, "X")
            x = real_array("X", X)
        if x.shape[1:] != (len(names),):
            raise InputError(f"X has the shape {x.shape}; it must have {len(names)} column(s).")
        if not len(x):
            raise InputError("X is empty; it must have at least one row.")
        if not np.isfinite([x.min(), x.max()]).all():  # without an array of the size of X
            raise InputError("X contains NaN or infinite values; remove them.")
        return x

    def require_input_names(self, X: Any) -> None:
        """The names of the fit, if it had any; of names that were given later another order is
        refused."""
        found = names_of(X)
        if self.compares_names and found:
            require_value(found == self.inputs, "X.columns", list(found), f"{list(self.inputs)}")
        else:
            require_order("X", found, self.inputs)

    def outputs_of(self, y: Any, n_rows: int) -> np.ndarray:
        """Outputs (m, q) of finite numbers; the columns of a frame are in the order of the fit."""
        require_numbers(y, "y")
        self.require_output_names(y)
        return outputs_of(array_of(y), (n_rows, len(self.outputs)))

    def require_output_names(self, y: Any) -> None:
        """One output may have any name."""
        if len(self.outputs) > 1:
            require_order("y", names_of(y), self.outputs)


@dataclass(frozen=True)
class Runs:
    """Inputs x (N, d) and outputs y (N, q) in user units, and their sites in core units.

    ``known`` (N, q) is what the observation model can know of each output, such as its exposure, if
    that was given; the ``units`` of rows depend on it.
    """

    x: np.ndarray
    y: np.ndarray
    scale: InputScale
    sites: SiteData
    columns: Columns
    units: Units
    known: np.ndarray | None = None

    @property
    def site_inputs(self) -> np.ndarray:
        """The distinct rows of X, in the order of the latents."""
        return self.scale.to_user(self.sites.x)

    @property
    def input_range(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest value (d,) of each input."""
        return self.x.min(axis=0), self.x.max(axis=0)

    def rows_of(self, X: Any) -> np.ndarray:
        """New rows (m, d) in core units."""
        return self.scale.to_core(self.columns.inputs_of(X))

    def output_number(self, output: int | str) -> int:
        """The place of an output that is given by number or by name."""
        return place_of(output, "output", self.columns.outputs)

    def shaped(self, values: np.ndarray) -> np.ndarray:
        """Values (…, q) in the shape of the user's y."""
        return values[..., 0] if self.columns.one_dimensional else values


def runs_of(
    x: np.ndarray,
    y: np.ndarray,
    columns: Columns,
    observation: Any,
    known: np.ndarray | None = None,
) -> Runs:
    """The runs of a first fit, which set the units."""
    scale = input_scale_of(x)
    site = sites_of(scale.to_core(x))
    require_two_sites(site)
    given = () if known is None else (known,)
    units = observation.units(y, site, *given)
    return with_units(x, y, columns, observation, scale, units, known)


def grown(
    before: Runs,
    x: np.ndarray,
    y: np.ndarray,
    observation: Any,
    known: np.ndarray | None = None,
) -> Runs:
    """Old and new runs, in the units of the old ones."""
    rows_x, rows_y = np.vstack([before.x, x]), np.vstack([before.y, y])
    require_alike(before.known, known, observation.known)
    both = None if known is None or before.known is None else np.vstack([before.known, known])
    return with_units(
        rows_x, rows_y, before.columns, observation, before.scale, before.sites.units, both
    )


def with_units(
    x: np.ndarray,
    y: np.ndarray,
    columns: Columns,
    observation: Any,
    scale: InputScale,
    units: Units,
    known: np.ndarray | None = None,
) -> Runs:
    """Runs in given units."""
    x_core = scale.to_core(x)
    site = sites_of(x_core)
    of_rows = units if known is None else observation.units_of_rows(units, known)
    observed = observation.collapse(of_rows.to_core(y), site, of_rows)
    sites = SiteData(x_core[first_rows(site)], observed, site, units)
    return Runs(x.copy(), y.copy(), scale, sites, columns, of_rows, known)


def renamed(runs: Runs, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Runs:
    return replace(runs, columns=replace(runs.columns, inputs=inputs, outputs=outputs))
