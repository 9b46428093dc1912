"""What a drafter of some config consists of, asked of the very module that will run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.config import DrafterConfig
from dflash_mlx.drafters import drafter_class
from dflash_mlx.weights import TensorInfo

from .tensors import Layout


def with_vocabulary(config: DrafterConfig, found: Mapping[str, TensorInfo]) -> DrafterConfig:
    """The config completed with the rows of the codebooks, where it leaves the vocabulary to the target."""
    if config.vocab_size is not None or config.generation == 1:
        return config
    rows = next((info.shape[0] for name, info in found.items() if "_codebook" in name and info.shape), None)
    return replace(config, vocab_size=rows)


def drafter_layout(config: DrafterConfig) -> Layout:
    """The names and shapes of a drafter's parameters.

    Raises:
        UserError: The config leaves something open that they depend on.
    """
    module_class = drafter_class(config)
    # Lazy: shapes, nothing is allocated.
    parameters: dict[str, mx.array] = dict(tree_flatten(module_class(config).parameters()))
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    return Layout(shapes, module_class.parameter_name)
