"""Top-p, min-p and top-k without sorting the vocabulary.

The kept tokens are those of mlx-lm's `apply_top_p`, `apply_min_p` and `apply_top_k`, one after the other:

- Top-p keeps a token if the tokens **strictly** more likely than it hold less than `top_p` of the mass. So a
  tie at the border is kept whole, and the most likely token always.
- Min-p keeps a token of at least `min_p` times the highest probability.
- Top-k keeps exactly k of what is left; which of those that tie at the border is arbitrary, as it is there.

Short rows go through mlx-lm's functions themselves. In long ones a sort is the cost (and on a GPU
`argpartition` is one too), so there the border of the nucleus is searched for. Masses are added as a tree;
mlx-lm adds them one after the other, where 250,000 terms in float32 swallow the small ones and the nucleus
comes out too small (by 0.9% of its tokens on random logits). Nothing here reads an array on the host.
"""

from __future__ import annotations

import math
import struct

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

# From here on a row is long: four rows of 8,192 are sorted in the time of the search (3.4 against 3.6 ms).
LONG = 8192
# The search works on BLOCKS pieces of a row at once, and adds up LANES parts of what they leave side by side.
# Measured on a CPU, four rows of 248,320, mlx-lm's function 109 ms: 28 ms with 4 pieces, 32 with 8.
BLOCKS = 4
LANES = 32


def apply_filters(logprobs: mx.array, top_p: float, min_p: float, top_k: int) -> mx.array:
    """Ban what top-p, min-p and top-k leave out.

    Args:
        logprobs: `[..., V]` float32, normalised: the probabilities of a row sum to 1, within a percent.
        top_p: Off unless in (0, 1).
        min_p: In [0, 1]; 0 is off.
        top_k: Off unless in (0, V).

    Returns:
        `[..., V]`: the kept values as they were, -inf elsewhere.
    """
    vocabulary = logprobs.shape[-1]
    if vocabulary < LONG:
        return by_sorting(logprobs, top_p, min_p, top_k)
    if 0 < top_k < vocabulary:
        return by_candidates(logprobs, top_p, min_p, top_k)
    if 0 < top_p < 1:
        logprobs = mx.where(logprobs < nucleus_floor(logprobs, top_p), -mx.inf, logprobs)
    return apply_min_p(logprobs, min_p) if min_p > 0 else logprobs


def by_sorting(logprobs: mx.array, top_p: float, min_p: float, top_k: int) -> mx.array:
    """`apply_filters` through mlx-lm's functions: the definition, and the fastest for short rows."""
    if 0 < top_p < 1:
        logprobs = apply_top_p(logprobs, top_p)
    if min_p > 0:
        logprobs = apply_min_p(logprobs, min_p)
    if 0 < top_k < logprobs.shape[-1]:
        logprobs = apply_top_k(logprobs, top_k)
    return logprobs


def by_candidates(logprobs: mx.array, top_p: float, min_p: float, top_k: int) -> mx.array:
    """`apply_filters` with a top-k, found first: all that is more likely than a candidate is one as well.

    So the mass above each candidate, and the maximum, are known without a look at the rest. Only the mass of
    all is summed up for top-p: MLX's float32 `logsumexp` can leave it 0.1% from 1 on a CPU.
    """
    rows = logprobs.reshape(-1, logprobs.shape[-1])
    ids = top_candidates(rows, top_k)
    values = mx.take_along_axis(rows, ids, axis=-1)
    if 0 < top_p < 1:
        ascending = mx.sort(values, axis=-1)
        above = mx.cumsum(mx.exp(ascending), axis=-1, reverse=True, inclusive=False)
        limit = top_p * _sum(mx.exp(_padded(rows)))[:, None]
        dropped = (above >= limit).sum(axis=-1, keepdims=True)
        values = mx.where(values < mx.take_along_axis(ascending, dropped, axis=-1), -mx.inf, values)
    if min_p > 0:
        values = apply_min_p(values, min_p)
    kept = mx.put_along_axis(mx.full(rows.shape, -mx.inf, rows.dtype), ids, values, axis=-1)
    return kept.reshape(logprobs.shape)


