"""How far a conversion is, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal[
    "checking the source", "converting", "checking weights", "checking layers", "checking with the target"
]


@dataclass(frozen=True)
class Progress:
    """A point in one stage.

    Attributes:
        done: Bytes of weights, or what `unit` says.
        total: As many when the stage ends; 0 while that cannot be told.
    """

    stage: Stage
    done: int
    total: int

    @property
    def unit(self) -> str:
        """What is counted; "" for bytes."""
        return "drafts" if self.stage == "checking with the target" else ""


Listener = Callable[[Progress], None]


class Counter:
    """Adds up what is done of a stage."""

    def __init__(self, stage: Stage, total: int, listener: Listener) -> None:
        self._stage, self._total, self._listener = stage, total, listener
        self._done = 0
        listener(Progress(stage, 0, total))

    def add(self, amount: int) -> None:
        """Tell the listener."""
        self._done += amount
        self._listener(Progress(self._stage, self._done, self._total))
