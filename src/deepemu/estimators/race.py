"""The comparison of structures behind `Emulator`."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deepemu.core.ensemble import Imputed
from deepemu.core.kernels import families
from deepemu.data.sites import SiteData
from deepemu.estimators.base import child_seed
from deepemu.posterior import stacking
from deepemu.posterior.comparison import scores_of
from deepemu.posterior.stacking import Gain, Judged
from deepemu.runtime.progress import say
from deepemu.training.chains import Trained
from deepemu.training.keeper import NOTHING_KEPT, Keeper
from deepemu.training.layers import SMALLEST_NUGGET
from deepemu.training.plan import FEWEST_ROWS, N_FOLDS
from deepemu.training.structures import (
    KERNELS,
    DeepGP,
    Structure,
    found_noise,
    is_twin,
    noise_variance,
    with_nugget,
    without_noise,
    words,
)

# A node is a copy of an input that explains this share of its variance.
COPY = 0.99
DEEPEST = 3
# As a share of the variance of the outputs. What a plain process takes for more noise is often a
# function that it cannot follow, and a deep one can.
MOST_NOISE = 0.01
MEDIAN_OF_NORMAL = 0.6745
# With a time limit: the deep chains after which more are not worth their predictions' time, and the
# share of the time left that one of several structures may take.
MOST_CHAINS = 48
SHARE_OF_ONE = 0.4


@dataclass(frozen=True)
class Effort:
    """How much is trained: chains per deep structure of two layers, iterations of each, the largest
    depth, whether deep structures have both kernels from the start, and what three layers have
    instead: chains in all, and iterations."""

    n_chains: int
    n_iter: int
    max_depth: int
    both_kernels: bool = True
    n_chains_of_three: int = N_FOLDS
    n_iter_of_three: int = 80


# Of chains that move guided, and of those whose hidden layers are swept from the prior.
EFFORTS = {
    "quick": Effort(n_chains=8, n_iter=80, max_depth=2, both_kernels=False),
    "default": Effort(n_chains=8, n_iter=80, max_depth=2),
    "thorough": Effort(n_chains=16, n_iter=80, max_depth=3, n_chains_of_three=16),
}
EFFORTS_SWEPT = {
    "quick": Effort(n_chains=4, n_iter=60, max_depth=2, both_kernels=False, n_iter_of_three=60),
    "default": Effort(n_chains=8, n_iter=200, max_depth=2, n_iter_of_three=200),
    "thorough": Effort(
        n_chains=8, n_iter=200, max_depth=3, n_chains_of_three=8, n_iter_of_three=500
    ),
}


@dataclass(frozen=True)
class Rules:
    """Settings of a race: the effort, seconds from its start after which nothing new is begun, and
    a function that builds a deep structure from depth, kernel, number of chains and width (None:
    the default)."""

    effort: Effort
    seconds: float
    shows_progress: bool
    deep: Callable[[int, str, int, int | None], DeepGP]


class Race:
    """Structures trained one after the other, as long as held-out predictions improve."""

    def __init__(
        self,
        rules: Rules,
        seed: int,
        sites: SiteData,
        judged: Judged,
        keeper: Keeper = NOTHING_KEPT,
    ) -> None:
        self._rules, self._seed, self._sites, self._judged = rules, seed, sites, judged
        self._keeper, self._began = keeper, time.monotonic() - keeper.seconds_before
        self.trained: list[Trained] = []
        self.decisions: list[str] = []
        self._noise: dict[families.Kernel, np.ndarray] = {}

    def run(self, plain: Sequence[Structure]) -> None:
        effort = self._rules.effort
        self._add(plain)
        self._add(without_noise(self.trained, self._sites))
        if self._has_ended or effort.max_depth == 1 or len(self._sites.x) < FEWEST_ROWS:
            return
        kernels = list(KERNELS) if effort.both_kernels else [self._kernel_of_the_best_plain()]
        self._noise = self._noise_beyond_doubt()
        self._add([self._deep(2, kernel, N_FOLDS) for kernel in kernels])
        if self._has_ended or self._depth_has_lost():
            return
        kernels, n_more = self._kernels_in_play(kernels), effort.n_chains - N_FOLDS
        if n_more:
            self._try_noise(kernels[0])
        width = self._pruned_width()
        self._add([self._deep(2, kernel, n_more, width) for kernel in kernels if n_more])
        if self._has_ended:
            return
        self._gains_by_depth("two layers with all chains")
        # A few rows that two layers miss by far spoil their mean gain, and three may not miss them.
        tries_three = effort.max_depth >= DEEPEST and self._weight_of_deep() > 0.5
        if tries_three:
            self._add(self._three_layers(kernels, width))
        self._use_the_time_left(kernels, width, [2, DEEPEST] if tries_three else [2])

    def _three_layers(self, kernels: list[str], width: int | None) -> list[DeepGP]:
        """The chains of three layers, in equal parts for the kernels in play, the better one first;
        each part has chains for all folds."""
        n_chains = self._rules.effort.n_chains_of_three
        some = kernels[: n_chains // N_FOLDS]
        return [self._deep(DEEPEST, kernel, n_chains // len(some), width) for kernel in some]

    def _use_the_time_left(self, kernels: list[str], width: int | None, depths: list[int]) -> None:
        """With a time limit: more chains of the structures in play, in turn."""
        if math.isinf(self._rules.seconds):
            return
        in_turn = [(depth, kernel) for depth in depths for kernel in kernels]
        turn = 0
        while not self._has_ended and self._n_deep_chains < MOST_CHAINS:
            depth, kernel = in_turn[turn % len(in_turn)]
            self._add([self._deep(depth, kernel, N_FOLDS, width)])
            turn += 1

    def _add(self, structures: Sequence[Structure]) -> None:
        """Train some more, at least one, until a Ctrl-C or the time limit ends the race."""
        for structure in structures:
            if not self.trained or not self._has_ended:
                seed = child_seed(self._seed, len(self.trained))
                shows = self._rules.shows_progress
                limited = self._limited(structure)
                self.trained.append(self._keeper.train(limited, seed, self._sites, shows))
                if shows:
                    say(f"held-out CRPS {self._held_out_crps():.4g} sd of the output")

    def _limited(self, structure: Structure) -> Structure:
        """The structure with a share of the time left; a plain process takes what it takes."""
        if math.isinf(self._rules.seconds) or not isinstance(structure, DeepGP):
            return structure
        plan = dataclasses.replace(structure.plan, seconds=SHARE_OF_ONE * self._seconds_left)
        return dataclasses.replace(structure, plan=plan)

    def _held_out_crps(self) -> float:
        """That of the mixture of all that has been trained, NaN where nothing was held out."""
        held_out = stacking.stack(self.trained, self._judged).held_out
        if held_out is None:
            return math.nan
        return scores_of(self._judged.y, self._judged.at_rows(held_out), *self._judged.model)[
            "crps"
        ]

    @property
    def _seconds_left(self) -> float:
        return self._rules.seconds - (time.monotonic() - self._began)

    @property
    def _deep_ones(self) -> list[Trained]:
        return [each for each in self.trained if each.structure.network.depth > 1]

    @property
    def _n_deep_chains(self) -> int:
        return sum(len(each.chains) for each in self._deep_ones)

    @property
    def _has_ended(self) -> bool:
        """By a Ctrl-C, or by the time limit once all that was begun before is trained."""
        is_late = self._seconds_left <= 0.0 and not self._keeper.holds_more
        return is_late or any(each.interrupted for each in self.trained)

    def _noise_beyond_doubt(self) -> dict[families.Kernel, np.ndarray]:
        """The noise variance (P,) that plain processes of each kernel have found, if it is small
        and those without noise predict clearly worse; nothing otherwise."""
        twins = [each for each in self.trained if is_twin(each.structure)]
        noisy = [each for each in self.trained if not is_twin(each.structure)]
        if len(twins) < len(noisy):
            return {}
        found = stacking.gain(noisy, twins, self._judged)
        self.decisions.append(_gain_in_words("plain processes with noise", "none", found))
        noise = {_kernel_of(each.structure): noise_variance(each) for each in noisy}
        is_small = all(np.all(each < MOST_NOISE) for each in noise.values())
        return noise if found.is_clear and is_small else {}

    def _try_noise(self, kernel: str) -> None:
        """Chains with the least noise that a plain process has found, beside those of the same
        kernel that find their own: later chains have it if these predict better."""
        found = [noise_variance(each) for each in self.trained if found_noise(each)]
        if self._noise or not found:
            return
        wanted = families.by_name(kernel)
        own = next(each for each in self._deep_ones if _kernel_of(each.structure) == wanted)
        noise = self._possible(np.min(found, axis=0), own)
        if np.all(noise == SMALLEST_NUGGET):
            return
        n_before = len(self.trained)
        self._noise = dict.fromkeys(map(families.by_name, KERNELS), noise)
        self._add([self._deep(2, kernel, N_FOLDS)])
        with_noise = self.trained[n_before:]
        if not with_noise or not self._gains_by_noise(with_noise, own):
            self._noise = {}

    def _possible(self, noise: np.ndarray, own: Trained) -> np.ndarray:
        """Noise variances (P,), the smallest for outputs that chains without it predict better than
        such noise allows.

        Errors are those of the function plus noise, so that their median is at least that of
        |noise|, which is 0.67 standard deviations of normal noise.
        """
        median_error = np.median(stacking.held_out_errors([own], self._judged), axis=0)
        is_possible = median_error > MEDIAN_OF_NORMAL * np.sqrt(noise)
        return np.where(is_possible, noise, SMALLEST_NUGGET)

    def _gains_by_noise(self, with_noise: list[Trained], own: Trained) -> bool:
        """Whether it is more than one standard error: the smallest noise is the most probable."""
        found = stacking.gain(with_noise, [own], self._judged)
        what = "two layers with the least noise of plain processes"
        self.decisions.append(_gain_in_words(what, "noise of their own", found))
        return found.mean > found.error

    def _deep(self, depth: int, kernel: str, n_chains: int, width: int | None = None) -> DeepGP:
        """A deep structure, with noise of plain processes where that is beyond doubt or better.

        Hidden layers may follow noise, and a nugget that they find is then too small. The process
        of the last layer varies about as much as the outputs, so that their share is its nugget.
        """
        structure = self._rules.deep(depth, kernel, n_chains, width)
        noise = self._noise.get(_kernel_of(structure))
        return structure if noise is None else with_nugget(structure, noise)

    def _depth_has_lost(self) -> bool:
        """Whether deep structures predict worse by more than one standard error, and have little of
        the weight: a few rows of four chains may be far off where their mixture is not."""
        found = self._gains_by_depth("two layers over one")
        return found.mean < -found.error and self._weight_of_deep() < 0.5

    def _weight_of_deep(self) -> float:
        weights = stacking.stack(self.trained, self._judged).weights
        of_structures = stacking.by_structure(self.trained, weights)
        return sum(
            float(of.sum()) for each, of in of_structures if each.structure.network.depth > 1
        )

    def _gains_by_depth(self, what: str) -> Gain:
        deep = self._deep_ones
        plain = [each for each in self.trained if each.structure.network.depth == 1]
        found = stacking.gain(deep, plain, self._judged)
        self.decisions.append(f"Gain of {what}, in held-out log density per row: {found}.")
        return found

    def _kernel_of_the_best_plain(self) -> str:
        """The kernel whose plain processes predict held-out runs better."""
        first, second = (
            [each for each in self.trained if each.structure.network.layers[0].kernel == kernel]
            for kernel in map(families.by_name, KERNELS)
        )
        found = stacking.gain(first, second, self._judged)
        self.decisions.append(_gain_in_words(f"plain {words(KERNELS[0])}", KERNELS[1], found))
        return KERNELS[0] if found.mean >= 0.0 else KERNELS[1]

    def _kernels_in_play(self, kernels: list[str]) -> list[str]:
        """The kernels of two layers, the better one first; a clearly worse one is dropped."""
        if len(kernels) == 1:
            return kernels
        first, second = self.trained[-len(KERNELS) :]
        found = stacking.gain([first], [second], self._judged)
        self.decisions.append(_gain_in_words(words(KERNELS[0]), KERNELS[1], found))
        best = list(KERNELS) if found.mean >= 0.0 else list(reversed(KERNELS))
        return best[:1] if found.is_clear or found.is_clear_loss else best

    def _pruned_width(self) -> int | None:
        """The width without nodes that copy an input in all chains so far; None: unchanged."""
        copies = np.all([_copies(each.imputed) for each in self._deep_ones], axis=0)
        if not copies.any():
            return None
        kept = max(int((~copies).sum()), 1)
        self.decisions.append(
            f"{int(copies.sum())} of {len(copies)} hidden nodes only copied an input and are left "
            "out of the chains that follow."
        )
        return kept


def _kernel_of(structure: Structure) -> families.Kernel:
    """That of the last layer."""
    return structure.network.layers[-1].kernel


def _gain_in_words(first: str, second: str, found: Gain) -> str:
    return f"Gain of {first} over {words(second)}, likewise: {found}."


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
