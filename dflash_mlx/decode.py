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
from dflash_mlx.noise import Noise
from dflash_mlx.sampling import Sampler

if TYPE_CHECKING:
    from dflash_mlx.drafters.base import Context, Drafter, Proposal
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


@dataclass(frozen=True)
class Draft:
    """A proposal that was handed over to the device, and the noise that its verify pass goes on with.

    A pure value: the caches that it was computed from hold nothing of it.
    """

    width: int
    proposal: Proposal
    noise: mx.array | None  # [W, V]; None without a seed


class Decoder:
    """Extends a line token by token or block by block.

    What the device can do already is handed over before the host builds more (`mx.async_eval`): a draft
    before its verify pass, and as soon as a block's tokens are known the drafter's new context, the next
    draft, and the rollback. So the device works while the host builds, and while a reader has the block.

    Args:
        pair: Target and, for cycles, drafter.
        line: Prefilled up to its last token.
        sampler: How tokens are chosen.
    """

    def __init__(self, pair: Pair, line: Line, sampler: Sampler) -> None:
        self._target, self._maybe_drafter, self._line = pair.target, pair.drafter, line
        self._taps = pair.drafter.config.target_layer_ids if pair.drafter else ()
        self._sampler, self._noise = sampler, Noise(sampler.params.seed)
        self._start = len(line.tokens)
        self._features: list[mx.array] = []  # of plain steps, not yet in the drafter's context
        self._ahead: Draft | None = None

    def steps(self, ending: Ending, width: int, plan: Callable[[Step], int] = lambda _: 0) -> Generator[Step]:
        """Steps until the ending has come: the first token, then cycles, or plain steps throughout.

        A verify pass is never wider than the tokens that are wanted still; a last single one is plain.

        Args:
            ending: Says which tokens are kept.
            width: Rows of a verify pass.
            plan: Told each step as soon as its tokens are committed; how many plain steps, of those that are
                wanted, come next instead of a cycle. Not asked within these steps.
        """
        plain = ending.left if width == 1 else 1

        def following(step: Step) -> int:
            nonlocal plain
            plain = plan(step) or int(ending.left == 1)
            return 0 if plain or ending.ended() else min(width, ending.left)

        while not ending.ended():
            if plain:
                with closing(self.plain(plain)) as tokens:
                    for token in tokens:
                        ending.keep([token])
                        step = Step((token,), width=1, accepted=0)
                        following(step)
                        yield step
                        if ending.ended():
                            break
            else:
                yield self.cycle(min(width, ending.left), ending.keep, following)

    def cycle(
        self, width: int, keep: Callable[[list[int]], int], following: Callable[[Step], int] = lambda _: 0
    ) -> Step:
        """One verify pass over the anchor and `width - 1` drafted tokens; one host read.

        Args:
            width: 2 .. block size.
            keep: How many of the tokens that could be committed are wanted (at least 1): asked before the
                commit, so that an end inside the block leaves the caches right.
            following: Told the step; rows of the next cycle, whose draft is begun then; 0 if there is none.
        """
        line, (drafter, context) = self._line, self._drafting()
        draft = self._take(width)
        anchor = mx.array([line.tokens[-1:]], mx.int32)
        block = mx.concatenate([anchor, draft.proposal.tokens], axis=1)  # [1, W]
        verified = self._target.forward(block, line.state, self._taps, rollback=True)
        logits = self._sampler.process(verified.logits, self._recent(), draft.proposal.tokens)
        uniforms = self._uniforms(width)
        outcome = accept(logits, draft.proposal, self._sampler, uniforms, draft.noise)

        accepted, *tokens = host_ints(outcome)
        tokens = tokens[: accepted + 1]
        rows = keep(tokens)
        # The next draft needs the drafter's context only: it does not wait for the rollback.
        drafter.extend(verified.tapped[:, :rows], context)
        mx.async_eval(context.arrays())
        line.tokens += tokens[:rows]
        step = Step(tuple(tokens[:rows]), width, accepted)
        next_width = following(step)
        self._ahead = self._draft(next_width) if next_width else None
        self._target.commit(line.state, rows)
        mx.async_eval(line.arrays())
        return step

    def _take(self, width: int) -> Draft:
        """What was begun, if it has this width."""
        draft, self._ahead = self._ahead, None
        return draft if draft is not None and draft.width == width else self._draft(width)

    def _draft(self, width: int) -> Draft:
        line, (drafter, context) = self._line, self._drafting()
        anchor = mx.array([line.tokens[-1:]], mx.int32)
        if not line.draft_checked:  # once per sequence: looks at every layer on the host
            drafter.check_finite(anchor, width, context, self._target)
            line.draft_checked = True
        temperature, sampled = self._sampler.params.temperature, not self._sampler.greedy
        noise = self._gumbel(width) if self._noise.seeded else None
        key = self._noise.next() if sampled and noise is None else None
        drafted = None if noise is None else noise[:-1]
        proposal = drafter.draft(anchor, width, context, self._target, temperature, key, drafted)
        mx.async_eval(
            [array for array in (proposal.tokens, proposal.ids, proposal.q, noise) if array is not None]
        )
        return Draft(width, proposal, noise)

    def plain(self, limit: int) -> Generator[int]:
        """At most `limit` tokens, one row each; the next step runs before a token is read.

        Closing the iterator early is right at any time: the token that the running step was fed is a
        committed one.
        """
        self._ahead = None
        recent = self._recent()
        token = mx.array(self._line.tokens[-1:], mx.int32)
        following = self._step(token, recent, self._gumbel(1))
        try:
            for left in range(limit, 0, -1):
                token = following
                if left > 1:
                    if recent is not None:
                        recent = self._sampler.remember(recent, token)
                    following = self._step(token, recent, self._gumbel(1, ahead=1))
                self._line.tokens += host_ints(token)
                yield self._line.tokens[-1]
        finally:
            self._flush()

    def _step(self, token: mx.array, recent: mx.array | None, noise: mx.array | None) -> mx.array:
        """Feed one token `[1]`; the next one `[1]`, handed over."""
        verified = self._target.forward(token[None], self._line.state, self._taps)
        logits = self._sampler.process(verified.logits, recent, None)
        following = self._sampler.draw(logits[:, -1], noise)
        mx.async_eval(following, verified.features, self._line.state.arrays())
        if verified.features is not None:
            self._features.append(verified.features)
            if len(self._features) == FEATURE_ROWS:
                self._flush()
        return following

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

    def _gumbel(self, rows: int, ahead: int = 0) -> mx.array | None:
        """Noise of the next positions, `[rows, V]`; those after `ahead` tokens that are not read yet."""
        if self._sampler.greedy:
            return None
        first = len(self._line.tokens) - self._start + ahead
        return self._noise.gumbel(first, rows, self._sampler.vocab_size)

    def _uniforms(self, width: int) -> mx.array | None:
        if self._sampler.greedy or self._noise.seeded:
            return None
        return self._noise.uniforms(num_uniforms(width))


def host_wait() -> None:
    """Wait for all that was handed over."""
    mx.synchronize()


def host_ints(array: mx.array) -> list[int]:
    """The values of a one-dimensional integer array: the host read, which waits for the device."""
    values: list[int] = array.tolist()  # type: ignore[assignment]
    return values
