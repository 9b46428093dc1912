"""Measured peaks of memory against the estimate: toy models whose attention has the sizes of real ones."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Any

import fakes
import mlx.core as mx
import tiny
from mlx_lm.models.cache import KVCache, RotatingKVCache

from dflash_mlx.chunks import Chunks
from dflash_mlx.load import estimate_of
from dflash_mlx.memory import Need
from dflash_mlx.pair import Pair
from dflash_mlx.scores import chunk_rows
from dflash_mlx.session import Session

# The attention of real models; everything else is small.
QWEN38 = {"num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256}
QWEN3 = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3.8": ("qwen3_5", QWEN38),
    "d256": ("qwen3", QWEN38),
    "d128": ("qwen3", QWEN3),
    "sliding": ("gpt_oss", {**QWEN3, "sliding_window": 512}),
}


@dataclass(frozen=True)
class Peak:
    """Bytes, by the estimate and by mlx."""

    need: Need
    measured: int

    @property
    def kept(self) -> int:
        """What stays between two chunks."""
        return self.need.peak - self.need.scores - self.need.work

    def __str__(self) -> str:
        estimate, measured = self.need.peak / 1e6, self.measured / 1e6
        return f"estimate {estimate:8.1f} MB  measured {measured:8.1f} MB  {estimate / measured:.2f}"


def build(shape: str, layers: int = 4, **overrides: Any) -> tuple[Pair, dict[str, Any]]:
    """A pair of random models, and the target's config, its language part."""
    model_type, sizes = SHAPES[shape]
    text = {"num_hidden_layers": layers, "max_position_embeddings": 1 << 18, **sizes, **overrides}
    if "sliding_window" in sizes:
        text["layer_types"] = (["sliding_attention", "full_attention"] * layers)[:layers]
    config = tiny.config_of(model_type)
    nested = "text_config" in config
    overrides = {"text_config": {**config["text_config"], **text}} if nested else text
    target = tiny.build(model_type, **overrides)
    drafter = tiny.build_drafter(2, num_target_layers=layers, target_layer_ids=[0, layers - 1])
    pair = fakes.pair_of(target, drafter, context_length=None)
    config = tiny.config_of(model_type, **overrides)
    return pair, config.get("text_config", config)


def peak(
    shape: str, context: int, rows: int, *, whole: bool = False, replies: int = 1, **overrides: Any
) -> Peak:
    """Of a session that reads a prompt and writes a little, up to `context` tokens.

    Args:
        shape: One of `SHAPES`.
        context: Tokens.
        rows: Of a chunk, at most.
        whole: Read all of it; otherwise the caches hold zeros up to the last chunk.
        replies: Tokens to write; more than one by verify passes of the drafter's width.
        overrides: Of the target's config.
    """
    gc.collect()  # what is still to be freed would count against the peak
    mx.clear_cache()
    before = mx.get_active_memory()
    pair, config = build(shape, **overrides)
    estimate = replace(estimate_of(pair.target, pair.drafter, config), most_rows=rows)
    pair = replace(pair, attention_scores=tuple(estimate.scores))
    session = Session(pair, prefill_step=rows)
    session._chunks = Chunks(rows, pair.attention_scores, clock=lambda: 0.0)  # never too slow
    session._chunks._pace.rows = rows
    prompt = [3 + i % 80 for i in range(context - replies)]
    if not whole:
        _fill(session, prompt, len(prompt) - 1 - chunk_rows(pair.attention_scores, len(prompt), rows))
    for _ in session.generate(prompt, max_tokens=replies):
        pass
    need = estimate.need(context)
    kept = len(session._snapshots) / estimate.snapshots  # a conversation would have all of them
    return Peak(replace(need, snapshots=int(need.snapshots * kept)), mx.get_peak_memory() - before)


def _fill(session: Session, prompt: list[int], length: int) -> None:
    """Zeros instead of keys and values: they take as much memory, and no time."""
    line, pair = session._line, session._pair
    features = pair.target.forward(mx.array([prompt[:1]]), line.state, pair.drafter.config.target_layer_ids)
    pair.drafter.extend(features.tapped, line.context)
    for cache in [*line.state.caches, *(layer._cache for layer in line.context.layers)]:
        if isinstance(cache, KVCache):
            cache.state = (*(_zeros(array, length) for array in (cache.keys, cache.values)), length)
        elif isinstance(cache, RotatingKVCache):
            rows = min(length, cache.max_size)
            cache.keys, cache.values = _zeros(cache.keys, rows), _zeros(cache.values, rows)
            cache.offset, cache._idx = length, rows
    line.state.length = line.context.length = length
    line.tokens = prompt[:length]
    mx.eval(line.arrays())


def _zeros(like: mx.array, rows: int) -> mx.array:
    """A full buffer, so that the next chunk makes it grow."""
    *outer, _, size = like.shape
    return mx.zeros((*outer, rows, size), like.dtype)
