"""The loss of a batch of blocks, and what is measured with it.

Slot k = 1 .. W-1 of a block at anchor position a is to be token a + k. Both losses are cross-entropies with
the weights `exp(-(k-1) / gamma)`: over the vocabulary, and of the selector's scores over the top candidates,
from the *true* token before. Sums are given out, not means: passes that are accumulated then weigh as they
would in one batch.

The head is by far the widest product. Its loss and its gradients are computed piece by piece, so that only
one piece's logits exist at a time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.drafters.dflash2 import CandidateSelector, DFlash2Drafter
from dflash_mlx.filters import top_candidates
from dflash_mlx.targets.base import Target

TINY = 1e-9  # instead of a weight of 0
RECALL_AT = 16  # what "recall@16" counts, whatever the selector's own top-k


class Labels(NamedTuple):
    """What blocks should say; G blocks of width W.

    Attributes:
        tokens: `[G, W-1]`, the true tokens of the slots.
        before: `[G, W-1]`, the true token before each.
        valid: `[G, W-1]` float32, 0 where the sequence has ended or the block is padding.
    """

    tokens: mx.array
    before: mx.array
    valid: mx.array


class Sums(NamedTuple):
    """Over all blocks of a batch; a mean is a sum divided by `weight` or, per slot, by `seen`.

    Attributes:
        weight: Of all slots, `[]`.
        cross_entropy: `[]`; `selector` likewise, 0 in the first generation.
        seen: How many blocks have the slot, `[W-1]`, as the following are.
        correct: The largest logit is the true token's.
        recalled: It is among the largest `RECALL_AT`.
        selected: It has the selector's best score, from the true token before; 0 in the first generation.
    """

    weight: mx.array
    cross_entropy: mx.array
    selector: mx.array
    seen: mx.array
    correct: mx.array
    recalled: mx.array
    selected: mx.array

    def __add__(self, other: Sums) -> Sums:  # type: ignore[override]  # not a concatenation
        return Sums(*(one + two for one, two in zip(self, other, strict=True)))

    def means(self) -> Means:
        """On the host."""
        weight = max(number(self.weight), TINY)
        seen = mx.maximum(self.seen, 1)
        return Means(
            loss=number(self.cross_entropy) / weight,
            selector_loss=number(self.selector) / weight,
            accuracy=numbers(self.correct / seen),
            recall=numbers(self.recalled / seen),
            selected=numbers(self.selected / seen),
        )


@dataclass(frozen=True)
class Means:
    """`Sums` as numbers: losses per weight, the rest per slot."""

    loss: float
    selector_loss: float
    accuracy: tuple[float, ...]
    recall: tuple[float, ...]
    selected: tuple[float, ...]


def number(array: mx.array) -> float:
    """A scalar on the host."""
    value: float = array.item()  # type: ignore[assignment]
    return float(value)


def numbers(array: mx.array) -> tuple[float, ...]:
    """A vector on the host."""
    values: list[float] = array.tolist()  # type: ignore[assignment]
    return tuple(values)


@dataclass(frozen=True)
class BlockLoss:
    """Hidden states of blocks → `Sums`, through the target's head and the drafter's selector.

    Attributes:
        head_dtype: What the head expects.
        gamma: Decay of the weights.
        selector_weight: Of the selector's loss.
        head_bytes: Most bytes of logits at once.
    """

    drafter: DFlashDrafter
    target: Target
    head_dtype: mx.Dtype
    gamma: float
    selector_weight: float
    head_bytes: int

    def sums(self, hidden: mx.array, labels: Labels) -> Sums:
        """The loss of `hidden [G, W-1, D]`, without gradients."""
        return reduce(operator.add, (self._piece(hidden[i], _cut(labels, i)) for i in self._pieces(hidden)))

    def surrogate(self, hidden: mx.array, labels: Labels) -> tuple[mx.array, Sums]:
        """A number with the gradients of the loss, and the sums.

        Args:
            hidden: `[G, W-1, D]`, traced.
            labels: Of the same blocks.

        Returns:
            `sum(hidden * dL/dhidden)` and the same of the selector's weights, whose gradients are those of
            the loss: the pieces are differentiated on their own, where they are computed.
        """
        parameters = self._selector_parameters()
        frozen = tree_map(mx.stop_gradient, parameters)
        gradients: dict[str, Any] | None = None
        total: Sums | None = None
        parts: list[mx.array] = []
        for piece in self._pieces(hidden):
            rows = mx.stop_gradient(hidden[piece])
            if parts:  # one after the other, or the logits of all would exist at once
                rows = mx.depends([rows], [parts[-1]])[0]
            (by_rows, by_parameters), sums = self._gradients(frozen, rows, _cut(labels, piece))
            parts.append(by_rows)
            total = sums if total is None else total + sums
            gradients = by_parameters if gradients is None else tree_map(mx.add, gradients, by_parameters)
        if total is None:
            raise ValueError("a batch without blocks")
        value = (hidden * mx.concatenate(parts)).astype(mx.float32).sum()
        if gradients:
            products = tree_map(lambda p, g: (p * g).astype(mx.float32).sum(), parameters, gradients)
            leaves: dict[str, mx.array] = dict(tree_flatten(products))
            value = value + reduce(mx.add, leaves.values())
        self._update_selector(parameters)
        return value, total

    def _gradients(
        self, parameters: dict[str, Any], rows: mx.array, labels: Labels
    ) -> tuple[tuple[mx.array, dict[str, Any]], Sums]:
        def loss(rows: mx.array, parameters: dict[str, Any]) -> tuple[mx.array, Sums]:
            self._update_selector(parameters)
            sums = self._piece(rows, labels)
            return sums.cross_entropy + self.selector_weight * sums.selector, sums

        # mlx cannot differentiate by an empty tree, which the first generation's is.
        differentiate: Callable[..., Any] = mx.value_and_grad(loss, argnums=(0, 1) if parameters else 0)
        (_, sums), gradients = differentiate(rows, parameters)
        return (gradients if parameters else (gradients, {})), sums

    def _piece(self, hidden: mx.array, labels: Labels) -> Sums:
        slots = hidden.shape[1]
        weights = labels.valid * mx.exp(-mx.arange(slots) / self.gamma)
        flat, wanted = hidden.reshape(-1, hidden.shape[-1]), labels.tokens.reshape(-1, 1)
        logits = self.drafter.logits(flat[None], self.head_dtype, self.target)[0]  # [G*(W-1), V] float32
        entropy = mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, wanted, axis=-1)[:, 0]
        fixed = mx.stop_gradient(logits)
        best = top_candidates(fixed, min(RECALL_AT, logits.shape[-1]))

        def by_slot(hits: mx.array) -> mx.array:
            return (labels.valid * hits.reshape(-1, slots)).sum(axis=0)

        def weighted(losses: mx.array) -> mx.array:
            # A block that is padding may hold anything; 0 times it is 0 only where it is finite.
            return mx.where(weights > 0, weights * losses.reshape(-1, slots), 0).sum()

        sums = Sums(
            weight=weights.sum(),
            cross_entropy=weighted(entropy),
            selector=mx.zeros(()),
            seen=labels.valid.sum(axis=0),
            correct=by_slot(mx.argmax(fixed, axis=-1) == wanted[:, 0]),
            recalled=by_slot((best == wanted).any(axis=-1)),
            # Not `correct` once more: mx.compile (0.32.4) fails on sums of the same output twice.
            selected=mx.zeros((slots,)),
        )
        if not isinstance(self.drafter, DFlash2Drafter):
            return sums
        selector = self.drafter.candidate_selector
        losses, selected = selector_loss(selector, flat, logits, labels.before.reshape(-1, 1), wanted)
        return sums._replace(selector=weighted(losses), selected=by_slot(selected))

    def _pieces(self, hidden: mx.array) -> list[slice]:
        blocks, slots, _ = hidden.shape
        size = max(1, self.head_bytes // (4 * slots * self.target.vocab_size))
        return [slice(start, min(start + size, blocks)) for start in range(0, blocks, size)]

    def _selector_parameters(self) -> dict[str, Any]:
        if not isinstance(self.drafter, DFlash2Drafter):
            return {}
        found: dict[str, Any] = self.drafter.candidate_selector.parameters()
        return found

    def _update_selector(self, parameters: dict[str, Any]) -> None:
        if isinstance(self.drafter, DFlash2Drafter):
            self.drafter.candidate_selector.update(parameters)


def selector_loss(
    selector: CandidateSelector, hidden: mx.array, logits: mx.array, before: mx.array, wanted: mx.array
) -> tuple[mx.array, mx.array]:
    """Cross-entropy of the selector's scores over its candidates.

    Args:
        selector: Tables and projection.
        hidden: `[R, D]`.
        logits: `[R, V]` float32; the loss also reaches the drafter through them.
        before: `[R, 1]`, the true token before.
        wanted: `[R, 1]`, the true token. Where it is no candidate it takes the place of the least likely
            one: here only, a draft has no such help.

    Returns:
        Losses `[R]`, and whether the true token, a candidate by itself, has the best score `[R]`.
    """
    fixed = mx.stop_gradient(logits)
    ids = top_candidates(fixed, selector.top_k)
    missing = mx.logical_not((ids == wanted).any(axis=-1, keepdims=True))
    least = mx.argmin(mx.take_along_axis(fixed, ids, axis=-1), axis=-1, keepdims=True)
    replaced = missing & (mx.arange(selector.top_k) == least)
    ids = mx.where(replaced, wanted, ids)
    scores = selector.scores(hidden, logits, before, ids)[:, 0]  # [R, K]
    own = mx.where(ids == wanted, scores, 0).sum(axis=-1)
    selected = (own >= scores.max(axis=-1)) & mx.logical_not(missing[:, 0])
    return mx.logsumexp(scores, axis=-1) - own, selected


def labels_of(tokens: mx.array, lengths: mx.array, anchors: mx.array, used: mx.array, width: int) -> Labels:
    """What the blocks of a batch should say.

    Args:
        tokens: `[B, S]`, padded at the end.
        lengths: `[B]`.
        anchors: `[B, A]` positions.
        used: `[B, A]`, 0 for a block that is padding.
        width: Rows of a block, W.

    Returns:
        G = B * A blocks, in the order of `forward.blocks_hidden`.
    """
    B, A = anchors.shape
    positions = (anchors[:, :, None] + mx.arange(width)).reshape(B, A * width)
    inside = mx.minimum(positions, tokens.shape[1] - 1)
    rows = mx.take_along_axis(tokens, inside, axis=1).reshape(B * A, width)
    valid = (positions < lengths[:, None]).reshape(B * A, width) & (used.reshape(-1, 1) > 0)
    return Labels(rows[:, 1:], rows[:, :-1], valid[:, 1:].astype(mx.float32))


def _cut(labels: Labels, piece: slice) -> Labels:
    return Labels(*(part[piece] for part in labels))
