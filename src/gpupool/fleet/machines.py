"""State machines as data: a table of allowed moves that refuses every other one.

A move to the present state is no move and always allowed, since reports arrive at least once.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from gpupool.core.errors import ImpossibleMoveError

S = TypeVar("S", bound=StrEnum)


class StateMachine(Generic[S]):
    """The allowed moves between the states of one kind of thing."""

    def __init__(self, noun: str, moves: Mapping[S, frozenset[S]]) -> None:
        self.noun = noun
        self._moves = moves

    def allows(self, old: S, new: S) -> bool:
        """Tell whether ``old -> new`` is an allowed move (or none at all)."""
        return old == new or new in self._moves[old]

    def check(self, old: S, new: S, name: str) -> None:
        """Raise ImpossibleMoveError, naming the thing, unless the move is allowed."""
        if not self.allows(old, new):
            raise ImpossibleMoveError(
                f"The {self.noun} {name} is {old.value} and cannot become {new.value}.",
                remedy=f"From {old.value} it can become: {', '.join(sorted(self._moves[old])) or 'nothing else'}.",
            )

    def is_final(self, state: S) -> bool:
        """Tell whether nothing leads out of ``state``."""
        return not self._moves[state]
