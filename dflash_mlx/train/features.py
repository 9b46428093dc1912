"""The target's features of all sequences, kept from epoch to epoch where they are small enough.

A frozen target says the same at every epoch. Of a small one that can be kept: on a CPU its pass over a Gated
DeltaNet hybrid is half of the time of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx

from dflash_mlx.load import this_machine
from dflash_mlx.train.batches import Batch, TrainingSequence, make_batch
from dflash_mlx.train.report import Listener, Read
from dflash_mlx.train.settings import Settings
from dflash_mlx.train.step import Trainer

SHARE = 4  # one such part of the memory is for features


class KeptFeatures:
    """Features by sequence.

    They are computed in groups that depend on the sequences alone: what a continued run computes again has
    the same last bits.

    Args:
        trainer: Computes them.
        sequences: All that are trained on.
        settings: `keep_features_bytes` decides whether they are kept; with one epoch they are not.
    """

    def __init__(self, trainer: Trainer, sequences: Sequence[TrainingSequence], settings: Settings) -> None:
        self._trainer, self._sequences, self._settings = trainer, sequences, settings
        row = trainer.row_features * trainer.row_dtype.size
        self.nbytes = row * sum(len(sequence.tokens) for sequence in sequences)
        most = settings.keep_features_bytes
        if most is None:
            most = (this_machine().available or 0) // SHARE
        self.kept = settings.epochs > 1 and self.nbytes <= most
        self._rows: dict[int, mx.array] = {}

    def fill(self, listener: Listener, cancelled: Callable[[], bool]) -> bool:
        """Read all sequences, if they are to be kept; False if it was cancelled.

        Args:
            listener: Told of the progress.
            cancelled: Asked between groups.
        """
        if not self.kept:
            return True
        for group in self._groups():
            if cancelled():
                return False
            batch = make_batch(
                [self._sequences[index] for index in group], [[0]] * len(group), self._settings
            )
            features = self._trainer.features(batch)  # [B, S, N*D]
            # Copies: a view would keep the padding of the whole group.
            rows = [
                mx.contiguous(features[place, : len(self._sequences[index].tokens)])
                for place, index in enumerate(group)
            ]
            mx.eval(rows)
            self._rows.update(zip(group, rows, strict=True))
            listener(Read(len(self._rows), len(self._sequences)))
        mx.clear_cache()
        return True

    def of(self, batch: Batch, chosen: Sequence[int]) -> mx.array:
        """`[B, S, N*D]`, lazy.

        Args:
            batch: As `Plan.batch` made it.
            chosen: Which sequences it has.
        """
        if not self.kept:
            return self._trainer.features(batch)
        length = batch.tokens.shape[1]
        # What stands in the padding changes nothing: no anchor sees it.
        rows = [self._rows[index] for index in chosen]
        return mx.stack([mx.pad(row, [(0, length - row.shape[0]), (0, 0)]) for row in rows])

    def _groups(self) -> Iterator[list[int]]:
        order = sorted(range(len(self._sequences)), key=lambda index: len(self._sequences[index].tokens))
        size = self._settings.batch_size
        for first in range(0, len(order), size):
            yield order[first : first + size]
