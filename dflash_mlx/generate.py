"""One reply without a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from dflash_mlx.scores import CHUNK_ROWS
from dflash_mlx.session import Session
from dflash_mlx.types import Event, SamplingParams

if TYPE_CHECKING:
    import mlx.core as mx

    from dflash_mlx.pair import Pair


def stream_generate(
    pair: Pair,
    prompt: Sequence[int] | mx.array,
    sampling: SamplingParams = SamplingParams(),
    *,
    max_tokens: int = 512,
    width: int | None = None,
    stop: Sequence[str] = (),
    prefill_step: int = CHUNK_ROWS,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Generate after `prompt` in a session of its own; see `Session.generate` for arguments and errors.

    Example:
        >>> pair = load_pair("./Qwen3-8B-4bit", "./Qwen3-8B-DFlash")  # doctest: +SKIP
        >>> for event in stream_generate(pair, prompt):  # doctest: +SKIP
        ...     if isinstance(event, Block):
        ...         print(event.text, end="")
    """
    session = Session(pair, prefill_step=prefill_step, snapshots=0)  # nobody comes back to it
    return session.generate(
        prompt, sampling, max_tokens=max_tokens, width=width, stop=stop, cancelled=cancelled
    )
