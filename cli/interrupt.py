"""Ctrl-C between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130  # what a shell says of a program that SIGINT ended


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def deferred(again: Callable[[], None] = _interrupt) -> Iterator[Callable[[], bool]]:
    """Within, the first Ctrl-C only makes the given function return True; the second one calls `again`."""
    pressed = False

    def on_signal(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            again()
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
