"""Rows of tensors, from disk into mlx, a bounded number of bytes at a time.

`mx.load` is lazy, but evaluates tensors whole; plain reads at an offset cut them anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from io import FileIO
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import mlx.core as mx

from dflash_mlx.errors import UserError
from dflash_mlx.weights import DTYPE_BYTES, TensorInfo

from .tensors import Tensor

# Counted as float32, which is the largest form that rows take. Some of these blocks are alive at a time.
# 8, 32 and 128 MB are equally fast (measured on a CPU: 450 MB/s of bfloat16 to 4 bits).
BLOCK_BYTES = 32_000_000

STORED: Mapping[str, mx.Dtype] = MappingProxyType(
    {"BF16": mx.bfloat16, "F16": mx.float16, "F32": mx.float32, "U32": mx.uint32, "U8": mx.uint8}
)


class Reader:
    """Open files of one checkpoint; a context manager.

    Args:
        block_bytes: How much a block may hold, in float32; a single row may be more.
    """

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self.block_bytes = block_bytes
        self.bytes_read = 0
        self._stack = ExitStack()
        self._files: dict[Path, FileIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def blocks(self, tensor: Tensor) -> Iterator[slice]:
        """Rows of the first axis that together make up a tensor, block by block."""
        rows = tensor.shape[0]
        step = max(1, self.block_bytes // (4 * prod(tensor.shape[1:])))
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))

    def stored(self, info: TensorInfo, rows: slice) -> mx.array:
        """Rows as they are in the file, in its dtype.

        Raises:
            UserError: The file cannot be read, or ends too early.
        """
        shape = rows.stop - rows.start, *info.shape[1:]
        row_bytes = prod(info.shape[1:]) * DTYPE_BYTES[info.dtype]
        buffer: Any = bytearray(shape[0] * row_bytes)
        self._fill(info, info.start + rows.start * row_bytes, buffer)
        return mx.array(buffer).view(STORED[info.dtype]).reshape(shape)

    def values(self, tensor: Tensor, rows: slice) -> mx.array:
        """Rows of a parameter: in the file's dtype, or dequantized to float32."""
        if tensor.packing is None:
            return self.stored(tensor.weight, rows)
        weight, scales, *biases = (self.stored(part, rows) for part in tensor.parts)
        if not biases:
            return mx.dequantize(weight, scales, None, **tensor.packing.entry(), dtype=mx.float32)
        # In float32: bfloat16 scales would round every product.
        scales, bias = scales.astype(mx.float32), biases[0].astype(mx.float32)
        return mx.dequantize(weight, scales, bias, **tensor.packing.entry())

    def whole(self, tensor: Tensor) -> mx.array:
        """All rows, float32: for small parameters."""
        return self.values(tensor, slice(0, tensor.shape[0])).astype(mx.float32)

    def _fill(self, info: TensorInfo, offset: int, buffer: bytearray) -> None:
        view = memoryview(buffer)
        try:
            file = self._files.get(info.file)
            if file is None:
                file = self._stack.enter_context(FileIO(info.file))
                self._files[info.file] = file
            file.seek(offset)
            while view and (count := file.readinto(view)):
                view = view[count:]
                self.bytes_read += count
        except OSError as problem:
            raise UserError(
                f"`{info.file}` cannot be read: {problem.strerror}", "check the disk and the permissions"
            ) from problem
        if view:
            raise UserError(f"`{info.file}` ends inside the tensor `{info.name}`", "download the file again")
