"""Plans and proofs of conversions → text: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dflash_mlx.weights_convert.plan import Summary, count, size

if TYPE_CHECKING:
    from dflash_mlx.weights_convert.report import Report

NARROW = 72  # columns; below, each kind of layer gets three short lines instead of one
_GAP = "   "


def plan_table(summary: Summary, columns: int, errors: Mapping[str, float] | None = None) -> str:
    """What becomes of the tensors, by kind of layer, and the totals.

    Args:
        summary: Of the plan.
        columns: Of the terminal; what does not fit is left out, or goes to more lines.
        errors: Relative error by kind, once it is known.
    """
    head = ["layer", "n", "shape", "now", "becomes", "before", "after"]
    cells = [
        [
            row.kind.removeprefix("candidate_"),
            str(row.tensors),
            "×".join(str(axis) for axis in row.shape),
            row.was,
            row.becomes,
            size(row.bytes_before),
            size(row.bytes_after),
        ]
        for row in summary.rows
    ]
    sides = "<><<<>>"
    if errors is not None:
        head.append("error")
        sides += ">"
        for line, row in zip(cells, summary.rows, strict=True):
            line.append(_error(errors[row.kind]))
    total = [
        f"{summary.tensors} tensors",
        f"{count(summary.parameters)} parameters",
        f"{size(summary.bytes_before)} → {size(summary.bytes_after)}",
        f"{summary.bits_per_weight:.2f} bits per weight",
    ]
    notes = _notes(summary)
    if columns < NARROW:
        lines = [line for cell in cells for line in _stacked(cell)]
        return "\n".join([*lines, "", *total, *notes]) + "\n"
    lines = _aligned([head, *cells], sides)
    for left_out in (2, 2, 3):  # the shape, then what it is now, then its size
        if max(len(line) for line in lines) > columns:
            for line in (head, *cells):
                del line[left_out]
            sides = sides[:left_out] + sides[left_out + 1 :]
            lines = _aligned([head, *cells], sides)
    return "\n".join([*lines, "", _GAP.join(total), *notes]) + "\n"


def proof_table(hidden: Mapping[str, float], target: Mapping[str, float] | None) -> str:
    """Relative errors of the values layer by layer, and what the drafts with a target have in common."""
    lines: list[str] = []
    if hidden:
        rows = [(place, _error(error)) for place, error in hidden.items()]
        lines += ["", *_aligned([("values on synthetic input", "error"), *rows], "<>")]
    if target is not None:
        rows = [
            ("drafts with the target", f"{target['drafts']:.0f}"),
            ("logits, error", _error(target["logits"])),
            ("same greedy token", f"{target['path_agreement']:.1%}"),
            ("same 16 best candidates", f"{target['top_16_overlap']:.1%}"),
        ]
        lines += ["", *_aligned(rows, "<>")]
    return "\n".join([*lines, ""]) if lines else ""


def result_line(report: Report, out: str) -> str:
    """One line on a finished conversion: what was really done."""
    summary, files = report.summary, len(report.files)
    parts = [
        f"wrote {out}",
        report.done,
        f"{size(summary.bytes_before)} → {size(summary.bytes_after)}",
        f"{files} file{'s' if files > 1 else ''}",
        f"{report.seconds:.1f} s",
        "verified" if report.proof else "not verified",
    ]
    return _GAP.join(parts) + "\n"


def _notes(summary: Summary) -> list[str]:
    """Why kinds of layers are not what the recipe says, one line for each reason."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for row in summary.rows:
        if row.note:
            kinds.setdefault((row.becomes, row.note), []).append(row.kind)
    return [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {becomes}: {note}"
        for (becomes, note), names in kinds.items()
    ]


def _error(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def _stacked(cell: Sequence[str]) -> list[str]:
    kind, tensors, _, _, becomes, before, after, *error = cell
    sizes = _GAP.join([f"  {before} → {after}", *(f"error {one}" for one in error)])
    return [kind, f"  {tensors} × {becomes}", sizes]


def _aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Cells under each other, left (`<`) or right (`>`)."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(sides))]
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True))
        for row in rows
    ]
    return [line.rstrip() for line in lines]
