"""How many rows of a prompt are read at a time: few enough for Ctrl-C and for memory, as many as pay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dflash_mlx.scores import CHUNK_ROWS, Scores, chunk_rows, power_of_two

FIRST_ROWS = 256  # when nothing is known yet, at most: half a second at 500 rows/s, a 27B's on a large Mac
LEAST_FIRST_ROWS = 8  # fewer cost as much: what takes long then is to read the weights
GROWTH = 2  # from one chunk to the next, at most
CHUNK_SECONDS = 1.0  # nothing stops a chunk, so Ctrl-C waits for its end

# Operations a second that products of many rows reach on any such machine: an M1 has 2.6e12 at its best,
# one core with a fast BLAS 3e10.
SLOWEST = {"cpu": 2e10, "metal": 2e12, "cuda": 2e12}


def first_rows(parameters: int, device: str) -> int:
    """Rows of the first chunk, before it is known how fast they are read: a second on the slowest machine.

    Args:
        parameters: Of the target, at two operations a row each.
        device: "cpu", "metal" or "cuda".
    """
    rows = CHUNK_SECONDS * SLOWEST[device] / (2 * max(1, parameters))
    return power_of_two(min(max(rows, LEAST_FIRST_ROWS), FIRST_ROWS))


class Pace:
    """Rows of a chunk by what the ones before took: the largest power of two that takes `CHUNK_SECONDS`.

    They grow step by step.

    Where a part of the time is spent on every chunk (weights that do not fit into memory are read anew), it
    has at least as many rows as take as long as that part: smaller ones would only cost time.

    Args:
        most: Rows.
        first: Rows of the first chunk.
    """

    def __init__(self, most: int, first: int = FIRST_ROWS) -> None:
        self._most = most
        self.rows = min(first, most)
        self._least = 1
        self._last: tuple[int, float] | None = None

    def observe(self, rows: int, seconds: float) -> None:
        """A chunk was read; it may have had fewer rows than `rows` says.

        One that was cut short tells how slow a chunk can be, not how fast: it lowers nothing unless it took
        too long itself.
        """
        wanted = rows / seconds * CHUNK_SECONDS if seconds > 0 else self._most
        if rows < self.rows and seconds <= CHUNK_SECONDS:
            wanted = max(wanted, self.rows)
        if self._last is not None and self._last[0] != rows:
            self._least = self._paying(rows, seconds, *self._last)
        self._last = rows, seconds
        # Rows cost more with every chunk before them, so twice as many may take more than twice as long.
        wanted = max(min(wanted, GROWTH * self.rows), self._least)
        self.rows = self._most if wanted >= self._most else power_of_two(wanted)

    def _paying(self, rows: int, seconds: float, other_rows: int, other_seconds: float) -> int:
        """Rows that take as long as what every chunk costs, from two chunks of different sizes."""
        per_row = (other_seconds - seconds) / (other_rows - rows)
        fixed, most = seconds - per_row * rows, 2 * max(rows, other_rows)
        return power_of_two(most if fixed >= per_row * most else fixed / per_row)


class Chunks:
    """The chunks of the prompts of one session.

    Args:
        most: Rows of a chunk.
        scores: What the target's attention writes to memory.
        first: Rows of the first one.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        most: int = CHUNK_ROWS,
        scores: Sequence[Scores] = (),
        first: int = FIRST_ROWS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scores, self._clock = scores, clock
        self._pace = Pace(most, first)

    def rows(self, start: int) -> int:
        """Of the chunk after `start` tokens, at most."""
        return chunk_rows(self._scores, start, self._pace.rows)

    @contextmanager
    def reading(self, rows: int) -> Iterator[None]:
        """Around all the work of a chunk of so many rows."""
        started = self._clock()
        yield
        self._pace.observe(rows, self._clock() - started)
