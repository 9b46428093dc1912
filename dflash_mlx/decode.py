"""The steps of one generation: cycles of draft, verify, accept, commit, and pipelined plain steps.

Knows tokens and caches; nothing of text, clocks or terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

from dflash_mlx.accept import accept, num_uniforms
from dflash_mlx.sampling import Keys, Sampler

if TYPE_CHECKING:
    from dflash_mlx.drafters.base import Context, Drafter
    from dflash_mlx.pair import Pair
    from dflash_mlx.targets.base import TargetState
    from dflash_mlx.types import SamplingParams

# Features of plain steps go to the drafter together: its projections cost the same for 32 rows as for one.
FEATURE_ROWS = 32


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


@dataclass(frozen=True)
class Cycle:
    """What one cycle committed.

    Attributes:
        tokens: `accepted + 1` of them, fewer where the generation ends inside the block.
        accepted: n, how many drafted tokens the target agreed with.
    """

    tokens: tuple[int, ...]
    accepted: int


class Decoder:
    """Extends a line token by token or block by block.

    Args:
        pair: Target and, for cycles, drafter.
        line: Prefilled up to its last token.
        sampling: How tokens are chosen.
    """

    def __init__(self, pair: Pair, line: Line, sampling: SamplingParams) -> None:
        self._target, self._maybe_drafter, self._line = pair.target, pair.drafter, line
        self._taps = pair.drafter.config.target_layer_ids if pair.drafter else ()
        self._sampler = Sampler(sampling, pair.target.vocab_size)
        self._keys = Keys(sampling.seed)
        self._features: list[mx.array] = []  # of plain steps, not yet in the drafter's context

    def cycle(self, width: int, keep: Callable[[list[int]], int]) -> Cycle:
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
        return Cycle(tuple(tokens[:rows]), accepted)

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
