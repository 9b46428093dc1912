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
    target, drafter, context = pair.target, pair.drafter, line.context
    end = len(prompt) - 1
    for start in range(line.state.length, end, step):
        if cancelled():
            return False
        rows = min(step, end - start)
        # Sliding drafters see only the last rows of a prompt: the others need no features.
        unseen = drafter is None or (drafter.window is not None and end - start - rows >= drafter.window)
        taps = () if unseen else drafter.config.target_layer_ids
        verified = target.forward(mx.array([prompt[start : start + rows]], mx.int32), line.state, taps)
        if drafter is not None:
            if unseen:
                context.skip(rows)
            else:
                drafter.extend(verified.features, context)
        del verified
        line.tokens = list(prompt[: start + rows])
        mx.eval(line.state.arrays(), context.arrays() if context else [])
        mx.clear_cache()
    line.tokens = list(prompt)
    return True
