"""What mlx-lm alone writes, with the margin that token equality needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from dflash_mlx.noise import Noise
from dflash_mlx.types import SamplingParams

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


def mlx_lm_sampler(params: SamplingParams) -> Callable[[mx.array], mx.array]:
    """A sampler for mlx-lm's loop: its filters in its order, the draw from the noise of `params.seed`."""
    noise, positions = Noise(params.seed), itertools.count()

    def draw(logprobs: mx.array) -> mx.array:
        if params.greedy:
            return mx.argmax(logprobs, axis=-1)
        vocab = logprobs.shape[-1]
        if 0 < params.top_p < 1:
            logprobs = apply_top_p(logprobs, params.top_p)
        if params.min_p > 0:
            logprobs = apply_min_p(logprobs, params.min_p)
        if 0 < params.top_k < vocab:
            logprobs = apply_top_k(logprobs, params.top_k)
        scaled = logprobs * (1 / params.temperature)
        return mx.argmax(scaled + noise.gumbel(next(positions), 1, vocab), axis=-1)

    return draw
