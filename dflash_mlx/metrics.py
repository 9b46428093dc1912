"""Events to measured statistics, and the line that programs read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dflash_mlx.types import Block, Finished, FinishReason, Stats

if TYPE_CHECKING:
    from dflash_mlx.pair import Pair

JSON_VERSION = 1


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
        self.histogram = [0] * self.width

    def resume(self) -> None:
        """The consumer of the events is done with the last one: its time does not count."""
        self._last = self.clock()

    def prefilled(self) -> float:
        """Seconds of the prompt pass."""
        self.prefill_seconds = self._lap()
        return self.prefill_seconds

    def block(self, tokens: Sequence[int], text: str, width: int, accepted: int) -> Block:
        """The event of one cycle, or of plain steps, whose tokens are on the host now."""
        seconds = self._lap()
        if not self.generated:
            self.first_token_seconds = self._spent
        elif width == 1:
            self.plain_steps += len(tokens)
        if width > 1:
            self.histogram[accepted] += 1
        self.generated += len(tokens)
        return Block(tuple(tokens), text, width, accepted, seconds)

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
        cycles = sum(self.histogram)
        committed = sum(count * (n + 1) for n, count in enumerate(self.histogram))
        seconds = self._spent - self.first_token_seconds
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
