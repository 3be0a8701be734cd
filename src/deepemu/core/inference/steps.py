"""One iteration of training, as settings of the compiled program."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from deepemu._types import Array, record
from deepemu.core.inference.free_node import FreeNode
from deepemu.core.model.network import LayerParams, Network

Update = Callable[[FreeNode], tuple[LayerParams, Array]]
"""New parameters of a node, and its log posterior density there."""


@dataclass(frozen=True)
class NodeWise:
    """One node at a time, as in Algorithm 2 of the paper."""

    def block(self, width: int) -> int:
        return 1

    def n_updates(self, widths: Sequence[int]) -> int:
        """How many updates a sweep over layers of these widths has."""
        return sum(widths)


@dataclass(frozen=True)
class LayerWise:
    """All nodes of a layer at once, on one ellipse."""

    def block(self, width: int) -> int:
        return width

    def n_updates(self, widths: Sequence[int]) -> int:
        return len(widths)


@dataclass(frozen=True)
class Guided:
    """All anchored hidden layers at once, guided by the information of the outputs; before them the
    nodes of the last layer, where it is imputed."""

    def n_updates(self, widths: Sequence[int]) -> int:
        return 1


Moves = NodeWise | LayerWise | Guided


class Nodes(Protocol):
    """How the M-step visits nodes."""

    def map(self, function: Callable[..., Any], *nodes: Any) -> Any:
        """``function`` of each of the stacked nodes."""

    def groups(self, network: Network) -> Sequence[Sequence[int]]:
        """Layers whose nodes are visited by one piece of the program."""


class MStep(Protocol):
    """The update of parameters given imputed layers.

    ``shares_parameters``: imputations that are kept have one set of parameters per chain, else each
    has its own. ``n_between`` iterations lie between two that are kept.
    """

    shares_parameters: ClassVar[bool]
    n_between: ClassVar[int]

    def update(self, key: Array, n_scoring: Array | int) -> Update: ...


@record
class Steps:
    """An iteration: sweeps over the imputed layers, then the M-step.

    The first four are compiled into the program, the others are its arguments. ``block`` is
    the largest number of iterations in a call, ``n_scoring`` the number of scoring steps per M-step
    (or of moves, where parameters are sampled); zero keeps the parameters. Slice brackets
    have width min(2π, ``bracket`` × mean accepted angle) per node: an infinite factor gives the
    full circle of the paper. ``adapt`` lets the means follow the accepted angles, which must be
    off for draws that are kept.
    """

    moves: Moves = field(metadata={"static": True})
    m_step: MStep = field(metadata={"static": True})
    nodes: Nodes = field(metadata={"static": True})
    block: int = field(metadata={"static": True})
    n_sweeps: Array | int
    n_scoring: Array | int
    bracket: Array | float
    adapt: Array | bool
