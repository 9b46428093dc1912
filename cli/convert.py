"""`dflash-mlx convert`: a checkpoint folder → a folder of MLX weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dflash_mlx.errors import UserError

from . import console, convert_view, interrupt, models, options

if TYPE_CHECKING:
    from dflash_mlx.weights_convert.convert import Job
    from dflash_mlx.weights_convert.report import Report

EXAMPLE = """Example:

\b
  dflash-mlx convert ./Qwen3.8-27B-DFlash2 \\
    --out ./Qwen3.8-27B-DFlash2-4bit
  dflash-mlx convert incoai/Qwen3.8-27B-DFlash2 \\
    --out ./Qwen3.8-27B-DFlash2-4bit
"""

_WEIGHTS, _PROOF = "Weights", "Proof"


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A drafter or a target, folder or repository: safetensors and config.json.",
        ),
    ],
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FOLDER", help="The folder to make.")
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(metavar="REV", help="Branch, tag or commit of the source's repository."),
    ] = None,
    kind: Annotated[
        Literal["auto", "drafter", "target"],
        typer.Option(help="What the source is; a target goes through mlx-lm's own conversion."),
    ] = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier conversion made.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, from the headers alone, and stop.")
    ] = False,
    bits: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="2, 3, 4, 5, 6, 8, or 16 to quantize nothing.",
            show_default="4",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Weights that share a scale: 32, 64, 128.",
            show_default="64",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None,
    recipe: Annotated[
        Literal["default", "all"] | None,
        typer.Option(
            help="default: codebooks, selector projection and `kernel_projection` stay as they are; "
            "all: every matrix is quantized.",
            show_default="default",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None,
    mode: Annotated[
        Literal["affine", "mxfp4", "nvfp4", "mxfp8"],
        typer.Option(help="mlx's quantization format.", rich_help_panel=_WEIGHTS),
    ] = "affine",
    dtype: Annotated[
        Literal["bfloat16", "float32", "float16"] | None,
        typer.Option(
            help="Of what is not quantized; never float16 for the second generation.",
            show_default="bfloat16; a target's own",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify/--no-verify",
            help="Compare the result with the source, weight by weight and layer by layer.",
            rich_help_panel=_PROOF,
        ),
    ] = True,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="MODEL",
            help="Also compare drafts on real prompts with this target, folder or repository.",
            rich_help_panel=_PROOF,
        ),
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Convert a checkpoint from PyTorch safetensors to MLX, 4-bit unless told otherwise.

    The result appears under its name complete or not at all.
    """
    if not verify and target:
        raise UserError("`--target` and `--no-verify` contradict each other", "leave one out")
    for name, value in (("MODEL", source), ("--out", out), ("--target", target)):
        if value == "":  # as a path, that would be the folder one is in
            raise UserError(f"`{name}` is empty", "give it a folder" if name == "--out" else "name a model")
    if out is None and not dry_run:
        raise UserError("no output was given", "`--out FOLDER`, or `--dry-run` to see the plan only")
    from dflash_mlx.weights_convert.recipe import make_recipe

    wanted = make_recipe(bits, group_size, mode, dtype, recipe)
    folder = models.fetch(source, revision)
    proof_target = None if target is None else models.fetch(target, None)
    with console.working(f"reading {source}"):
        # Seconds of imports: only for those who convert.
        from dflash_mlx.weights_convert.convert import Job, prepare

        if out is None or dry_run:
            prepared = prepare(folder, wanted, kind, proof_target)
    if out is None or dry_run:
        _print_notes(prepared.source.notes)
        console.write(convert_view.plan_table(prepared.summary, console.columns()))
        return
    report = _run(Job(folder, Path(out), wanted, kind, overwrite, verify, proof_target))
    _print_notes(report.source.notes)
    proof = report.proof
    console.write(
        convert_view.plan_table(report.summary, console.columns(), proof.weights if proof else None)
        + (convert_view.proof_table(proof.hidden, proof.target) if proof else "")
        + "\n"
        + convert_view.result_line(report, out)
    )


def _run(job: Job) -> Report:
    from dflash_mlx.weights_convert.convert import convert

    try:
        with console.progress() as meter:
            return convert(job, lambda p: meter(p.stage, p.done, p.total, p.unit))
    except KeyboardInterrupt:
        console.note(f"interrupted: {job.out} was not written")
        raise typer.Exit(interrupt.EXIT_CODE) from None


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        console.note(note)
