"""Events to measured statistics, and the line that programs read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dflash_mlx.types import Finished, FinishReason, Stats

if TYPE_CHECKING:
    from dflash_mlx.pair import Pair

JSON_VERSION = 1


@dataclass
class Overlap:
    """What the device does while a reader has a block: work that was handed over before is not free.

    How long it takes is seen by waiting for it, before the first blocks and then now and then; a wait costs
    what could have been built meanwhile.

    Attributes:
        every: Blocks from one wait to the next.
        busy: Seconds that the device worked on after the last block that was waited for.
    """

    every: int = 32
    busy: float = 0.0
    _blocks: int = 0
    _idle: bool = False

    def due(self) -> bool:
        """True if the device is to be waited for before this block is handed out."""
        # The first block is a plain step's, the second the first cycle's.
        self._idle = self._blocks == 0 or self._blocks % self.every == 1
        self._blocks += 1
        return self._idle

    def counted(self, away: float) -> float:
        """How much of a reader's `away` seconds the device was at work, at most."""
        return 0.0 if self._idle else min(away, self.busy)


@dataclass
class Recorder:
    """Counts and times one generation.

    Args:
        clock: Seconds, monotonic.
        width: The width asked for.
        prompt_tokens: Length of the prompt.
        reused_tokens: Of which these were in the caches already.
    """

    clock: Callable[[], float]
    width: int
    prompt_tokens: int
    reused_tokens: int = 0
    prefill_seconds: float = 0.0
    first_token_seconds: float = 0.0
    generated: int = 0
    plain_steps: int = 0
    histogram: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._last = self.clock()
        self._spent = 0.0  # seconds up to the last lap, the consumer's left out
        self._left = self._last
        self._overlap = Overlap()
        self.histogram = [0] * self.width

    def leave(self, wait: Callable[[], None] | None = None) -> None:
        """An event goes to its consumer now.

        Args:
            wait: Waits for the device; None where nothing can have been handed over to it.
        """
        self._left = self.clock()
        if wait is not None and self._overlap.due():
            wait()
            before, self._left = self._left, self.clock()
            self._overlap.busy = self._left - before

    def resume(self) -> None:
        """The consumer is done: of its time, only what the device needed meanwhile counts."""
        away = self.clock() - self._left
        self._last += away - self._overlap.counted(away)

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last lap, readers left out."""
        return self._spent - self.first_token_seconds

    def prefilled(self) -> float:
        """Seconds of the prompt pass."""
        self.prefill_seconds = self._lap()
        return self.prefill_seconds

    def count(self, tokens: int, width: int, accepted: int) -> float:
        """The tokens of one cycle, or of plain steps, are on the host now; seconds since the last ones."""
        seconds = self._lap()
        if not self.generated:
            self.first_token_seconds = self._spent
        elif width == 1:
            self.plain_steps += tokens
        if width > 1:
            self.histogram[accepted] += 1
        self.generated += tokens
        return seconds

    def finish(
        self, reason: FinishReason, pair: Pair, peak_memory_bytes: int, plain_rate: float | None
    ) -> Finished:
        """The last event.

        Args:
            reason: Why it is the last one.
            pair: Names and device.
            peak_memory_bytes: MLX's.
            plain_rate: Tokens per second that plain steps in between have shown; a plain run has its own.
        """
        self._lap()  # what a step leaves to be done
        cycles = sum(self.histogram)
        committed = sum(count * (n + 1) for n, count in enumerate(self.histogram))
        seconds = self.decode_seconds
        rate = (self.generated - 1) / seconds if self.generated > 1 and seconds > 0 else 0.0
        stats = Stats(
            method=pair.method if cycles else "plain",
            target=pair.target_name,
            drafter=pair.drafter_name,
            width=self.width,
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            generated_tokens=self.generated,
            cycles=cycles,
            plain_steps=self.plain_steps,
            acceptance_length=committed / cycles if cycles else None,
            accepted_histogram=tuple(self.histogram),
            prefill_seconds=self.prefill_seconds,
            first_token_seconds=self.first_token_seconds,
            decode_seconds=seconds,
            tokens_per_second=rate,
            plain_tokens_per_second=rate if self.width == 1 and rate else plain_rate,
            peak_memory_bytes=peak_memory_bytes,
            device=pair.device,
            dtype=pair.dtype,
            blas=pair.blas,
        )
        return Finished(reason, stats)

    def _lap(self) -> float:
        now = self.clock()
        seconds, self._last = now - self._last, now
        self._spent += seconds
        return seconds


def json_line(text: str, tokens: Sequence[int], finished: Finished) -> dict[str, Any]:
    """What `generate --json` prints: one object. The fields of `stats` are those of `types.Stats`.

    Args:
        text: All text, joined.
        tokens: All generated ids, a stop token included.
        finished: The last event.
    """
    return {
        "version": JSON_VERSION,
        "text": text,
        "tokens": list(tokens),
        "finish_reason": finished.reason,
        "stats": asdict(finished.stats),
    }
