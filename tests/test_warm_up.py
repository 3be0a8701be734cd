"""The sweeps over the hidden layers before the first M-step."""

import numpy as np
import pytest
from builders import SMALL

from deepemu import DGP
from deepemu.training import chains, structures


def ends_of(monkeypatch, x, y, seed=0, **settings):
    """The chains' parameters and hidden layers right after the sweeps before the first M-step."""
    found = []

    def keep(run, part, blocks, chains, data):
        found.extend(chains)
        raise KeyError

    monkeypatch.setattr(chains, "_trained", keep)
    with pytest.raises(KeyError):
        DGP(depth=2, sweep="node", random_state=seed, **(SMALL | settings)).fit(x, y)
    return found


@pytest.mark.parametrize("inference", ["imputation", "full_bayes"])
def test_sweeps_before_the_first_m_step_move_layers_and_no_parameters(
    problem, monkeypatch, inference
):
    x, _ = problem
    with monkeypatch.context() as patch:
        first, second = ends_of(patch, *problem, inference=inference)
    for chain in (first, second):
        assert all(np.all(np.asarray(leaf.log_lengthscale) == 0.0) for leaf in chain.params)
        assert int(chain.imputation.sweeps) == structures.SWEEPS_BEFORE_FIRST_M_STEP
    latents = [np.asarray(chain.imputation.latents[0])[: len(x)] for chain in (first, second)]
    assert np.all(np.ptp(latents, axis=0) > 0.0)  # chains have streams of their own


def test_sites_that_are_left_out_stay_out_of_the_sweeps_before(problem, monkeypatch):
    x, y = problem
    for chain in ends_of(monkeypatch, x, y, n_chains=4, stacking=True):
        latents = np.asarray(chain.imputation.latents[0])
        assert np.any(np.all(latents[: len(x)] == 0.0, axis=1)), "padding in the place of a fold"


def test_an_update_goes_on_without_sweeps_before(problem, monkeypatch):
    x, y = problem
    emulator = DGP(sweep="node", **SMALL).fit(x[:-2], y[:-2])
    asked = []
    warmed_up = chains._warmed_up
    monkeypatch.setattr(
        chains, "_warmed_up", lambda run, *of: asked.append(run.n_warm_up) or warmed_up(run, *of)
    )
    emulator.update(x[-2:], y[-2:])
    assert asked == [0]
