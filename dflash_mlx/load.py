"""Two checkpoint folders to a `Pair`; what configs and headers tell is checked before weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, load_model, load_tokenizer

from dflash_mlx import blas
from dflash_mlx.config import load_config
from dflash_mlx.config_fields import read_config_json
from dflash_mlx.drafters import load_drafter
from dflash_mlx.drafters.precision import dtype_name
from dflash_mlx.errors import UserError
from dflash_mlx.pair import Pair
from dflash_mlx.targets import Family, build_target, family_of
from dflash_mlx.weights import read_folder

if TYPE_CHECKING:
    import mlx.nn as nn
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from dflash_mlx.config import DrafterConfig

__all__ = ["Pair", "load_pair"]

# Quantized and bfloat16 products on a CPU cost as much per row at any width, so speculation cannot pay
# there; float32 with a real BLAS is nearly flat (SmolLM2-135M, two cores: 80 ms a row, 140 ms eight rows).
CPU_FLOAT32_BELOW_BYTES = 1_000_000_000

# mlx's quantized products cost more with every row: 3 to 5 rows are best on Macs at 4 bits.
QUANTIZED_WIDTH = 4


def load_pair(target: str | Path, drafter: str | Path | None = None) -> Pair:
    """Load a target and, unless it is None, a drafter that was made for it.

    Args:
        target: Folder with a model that mlx-lm can load: config.json, safetensors, tokenizer.
        drafter: Folder with a DFlash drafter, original or already in MLX format.

    Returns:
        The pair. On a CPU a target under 1 GB is held in float32, and `Pair.dtype` says so.

    Raises:
        UserError: Something is wrong with the folders, or the two do not fit each other.

    Example:
        >>> pair = load_pair("./Qwen3-8B-4bit", "./Qwen3-8B-DFlash")  # doctest: +SKIP
    """
    target_folder = Path(target)
    config = read_config_json(target_folder)
    model_type, family = family_of(config)
    drafter_config = None if drafter is None else fitting_config(Path(drafter), config, family)
    read_folder(target_folder)
    if drafter is not None:
        read_folder(drafter)

    model, tokenizer = _load_target(target_folder)
    dtype = _prepare(model, config)
    built = build_target(model, model_type)
    quantized = any("scales" in module for module in model.modules())
    built_drafter = None
    if drafter is not None:
        built_drafter = load_drafter(drafter, config=drafter_config)
    block_size = 1 if drafter_config is None else drafter_config.block_size
    device = mx.default_device()
    return Pair(
        target=built,
        drafter=built_drafter,
        tokenizer=tokenizer,
        target_name=str(target),
        drafter_name=None if drafter is None else str(drafter),
        stop_ids=frozenset(tokenizer.eos_token_ids),
        context_length=_text_field(config, "max_position_embeddings"),
        default_width=min(block_size, QUANTIZED_WIDTH) if quantized else block_size,
        device=f"{device.type.name} ({mx.device_info(device)['device_name']})",
        dtype=dtype,
        blas=blas.preload().name if device == mx.cpu else None,
    )


def fitting_config(folder: Path, target: dict[str, Any], family: Family) -> DrafterConfig:
    """The drafter's config, completed from the target's; a mismatch is a UserError."""
    hidden_size = int(_text_field(target, "hidden_size"))
    return load_config(folder).for_target(
        num_layers=int(_text_field(target, "num_hidden_layers")),
        hidden_size=hidden_size,
        vocab_size=int(_text_field(target, "vocab_size")),
        embed_scale=hidden_size**0.5 if family.scaled_drafter_embedding else None,
    )


def _text_field(config: dict[str, Any], name: str) -> Any:
    """A field of the language model; in multimodal configs it may be one level down."""
    nested = config.get("text_config") or {}
    return config[name] if config.get(name) is not None else nested.get(name)


def _load_target(folder: Path) -> tuple[nn.Module, TokenizerWrapper]:
    """Model (weights not read yet) and tokenizer.

    The tokenizer knows mlx-lm's stop ids: those of the generation config, else of the config, and its own.
    """
    try:
        model, config = load_model(folder, lazy=True)
        # Multimodal configs keep the stop ids with the text part.
        tokenizer = load_tokenizer(folder, eos_token_ids=_text_field(config, "eos_token_id"))
    # What mlx-lm and transformers raise over files that are not what the config says.
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RuntimeError,
        OSError,
        ImportError,
    ) as problem:
        reason = str(problem).strip().partition("\n")[0] or type(problem).__name__
        raise UserError(
            f"mlx-lm cannot load `{folder}`: {reason}", "`--debug` shows the whole error"
        ) from problem
    return model, tokenizer


def _prepare(model: nn.Module, config: dict[str, Any]) -> str:
    """Read the weights, in float32 where that is what pays; the activations' dtype in words."""
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    floating = next(w.dtype for w in weights.values() if mx.issubdtype(w.dtype, mx.floating))
    stored = dtype_name(floating)
    bits = (config.get("quantization") or {}).get("bits")
    if bits is not None:
        stored = f"{bits}-bit, {stored}"
    small = sum(w.nbytes for w in weights.values()) < CPU_FLOAT32_BELOW_BYTES
    if mx.default_device() == mx.cpu and small and stored != "float32":
        dequantize_model(model)
        model.set_dtype(mx.float32)
        stored = f"float32 (stored: {stored})"
    mx.eval(model.parameters())
    return stored
