"""`Layer`, the user's description of a network, and its translation to the core's `Network`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np

from deepemu.core.kernels import families
from deepemu.core.model.network import LayerSpec, Network
from deepemu.core.model.priors import (
    Flat,
    Gamma,
    Independent,
    InverseGamma,
    Marginal,
    Power,
    Prior,
    Reference,
)
from deepemu.core.nodes.solver import Solver
from deepemu.data.checks import (
    is_real,
    require,
    require_choice,
    require_flag,
    require_value,
    require_whole,
)
from deepemu.data.names import numbered
from deepemu.errors import InputError
from deepemu.observations.model import Observation

ESTIMATE, AUTO = "estimate", "auto"
LENGTHSCALES = ("ard", "shared", "layer")
# Of a nugget that is found: without evidence of noise the smallest is the most probable.
FOUND_NUGGET = Power(0.5)
# Priors of a nugget that is sampled. A density of the logarithm that falls as the one that "auto"
# maximises has one power more.
SAMPLED_NUGGETS: dict[str, Marginal] = {
    ESTIMATE: Gamma(1.5, 3.9),
    AUTO: Power(1.0 + FOUND_NUGGET.exponent),
}
# Joint draws have a nugget of at least 1e-8, so that less would give them another variance.
SMALLEST_NUGGET = 1e-8
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
    kernel : {"matern52", "matern32", "squared_exponential", "linear"}
        Product kernel of every node of the layer.
    lengthscale : {"ard", "shared", "layer"}
        One lengthscale per column that a node reads, or one for all of them, or one for all nodes
        of a hidden layer, which then have one nugget, too: training factorises one matrix for the
        layer, where it has one for each node otherwise. In the last layer "layer" is "shared".
    connect_input : bool
        Whether the nodes also read the global inputs (the first layer always does).
    sources : sequence of int or str, optional
        The earlier layers whose nodes are read, by number (the first layer is 1) or by name.
        Default: the one before; an empty list: the global inputs alone. Predictions take the
        outputs of earlier layers as independent, also where one of them reads another: with
        sources that share much of their uncertainty, standard deviations are off by up to a tenth.
    reads : sequence of sequences of int or str, optional
        For each node, the columns it reads of [nodes of the sources | global inputs]; for the first
        layer, of the global inputs. A column is given by its number there, from 0, or by name: that
        of an input (x1, x2, … where X has no names), or "name.2" for the second node of a layer
        called "name". Default: all columns.
    name : str, optional
        What other layers call this one; the first layer is "layer1" unless it has a name.
    prior : {"gamma", "inverse_gamma", "reference", "none"} or a prior object
        Prior on lengthscales and nugget.
    scale : float, "estimate" or None
        Variance of the nodes' outputs; ``None``: 1 in a hidden layer, estimated in the last.
    nugget : float of at least 1e-8, "auto" or "estimate"
        Nugget relative to the scale. "auto" finds it, under a prior that favours the smallest,
        1e-8; "estimate" does so without. A number by default, also in the last layer. In the last
        layer of an observation model that imputes its latents "auto" is 1e-6, and "estimate" finds
        how much they differ between inputs beyond a smooth function.
    """

    width: int | None = None
    kernel: str = "matern52"
    lengthscale: str = "ard"
    connect_input: bool = True
    reads: Sequence[Sequence[int | str]] | None = None
    prior: str | Prior = "gamma"
    scale: float | str | None = None
    nugget: float | str = 1e-6
    sources: Sequence[int | str] | None = None
    name: str | None = None


def build_network(
    layers: Sequence[Layer],
    n_inputs: int,
    n_outputs: int,
    observation: Observation,
    solver: Solver,
    input_names: Sequence[str] | None = None,
) -> Network:
    """The static structure, with every choice checked."""
    specs: list[LayerSpec] = []
    names = _names_of(layers)
    inputs = list(input_names or numbered("x", n_inputs))
    for index, layer in enumerate(_with_scales(layers)):
        width = _width(layer, index, len(layers), observation.n_latents(n_outputs))
        require_flag(f"connect_input of layer {index + 1}", layer.connect_input)
        _number_or_word(
            layer.nugget, f"nugget of layer {index + 1}", SMALLEST_NUGGET, (AUTO, ESTIMATE)
        )
        sources = _sources(layer, index, names)
        columns = [f"{names[s]}.{node + 1}" for s in sources for node in range(specs[s].width)]
        connected = bool(layer.connect_input) or not sources
        columns += inputs if connected else []
        spec = _spec(layer, index, width, columns, tuple(s - index for s in sources))
        is_hidden = index < len(layers) - 1
        spec = replace(spec, shares_kernel=is_hidden and _shares_kernel(layer, index, spec))
        specs.append(spec if is_hidden else _observed_by(observation, layer, spec, n_outputs))
    _require_no_loose_ends(specs)
    hidden_solver = solver.for_hidden() if len(specs) > 1 else None
    return Network(n_inputs, tuple(specs), observation, solver, hidden_solver)


