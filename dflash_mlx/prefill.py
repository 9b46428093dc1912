"""The prompt pass: chunk by chunk, with memory that does not grow with the prompt beyond the caches."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from dflash_mlx.chunks import Chunks
    from dflash_mlx.decode import Line
    from dflash_mlx.pair import Pair


def prefill(
    pair: Pair, line: Line, prompt: Sequence[int], chunks: Chunks, *, borders: Collection[int] = ()
) -> Generator[int]:
    """Bring all tokens of `prompt` but the last into the caches of a line that holds a prefix of it.

    Args:
        pair: Target and drafter.
        line: Its tokens grow with its caches; at the end they are the whole prompt.
        prompt: At least one token.
        chunks: How many rows each has. Of a chunk only the caches are evaluated, never its logits; its
            features go to the drafter at once and are dropped.
        borders: Lengths at which a chunk has to end, and a draft must be possible.

    Yields:
        The length of the line after each chunk. It may be left for good at any of them.
    """
    drafter, context = pair.drafter, line.context
    start, end = line.state.length, len(prompt) - 1
    while start < end:
        next_border = min([end, *(border for border in borders if border > start)])
        stop = min(start + chunks.rows(start), next_border)
        ids = mx.array([prompt[start:stop]], mx.int32)
        with chunks.reading(stop - start):
            if drafter is None or context is None:
                pair.target.forward(ids, line.state)
            elif drafter.window is not None and next_border - stop >= drafter.window:
                # A sliding drafter sees only the last rows before a draft: these need no features.
                pair.target.forward(ids, line.state)
                context.skip(stop - start)
            else:
                taps = drafter.config.target_layer_ids
                drafter.extend(pair.target.forward(ids, line.state, taps).tapped, context)
            mx.eval(line.arrays())
        mx.clear_cache()
        line.tokens = list(prompt[:stop])
        yield stop
        start = stop
    line.tokens = list(prompt)
