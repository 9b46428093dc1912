"""Safetensors files written row by row: headers first, from the plan, then each tensor at its place.

mlx's own `save_safetensors` wants all arrays of a file at once. Format:
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import mlx.core as mx

from dflash_mlx.weights import DTYPE_BYTES, INDEX_FILE, SINGLE_FILE

from .plan import Output
from .staging import writing

SHARD_BYTES = 5_000_000_000  # mlx-lm's limit
_ALIGNMENT = 8  # of the first tensor, as the format's own library writes it
_INTEGERS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}  # views that buffers can have, by bytes per element


@dataclass
class _Place:
    """Where the next rows of a tensor go."""

    file: FileIO
    position: int
    end: int


class Writer:
    """The weights of one folder; a context manager.

    Args:
        folder: Where; it exists.
        groups: Output tensors; those of a group stay in one file.
        parameters: Unquantized weights, for the index.
        shard_bytes: A file holds no more, except when a single group does.
    """

    def __init__(
        self,
        folder: Path,
        groups: Sequence[Sequence[Output]],
        parameters: int,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._places: dict[str, _Place] = {}
        shards = _shards(groups, shard_bytes)
        self.files = [_file_name(number, len(shards)) for number in range(len(shards))]
        with writing():
            for name, outputs in zip(self.files, shards, strict=True):
                self._begin(name, outputs)
            if len(shards) > 1:
                self._write_index(shards, parameters)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def append(self, name: str, rows: mx.array) -> None:
        """Write the next rows of a tensor.

        Raises:
            UserError: The disk does not take them.
        """
        place = self._places[name]
        buffer: Any = mx.contiguous(rows.view(_INTEGERS[rows.dtype.size]))  # has a buffer, says no stub
        data = memoryview(buffer).cast("B")
        if place.position + len(data) > place.end:
            raise ValueError(f"too many rows of `{name}`")
        with writing():
            while data:
                count = os.pwrite(place.file.fileno(), data, place.position)
                place.position += count
                data = data[count:]

    def finish(self) -> None:
        """Bring everything to the disk.

        Raises:
            ValueError: Rows are missing.
            UserError: The disk does not take them.
        """
        unfinished = [name for name, place in self._places.items() if place.position != place.end]
        if unfinished:
            raise ValueError(f"rows of `{unfinished[0]}` are missing")
        with writing():
            for file in {place.file for place in self._places.values()}:
                os.fsync(file.fileno())

    def _begin(self, name: str, outputs: Sequence[Output]) -> None:
        # Larger elements first keeps every tensor aligned.
        ordered = sorted(outputs, key=lambda output: (-DTYPE_BYTES[output.dtype], output.name))
        header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
        place = 0
        for output in ordered:
            offsets = [place, place + output.nbytes]
            header[output.name] = {
                "dtype": output.dtype,
                "shape": list(output.shape),
                "data_offsets": offsets,
            }
            place = offsets[1]
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        file = self._stack.enter_context(FileIO(self._folder / name, "w"))
        file.write(struct.pack("<Q", len(text)) + text)
        for output in ordered:
            start, end = (8 + len(text) + offset for offset in header[output.name]["data_offsets"])
            self._places[output.name] = _Place(file, start, end)

    def _write_index(self, shards: Sequence[Sequence[Output]], parameters: int) -> None:
        weight_map = {
            output.name: name for name, outputs in zip(self.files, shards, strict=True) for output in outputs
        }
        total = sum(output.nbytes for outputs in shards for output in outputs)
        index = {
            "metadata": {"total_size": total, "total_parameters": parameters},
            "weight_map": dict(sorted(weight_map.items())),
        }
        (self._folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def _shards(groups: Sequence[Sequence[Output]], shard_bytes: int) -> list[list[Output]]:
    shards: list[list[Output]] = [[]]
    size = 0
    for group in sorted(groups, key=lambda outputs: outputs[0].name):
        nbytes = sum(output.nbytes for output in group)
        if shards[-1] and size + nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1] += group
        size += nbytes
    return shards


def _file_name(number: int, count: int) -> str:
    return SINGLE_FILE if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"