def _observed_by(
    observation: Observation, layer: Layer, spec: LayerSpec, n_outputs: int
) -> LayerSpec:
    """The last layer: nodes that are common to all rows read no column, and a nugget that is to be
    found under noise of the observation model's own is one for the arithmetic."""
    common = observation.common(n_outputs)
    nothing = (False,) * spec.n_columns
    reads = tuple(nothing if one else own for one, own in zip(common, spec.reads, strict=True))
    is_found = layer.nugget == ESTIMATE or not observation.imputed
    return replace(spec, reads=reads, free_nugget=spec.free_nugget and is_found)


def _width(layer: Layer, index: int, depth: int, n_last: int) -> int:
    last = index == depth - 1
    width = n_last if layer.width is None and last else layer.width
    require_whole(f"width of layer {index + 1}", width)
    require(
        not last or width == n_last,
        f"the last layer has width {width} but y has {n_last} column(s); make them equal.",
    )
    return int(width)  # type: ignore[arg-type]


def _names_of(layers: Sequence[Layer]) -> list[str]:
    for layer in layers:
        named = layer.name is None or (isinstance(layer.name, str) and layer.name != "")
        require(named, f"name of a layer is {layer.name!r}; it must be a word or None.")
    names = [layer.name or f"layer{index + 1}" for index, layer in enumerate(layers)]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(
        not twice, f"name of a layer is {', '.join(map(repr, twice))} twice; give each its own."
    )
    return names


def _sources(layer: Layer, index: int, names: Sequence[str]) -> list[int]:
    """The places of the layers that a layer reads."""
    if layer.sources is None:
        return [index - 1] if index else []
    earlier, is_list = list(names[:index]), _is_list(layer.sources)
    found = [_place_of_layer(source, earlier) for source in (layer.sources if is_list else ())]
    known = None not in found and len(set(found)) == len(found) and is_list
    require_value(known, f"sources of layer {index + 1}", layer.sources, _choice_of(earlier))
    return [place for place in found if place is not None]


def _choice_of(earlier: list[str]) -> str:
    if not earlier:
        return "empty: the first layer reads the inputs"
    numbers = "1" if len(earlier) == 1 else f"1 to {len(earlier)}"
    return f"a list of different earlier layers ({numbers}, or {', '.join(map(repr, earlier))})"


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)


def _place_of_layer(source: object, earlier: list[str]) -> int | None:
    if isinstance(source, str) and source in earlier:
        return earlier.index(source)
    number = isinstance(source, Integral) and not isinstance(source, bool)
    place = int(source) - 1 if number else -1  # type: ignore[call-overload]
    return place if place in range(len(earlier)) else None


def _require_no_loose_ends(specs: Sequence[LayerSpec]) -> None:
    """Refuse a hidden layer that no other reads: it would be sampled from its prior."""
    read = {layer for place in range(len(specs)) for layer in _layers_read(place, specs)}
    loose = [place + 1 for place in range(len(specs) - 1) if place not in read]
    require(
        not loose, f"layer(s) {loose} are read by no other; name them in sources of a later one."
    )


def _layers_read(place: int, specs: Sequence[LayerSpec]) -> set[int]:
    """The places of the layers of which at least one node is read."""
    spec = specs[place]
    layers = [place + back for back in spec.sources for _ in range(specs[place + back].width)]
    is_read = map(any, zip(*spec.reads, strict=True))
    return {layer for layer, read in zip(layers, is_read, strict=False) if read}


def checked_layers(layers: object) -> list[Layer]:
    """The ``layers`` argument as a list, if it is a non-empty sequence of Layer."""
    sequence = list(layers) if isinstance(layers, Sequence) else []
    require(
        bool(sequence) and all(isinstance(layer, Layer) for layer in sequence),
        f"layers is {layers!r}; it must be a list of at least one Layer.",
    )
    return sequence


