"""The model card of a result: where it comes from, what was done to it, and its licence."""

from __future__ import annotations

import json
from pathlib import Path

from .plan import count, size
from .report import REPORT_FILE, Proof, Report

CARD_FILE = "README.md"


def write_card(report: Report, name: str, folder: Path) -> None:
    """Write `README.md` for a model of this name."""
    (folder / CARD_FILE).write_text(card(report, name), encoding="utf-8")


def card(report: Report, name: str) -> str:
    """The text of the card, in Markdown with the hub's front matter.

    Args:
        report: Of the conversion.
        name: Of the result.
    """
    source, summary = report.source, report.summary
    revision = f"commit `{source.revision}`" if source.revision else "a local folder, commit not known"
    what = "A DFlash drafter" if source.kind == "drafter" else "A language model"
    lines = [
        *_front_matter(report),
        "",
        f"# {name}",
        "",
        f"{what} in MLX format, converted from `{source.name}` ({revision}).",
        "",
        "| | |",
        "| --- | --- |",
        f"| weights | {report.done} |",
        f"| recipe | {report.recipe.name if report.recipe.packing else 'none'} |",
        f"| parameters | {count(summary.parameters)} in {summary.tensors} tensors |",
        f"| size | {size(summary.bytes_after)}, {summary.bits_per_weight:.2f} bits per weight "
        f"(before: {size(summary.bytes_before)}) |",
        f"| licence | {source.license or 'not stated by the source'} |",
        "",
        *_usage(report, name),
        *(_errors(report.proof) if report.proof else ["The conversion was not verified.", ""]),
        f"`{REPORT_FILE}` has the details, tensor by tensor.",
        "",
        "## Licence",
        "",
        _licence(report),
    ]
    return "\n".join(lines) + "\n"


def _front_matter(report: Report) -> list[str]:
    source = report.source
    fields = {**source.card}
    # What a result of quantization is based on is the model that was quantized.
    if source.repository:
        fields["base_model"] = source.repository
    tags = ["mlx", *(["dflash", "speculative-decoding"] if source.kind == "drafter" else [])]
    return [
        "---",
        # A JSON string is a YAML string.
        *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()),
        "library_name: mlx",
        "tags:",
        *(f"- {tag}" for tag in tags),
        "---",
    ]


def _usage(report: Report, name: str) -> list[str]:
    if report.source.kind == "drafter":
        command = f"dflash-mlx generate --target TARGET --drafter ./{name} --prompt TEXT"
    else:
        command = f"dflash-mlx generate --target ./{name} --plain --prompt TEXT"
    return ["```console", f"$ {command}", "```", ""]


def _errors(proof: Proof) -> list[str]:
    lines = ["## Errors", "", "Relative to the source, `‖new - old‖ / ‖old‖`.", ""]
    for title, errors in (("weights", proof.weights), ("values on synthetic input", proof.hidden)):
        if errors:
            rows = (f"| {place} | {error:.2e} |" for place, error in errors.items())
            lines += [f"| {title} | |", "| --- | --- |", *rows, ""]
    if proof.target:
        lines += ["| drafts with the target | |", "| --- | --- |"]
        lines += [f"| {key.replace('_', ' ')} | {value:.4g} |" for key, value in proof.target.items()]
        lines += [""]
    return lines


def _licence(report: Report) -> str:
    source = report.source
    if source.license:
        link = source.card.get("license_link")
        return f"That of `{source.name}`: {source.license}{f' ({link})' if link else ''}."
    return f"The source states none. That of `{source.name}` applies to this copy."
