"""The proof that needs no target: new weights against old ones, and the drafter's layers on synthetic input.

Both folders are read again from their files. Nothing holds a whole matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx

from dflash_mlx.config import DrafterConfig
from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.errors import UserError

from .plan import kind_of
from .progress import Counter, Listener
from .reader import Reader
from .streamed import streamed_drafter
from .tensors import Tensor

if TYPE_CHECKING:
    from dflash_mlx.targets.base import Target

SEED = 0
CONTEXT_ROWS = 16  # synthetic tokens before the block
# Relative error of a tensor beyond which a result is refused. Zeros in place of the weights have 1. The
# coarsest recipe there is, 2 bits in groups of 128, has 0.42 on normal weights, 0.51 on Laplace's and 0.55 on
# Student's with 3 degrees of freedom (measured); 3 bits stay below 0.33 and 4 bits below 0.17.
LARGEST_ERROR = 0.7


class ErrorSum:
    """Adds up squares of differences and of what they are relative to."""

    def __init__(self) -> None:
        self._difference = self._size = 0.0

    def add(self, new: mx.array, old: mx.array) -> None:
        """Compare two arrays of one shape."""
        new, old = new.astype(mx.float32), old.astype(mx.float32)
        sums: Any = mx.stack([mx.square(new - old).sum(), mx.square(old).sum()]).tolist()
        self._difference += sums[0]
        self._size += sums[1]

    def merge(self, other: ErrorSum) -> None:
        """Add all that another one has seen."""
        self._difference += other._difference
        self._size += other._size

    @property
    def relative(self) -> float:
        """Of all that was added; 0 where there is no difference, whatever the size."""
        if not self._difference:
            return 0.0
        return math.sqrt(self._difference / self._size) if self._size else math.inf


def check_error(name: str, error: float) -> None:
    """Refuse a tensor that is no longer the source's.

    Raises:
        UserError: The relative error is larger than `LARGEST_ERROR`, or no number.
    """
    if not error <= LARGEST_ERROR:  # so that NaN fails
        raise UserError(
            f"the converted tensor `{name}` has a relative error of {error:.2g}: the result is useless",
            "choose more `--bits` or a smaller `--group-size`; instead of float16 another `--dtype`",
        )


def weight_errors(
    new: Sequence[Tensor], old: Sequence[Tensor], reader: Reader, listener: Listener
) -> dict[str, float]:
    """Relative error of the weights by kind of layer.

    Args:
        new: The result's tensors.
        old: The source's, in the same order.
        reader: For both.
        listener: Told the source bytes that were compared.

    Raises:
        UserError: See `check_error`.
    """
    counter = Counter("checking weights", sum(tensor.nbytes for tensor in old), listener)
    sums: dict[str, ErrorSum] = {}
    for mine, theirs in zip(new, old, strict=True):
        if mine.parameter != theirs.parameter:
            raise ValueError(f"`{mine.parameter}` cannot be compared with `{theirs.parameter}`")
        one = ErrorSum()
        for rows in reader.blocks(theirs):
            one.add(reader.values(mine, rows), reader.values(theirs, rows))
            counter.add(theirs.nbytes * (rows.stop - rows.start) // theirs.shape[0])
        # Here and not by kind: a layer in ruins hides among many that are well.
        check_error(theirs.name, one.relative)
        sums.setdefault(kind_of(theirs.parameter), ErrorSum()).merge(one)
        mx.clear_cache()
    return {kind: one.relative for kind, one in sums.items()}


class SyntheticTarget:
    """What a drafter asks of a target, made of random numbers."""

    def __init__(self, config: DrafterConfig) -> None:
        self._config = config

    def embed(self, ids: mx.array) -> mx.array:
        """`[1, L]` → `[1, L, D]`, float32; the same ids have the same rows."""
        size = self._config.hidden_size
        tokens: Any = ids[0].tolist()
        rows = [mx.random.normal((size,), key=mx.random.key(SEED + token)) for token in tokens]
        return mx.stack(rows)[None]

    def unembed(self, hidden: mx.array) -> mx.array:
        """`[1, L, V]`, whatever was given: candidates at random, all of about the same logit.

        So small, they choose candidates without having a part in the scores of the steps between them.
        """
        vocabulary = self._config.vocab_size or self._config.mask_token_id + 1
        return 1e-6 * mx.random.normal((1, hidden.shape[1], vocabulary), key=mx.random.key(SEED))


def hidden_errors(
    new: Sequence[Tensor], old: Sequence[Tensor], config: DrafterConfig, reader: Reader, listener: Listener
) -> dict[str, float]:
    """Relative error of the drafter's values, layer by layer, both sides in float32, on synthetic features.

    Args:
        new: The result's tensors.
        old: The source's.
        config: The drafter's.
        reader: For both.
        listener: Told the bytes that were used, of both.

    Raises:
        UserError: A value of either side is not finite, or the sides have nothing in common.
    """
    counter = Counter("checking layers", sum(tensor.nbytes for tensor in (*new, *old)), listener)
    errors: dict[str, ErrorSum] = {}
    wanted = synthetic_stages(streamed_drafter(config, old, reader, counter.add))
    found = synthetic_stages(streamed_drafter(config, new, reader, counter.add))
    for (place, theirs), (_, mine) in zip(wanted, found, strict=True):
        # Both sides compute in float32: no `--dtype` would help.
        if not mx.isfinite(theirs).all().item():
            raise UserError(
                f"the source's own values are not finite in {place}",
                "this checkpoint is broken: download it again, or take an earlier one of the training",
            )
        error = errors.setdefault(place.removeprefix("the "), ErrorSum())
        error.add(mine, theirs)
        if not math.isfinite(error.relative):
            raise UserError(
                f"the converted drafter's values have nothing in common with the source's in {place}",
                "choose more `--bits`, or 16 to quantize nothing",
            )
    return {place: error.relative for place, error in errors.items()}


def synthetic_stages(drafter: DFlashDrafter) -> list[tuple[str, mx.array]]:
    """What each part of a drafter makes of features and embeddings of a fixed seed; see `stages`.

    Returns:
        Keys and values of the context by layer, the block after each layer, the final norm, the selector's
        scores; each with its place.
    """
    config = drafter.config
    shape = 1, CONTEXT_ROWS, config.num_taps * config.hidden_size
    context = drafter.new_context()
    target = cast("Target", SyntheticTarget(config))  # a draft asks for nothing else
    drafter.extend(mx.random.normal(shape, key=mx.random.key(SEED)), context)
    stages = []
    for place, values in drafter.stages(mx.zeros((1, 1), mx.int32), config.block_size, context, target):
        mx.eval(values)
        if not place.startswith("the target's"):
            stages.append((place, values))
    return stages
