"""Which device the suite runs on, and which one the product is told: `pytest --pretend m5`.

Everything is computed on the CPU, in the test's process and in those that it starts, so that exact numbers
are exact everywhere; tests marked `metal` are the exception. What is only told goes through the one place
that asks, `dflash_mlx.device.current`.
"""

from __future__ import annotations

import os
from dataclasses import replace

import mlx.core as mx

from dflash_mlx import device
from dflash_mlx.device import Device

PRETEND, DRAFTER_DTYPE = "DFLASH_TEST_PRETEND", "DFLASH_TEST_DRAFTER_DTYPE"  # for processes that tests start

GB = 1_000_000_000


def _apple(name: str, architecture: str, memory: int) -> Device:
    """As mlx's Metal backend describes it; the sizes are of a usual machine."""
    info = {
        "device_name": name,
        "architecture": architecture,
        "memory_size": memory,
        "max_recommended_working_set_size": memory * 3 // 4,
        "max_buffer_length": memory * 9 // 16,
        "resource_limit": 499_000,
    }
    return Device(True, architecture, name, info)


CPU = Device(False, "x86_64", "a CPU", {"device_name": "a CPU", "architecture": "x86_64"})
DEVICES = {
    "m1": _apple("Apple M1", "applegpu_g13g", 16 * GB),
    "m3": _apple("Apple M3 Max", "applegpu_g15s", 36 * GB),
    "m5": _apple("Apple M5 Max", "applegpu_g17s", 64 * GB),
}


class Bfloat16Device(Device):
    """One whose drafters run in bfloat16 if nobody says otherwise."""

    fast_bfloat16 = True


really = device.current


def told() -> Device | None:
    """What the product is told by the environment's wish; None for the truth."""
    name, dtype = os.environ.get(PRETEND), os.environ.get(DRAFTER_DTYPE)
    found = DEVICES[name] if name else replace(really())
    if dtype == "bfloat16":
        return Bfloat16Device(found.gpu, found.architecture, found.name, found.info)
    return found if name else None


def install() -> None:
    """Compute on the CPU, and tell the product what the environment wishes."""
    mx.set_default_device(mx.cpu)
    wished = told()
    if wished is not None:
        device.current = lambda: wished
