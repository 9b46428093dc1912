"""The last draw of a cycle at its edges: mass zero, tails, large vocabularies, sums out of order."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from exact import LAST_UNIFORM, pieces
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_mlx import accept as accept_module
from dflash_mlx.accept import accept
from dflash_mlx.drafters.base import Proposal
from dflash_mlx.sampling import Sampler
from dflash_mlx.types import SamplingParams

ONE = SamplingParams(temperature=1.0)
quick = settings(max_examples=60, deadline=None)


def edges(mass: np.ndarray) -> list[float]:
    """The uniforms where rounding could slip: both ends, every border and its neighbours."""
    sums = np.cumsum(np.sort(mass[mass > 0])).astype(np.float32)
    borders = (sums / sums[-1]).astype(np.float32)
    near = np.concatenate(
        [borders, np.nextafter(borders, np.float32(0)), np.nextafter(borders, np.float32(2))]
    )
    return [0.0, float(LAST_UNIFORM), 2.0**-33, *near[near < 1].tolist()]


@st.composite
def masses(draw: st.DrawFn) -> np.ndarray:
    """Sparse, one-hot, flat or steep; sizes around squares, where the last block is cut short."""
    vocab = draw(st.sampled_from([1, 2, 3, 4, 5, 24, 25, 26, 143, 144, 145]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    mass = 10.0 ** rng.uniform(-draw(st.sampled_from([0, 3, 45])), 0, vocab)
    mass[rng.random(vocab) < draw(st.sampled_from([0.0, 0.5, 0.95, 1.0]))] = 0
    mass[rng.integers(vocab)] = 1.0
    return mass.astype(np.float32)


def repeated(mass: np.ndarray, count: int) -> mx.array:
    """`[count, V]`. An array that `mx.vmap` does not map over makes its `&` wrong (mlx 0.32.4)."""
    return mx.broadcast_to(mx.array(mass), (count, len(mass)))


def block_sums(mass: np.ndarray) -> np.ndarray:
    side = int(np.ceil(np.sqrt(len(mass))))
    return np.pad(mass, (0, -len(mass) % side)).reshape(-1, side).sum(axis=1)


@quick
@given(mass=masses(), seed=st.integers(0, 2**32))
def test_no_mass_no_draw(mass: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = rng.permutation(edges(block_sums(mass)))[:40].astype(np.float32)
    second = rng.permutation(edges(mass))[:40].astype(np.float32)
    pairs = np.stack([v.ravel() for v in np.meshgrid(first, second)], axis=1)
    tokens = np.array(mx.vmap(accept_module._draw)(repeated(mass, len(pairs)), mx.array(pairs)))
    assert ((tokens >= 0) & (tokens < len(mass))).all()
    assert (mass[tokens] > 0).all()


def test_no_mass_no_draw_with_a_scan_that_is_not_monotonic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parallel scan may add in another order, and then a sum can be less than the one before it."""
    rng, exact = np.random.default_rng(0), mx.cumsum

    def shaky(x: mx.array) -> mx.array:
        return exact(x) + mx.array(rng.uniform(-1e-6, 1e-6, x.shape[0]).astype(np.float32))

    monkeypatch.setattr(mx, "cumsum", shaky)
    mass = np.where(rng.random(150) < 0.8, 0, rng.random(150)).astype(np.float32)
    for first in edges(block_sums(mass)):
        for second in (0.0, 0.4, float(LAST_UNIFORM)):
            assert mass[accept_module._draw(mx.array(mass), mx.array([first, second])).item()] > 0


def test_broken_logits_do_not_leave_the_vocabulary() -> None:
    """NaN comes from a broken model; the id that goes back into its embedding table stays inside."""
    for vocab in (30, 31, 250):
        for logits in (mx.full((1, 2, vocab), float("nan")), mx.full((1, 2, vocab), -float("inf"))):
            drafted = Proposal(mx.array([[3]]), None, None)
            out = accept(logits, drafted, Sampler(ONE, vocab), mx.array([0.5, 0.5, 0.5]))
            assert 0 <= out[1].item() < vocab


