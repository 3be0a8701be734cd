"""Verdicts on claims of the stochastic-imputation paper, and how several make one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from paper_figures import Results

CONFIRMED, REFUTED, UNCLEAR = "confirmed", "contradicted", "undecided"
TOO_FEW = "too few trials"


class Missing(LookupError):
    """What a claim needs and is not there: pairs of a reason and of what it holds for."""

    def __init__(self, *reasons: tuple[str, str]) -> None:
        super().__init__(*reasons)
        self.reasons = reasons

    def __str__(self) -> str:
        lists = {
            why: [what for each, what in self.reasons if each == why] for why, _ in self.reasons
        }
        return "; ".join(f"{why}: {', '.join(dict.fromkeys(of))}" for why, of in lists.items())


class Verdict(NamedTuple):
    word: str
    numbers: tuple[str, ...]  # such as "SI 2: 0.0325"


Judge = Callable[[Results], Verdict]


def all_of(*judges: Judge) -> Judge:
    """Confirmed if all are; what was not run is named, unless nothing was."""

    def judge(results: Results) -> Verdict:
        found, missing = verdicts(judges, results)
        if not found:
            raise Missing(*missing)
        numbers = [number for verdict in found for number in verdict.numbers]
        word = in_one_word([verdict.word for verdict in found])
        if missing:
            numbers.append(str(Missing(*missing)))
            word += f" ({len(found)} of {len(judges)} parts)"
        return Verdict(word, tuple(dict.fromkeys(numbers)))

    return judge


def verdicts(
    judges: Sequence[Judge], results: Results
) -> tuple[list[Verdict], list[tuple[str, str]]]:
    """Those that there are, and the reasons why the others are not."""
    found, missing = [], []
    for judge in judges:
        try:
            found.append(judge(results))
        except Missing as error:
            missing += error.reasons
    return found, missing


def in_one_word(words: list[str]) -> str:
    if len(set(words)) == 1:
        return words[0]
    counts = (f"{words.count(w)} {w}" for w in (CONFIRMED, UNCLEAR, REFUTED) if w in words)
    return f"in part ({', '.join(counts)})"


def more_often(judges: Sequence[Judge], form: str) -> Judge:
    """Confirmed if more of them are confirmed than contradicted; contradicted if fewer are.

    What was not run has no part in it. ``form`` has the places {yes}, {no} and {all}.
    """

    def judge(results: Results) -> Verdict:
        found, missing = verdicts(judges, results)
        if not found:
            raise Missing(*missing)
        yes, no = (sum(verdict.word == word for verdict in found) for word in (CONFIRMED, REFUTED))
        word = CONFIRMED if yes > no else REFUTED if no > yes else UNCLEAR
        return Verdict(word, (form.format(yes=yes, no=no, all=len(found)),))

    return judge
