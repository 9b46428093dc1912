"""The options of a conversion → a checked recipe. Pure: knows neither MLX nor files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from dflash_mlx.errors import UserError

Mode = Literal["affine", "mxfp4", "nvfp4", "mxfp8"]
Dtype = Literal["bfloat16", "float32", "float16"]
RecipeName = Literal["default", "all"]

AFFINE_BITS = (2, 3, 4, 5, 6, 8)
PLAIN_BITS = 16  # of `--bits`: quantize nothing
GROUP_SIZES = (32, 64, 128)
DEFAULT_BITS, DEFAULT_GROUP_SIZE = 4, 64
# Every other mode of mlx has exactly one number of bits and one group size.
FIXED_MODES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}
)


@dataclass(frozen=True)
class Packing:
    """How a matrix is quantized, in mlx's words."""

    bits: int
    group_size: int
    mode: Mode = "affine"

    def entry(self) -> dict[str, Any]:
        """As in the `quantization` object of a config.json, and as arguments of `mx.quantize`."""
        return {"group_size": self.group_size, "bits": self.bits, "mode": self.mode}

    def fitted(self, columns: int) -> Packing | None:
        """The same with the largest group, up to this one, that `columns` are a multiple of; None if none."""
        if columns % self.group_size == 0:
            return self
        smaller = [size for size in GROUP_SIZES if size < self.group_size and columns % size == 0]
        return replace(self, group_size=max(smaller)) if smaller and self.mode == "affine" else None

    def __str__(self) -> str:
        return f"{self.bits}-bit {self.mode}, group {self.group_size}"


@dataclass(frozen=True)
class Recipe:
    """What is wanted.

    Attributes:
        packing: Of the quantized matrices; None quantizes nothing.
        name: "default" keeps codebooks, selector projection and the convolutions' `kernel_projection`
            as they are; "all" quantizes every matrix.
        dtype: Of what is not quantized, and of scales; None leaves the choice to the kind of model.
    """

    packing: Packing | None = Packing(DEFAULT_BITS, DEFAULT_GROUP_SIZE)
    name: RecipeName = "default"
    dtype: Dtype | None = None

    def entry(self) -> dict[str, Any]:
        """For `conversion.json`."""
        packed = self.packing.entry() if self.packing else {"group_size": None, "bits": None, "mode": None}
        return {"recipe": self.name if self.packing else None, **packed, "dtype": self.dtype}

    def __str__(self) -> str:
        if self.packing is None:
            return f"{self.dtype or 'dtype as it is'}, not quantized"
        return f"{self.packing}, the rest in {self.dtype or 'its own dtype'}"


DEFAULT_RECIPE = Recipe()


def make_recipe(
    bits: int | None = None,
    group_size: int | None = None,
    mode: Mode = "affine",
    dtype: Dtype | None = None,
    name: RecipeName | None = None,
) -> Recipe:
    """The recipe that these options ask for.

    Args:
        bits: 2, 3, 4, 5, 6, 8, or 16 to quantize nothing; None for the mode's own, 4 in affine mode.
        group_size: 32, 64, 128; None for the mode's own, 64 in affine mode.
        mode: "affine", or one of mlx's floating formats.
        dtype: See `Recipe`.
        name: See `Recipe`; None is "default".

    Raises:
        UserError: They contradict each other, or mlx has no such format.

    Example:
        >>> str(make_recipe(bits=8).packing)
        '8-bit affine, group 64'
    """
    if bits == PLAIN_BITS:
        given = {"--group-size": group_size, "--recipe": name, "--mode": None if mode == "affine" else mode}
        for option, value in given.items():
            if value is not None:
                raise UserError(
                    f"`--bits {PLAIN_BITS}` and `{option} {value}` contradict each other",
                    f"{PLAIN_BITS} bits means that nothing is quantized",
                )
        return Recipe(None, "default", dtype)
    if mode in FIXED_MODES:
        fixed_bits, fixed_group = FIXED_MODES[mode]
        if bits not in (None, fixed_bits) or group_size not in (None, fixed_group):
            raise UserError(
                f"`{mode}` has {fixed_bits} bits and groups of {fixed_group}",
                f"leave out `--bits` and `--group-size` with `--mode {mode}`",
            )
        return Recipe(Packing(fixed_bits, fixed_group, mode), name or "default", dtype)
    bits = DEFAULT_BITS if bits is None else bits
    group_size = DEFAULT_GROUP_SIZE if group_size is None else group_size
    for what, value, allowed in (("bits", bits, AFFINE_BITS), ("group size", group_size, GROUP_SIZES)):
        if value not in allowed:
            choices = ", ".join(str(one) for one in allowed)
            extra = f", or {PLAIN_BITS} to quantize nothing" if what == "bits" else ""
            raise UserError(f"mlx has no quantization with {what} {value}", f"choose {choices}{extra}")
    return Recipe(Packing(bits, group_size, mode), name or "default", dtype)
