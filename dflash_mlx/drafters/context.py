"""The drafter's cached context: keys and values of the committed tokens, in time order.

| | rows kept | a snapshot |
| --- | --- | --- |
| full layer | all | the length: valid while the rows before it are unchanged |
| sliding layer | the last `window` = `sliding_window - 1`, some slack before them | a copy of these |

A block's own keys and values are written behind the context and cut off again, so drafting copies no
context. mlx-lm's `RotatingKVCache` would not do: after a one-row update its rows are in ring order.
Nothing here reads an array on the host.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from dflash_mlx.drafters.base import Context

Pair = tuple[mx.array, mx.array]  # keys, values: [1, H, rows, head_dim]


class LayerContext:
    """One layer's rows.

    Args:
        window: How many last rows a block can see; None for all of them.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self._cache: Any = KVCache()  # untyped: `keys` and `values` are None until the first update

    @property
    def rows(self) -> int:
        """Rows that a block can see now."""
        rows: int = self._cache.offset
        return rows if self.window is None else min(rows, self.window)

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Add rows that stay; of a chunk longer than the window only its end."""
        if self.window is not None and keys.shape[2] >= self.window:
            self.clear()
            keys, values = keys[..., -self.window :, :], values[..., -self.window :, :]
        self._make_room(keys.shape[2])
        self._cache.update_and_fetch(keys, values)

    def with_block(self, keys: mx.array, values: mx.array) -> Pair:
        """The rows a block can see, followed by the block's own, which do not stay.

        Returns:
            Keys and values `[1, H, rows + W, head_dim]`.
        """
        width = keys.shape[2]
        self._make_room(width)
        keys, values = self._cache.update_and_fetch(keys, values)
        self._cache.trim(width)
        first = self._cache.offset - self.rows
        return keys[..., first:, :], values[..., first:, :]

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | str | None
    ) -> mx.array:
        """See `layers.Surroundings`; one block."""
        keys, values = self.with_block(keys, values)
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)

    def _make_room(self, rows: int) -> None:
        """Forget rows beyond the window rather than let the buffer grow: a copy every 256 rows or so."""
        if self.window is None or self._cache.offset <= self.window:
            return
        if self._cache.offset + rows > self._cache.keys.shape[2]:
            first, end = self._cache.offset - self.window, self._cache.offset
            keys, values = self._cache.keys[..., first:end, :], self._cache.values[..., first:end, :]
            self._cache.state = (keys, values, self.window)

    def trimmable(self, rows: int, length: int) -> bool:
        """True if without the last `rows` all rows are left that a block after `length` tokens can see."""
        wanted = length if self.window is None else min(length, self.window)
        return bool(self._cache.offset - rows >= wanted)

    def trim(self, rows: int) -> None:
        """Drop the last `rows` rows."""
        self._cache.trim(rows)

    def clear(self) -> None:
        """Forget all rows."""
        self._cache = KVCache()

    def truncate(self, length: int) -> None:
        """Back (or forward again, over unchanged rows) to `length` rows of a full layer."""
        self._cache.state = (self._cache.keys, self._cache.values, length)

    def visible(self) -> list[mx.array]:
        """Keys and values that a block can see, views; empty without rows. Do not hold them."""
        first, end = self._cache.offset - self.rows, self._cache.offset
        return [array[..., first:end, :] for array in self.arrays()] if self.rows else []

    def copy(self) -> Pair | None:
        """The visible rows in arrays of their own; None without rows."""
        if not self.rows:
            return None
        keys, values = self.visible()
        copied = mx.contiguous(keys), mx.contiguous(values)
        # Started now: a pending copy would hold the buffer, and the next update would have to copy it whole.
        mx.async_eval(*copied)
        return copied

    def replace(self, pair: Pair | None) -> None:
        """Take over what `copy` gave out; the arrays themselves are never written to."""
        self.clear()
        if pair is not None:
            # The buffer is full, so the next update allocates another one.
            self._cache.state = (*pair, pair[0].shape[2])

    def arrays(self) -> list[mx.array]:
        """The buffers, slack included."""
        return [] if self._cache.keys is None else [self._cache.keys, self._cache.values]


@dataclass(eq=False)
class ContextSnapshot:
    """What `DrafterContext.snapshot` gave out; `stale` once rows before `length` were overwritten."""

    length: int
    windows: list[Pair | None]
    stale: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the copies; nothing for full layers."""
        return sum(array.nbytes for window in self.windows if window is not None for array in window)


