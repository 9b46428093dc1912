"""Which sequences and which anchors each pass sees: a function of the seed and the pass's number alone.

Nothing is drawn from a running generator, so a run that is continued at any step goes on as it would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import mlx.core as mx

from dflash_mlx.train.settings import Settings

WINDOW = 16  # batches that are sorted by length together: little padding, and the order stays random


@dataclass(frozen=True)
class TrainingSequence:
    """A prompt and its answer.

    Attributes:
        tokens: Both.
        start: Where the first anchor can be: the first token of the answer.
        reply: How many tokens the engine is given, when τ is measured: the prompt; half of a ready text.
        prompt: Which prompt it is of; those of one prompt are held out together.
    """

    tokens: tuple[int, ...]
    start: int
    reply: int
    prompt: str

    @property
    def anchors(self) -> range:
        """Positions with at least one token after them."""
        return range(self.start, len(self.tokens) - 1)


class Batch(NamedTuple):
    """What one pass is fed.

    Attributes:
        tokens: `[B, S]` int32, padded at the end.
        lengths: `[B]` int32.
        anchors: `[B, A]` int32 positions.
        used: `[B, A]` int32, 0 for padding.
    """

    tokens: mx.array
    lengths: mx.array
    anchors: mx.array
    used: mx.array


class Plan:
    """The passes of a run.

    Args:
        sequences: All that are trained on, at least one.
        settings: Sizes, epochs and seed.
    """

    def __init__(self, sequences: Sequence[TrainingSequence], settings: Settings) -> None:
        self._sequences, self._settings = sequences, settings
        self.passes_per_epoch = -(-len(sequences) // settings.batch_size)
        self.passes = self.passes_per_epoch * settings.epochs
        self.steps = -(-self.passes // settings.accumulate)
        self._epoch: tuple[int, list[list[int]]] | None = None

    def numbers(self, step: int) -> range:
        """The passes of an update; the last one may have fewer."""
        first = step * self._settings.accumulate
        return range(first, min(first + self._settings.accumulate, self.passes))

    def step(self, step: int) -> list[Batch]:
        """What the passes of an update are fed."""
        return [self.batch(number) for number in self.numbers(step)]

    def chosen(self, number: int) -> list[int]:
        """Which sequences the pass of this number has."""
        epoch, place = divmod(number, self.passes_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._order(epoch)
        return self._epoch[1][place]

    def batch(self, number: int) -> Batch:
        """The pass of this number."""
        chosen = self.chosen(number)
        anchors = [self._draw(number, index) for index in chosen]
        return make_batch([self._sequences[index] for index in chosen], anchors, self._settings)

    def _order(self, epoch: int) -> list[list[int]]:
        random = Random(f"order {self._settings.seed} {epoch}")
        size = self._settings.batch_size
        order = list(range(len(self._sequences)))
        random.shuffle(order)
        batches: list[list[int]] = []
        for first in range(0, len(order), size * WINDOW):
            window = sorted(
                order[first : first + size * WINDOW], key=lambda index: len(self._sequences[index].tokens)
            )
            batches += [window[place : place + size] for place in range(0, len(window), size)]
        random.shuffle(batches)
        return batches

    def _draw(self, number: int, index: int) -> list[int]:
        possible = self._sequences[index].anchors
        random = Random(f"anchors {self._settings.seed} {number} {index}")
        return sorted(random.sample(possible, min(self._settings.anchors, len(possible))))


def make_batch(
    sequences: Sequence[TrainingSequence], anchors: Sequence[Sequence[int]], settings: Settings
) -> Batch:
    """Pad to few different shapes; every shape is compiled once."""
    lengths = [len(sequence.tokens) for sequence in sequences]
    length = _multiple(max(lengths), settings.length_step)
    blocks = _multiple(max(len(places) for places in anchors), settings.anchor_step)
    return Batch(
        tokens=mx.array([_padded(sequence.tokens, length) for sequence in sequences], mx.int32),
        lengths=mx.array(lengths, mx.int32),
        anchors=mx.array([_padded(places, blocks) for places in anchors], mx.int32),
        used=mx.array([_padded([1] * len(places), blocks) for places in anchors], mx.int32),
    )


def spread_anchors(sequence: TrainingSequence, count: int) -> list[int]:
    """At most `count` anchors, evenly over the answer: the same at every evaluation."""
    possible = sequence.anchors
    count = min(count, len(possible))
    return [possible[place * len(possible) // count] for place in range(count)]


def hold_out(
    sequences: Sequence[TrainingSequence], settings: Settings
) -> tuple[list[TrainingSequence], list[TrainingSequence]]:
    """Sequences to train on, and those kept apart, prompt by prompt, as their names fall.

    Returns:
        Both lists. With a single prompt nothing is kept apart.
    """
    prompts = sorted({sequence.prompt for sequence in sequences})
    wanted = min(settings.held_out, max(1, len(prompts) // settings.held_out_share), len(prompts) - 1)
    kept = set(prompts[:wanted])
    return (
        [sequence for sequence in sequences if sequence.prompt not in kept],
        [sequence for sequence in sequences if sequence.prompt in kept],
    )


def _padded(values: Sequence[int], length: int) -> list[int]:
    return [*values, *[0] * (length - len(values))]


def _multiple(value: int, step: int) -> int:
    return -(-value // step) * step
