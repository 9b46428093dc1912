"""How good the drafter is on held-out prompts: slot by slot, and by the engine itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import mlx.core as mx

from dflash_mlx.drafters.base import Context, Proposal
from dflash_mlx.drafters.context import DrafterContext, own_context
from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.generate import stream_generate
from dflash_mlx.targets.base import Target
from dflash_mlx.train.batches import TrainingSequence, make_batch, spread_anchors
from dflash_mlx.train.loss import Sums
from dflash_mlx.train.report import Evaluated
from dflash_mlx.train.settings import Settings
from dflash_mlx.types import Finished

if TYPE_CHECKING:
    from dflash_mlx.pair import Pair
    from dflash_mlx.train.step import Trainer


class ArgmaxDrafter:
    """A drafter that takes every slot's largest logit, whatever its generation; see `base.Drafter`."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        self._drafter = drafter
        self.config = drafter.config

    @property
    def window(self) -> int | None:
        """How many last context rows a draft can see."""
        return self._drafter.window

    def new_context(self) -> DrafterContext:
        """An empty context."""
        return self._drafter.new_context()

    def extend(self, features: mx.array, context: Context) -> None:
        """Add features."""
        self._drafter.extend(features, context)

    def check_finite(self, anchor: mx.array, width: int, context: Context, target: Target) -> None:
        """See `base.Drafter.check_finite`."""
        self._drafter.check_finite(anchor, width, context, target)

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
        """The first generation's choice."""
        hidden, head_dtype = self._drafter.block_hidden(anchor, width, own_context(context), target)
        logits = self._drafter.logits(hidden, head_dtype, target)
        return DFlashDrafter.propose(self._drafter, hidden, logits, anchor, temperature, key, noise)


@dataclass(frozen=True)
class Acceptance:
    """Verify passes of one measurement, and the tokens that they committed."""

    cycles: int
    committed: int

    @property
    def tau(self) -> float | None:
        """Tokens per pass; None without any."""
        return self.committed / self.cycles if self.cycles else None


def evaluate(
    trainer: Trainer, pair: Pair, sequences: Sequence[TrainingSequence], step: int, *, training: bool
) -> Evaluated | None:
    """Everything that is reported of held-out prompts.

    Args:
        trainer: Its present weights.
        pair: Target and tokenizer.
        sequences: Held out.
        step: Updates so far.
        training: They are no held-out prompts, for there are none.

    Returns:
        None if no sequence is long enough for a block.
    """
    usable = [sequence for sequence in sequences if len(sequence.anchors)]
    if not usable:
        return None
    settings = trainer.settings
    sums = slot_sums(trainer, usable)
    drafter = trainer.restore()
    prompts = list(dict.fromkeys(sequence.tokens[: sequence.reply] for sequence in usable))
    prompts = prompts[: settings.eval_prompts]
    own = acceptance(replace(pair, drafter=drafter, drafter_name="training"), prompts, settings)
    argmax = own
    if drafter.config.generation == 2:
        stand_in = replace(pair, drafter=ArgmaxDrafter(drafter), drafter_name="training")
        argmax = acceptance(stand_in, prompts, settings)
    return Evaluated(
        step=step,
        **asdict(sums.means()),
        tau=own.tau,
        tau_argmax=argmax.tau,
        prompts=len(prompts),
        training_prompts=training,
    )


def slot_sums(trainer: Trainer, sequences: Sequence[TrainingSequence]) -> Sums:
    """Sums over evenly spread anchors of some sequences."""
    settings, total = trainer.settings, None
    ordered = sorted(sequences, key=lambda sequence: len(sequence.tokens))
    for first in range(0, len(ordered), settings.batch_size):
        chosen = ordered[first : first + settings.batch_size]
        batch = make_batch(chosen, [spread_anchors(one, settings.anchors) for one in chosen], settings)
        sums = trainer.measure(batch, trainer.features(batch))
        total = sums if total is None else total + sums
        mx.eval(total)
    if total is None:
        raise ValueError("nothing to measure on")
    return total


def acceptance(pair: Pair, prompts: Sequence[Sequence[int]], settings: Settings) -> Acceptance:
    """Greedy replies at full width: the real engine, not an estimate."""
    if pair.drafter is None:
        raise ValueError("acceptance of no drafter")
    width, cycles, committed = pair.drafter.config.block_size, 0, 0
    for prompt in prompts:
        room = pair.check_prompt(prompt)
        tokens = settings.eval_tokens if room is None else min(settings.eval_tokens, room)
        for event in stream_generate(pair, prompt, max_tokens=tokens, width=width):
            if isinstance(event, Finished):
                histogram = event.stats.accepted_histogram
                cycles += sum(histogram)
                committed += sum(count * (kept + 1) for kept, count in enumerate(histogram))
    return Acceptance(cycles, committed)