@pytest.mark.parametrize("top", [0, 31_234, 69_999])
def test_a_flat_tail_keeps_its_mass(top: int) -> None:
    """70,000 tokens of 2.9e-8: one float32 sum that starts at 0.998 never moves again."""
    vocab, tail = 70_000, 0.002
    rng = np.random.default_rng(1)
    p = rng.uniform(0.9, 1.1, vocab)
    p[top] = 0
    p *= tail / p.sum()
    p[top] = 1 - tail
    logits = mx.array(np.log(p).astype(np.float32))[None, None]
    sampler = Sampler(ONE, vocab)

    def token(v: np.ndarray) -> int:
        return int(accept(logits, None, sampler, mx.array(v.astype(np.float32)))[1].item())

    def in_top_block(_: np.ndarray, u: np.ndarray) -> np.ndarray:
        return np.array([token(np.array([v, LAST_UNIFORM])) == top for v in u], np.int64)

    def is_top(_: np.ndarray, u: np.ndarray) -> np.ndarray:
        return np.array([token(np.array([0.5, v])) == top for v in u], np.int64)

    block = sum(end - start for start, end, value in pieces(in_top_block, 1, grid=2)[0] if value)
    within = sum(end - start for start, end, value in pieces(is_top, 1, grid=2)[0] if value)
    assert abs((1 - block * within) / tail - 1) < 1e-3  # one float near 1 is 3e-5 of the tail

    masses32 = p.astype(np.float32)
    naive = np.concatenate([masses32[top:], masses32[:top]]).cumsum(dtype=np.float32)
    assert 1 - naive[0] / naive[-1] < 0.75 * tail


def test_an_almost_flat_distribution() -> None:
    """90,000 tokens of about 1.1e-5: one float32 sum drifts, since every term is rounded the same way."""
    side = 300
    p = np.linspace(0.9998, 1.0002, side * side)  # in order: blocks are drawn from in ascending order
    p = (p / p.sum()).astype(np.float32)
    logits, sampler = mx.array(np.log(p))[None, None], Sampler(ONE, side * side)
    cuts = np.array([1, 30, 100, 150, 200, 299]) * side

    def beyond(index: np.ndarray, u: np.ndarray) -> np.ndarray:
        results = [accept(logits, None, sampler, mx.array([float(v), 0.5]))[1] for v in u]
        return (np.array(mx.stack(results)) >= cuts[index]).astype(np.int64)

    borders = [some[0][1] for some in pieces(beyond, len(cuts), grid=2)]
    wanted = p.astype(np.float64).cumsum()[cuts - 1] / p.astype(np.float64).sum()
    assert np.abs(borders - wanted).max() < 1e-6
    naive = p.cumsum(dtype=np.float32)
    assert np.abs(naive[cuts - 1] / naive[-1] - wanted).max() > 1e-4


def test_every_border_of_a_large_vocabulary() -> None:
    """Both levels of a draw over 62,500 tokens of a steep distribution, every border, against float64."""
    rng = np.random.default_rng(2)
    p = 10.0 ** rng.uniform(-9, 0, (250, 250))
    p = (p / p.sum()).astype(np.float32)
    levels = [p.sum(axis=1), p[p.max(axis=1).argmax()]]
    for mass in levels:

        def index(_: np.ndarray, u: np.ndarray, mass: np.ndarray = mass) -> np.ndarray:
            return np.array(mx.vmap(accept_module._inverse_cdf)(repeated(mass, len(u)), mx.array(u)))

        got = np.zeros(len(mass))
        for start, end, value in pieces(index, 1, grid=100)[0]:
            got[value] += end - start
        wanted = mass.astype(np.float64) / mass.astype(np.float64).sum()
        assert np.abs(got - wanted).max() < 1e-7
        assert np.abs(got - wanted).sum() / 2 < 3e-6  # 250 borders, each rounded to a float of up to 6e-8
        small = wanted < np.median(wanted)
        assert abs(got[small].sum() / wanted[small].sum() - 1) < 1e-5
