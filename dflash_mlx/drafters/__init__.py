"""Drafters: finding the class of an architecture, and reading a checkpoint folder.

Importing this package imports no MLX; `load_drafter` does.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_mlx.config import ARCHITECTURES, DrafterConfig, load_config
from dflash_mlx.hub import resolve

if TYPE_CHECKING:
    import mlx.core as mx

    from dflash_mlx.drafters.dflash import DFlashDrafter

__all__ = ["ARCHITECTURES", "drafter_class", "load_drafter"]


def drafter_class(config: DrafterConfig) -> type[DFlashDrafter]:
    """The class that runs this architecture, imported now."""
    entry = ARCHITECTURES[config.architecture]
    found: type[DFlashDrafter] = vars(import_module(entry.module))[entry.class_name]
    return found


def load_drafter(
    path: str | Path,
    *,
    revision: str | None = None,
    config: DrafterConfig | None = None,
    dtype: mx.Dtype | None = None,
    lazy: bool = False,
) -> DFlashDrafter:
    """Load a drafter, original or quantized with MLX, from a folder or a repository.

    Args:
        path: Folder with config.json and safetensors, single or sharded, in the published layout or in
            vLLM's (`speculators`); or `owner/name` on the hub.
        revision: Branch, tag or commit of the repository.
        config: The folder's config if it was read before, as `config.for_target(...)` completed it.
        dtype: Of the activations and of what is not quantized: bfloat16 or float32. None takes what is
            fastest and safe on this device (`precision.drafter_dtype`).
        lazy: Leave the weights on disk until they are used.

    Raises:
        UserError: See `dflash_mlx.hub.resolve`; or the folder is no drafter or is damaged, a tensor is
            missing, extra or wrongly shaped, or `dtype` is float16.

    Example:
        >>> drafter = load_drafter("checkpoints/Qwen3.8-27B-DFlash2")  # doctest: +SKIP
    """
    from dflash_mlx.drafters.loading import load

    folder = resolve(path, revision).folder
    return load(folder, config or load_config(folder), dtype, lazy=lazy)
