"""Records of the package as JSON and a list of arrays, and back.

The names of records and fields in files are listed here, so that classes and attributes can be
renamed without breaking files. Only listed records and plain Python values can be written or read:
decoding a tree calls constructors of frozen dataclasses and nothing else.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from deepemu import diagnostics
from deepemu.core import distributions
from deepemu.core.inference import impute, m_step, sem, steps
from deepemu.core.kernels import families
from deepemu.core.model import network, observation, priors
from deepemu.core.nodes import anchored, node, over_anchors, solvers
from deepemu.errors import InputError, Message, Setting
from deepemu.observations import binomial, categorical, counts, gaussian, noise, student
from deepemu.posterior import summary
from deepemu.training import folds, layers, plan

Json = Any
# The name in files, the class, and the names of its fields in files (= the attribute, if its name
# differs).
RECORDS: tuple[tuple[str, type, str], ...] = (
    ("squared exponential", families.SquaredExponential, ""),
    ("matern 3/2", families.Matern32, ""),
    ("matern 5/2", families.Matern52, ""),
    ("linear", families.Linear, ""),
    ("flat", priors.Flat, ""),
    ("gamma", priors.Gamma, "shape rate"),
    ("inverse gamma", priors.InverseGamma, "shape scale"),
    ("independent", priors.Independent, "lengthscale nugget"),
    ("power", priors.Power, "exponent"),
    ("reference", priors.Reference, "exponent nugget"),
    ("gaussian noise", gaussian.GaussianNoise, ""),
    ("interpolated", gaussian.Interpolated, ""),
    ("perhaps noise", gaussian.PerhapsNoise, ""),
    ("heteroscedastic noise", noise.HeteroscedasticNoise, ""),
    ("known noise", noise.KnownNoise, ""),
    ("binomial", binomial.Binomial, ""),
    ("categorical", categorical.Categorical, "n_classes"),
    ("student t", student.StudentT, ""),
    ("poisson", counts.Poisson, ""),
    ("negative binomial", counts.NegativeBinomial, "varying"),
    ("zero inflated poisson", counts.ZeroInflatedPoisson, "varying"),
    ("zero inflated negative binomial", counts.ZeroInflatedNegativeBinomial, "varying"),
    ("dense", type(solvers.SOLVERS["dense"]), ""),
    ("vecchia", type(solvers.SOLVERS["vecchia"]), "n_near n_predict n_group"),
    ("groups", node.Groups, "own near"),
    ("anchored", anchored.Anchored, ""),
    ("dense over anchors", over_anchors.DenseOverAnchors, ""),
    ("network", network.Network, "n_inputs layers observation solver hidden_solver"),
    (
        "nodes",
        network.LayerSpec,
        "kernel reads prior shared_lengthscale free_scale free_nugget sources shares_kernel",
    ),
    ("parameters", network.LayerParams, "log_lengthscale log_scale log_nugget"),
    ("units", observation.Units, "shift size noise"),
    ("moments", distributions.Gaussian, "mean var"),
    ("node by node", steps.NodeWise, ""),
    ("layer by layer", steps.LayerWise, ""),
    ("guided", steps.Guided, ""),
    ("maximise", m_step.Maximise, ""),
    ("sample", m_step.Sample, ""),
    (
        "plan",
        plan.Plan,
        "moves m_step n_chains n_iter burn_in n_sweeps n_scoring n_imputations bracket "
        "stops_early n_folds seconds",
    ),
    ("imputation", impute.Imputation, "latents angles evaluations sweeps guide"),
    ("guide", impute.Guide, "reference step"),
    ("chain", sem.Chain, "params imputation"),
    ("trace", sem.Trace, "params log_density"),
    ("held out", folds.HeldOut, "latents n_imputations"),
    ("mixture", distributions.Mixture, "latents weights"),
    ("layer", layers.Layer, "width kernel lengthscale connect_input reads prior scale nugget "
                            "sources name"),
    ("line", summary.Line, "label votes=weights crps log_score coverage noise"),
    ("mixing", summary.Mixing, "label n_iterations rhat effective angle evaluations"),
    (
        "report",
        summary.Report,
        "n_rows lines mixing scale prediction_rhat effective_chains troubles intervals decisions",
    ),
    ("coverage", diagnostics.CoverageTable, "levels n_inside n"),
    ("setting", Setting, "name value"),
)  # fmt: skip


def _fields(listed: str) -> dict[str, str]:
    """Name in files: attribute."""
    pairs = (each.partition("=") for each in listed.split())
    return {stored: attribute or stored for stored, _, attribute in pairs}


NAMES = {kind: (name, _fields(listed)) for name, kind, listed in RECORDS}
KINDS = {name: (kind, _fields(listed)) for name, kind, listed in RECORDS}


def encode(value: Any, arrays: list[np.ndarray]) -> Json:  # noqa: C901, PLR0911
    """The JSON of a value; arrays are appended to ``arrays`` and referred to by number."""
    inside = lambda each: encode(each, arrays)  # noqa: E731
    match value:
        case np.generic():
            return inside(value.item())
        case Message():
            return {"message": [inside(part) for part in value.parts]}
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case np.ndarray() | jax.Array():
            arrays.append(np.asarray(value))
            return {"array": len(arrays) - 1}
        case tuple():
            return {"tuple": [inside(each) for each in value]}
        case list():
            return {"list": [inside(each) for each in value]}
        case dict():
            return {"dict": {str(key): inside(each) for key, each in value.items()}}
        case np.random.RandomState():
            return {"random_state": inside(value.get_state())}
        case _ if type(value) in NAMES:
            name, fields = NAMES[type(value)]
            held = {stored: inside(getattr(value, attr)) for stored, attr in fields.items()}
            return {"record": name, "fields": held}
    raise InputError(
        f"{value!r} is a {type(value).__name__}, which cannot be saved; use one of the package's "
        "own objects, or numbers and names, instead."
    )


def decode(
    tree: Json, arrays: list[np.ndarray], record: Callable[[str, dict], Any] | None = None
) -> Any:
    """The value that was encoded; a ValueError, TypeError, KeyError or IndexError for invalid JSON.

    ``record`` makes a value of a record's name and fields, by default the class of that name.
    """
    if not isinstance(tree, dict):
        if isinstance(tree, list):
            raise TypeError("a bare list stands for nothing")
        return tree
    kind = next(iter(tree), "nothing")
    return _DECODERS[kind](tree, arrays, record or record_of)


Make = Callable[[str, dict[str, Any]], Any]


def _items(tree: Json, arrays: list[np.ndarray], record: Make) -> list[Any]:
    (items,) = tree.values()
    return [decode(each, arrays, record) for each in items]


def _array(tree: Json, arrays: list[np.ndarray], record: Make) -> np.ndarray:
    number = tree["array"]
    if not 0 <= number < len(arrays):
        raise IndexError(f"there is no array {number}")
    return arrays[number]


def _dict(tree: Json, arrays: list[np.ndarray], record: Make) -> dict[str, Any]:
    return {key: decode(each, arrays, record) for key, each in tree["dict"].items()}


def record_of(name: str, fields: dict[str, Any]) -> Any:
    """A record; fields that have defaults may be missing, as in files from before they were
    added."""
    kind, names = KINDS[name]
    needed = {each.name for each in dataclasses.fields(kind) if _has_no_default(each)}
    given = {names[stored]: value for stored, value in fields.items() if stored in names}
    if len(given) < len(fields) or not needed <= set(given):
        raise ValueError(f"a {name} has other fields")
    return kind(**given)


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _decode_record(tree: Json, arrays: list[np.ndarray], record: Make) -> Any:
    fields = {name: decode(each, arrays, record) for name, each in tree["fields"].items()}
    return record(tree["record"], fields)


def _random_state(tree: Json, arrays: list[np.ndarray], record: Make) -> np.random.RandomState:
    generator = np.random.RandomState()  # noqa: NPY002
    generator.set_state(decode(tree["random_state"], arrays, record))
    return generator


_DECODERS: dict[str, Callable[[Json, list[np.ndarray], Make], Any]] = {
    "float": lambda tree, *_: float(tree["float"]),
    "array": _array,
    "tuple": lambda tree, *others: tuple(_items(tree, *others)),
    "list": _items,
    "dict": _dict,
    "message": lambda tree, *others: Message(*_items(tree, *others)),
    "random_state": _random_state,
    "record": _decode_record,
}
