"""Time that is used and time that is left. Knows no tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Deadline:
    """A budget of time, from now on.

    Args:
        minutes: None for no end.
        clock: Seconds, monotonic.
    """

    def __init__(self, minutes: float | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = None if minutes is None else clock() + 60 * minutes

    @property
    def left(self) -> float | None:
        """Seconds; None without a budget."""
        return None if self._end is None else self._end - self._clock()

    def over(self, needed: float = 0.0) -> bool:
        """True if fewer than `needed` seconds are left."""
        left = self.left
        return left is not None and left <= needed


@dataclass
class Pace:
    """Time of the steps of one session; the first one compiles and does not count."""

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    blocks: int = 0
    slowest: float = 0.0

    def add(self, seconds: float, tokens: int, blocks: int) -> None:
        """One step."""
        self.steps += 1
        if self.steps == 1:
            return
        self.slowest = max(self.slowest, seconds)
        self.seconds, self.tokens, self.blocks = (
            self.seconds + seconds,
            self.tokens + tokens,
            self.blocks + blocks,
        )

    def rate(self, amount: int) -> float | None:
        """Of something per second; None before the second step."""
        return amount / self.seconds if self.seconds else None

    def left(self, steps: int) -> float | None:
        """Seconds that so many steps take; None before the second step."""
        return steps * self.seconds / (self.steps - 1) if self.seconds else None
