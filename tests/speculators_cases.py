"""Drafters as vLLM's `speculators` library saves them, made from published ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from drafter_cases import write_folder

# What the library reads of the layers; `to_diff_dict` of transformers writes more.
LAYER_KEYS = (
    "attention_bias",
    "attention_dropout",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "max_window_layers",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "use_cache",
    "use_sliding_window",
    "vocab_size",
)
SECOND = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def speculators_config(published: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The config of the same drafter; `changes` are of its top level."""
    method = {**published, **published["dflash_config"]}
    second = published["architectures"] == ["DFlash2DraftModel"]
    layers = {key: published[key] for key in LAYER_KEYS if key in published}
    raw = {
        # The first generation's class had both names.
        "architectures": ["DFlash2DraftModel" if second else "DFlashSpeculator"],
        "aux_hidden_state_layer_ids": [layer + 1 for layer in method["target_layer_ids"]],
        "block_size": method["block_size"],
        "draft_vocab_size": published["vocab_size"],
        "dtype": published.get("dtype", "float32"),
        "mask_token_id": method["mask_token_id"],
        "sample_from_anchor": False,
        "sliding_window_non_causal": published.get("is_causal") is False,
        "speculators_config": {
            "algorithm": "dflash2" if second else "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": method["block_size"] - 1}],
            "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "someone/Tiny-Target"},
        },
        "speculators_model_type": "dflash2" if second else "dflash",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "transformer_layer_config": {**layers, "model_type": "qwen3", "transformers_version": "5.0.0"},
        "transformers_version": "5.0.0",
    }
    if second:
        raw |= {key: method[key] for key in SECOND}
    return {**raw, **changes}


def targets_tensors(vocabulary: int, hidden: int) -> dict[str, mx.array]:
    """What older versions save beside a drafter."""
    table = mx.random.normal((vocabulary, hidden), key=mx.random.key(9))
    norm = mx.ones((hidden,))
    return {
        "embed_tokens.weight": table,
        "lm_head.weight": table,
        "verifier_lm_head.weight": table,
        "verifier_norm.weight": norm,
        "d2t": mx.zeros((vocabulary,), mx.int32),
        "t2d": mx.ones((vocabulary,), mx.bool_),
    }


def speculators_folder(
    folder: Path, published: Mapping[str, Any], weights: Mapping[str, mx.array], **changes: Any
) -> Path:
    """A checkpoint with the target's tensors in it."""
    more = targets_tensors(published["vocab_size"], published["hidden_size"])
    return write_folder(folder, speculators_config(published, **changes), {**weights, **more})
