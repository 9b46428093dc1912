"""Where the time of a pass goes, measured part by part on one batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from dflash_mlx.train.batches import Batch
from dflash_mlx.train.loss import labels_of, number
from dflash_mlx.train.report import Timed
from dflash_mlx.train.step import Trainer


def time_parts(trainer: Trainer, batch: Batch, *, kept: bool = False) -> Timed:
    """Run every part of a pass on its own, twice, and time the second run; the weights stay as they are.

    The drafter's part is its forward and backward pass up to the hidden states, the head's the products with
    the vocabulary, the selector and both losses, forward and backward. The target's is 0 if its features are
    `kept`.
    """
    block_size = trainer.drafter.config.block_size
    features = trainer.features(batch)
    labels = labels_of(batch.tokens, batch.lengths, batch.anchors, batch.used, block_size)
    hidden = trainer.hidden(trainer.weights, features, batch.tokens, batch.anchors)
    mx.eval(features, labels, hidden)

    def hidden_sum(weights: dict[str, Any]) -> mx.array:
        return trainer.hidden(weights, features, batch.tokens, batch.anchors).astype(mx.float32).sum()

    def head_sum(rows: mx.array) -> mx.array:
        trainer.restore()  # whatever was traced last has left its own arrays in the drafter
        return trainer.block_loss.surrogate(rows, labels)[0]

    through = mx.compile(mx.grad(hidden_sum))
    heads = mx.compile(mx.grad(head_sum))
    zeros = tree_map(mx.zeros_like, trainer.weights)
    seconds = (
        0.0 if kept else _second_run(lambda: trainer.features(batch)),
        _second_run(lambda: through(trainer.weights)),
        _second_run(lambda: heads(hidden)),
        _second_run(lambda: trainer.rehearse(zeros)),
    )
    return Timed(*seconds, tokens=round(number(batch.lengths.sum())), blocks=round(number(batch.used.sum())))


def _second_run(part: Callable[[], Any]) -> float:
    mx.eval(part())
    started = time.perf_counter()
    mx.eval(part())
    return time.perf_counter() - started
