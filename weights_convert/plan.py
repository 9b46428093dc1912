"""What becomes of every tensor, and how many bytes that is: from headers alone, before anything is read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from dflash_mlx.errors import UserError
from dflash_mlx.weights import DTYPE_BYTES

from .recipe import Dtype, Packing, Recipe
from .tensors import Tensor

Action = Literal["keep", "cast", "dequantize", "quantize"]

DTYPES: Mapping[Dtype, str] = MappingProxyType({"bfloat16": "BF16", "float32": "F32", "float16": "F16"})
# Matrices that the default recipe leaves alone: the selector's choices hang on small differences of scores,
# and the convolutions' taps scale whole channels. Of the Qwen3.8-27B drafter's 1.36 GB that costs 0.28.
KEPT_BY_DEFAULT = ("_codebook.weight", "hidden_projection.weight", "kernel_projection.weight")
LAYER = re.compile(r".*\blayers\.\d+\.")


@dataclass(frozen=True)
class Output:
    """A tensor of the new files."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Planned:
    """One parameter and what becomes of it.

    Attributes:
        tensor: Where it is now.
        action: "keep" copies the bytes; "dequantize" and "quantize" go by way of `dtype`.
        dtype: Of the plain result, or of scales.
        packing: Of the result; None if it is plain.
        note: Why it is not what the recipe says of most matrices; "" if it is.
    """

    tensor: Tensor
    action: Action
    dtype: Dtype
    packing: Packing | None
    note: str = ""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The new tensors: one, or weight, scales and, in affine mode, biases."""
        shape, name = self.tensor.shape, self.tensor.name
        if self.packing is None:
            return (Output(name, DTYPES[self.dtype], shape),)
        path, rows, columns = name.removesuffix(".weight"), shape[0], shape[1]
        packed = Output(f"{path}.weight", "U32", (rows, columns * self.packing.bits // 32))
        groups = rows, columns // self.packing.group_size
        if self.packing.mode != "affine":
            return packed, Output(f"{path}.scales", "U8", groups)
        dtype = DTYPES[self.dtype]
        return packed, Output(f"{path}.scales", dtype, groups), Output(f"{path}.biases", dtype, groups)

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return sum(output.nbytes for output in self.outputs)

    @property
    def becomes(self) -> str:
        """In words: `4-bit affine, group 64` or `bfloat16`."""
        return str(self.packing) if self.packing else self.dtype

    @property
    def was(self) -> str:
        """In words, as `becomes`."""
        if self.tensor.packing:
            return str(self.tensor.packing)
        return next(name for name, code in DTYPES.items() if code == self.tensor.weight.dtype)


@dataclass(frozen=True)
class Row:
    """The tensors of one kind of layer that fare alike: a line of the table."""

    kind: str
    tensors: int
    shape: tuple[int, ...]
    was: str
    becomes: str
    bytes_before: int
    bytes_after: int
    note: str = ""


@dataclass(frozen=True)
class Summary:
    """A plan in numbers, of a drafter or of a target.

    Attributes:
        parameters: Unquantized weights.
        bytes_after: Of the tensors; a file's header and the files beside it are some kB more.
    """

    tensors: int
    parameters: int
    bytes_before: int
    bytes_after: int
    rows: tuple[Row, ...]

    @property
    def bits_per_weight(self) -> float:
        """Of the result, scales included."""
        return 8 * self.bytes_after / self.parameters

    @property
    def share_packed(self) -> float:
        """Of the weights, those that are quantized in the result."""
        plain = sum(row.tensors * math.prod(row.shape) for row in self.rows if row.becomes in DTYPES)
        return 1 - plain / self.parameters

    @property
    def misfits(self) -> bool:
        """True if matrices stay as they are that the recipe would have quantized."""
        return any(row.note and row.becomes in DTYPES for row in self.rows)


@dataclass(frozen=True)
class Plan:
    """The conversion of a drafter, complete before it starts."""

    recipe: Recipe
    tensors: tuple[Planned, ...]

    def summary(self) -> Summary:
        """The plan in numbers, one row per kind of layer."""
        rows = [
            Row(
                kind_of(one.tensor.parameter),
                1,
                one.tensor.shape,
                one.was,
                one.becomes,
                one.tensor.nbytes,
                one.nbytes,
                one.note,
            )
            for one in self.tensors
        ]
        return summarize(rows)

    def quantization(self) -> dict[str, Any] | None:
        """The `quantization` object of config.json: what most modules have, and the paths that differ."""
        packed = {one.tensor.name.removesuffix(".weight"): one.packing for one in self.tensors if one.packing}
        if self.recipe.packing is None or not packed:
            return None
        differing = {path: one.entry() for path, one in packed.items() if one != self.recipe.packing}
        return {**self.recipe.packing.entry(), **differing}


def make_plan(tensors: Iterable[Tensor], recipe: Recipe) -> Plan:
    """Decide for every tensor.

    Args:
        tensors: Of a drafter.
        recipe: Its `dtype` None is bfloat16.

    Raises:
        UserError: The recipe quantizes, but no matrix can be.
    """
    plan = Plan(recipe, tuple(_planned(tensor, recipe, recipe.dtype or "bfloat16") for tensor in tensors))
    if recipe.packing and plan.quantization() is None:
        raise nothing_fits("drafter", recipe.packing)
    return plan


def nothing_fits(model: str, packing: Packing) -> UserError:
    """The error for a recipe that would leave every matrix as it is."""
    return UserError(
        f"no matrix of this {model} can be quantized as {packing}",
        "`--group-size 32` fits more shapes; `--bits 16` quantizes nothing",
    )


def _planned(tensor: Tensor, recipe: Recipe, dtype: Dtype) -> Planned:
    packing, note = _packing(tensor, recipe)
    if packing is None:
        same = tensor.packing is None and tensor.weight.dtype == DTYPES[dtype]
        action: Action = "keep" if same else "dequantize" if tensor.packing else "cast"
        return Planned(tensor, action, dtype, None, note)
    # Quantizing once more what is already as wanted would only lose precision.
    same = tensor.packing == packing and all(
        part.dtype in ("U32", "U8", DTYPES[dtype]) for part in tensor.parts
    )
    return Planned(tensor, "keep" if same else "quantize", dtype, packing, note)


def _packing(tensor: Tensor, recipe: Recipe) -> tuple[Packing | None, str]:
    wanted = recipe.packing
    if wanted is None or len(tensor.shape) != 2 or not tensor.parameter.endswith(".weight"):
        return None, ""
    if recipe.name == "default" and tensor.parameter.endswith(KEPT_BY_DEFAULT):
        return None, ""
    columns = tensor.shape[1]
    fitted = wanted.fitted(columns)
    if fitted is None:
        return None, f"{columns} columns are no multiple of a group"
    return fitted, "" if fitted == wanted else f"{columns} columns are no multiple of {wanted.group_size}"


def size(nbytes: int) -> str:
    """In words, three digits: `1.36 GB`."""
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if nbytes >= 10**power:
            amount = nbytes / 10**power
            return f"{amount:.{max(0, 2 - len(str(int(amount))) + 1)}f} {unit}"
    return f"{nbytes} B"


def count(parameters: int) -> str:
    """In words: `1.924 G`."""
    return f"{parameters / 1e9:.3f} G" if parameters >= 10**8 else f"{parameters / 1e6:.3f} M"


def kind_of(parameter: str) -> str:
    """`layers.3.mlp.up_proj.weight` → `mlp.up_proj`: what tensors of the same role have in common."""
    return LAYER.sub("", parameter).removesuffix(".weight")


def summarize(rows: Iterable[Row]) -> Summary:
    """Add up rows of one tensor each; those that differ in nothing but the layer become one."""
    merged: dict[tuple[object, ...], Row] = {}
    tensors = parameters = 0
    for row in rows:
        tensors += row.tensors
        parameters += row.tensors * math.prod(row.shape)
        key = row.kind, row.shape, row.was, row.becomes, row.note
        before = merged.get(key)
        if before is not None:
            row = Row(
                row.kind,
                before.tensors + row.tensors,
                row.shape,
                row.was,
                row.becomes,
                before.bytes_before + row.bytes_before,
                before.bytes_after + row.bytes_after,
                row.note,
            )
        merged[key] = row
    lines = tuple(merged.values())
    return Summary(
        tensors,
        parameters,
        sum(row.bytes_before for row in lines),
        sum(row.bytes_after for row in lines),
        lines,
    )
