"""The comparison of structures behind `Emulator`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deepemu.core.ensemble import Ensemble
from deepemu.data.sites import Replicates
from deepemu.estimators.base import child_seed
from deepemu.posterior import stacking
from deepemu.posterior.stacking import Gain, Observed, Part
from deepemu.training.candidates import KERNELS, Candidate, Deep, words
from deepemu.training.plan import FEWEST_ROWS, N_FOLDS

# A node is a copy if an input explains so much of its variance.
COPY = 0.99
DEEPEST = 3


@dataclass(frozen=True)
class Rules:
    """What the user of a race decides: how deep, how many chains, and how a deep structure of a
    depth, kernel, number of chains and width (None: the default) is built."""

    max_depth: int
    n_chains: int
    shows_progress: bool
    deep: Callable[[int, str, int, int | None], Deep]


class Race:
    """Structures that are trained one after the other, as long as it pays."""

    def __init__(self, rules: Rules, seed: int, sites: Replicates, observed: Observed) -> None:
        self._rules, self._seed, self._sites, self._observed = rules, seed, sites, observed
        self.parts: list[Part] = []
        self.decisions: list[str] = []

    def run(self, shallow: Sequence[Candidate]) -> None:
        self._add(shallow)
        if self._rules.max_depth == 1 or len(self._sites.x) < FEWEST_ROWS:
            return
        self._add([self._deep(2, kernel, N_FOLDS) for kernel in KERNELS])
        if self._interrupted or self._gains_by_depth("two layers over one").is_clear_loss:
            return
        width, kernels = self._pruned_width(), self._kernels_in_play()
        n_more = self._rules.n_chains - N_FOLDS
        if n_more:
            self._add([self._deep(2, kernel, n_more, width) for kernel in kernels])
        if self._interrupted:
            return
        deeper = self._gains_by_depth("two layers with all chains")
        if deeper.is_clear and self._rules.max_depth >= DEEPEST:
            self._add([self._deep(DEEPEST, kernels[0], N_FOLDS, width)])

    def _add(self, candidates: Sequence[Candidate]) -> None:
        """Train some more, unless a Ctrl-C has ended the race."""
        for candidate in candidates:
            if not self._interrupted:
                seed = child_seed(self._seed, len(self.parts))
                shows = self._rules.shows_progress
                self.parts.append(Part(candidate, candidate.train(seed, self._sites, shows)))

    @property
    def _interrupted(self) -> bool:
        return any(part.trained.interrupted for part in self.parts)

    def _deep(self, depth: int, kernel: str, n_chains: int, width: int | None = None) -> Deep:
        return self._rules.deep(depth, kernel, n_chains, width)

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
