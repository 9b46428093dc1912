"""Training proper: from sequences to a folder.

The work lies in `OUT.training`: checkpoint and curves. Running the same thing again goes on from there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.config import DrafterConfig, parse_config
from dflash_mlx.config_fields import read_config_json
from dflash_mlx.drafters.precision import drafter_dtype, dtype_name
from dflash_mlx.targets import FAMILIES
from dflash_mlx.train import state
from dflash_mlx.train.answers import fingerprint
from dflash_mlx.train.batches import Plan, TrainingSequence, hold_out
from dflash_mlx.train.defaults import TargetFacts, new_config
from dflash_mlx.train.evaluate import evaluate
from dflash_mlx.train.features import KeptFeatures
from dflash_mlx.train.loss import Sums, number
from dflash_mlx.train.mask_token import check_mask_token, choose_mask_token
from dflash_mlx.train.output import Result, write_output
from dflash_mlx.train.pace import Deadline, Pace
from dflash_mlx.train.plot import PLOT_FILE, can_plot, plot
from dflash_mlx.train.report import (
    METRICS_FILE,
    Evaluated,
    Event,
    Listener,
    Metrics,
    Note,
    Saved,
    Started,
    Stepped,
    Stopped,
)
from dflash_mlx.train.settings import Settings
from dflash_mlx.train.speed import time_parts
from dflash_mlx.train.start import Start, from_folder, new_drafter
from dflash_mlx.train.step import Trainer

if TYPE_CHECKING:
    from dflash_mlx.pair import Pair

EVALUATIONS = 10  # in a run, unless `eval_every` says otherwise
TIMED_STEP = 2  # after which step the parts are timed: everything is compiled then
_DTYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32}


@dataclass(frozen=True)
class Job:
    """What to do.

    Attributes:
        target: Folder of the pair's target.
        prompts: File of rows.
        out: The folder to make.
        answers: Folder where answers are kept, for this run and others.
        source: Folder of a drafter to go on from; None for a new one.
        restart: Forget an earlier run with this `out`.
    """

    target: Path
    prompts: Path
    out: Path
    answers: Path
    settings: Settings = field(default_factory=Settings)
    source: Path | None = None
    restart: bool = False

    @property
    def work(self) -> Path:
        """Checkpoint and curves."""
        return self.out.with_name(f"{self.out.name}.training")


class Run:
    """Training proper, from sequences to a folder.

    Args:
        pair: Target and tokenizer.
        job: What to do.
        sequences: Held-out ones among them.
        target: The target's fingerprint.
        listener: Told of everything.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        pair: Pair,
        job: Job,
        sequences: Sequence[TrainingSequence],
        target: str,
        listener: Listener,
        clock: Callable[[], float],
    ) -> None:
        self._pair, self._job, self._settings, self._clock = pair, job, job.settings, clock
        self._listener = listener
        self._trained, held_out = hold_out(sequences, self._settings)
        self._held_out = held_out or self._trained
        self._no_held_out = not held_out
        self._plan = Plan(self._trained, self._settings)
        wanted = None if self._settings.dtype is None else _DTYPES[self._settings.dtype]
        dtype = drafter_dtype(wanted)
        data = sha256(json.dumps([[s.tokens, s.start] for s in sequences]).encode()).hexdigest()
        source = None if job.source is None else fingerprint(job.source)
        self._identity = state.identity(self._settings, target, data, dtype_name(dtype), source)
        if job.restart:
            shutil.rmtree(job.work, ignore_errors=True)
        found = state.load(job.work)
        self.step = 0
        if found is not None:
            arrays, before = found
            state.check_same(before.identity, self._identity, job.work)
            self.step = before.step
        job.work.mkdir(parents=True, exist_ok=True)
        self._metrics = Metrics(job.work / METRICS_FILE, self.step)
        if found is None:
            self._start, self._mask = self._begin(sequences, dtype_name(dtype))
        else:
            fresh = new_drafter(before.config, self._complete(before.config), self._settings.seed)
            self._start, self._mask = Start(fresh.drafter, before.config, before.names), "as before"
        self._trainer = Trainer(self._start.drafter, pair.target, self._settings, self._plan.steps, dtype)
        if found is not None:
            self._trainer.load(arrays)
        self._features = KeptFeatures(self._trainer, self._trained, self._settings)
        self._evaluated: Evaluated | None = None
        self._saving = self._evaluating = 0.0  # seconds that the slowest one took

    def run(self, cancelled: Callable[[], bool], deadline: Deadline) -> Stopped:
        """Train to the end, to the deadline, or until it is cancelled; then save and write the folder."""
        self._tell(self._started())
        if self.step == 0:
            self._save()  # so that what it takes is known
            self._evaluate()
        reason = self._steps(cancelled, deadline)
        self._save()
        self._write()
        stopped = Stopped(reason, self.step, self._plan.steps, self._job.out)
        self._tell(stopped)
        return stopped

    def _steps(
        self, cancelled: Callable[[], bool], deadline: Deadline
    ) -> Literal["finished", "budget", "interrupted"]:
        pace = Pace()
        ahead = self.step < self._plan.steps
        if ahead and not self._features.fill(
            self._listener, lambda: cancelled() or deadline.over(self._saving)
        ):
            return "interrupted" if cancelled() else "budget"
        every = self._settings.eval_every or max(1, self._plan.steps // EVALUATIONS)
        saved = self._clock()
        while self.step < self._plan.steps:
            if cancelled():
                return "interrupted"
            # A checkpoint and the folder are still to be written.
            if deadline.over(pace.slowest + 2 * self._saving):
                return "budget"
            started = self._clock()
            batches = self._plan.step(self.step)
            chosen = map(self._plan.chosen, self._plan.numbers(self.step))
            features = [self._features.of(*each) for each in zip(batches, chosen, strict=True)]
            sums, norm = self._trainer.step(batches, features)
            self.step += 1
            tokens = sum(round(number(batch.lengths.sum())) for batch in batches)
            blocks = sum(round(number(batch.used.sum())) for batch in batches)
            pace.add(self._clock() - started, tokens, blocks)
            self._tell(self._stepped(sums, norm, pace, deadline))
            if self.step == TIMED_STEP:
                self._tell(time_parts(self._trainer, batches[0], kept=self._features.kept))
            if self.step % self._settings.clear_cache_every == 0:
                mx.clear_cache()
            last = self.step == self._plan.steps
            if (last or self.step % every == 0) and not deadline.over(self._evaluating + 2 * self._saving):
                self._evaluate()
            if self._clock() - saved >= self._settings.save_every:
                self._save()
                saved = self._clock()
        return "finished"

    def _begin(self, sequences: Sequence[TrainingSequence], dtype: str) -> tuple[Start, str]:
        """The first weights, and why the mask token is what it is."""
        job, pair, shape = self._job, self._pair, self._settings.shape
        if job.source is not None:
            raw = read_config_json(job.source)
            start = from_folder(job.source, self._complete(raw))
            return start, "as the drafter had it"
        used = {token for sequence in sequences for token in sequence.tokens}
        if shape.mask_token is None:
            mask = choose_mask_token(pair.tokenizer, pair.target, pair.stop_ids, used)
        else:
            mask = check_mask_token(shape.mask_token, pair.tokenizer, pair.target, pair.stop_ids)
        self._tell(Note(f"mask token {mask.id}: {mask.reason}"))
        target = pair.target
        facts = TargetFacts(
            read_config_json(job.target), target.num_layers, target.hidden_size, target.vocab_size
        )
        raw = new_config(facts, shape, mask.id, dtype)
        return new_drafter(raw, self._complete(raw), self._settings.seed), mask.reason

    def _complete(self, raw: Mapping[str, Any]) -> DrafterConfig:
        target = self._pair.target
        scaled = FAMILIES[target.model_type].scaled_drafter_embedding
        return parse_config(raw).for_target(
            target.num_layers,
            target.hidden_size,
            target.vocab_size,
            target.hidden_size**0.5 if scaled else None,
        )

    def _started(self) -> Started:
        parameters: dict[str, mx.array] = dict(tree_flatten(self._trainer.weights))
        return Started(
            step=self.step,
            steps=self._plan.steps,
            parameters=sum(value.size for value in parameters.values()),
            sequences=len(self._trained),
            tokens=sum(len(sequence.tokens) for sequence in self._trained),
            held_out=0 if self._no_held_out else len({sequence.prompt for sequence in self._held_out}),
        )

    def _stepped(self, sums: Sums, norm: mx.array, pace: Pace, deadline: Deadline) -> Stepped:
        means = sums.means()
        left = pace.left(self._plan.steps - self.step)
        if left is not None and deadline.left is not None:
            left = min(left, max(0.0, deadline.left))
        return Stepped(
            step=self.step,
            steps=self._plan.steps,
            loss=means.loss,
            selector_loss=means.selector_loss,
            accuracy=means.accuracy,
            norm=number(norm),
            learning_rate=number(self._trainer.learning_rate),
            tokens_per_second=pace.rate(pace.tokens),
            blocks_per_second=pace.rate(pace.blocks),
            seconds_left=left,
        )

    def _evaluate(self) -> None:
        started = self._clock()
        found = evaluate(self._trainer, self._pair, self._held_out, self.step, training=self._no_held_out)
        if found is not None:
            self._evaluated = found
            self._tell(found)
        self._evaluating = max(self._evaluating, self._clock() - started)
        mx.clear_cache()

    def _save(self) -> None:
        started = self._clock()
        progress = state.Progress(
            self.step, self._identity, dict(self._start.config), dict(self._start.names)
        )
        path = state.save(self._job.work, self._trainer.arrays(), progress)
        self._saving = max(self._saving, self._clock() - started)
        self._tell(Saved(self.step, path))

    def _write(self) -> None:
        job = self._job
        if can_plot():
            plot(job.work / METRICS_FILE, job.work / PLOT_FILE)
        record = {
            "step": self.step,
            "steps": self._plan.steps,
            "sequences": len(self._trained),
            "tokens": sum(len(sequence.tokens) for sequence in self._trained),
            "mask_token": self._mask,
            "settings": self._identity,
        }
        result = Result(
            self._trainer.restore(),
            self._start.config,
            self._start.names,
            self._pair.target_name,
            record,
            self._evaluated,
        )
        write_output(job.out, result, job.work)

    def _tell(self, event: Event) -> None:
        self._metrics.add(event)
        self._listener(event)


_DTYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32}