class DrafterContext:
    """The context of one sequence; `length` counts all its tokens, kept or not.

    Args:
        windows: Per layer, how many last rows a block can see; None for all of them.
    """

    def __init__(self, windows: list[int | None]) -> None:
        self.length = 0
        self.layers = [LayerContext(window) for window in windows]
        self._sliding = all(window is not None for window in windows)
        self._snapshots: weakref.WeakSet[ContextSnapshot] = weakref.WeakSet()

    def snapshot(self) -> ContextSnapshot:
        """Keep what is needed to come back to this length."""
        windows = [None if layer.window is None else layer.copy() for layer in self.layers]
        snapshot = ContextSnapshot(self.length, windows)
        self._snapshots.add(snapshot)
        return snapshot

    def restore(self, snapshot: ContextSnapshot) -> None:
        """Go back to a snapshot of this context, as often as wanted.

        Raises:
            ValueError: It is of another context, or rows of a full layer before its length were overwritten
                since (after going back to a shorter one).
        """
        if snapshot not in self._snapshots or snapshot.stale:
            raise ValueError(
                f"the snapshot of length {snapshot.length} is not of this context or was overwritten"
            )
        for layer, window in zip(self.layers, snapshot.windows, strict=True):
            if layer.window is None:
                layer.truncate(snapshot.length)
            else:
                layer.replace(window)
        self.length = snapshot.length

    def trim_to(self, length: int) -> bool:
        """Drop the rows from `length` on; False (and nothing done) if rows seen then are gone."""
        rows = self.length - length
        if rows < 0 or not all(layer.trimmable(rows, length) for layer in self.layers):
            return False
        for layer in self.layers:
            layer.trim(rows)
        self.length = length
        return True

    def skip(self, rows: int) -> None:
        """Move on by `rows` tokens that no later draft can see: at least a window's rows must follow.

        Raises:
            ValueError: `rows` is negative, or a layer sees the whole context.
        """
        if rows < 0 or not self._sliding:
            raise ValueError(f"cannot skip {rows} rows: only with sliding layers alone, and forward")
        if rows:
            for layer in self.layers:
                layer.clear()  # they are further away than the skipped ones
            self.length += rows

    def advance(self, rows: int) -> None:
        """Count `rows` tokens whose keys and values every layer has just got."""
        self.before_write()
        self.length += rows

    def before_write(self) -> None:
        """Note that rows from `length` on are overwritten now."""
        if not self._sliding:  # a sliding layer's snapshot is a copy
            for snapshot in self._snapshots:
                snapshot.stale |= snapshot.length > self.length

    def complete(self, ahead: int = 0) -> bool:
        """True if no layer will lack a row that a draft sees after `ahead` more tokens (see `skip`)."""
        length = self.length + ahead
        return all(
            layer.rows + ahead >= (length if layer.window is None else min(length, layer.window))
            for layer in self.layers
        )

    def check_complete(self) -> None:
        """Before a draft.

        Raises:
            ValueError: Too few rows followed a `skip`.
        """
        if not self.complete():
            rows = [layer.rows for layer in self.layers]
            raise ValueError(f"of {self.length} tokens the layers have {rows} rows, less than a draft sees")

    def arrays(self) -> list[mx.array]:
        """The buffers, for evaluation and for counting bytes."""
        return [array for layer in self.layers for array in layer.arrays()]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, slack included."""
        return sum(array.nbytes for array in self.arrays())


def own_context(context: Context) -> DrafterContext:
    """The context as the class that a drafter's `new_context` gave out.

    Raises:
        TypeError: It is another one.
    """
    if not isinstance(context, DrafterContext):
        raise TypeError(f"the context is a {type(context).__name__}, not from `new_context`")
    return context
