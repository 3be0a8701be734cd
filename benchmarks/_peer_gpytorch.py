"""GPyTorch's deep Gaussian process for ``peers.py``: doubly stochastic variational inference.

Run by an interpreter with torch and gpytorch; see ``_peer_jobs``. As in Salimbeni and Deisenroth
(2017) the hidden layer has a linear mean, which starts as the identity (or the leading principal
directions), and the inducing points start at training points. The rest starts as GPyTorch has it.
"""

from __future__ import annotations

from functools import partial

import gpytorch
import numpy as np
import torch
from _peer_jobs import SEED, Moments, Predict, serve_fits
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import ConstantMean, LinearMean, Mean
from gpytorch.mlls import DeepApproximateMLL, VariationalELBO
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

MOST_NODES = 6
MOST_INDUCING = 100
NOISE = 1e-6
N_STEPS, RATE = 1000, 0.01
N_SAMPLES = 50


class Layer(DeepGPLayer):
    """Sparse variational processes with Matern-5/2 kernels, one lengthscale per input."""

    def __init__(self, inducing: torch.Tensor, mean: Mean, n_outputs: int | None = None):
        shape = torch.Size([] if n_outputs is None else [n_outputs])
        q = CholeskyVariationalDistribution(len(inducing), batch_shape=shape)
        n_inputs = inducing.shape[1]
        inducing = inducing.expand(*shape, *inducing.shape).clone()
        super().__init__(VariationalStrategy(self, inducing, q), n_inputs, n_outputs)
        self.mean_module = mean
        kernel = MaternKernel(nu=2.5, batch_shape=shape, ard_num_dims=n_inputs)
        self.covar_module = ScaleKernel(kernel, batch_shape=shape)

    def forward(self, x: torch.Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def linear_mean(directions: torch.Tensor) -> Mean:
    """The linear map that a hidden layer starts as."""
    n_inputs, n_nodes = directions.shape
    mean = LinearMean(n_inputs, batch_shape=torch.Size([n_nodes]), bias=True)
    mean.weights.data = directions.T[..., None].clone()
    mean.bias.data.zero_()
    return mean


class Network(DeepGP):
    """Hidden layers of equal width, an output and a likelihood of fixed variance."""

    def __init__(self, n_hidden: int, inducing: torch.Tensor, directions: torch.Tensor):
        super().__init__()
        n_nodes = directions.shape[1]
        projected, identity = inducing @ directions, torch.eye(n_nodes)
        inputs = [(inducing, directions), *[(projected, identity)] * (n_hidden - 1)]
        self.hidden = torch.nn.Sequential(
            *(Layer(points, linear_mean(along), n_nodes) for points, along in inputs)
        )
        self.output = Layer(projected, ConstantMean())
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(
            noise_constraint=gpytorch.constraints.GreaterThan(NOISE / 10)
        )
        self.likelihood.noise = NOISE
        self.likelihood.raw_noise.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> MultivariateNormal:
        return self.output(self.hidden(x))


def leading_directions(X: torch.Tensor) -> torch.Tensor:
    """The identity, or for more inputs than nodes the directions of largest variance."""
    n_inputs = X.shape[1]
    if n_inputs <= MOST_NODES:
        return torch.eye(n_inputs)
    return torch.linalg.svd(X - X.mean(0), full_matrices=False).Vh[:MOST_NODES].T


def train(model: Network, X: torch.Tensor, y: torch.Tensor) -> None:
    """Adam on the evidence lower bound of all points."""
    bound = DeepApproximateMLL(VariationalELBO(model.likelihood, model, len(y)))
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=RATE)
    for _ in range(N_STEPS):
        optimiser.zero_grad()
        loss = -bound(model(X), y)
        loss.backward()
        optimiser.step()


@torch.no_grad()
def moments(model: Network, X: np.ndarray) -> Moments:
    """Mean and standard deviation of the mixture over samples of the hidden layer."""
    with gpytorch.settings.num_likelihood_samples(N_SAMPLES):
        samples = model.likelihood(model(torch.as_tensor(X)))
    variance = samples.variance.mean(0) + samples.mean.var(0, correction=0)
    return samples.mean.mean(0).numpy(), variance.sqrt().numpy()


def fit(n_hidden: int, X: np.ndarray, y: np.ndarray) -> Predict:
    torch.manual_seed(SEED)
    inputs, outputs = torch.as_tensor(X), torch.as_tensor(y)
    inducing = inputs[torch.randperm(len(inputs))[:MOST_INDUCING]]
    model = Network(n_hidden, inducing, leading_directions(inputs))
    train(model, inputs, outputs)
    model.eval()
    return lambda X_test: moments(model, X_test)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    serve_fits("gpytorch", {"dsvi": partial(fit, 1), "dsvi-3": partial(fit, 2)})
