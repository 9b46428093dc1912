"""Headers of a checkpoint folder → the parameters of a drafter: prefixes off, packed triples put together.

Pure: no byte of weights is read. What a drafter's parameters are comes from `layout.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dflash_mlx.errors import UserError
from dflash_mlx.weights import TensorInfo

from .recipe import AFFINE_BITS, FIXED_MODES, Mode, Packing

PREFIXES = ("model.", "draft_model.", "module.")  # what training frameworks wrap a drafter in
FLOATS = ("BF16", "F16", "F32")
NAMED = 3  # tensors that an error names; the rest are counted
HINT = "config.json and weights are from different checkpoints, or the download is incomplete"


@dataclass(frozen=True)
class Layout:
    """What a drafter of some config consists of.

    Attributes:
        shapes: Of its parameters, unquantized, by their names in the module.
        parameter_name: A checkpoint's tensor name → a name in the module.
    """

    shapes: Mapping[str, tuple[int, ...]]
    parameter_name: Callable[[str], str]


@dataclass(frozen=True)
class Tensor:
    """One parameter in a checkpoint.

    Attributes:
        name: In the checkpoint, without a prefix.
        parameter: In the module.
        shape: Unquantized.
        weight: Its place; packed integers if it is quantized.
        packing: None if it is plain.
        scales: Of a quantized one, as `biases`, which only affine quantization has.
    """

    name: str
    parameter: str
    shape: tuple[int, ...]
    weight: TensorInfo
    packing: Packing | None = None
    scales: TensorInfo | None = None
    biases: TensorInfo | None = None

    @property
    def parts(self) -> tuple[TensorInfo, ...]:
        """All that is stored of it."""
        return tuple(part for part in (self.weight, self.scales, self.biases) if part is not None)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return sum(part.nbytes for part in self.parts)


def without_prefix(name: str) -> str:
    """`name` as it is in the published checkpoints."""
    while prefix := next((one for one in PREFIXES if name.startswith(one)), None):
        name = name.removeprefix(prefix)
    return name


def drafter_tensors(found: Mapping[str, TensorInfo], layout: Layout) -> list[Tensor]:
    """The parameters of a drafter, in the order of the module's names.

    Args:
        found: What the headers say (`dflash_mlx.weights.read_folder`).
        layout: What there has to be.

    Raises:
        UserError: A parameter is missing, extra, there twice, or has a wrong shape or dtype.
    """
    names: dict[str, TensorInfo] = {}
    for name, info in found.items():
        plain = without_prefix(name)
        if plain in names:
            raise UserError(
                f"the tensors `{names[plain].name}` and `{name}` are the same one", "remove one of them"
            )
        names[plain] = info
    scaled = [name.removesuffix(".scales") for name in names if name.endswith(".scales")]
    packed = {path for path in scaled if f"{path}.weight" in names}
    parts = {f"{path}{part}" for path in packed for part in (".scales", ".biases")}
    tensors: dict[str, Tensor] = {}
    extra: list[str] = []
    for name, info in names.items():
        if name in parts:
            continue
        parameter = layout.parameter_name(name)
        shape = layout.shapes.get(parameter)
        if shape is None:
            extra.append(name)
            continue
        if parameter in tensors:
            raise UserError(
                f"the tensors `{tensors[parameter].name}` and `{name}` are the same one", "remove one of them"
            )
        path = name.removesuffix(".weight")
        tensors[parameter] = (
            _packed(name, parameter, shape, names) if path in packed else _plain(name, parameter, shape, info)
        )
    missing = [name for name in layout.shapes if name not in tensors]
    _refuse(missing, extra)
    return [tensors[name] for name in layout.shapes]


def _refuse(missing: list[str], extra: list[str]) -> None:
    problems = [
        f"{len(names)} {'is' if len(names) == 1 else 'are'} {what}: {_first(names)}"
        for what, names in (("missing", missing), ("not part of this drafter", extra))
        if names
    ]
    if problems:
        raise UserError(f"the weights do not fit config.json; of the tensors, {'; '.join(problems)}", HINT)


def _first(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:NAMED])
    return f"{shown} and {len(names) - NAMED} more" if len(names) > NAMED else shown


def _plain(name: str, parameter: str, shape: tuple[int, ...], info: TensorInfo) -> Tensor:
    if info.dtype not in FLOATS:
        raise UserError(
            f"the tensor `{name}` has the dtype {info.dtype}",
            f"save the checkpoint in bfloat16 or float32 ({', '.join(FLOATS)} can be read)",
        )
    if info.shape != shape:
        raise UserError(
            f"the tensor `{name}` has the shape {list(info.shape)}, by config.json it is {list(shape)}", HINT
        )
    return Tensor(name, parameter, shape, info)


def _packed(name: str, parameter: str, shape: tuple[int, ...], names: Mapping[str, TensorInfo]) -> Tensor:
    path = name.removesuffix(".weight")
    weight, scales, biases = names[f"{path}.weight"], names[f"{path}.scales"], names.get(f"{path}.biases")
    packing = _packing(shape, weight, scales, biases)
    if packing is None:
        raise UserError(
            f"the quantized tensor `{name}` ({weight.dtype} {list(weight.shape)}, scales {scales.dtype} "
            f"{list(scales.shape)}) does not fit the matrix {list(shape)} of config.json",
            HINT,
        )
    return Tensor(name, parameter, shape, weight, packing, scales, biases)


def _packing(
    shape: tuple[int, ...], weight: TensorInfo, scales: TensorInfo, biases: TensorInfo | None
) -> Packing | None:
    """From the shapes alone: the config's `quantization` speaks of most modules, not of all."""
    rows, *columns = shape
    if len(columns) != 1 or weight.dtype != "U32" or scales.shape[:-1] != (rows,):
        return None
    group_size, left = divmod(columns[0], scales.shape[-1])
    bits, more = divmod(weight.shape[-1] * 32, columns[0])
    if left or more or weight.shape[:-1] != (rows,):
        return None
    if scales.dtype == "U8" and biases is None:
        modes: list[Mode] = ["mxfp4", "nvfp4", "mxfp8"]
        mode = next((one for one in modes if FIXED_MODES[one] == (bits, group_size)), None)
        return Packing(bits, group_size, mode) if mode else None
    affine = biases is not None and biases.shape == scales.shape and biases.dtype == scales.dtype
    return Packing(bits, group_size) if affine and scales.dtype in FLOATS and bits in AFFINE_BITS else None
