"""The acceptance rule: whatever the drafter proposed, the target's own distribution comes out.

Drafted token `x_i` is kept while `u_i * q_i(x_i) < p_i(x_i)`. The first rejected one is replaced by a draw
from `max(p - q, 0)`, renormalised; after a full block one more token is drawn from `p`. Leviathan et al.
2023, "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192), section 2.3. It holds
for any `q` that the path was really drawn from, given the drafted tokens before.

Greedy, and with a seed, the target's choice at each position is fixed before a draft is looked at (an argmax;
see `noise.py`), and a drafted token is kept if it is that choice.

Everything is lazy: the one host read of a cycle is the caller's, of the array that `accept` returns.
"""

from __future__ import annotations

import math

import mlx.core as mx

from dflash_mlx.drafters.base import Proposal
from dflash_mlx.sampling import Sampler


def num_uniforms(width: int) -> int:
    """How many uniforms `accept` takes: one per drafted token, and two for the last draw."""
    return width + 1


def accept(
    p_logits: mx.array,
    proposal: Proposal | None,
    sampling: Sampler,
    uniforms: mx.array | None,
    noise: mx.array | None = None,
) -> mx.array:
    """Decide how much of a drafted block the target keeps, and choose the token after it.

    Args:
        p_logits: `[1, W, V]`, the target's logits **after** bias and penalties (`Sampler.process`); filters
            and temperature are applied here. Row i speaks of the token behind the anchor and i drafted ones.
        proposal: The drafted path of W-1 tokens and its `q`; None is the same as an empty one (W is 1).
        sampling: The options.
        uniforms: `[num_uniforms(W)]` float32 in [0, 1), the acceptance tests first; None if greedy, or where
            there is noise.
        noise: `[W, V]` float32, the Gumbel noise of a seeded generation; None without a seed.

    Returns:
        `[W + 1]` int32, lazy: n, then W tokens. The first n + 1 of them are committed: n drafted ones and one
        of the target's own. The rest repeat that last one.

    Raises:
        ValueError: The shapes do not belong together, or uniforms are missing.
    """
    width = p_logits.shape[1]
    drafted = mx.zeros((0,), mx.int32) if proposal is None else proposal.tokens.squeeze(0).astype(mx.int32)
    if drafted.shape[0] != width - 1:
        raise ValueError(f"{drafted.shape[0]} drafted tokens do not fit {width} rows of logits")
    if sampling.greedy or noise is not None:
        choice = sampling.draw(p_logits.squeeze(0), noise)  # [W]
        accepted = _prefix_length(drafted == choice[:-1])
        final = mx.take(choice, accepted)
    else:
        if uniforms is None or uniforms.shape != (num_uniforms(width),):
            raise ValueError(f"sampling over {width} rows needs {num_uniforms(width)} uniforms")
        p = mx.softmax(sampling.logprobs(p_logits.squeeze(0)), axis=-1)  # [W, V]
        accepted, final = _accept_sampled(p, drafted, proposal, uniforms)
    path = mx.concatenate([drafted, final[None]])
    committed = mx.where(mx.arange(width) < accepted, path, final)
    return mx.concatenate([accepted[None], committed])


def _prefix_length(kept: mx.array) -> mx.array:
    """How many leading entries of `kept [W-1]` are true: a scalar, int32."""
    if kept.shape[0] == 0:
        return mx.array(0, mx.int32)
    return mx.cumprod(kept.astype(mx.int32)).sum()


def _accept_sampled(
    p: mx.array, drafted: mx.array, proposal: Proposal | None, uniforms: mx.array
) -> tuple[mx.array, mx.array]:
    """The accepted count and the token after the kept ones, both scalars, from probabilities `p [W, V]`."""
    if proposal is None or drafted.shape[0] == 0:
        return mx.array(0, mx.int32), _draw(p[0], uniforms)
    tests = drafted.shape[0]
    token = drafted[:, None]
    # One-hot q is the case of a single candidate.
    q = mx.ones((tests, 1), mx.float32) if proposal.q is None else proposal.q.squeeze(0).astype(mx.float32)
    ids = token if proposal.q is None else None if proposal.ids is None else proposal.ids.squeeze(0)
    if ids is None:
        q_token = mx.take_along_axis(q, token, axis=1)[:, 0]
    else:
        q_token = mx.where(ids == token, q, 0.0).sum(axis=-1)
    p_token = mx.take_along_axis(p[:tests], token, axis=1)[:, 0]
    accepted = _prefix_length(uniforms[:tests] * q_token < p_token)

    # From here on only row n matters. Behind a full block nothing was drafted: q is zero there.
    p_row = mx.take(p, accepted, axis=0)  # [V]
    row = mx.minimum(accepted, tests - 1)
    q_row = mx.where(accepted < tests, mx.take(q, row, axis=0), 0.0)  # [K or V]
    rest = p_row - q_row if ids is None else p_row.at[mx.take(ids, row, axis=0)].subtract(q_row)
    rest = mx.maximum(rest, 0.0)
    # p = q has nothing left over, and is rejected by rounding only.
    return accepted, _draw(mx.where(mx.max(rest) > 0, rest, p_row), uniforms[tests:])


def _draw(mass: mx.array, uniforms: mx.array) -> mx.array:
    """A token with probability proportional to `mass [V]`, by two uniforms: its block, then its place there.

    One float32 sum along 250,000 entries would swallow the small ones; here a sum has about sqrt(V) terms.
    """
    vocab = mass.shape[0]
    side = math.isqrt(vocab - 1) + 1
    blocks = mx.pad(mass, (0, -vocab % side)).reshape(-1, side)
    block = _inverse_cdf(blocks.sum(axis=-1), uniforms[0])
    place = _inverse_cdf(mx.take(blocks, block, axis=0), uniforms[1])
    return block * side + place


def _inverse_cdf(mass: mx.array, uniform: mx.array) -> mx.array:
    """An index with probability proportional to `mass`, int32; never one of mass 0 while any is positive.

    Smallest mass first: every term is added to a sum of smaller ones, and the small ones share the beginning
    of [0, 1), where floats are densest. So they keep their probability.
    """
    order = mx.argsort(mass)
    ascending = mx.take(mass, order)
    upto = mx.cumsum(ascending)
    last = mass.shape[0] - 1
    # The mask keeps out mass 0 by itself: a parallel scan may round non-monotonically.
    hit = (upto > uniform * upto[-1]) & (ascending > 0)
    # No hit: the product was rounded up to the total, so the end is meant, the largest mass.
    first = mx.where(hit, mx.arange(last + 1), last).min()
    return mx.take(order, first).astype(mx.int32)
