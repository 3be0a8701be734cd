"""`Emulator`, which finds its structure by comparing held-out predictions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from deepemu import stacking
from deepemu._progress import wants_progress
from deepemu.candidates import Candidate, Deep
from deepemu.core.predict import Ensemble
from deepemu.emulator import FEWEST_ROWS, N_FOLDS, BaseEmulator, child_seed
from deepemu.errors import InputError
from deepemu.estimators import DGP, KERNELS, companions, words
from deepemu.layers import require_verbose, require_whole
from deepemu.stacking import Gain, Observed, Part
from deepemu.validation import Replicates

DEEPEST = 3
# A node is a copy if an input explains so much of its variance.
COPY = 0.99


class Emulator(BaseEmulator):
    """The emulator that chooses its structure: plain and deep Gaussian processes, by how well they
    predict runs that they have not seen.

    Plain Gaussian processes with two kernels come first; then deep ones of two layers, a few
    chains each. If these predict clearly worse, that is all. Otherwise they get the rest of their
    chains, unless one kernel is clearly worse than the other. If they predict clearly better than
    the plain ones and ``max_depth`` is 3, three layers are tried with the better kernel. Nodes
    that only copy an input in the first chains are left out of the later ones. Whatever was
    trained has a vote, and `summary` shows the evidence.

    Parameters
    ----------
    max_depth : int
        Layers of the deepest structure that is tried: 1 to 3. Three layers double the time of a fit
        and seldom gained anything in the problems of the accuracy page.
    width : int or None
        Nodes in each hidden layer; ``None``: number of inputs, but at most 6.
    nugget : float or "estimate"
        Nugget relative to the variance of the process; "estimate" models noise. Up to 1e-6 it is
        there for the arithmetic; plain Gaussian processes, which need less of it, then have 1e-8.
    n_chains : int
        Chains of each deep structure of two layers, at least 4; three layers get 4.
    n_iter : int
        Iterations of each chain.
    random_state, device, n_jobs, verbose
        As for `DGP`.

    Examples
    --------
    >>> import numpy as np
    >>> from deepemu import Emulator
    >>> x = np.linspace(0, 1, 12)[:, None]
    >>> emulator = Emulator(n_iter=20).fit(x, np.sin(6 * x[:, 0]))
    >>> mean, std = emulator.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(3)) < 0.05)
    True
    """

    def __init__(
        self,
        max_depth: int = 2,
        width: int | None = None,
        nugget: float | str = 1e-6,
        n_chains: int = 8,
        n_iter: int = 200,
        random_state: Any = 0,
        device: str = "auto",
        n_jobs: int | None = -1,
        verbose: bool | None = None,
    ) -> None:
        self.max_depth = max_depth
        self.width = width
        self.nugget = nugget
        self.n_chains = n_chains
        self.n_iter = n_iter
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _candidates(self, n_inputs: int, n_outputs: int, n_rows: int) -> list[Candidate]:
        require_whole("max_depth", self.max_depth)
        require_whole("n_chains", self.n_chains)
        require_whole("n_iter", self.n_iter)
        require_verbose(self.verbose)
        if self.max_depth > DEEPEST:
            raise InputError(f"max_depth is {self.max_depth}; it must be at most {DEEPEST}.")
        if self.n_chains < N_FOLDS:
            raise InputError(f"n_chains is {self.n_chains}; it must be at least {N_FOLDS}.")
        deepest = self._deep(min(self.max_depth, 2), KERNELS[0], N_FOLDS, None)
        deepest.candidate(n_inputs, n_outputs, N_FOLDS)  # refuses settings that cannot be used
        return [*companions(self.nugget, n_inputs, n_outputs)]

    def _deep(self, depth: int, kernel: str, n_chains: int, width: int | None) -> DGP:
        return DGP(
            depth, width or self.width, kernel, nugget=self.nugget, n_chains=n_chains,
            n_iter=self.n_iter,
        )  # fmt: skip

    def _train(
        self, candidates: list[Candidate], seed: int, sites: Replicates, observed: Observed
    ) -> tuple[list[Part], tuple[str, ...]]:
        """Rung by rung; what was decided on the way is kept for `summary`."""
        race = Race(self, seed, sites, observed)
        race.run(candidates)
        return race.parts, tuple(race.decisions)

    def _n_programs(self) -> int:
        return self.n_chains

    def _shows_progress(self) -> bool:
        return wants_progress(self.verbose)

    def loo(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each training row, by chains trained without it."""
        return self._held_out()


