"""What two target states remember, compared row by row whatever the layout of their buffers."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, RotatingKVCache


def remembered(cache: Any) -> list[mx.array]:
    """The arrays that later tokens depend on, in time order."""
    if isinstance(cache, ArraysCache):
        return [part for part in cache.cache if part is not None]
    if isinstance(cache, RotatingKVCache):
        rows = min(cache.offset, cache.max_size - 1)
        return [cache._temporal_order(part)[..., -rows:, :] for part in (cache.keys, cache.values)]
    return [part[..., : cache.offset, :] for part in (cache.keys, cache.values)]


def assert_close(found: mx.array, wanted: mx.array) -> None:
    """The tolerance for float32 states and logits of one model run in two ways."""
    assert found.shape == wanted.shape
    bound = 1e-4 * max(1.0, mx.abs(wanted).max().item())
    assert mx.abs(found - wanted).max().item() <= bound


def assert_same_state(found: Any, wanted: Any) -> None:
    """Two `ModelState` hold the same sequence."""
    assert found.length == wanted.length
    for one, other in zip(found.caches, wanted.caches, strict=True):
        for mine, theirs in zip(remembered(one), remembered(other), strict=True):
            assert_close(mine, theirs)
