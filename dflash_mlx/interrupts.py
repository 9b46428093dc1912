"""Ctrl-C at a safe place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_sigint() -> Iterator[None]:
    """Inside, SIGINT is only noted; at the end the handler that was there before gets it.

    In other threads than the main one Python delivers no signals, and a handler that was not installed from
    Python cannot be put back: there this does nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: noted.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if noted:
            signal.raise_signal(signal.SIGINT)
