"""Rollback of Gated DeltaNet layers: run the kept rows again, without reading a weight twice.

A recurrent state cannot be trimmed. During the verify pass each layer's input, its `in_proj_*` outputs and
the state before the block are kept; to drop rows, the library's own `__call__` runs once more over the
kept rows with those recorded projections. Its output is never asked for, so MLX computes only the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache

_PROJECTION = "in_proj_"


class _Stand:
    """Stands in for the layer as `self` of its own `__call__`; only the projections differ."""

    def __init__(self, layer: nn.Module, projection: Callable[[str], Callable[[mx.array], mx.array]]) -> None:
        self._layer = layer
        self._projection = projection

    def __getattr__(self, name: str) -> Any:
        return self._projection(name) if name.startswith(_PROJECTION) else getattr(self._layer, name)


class Tape:
    """What one layer did in the last verify pass."""

    def __init__(self) -> None:
        self._projections: dict[str, mx.array] = {}

    def record(
        self, call: Callable[..., Any], layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The layer's call (see `hooks.Around`), with its inputs kept."""
        self._call, self._layer = call, layer
        self._inputs, mask, self._cache = _bind(*args, **kwargs)
        self._before = list(self._cache.cache)
        if mask is not None:
            raise ValueError("a Gated DeltaNet mask belongs to batches; this engine runs one sequence")

        def recorded(name: str) -> Callable[[mx.array], mx.array]:
            def project(x: mx.array) -> mx.array:
                self._projections[name] = getattr(layer, name)(x)
                return self._projections[name]

            return project

        return call(_Stand(layer, recorded), self._inputs, mask, self._cache)

    def replay(self, rows: int) -> None:
        """Bring the layer's cache to the state after the first `rows` rows."""

        def kept(name: str) -> Callable[[mx.array], mx.array]:
            return lambda _: self._projections[name][:, :rows]

        self._cache.cache = list(self._before)
        self._call(_Stand(self._layer, kept), self._inputs[:, :rows], None, self._cache)


def _bind(
    inputs: mx.array, mask: mx.array | None = None, cache: ArraysCache | None = None
) -> tuple[mx.array, mx.array | None, ArraysCache]:
    if cache is None:
        raise ValueError("a verify pass needs a cache")
    return inputs, mask, cache
