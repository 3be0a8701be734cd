"""GPBoost's Vecchia Gaussian process, for ``large.py``: Matern-5/2, one lengthscale per input."""

from __future__ import annotations

import gpboost
import numpy as np
from _large_jobs import answer
from _speed_jobs import serve, standardised

N_NEAR, N_PREDICT = 20, 40


def fit(X: np.ndarray, y: np.ndarray):
    shift, size = y.mean(), y.std()
    model = gpboost.GPModel(
        gp_coords=X, cov_function="matern_ard", cov_fct_shape=2.5, gp_approx="vecchia",
        num_neighbors=N_NEAR, likelihood="gaussian",
    )  # fmt: skip
    model.fit(y=standardised(y), params={"trace": False})
    model.set_prediction_data(num_neighbors_pred=N_PREDICT)

    def predict(at: np.ndarray):
        found = model.predict(gp_coords_pred=at, predict_var=True, predict_response=True)
        return shift + size * found["mu"], size * np.sqrt(found["var"])

    return predict


if __name__ == "__main__":
    serve({"gpboost": lambda job: answer(fit, job)})
