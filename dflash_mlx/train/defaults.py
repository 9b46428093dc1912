"""The `config.json` of a new drafter, from its target's alone.

What is not chosen follows the published drafters: five layers, all sliding and seeing the whole block, taps
spread evenly, and their proportions of heads, MLP and selector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from dflash_mlx.config import FULL, SLIDING, default_layer_ids
from dflash_mlx.errors import UserError
from dflash_mlx.sources import text_config
from dflash_mlx.train.settings import Shape

MOST_LAYERS = 5  # of all published second-generation drafters
TARGET_LAYERS_PER_LAYER = 4  # small targets get fewer, but two
HEAD_DIMS = ((2048, 128), (512, 64), (0, 32))  # from this hidden size on; published: 128 at 5120 and 6656
# At least so many query heads share a key-value head, from a hidden size on; published: 4. Small drafters
# have no keys to save, and few dimensions to tell tokens apart by.
QUERIES_PER_KEY = ((512, 3), (0, 1))
MLP_RATIO, MLP_STEP = 3, 32  # published: 3.0 and 3.4 times the hidden size
CONV_KERNEL, CONV_GROUP = 2, 16  # published
SELECTOR_TOP_K = 16  # published
SELECTOR_RANKS, HIDDEN_PER_RANK = (32, 256), 8  # published: 256 at 5120; 32 works at hidden 224
NORM_EPS = 1e-6
ROPE_THETA = 10000.0  # where the target's config has none


@dataclass(frozen=True)
class TargetFacts:
    """What a drafter has to fit.

    Attributes:
        config: The target's config.json.
        vocab_size: Rows of its embedding table.
    """

    config: Mapping[str, Any]
    num_layers: int
    hidden_size: int
    vocab_size: int


def new_config(target: TargetFacts, shape: Shape, mask_token: int, dtype: str) -> dict[str, Any]:
    """A drafter's config.json in the published layout.

    Args:
        target: What it has to fit.
        shape: What was chosen.
        mask_token: Its id.
        dtype: Of its weights.

    Raises:
        UserError: What was chosen is not possible.
    """
    layers = shape.layers or min(MOST_LAYERS, max(2, target.num_layers // TARGET_LAYERS_PER_LAYER))
    hidden = target.hidden_size
    head_dim, heads, kv_heads = attention_sizes(hidden)
    text = text_config(dict(target.config))
    method: dict[str, Any] = {
        "block_size": shape.block_size,
        "mask_token_id": mask_token,
        "target_layer_ids": list(_taps(shape.taps, target.num_layers, layers)),
    }
    if shape.generation == 2:
        low, high = SELECTOR_RANKS
        method |= {
            "conv_group_size": gcd(CONV_GROUP, hidden),
            "conv_kernel_size": CONV_KERNEL,
            "selector_rank": shape.selector_rank or min(high, max(low, hidden // HIDDEN_PER_RANK)),
            "selector_top_k": min(SELECTOR_TOP_K, target.vocab_size),
        }
    sliding = shape.sliding_window > 0
    length = text.get("max_position_embeddings")
    # transformers refuses a null there.
    positions = {} if length is None else {"max_position_embeddings": length}
    return {
        "architectures": ["DFlash2DraftModel" if shape.generation == 2 else "DFlashDraftModel"],
        "attention_bias": False,
        "is_causal": shape.causal,
        "dflash_config": dict(sorted(method.items())),
        "dtype": dtype,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": shape.intermediate_size or -(-MLP_RATIO * hidden // MLP_STEP) * MLP_STEP,
        "layer_types": [SLIDING if sliding else FULL] * layers,
        **positions,
        "model_type": "qwen3",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "num_target_layers": target.num_layers,
        "rms_norm_eps": NORM_EPS,
        "rope_parameters": {"rope_theta": rope_theta(text), "rope_type": "default"},
        "sliding_window": shape.sliding_window if sliding else None,
        "tie_word_embeddings": False,
        "use_sliding_window": sliding,
        "vocab_size": target.vocab_size,
    }


def attention_sizes(hidden_size: int) -> tuple[int, int, int]:
    """Dimension of a head, query heads, key-value heads."""
    head_dim = next(dim for least, dim in HEAD_DIMS if hidden_size >= least)
    heads = max(1, hidden_size // head_dim)
    most = max(1, heads // next(shared for least, shared in QUERIES_PER_KEY if hidden_size >= least))
    return head_dim, heads, max(count for count in range(1, most + 1) if heads % count == 0)


def rope_theta(text: Mapping[str, Any]) -> float:
    """The base of the target's rotary embedding, where its config has one for all layers."""
    nested = text.get("rope_parameters") or {}
    found = nested.get("rope_theta") or text.get("rope_theta")
    return float(found) if found else ROPE_THETA


def _taps(chosen: tuple[int, ...] | None, target_layers: int, layers: int) -> tuple[int, ...]:
    if chosen is None:
        taps = default_layer_ids(target_layers, layers)
        # In a shallow target the formula names a layer twice: its last ones then.
        shallow = len(set(taps)) < len(taps) or min(taps) < 0
        return tuple(range(max(0, target_layers - layers), target_layers)) if shallow else taps
    if len(set(chosen)) < len(chosen) or not 0 <= min(chosen) <= max(chosen) < target_layers:
        raise UserError(
            f"the taps {list(chosen)} are not different layers of a target that has {target_layers}",
            f"choose from 0 to {target_layers - 1}",
        )
    return chosen
