"""Keys of a drafter's config.json that say how it drafts: what is not implemented is refused by name.

`dflash_config` holds the method, so a key there is known to be used, known to be without effect, or refused
unless its value says "no". At the top level, beside everything that transformers writes, only keys that are
known to change drafts are refused. The keys are those that the authors' code, vLLM, SGLang, SpecForge and
speculators read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dflash_mlx.errors import UserError

HINT = "drafts would be bad without it: use another drafter, or a version of dflash-mlx that knows it"

# Read by `config.parse_config` at either level.
USED = (
    "block_size",
    "causal",
    "conv_group_size",
    "conv_kernel_size",
    "final_logit_softcapping",
    "input_embedding_scale",
    "is_causal",
    "mask_token_id",
    "num_target_layers",
    "output_multiplier",
    "selector_rank",
    "selector_top_k",
    "sliding_window",
    "target_layer_ids",
)

# In `dflash_config`, without effect on drafts, and why.
HARMLESS: Mapping[str, str] = MappingProxyType(
    {
        "attention_dropout": "of training",
        "confidence_head_alpha": "the weight of a loss",
        "confidence_head_with_markov": "says what a head reads; that there is one, `enable_confidence_head`",
        "initializer_range": "of training",
        "mask_token": "the text of `mask_token_id`",
        "max_anchors": "of training",
        "num_anchors": "of training",
    }
)


@dataclass(frozen=True)
class Unsupported:
    """A key that changes drafts.

    Attributes:
        what: What it stands for.
        neutral: Values that change nothing, beside null and what is false.
        usual: True is what is implemented, and what is false changes drafts.
    """

    what: str
    neutral: tuple[object, ...] = ()
    usual: bool = False

    def allows(self, value: object) -> bool:
        """True if this value of the key changes nothing."""
        if value is None:
            return True
        return bool(value) if self.usual else not value or value in self.neutral


UNSUPPORTED: Mapping[str, Unsupported] = MappingProxyType(
    {
        "sample_from_anchor": Unsupported("the anchor's own row drafts too"),
        "shift_label": Unsupported("every row drafts the token after its own"),
        "projector_type": Unsupported("a head over the block, as Domino and DSpark have one", ("dflash",)),
        "markov_rank": Unsupported("DSpark's Markov head"),
        "enable_confidence_head": Unsupported("DSpark's confidence head"),
        "use_heterogeneous_kv": Unsupported("DFlare's keys and values"),
        "fc_layernorm": Unsupported("features are normalised before `fc`"),
        "fc_norm": Unsupported("features are normalised before `fc`"),
        "norm_before_fc": Unsupported("features are normalised before `fc`"),
        "use_aux_hidden_state": Unsupported("there is no `fc`", usual=True),
        "use_swa": Unsupported("layers slide whatever `layer_types` says"),
        "add_swa_attention_sink_bias": Unsupported("attention with sinks"),
        "attention_sink_bias": Unsupported("attention with sinks"),
        "attention_value_scale": Unsupported("scaled values in attention", (1,)),
        "attention_mode": Unsupported("another kind of attention", ("gqa", "mha")),
        "is_neox_style": Unsupported("rotary embedding of neighbouring pairs", usual=True),
        "rope_is_neox_style": Unsupported("rotary embedding of neighbouring pairs", usual=True),
        "draft_ffn_type": Unsupported("layers with experts", ("dense",)),
        "logit_scale": Unsupported("scaled logits", (1,)),
    }
)


# Sizes and settings of the layers, which `config.parse_config` reads at the top level only.
_OF_LAYERS = (
    "attention_bias",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "vocab_size",
)
# Names of a size that has another name at the top level.
_SAME_AS: Mapping[str, str] = MappingProxyType(
    {
        "draft_vocab_size": "vocab_size",
        "swa_window_size": "sliding_window",
        "target_hidden_size": "hidden_size",
    }
)


def check_method(raw: Mapping[str, Any], method: Mapping[str, Any]) -> None:
    """Refuse what would be left out of the drafter's method.

    Args:
        raw: The top level of config.json.
        method: Its `dflash_config`.

    Raises:
        UserError: A key says that this drafter drafts in a way that is not implemented.
    """
    for key, unsupported in UNSUPPORTED.items():
        for fields, place in ((method, "`dflash_config`"), (raw, "config.json")):
            value = fields.get(key)
            if not unsupported.allows(value):
                raise UserError(
                    f"`{key}` is {value!r} in {place}: {unsupported.what}, which is not supported", HINT
                )
    for key, value in method.items():
        known = key in USED or key in HARMLESS or key in UNSUPPORTED
        # What only repeats the top level is said there.
        if value and not known and not _repeats(key, value, raw):
            raise UserError(
                f"`{key}` is {value!r} in `dflash_config`, and what that means is not known", HINT
            )
    _check_sizes(raw, method)


def _repeats(key: str, value: object, raw: Mapping[str, Any]) -> bool:
    return key in _SAME_AS or (key in _OF_LAYERS and raw.get(key) == value)


def _check_sizes(raw: Mapping[str, Any], method: Mapping[str, Any]) -> None:
    for fields in (method, raw):
        for key, twin in _SAME_AS.items():
            value, wanted = fields.get(key), raw.get(twin)
            if value is None or wanted is None or value == wanted:
                continue
            if key == "draft_vocab_size":
                raise UserError(
                    f"this drafter knows {value} of the target's {wanted} tokens (`draft_vocab_size`), "
                    "and a reduced vocabulary is not supported",
                    "use a drafter with the target's full vocabulary",
                )
            raise UserError(
                f"`{key}` is {value!r} but `{twin}` is {wanted!r} in config.json, which is not supported",
                HINT,
            )
