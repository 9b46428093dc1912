"""Targets: mlx-lm's own conversion, with the same options, and the same kind of proof."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.convert import convert as mlx_lm_convert
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.utils import dequantize_model, load_model, quantize_model

from dflash_mlx.drafters.precision import dtype_name
from dflash_mlx.errors import UserError
from dflash_mlx.weights import read_folder

from .plan import Row, Summary, kind_of, nothing_fits, summarize
from .progress import Counter, Listener
from .quantize import MX_DTYPES, all_finite, beyond_packing, beyond_range, not_finite
from .reader import BLOCK_BYTES, Reader
from .recipe import Dtype, Packing, Recipe
from .source import Source
from .tensors import FLOATS, Tensor
from .verify import ErrorSum, check_error

QUANTIZABLE = (nn.Linear, nn.Embedding, SwitchLinear)  # modules whose matrix is expected to be quantized
PACKED = ("weight", "scales", "biases")  # what a quantized module has in place of its weight


def target_recipe(source: Source, recipe: Recipe) -> Recipe:
    """The recipe as it will be carried out: mlx-lm quantizes all that it can, in the config's dtype.

    Raises:
        UserError: The target is quantized already, and not to be dequantized.
    """
    config = source.config
    if recipe.packing and ("quantization" in config or "quantization_config" in config):
        raise UserError(
            f"`{source.folder}` is quantized already",
            "convert the original, or undo it first: `--bits 16`",
        )
    nested = config.get("text_config") or {}
    dtype = recipe.dtype or config.get("torch_dtype") or nested.get("dtype")
    return replace(recipe, name="all", dtype=dtype if dtype in get_args(Dtype) else None)


def target_summary(source: Source, recipe: Recipe) -> Summary:
    """What mlx-lm will make of it, in numbers: its own functions, on weights that are never read.

    Raises:
        UserError: The folder is damaged, mlx-lm cannot load it, or no matrix of it can be quantized so.
    """
    stored = read_folder(source.folder)
    with _of_mlx_lm(source.folder):
        model, config = load_model(source.folder, lazy=True)
        before = _parameters(model, None)
        matrices = [path for path, module in model.named_modules() if isinstance(module, QUANTIZABLE)]
        if recipe.packing:
            model, _ = quantize_model(model, config, **recipe.packing.entry())
        elif _packings(model):
            model = dequantize_model(model)
    after = _parameters(model, None if recipe.dtype is None else MX_DTYPES[recipe.dtype])
    notes: dict[str, str] = {}
    if recipe.packing:
        packed = _packings(model)
        if not packed:
            raise nothing_fits("target", recipe.packing)
        names = [f"{path}.weight" for path in matrices if path not in packed]
        notes = {name: _why_left(before[name].shape, recipe.packing) for name in names}
    rows = [
        Row(
            kind_of(name),
            1,
            old.shape,
            old.what,
            after[name].what,
            old.nbytes,
            after[name].nbytes,
            notes.get(name, ""),
        )
        for name, old in before.items()
    ]
    # What mlx-lm leaves out, as a vision tower, is in the source's bytes all the same.
    return replace(summarize(rows), bytes_before=sum(info.nbytes for info in stored.values()))


def _why_left(shape: tuple[int, ...], packing: Packing) -> str:
    if shape[-1] % packing.group_size:
        return f"{shape[-1]} columns are no multiple of {packing.group_size}"
    return "mlx-lm leaves it alone"


def check_finite(source: Source, block_bytes: int, listener: Listener) -> None:
    """Read all floats of the source once: mlx's quantization hides a NaN (it becomes a number like others).

    Raises:
        UserError: A value is not finite; it names the tensor.
    """
    infos = read_folder(source.folder).values()
    found = [info for info in infos if info.dtype in FLOATS and info.shape and info.nbytes]
    counter = Counter("checking the source", sum(info.nbytes for info in found), listener)
    with Reader(block_bytes) as reader:
        for info in found:
            tensor = Tensor(info.name, info.name, info.shape, info)
            for rows in reader.blocks(tensor):
                if not all_finite(reader.stored(info, rows)):
                    raise not_finite(info.name)
                counter.add(info.nbytes * (rows.stop - rows.start) // info.shape[0])
            mx.clear_cache()


def convert_target(source: Source, folder: Path, recipe: Recipe) -> None:
    """Let mlx-lm convert a target.

    Args:
        source: The target.
        folder: Does not exist yet.
        recipe: As `target_recipe` gave it.

    Raises:
        UserError: mlx-lm cannot load or write it.
    """
    how = recipe.packing.entry() if recipe.packing else {}
    with _of_mlx_lm(source.folder):
        mlx_lm_convert(
            str(source.folder),
            str(folder),
            quantize=recipe.packing is not None,
            dtype=recipe.dtype,
            dequantize=recipe.packing is None and "quantization" in source.config,
            **{f"q_{name}": value for name, value in how.items()},
        )


def target_weight_errors(source: Source, folder: Path, total: int, listener: Listener) -> dict[str, float]:
    """Load both again and compare them, one parameter at a time.

    Args:
        source: The original.
        folder: The result.
        total: Bytes of the source's weights.
        listener: Told how many of them were compared.

    Raises:
        UserError: The result cannot be loaded, or has a value that is not finite; see also `check_error`.
    """
    counter = Counter("checking weights", total, listener)
    with _of_mlx_lm(folder):
        old, new = (load_model(path, lazy=True)[0] for path in (source.folder, folder))
    sums: dict[str, ErrorSum] = {}
    old_packings, new_packings = _packings(old), _packings(new)
    mine, theirs = dict(_modules(new)), dict(_modules(old))
    # From here on only the two dictionaries hold the arrays, which go one by one.
    del old, new
    for path in list(theirs):
        parts, wanted_parts = mine.pop(path), theirs.pop(path)
        wanted, found = _plain(wanted_parts, old_packings.get(path)), _plain(parts, new_packings.get(path))
        for name, value in wanted.items():
            if not mx.isfinite(found[name]).all().item():
                packing, dtype = new_packings.get(path), dtype_name(found[name].dtype)
                if packing is not None and name == "weight":
                    raise beyond_packing(f"{path}.{name}", packing, dtype)
                raise beyond_range(f"{path}.{name}", dtype)
            one = ErrorSum()
            _add(one, found[name], value)
            check_error(f"{path}.{name}", one.relative)
            sums.setdefault(kind_of(f"{path}.{name}"), ErrorSum()).merge(one)
        counter.add(sum(array.nbytes for array in wanted_parts.values()))
        mx.clear_cache()
    return {kind: one.relative for kind, one in sums.items()}


def _add(error: ErrorSum, found: mx.array, wanted: mx.array) -> None:
    step = max(1, BLOCK_BYTES // (4 * max(1, wanted.size // wanted.shape[0])))
    for start in range(0, wanted.shape[0], step):
        error.add(found[start : start + step], wanted[start : start + step])


def _packings(model: nn.Module) -> dict[str, Packing]:
    """How the quantized modules are."""
    return {
        path: Packing(module.bits, module.group_size, module.mode)
        for path, module in model.named_modules()
        if "scales" in module
    }


def _modules(model: nn.Module) -> Iterator[tuple[str, dict[str, mx.array]]]:
    """Paths of the modules that have parameters of their own, with these."""
    arrays: dict[str, dict[str, mx.array]] = {}
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    for name, value in parameters.items():
        path, _, leaf = name.rpartition(".")
        arrays.setdefault(path, {})[leaf] = value
    yield from arrays.items()


def _plain(parts: dict[str, mx.array], packing: Packing | None) -> dict[str, mx.array]:
    """A module's parameters, dequantized."""
    if packing is None:
        return parts
    rest = {name: value for name, value in parts.items() if name not in PACKED}
    weight = mx.dequantize(parts["weight"], parts["scales"], parts.get("biases"), **packing.entry())
    return {"weight": weight, **rest}


