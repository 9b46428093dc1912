"""The numbers of a reply while it is written, from the engine's events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_mlx.types import Block, Method, Stats

if TYPE_CHECKING:
    from .readout import Readout


@dataclass
class Pace:
    """The numbers of a reply so far. Seconds are the engine's own; reading and showing text is not in them.

    Attributes:
        method: What was asked for.
        width: Of the newest verify pass; of the plain steps where there was none.
        seconds: From the first token on.
        committed: Tokens of `cycles`.
        plain_tokens_per_second: None until it was measured.
        thought_tokens: Of the thinking, `thought_seconds` its time.
    """

    method: Method
    width: int = 1
    first_token_seconds: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    cycles: int = 0
    committed: int = 0
    plain_tokens_per_second: float | None = None
    thought_tokens: int = 0
    thought_seconds: float = 0.0

    def observe(self, block: Block, *, thinking: bool) -> None:
        """Count one block."""
        if self.tokens:
            self.seconds += block.seconds
        else:
            self.first_token_seconds += block.seconds
        self.tokens += len(block.tokens)
        if block.width > 1:
            self.width = block.width
            self.cycles += 1
            self.committed += block.accepted + 1
        if thinking:
            self.thought_tokens += len(block.tokens)
            self.thought_seconds += block.seconds

    def readout(self, stats: Stats | None) -> Readout:
        """For the line under the reply; `stats` once it is whole."""
        from .readout import Readout

        if stats is not None:
            return Readout.of(stats)
        return Readout(
            method=self.method,
            tokens_per_second=(self.tokens - 1) / self.seconds if self.seconds > 0 else None,
            plain_tokens_per_second=self.plain_tokens_per_second,
            acceptance_length=self.committed / self.cycles if self.cycles else None,
            width=self.width,
            first_token_seconds=self.first_token_seconds if self.tokens else None,
        )
