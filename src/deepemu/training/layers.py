"""How a user describes a network, and its translation to the core's `Network`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np

from deepemu.core.kernels import families
from deepemu.core.model.network import LayerSpec, Network
from deepemu.core.model.priors import Flat, Gamma, Independent, InverseGamma, Prior, Reference
from deepemu.data.checks import is_real, require, require_choice, require_flag, require_whole

ESTIMATE = "estimate"
# A nugget up to this one is there for the arithmetic; a larger one is noise.
INTERPOLATES = 1e-6
# The linked variance of a deep network sums terms of the size of R⁻¹; that of one layer does not.
# Joint draws have a nugget of at least 1e-8, so that less would give them another variance.
SMALLEST_NUGGET = 1e-7
SMALLEST_NUGGET_OF_ONE_LAYER = 1e-8
_PRIORS: dict[str, Prior] = {
    "gamma": Independent(Gamma()),
    "inverse_gamma": Independent(InverseGamma()),
    "reference": Reference(),
    "none": Independent(Flat()),
}


@dataclass(frozen=True)
class Layer:
    """One layer of a deep Gaussian process.

    Parameters
    ----------
    width : int or None
        Number of nodes; ``None`` in the last layer means one node per output.
    kernel : {"matern52", "matern32", "squared_exponential"}
        Product kernel of every node of the layer.
    lengthscale : {"ard", "shared"}
        One lengthscale per column that a node reads, or one for all of them.
    connect_input : bool
        Whether the nodes also read the global inputs (the first layer always does).
    reads : sequence of sequences of int, optional
        For each node, the columns it reads of [previous layer | global inputs]; for the first
        layer, of the global inputs. Default: all columns.
    prior : {"gamma", "inverse_gamma", "reference", "none"} or a prior object
        Prior on lengthscales and nugget.
    scale : float, "estimate" or None
        Variance of the nodes' outputs; ``None``: 1 in a hidden layer, estimated in the last.
    nugget : float of at least 1e-7 (1e-8 where there is no other layer), or "estimate"
        Nugget relative to the scale. Below that round-off would pass for uncertainty.
    """

    width: int | None = None
    kernel: str = "matern52"
    lengthscale: str = "ard"
    connect_input: bool = True
    reads: Sequence[Sequence[int]] | None = None
    prior: str | Prior = "gamma"
    scale: float | str | None = None
    nugget: float | str = 1e-6


def build_network(layers: Sequence[Layer], n_inputs: int, n_outputs: int) -> Network:
    """The static structure, with every choice checked."""
    specs: list[LayerSpec] = []
    least = SMALLEST_NUGGET if len(layers) > 1 else SMALLEST_NUGGET_OF_ONE_LAYER
    for index, layer in enumerate(_with_scales(layers)):
        last = index == len(layers) - 1
        width = n_outputs if layer.width is None and last else layer.width
        require_whole(f"width of layer {index + 1}", width)
        require(
            not last or width == n_outputs,
            f"the last layer has width {width} but y has {n_outputs} column(s); make them equal.",
        )
        n_previous = specs[-1].width if specs else 0
        require_flag(f"connect_input of layer {index + 1}", layer.connect_input)
        _number_or_estimate(layer.nugget, f"nugget of layer {index + 1}", least)
        connected = bool(layer.connect_input) or index == 0
        specs.append(_spec(layer, index, int(width), n_previous + connected * n_inputs))  # type: ignore[arg-type]
    return Network(n_inputs, tuple(specs))


def checked_layers(layers: object) -> list[Layer]:
    """The ``layers`` argument as a list, if it is a non-empty sequence of Layer."""
    sequence = list(layers) if isinstance(layers, Sequence) else []
    require(
        bool(sequence) and all(isinstance(layer, Layer) for layer in sequence),
        f"layers is {layers!r}; it must be a list of at least one Layer.",
    )
    return sequence


def _spec(layer: Layer, index: int, width: int, n_columns: int) -> LayerSpec:
    require_choice(layer.kernel, f"kernel of layer {index + 1}", families.NAMES)
    require_choice(layer.lengthscale, f"lengthscale of layer {index + 1}", ("ard", "shared"))
    _number_or_estimate(layer.scale, f"scale of layer {index + 1}", 0.0)
    return LayerSpec(
        kernel=families.by_name(layer.kernel),
        reads=_reads(layer, index, width, n_columns),
        prior=prior_by_name(layer.prior),
        shared_lengthscale=layer.lengthscale == "shared",
        free_scale=layer.scale == ESTIMATE,
        free_nugget=layer.nugget == ESTIMATE,
    )


def _reads(layer: Layer, index: int, width: int, n_columns: int) -> tuple[tuple[bool, ...], ...]:
    if layer.reads is None:
        return ((True,) * n_columns,) * width
    require(
        len(layer.reads) == width,
        f"reads of layer {index + 1} names {len(layer.reads)} node(s) but its width is {width}.",
    )
    for columns in layer.reads:
        listed = list(columns) if isinstance(columns, Sequence | np.ndarray) else []
        inside = all(isinstance(c, Integral) and 0 <= c < n_columns for c in listed)
        require(
            len(listed) > 0 and inside,
            f"reads of layer {index + 1} has {columns!r}; each node needs a list of at least one "
            f"column between 0 and {n_columns - 1}.",
        )
    return tuple(tuple(c in columns for c in range(n_columns)) for columns in layer.reads)


def prior_by_name(prior: str | Prior) -> Prior:
    """A prior object as it is, or the one of that name with its default coefficients."""
    if isinstance(prior, Prior):
        return prior
    require_choice(prior, "prior", tuple(_PRIORS))
    return _PRIORS[prior]


def _number_or_estimate(value: object, name: str, least: float) -> None:
    number = is_real(value) and max(least, 5e-324) <= value < float("inf")
    bound = f"of at least {least:g}" if least else "above 0"
    require(
        number or (isinstance(value, str) and value == ESTIMATE),
        f"{name} is {value!r}; it must be a number {bound} or 'estimate'.",
    )


def _with_scales(layers: Sequence[Layer]) -> list[Layer]:
    """Layers with the default scale written out: 1 if hidden, estimated if last."""
    default = lambda index: ESTIMATE if index == len(layers) - 1 else 1.0  # noqa: E731
    return [
        replace(layer, scale=default(index)) if layer.scale is None else layer
        for index, layer in enumerate(layers)
    ]
