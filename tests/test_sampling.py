"""Logits to draws: the same tokens as mlx-lm from the same noise, and every option by its definition."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from exact import reference
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors
from reference import mlx_lm_sampler

from dflash_mlx.errors import UserError
from dflash_mlx.noise import Noise
from dflash_mlx.sampling import Sampler
from dflash_mlx.types import SamplingParams

GOLDEN = Path(__file__).parent / "data" / "golden" / "acceptance"
GOLDEN_SAMPLING = json.loads((GOLDEN / "golden.json").read_text())["sampling"]
VOCAB = 211
PROMPT = [3, 5, 3, 8, 13, 200, 3]
OPTIONS = {
    "greedy": {},
    "greedy, penalised": {"repetition_penalty": 1.5, "frequency_penalty": 0.4, "logit_bias": {7: 3.0}},
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 2.5},
    "top_p": {"temperature": 0.8, "top_p": 0.7},
    "min_p": {"temperature": 1.1, "min_p": 0.05},
    "top_k": {"temperature": 0.9, "top_k": 20},
    "filters": {"temperature": 1.3, "top_p": 0.95, "min_p": 0.01, "top_k": 40},
    "bias": {"temperature": 1.0, "logit_bias": {0: 4.0, 17: -4.0, 210: 2.0, 5: -float("inf")}},
    "repetition": {"temperature": 0.9, "repetition_penalty": 1.8},
    "presence": {"temperature": 0.9, "presence_penalty": 1.1},
    "frequency": {"temperature": 0.9, "frequency_penalty": 0.9},
    "short context": {
        "temperature": 0.7,
        "repetition_penalty": 2.0,
        "frequency_penalty": 1.0,
        "penalty_context": 3,
    },
    "everything": {
        "temperature": 0.8,
        "top_p": 0.9,
        "min_p": 0.02,
        "top_k": 30,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "penalty_context": 10,
        "logit_bias": {4: 2.0, 9: -2.0},
    },
}


class Bigram(nn.Module):
    """A language model that is a table: the next logits depend on the last token."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.table = mx.random.normal((VOCAB, VOCAB), key=mx.random.key(seed)) * 2

    def __call__(self, ids: mx.array, cache: object = None) -> mx.array:
        return self.table[ids]

    def make_cache(self) -> list[object]:
        return []


def theirs(model: Bigram, params: SamplingParams, count: int) -> list[int]:
    """mlx-lm's own generation, drawn from the noise of the seed in `params`."""
    size = params.penalty_context
    processors = make_logits_processors(
        dict(params.logit_bias),
        params.repetition_penalty,
        size,
        params.presence_penalty,
        size,
        params.frequency_penalty,
        size,
    )
    steps = generate_step(
        mx.array(PROMPT),
        model,
        max_tokens=count,
        sampler=mlx_lm_sampler(params),
        logits_processors=processors,
    )
    return [token for token, _ in steps]


def ours(model: Bigram, params: SamplingParams) -> Iterator[int]:
    sampler, noise = Sampler(params, VOCAB), Noise(params.seed)
    recent = mx.array(PROMPT, mx.int32)
    token = recent[-1:]
    for position in itertools.count():
        logits = sampler.process(model(token[None]), recent, None)
        token = sampler.draw(logits[:, -1], noise.gumbel(position, 1, VOCAB))
        recent = sampler.remember(recent, token)
        yield token.item()


@pytest.mark.parametrize("seed", [0, 7, 2**63 + 1])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_tokens_as_mlx_lm(name: str, seed: int) -> None:
    params = SamplingParams(seed=seed, **OPTIONS[name])
    model = Bigram(seed % 1000)
    wanted = theirs(model, params, 80)
    assert [token for token, _ in zip(ours(model, params), wanted, strict=False)] == wanted


def test_generations_do_not_disturb_each_other_or_the_global_state() -> None:
    model, params = Bigram(1), SamplingParams(temperature=0.9, top_p=0.9, top_k=50, min_p=0.01, seed=4)
    alone = [token for token, _ in zip(ours(model, params), range(30), strict=False)]
    mx.random.seed(11)
    untouched = mx.random.uniform(shape=(3,)).tolist()
    mx.random.seed(11)
    other = ours(model, SamplingParams(temperature=0.9, seed=5))
    interleaved = []
    for token, _ in zip(ours(model, params), range(30), strict=False):
        interleaved.append(token)
        next(other)
    assert interleaved == alone
    assert mx.random.uniform(shape=(3,)).tolist() == untouched


