"""Ctrl-C and Ctrl-Z between two steps instead of in the middle of one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

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


class Suspension:
    """Within, Ctrl-Z only makes `wanted` true: the terminal can be put in order before `now` is called."""

    def __init__(self) -> None:
        self.wanted = False
        self._ours = False

    def __enter__(self) -> Self:
        # Ignored, or somebody else's, it stays.
        self._ours = signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
        if self._ours:
            signal.signal(signal.SIGTSTP, self._want)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.wanted:
            self.now()
        if self._ours:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def now(self) -> None:
        """Sleep until the shell's `fg`; without a shell that could do that, go on."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._want)
        self.wanted = False

    def _want(self, signum: int, frame: FrameType | None) -> None:
        self.wanted = True
