"""What the engine asks of a target model. Implementations: `model.py` and its helpers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx


class Snapshot(Protocol):
    """What `TargetState.snapshot` gave out: opaque, but for the bytes that it holds of its own."""

    @property
    def nbytes(self) -> int:
        """0 where the caches themselves keep the rows."""


@dataclass(frozen=True)
class Verified:
    """One forward pass of the target, lazy.

    Attributes:
        logits: `[1, L, V]`, with the target's own multiplier and softcap.
        features: `[1, L, N*D]`, the outputs of the tapped layers in the order asked for; None without taps.
    """

    logits: mx.array
    features: mx.array | None

    @property
    def tapped(self) -> mx.array:
        """The features of a pass that was asked for taps."""
        if self.features is None:
            raise RuntimeError("this pass had no taps")
        return self.features


class TargetState(Protocol):
    """The caches of one sequence. `length`: tokens in them, all committed between two cycles."""

    length: int

    def snapshot(self) -> Snapshot:
        """Keep what is needed to come back to this length."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back; the rows before the snapshot's length must not have been changed since."""

    def trim_to(self, length: int) -> bool:
        """Drop the rows from `length` on; False (and nothing done) where the caches cannot."""

    def arrays(self) -> Any:
        """The buffers, a tree for `mx.eval`."""


class Target(Protocol):
    """One loaded model; holds no sequence."""

    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int

    def new_state(self) -> TargetState:
        """An empty sequence."""

    def forward(
        self, ids: mx.array, state: TargetState, taps: tuple[int, ...] = (), *, rollback: bool = False
    ) -> Verified:
        """Run `ids [1, L]` after what `state` holds.

        Args:
            ids: `[1, L]` token ids.
            state: Extended by L rows; with `rollback` the rows are provisional until `commit`.
            taps: Layers whose outputs are wanted.
            rollback: Keep what `commit` needs to drop the last rows again.
        """

    def commit(self, state: TargetState, rows: int) -> None:
        """Keep the first `rows` (1..L) rows of the last `forward(..., rollback=True)`, drop the rest."""

    def embed(self, ids: mx.array) -> mx.array:
        """Raw rows of the embedding table, `[1, L, D]`: no scale, no norm."""

    def unembed(self, hidden: mx.array) -> mx.array:
        """The bare output head on `[1, L, D]`: no multiplier, no softcap."""
