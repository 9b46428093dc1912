"""Drafters as vLLM's `speculators` library saves them -> the published layout, before all other reading.

There the layers have an object of their own (`transformer_layer_config`) and the method is at the top level:

| speculators | published |
| --- | --- |
| `speculators_model_type`: `dflash`, `dflash2` | `architectures` |
| `aux_hidden_state_layer_ids`: 0 is the embedding, i the output of layer i - 1 | `target_layer_ids`: i - 1 |
| `sliding_window_non_causal`; full layers are never causal | `is_causal`: false, or null where it is false |
| `embed_tokens` as stored, even where the target scales its own | `input_embedding_scale`: 1 |

Tensors have the published names. Beside them older versions save frozen copies of the target's own: its
embedding, output head and final norm, and the maps between its vocabulary and a reduced one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dflash_mlx.config_fields import Fields, wrong
from dflash_mlx.config_method import UNSUPPORTED, check_method
from dflash_mlx.errors import UserError

TYPE = "speculators_model_type"
LAYERS = "transformer_layer_config"
ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
)
# How the names of the target's tensors begin.
TARGETS_TENSORS = ("d2t", "embed_tokens.", "lm_head.", "t2d", "verifier_lm_head.", "verifier_norm.")

# Of the layers; what else stands there (`mlp_bias`, softcaps, ...) its decoder does not read.
LAYER_KEYS = (
    "attention_bias",
    "head_dim",
    "hidden_act",
    "hidden_size",
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
    "use_sliding_window",
    "vocab_size",
)
KEPT = ("dtype", "torch_dtype", "quantization", "quantization_config")
# The library's defaults, which are those of the published drafters.
SECOND_GENERATION: Mapping[str, int] = MappingProxyType(
    {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}
)
BLOCK_SIZE = 8


def is_speculators(raw: Mapping[str, Any]) -> bool:
    """True for a config.json of that library, whatever its method."""
    return raw.get(TYPE) is not None


def published_layout(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of a DFlash drafter in the published layout; any other config as it is.

    Raises:
        UserError: It is of that library, but not DFlash, not whole, or in a way that is not supported.
    """
    if not is_speculators(raw):
        return raw
    kind = raw[TYPE]
    if kind not in ARCHITECTURES:
        known = " and ".join(f"`{name}`" for name in ARCHITECTURES)
        raise UserError(
            f"`{TYPE}` is {kind!r} in config.json, a method that is not supported",
            f"of this layout {known} are read",
        )
    top = Fields(raw, {}, "")
    layers = top.mapping(LAYERS)
    if layers is None:
        raise wrong(LAYERS, None, "the config of the drafter's layers")
    fields = Fields(raw, layers, LAYERS)
    config = {key: value for key in LAYER_KEYS if (value := fields.get(key)) is not None}
    _check(raw, config)
    _choose_rope(config)
    both_ways = top.boolean("sliding_window_non_causal")
    if both_ways or (both_ways is None and kind == "dflash2"):
        config["is_causal"] = False
    method: dict[str, Any] = {
        "block_size": top.integer("block_size", BLOCK_SIZE, low=2),
        "input_embedding_scale": 1.0,
        "mask_token_id": top.integer("mask_token_id", low=0),
        "target_layer_ids": _layer_ids(top),
    }
    if kind == "dflash2":
        method |= {key: top.integer(key, default) for key, default in SECOND_GENERATION.items()}
    return {
        "architectures": [ARCHITECTURES[kind]],
        "dflash_config": dict(sorted(method.items())),
        "model_type": "qwen3",
        **dict(sorted(config.items())),
        **{key: raw[key] for key in KEPT if key in raw},
    }


def verifier(raw: Mapping[str, Any]) -> str | None:
    """The name of the target that it was made for, as the config says; None if it does not."""
    found: Any = raw.get("speculators_config")
    for key in ("verifier", "name_or_path"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) and found else None


def _check(raw: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """What changes drafts stands at the top level here."""
    sizes = {key: raw[key] for key in ("draft_vocab_size", "target_hidden_size") if key in raw}
    check_method({**config, **sizes, **{key: raw[key] for key in UNSUPPORTED if key in raw}}, {})


def _layer_ids(top: Fields) -> list[int]:
    ids = top.integers("aux_hidden_state_layer_ids")
    if not ids:
        raise wrong("aux_hidden_state_layer_ids", None, "a list of the target layers that feed the drafter")
    if 0 in ids:
        raise UserError(
            "this drafter reads the target's embedding (0 in `aux_hidden_state_layer_ids`), "
            "which is not supported",
            "use a drafter that reads outputs of layers only",
        )
    return [number - 1 for number in ids]


def _choose_rope(config: dict[str, Any]) -> None:
    """One rotary embedding serves all layers: of parameters per kind of layer, those of the sliding ones."""
    found = config.get("rope_parameters")
    if isinstance(found, Mapping) and isinstance(found.get("sliding_attention"), Mapping):
        config["rope_parameters"] = dict(found["sliding_attention"])
