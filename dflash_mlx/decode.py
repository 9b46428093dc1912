"""The steps of one generation: cycles of draft, verify, accept, commit, and pipelined plain steps.

Knows tokens and caches; nothing of text, clocks or terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from dflash_mlx.accept import accept, num_uniforms
from dflash_mlx.sampling import Keys, Sampler

if TYPE_CHECKING:
    from dflash_mlx.drafters.base import Context, Drafter
    from dflash_mlx.pair import Pair
    from dflash_mlx.stream import Ending
    from dflash_mlx.targets.base import Snapshot, TargetState

# Features of plain steps go to the drafter together: its projections cost the same for 32 rows as for one.
FEATURE_ROWS = 32


@dataclass(frozen=True)
class LineSnapshot:
    """The caches of target and drafter as they were after `length` tokens."""

    length: int
    target: Snapshot
    drafter: Any

    @property
    def nbytes(self) -> int:
        """Bytes that it holds beyond the caches: windows and recurrent states; 0 for plain KV caches."""
        return self.target.nbytes + (0 if self.drafter is None else int(self.drafter.nbytes))


class Line:
    """One sequence: its tokens and what target and drafter remember of them.

    `tokens` are all committed ids. The last one is the anchor, not yet in the caches, except after a plain
    step that had already fed it to the target when the generation ended.
    """

    def __init__(self, pair: Pair) -> None:
        self.state: TargetState = pair.target.new_state()
        self.context: Context | None = pair.drafter.new_context() if pair.drafter else None
        self.tokens: list[int] = []
        self.draft_checked = False

    def trim_to(self, length: int) -> bool:
        """Drop the rows from `length` on; False where a cache cannot: the line then needs a snapshot."""
        if self.context is not None and not self.context.trim_to(length):
            return False
        if not self.state.trim_to(length):
            return False
        del self.tokens[length:]
        return True

    def complete(self, ahead: int = 0) -> bool:
        """True if the drafter has all that it needs to draft after `ahead` more tokens."""
        return self.context is None or self.context.complete(ahead)

    def arrays(self) -> Any:
        """The buffers of target and drafter, a tree for `mx.eval`."""
        return self.state.arrays(), [] if self.context is None else self.context.arrays()

    def snapshot(self) -> LineSnapshot:
        """Keep what is needed to come back here."""
        context = None if self.context is None else self.context.snapshot()
        return LineSnapshot(self.state.length, self.state.snapshot(), context)

    def restore(self, snapshot: LineSnapshot) -> None:
        """Go back to a snapshot of this line; the rows before it must not have been changed since."""
        self.state.restore(snapshot.target)
        if self.context is not None:
            self.context.restore(snapshot.drafter)
        del self.tokens[snapshot.length :]


@dataclass(frozen=True)
class Step:
    """What one cycle, or one plain step, committed.

    Attributes:
        tokens: `accepted + 1` of them, fewer where the generation ends inside the block.
        width: Rows of the pass.
        accepted: n, how many drafted tokens the target agreed with.
    """

    tokens: tuple[int, ...]
    width: int
    accepted: int


class Decoder:
    """Extends a line token by token or block by block.

    Args:
        pair: Target and, for cycles, drafter.
        line: Prefilled up to its last token.
        sampler: How tokens are chosen.
    """

    def __init__(self, pair: Pair, line: Line, sampler: Sampler) -> None:
        self._target, self._maybe_drafter, self._line = pair.target, pair.drafter, line
        self._taps = pair.drafter.config.target_layer_ids if pair.drafter else ()
        self._sampler, self._keys = sampler, Keys(sampler.params.seed)
        self._features: list[mx.array] = []  # of plain steps, not yet in the drafter's context

    def steps(self, ending: Ending, width: int, run: Callable[[], int] = lambda: 0) -> Generator[Step]:
        """Steps until the ending has come: the first token, then cycles, or plain steps throughout.

        A verify pass is never wider than the tokens that are wanted still; a last single one is plain.

        Args:
            ending: Says which tokens are kept.
            width: Rows of a verify pass.
            run: Asked before each cycle: how many plain steps, of those that are wanted, take its place.
        """
        plain = ending.left if width == 1 else 1
        while not ending.ended():
            if plain:
                with closing(self.plain(plain)) as tokens:
                    for token in tokens:
                        ending.keep([token])
                        yield Step((token,), width=1, accepted=0)
                        if ending.ended():
                            break
            else:
                yield self.cycle(min(width, ending.left), ending.keep)
            plain = run() or int(ending.left == 1)

    def cycle(self, width: int, keep: Callable[[list[int]], int]) -> Step:
        """One verify pass over the anchor and `width - 1` drafted tokens; one host read.

        Args:
            width: 2 .. block size.
            keep: How many of the tokens that could be committed are wanted (at least 1): asked before the
                commit, so that an end inside the block leaves the caches right.
        """
        line, (drafter, context) = self._line, self._drafting()
        anchor = mx.array([line.tokens[-1:]], mx.int32)
        if not line.draft_checked:  # once per sequence: looks at every layer on the host
            drafter.check_finite(anchor, width, context, self._target)
            line.draft_checked = True
        temperature = self._sampler.params.temperature
        key = None if self._sampler.greedy else self._keys.next()

        proposal = drafter.draft(anchor, width, context, self._target, temperature, key)
        block = mx.concatenate([anchor, proposal.tokens], axis=1)  # [1, W]
        verified = self._target.forward(block, line.state, self._taps, rollback=True)
        logits = self._sampler.process(verified.logits, self._recent(), proposal.tokens)
        outcome = accept(logits, proposal, self._sampler, self._uniforms(width))

        accepted, *tokens = host_ints(outcome)
        tokens = tokens[: accepted + 1]
        rows = keep(tokens)
        self._target.commit(line.state, rows)
        drafter.extend(verified.tapped[:, :rows], context)
        line.tokens += tokens[:rows]
        return Step(tuple(tokens[:rows]), width, accepted)

    def plain(self, limit: int) -> Generator[int]:
        """At most `limit` tokens, one row each; the next step runs before a token is read.

        Closing the iterator early is right at any time: the token that the running step was fed is a
        committed one.
        """
        recent = self._recent()
        token = mx.array(self._line.tokens[-1:], mx.int32)
        following = self._step(token, recent)
        mx.async_eval(following)
        try:
            for left in range(limit, 0, -1):
                token = following
                if left > 1:
                    if recent is not None:
                        recent = self._sampler.remember(recent, token)
                    following = self._step(token, recent)
                    mx.async_eval(following)
                self._line.tokens += host_ints(token)
                yield self._line.tokens[-1]
        finally:
            self._flush()

    def _step(self, token: mx.array, recent: mx.array | None) -> mx.array:
        """Feed one token `[1]`; the next one `[1]`, lazy."""
        verified = self._target.forward(token[None], self._line.state, self._taps)
        if verified.features is not None:
            self._features.append(verified.features)
            if len(self._features) == FEATURE_ROWS:
                self._flush()
        logits = self._sampler.process(verified.logits, recent, None)
        key = None if self._sampler.greedy else self._keys.next()
        return self._sampler.draw(logits[:, -1], key)

    def _flush(self) -> None:
        if self._features:
            drafter, context = self._drafting()
            drafter.extend(mx.concatenate(self._features, axis=1), context)
            self._features.clear()
            # No plain step depends on it: left lazy, it would hold all features until the next cycle.
            mx.async_eval(context.arrays())

    def _drafting(self) -> tuple[Drafter, Context]:
        if self._maybe_drafter is None or self._line.context is None:
            raise RuntimeError("a cycle needs a drafter")
        return self._maybe_drafter, self._line.context

    def _recent(self) -> mx.array | None:
        if not self._sampler.needs_history:
            return None
        return mx.array(self._line.tokens[-self._sampler.params.penalty_context :], mx.int32)

    def _uniforms(self, width: int) -> mx.array | None:
        return None if self._sampler.greedy else self._keys.uniforms(num_uniforms(width))


def host_ints(array: mx.array) -> list[int]:
    """The values of a one-dimensional integer array: the host read, which waits for the device."""
    values: list[int] = array.tolist()  # type: ignore[assignment]
    return values