# ---- bias and penalties ----


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize(
    "name", [name for name in OPTIONS if "logit_bias" in OPTIONS[name] or "penal" in name]
)
def test_rows_are_processed_as_mlx_lm_would_one_by_one(name: str, dtype: mx.Dtype) -> None:
    """Row i of a block is a plain step after the first i drafted tokens: same values, same dtype."""
    params = SamplingParams(**OPTIONS[name])
    sampler = Sampler(params, VOCAB)
    rng = np.random.default_rng(0)
    logits = mx.array(rng.normal(size=(1, 5, VOCAB)).astype(np.float32)).astype(dtype)
    drafted = mx.array([[8, 3, 8, 77]])
    before = np.array(logits.astype(mx.float32))
    block = sampler.process(logits, mx.array(PROMPT, mx.int32), drafted)
    assert (block.shape, block.dtype) == (logits.shape, dtype)
    size = params.penalty_context
    processors = make_logits_processors(
        dict(params.logit_bias),
        params.repetition_penalty,
        size,
        params.presence_penalty,
        size,
        params.frequency_penalty,
        size,
    )
    for row in range(5):
        history = mx.array([*PROMPT, *drafted.tolist()[0][:row]])
        wanted = logits[:, row]
        for processor in processors:
            wanted = processor(history, wanted)
        assert mx.array_equal(block[:, row], wanted), row
    assert (np.array(logits.astype(mx.float32)) == before).all(), "the input was written into"


def test_each_row_sees_its_own_prefix() -> None:
    """By hand: anchor 1, drafted 2, 2, 1; a presence penalty of 1 and a window of three tokens."""
    sampler = Sampler(SamplingParams(presence_penalty=1.0, penalty_context=3), 5)
    out = sampler.process(mx.zeros((1, 4, 5)), mx.array([4, 0, 1]), mx.array([[2, 2, 1]]))
    assert (-out[0]).tolist() == [[1, 1, 0, 0, 1], [1, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 0, 0]]
    frequency = Sampler(SamplingParams(frequency_penalty=1.0, penalty_context=3), 5)
    out = frequency.process(mx.zeros((1, 4, 5)), mx.array([4, 0, 1]), mx.array([[2, 2, 1]]))
    assert (-out[0]).tolist() == [[1, 1, 0, 0, 1], [1, 1, 1, 0, 0], [0, 1, 2, 0, 0], [0, 1, 2, 0, 0]]


def test_history_is_asked_for_only_where_it_matters() -> None:
    logits = mx.zeros((1, 2, 9))
    off = Sampler(SamplingParams(temperature=0.5, top_k=3), 9)
    assert not off.needs_history
    assert off.process(logits, None, mx.array([[1]])) is logits
    bias = Sampler(SamplingParams(logit_bias={2: 1.5}), 9)
    assert not bias.needs_history
    assert bias.process(logits, None, mx.array([[1]]))[0, :, 2].tolist() == [1.5, 1.5]
    for option in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        sampler = Sampler(SamplingParams(**{option: 0.5}), 9)
        assert sampler.needs_history
        with pytest.raises(ValueError, match="need the history and 1 drafted tokens"):
            sampler.process(logits, None, mx.array([[1]]))
        for drafted in (None, mx.array([[1, 2]])):
            with pytest.raises(ValueError, match="1 drafted tokens"):
                sampler.process(logits, mx.array([4]), drafted)


def test_remember_keeps_the_window() -> None:
    sampler = Sampler(SamplingParams(presence_penalty=1.0, penalty_context=4), 9)
    recent = mx.array([1, 2], mx.int32)
    recent = sampler.remember(recent, mx.array([3]))
    assert recent.tolist() == [1, 2, 3]
    recent = sampler.remember(recent, mx.array([4, 5, 6], mx.uint32))
    assert (recent.tolist(), recent.dtype) == ([3, 4, 5, 6], mx.int32)


# ---- distributions ----


@pytest.mark.parametrize("case", GOLDEN_SAMPLING, ids=lambda case: f"sampling{case['case']}")
def test_golden(case: dict) -> None:
    arrays = mx.load(str(GOLDEN / "golden.safetensors"))
    logits, probs = (arrays[f"sampling{case['case']}.{name}"] for name in ("logits", "probs"))
    options = {name: case[name] for name in ("temperature", "top_p", "top_k")}
    sampler = Sampler(SamplingParams(**options), logits.shape[-1])
    got = np.array(mx.softmax(sampler.logprobs(logits), axis=-1))
    np.testing.assert_allclose(got, np.array(probs), atol=1e-6)


# Few values: mlx-lm's filters are compiled anew for each one.
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([1, 2, 3, 17, 60]),
    temperature=st.floats(0.05, 5),
    top_p=st.sampled_from([1.0, 0.01, 0.5, 0.9]),
    min_p=st.sampled_from([0.0, 0.02, 0.4]),
    top_k=st.sampled_from([0, 1, 2, 16, 70]),
)
def test_filters_by_definition(
    seed: int, vocab: int, temperature: float, top_p: float, min_p: float, top_k: int
) -> None:
    params = SamplingParams(temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k)
    logits = (np.random.default_rng(seed).normal(size=(2, 3, vocab)) * 2).astype(np.float32)
    try:
        wanted = np.array([[reference(row, params, ()) for row in rows] for rows in logits])
    except AssertionError:  # a border that float32 and float64 may see differently
        assume(False)
    logprobs = Sampler(params, vocab).logprobs(mx.array(logits))
    assert (logprobs.shape, logprobs.dtype) == (logits.shape, mx.float32)
    np.testing.assert_allclose(np.array(mx.softmax(logprobs, axis=-1)), wanted, atol=2e-6)
    assert (np.isneginf(np.array(logprobs)) == (wanted == 0))[wanted < 1e-30].all()


