"""Tiny random targets of every supported family: real mlx-lm classes, toy sizes, float32."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes

from dflash_mlx.config import parse_config
from dflash_mlx.drafters import drafter_class
from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.targets import build_target
from dflash_mlx.targets.model import ModelTarget

VOCAB = 96
HIDDEN = 32
WINDOW = 8

_BASE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
_SLIDING = ["sliding_attention", "full_attention"] * 2
_DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}

CONFIGS: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 0.25},
    "deepseek_v3": {
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "kv_lora_rank": 8,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
    },
    "ernie4_5": {"use_bias": False},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 8.0},
    "glm4": {"attention_bias": False, "partial_rotary_factor": 0.5},
    "glm4_moe": {
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "attention_bias": False,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "rope_scaling": None,
    },
    "granite": {
        "logits_scaling": 4.0,
        "attention_multiplier": 0.3,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "hunyuan_v1_dense": {
        "use_qk_norm": True,
        "attention_bias": False,
        "rope_scaling": {"alpha": 1.0, "factor": 1.0, "type": "dynamic"},
    },
    "llama": {},
    "minimax": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 16,
        "scoring_func": "sigmoid",
        "rotary_dim": 8,
        "use_qk_norm": True,
    },
    "mistral3": {"text_config": {**_BASE, "model_type": "llama"}},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": {},
    "phi3": {},
    "qwen2": {},
    "qwen2_moe": {**_MOE, "shared_expert_intermediate_size": 16},
    "qwen3": {},
    "qwen3_moe": {**_MOE, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "qwen3_vl": {"text_config": {**_BASE, "model_type": "qwen3"}},
    "qwen3_vl_moe": {
        "text_config": {
            **_BASE,
            **_MOE,
            "model_type": "qwen3_moe",
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    },
    "seed_oss": {"attention_bias": False, "attention_out_bias": False},
    "smollm3": {"no_rope_layer_interval": 4},
    "starcoder2": {"norm_epsilon": 1e-5, "tie_word_embeddings": False},
    "cohere2": {"sliding_window": WINDOW, "sliding_window_pattern": 4, "logit_scale": 0.25},
    "exaone4": {"sliding_window": WINDOW, "sliding_window_pattern": "LLG", "rope_scaling": None},
    "gemma3": {
        "text_config": {
            **_BASE,
            "model_type": "gemma3_text",
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 8.0,
        },
    },
    "gemma3_text": {"sliding_window": WINDOW, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8.0},
    "gemma4": {
        "text_config": {
            **_BASE,
            "model_type": "gemma4_text",
            "sliding_window": WINDOW,
            "layer_types": _SLIDING,
            "global_head_dim": 8,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
            "final_logit_softcapping": 30.0,
        },
    },
    "gemma4_text": {
        "sliding_window": WINDOW,
        "layer_types": _SLIDING,
        "global_head_dim": 8,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 30.0,
    },
    "gpt_oss": {
        "sliding_window": WINDOW,
        "layer_types": _SLIDING,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "ministral3": {
        "sliding_window": WINDOW,
        "layer_types": _SLIDING,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 4096,
        },
    },
    "muse_glimmer": {
        "sliding_window": WINDOW,
        "layer_types": _SLIDING,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 20.0,
    },
    "olmo3": {"sliding_window": WINDOW, "layer_types": _SLIDING},
    "qwen3_5": {"text_config": {**_BASE, **_DELTA, "model_type": "qwen3_5_text"}},
    "qwen3_5_moe": {
        "text_config": {
            **_BASE,
            **_DELTA,
            **_MOE,
            "model_type": "qwen3_5_moe_text",
            "shared_expert_intermediate_size": 16,
        }
    },
    "qwen3_next": {
        **_DELTA,
        **_MOE,
        "shared_expert_intermediate_size": 16,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "partial_rotary_factor": 0.5,
    },
}


def config_of(model_type: str, **overrides: Any) -> dict[str, Any]:
    """A config.json of toy size."""
    return {**_BASE, "model_type": model_type, **CONFIGS[model_type], **overrides}


def build_model(model_type: str, seed: int = 0, **overrides: Any) -> nn.Module:
    """A random model whose weights are large enough for its greedy text not to be a loop."""
    config = config_of(model_type, **overrides)
    model_class, args_class = _get_classes(config)
    mx.random.seed(seed)
    model = model_class(args_class.from_dict(config))
    model.eval()
    weights = []
    for name, value in tree_flatten(model.parameters()):
        if value.ndim >= 2 and mx.issubdtype(value.dtype, mx.floating) and "conv1d" not in name:
            value = mx.random.normal(value.shape) * (1.6 / value.shape[-1] ** 0.5)
        weights.append((name, value.astype(mx.float32) if mx.issubdtype(value.dtype, mx.floating) else value))
    model.update(tree_unflatten(weights))
    mx.eval(model.parameters())
    return model


def build(model_type: str, seed: int = 0, **overrides: Any) -> ModelTarget:
    """`build_model` as a target."""
    return build_target(build_model(model_type, seed, **overrides), model_type)


def drafter_config(generation: int, *, num_target_layers: int = 4, **overrides: Any) -> dict[str, Any]:
    """A drafter's config.json of toy size, for the targets above."""
    config: dict[str, Any] = {
        "architectures": [{1: "DFlashDraftModel", 2: "DFlash2DraftModel"}[generation]],
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "num_target_layers": num_target_layers,
        "block_size": 8,
        "dflash_config": {
            "mask_token_id": overrides.get("vocab_size", VOCAB) - 1,
            "target_layer_ids": [0, 1, 3],
        },
    }
    if generation == 2:
        config["dflash_config"] |= {
            "conv_kernel_size": 2,
            "conv_group_size": 8,
            "selector_rank": 8,
            "selector_top_k": 8,
        }
    layer_ids = overrides.pop("target_layer_ids", None)
    if layer_ids:
        config["dflash_config"]["target_layer_ids"] = layer_ids
    return {**config, **overrides}


def build_drafter(generation: int, seed: int = 0, **overrides: Any) -> DFlashDrafter:
    """A random drafter for the targets above, float32."""
    config = parse_config(drafter_config(generation, **overrides))
    mx.random.seed(seed)
    drafter = drafter_class(config)(config)
    weights = []
    for name, value in tree_flatten(drafter.parameters()):
        scale = 0.3 if "conv" in name or "selector" in name else 1.0
        random = mx.random.normal(value.shape) * (scale / value.shape[-1] ** 0.5)
        weights.append((name, 1 + 0.1 * random if value.ndim == 1 else random))
    drafter.update(tree_unflatten(weights))
    drafter.eval()
    mx.eval(drafter.parameters())
    return drafter
