"""The comparison of structures behind `Emulator`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deepemu.core.ensemble import Imputed
from deepemu.data.sites import SiteData
from deepemu.estimators.base import child_seed
from deepemu.posterior import stacking
from deepemu.posterior.stacking import Gain, Judged
from deepemu.training.chains import Trained
from deepemu.training.plan import FEWEST_ROWS, N_FOLDS
from deepemu.training.structures import KERNELS, DeepGP, Structure, without_noise, words

# A node is a copy of an input that explains this share of its variance.
COPY = 0.99
DEEPEST = 3


@dataclass(frozen=True)
class Rules:
    """Settings of a race: largest depth, number of chains, and a function that builds a deep
    structure from depth, kernel, number of chains and width (None: the default)."""

    max_depth: int
    n_chains: int
    shows_progress: bool
    deep: Callable[[int, str, int, int | None], DeepGP]


class Race:
    """Structures trained one after the other, as long as held-out predictions improve."""

    def __init__(self, rules: Rules, seed: int, sites: SiteData, judged: Judged) -> None:
        self._rules, self._seed, self._sites, self._judged = rules, seed, sites, judged
        self.trained: list[Trained] = []
        self.decisions: list[str] = []

    def run(self, plain: Sequence[Structure]) -> None:
        self._add(plain)
        self._add(without_noise(self.trained, self._sites))
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

    def _add(self, structures: Sequence[Structure]) -> None:
        """Train some more, unless a Ctrl-C has ended the race."""
        for structure in structures:
            if not self._interrupted:
                seed = child_seed(self._seed, len(self.trained))
                shows = self._rules.shows_progress
                self.trained.append(structure.train(seed, self._sites, shows))

    @property
    def _interrupted(self) -> bool:
        return any(each.interrupted for each in self.trained)

    def _deep(self, depth: int, kernel: str, n_chains: int, width: int | None = None) -> DeepGP:
        return self._rules.deep(depth, kernel, n_chains, width)

    def _gains_by_depth(self, what: str) -> Gain:
        deep = [each for each in self.trained if each.structure.network.depth > 1]
        plain = [each for each in self.trained if each.structure.network.depth == 1]
        found = stacking.gain(deep, plain, self._judged)
        self.decisions.append(f"Gain of {what}, in held-out log density per row: {found}.")
        return found

    def _kernels_in_play(self) -> list[str]:
        """The kernels of two layers, the better one first; a clearly worse one is dropped."""
        first, second = self.trained[-len(KERNELS) :]
        found = stacking.gain([first], [second], self._judged)
        self.decisions.append(
            f"Gain of {words(KERNELS[0])} over {words(KERNELS[1])}, likewise: {found}."
        )
        best = list(KERNELS) if found.mean >= 0.0 else list(reversed(KERNELS))
        return best[:1] if found.is_clear or found.is_clear_loss else best

    def _pruned_width(self) -> int | None:
        """The width without nodes that copy an input in all chains so far; None: unchanged."""
        deep = [each.imputed for each in self.trained if each.structure.network.depth > 1]
        copies = np.all([_copies(imputed) for imputed in deep], axis=0)
        if not copies.any():
            return None
        kept = max(int((~copies).sum()), 1)
        self.decisions.append(
            f"{int(copies.sum())} of {len(copies)} hidden nodes only copied an input and are left "
            "out of the chains that follow."
        )
        return kept


def _copies(imputed: Imputed) -> np.ndarray:
    """Mask (P,) of the nodes of the first layer that are linear in one input in all imputations."""
    used = np.asarray(imputed.data.used) > 0
    x = _standardised(np.asarray(imputed.data.x)[used])
    latents = np.concatenate(imputed.members.latents[0])[:, used]
    squares = np.stack([(_standardised(w).T @ x / len(x)) ** 2 for w in latents])
    return np.all(squares.max(axis=2) > COPY, axis=0)


def _standardised(columns: np.ndarray) -> np.ndarray:
    std = columns.std(axis=0)
    return (columns - columns.mean(axis=0)) / np.where(std > 0.0, std, 1.0)
