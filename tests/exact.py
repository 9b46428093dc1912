"""The exact distribution of what `accept` emits, found from outside, and the target's own in float64.

`accept` is a black box here: it is called, never re-implemented. Its result is a piecewise constant function
of each uniform, so the ends of the pieces are found by bisection down to neighbouring floats, for every path
that the drafter can take. `reference` follows mlx-lm's definition of the options, in NumPy, token by token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from dflash_mlx.accept import accept, num_uniforms
from dflash_mlx.drafters.base import Proposal
from dflash_mlx.sampling import Sampler
from dflash_mlx.types import SamplingParams

Prefix = tuple[int, ...]
BORDER = 1e-6  # closer to the edge of a filter than this, float32 and float64 may differ
LAST_UNIFORM = np.float32(1 - 2**-24)


@dataclass(frozen=True)
class DraftRow:
    """The drafter's distribution after one prefix: `q` over `ids`, or over the vocabulary (None)."""

    ids: np.ndarray | None
    q: np.ndarray

    def choices(self) -> list[tuple[int, float]]:
        """Every token that can be drafted, and how often."""
        q = self.q.astype(np.float64) / self.q.astype(np.float64).sum()
        ids = np.arange(len(q)) if self.ids is None else self.ids
        return [(int(token), float(weight)) for token, weight in zip(ids, q, strict=True) if weight > 0]


@dataclass(frozen=True)
class World:
    """A target and a drafter, small enough to be enumerated.

    Attributes:
        raw: Raw target logits `[V]` float32 after a prefix of new tokens.
        draft: The drafter's row after a prefix.
        recent: Committed tokens, the anchor last.
        one_hot: The proposal carries no `q`; every draft row then has one choice.
    """

    vocab: int
    width: int
    raw: Callable[[Prefix], np.ndarray]
    draft: Callable[[Prefix], DraftRow]
    recent: Prefix
    one_hot: bool = False


def reference(logits: np.ndarray, params: SamplingParams, history: Prefix) -> np.ndarray:
    """The distribution of the next token, float64: mlx-lm's order, every step written out."""
    x = logits.astype(np.float64)
    for token, bias in params.logit_bias.items():
        x[token] += bias
    recent = history[-params.penalty_context :]
    for token in set(recent):
        x[token] *= params.repetition_penalty if x[token] < 0 else 1 / params.repetition_penalty
    for token in set(recent):
        x[token] -= params.presence_penalty
    for token in recent:
        x[token] -= params.frequency_penalty
    logp = x - x.max()
    logp -= np.log(np.exp(logp).sum())
    if 0 < params.top_p < 1:
        order = np.argsort(logp)
        p = np.exp(logp[order])
        above = p[::-1].cumsum()[::-1] - p
        assert np.abs(above - params.top_p * p.sum()).min() > BORDER, "a border no two precisions agree on"
        logp[order[above >= params.top_p * p.sum()]] = -np.inf
    if params.min_p > 0:
        floor = logp.max() + np.log(params.min_p)
        assert np.abs(logp - floor).min() > BORDER, "a border no two precisions agree on"
        logp[logp < floor] = -np.inf
    if 0 < params.top_k < len(logp):
        logp[np.argsort(-logp)[params.top_k :]] = -np.inf
    p = np.exp((logp - logp.max()) / params.temperature)
    return p / p.sum()


