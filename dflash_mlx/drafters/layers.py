"""What both generations are built from: block attention, MLP, and DFlash 2's convolution.

Attribute names are the checkpoints' tensor names. Shapes: `W` block width, `S` context rows,
`D` hidden size, `H` heads, `G` convolution groups.
"""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.rope_utils import initialize_rope

from dflash_mlx.config import DrafterConfig
from dflash_mlx.config_rope import RopeConfig

Mask = mx.array | str | None  # as mx.fast.scaled_dot_product_attention takes it
Position = int | mx.array  # of a block's first row; `[B]` int32, one for each block


class Surroundings(Protocol):
    """What a layer's blocks see besides themselves: `context.LayerContext`; whole sequences in training."""

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Mask
    ) -> mx.array:
        """Attention of blocks over the context and themselves.

        Args:
            queries: `[B, H, W, head_dim]`, rotated.
            keys: The blocks' own, `[B, kv heads, W, head_dim]`, rotated; `values` likewise.
            scale: Of the scores.
            mask: Over context and block, context first.

        Returns:
            `[B, H, W, head_dim]`.
        """


def block_mask(rows: int, width: int, causal: bool, sliding_window: int | None) -> Mask:
    """Which keys each row of a block sees.

    Args:
        rows: Context rows that precede the block among the keys.
        width: Rows of the block.
        causal: Rows of the block see the block up to themselves only.
        sliding_window: Only keys with `|query_pos - key_pos| < sliding_window`; None for all.

    Returns:
        `[W, rows + W]` bool, "causal", or None for everything.
    """
    if sliding_window is None or rows + width <= sliding_window:
        return "causal" if causal else None
    distance = mx.arange(rows, rows + width)[:, None] - mx.arange(rows + width)[None]  # query - key
    return (distance < sliding_window) & (distance > (-1 if causal else -sliding_window))


def make_rope(head_dim: int, config: RopeConfig) -> nn.Module:
    """mlx-lm's rotary embedding for this config, over the whole head."""
    scaling = None if config.scaling is None else dict(config.scaling)
    rope: nn.Module = initialize_rope(head_dim, config.theta, False, scaling)
    if not config.truncate and scaling is not None:
        rope._freqs = yarn_frequencies(head_dim, config)  # mlx-lm's class knows rounded borders only
    return rope


def yarn_frequencies(head_dim: int, config: RopeConfig) -> mx.array:
    """Wavelengths `[head_dim / 2]` of yarn (arXiv 2309.00071), borders of its ramp not rounded."""
    scaling = config.scaling or {}
    dims = mx.arange(0, head_dim, 2, dtype=mx.float32)
    plain = config.theta ** (dims / head_dim)
    turns = scaling["original_max_position_embeddings"] / (2 * mx.pi)

    def border(rotations: float) -> mx.array:
        return head_dim * mx.log(mx.array(turns / rotations)) / (2 * mx.log(mx.array(config.theta)))

    low, high = (
        mx.maximum(border(scaling["beta_fast"]), 0),
        mx.minimum(border(scaling["beta_slow"]), head_dim - 1),
    )
    ramp = mx.clip((dims / 2 - low) / (high - low), 0, 1)  # 0: turn as trained, 1: interpolate
    return 1 / ((1 - ramp) / plain + ramp / (scaling["factor"] * plain))


