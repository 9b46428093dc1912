"""How many bytes a model's caches take, from their shapes: a forward pass is built, and never computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, RotatingKVCache, make_prompt_cache

from dflash_mlx.memory import LayerCache


def cache_footprint(model: nn.Module) -> tuple[LayerCache, ...]:
    """What each cache of a model keeps; its weights may still be on disk, and stay there.

    The model's own code says how many heads, layers, windows and states there are, and in which dtype.
    """
    caches = make_prompt_cache(model)
    model(mx.zeros((1, 1), mx.int32), cache=caches)  # lazy: nothing but shapes and dtypes comes of it
    return tuple(_layer(cache) for cache in caches if not cache.empty())


def _layer(cache: Any) -> LayerCache:
    if isinstance(cache, ArraysCache):
        elements: Sequence[mx.array | None] = cache.cache
        return LayerCache(0, fixed_bytes=sum(array.nbytes for array in elements if array is not None))
    row = (cache.keys.nbytes + cache.values.nbytes) // cache.keys.shape[2]
    window = cache.max_size if isinstance(cache, RotatingKVCache) else None
    return LayerCache(row, window, head_dim=int(cache.keys.shape[3]))
