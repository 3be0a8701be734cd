"""The simulators and scores of the benchmark of observation models."""

import argparse
import sys

import numpy as np
import observations
import pytest


@pytest.mark.parametrize("model", observations.COUNT_MODELS)
@pytest.mark.parametrize("shape", ["smooth", "step"])
def test_true_masses_are_those_of_the_draws(model, shape):
    """Probabilities add up to one, and to the shares of many draws at one input."""
    x, every = np.full(40_000, 0.7), np.arange(400)
    with np.errstate(divide="ignore"):
        mass = np.exp(observations.log_mass(every, x[:400], shape, model))
    np.testing.assert_allclose(mass.sum(), 1.0, atol=1e-6)
    drawn = observations.drawn_counts(np.random.default_rng(0), x, shape, model)
    assert abs(np.mean(drawn) - mass @ every) < 5 * np.std(drawn) / 200
    assert abs(np.mean(drawn == 0) - mass[0]) < 0.02


def test_an_epidemic_is_that_of_its_jump_chain():
    """One infected of 1200 who can be: the outbreak ends with nobody else infected with the
    probability that the first event is a recovery; a recovery at each step else."""
    rng = np.random.default_rng(1)
    one = np.tile([[0.0, 0.005]], (20_000, 1))
    caught = 800 * observations.epidemic(rng, one)
    dies_out = 2000 / 3200
    assert abs(np.mean(caught == 0) - dies_out) < 0.015
    second = (1 - dies_out) * (2000 / 3199) ** 2  # one more, then two recoveries
    assert abs(np.mean(caught == 1) - second) < 0.015
    assert np.all(observations.epidemic(rng, np.array([[0.5, 0.004]])) == 0.0)
    many = observations.epidemic(rng, np.ones((50, 2)))
    assert np.all((many > 0.5) & (many <= 1800 / 800))


def test_means_over_seeds_are_shown():
    records = [
        {"problem": "a", "seed": seed, "method": "gp", "nlpd": float(seed), "failed": 0}
        for seed in (1, 2)
    ]
    table = observations.summary(
        "counts", [*records, {"problem": "a", "seed": 3, "method": "gp", "failed": 1}]
    )
    assert table.head == ["problem", "method", "fits", "nlpd", "failed"]
    assert table.rows == [["a", "gp", "3", "1.5", "0.3333"]]


def test_absent_data_are_left_out_with_a_line(monkeypatch, capsys, tmp_path):
    missing = str(tmp_path / "motorcycle.csv")
    for more in ([], ["--data", missing]):
        monkeypatch.setattr(sys, "argv", ["observations.py", "motorcycle", *more])
        observations.main()
        assert "its data are absent" in capsys.readouterr().out


def test_replicates_are_timed_once_compiled(monkeypatch):
    monkeypatch.setitem(
        observations.METHODS, "gp", lambda **_: argparse.Namespace(fit=lambda x, y: y)
    )
    found = list(observations.replicates(argparse.Namespace(methods=["gp"])))
    assert [each["problem"] for each in found] == ["1 per site", "100 per site"]
