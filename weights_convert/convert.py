"""A whole conversion, in order: look, plan, write, prove, put in place."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from dflash_mlx.config import DrafterConfig, parse_config, to_write
from dflash_mlx.config_fields import read_config_json
from dflash_mlx.drafters import load_drafter
from dflash_mlx.errors import UserError
from dflash_mlx.weights import read_folder, weight_files

from .card import write_card
from .layout import drafter_layout, with_vocabulary
from .plan import Plan, Summary, make_plan
from .progress import Counter, Listener, Progress
from .quantize import check_supported, converted
from .reader import BLOCK_BYTES, Reader
from .recipe import DEFAULT_RECIPE, Recipe
from .report import Proof, Report, write_report
from .source import Kind, Source, read_source
from .staging import check_output, check_space, staging, writing
from .tensors import Tensor, drafter_tensors
from .verify import hidden_errors, weight_errors
from .writer import SHARD_BYTES, Writer


@dataclass(frozen=True)
class Job:
    """What to do.

    Attributes:
        source: A local model folder.
        out: Folder to make.
        kind: What the source is; "auto" tells by its config.
        overwrite: Replace `out` if an earlier conversion made it.
        verify: Prove the result before it gets its name.
        target: Folder of the drafter's target, for a proof with real prompts as well.
        shard_bytes: Largest weights file, unless a single matrix is larger.
        block_bytes: Rows in work at a time, counted in float32.
    """

    source: Path
    out: Path
    recipe: Recipe = DEFAULT_RECIPE
    kind: Literal["auto", Kind] = "auto"
    overwrite: bool = False
    verify: bool = True
    target: Path | None = None
    shard_bytes: int = SHARD_BYTES
    block_bytes: int = BLOCK_BYTES


@dataclass(frozen=True)
class Prepared:
    """A source that was looked at, and what will become of it; no weights were read.

    Attributes:
        recipe: With the dtype that will be used.
        plan: Of a drafter, as `config`; None for a target.
        target_layers: Of the drafter's target, if it was given.
    """

    source: Source
    recipe: Recipe
    summary: Summary
    plan: Plan | None = None
    config: DrafterConfig | None = None
    target_layers: int | None = None


def prepare(
    folder: Path,
    recipe: Recipe = DEFAULT_RECIPE,
    kind: Literal["auto", Kind] = "auto",
    target: Path | None = None,
) -> Prepared:
    """Plan from config.json and the headers alone.

    Args:
        folder: A local model folder.
        recipe: What is wanted.
        kind: What the folder holds; "auto" tells by its config.
        target: Folder of the drafter's target, if the result is to be proved with it.

    Raises:
        UserError: The folder is no model or damaged, config and tensors do not agree, or the recipe or the
            target does not fit.
    """
    source = read_source(folder, kind)
    if recipe.packing:
        check_supported(recipe.packing)
    if source.kind == "target":
        from .target import target_recipe, target_summary

        if target is not None:
            raise UserError(f"`--target` is for drafters, `{folder}` is itself a target", "leave it out")
        recipe = target_recipe(source, recipe)
        return Prepared(source, recipe, target_summary(source, recipe))
    config = parse_config(source.config)
    if recipe.dtype == "float16" and config.generation == 2:
        raise UserError(
            "float16 cannot hold this drafter: activations of the second generation reach 3e6",
            "use `--dtype bfloat16` or `--dtype float32`",
        )
    target_layers = None if target is None else _check_target(folder, target).num_target_layers
    config, tensors = _tensors(folder, config)
    recipe = replace(recipe, dtype=recipe.dtype or "bfloat16")
    plan = make_plan(tensors, recipe)
    return Prepared(source, recipe, plan.summary(), plan, config, target_layers)


def convert(job: Job, listener: Listener = lambda progress: None) -> Report:
    """Convert a drafter or a target; the result appears under its name complete or not at all.

    Args:
        job: What to do.
        listener: Told how far it is.

    Returns:
        What was done, as in the result's `conversion.json`.

    Raises:
        UserError: See `prepare`; a value is not finite, a file ends too early, the disk is full, the output
            exists or another process writes to it; or, unless `job.verify` is False, a tensor is off by more
            than `verify.LARGEST_ERROR`.

    Example:
        >>> convert(Job(Path("Qwen3.8-27B-DFlash2"), Path("Qwen3.8-27B-DFlash2-4bit")))  # doctest: +SKIP
    """
    began = time.perf_counter()
    check_output(job.source, job.out, overwrite=job.overwrite)
    prepared = prepare(job.source, job.recipe, job.kind, job.target if job.verify else None)
    companions = sum(path.stat().st_size for path in prepared.source.companions)
    check_space(job.out, prepared.summary.bytes_after + companions)
    with staging(job.out, overwrite=job.overwrite) as folder:
        if prepared.plan is None:
            proof = _convert_target(job, prepared, folder, listener)
        else:
            proof = _convert_drafter(job, prepared, folder, listener)
        report = Report(
            prepared.source,
            prepared.recipe,
            prepared.summary,
            prepared.plan,
            proof,
            tuple(path.name for path in weight_files(folder)),
            time.perf_counter() - began,
        )
        with writing():
            write_report(report, folder)
            write_card(report, job.out.resolve().name, folder)
    return report


def _convert_drafter(job: Job, prepared: Prepared, folder: Path, listener: Listener) -> Proof | None:
    plan, source = prepared.plan, prepared.source
    assert plan is not None
    _write_weights(job, plan, folder, listener)
    with writing():
        text = json.dumps(_new_config(source.config, plan, prepared.target_layers), indent=2) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")
        _copy_companions(source, folder)
    return _prove_drafter(job, prepared, folder, listener) if job.verify else None


def _write_weights(job: Job, plan: Plan, folder: Path, listener: Listener) -> None:
    """Each tensor block by block, in the order of the source's bytes."""
    counter = Counter("converting", sum(one.tensor.nbytes for one in plan.tensors), listener)
    order = sorted(plan.tensors, key=lambda one: (one.tensor.weight.file, one.tensor.weight.start))
    groups = [one.outputs for one in plan.tensors]
    parameters = plan.summary().parameters
    with Reader(job.block_bytes) as reader, Writer(folder, groups, parameters, job.shard_bytes) as writer:
        for planned in order:
            tensor = planned.tensor
            for rows in reader.blocks(tensor):
                for output, array in zip(planned.outputs, converted(planned, reader, rows), strict=True):
                    writer.append(output.name, array)
                counter.add(tensor.nbytes * (rows.stop - rows.start) // tensor.shape[0])
            mx.clear_cache()  # freed buffers of one shape do not serve the next
        writer.finish()


def _prove_drafter(job: Job, prepared: Prepared, folder: Path, listener: Listener) -> Proof:
    """Read the result again, by the loader and by its numbers."""
    plan, config = prepared.plan, prepared.config
    assert plan is not None
    assert config is not None
    load_drafter(folder, config=replace(config, quantization=plan.quantization()), lazy=True)
    old = [one.tensor for one in plan.tensors]
    _, new = _tensors(folder, config)
    with Reader(job.block_bytes) as reader:
        weights = weight_errors(new, old, reader, listener)
        hidden = hidden_errors(new, old, config, reader, listener)
        if job.target is None:
            return Proof(weights, hidden)
        from .verify_target import target_numbers

        return Proof(weights, hidden, target_numbers(job.target, folder, old, reader, listener))


def _convert_target(job: Job, prepared: Prepared, folder: Path, listener: Listener) -> Proof | None:
    from .target import check_finite, convert_target, target_weight_errors

    source, total = prepared.source, prepared.summary.bytes_before
    check_finite(source, job.block_bytes, listener)
    listener(Progress("converting", 0, 0))  # mlx-lm does not tell how far it is
    folder.rmdir()  # mlx-lm wants to make it
    convert_target(source, folder, prepared.recipe)
    listener(Progress("converting", total, total))
    with writing():
        _copy_companions(source, folder)
    if not job.verify:
        return None
    return Proof(target_weight_errors(source, folder, total, listener), {})


def _check_target(folder: Path, target: Path) -> DrafterConfig:
    """Before minutes of work, what configs and headers say: does the target fit this drafter?

    Returns:
        The drafter's config, completed from the target's.
    """
    from dflash_mlx.load import fitting_config

    config = read_config_json(target)
    completed = fitting_config(folder, config)
    read_folder(target)
    return completed


def _tensors(folder: Path, config: DrafterConfig) -> tuple[DrafterConfig, list[Tensor]]:
    """A drafter's parameters from the headers, and its config with the vocabulary they show."""
    found = config.own_tensors(read_folder(folder))
    config.check_tensors(found)
    config = with_vocabulary(config, found)
    return config, drafter_tensors(found, drafter_layout(config))


def _new_config(config: Mapping[str, Any], plan: Plan, target_layers: int | None) -> dict[str, Any]:
    """The source's config in the published layout, with what became of its weights."""
    new = {name: value for name, value in to_write(config).items() if not name.startswith("quantization")}
    for name in ("dtype", "torch_dtype"):
        if name in new:
            new[name] = plan.recipe.dtype
    method = new.get("dflash_config") or {}
    if target_layers is not None and method.get("num_target_layers") is None:
        # Of the published ones; the authors' PyTorch code does not do without.
        new["num_target_layers"] = target_layers
    quantization = plan.quantization()
    if quantization is not None:
        # The second name is where the hub looks; mlx-lm writes both.
        new |= {"quantization": quantization, "quantization_config": quantization}
    return new


def _copy_companions(source: Source, folder: Path) -> None:
    for path in source.companions:
        if not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
