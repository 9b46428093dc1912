"""A drafter's `config.json` -> a frozen, checked `DrafterConfig`.

Three layouts: `DFlash2DraftModel`, `DFlashDraftModel` (first generation: no convolution, no selector) and
`MuseGlimmerAssistantModel` (first generation under other names). Method fields are in `dflash_config` or at
the top level. vLLM's speculators layout is translated before. Nothing is known here of tensors or MLX:
importing this module is instant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from dflash_mlx.config_fields import Fields, read_config_json, wrong
from dflash_mlx.config_foreign import refuse_foreign
from dflash_mlx.config_method import check_method
from dflash_mlx.config_rope import RopeConfig, parse_rope
from dflash_mlx.config_speculators import TARGETS_TENSORS, is_speculators, published_layout, verifier
from dflash_mlx.errors import UserError

FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULT_BLOCK_SIZE = 16  # what first-generation checkpoints without the key were trained with
MAX_WINDOW_LAYERS = 28  # transformers' default
CHAT_SUFFIXES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


Found = TypeVar("Found")


@dataclass(frozen=True)
class Architecture:
    """One line of the registry: which generation it is, and the class that runs it."""

    generation: Literal[1, 2]
    module: str
    class_name: str


# A new drafter architecture is its file and one line here.
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "DFlash2DraftModel": Architecture(2, "dflash_mlx.drafters.dflash2", "DFlash2Drafter"),
        "DFlashDraftModel": Architecture(1, "dflash_mlx.drafters.dflash", "DFlashDrafter"),
        "MuseGlimmerAssistantModel": Architecture(1, "dflash_mlx.drafters.dflash", "DFlashDrafter"),
    }
)


@dataclass(frozen=True)
class DrafterConfig:
    """Everything a drafter is built from.

    Attributes:
        causal: Per layer: a row of the block sees the block's rows up to itself only.
        sliding_window: In sliding layers only keys with `|query_pos - key_pos| < sliding_window` are seen.
        target_layer_ids: The taps; empty while unknown, `for_target` fills them in.
        vocab_size: None while unknown, `for_target` fills it in.
        num_target_layers: Layers of the target it was trained for; None if the config does not say.
        final_logit_softcapping: None for none.
        input_embedding_scale: None if the config has no such key: see `embedding_scale`.
        conv_kernel_size: With the other conv and selector fields, 0 in the first generation.
        quantization: The config's `quantization` object of an MLX checkpoint; None for plain weights.
        made_for: Name of its target, where the config has one.
        targets_tensors: Beginnings of names under which the checkpoint holds copies of the target's tensors.
    """

    architecture: str
    generation: Literal[1, 2]
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    attention_bias: bool
    layer_types: tuple[str, ...]
    causal: tuple[bool, ...]
    sliding_window: int | None
    rope: RopeConfig
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    vocab_size: int | None
    num_target_layers: int | None
    max_position_embeddings: int | None
    final_logit_softcapping: float | None = None
    output_multiplier: float = 1.0
    input_embedding_scale: float | None = None
    conv_kernel_size: int = 0
    conv_group_size: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0
    quantization: Mapping[str, Any] | None = field(default=None)
    made_for: str | None = None
    targets_tensors: tuple[str, ...] = ()

    @property
    def num_taps(self) -> int:
        """How many target layers feed the drafter; known even where their ids are not."""
        return len(self.target_layer_ids) or self.num_layers

    @property
    def embedding_scale(self) -> float:
        """What the target's raw embedding rows are multiplied with."""
        return 1.0 if self.input_embedding_scale is None else self.input_embedding_scale

    @property
    def window(self) -> int | None:
        """How many last context rows a draft can see; None if all of them."""
        reach = [self.layer_window(layer) for layer in range(self.num_layers)]
        known = [rows - 1 for rows in reach if rows is not None]
        return max(known) if len(known) == len(reach) else None

    def reaches(self, tokens: int) -> int:
        """How far apart the positions are that attention compares after so many tokens."""
        return tokens if self.window is None else min(tokens, self.window + 1)

    def layer_window(self, layer: int) -> int | None:
        """`sliding_window` if the layer is a sliding one, else None."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def for_target(
        self, num_layers: int, hidden_size: int, vocab_size: int, embed_scale: float | None = None
    ) -> DrafterConfig:
        """The config completed with what it leaves to the target.

        Args:
            num_layers: Layers of the target.
            hidden_size: Of the target.
            vocab_size: Rows of the target's embedding table.
            embed_scale: What this family multiplies its own embeddings with, where drafters without an
                `input_embedding_scale` expect it too (Gemma 4); None for no such default.

        Raises:
            UserError: The drafter was not made for such a target: hidden size, vocabulary, layers, mask id.
        """
        hint = "use the drafter that was made for this target"
        if self.made_for is not None:
            hint += f"; this one was made for `{self.made_for}`"
        pairs = (
            ("hidden size", self.hidden_size, hidden_size),
            ("vocabulary", self.vocab_size, vocab_size),
            ("number of target layers", self.num_target_layers, num_layers),
        )
        for what, mine, theirs in pairs:
            if mine is not None and mine != theirs:
                raise UserError(f"the drafter's {what} is {mine}, the target's is {theirs}", hint)
        layer_ids = self.target_layer_ids or default_layer_ids(num_layers, self.num_layers)
        if not 0 <= min(layer_ids) <= max(layer_ids) < num_layers:
            raise UserError(
                f"the drafter reads target layers {list(layer_ids)}, the target has only {num_layers}",
                hint,
            )
        if self.mask_token_id >= vocab_size:
            raise UserError(
                f"the mask token {self.mask_token_id} is not in the vocabulary of {vocab_size}",
                hint,
            )
        scale = embed_scale if self.input_embedding_scale is None else self.input_embedding_scale
        return replace(
            self,
            target_layer_ids=layer_ids,
            vocab_size=vocab_size,
            num_target_layers=num_layers,
            input_embedding_scale=scale,
        )

    def own_tensors(self, found: Mapping[str, Found]) -> dict[str, Found]:
        """Of all tensors of a checkpoint, those of the drafter: it uses the target's own, not copies."""
        return {name: one for name, one in found.items() if not name.startswith(self.targets_tensors)}

    def check_tensors(self, names: Iterable[str]) -> None:
        """Compare the generation that the architecture says with the one that the tensors show.

        Raises:
            UserError: They disagree.
        """
        marks = sorted(name for name in names if "_conv." in name or name.startswith("candidate_selector."))
        if self.generation == 1 and marks:
            raise UserError(
                f"config.json says `{self.architecture}` but the tensor `{marks[0]}` is one of DFlash 2",
                "config.json and weights are from different checkpoints, or `architectures` is wrong",
            )
        if self.generation == 2 and not marks:
            raise UserError(
                f"config.json says `{self.architecture}` but no tensor is of a convolution or a selector",
                "config.json and weights are from different checkpoints, or `architectures` is wrong",
            )


