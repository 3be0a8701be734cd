"""Inputs that are not known exactly: normal about a row.

A plain Gaussian process has its moments at a normal input in closed form. In a deep one the input
reaches several nodes, and later layers twice if they are connected to it, so the inputs of a layer
are correlated. Mixtures with deep structures are therefore predicted at the points of a cubature
rule for the normal input; the law of total variance over them holds for all structures. Quantiles
come from equally likely points: where predictions are sharp, the mixture over points has a
distribution function with steps as high as the weights.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import ndtri

# Points per input, by the number of uncertain ones: tensor grids of 576, 512 and 625 points. One
# uncertain input has evenly spaced points up to so many standard deviations: a deep process may
# change within a tenth of one, which a rule of high degree does not see.
POINTS_PER_INPUT = {2: 24, 3: 8, 4: 5}
N_EVEN, REACH = 401, 6.5
N_QUASI_RANDOM = 512
MOST_POINTS = 625


@dataclass(frozen=True)
class Cubature:
    """Standardised offsets (S, d) and weights (S,), which add up to one."""

    offsets: np.ndarray
    weights: np.ndarray

    def points(self, x: np.ndarray, std: np.ndarray) -> np.ndarray:
        """Cubature points (S, m, d) of normal inputs with means x and deviations (m, d)."""
        return x + std * self.offsets[:, None, :]


Rule = Callable[[np.ndarray], Cubature]
"""A cubature, given which inputs are uncertain (d,); the others are fixed."""


def rows_by_kind(std: np.ndarray, most: int) -> list[np.ndarray]:
    """The rows of deviations (m, d) that have the same uncertain inputs, kind by kind, at most so
    many together."""
    kinds, kind_of_row = np.unique(std > 0.0, axis=0, return_inverse=True)
    of_kinds = [np.flatnonzero(kind_of_row.ravel() == kind) for kind in range(len(kinds))]
    return [rows[first : first + most] for rows in of_kinds for first in range(0, len(rows), most)]


def for_moments(uncertain: np.ndarray) -> Cubature:
    """Trapezia for one uncertain input, Gauss-Hermite for up to four, equally likely points for
    more."""
    n = int(uncertain.sum())
    if n == 1:
        return _with_fixed(uncertain, *_even())
    if n not in POINTS_PER_INPUT:
        return equally_likely(uncertain)
    return _with_fixed(uncertain, *_grid(n, POINTS_PER_INPUT[n]))


def equally_likely(uncertain: np.ndarray) -> Cubature:
    """Mid-quantiles of one uncertain input, a scrambled Sobol sequence that is symmetric about the
    mean for several."""
    n = int(uncertain.sum())
    points = _mid_quantiles() if n == 1 else _quasi_random(n)
    return _with_fixed(uncertain, points, np.full(N_QUASI_RANDOM, 1.0 / N_QUASI_RANDOM))


def _with_fixed(uncertain: np.ndarray, points: np.ndarray, weights: np.ndarray) -> Cubature:
    offsets = np.zeros((len(weights), len(uncertain)))
    offsets[:, uncertain] = points
    return Cubature(offsets, weights)


def _even() -> tuple[np.ndarray, np.ndarray]:
    points = np.linspace(-REACH, REACH, N_EVEN)
    weights = np.exp(-0.5 * points**2)
    return points[:, None], weights / weights.sum()


def _grid(n: int, n_points: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = hermegauss(n_points)
    grid = np.array(list(itertools.product(nodes, repeat=n)))
    products = np.array([np.prod(each) for each in itertools.product(weights, repeat=n)])
    return grid, products / products.sum()


def _mid_quantiles() -> np.ndarray:
    return ndtri((np.arange(N_QUASI_RANDOM) + 0.5) / N_QUASI_RANDOM)[:, None]


def _quasi_random(n: int) -> np.ndarray:
    from scipy.stats import qmc  # noqa: PLC0415  (takes half a second to import)

    half = ndtri(qmc.Sobol(n, rng=np.random.default_rng(0)).random(N_QUASI_RANDOM // 2))
    return np.vstack([half, -half])
