"""What mlx-lm alone writes, with the margin that token equality needs."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generate_step

# Two ways to compute float32 logits differ by about 1e-5 here; DESIGN asks for 1e-3.
LEAST_MARGIN = 1e-3


def greedy(model: nn.Module, prompt: Sequence[int], count: int) -> list[int]:
    """mlx-lm's own greedy tokens; no two candidates of any step are closer than `LEAST_MARGIN`."""
    tokens = [token for token, _ in generate_step(mx.array(prompt), model, max_tokens=count)]
    logits = model(mx.array([[*prompt, *tokens[:-1]]]))[0, len(prompt) - 1 :]
    top = mx.sort(logits, axis=-1)[:, -2:]
    margin = (top[:, 1] - top[:, 0]).min().item()
    assert margin > LEAST_MARGIN, f"choose another seed: the closest choice is a matter of {margin:.1e}"
    return tokens
