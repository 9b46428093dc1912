"""What a run tells while it goes on: events for whoever watches, and `metrics.jsonl`.

Knows numbers; knows no tensors and no terminals.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Answered:
    """The target wrote answers: `done` of `total` are there, with `tokens` new tokens."""

    done: int
    total: int
    tokens: int


@dataclass(frozen=True)
class Read:
    """The target has read `done` of `total` sequences, whose features are kept."""

    done: int
    total: int


@dataclass(frozen=True)
class Note:
    """Something that a user should know, in one sentence."""

    text: str


@dataclass(frozen=True)
class Started:
    """Training begins.

    Attributes:
        step: 0, or where an earlier run stopped.
        steps: All of them.
        parameters: Of the drafter.
        sequences: That are trained on; `tokens` in all of them.
        held_out: Prompts that are not.
    """

    step: int
    steps: int
    parameters: int
    sequences: int
    tokens: int
    held_out: int


@dataclass(frozen=True)
class Stepped:
    """One update.

    Attributes:
        step: Updates so far.
        loss: Cross-entropy, weighted mean over the slots; `selector_loss` likewise, 0 in generation 1.
        accuracy: Per slot, how often the largest logit was the right token, in training.
        norm: Of the gradient before clipping.
        learning_rate: Of this update.
        tokens_per_second: Of sequences, through target and drafter; None for the first step.
        blocks_per_second: Likewise.
        seconds_left: To the end of the run or of the budget, whichever comes first; None for the first step.
    """

    step: int
    steps: int
    loss: float
    selector_loss: float
    accuracy: tuple[float, ...]
    norm: float
    learning_rate: float
    tokens_per_second: float | None
    blocks_per_second: float | None
    seconds_left: float | None


@dataclass(frozen=True)
class Evaluated:
    """On held-out prompts.

    Attributes:
        step: Updates so far.
        loss: As in `Stepped`.
        selector_loss: As in `Stepped`.
        accuracy: Per slot 1..W-1, how often the largest logit is the right token.
        recall: Per slot, how often it is among the 16 largest.
        selected: Per slot, how often the selector takes it from the right token before; generation 2.
        tau: Acceptance length of the engine with the drafter's own path, at full width, greedy.
        tau_argmax: Likewise with the argmax of every slot; the same number in generation 1.
        prompts: How many prompts τ was measured on.
        training_prompts: They are prompts of the training, because there is only one.
    """

    step: int
    loss: float
    selector_loss: float
    accuracy: tuple[float, ...]
    recall: tuple[float, ...]
    selected: tuple[float, ...]
    tau: float | None
    tau_argmax: float | None
    prompts: int
    training_prompts: bool


@dataclass(frozen=True)
class Timed:
    """Where the time of a pass goes, in seconds, measured part by part."""

    target_forward: float
    drafter: float
    head: float
    update: float
    tokens: int
    blocks: int

    @property
    def total(self) -> float:
        """Of all parts."""
        return self.target_forward + self.drafter + self.head + self.update


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on the disk."""

    step: int
    path: Path


@dataclass(frozen=True)
class Stopped:
    """The last event.

    Attributes:
        reason: "finished"; "budget": the minutes are over; "interrupted": somebody wanted it to stop.
        step: Updates so far, of `steps`.
        out: The drafter's folder; None if training had not begun.
    """

    reason: Literal["finished", "budget", "interrupted"]
    step: int
    steps: int
    out: Path | None


Event = Answered | Read | Note | Started | Stepped | Evaluated | Timed | Saved | Stopped
Listener = Callable[[Event], None]


class Metrics:
    """`metrics.jsonl`: a line per update and per evaluation.

    Args:
        path: The file.
        step: Lines of later steps are dropped: they belong to a run that was not saved.
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if _step(line) <= step]
        path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    def add(self, event: Event) -> None:
        """Write what is a measurement; other events are not."""
        if isinstance(event, Stepped | Evaluated | Timed):
            kind = {Stepped: "step", Evaluated: "evaluation", Timed: "speed"}[type(event)]
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, **asdict(event)}) + "\n")


def read_metrics(path: Path) -> list[Mapping[str, Any]]:
    """The lines of a `metrics.jsonl`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _step(line: str) -> int:
    try:
        return int(json.loads(line).get("step", 0))
    except ValueError:  # a line that a killed process did not finish
        return 1 << 62
