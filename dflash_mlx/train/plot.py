"""The curves of a run as a picture; needs the extra `plot`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dflash_mlx.train.report import read_metrics

PLOT_FILE = "curves.png"


def can_plot() -> bool:
    """True if matplotlib is installed."""
    return find_spec("matplotlib") is not None


def plot(metrics: Path, picture: Path) -> None:
    """Draw loss, τ and accuracy by position.

    Args:
        metrics: A `metrics.jsonl`.
        picture: The PNG to write.
    """
    from matplotlib.figure import Figure

    lines = read_metrics(metrics)
    steps = [line for line in lines if line["kind"] == "step"]
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    loss, tau, accuracy = figure.subplots(1, 3)
    for name, label in (("loss", "cross-entropy"), ("selector_loss", "selector")):
        loss.plot([line["step"] for line in steps], [line[name] for line in steps], label=label)
    loss.plot(
        [line["step"] for line in evaluations], [line["loss"] for line in evaluations], "o", label="held out"
    )
    loss.set(title="loss", xlabel="step", yscale="log")
    for name, label in (("tau", "the drafter's own path"), ("tau_argmax", "argmax")):
        known = [line for line in evaluations if line[name] is not None]
        tau.plot([line["step"] for line in known], [line[name] for line in known], "o-", label=label)
    tau.set(title="acceptance length τ, held out", xlabel="step")
    for line in evaluations:
        accuracy.plot(range(1, len(line["accuracy"]) + 1), line["accuracy"], label=f"step {line['step']}")
    accuracy.set(title="accuracy by position, held out", xlabel="position in the block", ylim=(0, 1))
    for axes in (loss, tau):
        axes.legend()
    figure.savefig(picture)
