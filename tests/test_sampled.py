"""Sampling through the whole engine: mlx-lm's own choices with a seed, its distribution without."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter

import fakes
import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors
from reference import mlx_lm_sampler
from scipy import stats

from dflash_mlx.decode import Decoder
from dflash_mlx.generate import stream_generate
from dflash_mlx.sampling import Sampler
from dflash_mlx.types import Block, SamplingParams

PROMPT = [3, 5, 7, 11, 13, 17, 19, 23]
FILTERS = {"top_p": 0.9, "min_p": 0.02, "top_k": 30}
PENALTIES = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.2,
    "penalty_context": 12,
}


TOKENS = 25  # of a seeded reply


def mlx_lm_processors(params: SamplingParams) -> list:
    return make_logits_processors(
        logit_bias=dict(params.logit_bias) or None,
        repetition_penalty=None if params.repetition_penalty == 1 else params.repetition_penalty,
        repetition_context_size=params.penalty_context,
        presence_penalty=params.presence_penalty,
        presence_context_size=params.penalty_context,
        frequency_penalty=params.frequency_penalty,
        frequency_context_size=params.penalty_context,
    )


@pytest.mark.parametrize(
    "options", [{}, FILTERS, PENALTIES, {**FILTERS, **PENALTIES, "logit_bias": {7: 2.0}}]
)
@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_with_a_seed_every_width_writes_what_mlx_lm_draws(family: str, options: dict) -> None:
    target = tiny.build(family)
    params = SamplingParams(temperature=0.8, seed=7, **options)
    wanted = generate_step(
        mx.array(PROMPT),
        target.model,
        max_tokens=TOKENS,
        sampler=mlx_lm_sampler(params),
        logits_processors=mlx_lm_processors(params),
    )
    wanted_tokens = [token for token, _ in wanted]
    plain = fakes.pair_of(target)
    first, second = (fakes.pair_of(target, tiny.build_drafter(one, num_target_layers=4)) for one in (1, 2))
    for pair, width in ((plain, 1), (first, 5), (second, 1), (second, 2), (second, 8)):
        mx.random.seed(99)  # the engine's draws are its own
        events = stream_generate(pair, PROMPT, params, max_tokens=TOKENS, width=width)
        assert [t for e in events if isinstance(e, Block) for t in e.tokens] == wanted_tokens


@pytest.mark.parametrize("width", [1, 5])
def test_a_seed_repeats_and_no_seed_does_not(width: int) -> None:
    pair = fakes.pair_of(tiny.build("llama"), tiny.build_drafter(2))

    def sample(seed: int | None) -> list[int]:
        params = SamplingParams(temperature=1.0, seed=seed)
        return [
            t
            for e in stream_generate(pair, PROMPT, params, max_tokens=40, width=width)
            if isinstance(e, Block)
            for t in e.tokens
        ]

    assert sample(1) == sample(1) != sample(2)
    assert sample(None) != sample(None)


V = 10  # a vocabulary so small that sequences of three tokens can be counted


def probabilities(model, prompt: list[int], params: SamplingParams) -> np.ndarray:
    """The distribution of the token after `prompt`, from mlx-lm's pieces, float64 at the end."""
    logits = model(mx.array([prompt]))[:, -1, :]
    for processor in mlx_lm_processors(params):
        logits = processor(mx.array(prompt), logits)
    logprobs = logits - mx.logsumexp(logits, keepdims=True)
    if params.top_p < 1:
        logprobs = apply_top_p(logprobs, params.top_p)
    if params.min_p > 0:
        logprobs = apply_min_p(logprobs, params.min_p)
    if params.top_k > 0:
        logprobs = apply_top_k(logprobs, params.top_k)
    x = np.array(logprobs[0]).astype(np.float64) / params.temperature
    x = np.exp(x - x.max())
    return x / x.sum()


