"""The prompt pass: chunk by chunk, with memory that does not grow with the prompt beyond the caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from dflash_mlx.decode import Line
    from dflash_mlx.pair import Pair


def prefill(
    pair: Pair,
    line: Line,
    prompt: Sequence[int],
    *,
    step: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> bool:
    """Bring all tokens of `prompt` but the last into the caches of an empty or shorter line.

    Args:
        pair: Target and drafter.
        line: Holds a prefix of the prompt; `line.tokens` becomes the prompt.
        prompt: At least one token.
        step: Rows per chunk. Of a chunk only the caches are evaluated, never its logits; its features go
            to the drafter at once and are dropped.
        cancelled: Asked between chunks.

    Returns:
        False if it was cancelled; the line then holds whole chunks.
    """
    drafter, context = pair.drafter, line.context
    end = len(prompt) - 1
    for start in range(line.state.length, end, step):
        if cancelled():
            return False
        rows = min(step, end - start)
        ids = mx.array([prompt[start : start + rows]], mx.int32)
        if drafter is None or context is None:
            pair.target.forward(ids, line.state)
        elif drafter.window is not None and end - start - rows >= drafter.window:
            # A sliding drafter sees only the last rows of a prompt: these need no features.
            pair.target.forward(ids, line.state)
            context.skip(rows)
        else:
            drafter.extend(
                pair.target.forward(ids, line.state, drafter.config.target_layer_ids).tapped, context
            )
        line.tokens = list(prompt[: start + rows])
        mx.eval(line.state.arrays(), context.arrays() if context else [])
        mx.clear_cache()
    line.tokens = list(prompt)
    return True
