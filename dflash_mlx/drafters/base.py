"""What the engine asks of a drafter. Implementations: `dflash.py`, `dflash2.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx

if TYPE_CHECKING:
    from dflash_mlx.config import DrafterConfig
    from dflash_mlx.targets.base import Target


@dataclass(frozen=True)
class Proposal:
    """A drafted path and the distributions it was drawn from, lazy.

    Attributes:
        tokens: `[1, W-1]` int32.
        ids: `[1, W-1, K]` int32, the tokens that `q` speaks of; None if `q` covers the vocabulary.
        q: `[1, W-1, K]` or `[1, W-1, V]` float32, the very rows that were sampled from; None: one-hot.
    """

    tokens: mx.array
    ids: mx.array | None
    q: mx.array | None


class Context(Protocol):
    """The drafter's K/V of the committed tokens of one sequence; `length` counts all of them."""

    length: int

    def snapshot(self) -> Any:
        """Keep what is needed to come back to this length; its `nbytes` are what it holds of its own."""

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot of this context."""

    def trim_to(self, length: int) -> bool:
        """Drop the rows from `length` on; False (and nothing done) where that is not possible."""

    def skip(self, rows: int) -> None:
        """Move on by `rows` tokens whose features no draft can see any more (see `Drafter.window`)."""

    def complete(self, ahead: int = 0) -> bool:
        """True if nothing that was skipped can be seen by a draft after `ahead` more tokens."""

    def arrays(self) -> list[mx.array]:
        """The buffers, for evaluation and for counting bytes."""


class Drafter(Protocol):
    """One loaded drafter; holds no sequence."""

    config: DrafterConfig

    @property
    def window(self) -> int | None:
        """How many last context rows a draft can see; None if all of them."""

    def new_context(self) -> Context:
        """An empty context."""

    def extend(self, features: mx.array, context: Context) -> None:
        """Add the features `[1, L, N*D]` of the next L committed tokens; they are not kept."""

    def check_finite(self, anchor: mx.array, width: int, context: Context, target: Target) -> None:
        """Compute a draft stage by stage, reading each on the host: for the first draft of a sequence.

        Raises:
            UserError: A value is not finite; it names the dtype and the layer.
        """

    def draft(
        self,
        anchor: mx.array,
        width: int,
        context: Context,
        target: Target,
        temperature: float,
        key: mx.array | None = None,
        noise: mx.array | None = None,
    ) -> Proposal:
        """Propose `width - 1` tokens after `anchor`.

        Args:
            anchor: `[1, 1]` int32, at position `context.length`.
            width: 2..`config.block_size`.
            context: Read only.
            target: Lends its embedding table and output head.
            temperature: 0 drafts greedily; else the path is drawn from softmax(score / temperature).
            key: Random key for a drawn path; unused when greedy.
            noise: `[W-1, V]` float32, the Gumbel noise that the target will choose with. The path then takes
                the argmax of score/temperature + noise at each position, and `Proposal.q` is None.
        """
