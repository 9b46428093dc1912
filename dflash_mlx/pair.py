"""A target with its tokenizer and a drafter that fits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_mlx.chunks import FIRST_ROWS
from dflash_mlx.errors import UserError
from dflash_mlx.types import Method

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from dflash_mlx.drafters.base import Drafter
    from dflash_mlx.scores import Scores
    from dflash_mlx.targets.base import Target


@dataclass(frozen=True)
class Pair:
    """What a generation needs; holds no sequence, so it serves any number of them, one at a time.

    Attributes:
        target: The model whose text is wanted.
        drafter: None for plain decoding only.
        tokenizer: mlx-lm's.
        target_name: For statistics, as is `drafter_name`.
        stop_ids: Tokens that end a generation.
        context_length: Most tokens the target was made for; None if its config does not say.
        default_width: Rows of a verify pass if nobody chooses.
        device: What computes, in words.
        dtype: Of the target's activations, and what was changed at load.
        blas: The library behind float32 products on a CPU; None on a GPU.
        weight_bytes: Of target and drafter in memory; None if not known.
        memory_context: Most tokens that the machine has memory for, by the estimate; None if not known.
        attention_scores: What the target's attention writes to memory while a prompt is read; chunks have
            fewer rows for it.
        first_rows: Of the first chunk of a prompt, before it is known how fast they are read.
    """

    target: Target
    drafter: Drafter | None
    tokenizer: TokenizerWrapper
    target_name: str
    drafter_name: str | None
    stop_ids: frozenset[int]
    context_length: int | None
    default_width: int
    device: str
    dtype: str
    blas: str | None
    weight_bytes: int | None = None
    memory_context: int | None = None
    attention_scores: tuple[Scores, ...] = ()
    first_rows: int = FIRST_ROWS

    @property
    def method(self) -> Method:
        """What a verify pass of this pair is called."""
        if self.drafter is None:
            return "plain"
        return "dflash2" if self.drafter.config.generation == 2 else "dflash"

    def check_width(self, width: int | None) -> int:
        """`width`, or the default.

        Raises:
            UserError: There is no drafter for it, or the drafter's blocks are smaller.
        """
        if width is None:
            return self.default_width
        if width < 1:
            raise UserError(f"the width is {width}, but a pass has at least 1 row", "1 is plain decoding")
        if width > 1 and self.drafter is None:
            raise UserError(f"a width of {width} needs a drafter", "width 1 is plain decoding")
        if self.drafter is not None and width > self.drafter.config.block_size:
            block_size = self.drafter.config.block_size
            raise UserError(
                f"the width is {width}, but this drafter's blocks have {block_size} tokens",
                f"choose a width from 1 to {block_size}",
            )
        return width

    def check_prompt(self, prompt: Sequence[int]) -> int | None:
        """How many tokens can be generated after `prompt`; None if the context's length is not known.

        Raises:
            UserError: It is empty, has ids outside the vocabulary, or fills the context.
        """
        if not prompt:
            raise UserError("the prompt is empty")
        if not 0 <= min(prompt) <= max(prompt) < self.target.vocab_size:
            raise UserError(
                f"the prompt has token ids from {min(prompt)} to {max(prompt)}, "
                f"the target's vocabulary has {self.target.vocab_size}"
            )
        if self.context_length is None:
            return None
        if len(prompt) >= self.context_length:
            raise UserError(
                f"the prompt has {len(prompt)} tokens, the model's context is {self.context_length}",
                "shorten the prompt",
            )
        return self.context_length - len(prompt)
