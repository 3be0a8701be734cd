"""How hidden layers move: the settings of `DGP`, and which solvers and models have guided moves."""

import numpy as np
import pytest
from eigen_solver import ByEigenvalues
from poisson_model import Poisson

from deepemu import DGP, InputError
from deepemu.core.inference.steps import Guided, LayerWise, NodeWise
from deepemu.core.nodes.dense import Dense
from deepemu.core.nodes.over_anchors import DenseOverAnchors
from deepemu.core.nodes.vecchia import Vecchia
from deepemu.observations.gaussian import Interpolated
from deepemu.training.structures import Problem


def problem(solver=None, observation=None):
    return Problem(1, observation or Interpolated(), solver or Dense(), ("x1", "x2"))


def moves(settings, of):
    structure = DGP(**settings).structure(of, 4)
    return structure.plan.moves, structure.network.solver


def test_moves_are_guided_where_they_can_be():
    assert moves({}, problem()) == (Guided(), DenseOverAnchors())
    assert moves({"sweep": "guided"}, problem(Vecchia())) == (Guided(), Vecchia())
    assert moves({}, problem(observation=Poisson())) == (Guided(), DenseOverAnchors())
    assert moves({}, problem(ByEigenvalues())) == (NodeWise(), ByEigenvalues())
    assert moves({}, problem(Vecchia(), Poisson())) == (Guided(), Vecchia())


def test_moves_from_the_prior_have_values_at_all_rows():
    assert moves({"sweep": "node"}, problem()) == (NodeWise(), Dense())
    assert moves({"sweep": "layer"}, problem()) == (LayerWise(), Dense())
    assert moves({"inference": "full_bayes"}, problem()) == (NodeWise(), Dense())
    paper = DGP.paper().structure(problem(), 0)
    assert (paper.plan.moves, paper.network.solver) == (NodeWise(), Dense())


@pytest.mark.parametrize("settings", [{"sweep": "node"}, {"inference": "full_bayes"}])
def test_moves_without_anchors_take_the_exact_solver(settings):
    """Also where there are so many rows that others have near rows."""
    assert moves(settings, problem(Vecchia())) == (NodeWise(), Dense())
    paper = DGP.paper().structure(problem(Vecchia()), 0)
    assert (paper.plan.moves, paper.network.solver) == (NodeWise(), Dense())


def test_one_layer_has_nothing_to_guide():
    x = np.linspace(0, 1, 8)[:, None]
    emulator = DGP(depth=1, sweep="guided", n_chains=1, n_iter=2, verbose=False)
    assert np.all(np.isfinite(emulator.fit(x, np.sin(6 * x[:, 0])).predict(x)))


NEAR_ROWS = {"solver": "vecchia"}


@pytest.mark.parametrize(
    ("settings", "of", "message"),
    [
        ({"sweep": "leaps"}, problem(), "sweep is 'leaps'; it must be one of auto, node, layer"),
        ({"sweep": "guided"}, problem(ByEigenvalues()), "no such moves for this solver"),
        ({"sweep": "guided", "inference": "full_bayes"}, problem(), "no such moves"),
        ({"sweep": "node"} | NEAR_ROWS, problem(Vecchia()), "has anchors in hidden layers"),
        ({"inference": "full_bayes"} | NEAR_ROWS, problem(Vecchia()), "has anchors in hidden"),
    ],
)
def test_moves_that_are_not_there(settings, of, message):
    with pytest.raises(InputError, match=message):
        DGP(**settings).structure(of, 4)


def test_the_guided_solver_of_a_problem_leaves_plain_processes_alone():
    guided = problem().guided
    assert (guided.solver, guided.plain_solver) == (DenseOverAnchors(), Dense())
    assert guided.guided == guided
    large = Problem(1, Interpolated(), Vecchia(), ("x1",), Dense()).guided
    assert (large.solver, large.plain_solver) == (Vecchia(), Dense())


def test_predictions_of_all_moves_agree_on_a_curve():
    """Different samplers of much the same posterior: a smooth curve leaves little to doubt."""
    x = np.linspace(0, 1, 14)[:, None]
    y, at = np.sin(6 * x[:, 0]), np.linspace(0.02, 0.98, 30)[:, None]
    settings = {"n_chains": 2, "n_iter": 20, "stacking": False, "verbose": False}
    for sweep in ("node", "guided"):
        mean = DGP(sweep=sweep, **settings).fit(x, y).predict(at)
        np.testing.assert_allclose(mean, np.sin(6 * at[:, 0]), atol=0.03)
