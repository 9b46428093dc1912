"""Which token stands for "not drafted yet": one that never means anything else.

Never a token that pads, begins or ends a text, never one of the training data; and one whose embedding is
not empty: a row of zeros looks the same at every position of the block.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from dflash_mlx.errors import UserError
from dflash_mlx.train.loss import number

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from dflash_mlx.targets.base import Target

RESERVED = re.compile(r"reserved|unused|dummy|placeholder|extra_\d|special_\d", re.IGNORECASE)
SAMPLED_ROWS = 256  # of the embedding table, to know how large a row usually is
LEAST_SIZE = 0.1  # of the usual row's; an untrained row is smaller than a trained one, but not empty


@dataclass(frozen=True)
class MaskToken:
    """The choice, and why."""

    id: int
    reason: str


def choose_mask_token(
    tokenizer: TokenizerWrapper, target: Target, stop_ids: Collection[int], used: Collection[int]
) -> MaskToken:
    """A reserved token that nothing uses.

    Args:
        tokenizer: Of the target.
        target: Whose embedding table it has to be in.
        stop_ids: Tokens that end a generation.
        used: Tokens of the training data.

    Raises:
        UserError: There is none.
    """
    forbidden = {*stop_ids, *used, *_special_meanings(tokenizer)}
    usual = _usual_size(target)
    for candidate in _candidates(tokenizer, target.vocab_size):
        if candidate.id not in forbidden and _size(target, [candidate.id]) >= LEAST_SIZE * usual:
            return candidate
    raise UserError("no token of the vocabulary is unused", "`--mask-token ID` names one")


def check_mask_token(
    token: int, tokenizer: TokenizerWrapper, target: Target, stop_ids: Collection[int]
) -> MaskToken:
    """One that somebody chose.

    Raises:
        UserError: It is not in the vocabulary, or has a meaning.
    """
    if not 0 <= token < target.vocab_size:
        raise UserError(
            f"the mask token {token} is not in the vocabulary of {target.vocab_size}",
            f"choose from 0 to {target.vocab_size - 1}",
        )
    if token in {*stop_ids, *_special_meanings(tokenizer)}:
        raise UserError(f"the mask token {token} pads, begins or ends texts", "choose one that no text has")
    return MaskToken(token, "as asked for")


def _candidates(tokenizer: TokenizerWrapper, vocab_size: int) -> Iterator[MaskToken]:
    own: Any = tokenizer.mask_token_id
    if own is not None and own < vocab_size:
        yield MaskToken(int(own), "the tokenizer's own mask token")
    named: dict[str, int] = tokenizer.get_vocab()
    for name, token in sorted(named.items(), key=lambda item: item[1]):
        if token < vocab_size and RESERVED.search(name) and not name.isalpha():
            yield MaskToken(token, f"`{name}`, a reserved token that no text has")
    last = max(named.values(), default=-1)
    for token in range(last + 1, vocab_size):
        yield MaskToken(token, "a row of the embedding table that no token has")
    names = {token: name for name, token in named.items()}
    for token in sorted((token for token in names if token < vocab_size), reverse=True):
        yield MaskToken(token, f"`{names[token]}`, the last token that no text of the training has")


def _special_meanings(tokenizer: TokenizerWrapper) -> set[int]:
    ids = (
        tokenizer.pad_token_id,
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        tokenizer.unk_token_id,
        *tokenizer.eos_token_ids,
    )
    return {int(token) for token in ids if token is not None}


def _usual_size(target: Target) -> float:
    step = max(1, target.vocab_size // SAMPLED_ROWS)
    return _size(target, list(range(0, target.vocab_size, step)))


def _size(target: Target, ids: list[int]) -> float:
    """Median of the rows' root mean squares."""
    rows = target.embed(mx.array([ids], mx.int32))[0].astype(mx.float32)
    return number(mx.median(mx.sqrt(mx.mean(mx.square(rows), axis=-1))))
