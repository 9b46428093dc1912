"""Going back in time, by type of mlx-lm cache.

| cache | drop the last rows of a block | snapshot |
| --- | --- | --- |
| `KVCache` | trim | its length: older rows are never written again |
| `RotatingKVCache` | slice the tail off | the window (its buffer is overwritten in place) |
| `ArraysCache` | replay the kept rows (`targets/gated_delta.py`) | its elements (replaced, never changed) |

mlx-lm's own `trim` refuses a rotating cache that has wrapped. But the update by several rows leaves its
buffer in time order with all rows of the block at the end, so these can be sliced off as long as one of
them stays: the window then still has `max_size` rows.
"""

from __future__ import annotations

from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache


class CacheKind(Protocol):
    """What one type of cache can do; the functions get the cache."""

    name: str

    def buffers(self, cache: Any) -> Any:
        """Its arrays themselves, a tree for evaluation: while a view lives, an update copies it."""

    def snapshot(self, cache: Any) -> Any:
        """What `restore` needs."""

    def restore(self, cache: Any, saved: Any) -> None:
        """Go back; `saved` can be restored any number of times."""

    def trimmable(self, cache: Any, rows: int) -> bool:
        """True if the last `rows` rows can be dropped at any time."""

    def trim(self, cache: Any, rows: int) -> None:
        """Drop the last `rows` rows of a cache that is `trimmable`."""

    def drop(self, cache: Any, rows: int) -> None:
        """Drop the last `rows` rows of the update just made, of which at least one row stays."""


# mlx-lm's caches are untyped: a buffer is None until the first update.
class _KV:
    name = "kv"

    def buffers(self, cache: Any) -> tuple[mx.array | None, mx.array | None]:
        return cache.keys, cache.values

    def snapshot(self, cache: Any) -> int:
        return int(cache.offset)

    def restore(self, cache: Any, saved: int) -> None:
        cache.offset = saved

    def trimmable(self, cache: Any, rows: int) -> bool:
        return bool(rows <= cache.offset)

    def trim(self, cache: Any, rows: int) -> None:
        cache.trim(rows)

    drop = trim


class _Rotating:
    name = "rotating"

    buffers = _KV.buffers

    def snapshot(self, cache: Any) -> tuple[mx.array | None, mx.array | None, int, int]:
        return _fresh(cache.keys), _fresh(cache.values), cache.offset, cache._idx

    def restore(self, cache: Any, saved: tuple[mx.array | None, mx.array | None, int, int]) -> None:
        keys, values, cache.offset, cache._idx = saved
        cache.keys, cache.values = _fresh(keys), _fresh(values)

    def trimmable(self, cache: Any, rows: int) -> bool:
        return bool(cache.is_trimmable() and rows <= cache.offset)

    def trim(self, cache: Any, rows: int) -> None:
        cache.trim(rows)

    def drop(self, cache: Any, rows: int) -> None:
        kept = cache.keys.shape[2] - rows
        cache.keys, cache.values = cache.keys[..., :kept, :], cache.values[..., :kept, :]
        cache.trim(rows)


class _Arrays:
    name = "recurrent"

    def buffers(self, cache: Any) -> list[mx.array | None]:
        return list(cache.cache)

    def snapshot(self, cache: Any) -> list[mx.array | None]:
        return list(cache.cache)

    def restore(self, cache: Any, saved: list[mx.array | None]) -> None:
        cache.cache = list(saved)

    def trimmable(self, cache: Any, rows: int) -> bool:
        return rows == 0

    def trim(self, cache: Any, rows: int) -> None:
        if rows:
            raise ValueError("a recurrent state cannot drop rows")

    def drop(self, cache: Any, rows: int) -> None:
        """Nothing: the layer's tape replays the kept rows."""


def _fresh(buffer: mx.array | None) -> mx.array | None:
    """A new handle: `buffer[..., a:b, :] = x` changes the object that it is called on."""
    return None if buffer is None else buffer[...]


# Exact types: a subclass may keep its rows in another way.
KINDS: dict[type, CacheKind] = {KVCache: _KV(), RotatingKVCache: _Rotating(), ArraysCache: _Arrays()}
