"""Rows of a parameter → rows of what it becomes. Groups lie within rows, so blocks are independent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import mlx.core as mx

from dflash_mlx.errors import UserError

from .plan import Planned
from .reader import Reader
from .recipe import Dtype, Packing

MX_DTYPES: Mapping[Dtype, mx.Dtype] = MappingProxyType(
    {"bfloat16": mx.bfloat16, "float32": mx.float32, "float16": mx.float16}
)
# Of each float format: an integer view, the bits besides the sign, and infinity's. Not finite means at least
# infinity. On a CPU this is three times as fast as `isfinite`.
_BITS: Mapping[mx.Dtype, tuple[mx.Dtype, int, int]] = MappingProxyType(
    {
        mx.bfloat16: (mx.uint16, 0x7FFF, 0x7F80),
        mx.float16: (mx.uint16, 0x7FFF, 0x7C00),
        mx.float32: (mx.uint32, 0x7FFFFFFF, 0x7F800000),
    }
)


def all_finite(values: mx.array) -> bool:
    """Whether no float of `values` is NaN or infinite."""
    if values.dtype not in _BITS:
        return True  # packed integers
    dtype, mask, infinity = _BITS[values.dtype]
    largest = (values.view(dtype) & mx.array(mask, dtype)).max()
    return bool((largest < mx.array(infinity, dtype)).item())


def converted(planned: Planned, reader: Reader, rows: slice) -> list[mx.array]:
    """Read a block of rows and make of it what the plan says.

    Returns:
        The rows of each of `planned.outputs`.

    Raises:
        UserError: A value is not finite, in the file, in the new dtype or as a scale; it names the tensor.
    """
    tensor = planned.tensor
    if planned.action == "keep":
        arrays = [reader.stored(part, rows) for part in tensor.parts]
        _check(planned, arrays, arrays)
        return arrays
    values = reader.values(tensor, rows)
    cast = values.astype(MX_DTYPES[planned.dtype])
    _check(planned, [values], [cast])
    if planned.packing is None:
        return [cast]
    packed = list(mx.quantize(cast, **planned.packing.entry()))
    # The width of a group's range can overflow where its ends do not.
    if not all(all_finite(array) for array in packed):
        raise beyond_packing(tensor.name, planned.packing, planned.dtype)
    return packed


def _check(planned: Planned, before: Iterable[mx.array], after: Iterable[mx.array]) -> None:
    if all(all_finite(array) for array in after):
        return
    name = planned.tensor.name
    if all(all_finite(array) for array in before):
        raise beyond_range(name, planned.dtype)
    raise not_finite(name)


def not_finite(name: str) -> UserError:
    """The error for a NaN or an infinity in the source."""
    return UserError(
        f"the tensor `{name}` has values that are not finite",
        "this checkpoint is broken: download it again, or take an earlier one of the training",
    )


def beyond_range(name: str, dtype: str) -> UserError:
    """The error for a value that a dtype cannot hold."""
    wider = (
        "`--dtype bfloat16` or `--dtype float32` hold" if dtype == "float16" else "`--dtype float32` holds"
    )
    return UserError(f"the tensor `{name}` has values beyond the range of {dtype}", f"{wider} them")


def beyond_packing(name: str, packing: Packing, dtype: str) -> UserError:
    """The error for a group of values whose scale its dtype cannot hold."""
    return UserError(
        f"the tensor `{name}` has values too large for {packing} with scales in {dtype}",
        "choose `--dtype bfloat16`" if dtype == "float16" else "`--bits 16` quantizes nothing",
    )


def check_supported(packing: Packing) -> None:
    """Try a small matrix: not every build of mlx has every format.

    Raises:
        UserError: mlx on this machine cannot quantize so, or not multiply with the result.
    """
    columns = max(128, packing.group_size)
    how = packing.entry()
    try:
        packed = mx.quantize(mx.ones((32, columns), mx.bfloat16), **how)
        mx.eval(mx.quantized_matmul(mx.ones((1, columns), mx.bfloat16), *packed, **how))
    except (ValueError, RuntimeError) as problem:
        raise UserError(
            f"mlx cannot compute with {packing} on this machine: {problem}",
            "`--mode affine` works everywhere",
        ) from problem
