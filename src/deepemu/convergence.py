"""Agreement of several chains: R-hat, effective sample size, and R-hat of predictions.

Draws have the shape (chains, iterations, ...); every function works on all trailing entries at
once and returns an array of their shape. An entry with a draw that is not finite, or chains of
fewer than four iterations, give NaN.

The formulas are those of Gelman et al., *Bayesian Data Analysis*, 3rd edition (2013), section
11.4, and of Vehtari, Gelman, Simpson, Carpenter and Buerkner, *Rank-normalization, folding, and
localization*, Bayesian Analysis 16(2), 667-718 (2021).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from deepemu.data.checks import components, real_array, shares
from deepemu.errors import InputError

__all__ = [
    "effective_sample_size",
    "inference_data",
    "predictive_rhat",
    "rank_normalised",
    "rank_rhat",
    "split_rhat",
]


def split_rhat(draws: ArrayLike) -> np.ndarray:
    """R-hat of chains cut in halves, so that it detects a drift within a chain too.

    ``R = sqrt((n - 1) / n + B / W)``  (Gelman et al. 2013, equation 11.4)

    with n draws in a half, B the variance between the means of the halves (divided by their
    number less one) and W the mean of their variances. It is near 1 (at most 1.01, say) where
    the chains agree. Halves that are constant give 1 if all draws are equal and infinity if
    they differ. The middle draw of an odd number is not used.
    """
    return _rhat(_halves(_draws(draws)))


def rank_rhat(draws: ArrayLike) -> np.ndarray:
    """Rank-normalised split R-hat, robust to heavy tails (Vehtari et al. 2021).

    The larger of the split R-hat of z, for the location, and of the z of ``|x - median x|``, for
    the spread, with z as in :func:`rank_normalised`.
    """
    halves = _halves(_draws(draws))
    distances = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.maximum(_rhat(rank_normalised(halves)), _rhat(rank_normalised(distances)))


def rank_normalised(draws: ArrayLike) -> np.ndarray:
    """Normal scores of the ranks among all S draws of all chains, in the shape of the draws.

    z = Phi^{-1}((r - 3/8) / (S + 1/4))  (Vehtari et al. 2021)

    Equal draws share their mean rank r. An entry with a NaN is NaN; infinite draws have a rank.
    """
    from scipy.stats import rankdata  # slow to import, and no fit needs it

    draws = _draws(draws)
    pooled = draws.reshape(-1, *draws.shape[2:])
    ranks = rankdata(pooled, axis=0).reshape(draws.shape)
    return ndtri((ranks - 0.375) / (len(pooled) + 0.25))


def effective_sample_size(draws: ArrayLike) -> np.ndarray:
    """Number of independent draws that would estimate the mean as precisely as these S draws do.

    ESS = S / max(tau, 1 / log10 S),  rho_t = 1 - (W - c_t) / (W (n - 1) / n + B)

    (Vehtari et al. 2021) with W and B of :func:`split_rhat`, c_t the mean
    autocovariance of the halves at lag t, and tau summed from rho by Geyer's initial monotone
    sequence. If all draws are equal the result is S; K chains that are constant but differ
    give about K.
    """
    halves = _halves(_draws(draws))
    n_draws, n = halves.shape[0] * halves.shape[1], halves.shape[1]
    between, within = _variances(halves)
    total = within * (n - 1) / n + between
    lag_covariance = _autocovariance(halves).mean(axis=0)
    rho = 1.0 - (within - lag_covariance) / np.where(total == 0.0, 1.0, total)
    rho[0] = 1.0
    # The lower bound limits the credit that chains of alternating sign can get.
    tau = np.maximum(_autocorrelation_time(rho), 1.0 / np.log10(n_draws))
    known = np.where(total == 0.0, n_draws, n_draws / tau)
    return np.where(np.isnan(total), np.nan, known)


def predictive_rhat(
    means: ArrayLike, variances: ArrayLike, weights: ArrayLike | None = None
) -> np.ndarray:
    """R-hat of K chains' predictions, from their means and variances of shape (K, ...).

    R = sqrt(1 + B / W),  B = sum_k w_k (m_k - m)^2 / (1 - sum_k w_k^2),  W = sum_k w_k v_k

    with m = sum_k w_k m_k and weights that are scaled to sum to one (equal unless given; B then
    has the divisor K - 1). The share B / (B + W) = 1 - 1/R^2 of the predictive variance lies
    between the chains. It is the limit of R-hat (Gelman et al. 2013) for many draws from each
    prediction, not cut in halves; halves count each chain twice, so that their B is smaller by
    the factor 2 (K - 1) / (2 K - 1).

    Where W = 0 the result is 1 if the means are equal and infinity if they differ. With a
    single chain of positive weight the spread between chains is unknown: the result is NaN.
    """
    means, variances = components(means, variances)
    w = shares(weights, len(means))
    w_column = w.reshape(-1, *[1] * (means.ndim - 1))
    mean = np.sum(w_column * means, axis=0)
    if np.count_nonzero(w) < 2:
        return np.full(mean.shape, np.nan)
    squares = np.sum(w_column * (means - mean) ** 2, axis=0)
    # Rounding of the mean must not make equal predictions differ.
    between = np.where(np.ptp(means[w > 0.0], axis=0) == 0.0, 0.0, squares / (1.0 - w @ w))
    return np.sqrt(1.0 + _ratio(between, np.sum(w_column * variances, axis=0)))


def inference_data(
    posterior: Mapping[str, ArrayLike],
    log_likelihood: Mapping[str, ArrayLike] | None = None,
    observed: Mapping[str, ArrayLike] | None = None,
) -> Any:
    """Draws for ArviZ: an InferenceData, or a DataTree from ArviZ 1.0 on.

    Each variable of ``posterior`` and ``log_likelihood`` has the shape (chains, iterations,
    ...); those of ``observed`` have no such axes. A variable has the same name in
    ``log_likelihood`` as in ``observed``.
    """
    arviz = _arviz()
    sampled = {"posterior": dict(posterior), "log_likelihood": dict(log_likelihood or {})}
    _require_equal_chains(sampled)
    groups = {**sampled, "observed_data": dict(observed or {})}
    given = {group: variables for group, variables in groups.items() if variables}
    # Version 1 takes one dictionary of groups, earlier ones a keyword for each.
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict(given)
    return arviz.from_dict(**given)


def _rhat(halves: np.ndarray) -> np.ndarray:
    """The formula of :func:`split_rhat`, given halves of chains."""
    n = halves.shape[1]
    between, within = _variances(halves)
    agreeing = (between == 0.0) & (within == 0.0)
    return np.where(agreeing, 1.0, np.sqrt((n - 1) / n + _ratio(between, within)))


def _variances(chains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """B, the variance of the chains' means, and W, the mean of their variances.

    Means of equal numbers are subject to rounding, so exactly constant chains are recognised by
    their range.
    """
    constant = np.all(np.ptp(chains, axis=1) == 0.0, axis=0)
    equal = np.ptp(chains, axis=(0, 1)) == 0.0
    between = np.where(equal, 0.0, np.var(np.mean(chains, axis=1), axis=0, ddof=1))
    within = np.where(constant, 0.0, np.mean(np.var(chains, axis=1, ddof=1), axis=0))
    return between, within


def _ratio(between: np.ndarray, within: np.ndarray) -> np.ndarray:
    """B / W, where 0 / 0 is 0 and B / 0 is infinite."""
    without_spread = np.where(between > 0.0, np.inf, 0.0)
    return np.where(within == 0.0, without_spread, between / np.where(within == 0.0, 1.0, within))


def _autocovariance(chains: np.ndarray) -> np.ndarray:
    """c_t = sum_i (x_i - mean x) (x_{i+t} - mean x) / n of each chain, for t = 0, ..., n - 1.

    By the Fourier transform of the chain padded with as many zeros, so that it does not wrap
    around.
    """
    from scipy.fft import next_fast_len  # slow to import

    n = chains.shape[1]
    size = next_fast_len(2 * n, real=True)
    spectrum = np.fft.rfft(chains - chains.mean(axis=1, keepdims=True), size, axis=1)
    return np.fft.irfft(np.abs(spectrum) ** 2, size, axis=1)[:, :n] / n


def _autocorrelation_time(rho: np.ndarray) -> np.ndarray:
    """Integrated autocorrelation time by Geyer's initial monotone sequence.

    tau = -1 + 2 sum_{k < m} min_{j <= k} P_j + max(rho_{2m}, 0),  P_k = rho_{2k} + rho_{2k+1}

    with m the first k whose P_k is not positive. Without noise the P_k of a reversible chain
    are positive and fall, so the rest is noise (Geyer 1992; the last term as in Stan).
    """
    n_pairs = len(rho) // 2
    even, odd = rho[: 2 * n_pairs : 2], rho[1 : 2 * n_pairs : 2]
    signal = np.logical_and.accumulate(even + odd > 0.0, axis=0)
    falling = np.minimum.accumulate(even + odd, axis=0)
    even_then_zero = np.concatenate([even, np.zeros_like(even[:1])])
    first_noise = np.take_along_axis(even_then_zero, signal.sum(axis=0)[None], axis=0)[0]
    return -1.0 + 2.0 * np.sum(np.where(signal, falling, 0.0), axis=0) + np.maximum(first_noise, 0)


def _halves(draws: np.ndarray) -> np.ndarray:
    """First and last halves of all chains, (2 chains, iterations // 2, ...).

    NaN for entries without a result, so that the formulas need no cases.
    """
    n = draws.shape[1] // 2
    if n < 2:
        return np.full((2 * len(draws), 2, *draws.shape[2:]), np.nan)
    usable = np.all(np.isfinite(draws), axis=(0, 1))
    return np.where(usable, np.concatenate([draws[:, :n], draws[:, -n:]]), np.nan)


def _draws(draws: ArrayLike) -> np.ndarray:
    array = real_array("draws", draws)
    if array.ndim < 2 or len(array) == 0:
        raise InputError(
            f"draws has the shape {array.shape}; it must be (chains, iterations, ...), and a "
            "single chain x is x[None]."
        )
    return array


def _require_equal_chains(groups: Mapping[str, Mapping[str, ArrayLike]]) -> None:
    shapes = {
        f"{group}[{name!r}]": np.shape(values)
        for group, variables in groups.items()
        for name, values in variables.items()
    }
    if len({shape[:2] for shape in shapes.values()}) > 1 or any(
        len(s) < 2 for s in shapes.values()
    ):
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"The shapes are {listed}; all must begin with (chains, iterations).")


def _arviz() -> Any:
    try:
        return importlib.import_module("arviz")
    except ImportError as error:
        raise ImportError("inference_data needs ArviZ: pip install 'deepemu[arviz]'") from error
