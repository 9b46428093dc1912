"""What plain decoding costs on this machine, now, at this context length: measured between cycles.

Now and then a run of plain steps takes the place of a cycle: k steps, pipelined as in plain decoding, read at
r1 .. rk. The first ones pay for what was before: nothing overlaps a first step, and after wide passes the
processor's caches hold other things (the demo pair's second step takes 5% more than a later one, the fifth
3%). After r(k-1) there is no next step to build; on a CPU, where building and computing take turns, the
last one is nearly free: 0.08 of 2.4 ms, measured. What lies between, r4 to r(k-1), is timed: steps as in the
middle of a long plain reply. What else disturbs a run makes it slower, never faster, and a figure that is too
low flatters the ratio: so the second fastest of the last five runs counts, and a run that says that a step
costs more than the first token's did, which nothing overlaps, was disturbed: then that one counts.

Knows no tensors and no clock: it is told when tokens were read, and how long steps took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """The numbers behind `PlainRate`.

    Attributes:
        warm_up: Steps of a run that are not timed, as they pay for what was before them.
        first_steps: Steps of a run where nothing is known, so that the first figure comes early: one is
            timed, after a shorter warm-up.
        steps: Steps of every other run: more of its time is measured, and the text does not stand still.
        margin: A step is expected to cost this much more than the last run's, or than the first token's: the
            context has grown, and no two runs cost the same.
        near_tokens: Costs of context lengths that differ by no more are taken as equal: for an 8B target in 4
            bits with 36 layers of full attention, 1024 rows of cache are 3% of what a step reads.
        near_share: The same, as a share of the context length.
        last: A figure is told by so many last runs.
        kept: How many runs are remembered, at any context length.
    """

    warm_up: int = 4
    first_steps: int = 4
    steps: int = 8
    margin: float = 1.2
    near_tokens: int = 1024
    near_share: float = 1 / 8
    last: int = 5
    kept: int = 64


@dataclass
class Budget:
    """Decode time that may go to measurements, a share of all that passes; whatever measures draws on it.

    Attributes:
        saved: Seconds not spent yet; below 0 only if something cost more than expected.
    """

    saved: float = 0.0

    def earn(self, seconds: float, share: float, most: float) -> None:
        """Decode time has passed, spent or not; beyond `most` nothing is saved up."""
        self.saved = max(self.saved, min(self.saved + share * seconds, most))

    def affords(self, seconds: float, share: float) -> bool:
        """True if the share holds also after `seconds` that are spent, which earn too."""
        return self.saved + share * seconds >= seconds

    def spend(self, seconds: float) -> None:
        """Time went to a measurement."""
        self.saved -= seconds


@dataclass(frozen=True)
class Measurement:
    """One run, or a first token's step.

    Attributes:
        length: Of the context.
        step_seconds: Of a step in the middle.
        cost: Of a step of a run, at most. Not all of it per step: a last one that is nearly free weighs less
            in a longer run.
    """

    length: int
    step_seconds: float
    cost: float


class PlainRate:
    """Says when plain steps are to be measured, and what they cost. One per session.

    For each reply: `begin`; then for each `Block` event `plan`, `read` after each of its steps, `observe`.
    The plain steps of a reply take no more than the share of its decode time, at any moment; a run that cost
    more than was expected of it is waited out. Only until `last` runs are known of a context length,
    one may spend what earlier replies left, or a chat of short ones would have no figure, or a poor one; the
    share of the session's decode time holds then, too.

    Attributes:
        run: Plain steps of the run that was planned last; 0 if none was.
    """

    def __init__(self, tuning: Tuning = Tuning()) -> None:
        self.run = 0
        self._tuning, self._session, self._reply = tuning, Budget(), Budget()
        # Oldest first; replaced whole: other threads may read.
        self._measured: tuple[Measurement, ...] = ()
        self._firsts: tuple[Measurement, ...] = ()  # of first tokens
        self.begin(0.0)

    def begin(self, share: float) -> None:
        """A reply begins; its first token's step is no part of the decode time.

        Args:
            share: Of the decode time, 0 .. 1, for plain steps that measure; 0: none.
        """
        self._share, self._reply = share, Budget()
        # A plain step costs no more than the first token's, which nothing overlaps, or than a cycle.
        self._first: float | None = None
        self._cycle = math.inf

    def plan(self, length: int, left: int) -> int:
        """Plain steps to take now, one after the other, without a pause; 0: go on as usual.

        Args:
            length: Tokens so far.
            left: Tokens that are wanted still; a run is never longer.
        """
        self._length, self._reads = length, list[float]()
        near = self._near(self._measured, length)
        steps = self._tuning.steps if near else self._tuning.first_steps
        wanted = self._share > 0 and self._first is not None and steps <= left
        settled = len(near) >= self._tuning.last
        payers = (self._session, self._reply) if settled else (self._session,)
        cost = steps * self._step_cost(length)
        self.run = steps if wanted and all(one.affords(cost, self._share) for one in payers) else 0
        return self.run

    def read(self, now: float) -> bool:
        """A step's tokens were read at `now`, in seconds; True if more steps of a run are to come."""
        self._reads.append(now)
        return len(self._reads) < self.run

    def observe(self, width: int, seconds: float) -> None:
        """A cycle, a plain step or a run is over, be it that the reply ended in the middle.

        Args:
            width: Rows of a pass.
            seconds: The engine's own for all of it.
        """
        if self._first is None:
            self._first = seconds
            new = Measurement(self._length, seconds, seconds)
            self._firsts = (*self._firsts, new)[-self._tuning.kept :]
            return
        if width > 1:
            self._cycle = seconds
        if self.run:
            self._keep(seconds)
        most = self._tuning.steps * self._step_cost(self._length)
        for budget in (self._session, self._reply):
            if self.run:
                budget.spend(seconds)
            budget.earn(seconds, self._share, most)

    def tokens_per_second(self, length: int) -> float | None:
        """Of plain decoding at this context length; None if nothing near it was measured."""
        last = sorted(one.step_seconds for one in self._near(self._measured, length)[-self._tuning.last :])
        if not last:
            return None
        firsts = self._near(self._firsts, length)[-self._tuning.last :]
        return 1 / min([last[(len(last) - 1) // 3], *(one.step_seconds for one in firsts)])

    def _keep(self, seconds: float) -> None:
        warm_up = min(self._tuning.warm_up, self.run - 2)
        reads = self._reads[warm_up - 1 : self.run - 1]
        if len(reads) > 1 and reads[-1] > reads[0]:
            step_seconds = (reads[-1] - reads[0]) / (len(reads) - 1)
            cost = max(step_seconds, seconds / len(self._reads))
            new = Measurement(self._length, step_seconds, cost)
            self._measured = (*self._measured, new)[-self._tuning.kept :]

    def _step_cost(self, length: int) -> float:
        """Most that a step of the next run may cost."""
        near = self._near(self._measured, length)
        known = near[-1].cost if near else self._first or 0.0
        return min(self._tuning.margin * known, self._cycle)

    def _near(self, among: tuple[Measurement, ...], length: int) -> list[Measurement]:
        reach = max(self._tuning.near_tokens, self._tuning.near_share * length)
        return [one for one in among if abs(one.length - length) <= reach]