def load_config(folder: str | Path) -> DrafterConfig:
    """Read and check the `config.json` of a drafter's folder.

    Raises:
        UserError: See `parse_config`; or the folder or the file is missing.
    """
    return parse_config(read_config_json(folder))


def parse_config(raw: Mapping[str, Any]) -> DrafterConfig:
    """A parsed `config.json` as a `DrafterConfig`.

    Raises:
        UserError: Not a drafter, one of another method, or a value is missing, wrong or contradicted.
    """
    refuse_foreign(raw)
    made_for, targets_tensors = verifier(raw), TARGETS_TENSORS if is_speculators(raw) else ()
    raw = published_layout(raw)
    architecture = _architecture(raw)
    generation = ARCHITECTURES[architecture].generation
    fields = Fields(raw, Fields(raw, {}, "").mapping("dflash_config") or {}, "dflash_config")
    check_method(raw, fields.inner)
    top = fields.top()
    if top.get("hidden_act") not in (None, "silu"):
        raise wrong("hidden_act", top.get("hidden_act"), "`silu`")
    layers = top.integer("num_hidden_layers")
    layer_types = _layer_types(fields, layers)
    is_causal = _is_causal(fields)
    heads, hidden_size = top.integer("num_attention_heads"), top.integer("hidden_size")
    num_target_layers = fields.optional_integer("num_target_layers")
    layer_ids = fields.integers("target_layer_ids")
    if not layer_ids and num_target_layers is not None:
        layer_ids = default_layer_ids(num_target_layers, layers)
    config = DrafterConfig(
        architecture=architecture,
        generation=generation,
        hidden_size=hidden_size,
        intermediate_size=top.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=top.integer("num_key_value_heads", heads),
        head_dim=top.integer("head_dim", hidden_size // heads),
        rms_norm_eps=top.number("rms_norm_eps", 1e-6),
        attention_bias=top.boolean("attention_bias") or False,
        layer_types=layer_types,
        causal=tuple(kind == SLIDING if is_causal is None else is_causal for kind in layer_types),
        sliding_window=fields.integer("sliding_window", low=2) if SLIDING in layer_types else None,
        rope=parse_rope(top),
        block_size=fields.integer("block_size", DEFAULT_BLOCK_SIZE, low=2),
        mask_token_id=fields.integer("mask_token_id", low=0),
        target_layer_ids=layer_ids,
        vocab_size=top.optional_integer("vocab_size"),
        num_target_layers=num_target_layers,
        max_position_embeddings=top.optional_integer("max_position_embeddings"),
        # 0 means none, as null does.
        final_logit_softcapping=fields.number("final_logit_softcapping", 0.0, positive=False) or None,
        output_multiplier=fields.number("output_multiplier", 1.0),
        input_embedding_scale=fields.optional_number("input_embedding_scale"),
        quantization=_quantization(top),
        made_for=made_for,
        targets_tensors=targets_tensors,
        **_second_generation(fields) if generation == 2 else {},
    )
    _check(config)
    return config


def is_drafter(raw: Mapping[str, Any]) -> bool:
    """True for the config.json of a DFlash drafter, in whatever layout."""
    names = raw.get("architectures")
    return is_speculators(raw) or (isinstance(names, list) and any(name in ARCHITECTURES for name in names))


def to_write(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A drafter's config.json as other programs read it too: in the published layout.

    transformers keeps the window only where `use_sliding_window` says so, whatever the layers are.

    Args:
        raw: What `parse_config` takes.

    Raises:
        UserError: See `config_speculators.published_layout`.
    """
    config = dict(published_layout(raw))
    if SLIDING in (config.get("layer_types") or ()):
        config["use_sliding_window"] = True
    return config


def default_layer_ids(num_target_layers: int, num_layers: int) -> tuple[int, ...]:
    """The taps of a checkpoint that does not list them: spread evenly, ends left out.

    Args:
        num_target_layers: Layers of the target, L.
        num_layers: Layers of the drafter, n: as many taps.

    Returns:
        `round(1 + i * (L - 4) / (n - 1))` for each i; `L // 2` if n is 1.
    """
    if num_layers == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + i * span / (num_layers - 1)) for i in range(num_layers))


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise wrong("architectures", names, f"a list with one of {_known()}")
    name = names[0]
    if name in ARCHITECTURES:
        return name
    if name.endswith(CHAT_SUFFIXES):
        raise UserError(
            f"this is a chat model (`{name}`), not a DFlash drafter",
            "give it as the target, and a DFlash checkpoint made for it as the drafter",
        )
    raise UserError(f"unknown drafter architecture `{name}`", f"known ones: {_known()}")


def _known() -> str:
    return ", ".join(f"`{name}`" for name in ARCHITECTURES)


def _layer_types(fields: Fields, layers: int) -> tuple[str, ...]:
    """The kind of each layer; where they are not listed, as transformers' Qwen3Config tells them."""
    top = fields.top()
    listed, slide = top.strings("layer_types", (FULL, SLIDING), layers), top.boolean("use_sliding_window")
    if listed is None:
        first = layers
        if slide and fields.get("sliding_window") is not None:
            first = top.integer("max_window_layers", MAX_WINDOW_LAYERS, low=0)
        return tuple(FULL if layer < first else SLIDING for layer in range(layers))
    if slide is False and SLIDING in listed:
        raise UserError(
            f"`layer_types` has `{SLIDING}` but `use_sliding_window` is False in config.json",
            "the two contradict each other: ask the drafter's authors, or correct one of them",
        )
    return listed


def _is_causal(fields: Fields) -> bool | None:
    """What is said of all layers: `is_causal`, or vLLM's `causal` in `dflash_config`."""
    is_causal, causal = fields.boolean("is_causal"), fields.nested().boolean("causal")
    if is_causal is not None and causal is not None and is_causal != causal:
        raise UserError(
            f"`is_causal` is {is_causal} but `causal` in `dflash_config` is {causal} in config.json",
            "keep one of the two",
        )
    return causal if is_causal is None else is_causal


def _second_generation(fields: Fields) -> dict[str, int]:
    names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    return {name: fields.integer(name) for name in names}


def _quantization(top: Fields) -> Mapping[str, Any] | None:
    found = top.mapping("quantization") or top.mapping("quantization_config")
    if found is None:
        return None
    if "quant_method" in found:  # torch's formats: AWQ, GPTQ, fp8
        raise UserError(
            f"weights quantized with `{found['quant_method']}` cannot be read",
            "use the unquantized checkpoint, or one quantized with MLX",
        )
    return MappingProxyType(dict(found))


def _check(config: DrafterConfig) -> None:
    """Relations between fields."""
    if config.num_heads % config.num_kv_heads:
        raise UserError(
            f"{config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads",
            "check `num_attention_heads` and `num_key_value_heads` in config.json",
        )
    if config.head_dim % 2:
        raise wrong("head_dim", config.head_dim, "an even number")
    if config.generation == 2 and config.hidden_size % config.conv_group_size:
        raise wrong(
            "conv_group_size", config.conv_group_size, f"a divisor of the hidden size {config.hidden_size}"
        )
    if (config.final_logit_softcapping or 0) < 0:
        raise wrong("final_logit_softcapping", config.final_logit_softcapping, "a positive number, 0 or null")
    vocabulary = config.vocab_size
    if vocabulary is not None and config.mask_token_id >= vocabulary:
        raise wrong("mask_token_id", config.mask_token_id, f"a token of the vocabulary of {vocabulary}")
    if vocabulary is not None and config.selector_top_k > vocabulary:
        raise wrong("selector_top_k", config.selector_top_k, f"at most the vocabulary of {vocabulary}")
    layers, taps = config.num_target_layers, config.target_layer_ids
    if layers is not None and not 0 <= min(taps) <= max(taps) < layers:
        raise wrong("target_layer_ids", list(taps), f"layers of a target that has {layers}")
