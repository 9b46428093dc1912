"""Checkpoints to convert, and what becomes of them read without mlx."""

from __future__ import annotations

import json
import math
import struct
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from child import bounded, python
from drafter_cases import CHECKPOINTS, checkpoint_weights, random_drafter, raw_config, write_folder

from dflash_mlx.weights import DTYPE_BYTES, INDEX_FILE
from dflash_mlx.weights_convert.convert import Job, convert
from dflash_mlx.weights_convert.recipe import DEFAULT_RECIPE, Recipe
from dflash_mlx.weights_convert.report import Report

Weights = dict[str, mx.array]
NUMPY = {"U32": "<u4", "U8": "u1", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}

# Groups of 64 fit every matrix but those that read the attention's heads, which take groups of 32.
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "selector_rank": 64, "head_dim": 24}


def source_config(generation: int = 2, **changes: Any) -> dict[str, Any]:
    sizes = {name: value for name, value in SIZES.items() if generation == 2 or name != "selector_rank"}
    return raw_config(generation, ["sliding_attention", "full_attention"], **{**sizes, **changes})


def source_weights(generation: int = 2, dtype: mx.Dtype = mx.bfloat16, **changes: Any) -> Weights:
    weights = checkpoint_weights(random_drafter(source_config(generation, **changes)))
    return {name: value.astype(dtype) for name, value in weights.items()}


def source_folder(folder: Path, generation: int = 2, dtype: mx.Dtype = mx.bfloat16, **changes: Any) -> Path:
    """A drafter of a training framework, all in one file."""
    raw = source_config(generation, **changes)
    return write_folder(folder, raw, source_weights(generation, dtype, **changes))


def write_shards(folder: Path, raw: Mapping[str, Any], shards: Iterable[Weights], *, index: bool) -> Path:
    """A checkpoint folder with several weights files."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(raw))
    parts = list(shards)
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, start=1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        mx.save_safetensors(str(folder / name), part)
        weight_map |= dict.fromkeys(part, name)
    if index:
        (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def stand_in(folder: Path, name: str) -> Path:
    """The headers of a published checkpoint over a file with a hole in place of its weights."""
    folder.mkdir()
    (folder / "config.json").write_text((CHECKPOINTS / f"{name}.config.json").read_text())
    header: dict[str, Any] = {}
    place = 0
    for tensor, entry in json.loads((CHECKPOINTS / f"{name}.tensors.json").read_text()).items():
        size = math.prod(entry["shape"]) * DTYPE_BYTES[entry["dtype"]]
        header[tensor] = {**entry, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + place)
    return folder


def run(source: Path, out: Path, recipe: Recipe = DEFAULT_RECIPE, **options: Any) -> Report:
    return convert(Job(source, out, recipe, **options))


def conversion(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "conversion.json").read_text())
    return found


def left_in(folder: Path) -> list[str]:
    """All that lies in a folder, hidden entries too."""
    return sorted(path.name for path in folder.iterdir())


# ---- without mlx


def numpy_arrays(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file as they are; bfloat16 becomes float32, which holds it exactly."""
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        array = np.frombuffer(data[start:end], NUMPY[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = array
    return arrays


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Rows of a stream of `bits`-bit numbers, lowest bits first."""
    stream = np.unpackbits(packed.view(np.uint8), axis=-1, bitorder="little")
    digits = stream.reshape(packed.shape[0], -1, bits).astype(np.uint32)
    return (digits << np.arange(bits, dtype=np.uint32)).sum(axis=-1)


def numpy_weights(folder: Path) -> dict[str, np.ndarray]:
    """Every parameter of a converted folder in float64: affine groups undone by their definition."""
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        arrays |= numpy_arrays(file)
    plan = {entry["name"]: entry["quantization"] for entry in conversion(folder)["plan"]}
    weights = {}
    for name, how in plan.items():
        path = name.removesuffix(".weight")
        if how is None:
            weights[name] = arrays[name].astype(np.float64)
            continue
        codes = unpack(arrays[f"{path}.weight"], how["bits"]).astype(np.float64)
        scales, biases = (
            np.repeat(arrays[f"{path}.{part}"].astype(np.float64), how["group_size"], axis=-1)
            for part in ("scales", "biases")
        )
        weights[name] = codes * scales + biases
    return weights


def relative(new: Iterable[np.ndarray], old: Iterable[np.ndarray]) -> float:
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(new, old, strict=True)]
    difference = sum(((a - b) ** 2).sum() for a, b in pairs)
    return float(np.sqrt(difference / sum((b**2).sum() for _, b in pairs)))


# ---- in another process


class Worker:
    """A conversion in a process of its own, which waits in the middle of a stage for `go_on`."""

    def __init__(self, source: Path, out: Path, stage: str = "converting", *options: str) -> None:
        script = str(Path(__file__).with_name("convert_worker.py"))
        self.process = subprocess.Popen(
            python(script, str(source), str(out), stage, *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        with bounded(self.process):
            line = self.process.stdout.readline()
        assert line == f"{stage}\n", self.process.communicate()[1]

    def go_on(self) -> tuple[int, str]:
        _, problem = self.process.communicate("\n", timeout=60)
        return self.process.returncode, problem

    def signal(self, number: int) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode
