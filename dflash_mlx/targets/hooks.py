"""Watch calls of single modules of a loaded model, for the length of one forward pass.

Python looks `__call__` up on the type, so a module is watched by giving the *instance* another class, a
subclass made once per original class. Nothing else of the model changes: it stays in `parameters()`, no
class of mlx-lm is touched, and afterwards the module has its own class back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

import mlx.nn as nn

# (call of the original class, module, args, kwargs) -> what the caller gets
Around = Callable[[Callable[..., Any], nn.Module, tuple[Any, ...], dict[str, Any]], Any]

_AROUND = "_dflash_around"
_ORIGINALS: dict[type, type] = {}  # by watched class


@functools.cache
def _watched(original: type) -> type:
    call = original.__call__

    def watched_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__[_AROUND](call, self, args, kwargs)

    watched = type(original.__name__, (original,), {"__call__": watched_call})
    _ORIGINALS[watched] = original
    return watched


class Hooks:
    """Context manager: inside, every call of `modules` goes through its `Around`.

    Not reentrant: one forward pass of a model at a time, which MLX asks for anyway.
    """

    def __init__(self, modules: list[tuple[nn.Module, Around]]) -> None:
        self._modules = modules
        self._originals: list[tuple[nn.Module, type]] = []

    def __enter__(self) -> None:
        for module, around in self._modules:
            # An exception can keep even `__exit__` from running: never take a watched class for the original.
            original = _ORIGINALS.get(type(module), type(module))
            self._originals.append((module, original))
            # `nn.Module.__setattr__` would file the callable and the class under the module's own items.
            object.__setattr__(module, _AROUND, around)
            object.__setattr__(module, "__class__", _watched(original))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, original in reversed(self._originals):
            object.__setattr__(module, "__class__", original)
            object.__delattr__(module, _AROUND)
        self._originals.clear()
