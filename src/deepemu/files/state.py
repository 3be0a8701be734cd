"""A posterior as a small tree of its defining values, and back.

Factors and sites are computed again. A state is a dictionary with these entries: ``kind`` and
``settings`` of the estimator, ``runs``, ``structures``, ``weights``, ``stretch``, ``held_out``,
``report``.
"""

import dataclasses
import warnings
from typing import Any

import numpy as np

from deepemu.data.runs import Columns, Runs, with_units
from deepemu.data.scaling import InputScale
from deepemu.data.sites import SiteData, pack
from deepemu.ensembles.assembly import rebuilt
from deepemu.posterior.posterior import Posterior
from deepemu.posterior.stacking import Stacked
from deepemu.training.chains import Trained
from deepemu.training.structures import DeepGP, PlainGP, Structure

State = dict[str, Any]


def state_of(posterior: Posterior) -> State:
    return {
        "runs": _state_of_runs(posterior.runs),
        "structures": [state_of_trained(each) for each in posterior.structures],
        "weights": posterior.stacked.weights,
        "stretch": posterior.stacked.stretch,
        "held_out": posterior.stacked.held_out,
        "report": posterior.report,
    }


def _state_of_runs(runs: Runs) -> State:
    return {
        "x": runs.x,
        "y": runs.y,
        "known": runs.known,
        "low": runs.scale.low,
        "span": runs.scale.span,
        "units": runs.sites.units,
        "input_names": runs.columns.inputs,
        "output_names": runs.columns.outputs,
        "compares_names": runs.columns.compares_names,
        "one_dimensional": runs.columns.one_dimensional,
    }


def state_of_trained(trained: Trained) -> State:
    structure = trained.structure
    return {
        "label": structure.label,
        "network": structure.network,
        "start": structure.start,
        "training": structure.n_folds if isinstance(structure, PlainGP) else structure.plan,
        "params": trained.imputed.params,
        "latents": trained.imputed.members.latents,
        "anchors": trained.imputed.data.anchors,
        "chains": trained.chains,
        "trace": trained.trace,
        "n_together": trained.n_together,
        "held_out": trained.held_out,
        "interrupted": trained.interrupted,
    }


def structure_of(state: State) -> Structure:
    given = state["label"], state["network"], state["start"], state["training"]
    return PlainGP(*given) if isinstance(state["training"], int) else DeepGP(*given)


def runs_of_state(state: State) -> Runs:
    """The runs with their sites, which the observation model of the first structure finds."""
    held, observation = state["runs"], state["structures"][0]["network"].observation
    columns = Columns(
        held["input_names"], held["output_names"], held["compares_names"], held["one_dimensional"]
    )
    scale = InputScale(held["low"], held["span"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit has issued these warnings already
        given = held["x"], held["y"], columns, observation, scale, held["units"]
        return with_units(*given, held.get("known"))


def posterior_of(state: State, runs: Runs) -> Posterior:
    stacked = Stacked(state["weights"], state["stretch"], state["held_out"])
    structures = tuple(trained_of(each, runs.sites) for each in state["structures"])
    return Posterior(runs, structures, stacked, state["report"])


def trained_of(state: State, sites: SiteData) -> Trained:
    """A trained structure, whose imputed networks are computed again by the programs that made
    them."""
    network, anchors = state["network"], state.get("anchors")
    data = pack(dataclasses.replace(sites, anchors=anchors))
    imputed = rebuilt(network, data, state["params"], state["latents"])
    return Trained(
        structure_of(state), imputed, state["chains"], state["trace"], state["n_together"],
        state["held_out"], state["interrupted"],
    )  # fmt: skip


def n_members(state: State) -> int:
    """Imputations per chain of a structure's state."""
    leading = state["latents"][0] if state["latents"] else state["params"][0].log_scale
    return int(np.shape(leading)[1])
