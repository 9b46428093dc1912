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

# Inputs of a layer, outputs of its projections by name, and the elements of its cache before.
State = list[mx.array | None]
Recorded = tuple[mx.array, dict[str, mx.array], State]


class _Stand:
    """Stands in for the layer as `self` of its own `__call__`; only the projections differ."""

    def __init__(self, layer: nn.Module, project: Callable[[str], Callable[[mx.array], mx.array]]) -> None:
        # Plain attributes: a module looks its own up by a function, 20 times a call.
        self.__dict__.update(layer.__dict__)
        self.__dict__.update(layer)
        self.__dict__.update((name, project(name)) for name in layer if name.startswith(_PROJECTION))
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)  # methods and properties


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
        self._before: State = list(self._cache.cache)
        if mask is not None:
            raise ValueError("a Gated DeltaNet mask belongs to batches; this engine runs one sequence")

        def recorded(name: str) -> Callable[[mx.array], mx.array]:
            projection = layer[name]

            def project(x: mx.array) -> mx.array:
                self._projections[name] = output = projection(x)
                return output

            return project

        return call(_Stand(layer, recorded), self._inputs, mask, self._cache)

    def blank(self) -> Tape:
        """The same layer, without what it did: for as long as the layer lives."""
        blank = Tape()
        blank._call, blank._layer = self._call, self._layer
        return blank

    @property
    def recorded(self) -> Recorded:
        """Inputs, projections by name, and the state before the block."""
        return self._inputs, self._projections, self._before

    def take(self, state: State) -> None:
        """This is the layer's state now."""
        cache: Any = self._cache
        cache.cache = state

    def state_after(self, recorded: Recorded, rows: int) -> State:
        """The state after the first `rows` rows of what was recorded; nothing of the layer is changed."""
        inputs, projections, before = recorded
        cache: Any = ArraysCache(len(before))  # untyped: an element is None until the first update
        cache.cache = list(before)

        def kept(name: str) -> Callable[[mx.array], mx.array]:
            return lambda _: projections[name][:, :rows]

        self._call(_Stand(self._layer, kept), inputs[:, :rows], None, cache)
        state: State = cache.cache
        return state


class Replay:
    """Brings all recurrent layers of one model back to the first rows of a block.

    Args:
        compiled: The layers' graphs, which are the same in every cycle, are one compiled function for each
            number of kept rows: half the host's time (48 layers: 1.5 instead of 3.4 ms). For GPUs: on a CPU
            the system's compiler would have to run first, a second for each of them.
    """

    def __init__(self, *, compiled: bool) -> None:
        self._wanted = compiled
        self._compiled: dict[int, Callable[[list[Recorded]], list[State]]] = {}

    def __call__(self, tapes: list[Tape], rows: int) -> None:
        """Keep `rows` rows; the tapes are those of the last verify pass, of all recurrent layers."""
        recorded = [tape.recorded for tape in tapes]
        begun = all(element is not None for *_, before in recorded for element in before)
        compiled = begun and self._wanted
        states = self._function(tapes, rows)(recorded) if compiled else _states(tapes, recorded, rows)
        for tape, state in zip(tapes, states, strict=True):
            tape.take(state)

    def _function(self, tapes: list[Tape], rows: int) -> Callable[..., Any]:
        if rows not in self._compiled:
            # The first tapes lend their layers for good; what they recorded comes as an argument.
            layers = [tape.blank() for tape in tapes]
            self._compiled[rows] = mx.compile(lambda recorded: _states(layers, recorded, rows))
        return self._compiled[rows]


def _states(tapes: list[Tape], recorded: list[Recorded], rows: int) -> list[State]:
    return [tape.state_after(one, rows) for tape, one in zip(tapes, recorded, strict=True)]


def _bind(
    inputs: mx.array, mask: mx.array | None = None, cache: ArraysCache | None = None
) -> tuple[mx.array, mx.array | None, ArraysCache]:
    if cache is None:
        raise ValueError("a verify pass needs a cache")
    return inputs, mask, cache
