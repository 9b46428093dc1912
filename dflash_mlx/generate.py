"""One generation from prompt to last token, as a stream of events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import mlx.core as mx
from mlx_lm.utils import maybe_set_recommended_wired_limit

from dflash_mlx.decode import Decoder, Line
from dflash_mlx.errors import UserError
from dflash_mlx.metrics import Recorder
from dflash_mlx.prefill import prefill
from dflash_mlx.stream import Ending, TextStream
from dflash_mlx.types import Event, FinishReason, Prefilled, SamplingParams

if TYPE_CHECKING:
    from dflash_mlx.pair import Pair

PREFILL_STEP = 2048  # mlx-lm's
CLEAR_CACHE_TOKENS = 256  # mlx-lm's rhythm: keeps MLX's buffer cache from growing with the reply


def stream_generate(
    pair: Pair,
    prompt: Sequence[int],
    sampling: SamplingParams = SamplingParams(),
    *,
    max_tokens: int = 512,
    width: int | None = None,
    stop: Sequence[str] = (),
    prefill_step: int = PREFILL_STEP,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Generate after `prompt`: `Prefilled`, then a `Block` per cycle or plain step, then `Finished`.

    Args:
        pair: What `load_pair` returned. Without a drafter every step is plain.
        prompt: Token ids, at least one.
        sampling: How tokens are chosen; every option is exact under speculation.
        max_tokens: At least 1; cut to what is left of the model's context, which `Prefilled.note` says.
        width: Rows of a verify pass, 1 (plain) .. the drafter's block size; None: `pair.default_width`.
        stop: Strings that end the text; they are not part of it.
        prefill_step: Rows of the prompt per chunk.
        cancelled: Asked between steps; True ends the stream with reason "interrupted".

    Returns:
        The events. Closing the iterator early is allowed at any time.

    Raises:
        UserError: At once, before anything is computed, if an argument cannot be served.

    Example:
        >>> pair = load_pair("./Qwen3-8B-4bit", "./Qwen3-8B-DFlash")  # doctest: +SKIP
        >>> for event in stream_generate(pair, prompt):  # doctest: +SKIP
        ...     if isinstance(event, Block):
        ...         print(event.text, end="")
    """
    width = pair.check_width(width)
    room = pair.check_prompt(prompt)
    if max_tokens < 1:
        raise UserError(f"`max_tokens` is {max_tokens}; at least 1 token must be asked for")
    if any(not string for string in stop):
        raise UserError("a stop string is empty", "leave it out to stop at the model's own end only")
    if prefill_step < 1:
        raise UserError(f"`prefill_step` is {prefill_step}; at least 1 row is needed")
    line = Line(pair)
    decoder = Decoder(pair, line, sampling)
    note = None
    if room is not None and max_tokens > room:
        note = f"only {room} more tokens fit into the model's context of {pair.context_length}"
        max_tokens = room
    text = TextStream(pair.tokenizer.detokenizer, stop)
    ending = Ending(pair.stop_ids, text, max_tokens)

    def events() -> Iterator[Event]:
        recorder = Recorder(time.perf_counter, width, len(prompt))
        mx.reset_peak_memory()
        with wired():
            whole = prefill(pair, line, prompt, step=prefill_step, cancelled=cancelled)
            yield Prefilled(len(prompt), 0, recorder.prefilled(), note)
            if whole:
                yield from _blocks(decoder, ending, text, recorder, cancelled)
            reason: FinishReason = ending.reason or "interrupted"
            yield recorder.finish(reason, pair, mx.get_peak_memory())

    return events()


def _blocks(
    decoder: Decoder, ending: Ending, text: TextStream, recorder: Recorder, cancelled: Callable[[], bool]
) -> Iterator[Event]:
    """One event per step until the end: the first token, then cycles, or plain steps throughout."""
    cleared = 0
    for tokens, width, accepted in _steps(decoder, ending, recorder.width):
        readable = text.finish() if ending.ended() else text.take()
        yield recorder.block(tokens, readable, width, accepted)
        if recorder.generated - cleared >= CLEAR_CACHE_TOKENS:
            cleared = recorder.generated
            mx.clear_cache()
        if not ending.ended() and cancelled():
            return


def _steps(decoder: Decoder, ending: Ending, width: int) -> Iterator[tuple[Sequence[int], int, int]]:
    """(tokens, width, accepted) per step; the first token and a last single one are plain steps."""
    rows = 1
    while not ending.ended():
        if rows > 1:
            cycle = decoder.cycle(rows, ending.keep)
            yield cycle.tokens, rows, cycle.accepted
        else:
            with closing(decoder.plain(ending.left if width == 1 else 1)) as steps:
                for token in steps:
                    ending.keep([token])
                    yield [token], 1, 0
                    if ending.ended():
                        break
        rows = min(width, ending.left)


@contextmanager
def wired() -> Iterator[None]:
    """Wire as much memory as the device recommends, as mlx-lm does; nothing where there is no Metal.

    mlx-lm's own context manager prints to stdout, which belongs to the caller.
    """
    before = maybe_set_recommended_wired_limit()
    try:
        yield
    finally:
        if before is not None:
            mx.synchronize()
            mx.set_wired_limit(before)
