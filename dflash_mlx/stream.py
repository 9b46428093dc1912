"""Tokens to text that never has to be taken back, and where a generation ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from dflash_mlx.types import FinishReason

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import StreamingDetokenizer


class TextStream:
    """Readable text of a growing token sequence.

    Text is held back while it may still change: bytes of an unfinished character, and the beginning of a
    stop string. A stop string and what follows it are never shown.

    Args:
        detokenizer: A fresh one of mlx-lm.
        stop: Strings that end the text.
    """

    def __init__(self, detokenizer: StreamingDetokenizer, stop: Sequence[str] = ()) -> None:
        from mlx_lm.generate import TextStateMachine

        self._detokenizer = detokenizer
        self._machine = TextStateMachine
        transitions = {"text": [(string, None) for string in stop]}
        self._state = TextStateMachine(transitions).make_state("text")
        self._ready = ""

    def push(self, token: int) -> bool:
        """Add a token; True if a stop string is now complete."""
        self._detokenizer.add_token(token)
        return self._match(self._detokenizer.last_segment)

    def take(self) -> str:
        """The text that became readable since the last call."""
        ready, self._ready = self._ready, ""
        return ready

    def finish(self) -> str:
        """The rest, when no more tokens come: what was held back, except an unfinished character."""
        if self._state[0] is not None:
            self._detokenizer.finalize()
            if not self._match(self._detokenizer.last_segment.rstrip("\ufffd")):
                self._state, rest, _ = self._machine.flush(self._state)
                self._ready += rest
        return self.take()

    def _match(self, segment: str) -> bool:
        self._state, text, state = self._machine.step(self._state, segment)
        self._ready += text
        return state is None


class Ending:
    """Decides how many tokens of a block are kept, and feeds these to the text.

    Args:
        stop_ids: Tokens that end a generation; kept as its last token, without text.
        text: Gets every kept token but a stop token.
        max_tokens: At least 1.

    `reason` is None until the generation has ended.
    """

    def __init__(self, stop_ids: Collection[int], text: TextStream, max_tokens: int) -> None:
        self._stop_ids = stop_ids
        self._text = text
        self.left = max_tokens
        self.reason: FinishReason | None = None

    def ended(self) -> bool:
        """True if no more tokens are wanted."""
        return self.reason is not None

    def keep(self, tokens: Sequence[int]) -> int:
        """How many of the `tokens` (at least one) belong to the generation."""
        for kept, token in enumerate(tokens, start=1):
            self.left -= 1
            if token in self._stop_ids or self._text.push(token):
                self.reason = "stop"
            elif self.left == 0:
                self.reason = "length"
            if self.reason:
                return kept
        return len(tokens)