def _spec(
    layer: Layer, index: int, width: int, columns: Sequence[str], sources: tuple[int, ...]
) -> LayerSpec:
    require_choice(layer.kernel, f"kernel of layer {index + 1}", tuple(families.KERNELS))
    require_choice(layer.lengthscale, f"lengthscale of layer {index + 1}", LENGTHSCALES)
    _number_or_word(layer.scale, f"scale of layer {index + 1}", 0.0, (ESTIMATE,))
    return LayerSpec(
        kernel=families.by_name(layer.kernel),
        reads=_reads(layer, index, width, columns),
        prior=prior_of(layer),
        shared_lengthscale=layer.lengthscale != "ard",
        free_scale=layer.scale == ESTIMATE,
        free_nugget=layer.nugget in (AUTO, ESTIMATE),
        sources=sources,
    )


def _shares_kernel(layer: Layer, index: int, spec: LayerSpec) -> bool:
    shares = layer.lengthscale == "layer"
    require(
        not shares or len(set(spec.reads)) == 1,
        f"lengthscale of layer {index + 1} is 'layer', but its nodes read different columns; leave "
        "out reads, or take 'shared'.",
    )
    return shares


def _reads(
    layer: Layer, index: int, width: int, columns: Sequence[str]
) -> tuple[tuple[bool, ...], ...]:
    n_columns = len(columns)
    if layer.reads is None:
        return ((True,) * n_columns,) * width
    require(
        _is_list(layer.reads),
        f"reads of layer {index + 1} is {layer.reads!r}; it must be a list of lists of columns, "
        "one per node.",
    )
    require(
        len(layer.reads) == width,
        f"reads of layer {index + 1} names {len(layer.reads)} node(s) but its width is {width}.",
    )
    return tuple(_columns_read(given, index, columns) for given in layer.reads)


def _columns_read(given: object, index: int, columns: Sequence[str]) -> tuple[bool, ...]:
    listed = list(given) if _is_list(given) else []  # type: ignore[call-overload]
    places = [columns.index(c) if isinstance(c, str) and c in columns else c for c in listed]
    numbers = all(isinstance(c, Integral) and not isinstance(c, bool) for c in places)
    different = numbers and len(set(places)) == len(places) > 0
    require(
        different and all(c in range(len(columns)) for c in places),
        f"reads of layer {index + 1} has {given!r}; each node needs a list of at least one column, "
        f"all different, between 0 and {len(columns) - 1} or by name ({', '.join(columns)}).",
    )
    return tuple(place in places for place in range(len(columns)))


def prior_by_name(prior: str | Prior) -> Prior:
    """A prior object as it is, or the one of that name with its default coefficients."""
    if isinstance(prior, Prior):
        return prior
    require_choice(prior, "prior", tuple(_PRIORS))
    return _PRIORS[prior]


def prior_of(layer: Layer) -> Prior:
    """The prior of a layer's nodes; a nugget that is found has one of its own, unless the user has
    given it another. So has a fixed nugget, where it is a constant: layers of equal priors share a
    program."""
    prior = prior_by_name(layer.prior)
    if layer.nugget == ESTIMATE or prior.nugget != Flat():
        return prior
    return replace(prior, nugget=FOUND_NUGGET)


def _number_or_word(value: object, name: str, least: float, words: Sequence[str]) -> None:
    number = is_real(value) and max(least, 5e-324) <= value < float("inf")
    bound = f"of at least {least:g}" if least else "above 0"
    require(
        number or (isinstance(value, str) and value in words),
        f"{name} is {value!r}; it must be a number {bound} or {' or '.join(map(repr, words))}.",
    )


def _with_scales(layers: Sequence[Layer]) -> list[Layer]:
    """Layers with the default scale written out: 1 if hidden, estimated if last."""
    default = lambda index: ESTIMATE if index == len(layers) - 1 else 1.0  # noqa: E731
    return [
        replace(layer, scale=default(index)) if layer.scale is None else layer
        for index, layer in enumerate(layers)
    ]


def sampled_layers(layers: Sequence[Layer]) -> list[Layer]:
    """Layers whose free parameters are sampled: under proper posteriors."""
    if any(layer.scale == ESTIMATE for layer in layers[:-1]):
        raise InputError(
            "scale of a hidden layer is 'estimate', which inference='full_bayes' cannot sample: "
            "its posterior is improper; give a number or None."
        )
    return [_with_proper_prior(layer) for layer in layers]


def _with_proper_prior(layer: Layer) -> Layer:
    """Give a sampled nugget a proper prior: under a flat one the posterior is all noise."""
    prior, word = prior_by_name(layer.prior), str(layer.nugget)
    is_proper = word == ESTIMATE and isinstance(prior, Reference)
    if word not in SAMPLED_NUGGETS or prior.nugget != Flat() or is_proper:
        return layer
    return replace(layer, prior=replace(prior, nugget=SAMPLED_NUGGETS[word]))
