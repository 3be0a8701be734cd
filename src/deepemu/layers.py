"""How a user describes a network, and its translation to the core's `Network`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

from deepemu.core import kernels
from deepemu.core.network import LayerSpec, Network
from deepemu.core.priors import Flat, Gamma, Independent, InverseGamma, Prior, Reference
from deepemu.errors import InputError

ESTIMATE = "estimate"
KERNELS = ("squared_exponential", "matern52", "matern32")

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
    scale : float or "estimate"
        Variance of the nodes' outputs.
    nugget : float or "estimate"
        Nugget relative to the scale.
    """

    width: int | None = None
    kernel: str = "matern52"
    lengthscale: str = "ard"
    connect_input: bool = True
    reads: Sequence[Sequence[int]] | None = None
    prior: str | Prior = "gamma"
    scale: float | str = 1.0
    nugget: float | str = field(default=1e-6)


def build_network(layers: Sequence[Layer], n_inputs: int, n_outputs: int) -> Network:
    """The static structure, with every choice checked."""
    if not layers:
        raise InputError("layers is empty; give at least one Layer.")
    specs: list[LayerSpec] = []
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        width = n_outputs if layer.width is None and last else layer.width
        _require(
            isinstance(width, Integral) and width >= 1,
            f"width of layer {index + 1} is {width!r}; it must be a positive integer.",
        )
        _require(
            not last or width == n_outputs,
            f"the last layer has width {width} but y has {n_outputs} column(s); make them equal.",
        )
        n_previous = specs[-1].width if specs else 0
        connected = layer.connect_input or index == 0
        specs.append(_spec(layer, index, int(width), n_previous + connected * n_inputs))  # type: ignore[arg-type]
    return Network(n_inputs, tuple(specs))


def _spec(layer: Layer, index: int, width: int, n_columns: int) -> LayerSpec:
    _require_choice(layer.kernel, f"kernel of layer {index + 1}", KERNELS)
    _require_choice(layer.lengthscale, f"lengthscale of layer {index + 1}", ("ard", "shared"))
    _positive_or_estimate(layer.scale, f"scale of layer {index + 1}")
    _positive_or_estimate(layer.nugget, f"nugget of layer {index + 1}")
    return LayerSpec(
        kernel=kernels.by_name(layer.kernel),
        reads=_reads(layer, index, width, n_columns),
        prior=prior_by_name(layer.prior),
        shared_lengthscale=layer.lengthscale == "shared",
        free_scale=layer.scale == ESTIMATE,
        free_nugget=layer.nugget == ESTIMATE,
    )


def _reads(layer: Layer, index: int, width: int, n_columns: int) -> tuple[tuple[bool, ...], ...]:
    if layer.reads is None:
        return ((True,) * n_columns,) * width
    _require(
        len(layer.reads) == width,
        f"reads of layer {index + 1} names {len(layer.reads)} node(s) but its width is {width}.",
    )
    for columns in layer.reads:
        inside = all(isinstance(c, Integral) and 0 <= c < n_columns for c in columns)
        _require(
            len(columns) > 0 and inside,
            f"reads of layer {index + 1} has {list(columns)}; each node needs at least one column "
            f"between 0 and {n_columns - 1}.",
        )
    return tuple(tuple(c in columns for c in range(n_columns)) for columns in layer.reads)


def prior_by_name(prior: str | Prior) -> Prior:
    """A prior object as it is, or the one of that name with its default coefficients."""
    if isinstance(prior, Prior):
        return prior
    _require_choice(prior, "prior", tuple(_PRIORS))
    return _PRIORS[prior]


def _positive_or_estimate(value: object, name: str) -> None:
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else 0.0
    positive = 0.0 < number < float("inf")
    _require(
        positive or value == ESTIMATE,
        f"{name} is {value!r}; it must be a positive number or 'estimate'.",
    )


def _require_choice(value: object, name: str, choices: Sequence[str]) -> None:
    _require(value in choices, f"{name} is {value!r}; choose one of {', '.join(choices)}.")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)
