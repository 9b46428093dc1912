"""A target and a drafter to a `Pair`; what configs and headers tell is checked before weights are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from huggingface_hub.errors import StrictDataclassError
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, load_model, load_tokenizer

from dflash_mlx import blas, device, memory
from dflash_mlx.chunks import first_rows
from dflash_mlx.config_fields import Fields, read_config_json
from dflash_mlx.drafters import load_drafter
from dflash_mlx.drafters.precision import dtype_name
from dflash_mlx.errors import UserError
from dflash_mlx.estimate import Estimate, drafter_caches, widths_of
from dflash_mlx.hub import Hub, Resolved
from dflash_mlx.memory import DEFAULT_CONTEXT
from dflash_mlx.pair import Pair
from dflash_mlx.residency import residency
from dflash_mlx.scores import attention_scores
from dflash_mlx.sources import Name, Sources, fitting_config, look, text_config
from dflash_mlx.targets import build_target, family_of
from dflash_mlx.targets.footprint import cache_footprint
from dflash_mlx.weights import read_folder

if TYPE_CHECKING:
    import mlx.nn as nn
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from dflash_mlx.drafters.dflash import DFlashDrafter
    from dflash_mlx.targets.model import ModelTarget

__all__ = ["Pair", "check_download", "fitting_config", "load_pair"]

# Quantized and bfloat16 products on a CPU cost as much per row at any width, so speculation cannot pay
# there; float32 with a real BLAS is nearly flat (SmolLM2-135M, two cores: 80 ms a row, 140 ms eight rows).
CPU_FLOAT32_BELOW_BYTES = 1_000_000_000

# Two logits of a model this small are often the same number in bfloat16's eight bits, and a pass over several
# rows then tells them apart otherwise than a pass over one. In float32 they are still small.
FLOAT32_BELOW_BYTES = 100_000_000

CPU_SPARE = 32 * 2**20  # bytes of freed buffers that mlx keeps on a CPU (mlx/backend/no_gpu/allocator.cpp)

# mlx's quantized products cost more with every row: 3 to 5 rows are best on Macs at 4 bits.
QUANTIZED_WIDTH = 4


def load_pair(
    target: Name,
    drafter: Name | None = None,
    *,
    plain: bool = False,
    revision: str | None = None,
    drafter_revision: str | None = None,
    context: int = DEFAULT_CONTEXT,
    force: bool = False,
    hub: Hub = Hub(),
) -> Pair:
    """Load a target and a drafter that was made for it; repositories are downloaded if they have to be.

    Args:
        target: Folder or repository (`owner/name`) with a model that mlx-lm can load: config.json,
            safetensors, tokenizer.
        drafter: Folder or repository with a DFlash drafter, original or already in MLX format; None for the
            one that the registry knows for this target.
        plain: Load no drafter: for plain decoding only.
        revision: Branch, tag or commit of the target's repository.
        drafter_revision: Of the drafter's repository.
        context: Tokens that the caches must have room for, as far as the model was made for so many.
        force: Load it even if the machine's memory is too small by the estimate.
        hub: The way to repositories; its listener is told how far downloads are.

    Returns:
        The pair. A target under 100 MB and its drafter are held in float32, on a CPU those under 1 GB, and
        `Pair.dtype` says so.

    Raises:
        UserError: Something is wrong with the folders or repositories, no drafter is known, the two do not
            fit each other, or they do not fit into memory.

    Example:
        >>> pair = load_pair("mlx-community/Qwen3.8-27B-4bit")  # doctest: +SKIP
        >>> pair = load_pair("./Qwen3-8B-4bit", "./Qwen3-8B-DFlash")  # doctest: +SKIP
    """
    sources = look(
        target, drafter, plain=plain, revision=revision, drafter_revision=drafter_revision, hub=hub
    )
    if not force:
        check_download(sources.target, hub)
    sources = sources.fetch(hub)
    return _load(sources, context, force=force)


def check_download(target: Resolved, hub: Hub) -> None:
    """Weights that alone do not fit into memory need not be downloaded to find out.

    Raises:
        UserError: They do not fit.
    """
    weights = None if target.complete else hub.weight_bytes(target)
    if weights is not None:
        memory.check(target.name, memory.Need(weights), this_machine())


def _load(sources: Sources, context: int, *, force: bool) -> Pair:
    folder = sources.target.folder
    config = read_config_json(folder)
    model_type, _ = family_of(config)
    chosen = sources.drafter
    drafter_config = None if chosen is None else fitting_config(chosen.folder, config)
    read_folder(folder)
    if chosen is not None:
        read_folder(chosen.folder)

    model, tokenizer = _load_target(folder)
    dtype, drafter_dtype = _prepare(model, config)
    built = build_target(model, model_type)
    built_drafter = None
    if chosen is not None:
        built_drafter = load_drafter(chosen.folder, config=drafter_config, dtype=drafter_dtype, lazy=True)
    # Until here everything is lazy: no weights were read.
    longest = Fields(text_config(config), {}, "").optional_integer("max_position_embeddings")
    estimate, there = estimate_of(built, built_drafter, config), this_machine()
    context = context if longest is None else min(context, longest)
    need = estimate.need(context)
    if not force:
        memory.check(sources.target.name, need, there)
    mx.eval(model.parameters())
    if built_drafter is not None:
        mx.eval(built_drafter.parameters())

    quantized = any("scales" in module for module in model.modules())
    block_size = 1 if drafter_config is None else drafter_config.block_size
    pair = Pair(
        target=built,
        drafter=built_drafter,
        tokenizer=tokenizer,
        target_name=sources.target.name,
        drafter_name=None if chosen is None else chosen.name,
        stop_ids=frozenset(tokenizer.eos_token_ids),
        context_length=longest,
        default_width=min(block_size, QUANTIZED_WIDTH) if quantized else block_size,
        device=str(device.current()),
        dtype=dtype,
        blas=None if device.current().gpu else blas.preload().name,
        weight_bytes=need.target + need.drafter,
        memory_context=memory.longest_context(estimate.need, there, longest),
        attention_scores=tuple(estimate.scores),
        first_rows=first_rows(parameter_count(model), device.current().kind),
    )
    residency.keep(built, estimate.spare(context, there.available))
    return pair


def estimate_of(target: ModelTarget, drafter: DFlashDrafter | None, config: dict[str, Any]) -> Estimate:
    """What target and drafter take, by the context's length."""
    text, item_bytes = text_config(config), target.dtype.size
    caches = list(cache_footprint(target.model))
    scores = attention_scores(caches, text, item_bytes, device.current().kind)
    widths = widths_of(
        text,
        max((cache.head_dim for cache in caches), default=0),
        taps=0 if drafter is None else drafter.config.num_taps,
        block=1 if drafter is None else drafter.config.block_size,
        vocabulary=target.vocab_size,
    )
    weights = memory.Need(_nbytes(target.model), 0 if drafter is None else _nbytes(drafter))
    if drafter is not None:
        caches += drafter_caches(drafter.config, drafter.dtype.size)
    spare_limit = None if device.current().gpu else CPU_SPARE
    return Estimate(weights, caches, scores, widths, item_bytes, spare_limit=spare_limit)


