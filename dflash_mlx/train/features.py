"""The target's features of all sequences, kept from epoch to epoch where they are small enough.

A frozen target says the same at every epoch. Of a small one that can be kept: on a CPU its pass over a Gated
DeltaNet hybrid is half of the time of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from dflash_mlx.load import this_machine
from dflash_mlx.train.batches import Batch, TrainingSequence, make_batch
from dflash_mlx.train.report import Listener, Read
from dflash_mlx.train.settings import Settings
from dflash_mlx.train.step import Trainer

SHARE = 4  # one such part of the memory is for features


class KeptFeatures:
    """Features by sequence; of equal ones once: a sampled answer is often the greedy one.

    They are computed in groups that depend on the sequences alone: what a continued run computes again has
    the same last bits.

    Args:
        trainer: Computes them.
        sequences: All that are trained on.
        settings: `keep_features_bytes` decides whether they are kept; with one epoch they are not.
    """

    def __init__(self, trainer: Trainer, sequences: Sequence[TrainingSequence], settings: Settings) -> None:
        self._trainer, self._settings = trainer, settings
        self._tokens = [sequence.tokens for sequence in sequences]
        self._different = sorted(set(self._tokens), key=lambda tokens: (len(tokens), tokens))
        row = trainer.row_features * trainer.row_dtype.size
        self.nbytes = row * sum(map(len, self._different))
        most = settings.keep_features_bytes
        if most is None:
            most = (this_machine().available or 0) // SHARE
        self.kept = settings.epochs > 1 and self.nbytes <= most
        self._rows: dict[tuple[int, ...], mx.array] = {}

    def fill(self, listener: Listener, cancelled: Callable[[], bool]) -> bool:
        """Read all sequences, if they are to be kept; False if it was cancelled.

        Args:
            listener: Told of the progress.
            cancelled: Asked between groups.
        """
        if not self.kept:
            return True
        size = self._settings.batch_size
        for first in range(0, len(self._different), size):
            if cancelled():
                return False
            group = self._different[first : first + size]
            whole = [TrainingSequence(tokens, 0, 0, "") for tokens in group]
            features = self._trainer.features(make_batch(whole, [[0]] * len(group), self._settings))
            # Copies: a view would keep the padding of the whole group.
            rows = [mx.contiguous(features[place, : len(tokens)]) for place, tokens in enumerate(group)]
            mx.eval(rows)
            self._rows.update(zip(group, rows, strict=True))
            listener(Read(len(self._rows), len(self._different)))
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
        rows = [self._rows[self._tokens[index]] for index in chosen]
        return mx.stack([mx.pad(row, [(0, length - row.shape[0]), (0, 0)]) for row in rows])
