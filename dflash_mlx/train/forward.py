"""All blocks of a batch in one pass, through the drafter's own layers.

Letters: `B` sequences of `S` tokens (padded at the end), `A` anchors in each, blocks of `W` rows. A block at
anchor position a stands at positions a .. a + W - 1; it sees the context strictly before a and itself,
within the window of a sliding layer, and no other block.

A sequence's context keys and values are computed once and shared by its blocks. The blocks of a group are
laid side by side, `[B * groups, H, g*W, head_dim]`, over `S + g*W` keys with one mask: small groups repeat
the context in memory, large ones spend time on the keys of other blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from dflash_mlx.config import DrafterConfig
from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.drafters.layers import Mask
from dflash_mlx.targets.base import Target

# The keys of a group's blocks are at most a quarter of the context's. Forward and backward on two CPU cores,
# 64 blocks of 8 per sequence, against one group: 68 instead of 267 ms at S = 128, 493 instead of 634 ms at
# S = 512; from S = 2048 on it is one group.
OWN_SHARE = 4


@dataclass(frozen=True)
class SharedContext:
    """One layer's context of a batch of sequences; see `layers.Surroundings`.

    Attributes:
        keys: `[B, kv heads, S, head_dim]`; `values` likewise.
        groups: Into which the blocks of a sequence are put, in order.
    """

    keys: mx.array
    values: mx.array
    groups: int

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Mask
    ) -> mx.array:
        """Blocks `[B*A, heads, W, head_dim]` over their sequence and themselves."""
        rows, blocks, width = self.keys.shape[0] * self.groups, queries.shape[0], queries.shape[2]

        def side_by_side(x: mx.array) -> mx.array:
            _, heads, _, dim = x.shape
            return x.reshape(rows, -1, heads, width, dim).swapaxes(1, 2).reshape(rows, heads, -1, dim)

        def for_groups(x: mx.array) -> mx.array:
            return x if self.groups == 1 else mx.repeat(x, self.groups, axis=0)

        out = mx.fast.scaled_dot_product_attention(
            side_by_side(queries),
            mx.concatenate([for_groups(self.keys), side_by_side(keys)], axis=2),
            mx.concatenate([for_groups(self.values), side_by_side(values)], axis=2),
            scale=scale,
            mask=mask,
        )  # [B * groups, H, g*W, head_dim]
        heads, dim = out.shape[1], out.shape[3]
        return out.reshape(rows, heads, -1, width, dim).swapaxes(1, 2).reshape(blocks, heads, width, dim)


def group_size(blocks: int, length: int, width: int) -> int:
    """How many of a sequence's blocks share one copy of its context: a divisor of their number.

    Args:
        blocks: Of a sequence, A.
        length: Context rows, S.
        width: Rows of a block.
    """
    most = max(1, length // (OWN_SHARE * width))
    return max(size for size in range(1, min(blocks, most) + 1) if blocks % size == 0)


def blocks_mask(
    anchors: mx.array, length: int, width: int, causal: bool, sliding_window: int | None
) -> mx.array:
    """Which keys each row of each block sees.

    Args:
        anchors: `[B, A]` positions.
        length: Context rows S among the keys.
        width: Rows of a block.
        causal: Rows see their block up to themselves only.
        sliding_window: Only keys with `|query_pos - key_pos| < sliding_window`; None for all.

    Returns:
        `[B, 1, A*W, S + A*W]` bool.
    """
    B, A = anchors.shape
    rows = mx.arange(width)
    positions = (anchors[:, :, None] + rows).reshape(B, A * width, 1)
    start = mx.repeat(anchors, width, axis=1)[:, :, None]
    context = mx.arange(length)
    sees_context = context < start  # [B, A*W, S]
    own = mx.repeat(mx.arange(A), width)
    row = mx.tile(rows, A)
    sees_block = own[:, None] == own[None]  # [A*W, A*W]
    distance = row[:, None] - row[None]  # query - key
    if causal:
        sees_block = sees_block & (distance >= 0)
    if sliding_window is not None:
        sees_context = sees_context & (positions - context < sliding_window)
        sees_block = sees_block & (mx.abs(distance) < sliding_window)
    sees_block = mx.broadcast_to(sees_block, (B, A * width, A * width))
    return mx.concatenate([sees_context, sees_block], axis=2)[:, None]


def blocks_hidden(
    drafter: DFlashDrafter,
    features: mx.array,
    anchors: mx.array,
    block: mx.array,
) -> mx.array:
    """Run every block of a batch.

    Args:
        drafter: Whose weights are trained.
        features: `[B, S, N*D]`, of the whole sequences.
        anchors: `[B, A]` positions.
        block: `[B*A, W, D]`, from `DFlashDrafter.embed_block`.

    Returns:
        After the final norm, without the anchors' rows, `[B*A, W-1, D]`.
    """
    encoded = drafter.encode(features)
    length, width = features.shape[1], block.shape[1]
    positions = anchors.reshape(-1)
    size = group_size(anchors.shape[1], length, width)
    grouped = anchors.reshape(-1, size)
    masks: dict[tuple[bool, int | None], mx.array] = {}
    for index, layer in enumerate(drafter.layers):
        kind = _kind(drafter.config, index)
        if kind not in masks:
            masks[kind] = blocks_mask(grouped, length, width, *kind)
        context = SharedContext(*layer.self_attn.keys_values(encoded, 0), anchors.shape[1] // size)
        block = layer(block, context, positions, masks[kind])
    return drafter.norm(block[:, 1:])


def blocks_logits(
    drafter: DFlashDrafter, target: Target, features: mx.array, tokens: mx.array, anchors: mx.array
) -> tuple[mx.array, mx.array]:
    """Hidden states `[B*A, W-1, D]` and float32 logits `[B*A, W-1, V]` of every block, at full width.

    Args:
        drafter: Whose blocks.
        target: Lends its embedding table and head.
        features: `[B, S, N*D]`.
        tokens: `[B, S]`.
        anchors: `[B, A]` positions.
    """
    anchor_tokens = mx.take_along_axis(tokens, anchors, axis=1)
    block, head_dtype = drafter.embed_block(anchor_tokens, drafter.config.block_size, target)
    hidden = blocks_hidden(drafter, features, anchors, block)
    return hidden, drafter.logits(hidden, head_dtype, target)


def _kind(config: DrafterConfig, layer: int) -> tuple[bool, int | None]:
    return config.causal[layer], config.layer_window(layer)
