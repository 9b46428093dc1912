"""The proof with the real target: the drafts of source and result on real prompts.

The reference is the source in float32, its matrices on disk; the result is loaded as a generation loads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.filters import top_candidates
from dflash_mlx.generate import stream_generate
from dflash_mlx.load import load_pair
from dflash_mlx.pair import Pair
from dflash_mlx.prompts import encode_chat
from dflash_mlx.types import Block

from .progress import Counter, Listener
from .reader import Reader
from .streamed import streamed_drafter
from .tensors import Tensor
from .verify import ErrorSum

PROMPTS = (
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A train leaves at 14:35 and arrives at 17:20. How long is the journey? Think step by step.",
    "Write a short story about a lighthouse keeper and a storm.",
)
TEXT_TOKENS = 32  # of the target's own answer to each
DRAFT_EVERY = 8  # a draft at every so many of them
TOP = 16  # the overlap of so many candidates


@dataclass
class _Tally:
    """What the drafts of the two sides have in common."""

    logits: ErrorSum
    drafts: int = 0
    positions: int = 0
    equal: int = 0
    overlap: int = 0
    candidates: int = 0

    def add(self, mine: tuple[mx.array, mx.array], theirs: tuple[mx.array, mx.array]) -> None:
        """Compare logits `[1, W-1, V]` and greedy paths `[1, W-1]`."""
        self.logits.add(mine[0], theirs[0])
        self.drafts += 1
        self.positions += mine[1].size
        self.equal += _count(mine[1] == theirs[1])
        k = min(TOP, mine[0].shape[-1])
        ours, other = (top_candidates(logits[0], k) for logits in (mine[0], theirs[0]))
        self.overlap += _count(ours[:, :, None] == other[:, None, :])
        self.candidates += ours.size

    def numbers(self) -> dict[str, float]:
        """For the report."""
        return {
            "drafts": self.drafts,
            "positions": self.positions,
            "logits": self.logits.relative,
            "path_agreement": self.equal / self.positions,
            "top_16_overlap": self.overlap / self.candidates,
        }


def _count(true: mx.array) -> int:
    count: Any = true.sum().item()
    return int(count)


def target_numbers(
    target: Path, result: Path, old: Sequence[Tensor], reader: Reader, listener: Listener
) -> dict[str, float]:
    """Draft with both drafters after the same text of the target.

    Args:
        target: Folder of the target.
        result: Folder of the converted drafter.
        old: The source's tensors.
        reader: For them.
        listener: Told the drafts.

    Returns:
        "drafts" and "positions" that were compared; "logits": relative error of the draft logits;
        "path_agreement": share of positions whose greedy token is the same; "top_16_overlap": share of the
        16 best candidates that both have.

    Raises:
        UserError: The target cannot be loaded or does not fit.
    """
    pair = load_pair(target, result)
    mine = pair.drafter
    assert isinstance(mine, DFlashDrafter)  # what `load_drafter` gives
    # The pair's config is completed with what the checkpoint leaves to the target.
    theirs = streamed_drafter(mine.config, old, reader)
    counter = Counter("checking with the target", len(PROMPTS) * (TEXT_TOKENS // DRAFT_EVERY), listener)
    tally = _Tally(ErrorSum())
    for prompt in PROMPTS:
        ids = encode_chat(pair.tokenizer, [{"role": "user", "content": prompt}])
        for drafts in _drafts(pair, ids, (mine, theirs)):
            tally.add(*drafts)
            counter.add(1)
    return tally.numbers()


Draft = tuple[mx.array, mx.array]  # logits [1, W-1, V] and greedy path [1, W-1]


def _drafts(
    pair: Pair, prompt: list[int], drafters: tuple[DFlashDrafter, DFlashDrafter]
) -> Iterator[tuple[Draft, Draft]]:
    """The drafts of both at every few tokens of the target's own greedy answer."""
    plain = replace(pair, drafter=None)
    events = stream_generate(plain, prompt, max_tokens=TEXT_TOKENS, width=1)
    tokens = [*prompt, *(token for event in events if isinstance(event, Block) for token in event.tokens)]
    taps = drafters[0].config.target_layer_ids
    features = pair.target.forward(mx.array([tokens], mx.int32), pair.target.new_state(), taps).features
    assert features is not None  # there are taps
    mx.eval(features)
    contexts = [drafter.new_context() for drafter in drafters]
    for place in range(len(prompt), len(tokens), DRAFT_EVERY):
        anchor = mx.array([[tokens[place]]], mx.int32)
        results = []
        for drafter, context in zip(drafters, contexts, strict=True):
            drafter.extend(features[:, context.length : place], context)
            hidden, dtype = drafter.block_hidden(anchor, drafter.config.block_size, context, pair.target)
            logits = drafter.logits(hidden, dtype, pair.target)
            path = drafter.propose(hidden, logits, anchor, 0.0, None).tokens
            mx.eval(logits, path)
            results.append((logits, path))
        yield results[0], results[1]
