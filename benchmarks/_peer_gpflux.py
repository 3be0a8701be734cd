"""GPflux's deep Gaussian process for ``paper.py``: doubly stochastic variational inference.

Run by an interpreter with GPflux; its only argument is the trial, and the moments at the test
points are the JSON in the last line that it prints. As in the paper: as many inducing points as
runs, squared-exponential kernels, a likelihood variance of 1e-6, 1000 steps of Adam.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # GPflux is written for Keras 2

import numpy as np
import tensorflow as tf
from _speed_jobs import standardised
from _timing import timed
from gpflow import set_trainable
from gpflux.architectures import Config, build_constant_input_dim_deep_gp
from paper_store import at_the_runs
from problems import load_design

NOISE = 1.01e-6  # GPflow wants it above 1e-6
N_STEPS, RATE = 1000, 0.01
N_SAMPLES = 50


def fit(X: np.ndarray, y: np.ndarray, n_layers: int) -> tf.keras.Model:
    config = Config(len(X), inner_layer_qsqrt_factor=1e-5, likelihood_noise_variance=NOISE)
    network = build_constant_input_dim_deep_gp(X, n_layers, config)
    set_trainable(network.likelihood_layer.likelihood.variance, False)
    training = network.as_training_model()
    training.compile(tf.optimizers.legacy.Adam(RATE))
    inputs = {"inputs": X, "targets": y[:, None]}
    training.fit(inputs, epochs=N_STEPS, batch_size=len(X), verbose=0)
    return network.as_prediction_model()


def moments(model: tf.keras.Model, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the mixture over samples of the hidden layers."""
    samples = [model(X) for _ in range(N_SAMPLES)]
    means = np.array([np.ravel(sample.y_mean) for sample in samples])
    variances = np.array([np.ravel(sample.y_var) for sample in samples])
    return means.mean(axis=0), np.sqrt(variances.mean(axis=0) + means.var(axis=0))


def main() -> None:
    trial = json.loads(sys.argv[1])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.keras.backend.set_floatx("float64")
    tf.random.set_seed(trial["number"])
    np.random.seed(trial["number"])  # noqa: NPY002 - the seed that GPflux listens to
    data = load_design(trial["problem"], 0)
    model, _, fit_cpu_s = timed(lambda: fit(data.X, standardised(data.y), trial["depth"]))
    (mean, std), _, predict_cpu_s = timed(lambda: moments(model, data.X_test))
    _, std_of_runs = moments(model, data.X)
    answer = {
        "mean": (data.y.mean() + data.y.std() * mean).tolist(),
        "std": (data.y.std() * std).tolist(),
        "fit_cpu_s": fit_cpu_s,
        "predict_cpu_s": predict_cpu_s,
        **at_the_runs(data.y.std() * std_of_runs, data.y),
        "settings": f"{len(data.X)} inducing points, {N_STEPS} steps of Adam at {RATE}, variance "
        f"{NOISE}, {N_SAMPLES} samples",
        "version": f"gpflux {metadata.version('gpflux')}",
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
