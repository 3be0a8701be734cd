"""`GPClassifier` and `DGPClassifier`, with the interface of a scikit-learn classifier."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from deepemu.core.model.priors import Prior
from deepemu.core.nodes.solver import Solver
from deepemu.data.checks import require
from deepemu.data.frames import values_of
from deepemu.errors import InputError
from deepemu.estimators.base import BaseEmulator
from deepemu.estimators.dgp import DGP
from deepemu.estimators.gp import GP
from deepemu.files.atomic import PathLike
from deepemu.observations.binomial import Binomial
from deepemu.observations.categorical import Categorical
from deepemu.observations.model import Observation

MOST_LISTED = 5


class Classifier(BaseEmulator):
    """Classes of any labels, as numbers of an emulator whose observation model knows how many there
    are: two have one latent, more have one each."""

    classes_: np.ndarray

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # type: ignore[override]
        """Fit to inputs X (n, d) and labels y (n,)."""
        labels = _labels_of(y)
        classes, numbers = np.unique(labels, return_inverse=True)
        only = ", ".join(map(repr, classes.tolist())) or "none"
        require(len(classes) > 1, f"y has one class only, {only}; a classifier needs at least two.")
        before = vars(self).get("classes_")
        self.classes_ = classes
        try:
            return super().fit(X, numbers.ravel().astype(float))
        except BaseException:  # what was fitted before stays
            if before is None:
                del self.classes_
            else:
                self.classes_ = before
            raise

    def update(self, X_new: ArrayLike, y_new: ArrayLike) -> Self:  # type: ignore[override]
        """Add rows and resume training, as `GP.update` does."""
        self._fitted()
        return super().update(X_new, self._numbers_of(y_new))

    def predict(self, X: ArrayLike) -> np.ndarray:  # type: ignore[override]
        """The most probable class at the rows of X."""
        probable = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[probable]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities (m, classes) in the order of ``classes_``: averages over all imputations
        and over what each of them does not know of the latents."""
        posterior, at = self._fitted(), self._checked_inputs(X)
        n_rows, n_classes = len(np.asarray(at)), len(self.classes_)
        rows = np.repeat(np.asarray(at), n_classes, axis=0)
        numbers = np.tile(np.arange(n_classes, dtype=float), n_rows)
        found = np.exp(posterior.log_density(rows, numbers)).reshape(n_rows, n_classes)
        return found / found.sum(axis=1, keepdims=True)

    def log_density(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:  # type: ignore[override]
        """Log probability (m,) of labels y at the rows of X."""
        return super().log_density(X, self._numbers_of(y))

    def score(  # type: ignore[override]
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> float:
        """The share of rows whose class is the most probable one."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(_labels_of(y), self.predict(X), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
        )

    def _observation_of(self, noise_is_known: bool) -> Observation:
        n_classes = len(self.classes_)
        return Binomial() if n_classes == 2 else Categorical(n_classes)

    def _numbers_of(self, y: ArrayLike) -> np.ndarray:
        """The numbers of known labels."""
        labels = _labels_of(y)
        unseen = np.setdiff1d(labels, self.classes_)
        if len(unseen):
            listed = ", ".join(map(repr, unseen.tolist()[:MOST_LISTED]))
            raise InputError(
                f"y has the class(es) {listed}, which the classifier was not fitted to; call fit "
                "with all rows."
            )
        return np.searchsorted(self.classes_, labels).astype(float)


def _labels_of(y: ArrayLike) -> np.ndarray:
    """Labels (n,), by scikit-learn's rules."""
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import assert_all_finite, column_or_1d

    require(
        y is not None, "y is None: a classifier requires y to be passed, but the target y is None."
    )
    labels = column_or_1d(np.asarray(values_of(y)), warn=True)
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    return np.asarray(labels)


class GPClassifier(Classifier, GP):
    """A plain Gaussian-process classifier: a softmax of latents, imputed at the runs.

    Parameters
    ----------
    kernel, lengthscale, prior, random_state, device, n_jobs, solver, checkpoint
        As for `GP`.

    Examples
    --------
    >>> import numpy as np
    >>> from deepemu import GPClassifier
    >>> x = np.linspace(0, 1, 20)[:, None]
    >>> classifier = GPClassifier().fit(x, np.where(x[:, 0] < 0.5, "low", "high"))
    >>> print(*classifier.predict([[0.1], [0.9]]))
    low high
    """

    nugget = "auto"

    def __init__(
        self,
        kernel: str = "matern52",
        lengthscale: str = "ard",
        prior: str | Prior = "reference",
        random_state: Any = 0,
        device: str = "auto",
        n_jobs: int | None = -1,
        solver: str | Solver = "auto",
        checkpoint: PathLike | None = None,
    ) -> None:
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.prior = prior
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs
        self.solver = solver
        self.checkpoint = checkpoint


class DGPClassifier(Classifier, DGP):
    """A deep Gaussian-process classifier, with plain ones in its mixture, by how well they predict
    held-out classes.

    Parameters
    ----------
    depth, width, kernel, n_chains, n_iter, n_imputations, stacking
        As for `DGP`.
    random_state, device, n_jobs, verbose, solver, checkpoint
        As for `DGP`.
    """

    # What a classifier leaves at the defaults of `DGP`.
    lengthscale, connect_input, prior, nugget, layers = "ard", True, "gamma", "auto", None
    burn_in, n_sweeps, sweep, bracket, n_scoring = 0.75, None, "auto", 16.0, 1
    early_stopping, inference = True, "imputation"

    def __init__(
        self,
        depth: int = 2,
        width: int | None = None,
        kernel: str = "matern52",
        n_chains: int = 8,
        n_iter: int | None = None,
        n_imputations: int = 5,
        stacking: bool = True,
        random_state: Any = 0,
        device: str = "auto",
        n_jobs: int | None = -1,
        verbose: bool | None = None,
        solver: str | Solver = "auto",
        checkpoint: PathLike | None = None,
    ) -> None:
        self.depth = depth
        self.width = width
        self.kernel = kernel
        self.n_chains = n_chains
        self.n_iter = n_iter
        self.n_imputations = n_imputations
        self.stacking = stacking
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.solver = solver
        self.checkpoint = checkpoint
