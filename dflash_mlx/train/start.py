"""The drafter that training begins with: a new one, or one that somebody trained before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from dflash_mlx.config import DrafterConfig
from dflash_mlx.config_fields import read_config_json
from dflash_mlx.config_speculators import published_layout
from dflash_mlx.drafters import drafter_class, load_drafter
from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.drafters.dflash2 import DFlash2Drafter
from dflash_mlx.drafters.layers import ConvDraftLayer
from dflash_mlx.errors import UserError
from dflash_mlx.weights import read_folder

CODEBOOK_SCALE = 0.02  # of the predecessors; the successors are 0, so the selector says nothing at first


@dataclass(frozen=True)
class Start:
    """A drafter, and how it is written down.

    Attributes:
        drafter: Float32.
        config: Its config.json.
        names: Of every parameter, the tensor's name in the checkpoint.
    """

    drafter: DFlashDrafter
    config: Mapping[str, Any]
    names: Mapping[str, str]


def new_drafter(raw: Mapping[str, Any], config: DrafterConfig, seed: int) -> Start:
    """Random first weights, with which the second generation drafts as the first would.

    Args:
        raw: config.json.
        config: The same, completed with `DrafterConfig.for_target`.
        seed: Of the weights.
    """
    mx.random.seed(seed)
    drafter = drafter_class(config)(config)
    _begin_as_first_generation(drafter)
    mx.eval(drafter.parameters())
    parameters: dict[str, mx.array] = dict(tree_flatten(drafter.parameters()))
    names = {name: _published(name) for name in parameters}
    return Start(drafter, raw, names)


def from_folder(folder: Path, config: DrafterConfig) -> Start:
    """Go on from a drafter's folder.

    Args:
        folder: In any layout that `load_drafter` takes, not quantized.
        config: Its config, completed from the target.

    Raises:
        UserError: See `load_drafter`; or its weights are quantized.
    """
    if config.quantization is not None:
        raise UserError(
            f"`{folder}` is quantized, and rounded weights cannot be trained",
            "give the checkpoint that it was converted from",
        )
    drafter = load_drafter(folder, config=config, dtype=mx.float32)
    tensors = config.own_tensors(read_folder(folder))
    names = {type(drafter).parameter_name(name): name for name in tensors}
    return Start(drafter, published_layout(read_config_json(folder)), names)


def _begin_as_first_generation(drafter: DFlashDrafter) -> None:
    """Convolutions that change nothing, and a selector whose scores are the logits."""
    if not isinstance(drafter, DFlash2Drafter):
        return
    for layer in drafter.layers:
        if isinstance(layer, ConvDraftLayer):
            for conv in (layer.attention_conv, layer.mlp_conv):
                _clear(conv.kernel_projection)  # `base_kernel` is the identity as it is made
    selector = drafter.candidate_selector
    shape = selector.predecessor_codebook.weight.shape
    selector.predecessor_codebook.weight = CODEBOOK_SCALE * mx.random.normal(shape)
    _clear(selector.successor_codebook)


def _clear(module: nn.Linear | nn.Embedding) -> None:
    module.weight = mx.zeros_like(module.weight)


def _published(name: str) -> str:
    return name.removesuffix(".weight") if name.endswith("_codebook.weight") else name
