"""What was done, as `conversion.json` tells it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dflash_mlx

from .plan import Plan, Planned, Summary
from .recipe import Recipe
from .source import Source

REPORT_FILE = "conversion.json"


@dataclass(frozen=True)
class Proof:
    """What the verification found.

    Attributes:
        weights: Kind of layer → relative error, `‖new - old‖ / ‖old‖` over all its layers.
        hidden: Place in the drafter → relative error of its values; empty for a target.
        target: Name → number, of drafts with the real target (`verify_target.target_numbers`); None without.
    """

    weights: Mapping[str, float]
    hidden: Mapping[str, float]
    target: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Report:
    """A finished conversion.

    Attributes:
        recipe: Its `dtype` is the one that was used; None only for a target that kept several.
        plan: Of a drafter; None for a target, whose tensors are mlx-lm's business.
        proof: None if it was not asked for.
        files: Names of the weight files.
        seconds: Conversion and verification together.
    """

    source: Source
    recipe: Recipe
    summary: Summary
    plan: Plan | None
    proof: Proof | None
    files: tuple[str, ...]
    seconds: float

    @property
    def done(self) -> str:
        """What became of the weights, in words: the recipe, as far as it fitted."""
        if self.recipe.packing is None or not self.summary.misfits:
            return str(self.recipe)
        rest = self.recipe.dtype or "its own dtype"
        return f"{self.recipe.packing} in {self.summary.share_packed:.1%} of the weights, the rest in {rest}"


def report_json(report: Report) -> dict[str, Any]:
    """The object in `conversion.json`; names no folder of this machine but the source's own name."""
    source, summary = report.source, report.summary
    return {
        "version": 1,
        "made_with": {
            "dflash-mlx": dflash_mlx.__version__,
            **{name: version(name) for name in ("mlx", "mlx-lm")},
        },
        "source": {
            "name": source.name,
            "revision": source.revision,
            "license": source.license,
            "kind": source.kind,
            "architectures": source.config.get("architectures"),
        },
        "recipe": report.recipe.entry(),
        "tensors": summary.tensors,
        "parameters": summary.parameters,
        "bytes_before": summary.bytes_before,
        "bytes_after": summary.bytes_after,
        "bits_per_weight": round(summary.bits_per_weight, 4),
        "files": list(report.files),
        "seconds": round(report.seconds, 3),
        "verification": None
        if report.proof is None
        else {
            "weight_errors": dict(report.proof.weights),
            "hidden_errors": dict(report.proof.hidden),
            "target": None if report.proof.target is None else dict(report.proof.target),
        },
        "plan": None if report.plan is None else [_planned(one) for one in report.plan.tensors],
    }


def _planned(one: Planned) -> dict[str, Any]:
    return {
        "name": one.tensor.name,
        "shape": list(one.tensor.shape),
        "was": one.was,
        "action": one.action,
        "dtype": one.dtype,
        "quantization": one.packing.entry() if one.packing else None,
        **({"note": one.note} if one.note else {}),
    }


def write_report(report: Report, folder: Path) -> None:
    """Write `conversion.json`."""
    (folder / REPORT_FILE).write_text(json.dumps(report_json(report), indent=2, allow_nan=False) + "\n")
