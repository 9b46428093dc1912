"""Top-p, min-p and top-k without a sort: the tokens that mlx-lm's own functions keep, one after the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from dflash_mlx import filters
from dflash_mlx.filters import LONG, apply_filters, by_candidates, nucleus_floor, top_candidates

ROUNDING = 2e-6  # of the mass: what float32 makes of a sum, and of the logarithms that it is made of
LENGTHS = [LONG, 9001]
TOP_P = [0.0, 1e-6, 0.3, 0.9, 0.999, 1.0]
MIN_P = [0.0, 0.05, 1.0]
TOP_K = [0, 1, 20, 700, 5000]


def rows(kind: str, length: int, seed: int = 0) -> np.ndarray:
    """Logits `[3, length]` float32."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(3, length))
    match kind:
        case "random":
            logits = noise * np.array([[1], [3], [8]])
        case "flat":
            logits = np.full((3, length), 1.25)
        case "nearly flat":
            logits = noise * np.array([[1e-1], [1e-3], [1e-5]])
        case "one-hot":
            logits = np.full((3, length), -60.0)
            logits[np.arange(3), [0, length // 2, length - 1]] = [0, 5, 60]
        case "tied":
            logits = np.round(noise * np.array([[1], [3], [8]]))
        case "two levels":
            logits = np.where(noise > 2, 5.0, 0.0)
        case "filtered":
            logits = np.where(noise > -0.5, noise * 3, -np.inf)
        case "nearly all filtered":
            logits = np.full((3, length), -np.inf)
            logits[:, [3, length - 1]] = [[0, 0], [1, 2], [9, -9]]
        case "scales":  # clusters in clusters, around an outlier
            logits = np.sum([rng.choice([0, 10.0**-power], (3, length)) for power in range(7)], axis=0)
            logits[:, 5] = 8
        case _:
            raise ValueError(kind)
    return logits.astype(np.float32)


KINDS = [
    "random",
    "flat",
    "nearly flat",
    "one-hot",
    "tied",
    "two levels",
    "filtered",
    "nearly all filtered",
    "scales",
]


def log_softmax(logits: np.ndarray) -> mx.array:
    """As `Sampler.logprobs` does it."""
    x = mx.array(logits)
    return x - mx.logsumexp(x, axis=-1, keepdims=True)


def theirs(logprobs: mx.array, top_p: float, min_p: float, top_k: int) -> mx.array:
    if 0 < top_p < 1:
        logprobs = apply_top_p(logprobs, top_p)
    if min_p > 0:
        logprobs = apply_min_p(logprobs, min_p)
    if 0 < top_k < logprobs.shape[-1]:
        logprobs = apply_top_k(logprobs, top_k)
    return logprobs


def check(kept: mx.array, logprobs: mx.array, top_p: float, min_p: float, top_k: int) -> None:
    """Each row against the definition, in float64; only at the border of the nucleus is there some room."""
    assert (kept.shape, kept.dtype) == (logprobs.shape, mx.float32)
    length = logprobs.shape[-1]
    for got, row in zip(
        np.array(kept).reshape(-1, length), np.array(logprobs).reshape(-1, length), strict=True
    ):
        there = ~np.isneginf(got)
        assert (got[there] == row[there]).all(), "a value was changed"
        assert there[row.argmax()] or row[there].max() == row.max(), "the most likely token is out"
        limit = min(top_k if 0 < top_k < length else length, int(np.isfinite(row).sum()))
        may, must = np.isfinite(row), np.isfinite(row)
        if 0 < top_p < 1:
            above = mass_above(row)
            room = ROUNDING + top_k * 2**-24  # candidates are added one after the other
            may &= above < top_p + room
            must &= (above < top_p - room) | (row == row.max())
        if min_p > 0:
            floor = row.max() + np.float32(math.log(min_p))
            may, must = may & (row >= floor), must & (row >= floor)
        assert may[there].all(), "too many"
        assert min(limit, must.sum()) <= there.sum() <= limit
        if there.sum() < limit:
            assert there[must].all(), "too few"
        # Nothing that was left out is more likely than what stayed.
        assert there.all() or row[~there].max() <= row[there].min()
        if there.sum() < limit and not there.all():
            assert row[~there].max() < row[there].min(), "a tie was cut, and not by top-k"


def mass_above(row: np.ndarray) -> np.ndarray:
    """Of each token, the share of the mass that is strictly above it, float64."""
    values, inverse, counts = np.unique(row, return_inverse=True, return_counts=True)
    mass = np.exp(values.astype(np.float64)) * counts
    return (mass[::-1].cumsum()[::-1] - mass)[inverse] / mass.sum()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_combination_by_definition(kind: str, length: int) -> None:
    logprobs = log_softmax(rows(kind, length))
    for options in itertools.product(TOP_P, MIN_P, TOP_K):
        check(apply_filters(logprobs, *options), logprobs, *options)


@pytest.mark.parametrize("kind", KINDS)
def test_every_combination_as_mlx_lm(kind: str) -> None:
    """Wherever mlx-lm's running sum and a float64 one agree on the border, and where no tie has to be cut."""
    logprobs = log_softmax(rows(kind, 10_000, seed=1))
    compared = 0
    for options in itertools.product(TOP_P, MIN_P, TOP_K):
        got, wanted = (np.array(f(logprobs, *options)) for f in (apply_filters, theirs))
        exact = np.array(apply_filters(logprobs, options[0], 0.0, 0)) if 0 < options[0] < 1 else None
        for row in range(3):
            if exact is not None:
                by_mlx_lm = np.isfinite(np.array(apply_top_p(logprobs[row], options[0])))
                if (by_mlx_lm != np.isfinite(exact[row])).any():
                    continue
            # Among ties the choice is arbitrary, there and here.
            np.testing.assert_array_equal(np.sort(got[row]), np.sort(wanted[row]))
            if len(np.unique(got[row])) == len(got[row]) or kind == "random":
                np.testing.assert_array_equal(got[row], wanted[row])
            compared += 1
    assert compared > 200


@pytest.mark.parametrize("sigma", [0.5, 3.0])
def test_the_nucleus_of_a_real_vocabulary(sigma: float) -> None:
    """One whole row of Qwen's size: exact where mlx-lm's running sum has lost the small terms."""
    logits = np.random.default_rng(5).normal(size=(1, 248_320)).astype(np.float32) * np.float32(sigma)
    logprobs = log_softmax(logits)
    kept = apply_filters(logprobs, 0.95, 0.0, 0)
    above = mass_above(np.array(logprobs)[0])
    ours = np.isfinite(np.array(kept))[0]
    there = np.isfinite(np.array(apply_top_p(logprobs, 0.95)))[0]
    wanted = above < 0.95
    assert (ours != wanted).sum() <= 1
    assert (ours != wanted).sum() <= (there != wanted).sum()


def test_candidates_share_the_mass_of_the_whole_vocabulary() -> None:
    """MLX's float32 logsumexp may be off by 0.1% on a CPU; the nucleus is a share of what is there."""
    logprobs = log_softmax(rows("random", LONG)) + 1e-3
    check(apply_filters(logprobs, 0.9, 0.0, 700), logprobs, 0.9, 0.0, 700)
    p = np.full(LONG, 1e-9)
    p[:4] = 0.5, 0.25, 0.15, 0.1
    shifted = mx.array(np.log(p)[None].astype(np.float32)) + 1e-3
    for top_k in (0, 50):  # 0.9009 is more than 0.9003, but not that share of it
        assert mx.isfinite(apply_filters(shifted, 0.9003, 0.0, top_k)).sum().item() == 4


SHAPES = [(LONG,), (1, LONG), (5, LONG), (1, 3, LONG), (2, 2, 9001)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [(0.9, 0.0, 0), (0.9, 0.02, 40), (1.0, 0.1, 0), (1.0, 0.0, 7)])
def test_rows_do_not_depend_on_each_other(shape: tuple[int, ...], options: tuple) -> None:
    logits = np.random.default_rng(2).normal(size=shape).astype(np.float32) * 3
    logprobs = log_softmax(logits)
    got = apply_filters(logprobs, *options)
    check(got, logprobs, *options)
    alone = [apply_filters(row[None], *options)[0] for row in logprobs.reshape(-1, shape[-1])]
    assert mx.array_equal(got.reshape(-1, shape[-1]), mx.stack(alone))


@pytest.mark.parametrize("length", [1, 2, 7, 128, 1000])
@pytest.mark.parametrize("options", [(0.9, 0.0, 0), (0.9, 0.05, 3), (1e-9, 0.0, 0)])
def test_short_rows_are_mlx_lms_to_the_bit(length: int, options: tuple) -> None:
    logprobs = log_softmax(np.random.default_rng(3).normal(size=(2, length)).astype(np.float32))
    assert mx.array_equal(apply_filters(logprobs, *options), theirs(logprobs, *options))


logit = st.one_of(
    st.sampled_from([-np.inf, -30.0, -1.0, 0.0, 0.0, 1.0, 20.0]),
    st.floats(-40, 40, width=32),
)


# The ways of long rows, on rows that can be thought up: their length is not part of their rules.
@settings(max_examples=150, deadline=None)
@given(
    logits=st.lists(logit, min_size=1, max_size=12).filter(lambda row: max(row) > -np.inf),
    top_p=st.one_of(st.sampled_from([1e-6, 0.5, 1 - 1e-6]), st.floats(1e-4, 0.9999)),
)
def test_the_floor_of_any_row(logits: list[float], top_p: float) -> None:
    logprobs = log_softmax(np.array([logits], np.float32))
    kept = mx.where(logprobs < nucleus_floor(logprobs, top_p), -mx.inf, logprobs)
    check(kept, logprobs, top_p, 0.0, 0)


@settings(max_examples=150, deadline=None)
@given(
    logits=st.lists(logit, min_size=2, max_size=12).filter(lambda row: max(row) > -np.inf),
    top_p=st.one_of(st.just(1.0), st.floats(1e-4, 0.9999)),
    min_p=st.sampled_from(MIN_P),
    top_k=st.integers(1, 11),
)
def test_the_candidates_of_any_row(logits: list[float], top_p: float, min_p: float, top_k: int) -> None:
    top_k = min(top_k, len(logits) - 1)
    logprobs = log_softmax(np.array([logits], np.float32))
    check(by_candidates(logprobs, top_p, min_p, top_k), logprobs, top_p, min_p, top_k)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(KINDS),
    length=st.integers(LONG, LONG + 300),
    top_p=st.one_of(st.just(1.0), st.floats(1e-4, 0.9999)),
    min_p=st.sampled_from(MIN_P),
    top_k=st.one_of(st.just(0), st.integers(1, LONG + 300)),
)
def test_long_rows(seed: int, kind: str, length: int, top_p: float, min_p: float, top_k: int) -> None:
    logprobs = log_softmax(rows(kind, length, seed))
    check(apply_filters(logprobs, top_p, min_p, top_k), logprobs, top_p, min_p, top_k)


def test_a_tie_at_the_border_of_the_nucleus_is_kept_whole() -> None:
    """By hand: 0.4, then a thousand tokens of 0.0006; half of the mass ends among those."""
    p = np.zeros(LONG)
    p[17], p[1000:2000] = 0.4, 0.0006
    with np.errstate(divide="ignore"):
        logprobs = log_softmax(np.log(p)[None].astype(np.float32))
    for top_p, count in ((0.3, 1), (0.39, 1), (0.41, 1001), (0.5, 1001), (0.99, 1001)):
        assert mx.isfinite(apply_filters(logprobs, top_p, 0.0, 0)).sum().item() == count
    assert mx.isfinite(apply_filters(logprobs, 0.5, 0.0, 300)).sum().item() == 300


@pytest.mark.parametrize("options", [(0.9, 0.0, 0), (1.0, 0.0, 40), (0.9, 0.05, 40), (0.9, 0.05, 0)])
def test_long_rows_are_not_sorted(options: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0

    def watched(sort: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def call(x: mx.array, *args: object, **kwargs: object) -> mx.array:
            nonlocal longest
            longest = max(longest, x.shape[-1])
            return sort(x, *args, **kwargs)

        return call

    # mlx-lm's compiled functions sort when they are traced, which these are for the first time here.
    for name in ("sort", "argsort", "partition", "argpartition"):
        monkeypatch.setattr(mx, name, watched(getattr(mx, name)))
    for name in ("apply_top_p", "apply_top_k"):
        monkeypatch.setattr(filters, name, None)
    length = 40_000
    logprobs = log_softmax(np.random.default_rng(0).normal(size=(1, length)).astype(np.float32))
    apply_filters(logprobs, *options)
    assert longest <= length / 8


def test_nothing_is_read_on_the_host() -> None:
    """Tracing has no values to read."""
    logprobs = log_softmax(rows("random", LONG))
    for options in ((0.9, 0.0, 0), (0.9, 0.05, 40)):
        traced = mx.vmap(lambda row, options=options: apply_filters(row[None], *options)[0])(logprobs)
        assert mx.array_equal(traced, apply_filters(logprobs, *options))


# ---- candidates ----


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(
    ("vocabulary", "k"),
    [(20, 20), (20, 5), (8192, 16), (8300, 16), (20001, 1), (9000, 40), (9001, 900), (9001, 8000)],
)
def test_top_candidates_are_exact(vocabulary: int, k: int, dtype: mx.Dtype) -> None:
    logits = mx.random.normal((3, vocabulary), key=mx.random.key(vocabulary))
    # one row whose largest values are neighbours, in the last slice
    logits = mx.concatenate([logits, mx.arange(vocabulary, dtype=mx.float32)[None]]).astype(dtype)
    ids = top_candidates(logits, k)
    assert ids.dtype == mx.int32
    assert all(len(set(row)) == k for row in ids.tolist())
    values = mx.take_along_axis(logits, ids, axis=-1)
    wanted = mx.sort(logits, axis=-1)[:, vocabulary - k :]
    assert mx.array_equal(mx.sort(values, axis=-1), wanted)


def test_padding_is_no_candidate() -> None:
    """Fewer finite logits than candidates: the others are banned tokens, not ids behind the vocabulary."""
    logits = mx.array(rows("nearly all filtered", 9001))
    ids = top_candidates(logits, 50).tolist()
    assert all(len(set(row)) == 50 and max(row) == 9000 and 3 in row for row in ids)
