"""Records of the package as JSON and a list of arrays, and back.

Only what is listed in `RECORDS` and plain Python values can be written or read: decoding a tree
calls constructors of frozen dataclasses and nothing else.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from deepemu import diagnostics
from deepemu.core import distributions
from deepemu.core.inference import impute, m_step, sem
from deepemu.core.kernels import families
from deepemu.core.model import network, priors
from deepemu.data import scaling, sites
from deepemu.ensembles import assembly
from deepemu.errors import InputError
from deepemu.estimators import base
from deepemu.posterior import stacking, summary
from deepemu.training import candidates, chains, folds, plan
from deepemu.training.layers import Layer

RECORDS: dict[str, type] = {
    kind.__name__.lstrip("_"): kind
    for kind in (
        families.SquaredExponential, families.Matern32, families.Matern52,
        priors.Flat, priors.Gamma, priors.InverseGamma, priors.Independent, priors.Reference,
        network.Network, network.LayerSpec, network.LayerParams, network.Data,
        distributions.Gaussian,
        impute.NodeWise, impute.LayerWise, impute.Imputation,
        m_step.InTurn, m_step.Together, m_step.Maximise, m_step.Sample,
        sem.Schedule, sem.Chain, sem.Trace,
        plan.Averaged, plan.Drawn, plan.Sampling, assembly.Imputed,
        folds.HeldOut, plan.Plan, chains.Trained, candidates.Shallow, candidates.Deep,
        stacking.Part, stacking.Stacked, summary.Line, summary.Mixing, summary.Report,
        diagnostics.CoverageTable, scaling.Scaling, sites.Replicates, base.Fitted,
        Layer,
    )
}  # fmt: skip
NAMES = {kind: name for name, kind in RECORDS.items()}
Json = Any


def encode(value: Any, arrays: list[np.ndarray]) -> Json:  # noqa: PLR0911
    """The JSON of a value; arrays go to the end of ``arrays`` and are named by their number."""
    inside = lambda each: encode(each, arrays)  # noqa: E731
    match value:
        case np.generic():
            return inside(value.item())
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
            fields = {f.name: inside(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return {"record": NAMES[type(value)], "fields": fields}
    raise InputError(
        f"{value!r} is a {type(value).__name__}, which cannot be saved; use one of the package's "
        "own objects, or numbers and names, instead."
    )


def decode(tree: Json, arrays: list[np.ndarray]) -> Any:
    """The value that was encoded; a ValueError, TypeError, KeyError or IndexError if none was."""
    if not isinstance(tree, dict):
        if isinstance(tree, list):
            raise TypeError("a bare list stands for nothing")
        return tree
    kind = next(iter(tree), "nothing")
    return _DECODERS[kind](tree, arrays)


def _items(tree: Json, arrays: list[np.ndarray]) -> list[Any]:
    (items,) = tree.values()
    return [decode(each, arrays) for each in items]


def _array(tree: Json, arrays: list[np.ndarray]) -> np.ndarray:
    number = tree["array"]
    if not 0 <= number < len(arrays):
        raise IndexError(f"there is no array {number}")
    return arrays[number]


def _dict(tree: Json, arrays: list[np.ndarray]) -> dict[str, Any]:
    return {key: decode(each, arrays) for key, each in tree["dict"].items()}


def _record(tree: Json, arrays: list[np.ndarray]) -> Any:
    kind = RECORDS[tree["record"]]
    fields = {name: decode(each, arrays) for name, each in tree["fields"].items()}
    if set(fields) != {field.name for field in dataclasses.fields(kind)}:
        raise ValueError(f"a {tree['record']} has other fields")
    return kind(**fields)


def _random_state(tree: Json, arrays: list[np.ndarray]) -> np.random.RandomState:
    generator = np.random.RandomState()  # noqa: NPY002
    generator.set_state(decode(tree["random_state"], arrays))
    return generator


_DECODERS: dict[str, Callable[[Json, list[np.ndarray]], Any]] = {
    "float": lambda tree, _: float(tree["float"]),
    "array": _array,
    "tuple": lambda tree, arrays: tuple(_items(tree, arrays)),
    "list": _items,
    "dict": _dict,
    "random_state": _random_state,
    "record": _record,
}