class BlockAttention(nn.Module):
    """A block's queries over the cached context and the block itself."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        dim, bias = config.hidden_size, config.attention_bias
        self.head_dim, self.heads, self.kv_heads = config.head_dim, config.num_heads, config.num_kv_heads
        # Queries and keys both carry yarn's factor.
        self.scale = config.head_dim**-0.5 * config.rope.attention_factor**2
        self.q_proj = nn.Linear(dim, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, dim, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.rope = make_rope(self.head_dim, config.rope)

    def keys_values(self, x: mx.array, position: Position) -> tuple[mx.array, mx.array]:
        """`[B, L, D]` whose first row is at `position` -> keys and values `[B, H, L, head_dim]`."""
        B, L, _ = x.shape
        keys = self.k_norm(self.k_proj(x).reshape(B, L, self.kv_heads, self.head_dim)).transpose(0, 2, 1, 3)
        values = self.v_proj(x).reshape(B, L, self.kv_heads, self.head_dim).transpose(0, 2, 1, 3)
        return self.rope(keys, offset=position), values

    def __call__(self, x: mx.array, context: Surroundings, position: Position, mask: Mask) -> mx.array:
        B, W, _ = x.shape
        queries = self.q_norm(self.q_proj(x).reshape(B, W, self.heads, self.head_dim)).transpose(0, 2, 1, 3)
        queries = self.rope(queries, offset=position)
        out = context.attend(queries, *self.keys_values(x, position), self.scale, mask)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(B, W, -1))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


@mx.compile
def _mix(x: mx.array, base: mx.array, dynamic: mx.array) -> mx.array:
    """`out[i, c] = sum over t of (base[t, c] + dynamic[i, t, group(c)]) * x[i - t, c]`."""
    B, L, D = x.shape
    kernel, groups = dynamic.shape[-2:]
    x = x.reshape(B, L, groups, -1)
    # Slices: an integer index on a whole array is a Gather, which is computed by itself.
    base = base.reshape(kernel, groups, -1)
    out = (base[:1] + dynamic[:, :, 0, :, None]) * x
    for tap in range(1, min(kernel, L)):
        earlier = mx.pad(x[:, : L - tap], [(0, 0), (tap, 0), (0, 0), (0, 0)])  # zero before the block
        out = out + (base[tap : tap + 1] + dynamic[:, :, tap, :, None]) * earlier
    return out.reshape(B, L, D)


class GroupedDynamicConv(nn.Module):
    """Causal convolution before and after a sublayer, with taps that depend on the sublayer's input."""

    def __init__(self, hidden_size: int, kernel: int, group: int) -> None:
        super().__init__()
        self.kernel = kernel
        # [2, kernel, D]: before, after. A new one starts as the identity.
        self.base_kernel = mx.pad(mx.ones((2, 1, hidden_size)), [(0, 0), (0, kernel - 1), (0, 0)])
        self.kernel_projection = nn.Linear(hidden_size, 2 * kernel * (hidden_size // group), bias=False)

    def prepare(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Convolve the normalised input `[B, L, D]` of a sublayer.

        Returns:
            The sublayer's input `[B, L, D]`, and the taps for `finish` `[B, L, kernel, G]`.
        """
        B, L, _ = x.shape
        taps = self.kernel_projection(x).reshape(B, L, 2, self.kernel, -1)
        return _mix(x, self.base_kernel[:1], taps[:, :, 0]), taps[:, :, 1]

    def finish(self, x: mx.array, taps: mx.array) -> mx.array:
        """Convolve the output `[B, L, D]` of the sublayer."""
        return _mix(x, self.base_kernel[1:], taps)


class DraftLayer(nn.Module):
    """A pre-norm layer of the first generation."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = BlockAttention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, x: mx.array, context: Surroundings, position: Position, mask: Mask) -> mx.array:
        x = x + self.self_attn(self.input_layernorm(x), context, position, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class ConvDraftLayer(DraftLayer):
    """A pre-norm layer of the second generation: each sublayer between two convolutions."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        sizes = config.hidden_size, config.conv_kernel_size, config.conv_group_size
        self.attention_conv = GroupedDynamicConv(*sizes)
        self.mlp_conv = GroupedDynamicConv(*sizes)

    def __call__(self, x: mx.array, context: Surroundings, position: Position, mask: Mask) -> mx.array:
        inner, taps = self.attention_conv.prepare(self.input_layernorm(x))
        x = x + self.attention_conv.finish(self.self_attn(inner, context, position, mask), taps)
        inner, taps = self.mlp_conv.prepare(self.post_attention_layernorm(x))
        return x + self.mlp_conv.finish(self.mlp(inner), taps)