def pieces(
    evaluate: Callable[[np.ndarray, np.ndarray], np.ndarray], count: int, grid: int = 9
) -> list[list[tuple[float, float, int]]]:
    """Where `count` piecewise constant functions on [0, 1) change, exact to one float32.

    Args:
        evaluate: `(index [M], u [M] float32) -> value [M]`.
        count: Functions; index runs over them.
        grid: First guesses per function; a value has one interval, so bisection finds the others.

    Returns:
        Per function the intervals `(start, end, value)`, in order, covering [0, 1).
    """
    first = np.linspace(0, LAST_UNIFORM, grid, dtype=np.float32).view(np.int32)  # bit patterns keep the order
    index = np.repeat(np.arange(count), grid)
    values = evaluate(index, np.tile(first, count).view(np.float32)).reshape(count, grid)
    active = np.stack(
        [
            np.repeat(np.arange(count), grid - 1),
            np.tile(first[:-1], count),
            np.tile(first[1:], count),
            values[:, :-1].ravel(),
            values[:, 1:].ravel(),
        ]
    ).astype(np.int64)
    edges = []
    while active.shape[1]:
        active = active[:, active[3] != active[4]]
        done = active[2] - active[1] == 1
        edges.append(active[:, done])
        index, low, high, left, right = active[:, ~done]
        if not index.size:
            break
        middle = (low + high) // 2
        value = evaluate(index, middle.astype(np.int32).view(np.float32))
        active = np.concatenate(
            [np.stack([index, low, middle, left, value]), np.stack([index, middle, high, value, right])],
            axis=1,
        )
    found = np.concatenate(edges, axis=1)
    result = []
    for i in range(count):
        mine = found[:, found[0] == i]
        mine = mine[:, np.argsort(mine[1])]
        ends = mine[1].astype(np.int32).view(np.float32).astype(np.float64)
        ends = (ends + mine[2].astype(np.int32).view(np.float32)) / 2
        starts = [0.0, *ends]
        result.append(list(zip(starts, [*ends, 1.0], [int(values[i, 0]), *mine[4].tolist()], strict=True)))
    return result


def distributions(
    evaluate: Callable[[np.ndarray, np.ndarray], np.ndarray], count: int
) -> list[dict[int, float]]:
    """How often each token comes out of `count` draws from two uniforms, the second one within the first.

    Args:
        evaluate: `(index [M], v [M, 2] float32) -> token [M]`.
        count: Draws; index runs over them.
    """
    outer = pieces(lambda i, u: evaluate(i, np.stack([u, np.full_like(u, 0.5)], axis=1)), count)
    flat = [(i, start, end) for i, some in enumerate(outer) for start, end, _ in some]
    owner = np.array([i for i, _, _ in flat])
    middle = np.array([(start + end) / 2 for _, start, end in flat], np.float32)
    inner = pieces(lambda j, u: evaluate(owner[j], np.stack([middle[j], u], axis=1)), len(flat))
    result: list[dict[int, float]] = [{} for _ in range(count)]
    for (i, start, end), some in zip(flat, inner, strict=True):
        for low, high, token in some:
            result[i][token] = result[i].get(token, 0.0) + (end - start) * (high - low)
    return result


