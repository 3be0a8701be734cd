"""The interface of a scikit-learn regressor, without importing scikit-learn.

scikit-learn takes longer to import than the rest of the package. It recognises estimators by their
methods, not by a base class, so it is imported only when it asks for tags, when data are not plain
arrays of finite numbers, and to report what is wrong with them.
"""

import inspect
from abc import ABCMeta, abstractmethod
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from deepemu.data.checks import plain_array
from deepemu.data.frames import require_numbers


class Regressor(metaclass=ABCMeta):
    """Parameters are the arguments of the constructor, each stored under its name."""

    n_features_in_: int
    feature_names_in_: np.ndarray

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; none of them is an estimator, so ``deep`` makes no difference."""
        return {name: getattr(self, name) for name in sorted(_defaults(type(self)))}

    def set_params(self, **params: Any) -> Self:
        """Change parameters; the next fit uses them."""
        known = sorted(_defaults(type(self)))
        for name, value in params.items():
            if name not in known:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {self}. "
                    f"Valid parameters are: {known!r}."
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """The constructor's call, without arguments that have their default."""
        changed = (
            f"{name}={value!r}"
            for name, default in _defaults(type(self)).items()
            if repr(value := getattr(self, name)) != repr(default)
        )
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True, multi_output=True),
            regressor_tags=RegressorTags(),
        )

    @abstractmethod
    def predict(self, X: ArrayLike) -> Any:
        """The mean at the rows of X."""

    def _checked_inputs(self, X: Any) -> ArrayLike:
        """X with the columns of the fit, by scikit-learn's rules; a posterior checks its values,
        and all of a plain array that has no names to be compared."""
        x: Any = plain_array(X) if isinstance(X, list) else X
        plain = type(x) is np.ndarray and x.dtype.kind in "fiu" and x.ndim == 2 and len(x)
        unnamed = "feature_names_in_" not in vars(self)
        if plain and unnamed and x.shape[1] == self.n_features_in_:
            return x
        require_numbers(X, "X")
        from sklearn.utils.validation import validate_data

        return validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=False)

    def _checked_rows(
        self, X: ArrayLike, y: ArrayLike, fewest: int, reset: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """X (n, d) and y (n,) or (n, q) as finite doubles of matching lengths; with ``reset`` the
        columns are those of a new fit."""
        x, outputs = plain_array(X), plain_array(y)
        if x is not None and outputs is not None and x.ndim == 2 and outputs.ndim <= 2:
            fits = reset or x.shape[1] == self.n_features_in_
            unnamed = "feature_names_in_" not in vars(self)
            if fits and unnamed and len(x) == len(outputs) >= fewest:
                self.n_features_in_ = x.shape[1]
                return x, outputs
        from sklearn.utils.validation import validate_data

        rules = {"multi_output": True, "y_numeric": True, "ensure_min_samples": fewest}
        x, outputs = validate_data(self, X, y, dtype=np.float64, reset=reset, **rules)
        return x, np.asarray(outputs, dtype=np.float64)


def seed_from(random_state: Any) -> int:
    """A seed by scikit-learn's rules: a number, a RandomState, or None for NumPy's global one."""
    if isinstance(random_state, Integral):
        generator = np.random.RandomState(int(random_state))  # noqa: NPY002 - what scikit-learn does
    else:
        from sklearn.utils import check_random_state

        generator = check_random_state(random_state)
    return int(generator.randint(np.iinfo(np.int32).max))


def _defaults(kind: type) -> dict[str, Any]:
    """The arguments of the constructor with their defaults."""
    arguments = inspect.signature(kind).parameters.values()
    return {each.name: each.default for each in arguments}