class Race:
    """Structures that are trained one after the other, as long as it pays."""

    def __init__(
        self, settings: Emulator, seed: int, sites: Replicates, observed: Observed
    ) -> None:
        self._settings, self._seed, self._sites, self._observed = settings, seed, sites, observed
        self.parts: list[Part] = []
        self.decisions: list[str] = []

    def run(self, shallow: Sequence[Candidate]) -> None:
        self._add(shallow)
        if self._settings.max_depth == 1 or len(self._sites.x) < FEWEST_ROWS:
            return
        self._add([self._deep(2, kernel, N_FOLDS) for kernel in KERNELS])
        if self._interrupted or self._gains_by_depth("two layers over one").is_clear_loss:
            return
        width, kernels = self._pruned_width(), self._kernels_in_play()
        n_more = self._settings.n_chains - N_FOLDS
        if n_more:
            self._add([self._deep(2, kernel, n_more, width) for kernel in kernels])
        if self._interrupted:
            return
        deeper = self._gains_by_depth("two layers with all chains")
        if deeper.is_clear and self._settings.max_depth >= DEEPEST:
            self._add([self._deep(DEEPEST, kernels[0], N_FOLDS, width)])

    def _add(self, candidates: Sequence[Candidate]) -> None:
        """Train some more, unless a Ctrl-C has ended the race."""
        for candidate in candidates:
            if not self._interrupted:
                seed = child_seed(self._seed, len(self.parts))
                shows = self._settings._shows_progress()
                self.parts.append(Part(candidate, candidate.train(seed, self._sites, shows)))

    @property
    def _interrupted(self) -> bool:
        return any(part.trained.interrupted for part in self.parts)

    def _deep(self, depth: int, kernel: str, n_chains: int, width: int | None = None) -> Deep:
        shape = self._sites.x.shape[1], self._sites.y.shape[1]
        settings = self._settings._deep(depth, kernel, n_chains, width)
        return settings.candidate(*shape, N_FOLDS)

    def _gains_by_depth(self, what: str) -> Gain:
        deep = [part for part in self.parts if part.candidate.network.depth > 1]
        plain = [part for part in self.parts if part.candidate.network.depth == 1]
        found = stacking.gain(deep, plain, self._observed)
        self.decisions.append(f"Gain of {what}, in held-out log density a row: {found}.")
        return found

    def _kernels_in_play(self) -> list[str]:
        """The kernels of two layers, the better one first; a clear loser is left out."""
        first, second = self.parts[-len(KERNELS) :]
        found = stacking.gain([first], [second], self._observed)
        self.decisions.append(
            f"Gain of {words(KERNELS[0])} over {words(KERNELS[1])}, likewise: {found}."
        )
        best = list(KERNELS) if found.mean >= 0.0 else list(reversed(KERNELS))
        return best[:1] if found.is_clear or found.is_clear_loss else best

    def _pruned_width(self) -> int | None:
        """The width without nodes that copy an input in all chains so far; None: as it was."""
        deep = [
            part.trained.ensemble for part in self.parts if part.trained.ensemble.members.latents
        ]
        copies = np.all([_copies(ensemble) for ensemble in deep], axis=0)
        if not copies.any():
            return None
        kept = max(int((~copies).sum()), 1)
        self.decisions.append(
            f"{int(copies.sum())} of {len(copies)} hidden nodes only copied an input and are left "
            "out of the chains that follow."
        )
        return kept


def _copies(ensemble: Ensemble) -> np.ndarray:
    """Which nodes (P,) of the first layer are straight lines in one input, in all members."""
    used = np.asarray(ensemble.data.counts) > 0
    x = _standardised(np.asarray(ensemble.data.x)[used])
    latents = np.asarray(ensemble.members.latents[0])[:, used]
    squares = np.stack([(_standardised(w).T @ x / len(x)) ** 2 for w in latents])
    return np.all(squares.max(axis=2) > COPY, axis=0)


def _standardised(columns: np.ndarray) -> np.ndarray:
    std = columns.std(axis=0)
    return (columns - columns.mean(axis=0)) / np.where(std > 0.0, std, 1.0)