def triples(model, prompt: list[int], params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Probability of every sequence of three tokens."""
    table = {(): 1.0}
    for _ in range(3):
        table = {
            (*prefix, token): mass * p
            for prefix, mass in table.items()
            for token, p in enumerate(probabilities(model, [*prompt, *prefix], params))
            if mass * p > 0
        }
    return table


def p_value(counts: Counter, expected: dict[tuple[int, ...], float], draws: int) -> float:
    """Chi-square with cells of small expectation pooled; a draw of zero probability is an error."""
    assert set(counts) <= set(expected)
    large = [key for key, p in expected.items() if p * draws >= 5]
    observed = [counts[key] for key in large]
    wanted = [expected[key] * draws for key in large]
    if draws - sum(wanted) > 1:
        observed.append(draws - sum(observed))
        wanted.append(draws - sum(wanted))
    return float(stats.chisquare(observed, np.array(wanted) * (sum(observed) / sum(wanted))).pvalue)


def sampled_triples(
    params: SamplingParams, generation: int, width: int, draws: int
) -> tuple[Counter, dict, float]:
    """From a generation without a seed, whose fresh entropy is that of `params.seed`."""
    entropy = random.Random(params.seed).getrandbits
    params = dataclasses.replace(params, seed=None)
    target = tiny.build("llama", vocab_size=V, num_hidden_layers=2)
    drafter = tiny.build_drafter(
        generation, vocab_size=V, num_target_layers=2, target_layer_ids=[0, 1], num_hidden_layers=1
    )
    pair = fakes.pair_of(target, drafter)
    prompt = [1, 4, 2, 8, 5, 7]
    line = fakes.line_at(pair, prompt)
    start = line.snapshot()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.randbits", entropy)
        decoder = Decoder(pair, line, Sampler(params, V))
    counts, lengths = Counter(), []
    for _ in range(draws):
        line.restore(start)
        line.tokens = list(prompt)
        while len(line.tokens) < len(prompt) + 3:
            lengths.append(len(decoder.cycle(width, len).tokens))
        counts[tuple(line.tokens[len(prompt) : len(prompt) + 3])] += 1
    return counts, triples(target.model, prompt, params), sum(lengths) / len(lengths)


CONFIGURATIONS = [
    (SamplingParams(temperature=1.0, seed=11), 2, 4),
    (SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.3, penalty_context=5, seed=12), 2, 4),
]
MORE = [
    (SamplingParams(temperature=1.3, top_k=6, seed=seed, presence_penalty=0.5), generation, width)
    for seed, (generation, width) in enumerate(itertools.product((1, 2), (2, 3, 6)))
]


@pytest.mark.parametrize(("params", "generation", "width"), CONFIGURATIONS, ids=str)
def test_three_tokens_have_the_targets_distribution(
    params: SamplingParams, generation: int, width: int
) -> None:
    counts, expected, length = sampled_triples(params, generation, width, 1000)
    assert length > 1.2  # drafted tokens were kept: the rule was at work
    assert p_value(counts, expected, 1000) > 1e-3
    if params.top_p == 1:  # and it sees a small bias: another temperature
        target = tiny.build("llama", vocab_size=V, num_hidden_layers=2)
        other = triples(target.model, [1, 4, 2, 8, 5, 7], SamplingParams(temperature=1.25))
        assert p_value(counts, other, 1000) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("params", "generation", "width"), CONFIGURATIONS, ids=str)
def test_three_tokens_have_it_in_many_draws(params: SamplingParams, generation: int, width: int) -> None:
    counts, expected, _ = sampled_triples(params, generation, width, 4000)
    assert p_value(counts, expected, 4000) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("params", "generation", "width"), MORE, ids=str)
def test_more_configurations(params: SamplingParams, generation: int, width: int) -> None:
    counts, expected, _ = sampled_triples(params, generation, width, 20_000)
    assert p_value(counts, expected, 20_000) > 1e-3
