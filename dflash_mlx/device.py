"""What mlx computes on: the one place that asks, so that a test can say that it is another device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import mlx.core as mx

EMULATED_BFLOAT16 = (13, 14)  # Apple GPU generations of M1 and M2


@dataclass(frozen=True)
class Device:
    """What computes.

    Attributes:
        gpu: A GPU, Apple's or another; else a CPU.
        architecture: As mlx names it: `applegpu_g16s`, `sm_90`, `x86_64`; may be empty.
        name: In words, as in "Apple M3 Max".
        info: All of `mx.device_info()`; its keys differ from device to device.
    """

    gpu: bool
    architecture: str
    name: str
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> Literal["cpu", "metal", "cuda"]:
        """Which of mlx's backends computes."""
        if not self.gpu:
            return "cpu"
        return "metal" if "max_recommended_working_set_size" in self.info else "cuda"

    @property
    def generation(self) -> int | None:
        """Of an Apple GPU, 13 for M1 to 17 for M5; None for other devices."""
        apple = re.match(r"applegpu_g(\d+)", self.architecture) if self.gpu else None
        return None if apple is None else int(apple.group(1))

    @property
    def fast_bfloat16(self) -> bool:
        """Whether bfloat16 is at least as fast as float32: not on a CPU, and not where a GPU emulates it."""
        return self.gpu and self.generation not in EMULATED_BFLOAT16

    def __str__(self) -> str:
        return f"{'gpu' if self.gpu else 'cpu'} ({self.name})"


def current() -> Device:
    """Ask mlx for its default device."""
    device = mx.default_device()
    info = mx.device_info(device)
    name = str(info.get("device_name", "unknown"))
    return Device(device.type == mx.gpu, str(info.get("architecture", "")), name, info)
