"""Exceptions and signals at any Python call inside the engine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INSIDE = ("dflash_mlx/", "mlx_lm/models/")


class Fault(Exception):
    """What is thrown."""


class Calls:
    """How many calls were counted."""

    count = 0


@contextmanager
def at_call(number: int | None, kind: str = "exception") -> Iterator[Calls]:
    """Inside, the `number`-th call of a function of the engine or of a model throws, or SIGINT arrives.

    Args:
        number: From 0; None only counts.
        kind: "exception" or "sigint".
    """
    calls = Calls()

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and any(part in frame.f_code.co_filename for part in INSIDE):
            calls.count += 1
            if number is not None and calls.count == number + 1:
                if kind == "sigint":
                    signal.raise_signal(signal.SIGINT)
                else:
                    raise Fault

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield calls
    finally:
        sys.settrace(before)
