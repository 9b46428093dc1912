"""The one place where randomness comes from, and the coupling of drafter and target by it."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

from dflash_mlx.accept import accept
from dflash_mlx.drafters.base import Proposal
from dflash_mlx.noise import LEAST, Noise
from dflash_mlx.sampling import Sampler
from dflash_mlx.types import SamplingParams

V = 12
LOGITS = np.random.default_rng(5).normal(size=V).astype(np.float32) * 1.5


def test_noise_is_a_function_of_seed_and_position() -> None:
    noise = Noise(3)
    rows = noise.gumbel(0, 40, 50)
    assert (rows.shape, rows.dtype) == ((40, 50), mx.float32)
    noise.next(), noise.uniforms(3)  # what else is drawn changes nothing
    for first, count in ((0, 1), (7, 5), (39, 1), (0, 40)):
        assert mx.array_equal(noise.gumbel(first, count, 50), rows[first : first + count])
        assert mx.array_equal(Noise(3).gumbel(first, count, 50), rows[first : first + count])
    others = [
        rows.tolist()[0],
        rows.tolist()[1],
        *(Noise(s).gumbel(0, 1, 50).tolist()[0] for s in (4, 2**64 - 1)),
    ]
    assert len({tuple(row) for row in others}) == 4


def test_nothing_of_mlx_is_disturbed() -> None:
    mx.random.seed(11)
    untouched = mx.random.uniform(shape=(3,)).tolist()
    mx.random.seed(11)
    mx.eval(Noise(1).gumbel(0, 2, 9), Noise().uniforms(4))
    assert mx.random.uniform(shape=(3,)).tolist() == untouched


def test_without_a_seed_nothing_repeats() -> None:
    assert Noise().next().tolist() != Noise().next().tolist()
    assert Noise().gumbel(0, 1, 5).tolist() != Noise().gumbel(0, 1, 5).tolist()
    assert not Noise().seeded
    assert Noise(0).seeded


def test_other_keys_differ_from_call_to_call() -> None:
    noise, again = Noise(3), Noise(3)
    given_out = [noise.next().tolist() for _ in range(50)]
    assert given_out == [again.next().tolist() for _ in range(50)]
    assert len({tuple(key) for key in given_out}) == 50
    uniforms = Noise(2**64 - 1).uniforms(10_000)
    assert (uniforms.shape, uniforms.dtype) == ((10_000,), mx.float32)
    assert 0 <= uniforms.min().item() < 0.01 < 0.99 < uniforms.max().item() < 1


def test_the_values_are_gumbels_and_finite() -> None:
    values = np.array(Noise(8).gumbel(0, 4, 250_000)).reshape(-1)
    assert np.isfinite(values).all()
    assert stats.kstest(values, "gumbel_r").pvalue > 1e-3
    assert math.isfinite(-math.log(-math.log1p(-LEAST)))  # of a uniform that is 0
    # The top decides: there is hardly a tie among the largest of a million.
    top = np.sort(values)[-1000:]
    assert len(np.unique(top)) > 990


def draws(sampler: Sampler, seeds: range) -> np.ndarray:
    """The first token of each seed, from the same logits."""
    rows = [Noise(seed).gumbel(0, 1, V) for seed in seeds]
    return np.array(sampler.draw(mx.array(np.tile(LOGITS, (len(rows), 1))), mx.concatenate(rows)))


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.8}, {"top_k": 4, "min_p": 0.1}], ids=str)
def test_over_seeds_a_draw_has_the_exact_distribution(count: int, options: dict) -> None:
    sampler = Sampler(SamplingParams(temperature=0.8, **options), V)
    p = np.array(mx.softmax(sampler.logprobs(mx.array(LOGITS))), np.float64)
    found = np.bincount(draws(sampler, range(count)), minlength=V)
    kept = p > 0
    assert found[~kept].sum() == 0
    wanted = p[kept] / p[kept].sum() * count
    assert stats.chisquare(found[kept], wanted).pvalue > 1e-3
    # It would see a bias of a few percent.
    assert stats.chisquare(found[kept], np.roll(wanted, 1)).pvalue < 1e-3


def test_a_seeded_block_is_the_targets_own_choices() -> None:
    """Whatever was drafted: what is committed is the beginning of the same row of choices."""
    width, rng = 5, np.random.default_rng(1)
    sampler = Sampler(SamplingParams(temperature=1.0), V)
    kept = set()
    for seed in range(40):
        logits = mx.array(rng.normal(size=(1, width, V)).astype(np.float32))
        noise = Noise(seed).gumbel(0, width, V)
        own = sampler.draw(logits[0], noise).tolist()
        drafted = [token if rng.random() < 0.7 else int(rng.integers(V)) for token in own[:-1]]
        n, *tokens = accept(logits, Proposal(mx.array([drafted]), None, None), sampler, None, noise).tolist()
        assert tokens[: n + 1] == own[: n + 1]
        assert n == next((i for i, (a, b) in enumerate(zip(drafted, own, strict=False)) if a != b), width - 1)
        kept.add(n)
    assert kept == set(range(width))


def test_the_coupling_keeps_what_it_promises() -> None:
    """At a total variation of d, at least (1 - d) / (1 + d) of the drafts are kept, at most 1 - d."""
    rng = np.random.default_rng(3)
    sampler = Sampler(SamplingParams(temperature=1.0), V)
    noise = mx.concatenate([Noise(seed).gumbel(0, 1, V) for seed in range(10_000)])
    for strength in (0.0, 0.3, 1.0):
        p, q = (mx.array(LOGITS + strength * rng.normal(size=V).astype(np.float32)) for _ in range(2))
        distance = float(mx.abs(mx.softmax(p) - mx.softmax(q)).sum().item()) / 2
        kept = (
            (sampler.draw(p[None], noise) == mx.argmax(q + noise, axis=-1)).astype(mx.float32).mean().item()
        )
        assert (1 - distance) / (1 + distance) - 0.015 <= kept <= 1 - distance + 0.015


def test_a_draw_needs_noise() -> None:
    with pytest.raises(ValueError, match="noise"):
        Sampler(SamplingParams(temperature=1.0), V).draw(mx.array(LOGITS), None)