def parameter_count(model: nn.Module) -> int:
    """How many weights there are, quantized ones counted one by one."""
    count = 0
    for module in model.modules():
        if "scales" in module:
            count += module.scales.size * module.group_size
        else:
            count += sum(array.size for array in module.values() if isinstance(array, mx.array))
    return count


def _nbytes(module: nn.Module) -> int:
    parameters: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    return sum(array.nbytes for array in parameters.values())


def this_machine() -> memory.Machine:
    """Its memory, and what mlx's device may use of it."""
    physical = None
    # Not on every system; there a CPU's memory is not known, and nothing is refused.
    if {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return memory.machine(device.current().info, physical)


def _load_target(folder: Path) -> tuple[nn.Module, TokenizerWrapper]:
    """Model (weights not read yet) and tokenizer.

    The tokenizer knows mlx-lm's stop ids: those of the generation config, else of the config, and its own.
    """
    try:
        model, config = load_model(folder, lazy=True)
        # Multimodal configs keep the stop ids with the text part.
        tokenizer = load_tokenizer(folder, eos_token_ids=text_config(config).get("eos_token_id"))
    # What mlx-lm and transformers raise over files that are not what the config says.
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RuntimeError,
        OSError,
        ImportError,
        ArithmeticError,
        StrictDataclassError,
    ) as problem:
        reason = str(problem).strip().partition("\n")[0] or type(problem).__name__
        raise UserError(
            f"mlx-lm cannot load `{folder}`: {reason}", "`--debug` shows the whole error"
        ) from problem
    return model, tokenizer


def _prepare(model: nn.Module, config: dict[str, Any]) -> tuple[str, mx.Dtype | None]:
    """Choose float32 where that is what pays or what is safe, reading nothing yet.

    Returns:
        The dtype of the target's activations in words, and its drafter's; None leaves it to the device.
    """
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    floating = next(w.dtype for w in weights.values() if mx.issubdtype(w.dtype, mx.floating))
    stored = dtype_name(floating)
    bits = (config.get("quantization") or {}).get("bits")
    if bits is not None:
        stored = f"{bits}-bit, {stored}"
    size = sum(w.nbytes for w in weights.values())
    tiny = size < FLOAT32_BELOW_BYTES
    small_on_cpu = size < CPU_FLOAT32_BELOW_BYTES and not device.current().gpu
    if (tiny or small_on_cpu) and stored != "float32":
        dequantize_model(model)
        model.set_dtype(mx.float32)
        stored = f"float32 (stored: {stored})"
    return stored, mx.float32 if tiny else None