@dataclass(frozen=True)
class _Parameter:
    """Unquantized shape, what it is in words, and the bytes of all that is stored of it."""

    shape: tuple[int, ...]
    what: str
    nbytes: int


def _parameters(model: nn.Module, dtype: mx.Dtype | None) -> dict[str, _Parameter]:
    """The parameters of a lazy model by name, floats counted as `dtype` unless it is None."""
    packings, found = _packings(model), {}
    for path, arrays in _modules(model):
        packing = packings.get(path)
        for name, value in _plain(arrays, packing).items():
            packed = packing is not None and name == "weight"
            stored = [arrays[one] for one in PACKED if one in arrays] if packed else [value]
            what = str(packing) if packed else dtype_name(_as(dtype, value))
            nbytes = sum(array.size * _as(dtype, array).size for array in stored)
            found[f"{path}.{name}"] = _Parameter(tuple(value.shape), what, nbytes)
    return found


def _as(dtype: mx.Dtype | None, array: mx.array) -> mx.Dtype:
    return dtype if dtype and mx.issubdtype(array.dtype, mx.floating) else array.dtype


@contextlib.contextmanager
def _of_mlx_lm(folder: Path) -> Iterator[None]:
    """mlx-lm's prints go nowhere, its exceptions become a sentence."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except OSError as problem:
        raise UserError(f"`{folder}` cannot be converted: {problem.strerror or problem}") from problem
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, ImportError) as problem:
        reason = str(problem).strip().partition("\n")[0] or type(problem).__name__
        raise UserError(
            f"mlx-lm cannot convert `{folder}`: {reason}", "`--debug` shows the whole error"
        ) from problem
