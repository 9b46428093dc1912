"""MLX's process-wide limits while pairs are loaded: memory that stays wired, and freed memory that it keeps.

macOS may take a model's weights out of the GPU's reach between two replies, and needs long to bring them
back; below the wired limit (macOS 15 and later) it does not. Metal's buffer cache ends where the machine's
memory does: it keeps every buffer that a growing context has outgrown.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import mlx.core as mx

from dflash_mlx import device


def recommended_working_set() -> int | None:
    """Bytes that Metal recommends to use; None where the default device is another one."""
    size = device.current().info.get("max_recommended_working_set_size")
    return None if size is None else int(size)


class Residency:
    """Sets the limits when the first target is kept, gives them back when the last one is gone.

    Targets may be kept and die in any thread, even inside a call of this class when Python collects garbage.
    At the interpreter's end nothing is given back: the process's memory goes with it.

    Args:
        recommended: Bytes to keep wired; None for nothing.
        set_wired: MLX's; the limit before comes back, as from `set_cache`.
        set_cache: Of freed buffers.
        synchronize: Waits until the device is idle.
    """

    def __init__(
        self,
        recommended: Callable[[], int | None] = recommended_working_set,
        set_wired: Callable[[int], int] = mx.set_wired_limit,
        set_cache: Callable[[int], int] = mx.set_cache_limit,
        synchronize: Callable[[], None] = mx.synchronize,
    ) -> None:
        self._recommended, self._synchronize = recommended, synchronize
        self._set_wired, self._set_cache = set_wired, set_cache
        self._lock = threading.RLock()
        self._spare: dict[int, int] = {}  # of each kept target, by its id; 0 for no opinion
        self._applied: tuple[bool, int] = (False, 0)
        self._wired_before: int | None = None
        self._cache_before: int | None = None

    def keep(self, target: object, spare: int = 0) -> None:
        """Hold the limits as long as `target` lives.

        Args:
            target: Of a pair.
            spare: Bytes of freed buffers that serve it; MLX may keep as many as the neediest target's, and no
                more than it would have anyway. 0 leaves that as it is.
        """
        key = id(target)
        if key in self._spare and not spare:
            return
        with self._lock:
            if key not in self._spare:
                weakref.finalize(target, self._drop, key).atexit = False
            self._spare[key] = spare
            self._settle()

    def _drop(self, key: int) -> None:
        with self._lock:
            del self._spare[key]
            self._settle()

    def _settle(self) -> None:
        # Garbage that is collected on the way can change what is wanted: it is looked at again after that.
        while (wanted := (bool(self._spare), max(self._spare.values(), default=0))) != self._applied:
            self._apply(*wanted)
            self._applied = wanted

    def _apply(self, kept: bool, spare: int) -> None:
        if kept and self._wired_before is None:
            recommended = self._recommended()
            if recommended is not None:
                self._wired_before = self._set_wired(recommended)
        elif not kept and self._wired_before is not None:
            self._synchronize()
            self._set_wired(self._wired_before)
            self._wired_before = None
        if spare:
            before = self._set_cache(spare)
            if self._cache_before is None:
                self._cache_before = before
            if self._cache_before < spare:
                self._set_cache(self._cache_before)
        elif self._cache_before is not None:
            self._set_cache(self._cache_before)
            self._cache_before = None


residency = Residency()
