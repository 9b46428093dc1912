"""Which dtype a drafter runs in: never float16, whose 65504 DFlash 2's residual stream exceeds (3e6)."""

from __future__ import annotations

import re

import mlx.core as mx

from dflash_mlx.errors import UserError

EMULATED_BFLOAT16 = (13, 14)  # Apple GPU generations of M1 and M2


def compute_dtype(device: mx.DeviceType, architecture: str) -> mx.Dtype:
    """The fastest dtype that works.

    Args:
        device: `mx.cpu` or `mx.gpu`.
        architecture: As in `mx.device_info()`: `applegpu_g16s`, `sm_90`, `x86_64`, ...

    Returns:
        bfloat16, or float32 on a CPU and on a GPU that emulates bfloat16.
    """
    apple = re.match(r"applegpu_g(\d+)", architecture)
    emulated = apple is not None and int(apple.group(1)) in EMULATED_BFLOAT16
    return mx.float32 if device == mx.cpu or emulated else mx.bfloat16


def drafter_dtype(wanted: mx.Dtype | None = None) -> mx.Dtype:
    """`wanted`, or this device's choice.

    Raises:
        UserError: `wanted` is neither bfloat16 nor float32.
    """
    if wanted is None:
        architecture = mx.device_info(mx.default_device()).get("architecture", "")
        return compute_dtype(mx.default_device().type, str(architecture))
    if wanted not in (mx.bfloat16, mx.float32):
        raise UserError(
            f"a drafter cannot run in {dtype_name(wanted)}: its activations overflow",
            "use bfloat16 or float32",
        )
    return wanted


def dtype_name(dtype: mx.Dtype) -> str:
    """`bfloat16` rather than `mlx.core.bfloat16`."""
    return str(dtype).removeprefix("mlx.core.")
