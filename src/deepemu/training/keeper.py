"""Where the states of a fit go while it trains, so that another process can go on from them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from deepemu.data.sites import SiteData

if TYPE_CHECKING:
    from deepemu.training.chains import Trained

T = TypeVar("T")


class Keeper:
    """Keeps no state; `files.checkpoint.Checkpoint` keeps them in a file.

    Structures are trained one after the other, and each in stages. A stage asks for the state that
    it was ``found`` in, goes on from there, and gives its own to ``keep``: at its end, and between
    blocks of iterations whenever ``is_due``. ``seconds_before`` are those that the fit had taken
    when it was killed.
    """

    seconds_before = 0.0

    @property
    def is_due(self) -> bool:
        return False

    @property
    def holds_more(self) -> bool:
        """Whether there is a structure that was trained or begun before, and not asked for yet."""
        return False

    def found(self, stage: str) -> Any:
        """The state of a stage of the structure that is trained now; None if there is none."""
        return None

    def keep(self, stage: str, state: Any) -> None:
        """Replace the state of a stage."""

    def once(self, stage: str, make: Callable[[], T]) -> T:
        """What a stage in one piece has made, or makes now."""
        made = self.found(stage)
        if made is None:
            made = make()
            self.keep(stage, made)
        return made

    def train(self, structure: Any, seed: int, sites: SiteData, show_progress: bool) -> "Trained":
        """The next structure, as it was trained before, or trained now."""
        return structure.train(seed, sites, show_progress, self)

    def remove(self) -> None:
        """The fit has finished."""


NOTHING_KEPT = Keeper()
