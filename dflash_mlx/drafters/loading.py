"""A checkpoint folder -> a drafter with its weights, or one sentence about what is wrong with the folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import infer_quant_config

from dflash_mlx.config import DrafterConfig
from dflash_mlx.drafters import drafter_class
from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.drafters.precision import drafter_dtype, dtype_name
from dflash_mlx.errors import UserError
from dflash_mlx.weights import read_folder

NAMED = 3  # tensors that an error names; the rest are counted


def load(path: Path, config: DrafterConfig, wanted: mx.Dtype | None, *, lazy: bool) -> DFlashDrafter:
    """See `dflash_mlx.drafters.load_drafter`."""
    dtype = drafter_dtype(wanted)
    # Every header is checked before any weight is read.
    tensors = config.own_tensors(read_folder(path))
    config.check_tensors(tensors)
    weights: dict[str, mx.array] = {}
    for file in sorted({info.file for info in tensors.values()}):
        weights.update(config.own_tensors(_arrays(file)))
    drafter = build(config, weights, dtype)
    if not lazy:
        mx.eval(drafter.parameters())
    return drafter


def _arrays(file: Path) -> dict[str, mx.array]:
    """The tensors of one safetensors file, lazy."""
    try:
        arrays = mx.load(str(file))
    except RuntimeError as error:  # the header is sound, but MLX lacks one of its dtypes
        raise UserError(
            f"MLX cannot read `{file}`: {error}", "use a bfloat16 or an MLX checkpoint"
        ) from error
    assert isinstance(arrays, dict)  # what a safetensors file gives
    return arrays


def build(config: DrafterConfig, weights: Mapping[str, mx.array], dtype: mx.Dtype) -> DFlashDrafter:
    """A drafter with these weights; nothing is evaluated.

    Args:
        config: What the checkpoint says of itself.
        weights: By their names in the checkpoint.
        dtype: What floating weights are cast to.

    Raises:
        UserError: A tensor is missing, extra, or has a wrong shape or kind.
    """
    drafter = drafter_class(config)(config)
    named = drafter.sanitize(dict(weights))
    if len(named) != len(weights):
        raise UserError("the checkpoint holds a tensor under two names", "download it again")
    _quantize(drafter, named, config.quantization or {})
    _check_strictly(drafter, named)
    cast = {
        name: value.astype(dtype) if mx.issubdtype(value.dtype, mx.floating) else value
        for name, value in named.items()
    }
    drafter.load_weights(list(cast.items()))
    drafter.eval()
    return drafter


def _quantize(drafter: DFlashDrafter, weights: dict[str, mx.array], entries: Mapping[str, Any]) -> None:
    """Make those modules quantized whose weights are, each with its own bits."""

    def parameters(path: str, module: nn.Module) -> bool | dict[str, Any]:
        quantized = f"{path}.scales" in weights and f"{path}.weight" in weights
        if not quantized or not isinstance(module, nn.Linear | nn.Embedding):
            return False
        entry = entries.get(path)
        # The top-level bits are those of most modules, not of all: the shapes know better.
        found: dict[str, Any] = infer_quant_config(path, module, weights)
        return {**found, **entry} if isinstance(entry, dict) else found

    try:
        nn.quantize(drafter, class_predicate=parameters)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise UserError(
            f"the quantized weights do not fit this drafter: {error}",
            "config.json and weights are from different checkpoints, or were quantized by another program",
        ) from error


def _check_strictly(drafter: DFlashDrafter, weights: Mapping[str, mx.array]) -> None:
    wanted: dict[str, mx.array] = dict(tree_flatten(drafter.parameters()))
    missing = [f"`{name}`" for name in wanted if name not in weights]
    extra = [f"`{name}`" for name in weights if name not in wanted]
    wrong = [
        f"`{name}` ({_describe(weights[name])} for {_describe(array)})"
        for name, array in wanted.items()
        if name in weights and not _fits(weights[name], array)
    ]
    kinds = (("missing", missing), ("not part of this drafter", extra), ("of a wrong shape", wrong))
    problems = [f"{len(names)} {_are(names)} {kind}: {_first(names)}" for kind, names in kinds if names]
    if problems:
        raise UserError(
            f"the weights do not fit config.json; of the tensors, {'; '.join(problems)}",
            "config.json and weights are from different checkpoints, or the download is incomplete",
        )


def _fits(given: mx.array, wanted: mx.array) -> bool:
    floating = mx.issubdtype(wanted.dtype, mx.floating)
    same_kind = mx.issubdtype(given.dtype, mx.floating) if floating else given.dtype == wanted.dtype
    return same_kind and given.shape == wanted.shape


def _describe(array: mx.array) -> str:
    return f"{dtype_name(array.dtype)} {list(array.shape)}"


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _first(names: list[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
