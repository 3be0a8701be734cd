"""What practitioners try first, for ``peers.py``: trees with conformal intervals, and quantiles.

``forest`` is a random forest whose out-of-bag residuals are its predictive distribution about the
mean; ``boosting`` gradient boosting with the residuals of ten folds; ``quantile-boosting`` gradient
boosting of each quantile. Ranks of residuals are those of conformal prediction, which is exact
where they come from rows that no part of the fit has seen, and nearly so here. All answer with
quantiles, because their distributions are not normal.
"""

from __future__ import annotations

import numpy as np
from _peer_jobs import SEED, Quantiles, serve_fits
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.model_selection import KFold, cross_val_predict

LEVELS = np.arange(1, 80) / 80  # 0.025 and 0.975 are among them
FEWER_LEVELS = LEVELS[1::4]  # and among these
N_TREES, N_BOOSTS, N_FOLDS = 500, 300, 10


def about(mean: np.ndarray, residuals: np.ndarray) -> Quantiles:
    """The mean plus residuals of rows held out; ranks as conformal prediction counts them."""
    exact = LEVELS * (len(residuals) + 1)
    ranks = np.where(LEVELS < 0.5, np.floor(exact), np.ceil(exact)) - 1
    steps = np.sort(residuals)[np.clip(ranks, 0, len(residuals) - 1).astype(int)]
    return Quantiles(LEVELS, mean[None, :] + steps[:, None])


def forest(X: np.ndarray, y: np.ndarray):
    model = RandomForestRegressor(N_TREES, oob_score=True, random_state=SEED).fit(X, y)
    return lambda at: about(model.predict(at), y - model.oob_prediction_)


def boosted(loss: str = "squared_error", level: float = 0.5) -> GradientBoostingRegressor:
    return GradientBoostingRegressor(
        loss=loss, alpha=level, n_estimators=N_BOOSTS, learning_rate=0.05, max_depth=4,
        subsample=0.8, random_state=SEED,
    )  # fmt: skip


def boosting(X: np.ndarray, y: np.ndarray):
    folds = KFold(N_FOLDS, shuffle=True, random_state=SEED)
    residuals = y - cross_val_predict(boosted(), X, y, cv=folds)
    model = boosted().fit(X, y)
    return lambda at: about(model.predict(at), residuals)


def quantile_boosting(X: np.ndarray, y: np.ndarray):
    """One model per level; quantiles that cross are put in order."""
    models = [boosted("quantile", float(level)).fit(X, y) for level in FEWER_LEVELS]
    return lambda at: Quantiles(
        FEWER_LEVELS, np.sort([model.predict(at) for model in models], axis=0)
    )


if __name__ == "__main__":
    fits = {"forest": forest, "boosting": boosting, "quantile-boosting": quantile_boosting}
    serve_fits("scikit-learn", fits)