class Enumeration:
    """`accept` on every path of a world, callable on batches of (path, uniforms)."""

    def __init__(self, world: World, params: SamplingParams) -> None:
        self.world, self.params = world, params
        self.sampler = Sampler(params, world.vocab)
        self._targets: dict[Prefix, np.ndarray] = {}
        paths: list[tuple[Prefix, float]] = [((), 1.0)]
        for _ in range(world.width - 1):
            paths = [
                ((*path, token), weight * share)
                for path, weight in paths
                for token, share in world.draft(path).choices()
            ]
        self.paths = paths
        recent = mx.array(world.recent, mx.int32)
        raw = [[world.raw(path[:i]) for i in range(world.width)] for path, _ in paths]
        self.tokens = mx.array([[path] for path, _ in paths], mx.int32)  # [B, 1, W-1]
        self.logits = mx.stack(
            [
                self.sampler.process(mx.array(np.stack(rows))[None], recent, self.tokens[b])
                for b, rows in enumerate(raw)
            ]
        )  # [B, 1, W, V]
        rows = [[world.draft(path[:i]) for i in range(world.width - 1)] for path, _ in paths]
        self.q = mx.array(np.stack([[np.stack([row.q for row in some])] for some in rows]))
        self.ids = self.q  # a placeholder where q covers the vocabulary
        if rows[0][0].ids is not None:
            self.ids = mx.array(
                np.stack([[np.stack([row.ids for row in some])] for some in rows]).astype(np.int32)
            )

    def __call__(self, index: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """`index [M]`, `uniforms [M, W + 1]` to `accept`'s results, `[M, W + 1]`."""
        wide = self.ids is self.q

        def one(logits: mx.array, tokens: mx.array, ids: mx.array, q: mx.array, u: mx.array) -> mx.array:
            if self.world.one_hot:
                return accept(logits, Proposal(tokens, None, None), self.sampler, u)
            return accept(logits, Proposal(tokens, None if wide else ids, q), self.sampler, u)

        b = mx.array(index.astype(np.int32))
        inputs = [mx.take(x, b, axis=0) for x in (self.logits, self.tokens, self.ids, self.q)]
        return np.array(mx.vmap(one)(*inputs, mx.array(uniforms.astype(np.float32))))

    def acceptance(self) -> np.ndarray:
        """`[B, W-1]`: how much of [0, 1) accepts drafted token j once those before it were accepted."""
        tests = self.world.width - 1

        def kept(index: np.ndarray, u: np.ndarray) -> np.ndarray:
            uniforms = np.zeros((len(index), num_uniforms(self.world.width)), np.float32)
            uniforms[np.arange(len(index)), index % tests] = u
            return (self(index // tests, uniforms)[:, 0] > index % tests).astype(np.int64)

        found = pieces(kept, len(self.paths) * tests, grid=3)
        shares = [sum(end - start for start, end, value in some if value) for some in found]
        return np.array(shares).reshape(-1, tests)

    def representative(self, accepted: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Uniforms `[M, W + 1]` that keep `accepted` tokens and leave `v [M, 2]` for the draw."""
        tests = self.world.width - 1
        rejecting = np.where(np.arange(tests) == accepted[:, None], LAST_UNIFORM, np.float32(0))
        return np.concatenate([rejecting, v], axis=1)

    def draws(self, index: np.ndarray, accepted: np.ndarray) -> list[dict[int, float]]:
        """The distribution of the final token for pairs of path and accepted count."""

        def token(pair: np.ndarray, v: np.ndarray) -> np.ndarray:
            out = self(index[pair], self.representative(accepted[pair], v))
            assert (out[:, 0] == accepted[pair]).all()
            return out[np.arange(len(pair)), 1 + accepted[pair]]

        return distributions(token, len(index))

    def emitted(self) -> tuple[np.ndarray, np.ndarray]:
        """The distribution of the next W tokens, `[V] * W` float64: through `accept`, and the target's.

        Where fewer were committed, the target's own distribution goes on from there.
        """
        vocab, width = self.world.vocab, self.world.width
        shares = self.acceptance()
        jobs = []
        for b, (_, weight) in enumerate(self.paths):
            reached = weight
            for n in range(width):
                stop = 1 - shares[b, n] if n < width - 1 else 1.0
                if reached * stop > 0:
                    jobs.append((b, n, reached * stop))
                reached *= shares[b, n] if n < width - 1 else 0.0
        draws = self.draws(np.array([b for b, _, _ in jobs]), np.array([n for _, n, _ in jobs]))
        got = np.zeros((vocab,) * width)
        for (b, n, weight), draw in zip(jobs, draws, strict=True):
            path = self.paths[b][0][:n]
            for token, share in draw.items():
                got[(*path, token)] += weight * share * self.target((*path, token))
        return got, self.target(())

    def target(self, prefix: Prefix) -> np.ndarray:
        """The target's distribution of the tokens after `prefix` up to W, `[V] * (W - len(prefix))`."""
        if prefix not in self._targets:
            self._targets[prefix] = self._target(prefix)
        return self._targets[prefix]

    def _target(self, prefix: Prefix) -> np.ndarray:
        left = self.world.width - len(prefix)
        if left == 0:
            return np.ones(())
        p = reference(self.world.raw(prefix), self.params, (*self.world.recent, *prefix))
        if left == 1:
            return p
        joint = np.zeros((self.world.vocab,) * left)
        for token in np.flatnonzero(p):
            joint[token] = p[token] * self.target((*prefix, int(token)))
        return joint


def total_variation(world: World, params: SamplingParams) -> float:
    """Between what a cycle (and the target after it) emits and the target alone, over W tokens."""
    got, wanted = Enumeration(world, params).emitted()
    return float(np.abs(got - wanted).sum() / 2)