def top_candidates(logits: mx.array, k: int) -> mx.array:
    """Ids of the k largest logits of each row, in no order.

    Long rows are cut into slices, and only the k slices with the largest maxima are looked at: no other can
    hold one of the k largest. Measured on a CPU, 7 rows of 248,320, k = 16: 2.0 ms against 22.8 ms.

    Args:
        logits: `[G, V]`.
        k: At most V.

    Returns:
        `[G, k]` int32. Exact; which of those that tie with the smallest is arbitrary.
    """
    rows, vocabulary = logits.shape
    if k >= vocabulary:
        return mx.broadcast_to(mx.arange(vocabulary), (rows, vocabulary)).astype(mx.int32)
    # As many maxima as there are logits in k slices, about.
    size = 2 ** round(math.log2(vocabulary / k) / 2)
    if vocabulary < LONG or size < 4:
        return mx.argpartition(-logits, k - 1, axis=-1)[:, :k].astype(mx.int32)
    slices = -(-vocabulary // size)
    if padding := slices * size - vocabulary:
        # Banned tokens are -inf: the padding must lose to them too.
        logits = mx.maximum(logits, mx.finfo(logits.dtype).min)
        logits = mx.pad(logits, [(0, 0), (0, padding)], constant_values=-mx.inf)
    sliced = logits.reshape(rows, slices, size)
    best = mx.argpartition(-sliced.max(axis=-1), k - 1, axis=-1)[:, :k]  # [G, k] slices
    inside = mx.take_along_axis(sliced, best[:, :, None], axis=1).reshape(rows, k * size)
    place = mx.argpartition(-inside, k - 1, axis=-1)[:, :k]
    return (mx.take_along_axis(best, place // size, axis=-1) * size + place % size).astype(mx.int32)


def nucleus_floor(logprobs: mx.array, top_p: float) -> mx.array:
    """The smallest log-probability that top-p keeps.

    It is the smallest float with less than `top_p` of the mass strictly above it, found by bisection: the bit
    patterns of negative floats have the order of their magnitudes, so every round halves what is left and the
    last one leaves a single float: 26 rounds, of one pass over the row each.

    Args:
        logprobs: `[..., V]` float32, normalised.
        top_p: In (0, 1).

    Returns:
        `[..., 1]` float32. Where one token alone stays, it may be any float between that and the next.
    """
    rows, vocabulary = math.prod(logprobs.shape[:-1]), logprobs.shape[-1]
    flat = _padded(logprobs.reshape(rows, vocabulary))
    # Pieces first: each is contiguous, and compiled code is several times as fast on such arrays.
    pieces = mx.contiguous(flat.reshape(rows, BLOCKS, -1).swapaxes(0, 1))  # [BLOCKS, R, n]
    shape = (1, rows, pieces.shape[-1])
    masses = mx.exp(pieces)
    limit = top_p * _sum(masses).sum(axis=0)  # [R]
    values, weights = (list(mx.split(each, BLOCKS, axis=0)) for each in (pieces, masses))
    # A token above `nearest` holds more than half of the mass: there is no other, so all bounds above it are
    # alike. What is below `farthest` holds less than 1 - top_p together: none stays. Both with some room.
    nearest, farthest = _pattern(0.5), _pattern(0.1 + math.log(vocabulary) - math.log1p(-top_p))
    rounds = (farthest - nearest).bit_length()
    magnitude = mx.full((rows,), nearest, mx.uint32)  # of the smallest float found so far that is a floor
    step = mx.full((rows,), 1 << (rounds - 1), mx.uint32)
    bound = -(magnitude + step).view(mx.float32)
    for _ in range(rounds):
        bounds = mx.contiguous(mx.broadcast_to(bound[None, :, None], shape))
        above = _sum(_masses_above(bounds, values, weights))[0]
        magnitude, step, bound = _halve(magnitude, step, above, limit)
    return -magnitude.view(mx.float32).reshape(*logprobs.shape[:-1], 1)


def _pattern(value: float) -> int:
    """The bits of a float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _padded(rows: mx.array) -> mx.array:
    """Filled up with tokens of probability 0, so that pieces and parts come out even."""
    padding = -rows.shape[-1] % (BLOCKS * LANES)
    return mx.pad(rows, [(0, 0), (0, padding)], constant_values=-mx.inf) if padding else rows


def _sum(masses: mx.array) -> mx.array:
    """Along the last axis, in LANES parts side by side: for accuracy, and six times as fast on a CPU."""
    return masses.reshape(*masses.shape[:-1], LANES, -1).sum(axis=-2).sum(axis=-1)


@mx.compile
def _masses_above(bounds: mx.array, values: list[mx.array], weights: list[mx.array]) -> mx.array:
    """The weights whose values are above the bounds, pieces added: `[1, R, n]`, all of that shape."""
    first, *others = (mx.where(v > bounds, w, 0.0) for v, w in zip(values, weights, strict=True))
    return sum(others, start=first)


@mx.compile
def _halve(
    magnitude: mx.array, step: mx.array, above: mx.array, limit: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """One round: go on to `magnitude + step` if that is a floor too. The last result is the next bound."""
    magnitude = mx.where(above < limit, magnitude + step, magnitude)
    step = step >> 1
    return magnitude, step, -(magnitude + step).view(mx.float32)
