"""Migration of format 1, which held the program's own records, to the state of later formats."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from deepemu.core.distributions import Gaussian
from deepemu.core.inference.impute import Imputation
from deepemu.core.inference.m_step import Maximise, Sample
from deepemu.core.inference.sem import Chain, Trace
from deepemu.core.inference.steps import LayerWise, NodeWise
from deepemu.core.kernels.families import Matern32, Matern52, SquaredExponential
from deepemu.core.model.network import LayerParams, LayerSpec, Network
from deepemu.core.model.observation import Units
from deepemu.core.model.priors import Flat, Gamma, Independent, InverseGamma, Reference
from deepemu.core.nodes.solvers import EXACT
from deepemu.diagnostics import CoverageTable
from deepemu.files import codec
from deepemu.files.format_2 import by_chains, mixture_of
from deepemu.files.state import State
from deepemu.observations.choice import observation_of
from deepemu.posterior.summary import Line, Mixing, Report
from deepemu.training.layers import Layer
from deepemu.training.plan import Plan

# Records whose fields have the same names today; the others are taken apart below.
SAME = (
    SquaredExponential, Matern32, Matern52, Flat, Gamma, InverseGamma, Independent, Reference,
    LayerSpec, LayerParams, Gaussian, NodeWise, LayerWise, Imputation, Maximise, Sample, Chain,
    Trace, Line, Mixing, Report, CoverageTable, Layer,
)  # fmt: skip
NAMES_OF_SAME = dict(
    zip(
        (
            "SquaredExponential Matern32 Matern52 Flat Gamma InverseGamma Independent Reference "
            "LayerSpec LayerParams Gaussian NodeWise LayerWise Imputation Maximise Sample Chain "
            "Trace Line Mixing Report CoverageTable Layer"
        ).split(),
        SAME,
        strict=True,
    )
)

RENAMED = {"votes": "weights"}


def state_of_format_1(tree: Any, arrays: list[np.ndarray]) -> State:
    """The state in the JSON of a file of format 1."""
    old = codec.decode(tree, arrays, _record)
    data, stacked = old["data"], old["stacked"]
    return {
        "kind": old["kind"],
        "settings": old["settings"],
        "runs": _runs(data),
        "structures": [_structure(part.candidate, part.trained) for part in old["parts"]],
        "weights": stacked.weights,
        "stretch": stacked.scale,
        "held_out": mixture_of(stacked.held_out),
        "report": old["report"],
    }


def _record(name: str, fields: dict[str, Any]) -> Any:
    kind = NAMES_OF_SAME.get(name, SimpleNamespace)
    return kind(**{RENAMED.get(field, field): value for field, value in fields.items()})


def _runs(data: SimpleNamespace) -> State:
    scaling = data.scaling
    return {
        "x": data.x,
        "y": data.y,
        "low": scaling.x_low,
        "span": scaling.x_span,
        "units": Units(scaling.y_mean, scaling.y_std),
        "input_names": data.input_names,
        "output_names": data.output_names,
        "compares_names": data.compares_names,
        "one_dimensional": data.one_dimensional,
    }


def _structure(candidate: SimpleNamespace, trained: SimpleNamespace) -> State:
    imputed, n_chains = trained.ensemble, len(trained.chains)
    held_out = trained.held_out
    by_chain = lambda each: each.reshape(n_chains, -1, *each.shape[1:])  # noqa: E731
    params = jax.tree.map(by_chain, imputed.params)
    if np.array_equal(imputed.params_of, imputed.chain):
        params = jax.tree.map(lambda each: each[:, :1], params)
    return {
        "label": candidate.label,
        "network": _network(candidate),
        "start": candidate.start,
        "training": candidate.n_folds if hasattr(candidate, "n_folds") else _plan(candidate),
        "params": params,
        "latents": jax.tree.map(by_chain, imputed.latents),
        "chains": trained.chains,
        "trace": trained.trace,
        "n_together": trained.n_together,
        "held_out": None if held_out is None else by_chains(held_out.moments, held_out.unseen),
        "interrupted": trained.interrupted,
    }


def _network(candidate: SimpleNamespace) -> Network:
    layers = candidate.network.layers
    nugget = float(np.exp(np.max(candidate.start[-1].log_nugget)))
    observation = observation_of("gaussian", "estimate" if layers[-1].free_nugget else nugget)
    return Network(candidate.network.n_inputs, layers, observation, EXACT)


def _plan(candidate: SimpleNamespace) -> Plan:
    old, schedule = candidate.plan, candidate.plan.sampling.schedule
    return Plan(
        moves=schedule.moves,
        m_step=schedule.m_step,
        n_chains=candidate.n_chains,
        n_iter=old.n_iter,
        burn_in=old.burn_in,
        n_sweeps=old.n_sweeps,
        n_scoring=old.n_scoring,
        n_imputations=old.n_imputations,
        bracket=old.sampling.bracket,
        stops_early=old.stops_early,
        n_folds=old.n_folds,
    )
