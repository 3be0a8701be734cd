"""Slow, independent NumPy and SciPy computations that share no code with the package.

Everything is written for the model with one row per observation: replicates are repeated rows of
``x``, and the nugget lies on the diagonal of all rows. Lengthscales may be infinite, which
disconnects a column.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy import stats

KERNELS = ("squared_exponential", "matern52", "matern32", "linear")


@dataclass(frozen=True)
class Process:
    """One Gaussian process: kernel by name, lengthscale per column, scale and nugget."""

    kernel: str
    lengthscale: np.ndarray
    scale: float
    nugget: float

    def correlation(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Product over columns of the textbook kernel; no nugget. Leading axes are batches."""
        r = np.abs(a[..., :, None, :] - b[..., None, :, :]) / self.lengthscale
        if self.kernel == "linear":
            each = 1 + a[..., :, None, :] * b[..., None, :, :] / self.lengthscale**2
        elif self.kernel == "squared_exponential":
            each = np.exp(-(r**2))
        elif self.kernel == "matern52":
            each = (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)
        else:
            each = (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
        return each.prod(axis=-1)

    def variance(self, x: np.ndarray) -> np.ndarray:
        """The kernel of each row with itself."""
        return self.correlation(x[..., None, :], x[..., None, :])[..., 0, 0]

    def covariance(self, x: np.ndarray, counts: np.ndarray | float = 1.0) -> np.ndarray:
        """Of the means of ``counts`` observations a row."""
        noise = self.nugget / np.broadcast_to(counts, x.shape[-2])
        return self.scale * (self.correlation(x, x) + np.diag(noise))

    def log_density(self, x: np.ndarray, y: np.ndarray) -> float:
        return stats.multivariate_normal(np.zeros(len(x)), self.covariance(x)).logpdf(y)

    def best_scale(self, x: np.ndarray, y: np.ndarray) -> "Process":
        """The same process at the scale under which y is most likely."""
        unit = replace(self, scale=1.0).covariance(x)
        return replace(self, scale=float(y @ np.linalg.solve(unit, y)) / len(y))

    def predict(
        self, x: np.ndarray, y: np.ndarray, at: np.ndarray, counts: np.ndarray | float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and joint covariance of new observations at the rows of ``at``."""
        cross = self.scale * self.correlation(at, x)
        gain = np.linalg.solve(self.covariance(x, counts), cross.T).T
        return gain @ y, self.covariance(at) - gain @ cross.T

    def draw(
        self, rng: np.random.Generator, x: np.ndarray, counts: np.ndarray | float = 1.0
    ) -> np.ndarray:
        """One draw for each batch of rows."""
        root = np.linalg.cholesky(self.covariance(x, counts))
        return (root @ rng.normal(size=(*x.shape[:-1], 1)))[..., 0]

    # Parameters θ = (log γ of the columns that are read, log η).

    def parameters(self) -> np.ndarray:
        return np.log(np.append(self.lengthscale[np.isfinite(self.lengthscale)], self.nugget))

    def at(self, parameters: np.ndarray) -> "Process":
        lengthscale = self.lengthscale.copy()
        lengthscale[np.isfinite(lengthscale)] = np.exp(parameters[:-1])
        return replace(self, lengthscale=lengthscale, nugget=float(np.exp(parameters[-1])))

    def covariance_slopes(self, x: np.ndarray) -> np.ndarray:
        """∂ covariance / ∂θ_p by central differences, (p, n, n); θ ends with log scale here."""
        slopes = central_difference(lambda theta: self.at(theta).covariance(x), self.parameters())
        return np.concatenate([slopes, self.covariance(x)[None]])

    def average_information(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """½ yᵀV⁻¹ V_p V⁻¹ V_q V⁻¹y in (θ, log scale)."""
        inverse = np.linalg.inv(self.covariance(x))
        images = self.covariance_slopes(x) @ (inverse @ y)
        return 0.5 * images @ inverse @ images.T

    def fisher_information(self, x: np.ndarray) -> np.ndarray:
        """½ tr(V⁻¹ V_p V⁻¹ V_q) in (θ, log scale)."""
        whitened = np.linalg.inv(self.covariance(x)) @ self.covariance_slopes(x)
        return 0.5 * np.einsum("pij,qji->pq", whitened, whitened)


def profile_out_last(information: np.ndarray) -> np.ndarray:
    """Information on the other parameters once the last one is at its optimum."""
    return (
        information[:-1, :-1]
        - np.outer(information[:-1, -1], information[-1, :-1]) / (information[-1, -1])
    )


def central_difference(function, point, step=1e-5) -> np.ndarray:
    """Derivatives along the first axis."""
    return np.array(
        [
            (function(point + step * e) - function(point - step * e)) / (2 * step)
            for e in np.eye(len(point))
        ]
    )


def reduce_replicates(
    x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sites, means, counts and the sum of squares about the means; y may have columns."""
    sites = np.unique(x, axis=0)
    same = (x[None, :, :] == sites[:, None, :]).all(axis=-1).astype(float)
    counts = same.sum(axis=1)
    means = (same @ y) / counts.reshape((-1,) + (1,) * (y.ndim - 1))
    return sites, means, counts, ((y - same.T @ means) ** 2).sum(axis=0)


# --- uncertain inputs --------------------------------------------------------------------------


def through_inputs(
    process: Process, x: np.ndarray, y: np.ndarray, points: np.ndarray, weights: np.ndarray
) -> tuple[float, float, np.ndarray]:
    """Moments of the prediction at random inputs, by the laws of total mean and variance.

    ``points`` are draws or quadrature nodes of the inputs. Also returns the standard errors of the
    two moments, meant for equally weighted draws.
    """
    cross = process.scale * process.correlation(points, x)
    inverse = np.linalg.inv(process.covariance(x))
    mean_at = cross @ inverse @ y
    prior = process.scale * (process.variance(points) + process.nugget)
    var_at = prior - np.sum((cross @ inverse) * cross, axis=1)
    mean = weights @ mean_at
    spread = var_at + (mean_at - mean) ** 2
    errors = np.array([mean_at.std(), spread.std()]) / np.sqrt(len(points))
    return mean, weights @ spread, errors


def in_long_double(
    process: Process, x: np.ndarray, y: np.ndarray, points: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The moments of `through_inputs` with 19 digits, for points (…, k, D) that share weights."""
    long = lambda values: np.asarray(values, np.longdouble)  # noqa: E731
    exact = replace(process, lengthscale=long(process.lengthscale))
    rest = exact.correlation(long(x), long(x)) + long(process.nugget) * np.eye(len(x))
    flat = long(points).reshape(-1, x.shape[1])
    # L⁻¹[K*, y], a row for each point: products of long doubles are fast along rows.
    right = np.vstack([exact.correlation(flat, long(x)), long(y)])
    lower = np.zeros_like(rest)
    for k in range(len(x)):
        column = rest[k:, k] - lower[k:, :k] @ lower[k, :k]
        lower[k:, k] = column / np.sqrt(column[0])
        right[:, k] = (right[:, k] - right[:, :k] @ lower[k, :k]) / lower[k, k]
    cross, target = right[:-1], right[-1]
    prior = exact.variance(flat) + long(process.nugget)
    mean_at, left = cross @ target, prior - np.sum(cross**2, axis=1)
    mean_at, left = (each.reshape(points.shape[:-1]) for each in (mean_at, left))
    mean = mean_at @ long(weights)
    spread = process.scale * left + (mean_at - mean[..., None]) ** 2
    return mean.astype(float), (spread @ long(weights)).astype(float)


def gauss_hermite(
    mean: np.ndarray, var: np.ndarray, known: np.ndarray, order: int
) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (k, D) and weights of independent normals, followed by known columns."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    grid = np.array(list(product(nodes, repeat=len(mean))))
    points = np.hstack(
        [mean + np.sqrt(var) * grid, np.broadcast_to(known, (len(grid), len(known)))]
    )
    total = np.array([np.prod(w) for w in product(weights, repeat=len(mean))])
    return points, total / total.sum()


# --- sampling error ----------------------------------------------------------------------------


def in_standard_errors(draws: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """(sample mean − expected) / standard error, for independent draws along the first axis."""
    return (draws.mean(axis=0) - expected) / (draws.std(axis=0, ddof=1) / np.sqrt(len(draws)))


def batch_means(chain: np.ndarray, n_batches: int) -> np.ndarray:
    """Means of consecutive stretches of a chain: nearly independent if these are long."""
    return chain.reshape(n_batches, -1, *chain.shape[1:]).mean(axis=1)
