"""Attention scores that a chunk of a prompt writes to memory; how many rows keep them small. Pure arithmetic.

A fused kernel never has them whole. Elsewhere one layer's are `[heads, rows, keys]`: 98 kB per token of the
context for 2,048 rows of Qwen3.8-27B, more than its caches take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash_mlx.memory import LayerCache

CHUNK_ROWS = 2048  # of a prompt, at most; mlx-lm's
LEAST_CHUNK_ROWS = 64  # with fewer, reading the weights for each chunk would cost more than the scores
SCORES_LIMIT = 500_000_000  # bytes; 512 rows of Qwen3.8-27B (24 heads, bfloat16) at 20,000 tokens
# Head sizes whose attention of more than 8 rows is fused on Metal: `has_fused_kernel` without what
# `use_fallback` leaves out, in mlx/backend/metal/scaled_dot_product_attention.cpp of mlx 0.32. For 256 an M5
# has a kernel too, from 1,024 rows on.
FUSED_HEAD_DIMS = frozenset({64, 72, 80, 96, 128})
SINKS = frozenset({"gpt_oss"})  # families with attention sinks


@dataclass(frozen=True)
class Scores:
    """The scores of one layer.

    Attributes:
        pair_bytes: Per query row and key: all heads, and the mask.
        window: Most keys before a chunk that its rows can see; None for all.
    """

    pair_bytes: int
    window: int | None = None

    def nbytes(self, rows: int, context: int) -> int:
        """Of the chunk that ends at `context`."""
        return self.pair_bytes * rows * (context if self.window is None else min(context, self.window + rows))


def fused(device: str, head_dim: int) -> bool:
    """True if the attention of a chunk writes no scores to memory.

    Args:
        device: "metal"; on "cpu" it does, on "cuda" it may.
        head_dim: Of queries, keys and values.
    """
    return device == "metal" and head_dim in FUSED_HEAD_DIMS


def attention_scores(
    caches: Iterable[LayerCache], text_config: Mapping[str, Any], item_bytes: int, device: str
) -> tuple[Scores, ...]:
    """What a target's layers write to memory, one of each kind.

    Args:
        caches: Of the target's layers.
        text_config: The target's config.json, its language part.
        item_bytes: Of the activations' dtype.
        device: See `fused`.
    """
    heads = int(text_config.get("num_attention_heads") or 0)
    arrays = 1
    if text_config.get("kv_lora_rank"):  # positions have scores of their own, the mask of the others
        arrays = 2
    if str(text_config.get("model_type")) in SINKS:  # put before the scores, and cut off again
        arrays = 3
    # Gemma 2 caps its scores, in mlx-lm by separate operations.
    always = arrays == 2 or bool(text_config.get("attn_logit_softcapping"))
    kinds = {
        Scores(arrays * heads * item_bytes + 1, cache.window)
        for cache in caches
        if heads and cache.head_dim and (always or not fused(device, cache.head_dim))
    }
    return tuple(sorted(kinds, key=lambda kind: (kind.pair_bytes, kind.window or 0)))


def score_bytes(scores: Iterable[Scores], rows: int, context: int) -> int:
    """Of the chunk of `rows` rows that ends at `context`; layers come one after another."""
    return max((layer.nbytes(rows, context) for layer in scores), default=0)


def chunk_rows(scores: Sequence[Scores], start: int, most: int) -> int:
    """Rows of the chunk after `start` tokens: as many as keep the scores below `SCORES_LIMIT`.

    Returns:
        `most`, or a smaller power of two; not below `LEAST_CHUNK_ROWS` unless `most` is.
    """
    rows = most
    while rows > LEAST_CHUNK_ROWS and score_bytes(scores, rows, start + rows) > SCORES_LIMIT:
        rows = power_of_two(rows - 1)
    return rows


def power_of_two(number: float) -> int:
    """The largest power of two that is not above a number; at least 1."""
    return 1 << (max(1, int(number)).bit_length() - 1)
