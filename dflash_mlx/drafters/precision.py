"""Which dtype a drafter runs in: never float16, whose 65504 DFlash 2's residual stream exceeds (3e6)."""

from __future__ import annotations

import mlx.core as mx

from dflash_mlx import device
from dflash_mlx.errors import UserError


def drafter_dtype(wanted: mx.Dtype | None = None) -> mx.Dtype:
    """`wanted`, or the fastest dtype that works on this device.

    Raises:
        UserError: `wanted` is neither bfloat16 nor float32.
    """
    if wanted is None:
        return mx.bfloat16 if device.current().fast_bfloat16 else mx.float32
    if wanted not in (mx.bfloat16, mx.float32):
        raise UserError(
            f"a drafter cannot run in {dtype_name(wanted)}: its activations overflow",
            "use bfloat16 or float32",
        )
    return wanted


def dtype_name(dtype: mx.Dtype) -> str:
    """`bfloat16` rather than `mlx.core.bfloat16`."""
    return str(dtype).removeprefix("mlx.core.")