def test_temperature_comes_after_the_filters() -> None:
    """At temperature 0.1 the first token alone holds 0.9: a nucleus taken afterwards would be that one."""
    p = np.array([0.4, 0.3, 0.2, 0.1])
    sampler = Sampler(SamplingParams(temperature=0.1, top_p=0.85), 4)
    assert np.isneginf(np.array(sampler.logprobs(mx.array(np.log(p))))).tolist() == [
        False,
        False,
        False,
        True,
    ]


def test_min_p_of_one_keeps_the_most_likely() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, min_p=1.0), 4)
    assert np.isfinite(np.array(sampler.logprobs(mx.array([1.0, 3.0, 3.0, 2.0])))).tolist() == [0, 1, 1, 0]


def test_draws_follow_the_shape_of_the_rows() -> None:
    logits = mx.random.normal((1, 1, VOCAB), key=mx.random.key(0))
    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        sampler = Sampler(params, VOCAB)
        noise = Noise(2).gumbel(0, 1, VOCAB)
        token = sampler.draw(logits, noise)
        assert (token.shape, token.dtype) == ((1, 1), mx.int32)
        assert token.item() == sampler.draw(logits[0], noise).item()
    assert Sampler(SamplingParams(), VOCAB).draw(logits, None).shape == (1, 1)


def test_half_precision_rows_are_drawn_in_float32() -> None:
    logits = mx.random.normal((1, VOCAB), key=mx.random.key(0)).astype(mx.bfloat16)
    sampler = Sampler(SamplingParams(temperature=1.0, top_p=0.9), VOCAB)
    assert mx.array_equal(sampler.logprobs(logits), sampler.logprobs(logits.astype(mx.float32)))


# ---- options ----


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_a_bias_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(UserError, match=f"names token {token}, the vocabulary has {VOCAB}") as error:
        Sampler(SamplingParams(logit_bias={token: 1.0}), VOCAB)
    assert error.value.hint == f"use ids from 0 to {VOCAB - 1}"


@pytest.mark.parametrize("bias", [float("nan"), float("inf")])
def test_a_bias_that_is_no_number(bias: float) -> None:
    with pytest.raises(UserError, match="`logit_bias` of token 3"):
        Sampler(SamplingParams(logit_bias={3: bias}), VOCAB)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temperature", value) for value in (-0.1, float("nan"), float("inf"))],
        *[("top_p", value) for value in (-0.1, 1.1, float("nan"))],
        *[("min_p", value) for value in (-0.1, 1.1, float("nan"))],
        *[("top_k", value) for value in (-1, float("inf"))],
        *[("repetition_penalty", value) for value in (-1.0, 0.0, float("inf"), float("nan"))],
        *[("presence_penalty", value) for value in (float("inf"), -float("inf"), float("nan"))],
        *[("frequency_penalty", value) for value in (float("inf"), -float("inf"), float("nan"))],
        *[("penalty_context", value) for value in (0, -1)],
        *[("seed", value) for value in (-1, 2**64)],
    ],
)
def test_values_outside_their_range(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"`{name}` is "):
        SamplingParams(**{name: value})


def test_values_at_the_ends_of_their_range() -> None:
    for ends in (
        {"temperature": 0.0, "top_p": 0.0, "min_p": 0.0, "top_k": 0, "penalty_context": 1, "seed": 0},
        {"top_p": 1.0, "min_p": 1.0, "top_k": 10**9, "penalty_context": 10**9, "seed": 2**64 - 1},
        {"presence_penalty": -2.0, "frequency_penalty": -2.0, "repetition_penalty": 0.5},
    ):
        params = SamplingParams(temperature=ends.pop("temperature", 1.0), **ends)
        sampler = Sampler(params, VOCAB)
        logits = sampler.process(mx.zeros((1, 1, VOCAB)), mx.array(PROMPT), None)
        assert 0 <= sampler.draw(logits, Noise(params.seed).gumbel(0, 1, VOCAB)).item() < VOCAB
    assert SamplingParams().greedy
    assert not SamplingParams(temperature=1e-6).greedy


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {5: 1e39}},
        {"logit_bias": {5.0: 1.0}},
        {"logit_bias": {"5": 1.0}},
        {"repetition_penalty": 1e-45},
        {"presence_penalty": -1e39},
        {"frequency_penalty": 1e39},
        {"temperature": 1e-40},
        {"top_k": 2.5},
        {"penalty_context": 3.5},
        {"seed": 1.5},
        {"top_k": True},
    ],
)
def test_what_float32_cannot_hold_or_is_no_number_is_refused(options: dict) -> None:
    with pytest.raises(UserError):
        SamplingParams(**options)


def test_options_are_plain_data() -> None:
    bias = {3: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[3] = float("nan")
    assert params.logit_bias == {3: 1.0}
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.asdict(SamplingParams())["logit_bias"] == {}
