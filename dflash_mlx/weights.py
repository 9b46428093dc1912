"""Which safetensors files a model folder holds, and what is in them, from their headers alone.

Pure Python: a converter plans, and damage is found, before one byte of weights is read. Knows nothing of
drafters or MLX. File format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dflash_mlx.errors import UserError
from dflash_mlx.gguf import refuse_gguf

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
AGAIN = "download the file again"
# A header is some kB; the format's own limit keeps a damaged length field from allocating gigabytes.
MAX_HEADER_BYTES = 100_000_000
SHARD_NAME = re.compile(r"model-(\d+)-of-(\d+)\.safetensors")
DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
        **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
        **dict.fromkeys(("U32", "I32", "F32"), 4),
        **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
    }
)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies.

    Attributes:
        dtype: In the format's spelling: `BF16`, `F16`, `F32`, `U32`, ...
        start: Offset of its first byte from the start of `file`; `end` is one past its last.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Its size in the file."""
        return self.end - self.start


def read_folder(folder: str | Path) -> dict[str, TensorInfo]:
    """Names, dtypes and shapes of all tensors of a model folder, from every shard's header.

    Raises:
        UserError: See `weight_files` and `read_header`; a tensor is in two files; or the index and the
            files do not agree.
    """
    folder = Path(folder)
    tensors: dict[str, TensorInfo] = {}
    for path in weight_files(folder):
        for name, info in read_header(path).items():
            if name in tensors:
                raise UserError(
                    f"the tensor `{name}` is in `{tensors[name].file.name}` and in `{path.name}`",
                    "remove the file that does not belong to this checkpoint",
                )
            tensors[name] = info
    for name, file in _index(folder).items():
        if name not in tensors or tensors[name].file.name != file:
            raise UserError(f"`{INDEX_FILE}` puts the tensor `{name}` in `{file}`, it is not there", AGAIN)
    return tensors


def weight_files(folder: str | Path) -> list[Path]:
    """The files that hold a model's weights, sorted.

    Returns:
        Those named by the index; without one, `model.safetensors` and `model-*.safetensors`. Files of other
        names are not the model's.

    Raises:
        UserError: The folder does not exist, there is no such file, or a shard is missing.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"`{folder}` does not exist", "give the path of a model folder")
    named = sorted(set(_index(folder).values()))
    if named:
        files = [folder / name for name in named]
    else:
        files = sorted(
            path
            for path in folder.glob("model*.safetensors")
            if path.name == SINGLE_FILE or path.name.startswith("model-")
        )
        files += [folder / name for name in _unseen_shards(files)]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise UserError(f"shard `{missing[0]}` is missing in `{folder}`", "download the checkpoint again")
    if not files:
        refuse_gguf(folder)
        raise UserError(f"`{folder}` holds no weights", f"expected `{SINGLE_FILE}` or `model-*.safetensors`")
    return files


def read_header(path: str | Path) -> dict[str, TensorInfo]:
    """Read and check the header of one safetensors file.

    Returns:
        The tensors by name, in the order of their bytes.

    Raises:
        UserError: The file is truncated, or its header is damaged.
    """
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not length or 8 + length > size:
            raise _truncated(path, size, 8 + length)
        if length > MAX_HEADER_BYTES:
            raise _damaged(path, f"its header is {length} bytes long")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:  # broken JSON, or bytes that are not UTF-8
            raise _damaged(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = [_tensor_info(path, name, entry, 8 + length) for name, entry in header.items()]
    tensors.sort(key=lambda info: (info.start, info.end))
    place = 8 + length
    for info in tensors:
        if info.start != place:
            raise _damaged(path, f"`{info.name}` does not start where the tensor before it ends")
        place = info.end
    if size < place:
        raise _truncated(path, size, place)
    if size > place:
        raise _damaged(path, f"{size - place} bytes follow its last tensor")
    return {info.name: info for info in tensors}


def _tensor_info(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype: Any
    shape: Any
    offsets: Any
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if dtype not in DTYPE_BYTES:
        raise _damaged(path, f"`{name}` has the unknown dtype {dtype!r}")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise _damaged(path, f"`{name}` has no valid shape or offsets")
    start, end = offsets
    if end - start != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise _damaged(path, f"the size of `{name}` does not fit its shape {shape}")
    return TensorInfo(name, dtype, tuple(shape), path, base + start, base + end)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _index(folder: Path) -> dict[str, str]:
    """Tensor name -> file name; empty if the folder has no index."""
    path = folder / INDEX_FILE
    if not path.is_file():
        return {}
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, "it is not JSON") from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _damaged(path, "it has no `weight_map`")
    for name, file in weight_map.items():
        # A file of another folder is no part of this checkpoint.
        if not isinstance(file, str) or Path(file).name != file:
            raise _damaged(path, f"`{name}` is in {file!r}, which is no file name")
    return weight_map


def _unseen_shards(files: list[Path]) -> list[str]:
    """Names of shards that the found ones, numbered `model-i-of-n`, imply."""
    found = {path.name for path in files}
    matches = [match for path in files if (match := SHARD_NAME.fullmatch(path.name))]
    if not matches:
        return []
    digits, total = matches[0].group(2), int(matches[0].group(2))
    names = [f"model-{number:0{len(digits)}d}-of-{digits}.safetensors" for number in range(1, total + 1)]
    return [name for name in names if name not in found][:1]


def _truncated(path: Path, size: int, wanted: int) -> UserError:
    return UserError(f"`{path}` is truncated: {size} bytes of at least {wanted}", AGAIN)


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"`{path}` is damaged: {reason}", AGAIN)
