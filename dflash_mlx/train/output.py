"""The trained drafter as a folder in the published layout: `load_drafter`, `convert` and `generate` take it.

The folder is written beside its place and then put there, so it is never half of one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.config import to_write
from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.drafters.precision import dtype_name
from dflash_mlx.errors import UserError
from dflash_mlx.train.report import METRICS_FILE, Evaluated
from dflash_mlx.weights import SINGLE_FILE

CARD_FILE = "README.md"
RECORD_FILE = "training.json"  # marks a folder that training made, and may make again


@dataclass(frozen=True)
class Result:
    """What is written.

    Attributes:
        drafter: In the dtype that it was trained in.
        config: config.json.
        names: Of its tensors, by parameter.
        target: Name of the target.
        record: Settings, data and steps: `training.json`.
        evaluated: The last evaluation.
    """

    drafter: DFlashDrafter
    config: Mapping[str, Any]
    names: Mapping[str, str]
    target: str
    record: Mapping[str, Any]
    evaluated: Evaluated | None


def check_output(out: Path) -> None:
    """Before any work.

    Raises:
        UserError: There is something that training did not make.
    """
    if out.is_dir():
        if any(out.iterdir()) and not (out / RECORD_FILE).is_file():
            raise UserError(f"`{out}` exists and was not made by `train`", "choose another `--out`")
    elif out.exists() or out.is_symlink():
        raise UserError(f"`{out}` is not a folder", "choose another `--out`")


def write_output(out: Path, result: Result, work: Path) -> None:
    """Write the folder, with the curves that lie in `work`.

    Raises:
        UserError: The disk does not take it.
    """
    partial, replaced = (out.with_name(f".{out.name}.{state}") for state in ("partial", "replaced"))
    try:
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)
        _write(partial, result, out.name)
        for file in sorted(work.iterdir()):
            if file.suffix == ".png" or file.name == METRICS_FILE:
                shutil.copyfile(file, partial / file.name)
        if out.exists():
            out.rename(replaced)
        partial.rename(out)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, RuntimeError) as problem:
        raise UserError(
            f"`{out}` cannot be written: {problem}",
            "free some space, and run it again: the checkpoint is kept",
        ) from problem


def _write(folder: Path, result: Result, name: str) -> None:
    config = {**to_write(result.config), "dtype": dtype_name(result.drafter.dtype)}
    parameters: dict[str, mx.array] = dict(tree_flatten(result.drafter.parameters()))
    weights = {result.names[parameter]: value for parameter, value in parameters.items()}
    mx.save_safetensors(str(folder / SINGLE_FILE), weights, metadata={"format": "mlx"})
    for file, content in (("config.json", config), (RECORD_FILE, dict(result.record))):
        (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / CARD_FILE).write_text(card(result, name), encoding="utf-8")


def card(result: Result, name: str) -> str:
    """The model card, in Markdown with the hub's front matter."""
    record, config = result.record, result.drafter.config
    parameters: dict[str, mx.array] = dict(tree_flatten(result.drafter.parameters()))
    count = sum(value.size for value in parameters.values())
    rows = [
        ("target", f"`{result.target}`"),
        ("generation", str(config.generation)),
        ("parameters", f"{count:,} in {config.num_layers} layers"),
        ("block size", str(config.block_size)),
        ("taps", f"after target layers {', '.join(map(str, config.target_layer_ids))} (from 0)"),
        ("mask token", f"{config.mask_token_id}, {record['mask_token']}"),
        ("data", f"{record['sequences']} sequences, {record['tokens']:,} tokens"),
        ("trained", f"{record['step']} of {record['steps']} steps"),
    ]
    return (
        "\n".join(
            [
                "---",
                "library_name: mlx",
                "tags:",
                "- mlx",
                "- dflash",
                "- speculative-decoding",
                "---",
                "",
                f"# {name}",
                "",
                f"A DFlash drafter for `{result.target}`, trained with `dflash-mlx train`.",
                "It drafts blocks of tokens, and the target decides on every one of them.",
                "",
                "```console",
                f"$ dflash-mlx generate --target {result.target} --drafter ./{name} --prompt TEXT",
                "```",
                "",
                "| | |",
                "| --- | --- |",
                *(f"| {left} | {right} |" for left, right in rows),
                "",
                *_evaluation(result.evaluated),
                f"`{RECORD_FILE}` has all settings, `{METRICS_FILE}` the curves.",
                "",
                "## Licence",
                "",
                f"The weights were learned from `{result.target}`: its licence says what that allows.",
            ]
        )
        + "\n"
    )


def _evaluation(found: Evaluated | None) -> list[str]:
    if found is None:
        return ["It was not evaluated.", ""]
    where = "prompts of the training itself" if found.training_prompts else "held-out prompts"
    lines = [f"## Acceptance, greedy, on {found.prompts} {where}", "", "| | |", "| --- | --- |"]
    if found.tau is not None:
        lines.append(f"| τ, tokens per verify pass | {found.tau:.2f} |")
    if found.tau_argmax is not None:
        lines.append(f"| τ by argmax alone | {found.tau_argmax:.2f} |")
    for name, values in (("accuracy", found.accuracy), ("recall@16", found.recall)):
        lines.append(f"| {name} by position | {' '.join(f'{value:.2f}' for value in values)} |")
    return [*lines, ""]
