"""Trees of arrays on the host: stacked, joined, cut."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from deepemu._types import Array

T = TypeVar("T")


def stack(trees: Sequence[T]) -> T:
    """Equal trees, stacked leaf by leaf along a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


class Shelf(Generic[T]):
    """Equal trees of several chains, stacked in NumPy as they come: never in memory twice."""

    def __init__(self, n_chains: int, n_places: int) -> None:
        self._shape = n_chains, n_places
        self._stacked: T | None = None
        self.n_put = 0

    def put(self, trees: Sequence[T]) -> None:
        """One more tree of each chain."""
        if self._stacked is None:
            room = lambda leaf: np.empty((*self._shape, *leaf.shape), leaf.dtype)  # noqa: E731
            self._stacked = jax.tree.map(room, trees[0])
        wholes = jax.tree.leaves(self._stacked)
        for chain, tree in enumerate(trees):
            for whole, part in zip(wholes, jax.tree.leaves(tree), strict=True):
                whole[chain, self.n_put] = part
        self.n_put += 1

    def stacked(self) -> T:
        """The stored trees, with leading axes (chains, places)."""
        return jax.tree.map(lambda whole: whole[:, : self.n_put], self._stacked)


def row(tree: T, index: int | slice | np.ndarray | tuple[int, ...]) -> T:
    """One tree of a stack, or some of them."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def to_numpy(tree: T) -> T:
    """Arrays of a fitted emulator live in NumPy: they pickle in full precision anywhere."""
    return jax.tree.map(np.asarray, tree)


def freeze(tree: Any) -> None:
    """Nobody may write to the arrays any more."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, np.ndarray):
            leaf.setflags(write=False)


def joined(pieces: Sequence[T], axis: int = 0) -> T:
    """Equal trees, joined leaf by leaf along an axis that they have."""
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=axis), *pieces)


def gathered(parts: Iterable[tuple[slice | np.ndarray, Any]], n_rows: int, axis: int = 0) -> Any:
    """One tree of all rows, along an axis, from trees of some rows each: put where they belong as
    they come, so that results are never in memory twice."""
    whole: Any = None

    def room(leaf: Any) -> np.ndarray:
        return np.empty((*leaf.shape[:axis], n_rows, *leaf.shape[axis + 1 :]), leaf.dtype)

    for rows, part in parts:
        whole = jax.tree.map(room, part) if whole is None else whole
        for all_rows, some in zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True):
            np.moveaxis(all_rows, axis, 0)[rows] = np.moveaxis(some, axis, 0)
    return whole


def put_at(rows: np.ndarray) -> Callable[[Array | np.ndarray, Any], np.ndarray]:
    """A function that gives a copy of an array with some of its rows replaced."""

    def put(whole: Array | np.ndarray, part: Any) -> np.ndarray:
        whole = np.array(whole)
        whole[rows] = part
        return whole

    return put
