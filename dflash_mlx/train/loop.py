"""A training run from a file of prompts to a drafter's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dflash_mlx.errors import UserError
from dflash_mlx.residency import residency
from dflash_mlx.train.answers import AnswerFile, fingerprint, write_answers
from dflash_mlx.train.batches import TrainingSequence
from dflash_mlx.train.output import check_output
from dflash_mlx.train.pace import Deadline
from dflash_mlx.train.report import Listener, Note, Stopped
from dflash_mlx.train.rows import encode_rows, read_rows
from dflash_mlx.train.run import Job, Run

if TYPE_CHECKING:
    from dflash_mlx.pair import Pair


def train(
    pair: Pair,
    job: Job,
    listener: Listener,
    cancelled: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Stopped:
    """Train a drafter for the pair's target; see `Job`.

    Args:
        pair: Loaded without a drafter.
        job: What to do.
        listener: Told of everything; the last event is also returned.
        cancelled: Asked between steps; True saves and stops.
        clock: Seconds, monotonic.

    Raises:
        UserError: The data, the settings or the folders cannot be used.
    """
    check_output(job.out)
    deadline = Deadline(job.settings.minutes, clock)
    settings, target_name = job.settings, fingerprint(job.target)
    prompts = encode_rows(
        pair.tokenizer,
        read_rows(job.prompts),
        system=settings.answering.system,
        reasoning=settings.answering.reasoning,
    )
    kept = AnswerFile(job.answers, target_name)
    residency.keep(pair.target)
    answers = write_answers(
        pair, prompts, settings.answering, kept, listener, lambda: cancelled() or deadline.over()
    )
    if answers is None:
        stopped = Stopped("interrupted" if cancelled() else "budget", 0, 0, None)
        listener(stopped)
        return stopped
    texts = [TrainingSequence(p.ids, 1, max(1, len(p.ids) // 2), p.name) for p in prompts if p.ready]
    told = [
        TrainingSequence(a.prompt.ids + a.tokens, len(a.prompt.ids), len(a.prompt.ids), a.prompt.name)
        for a in answers
    ]
    sequences = _usable([*told, *texts], settings.max_length, listener)
    return Run(pair, job, sequences, target_name, listener, clock).run(cancelled, deadline)


def _usable(
    sequences: Sequence[TrainingSequence], max_length: int, listener: Listener
) -> list[TrainingSequence]:
    """Cut what is too long; leave out what has no room for a block."""
    cut = [
        TrainingSequence(s.tokens[:max_length], s.start, min(s.reply, max_length - 1), s.prompt)
        for s in sequences
    ]
    usable = [sequence for sequence in cut if len(sequence.anchors)]
    too_long = sum(len(sequence.tokens) > max_length for sequence in sequences)
    if too_long:
        listener(Note(f"{too_long} of {len(sequences)} sequences were cut to {max_length} tokens"))
    if len(usable) < len(sequences):
        listener(
            Note(f"{len(sequences) - len(usable)} of {len(sequences)} sequences have no room for a block")
        )
    if not usable:
        raise UserError("no sequence is long enough to train on", "give longer prompts, or more of them")
    return usable
