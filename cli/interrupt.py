"""Ctrl-C between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Within, the first Ctrl-C only makes the given function return True; the second one interrupts."""
    pressed = False

    def on_signal(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        # Ignored (a background job), or somebody else's.
        yield lambda: False
        return
    signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
