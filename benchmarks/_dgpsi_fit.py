"""Time one default training of dgpsi on Vega, design 0; run by ``fit_time.py``.

Prints one JSON line. The network is that of ``deepemu.DGP()``: two layers, one hidden node per
input, the second layer connected to the inputs, Matérn-5/2, one lengthscale per input dimension.
"""

from __future__ import annotations

import json
import time

import numpy as np
from problems import load_design


def _network(d):
    from dgpsi import combine, kernel

    hidden = [kernel(length=np.ones(d), name="matern2.5", nugget=1e-6) for _ in range(d)]
    last = kernel(
        length=np.ones(2 * d),
        name="matern2.5",
        nugget=1e-6,
        scale_est=True,
        connect=np.arange(d),
    )
    return combine(hidden, [last])


def _train(X, y, **options):
    """Wall and cpu seconds to build and train, by default with dgpsi's 500 iterations."""
    from dgpsi import dgp

    wall, cpu = time.perf_counter(), time.process_time()
    dgp(X, y[:, None], _network(X.shape[1])).train(disable=True, **options)
    return time.perf_counter() - wall, time.process_time() - cpu


def _standardise(y):
    return (y - y.mean()) / y.std()


def main():
    start = time.perf_counter()
    import dgpsi  # noqa: F401

    imported = time.perf_counter() - start
    design = load_design("vega", 0)
    X, y = design.X, _standardise(design.y)
    # A short training first loads (or builds) numba's compiled code, so that it is timed apart.
    warm_up, _ = _train(X[:12], y[:12], N=2)
    wall, cpu = _train(X, y)
    times = {"import_s": imported, "warm_up_s": warm_up, "fit_s": wall, "fit_cpu_s": cpu}
    print(json.dumps(times))


if __name__ == "__main__":
    main()
