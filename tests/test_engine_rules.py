"""What the engine promises besides its tokens: host reads, memory, refusals, statistics."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fakes
import mlx.core as mx
import numpy as np
import pytest
import tiny

from dflash_mlx.errors import UserError
from dflash_mlx.generate import stream_generate
from dflash_mlx.session import Session
from dflash_mlx.types import Block, Finished, Prefilled, SamplingParams

PROMPT = list(range(3, 14))
READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__")


@contextmanager
def counted_host_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    reads: list[str] = []

    def counting(name: str, original: Any) -> Any:
        def read(*args: Any, **kwargs: Any) -> Any:
            reads.append(name)
            return original(*args, **kwargs)

        return read

    with monkeypatch.context() as patch:
        for name in READS:
            if hasattr(mx.array, name):
                patch.setattr(mx.array, name, counting(name, getattr(mx.array, name)))
        for name in ("eval", "synchronize"):
            patch.setattr(mx, name, counting(name, getattr(mx, name)))
        yield reads


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_5"])
@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.8, top_p=0.9, min_p=0.01, top_k=20, repetition_penalty=1.2, seed=1),
    ],
    ids=["greedy", "sampled"],
)
@pytest.mark.parametrize("width", [1, 6])
def test_one_host_read_per_cycle(
    family: str, generation: int, sampling: SamplingParams, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = tiny.build_drafter(generation, num_target_layers=4)
    pair = fakes.pair_of(tiny.build(family), drafter)
    events = stream_generate(pair, PROMPT, sampling, max_tokens=60, width=width)
    for _ in range(4):  # prompt, first token, the cycle with the one finiteness check, one more
        next(events)
    waits = 0
    with counted_host_reads(monkeypatch) as reads:
        for event in events:
            if isinstance(event, Finished):
                break
            waits += reads.count("synchronize")
            assert len(reads) - reads.count("synchronize") <= 1, reads
            reads.clear()
    assert waits <= 2  # of the statistics: one in 32 blocks


def test_the_counter_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with counted_host_reads(monkeypatch) as reads:
        x = mx.array([1])
        x.item(), x.tolist(), bool(x), int(x), mx.eval(x)
    assert reads == ["item", "tolist", "__bool__", "__int__", "eval"] or len(reads) == 5


def memory_beyond_caches(length: int) -> int:
    target = tiny.build("llama", num_attention_heads=1, num_key_value_heads=1)
    pair = fakes.pair_of(target, tiny.build_drafter(2, num_target_layers=4, target_layer_ids=[0, 1, 2, 3]))
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    line = fakes.line_at(pair, [5] * length, step=512)
    gc.collect()
    caches = line.state.nbytes + sum(array.nbytes for array in line.context.arrays())
    return mx.get_active_memory() - before - caches


def test_prefill_keeps_nothing_but_the_caches() -> None:
    short, long = (memory_beyond_caches(length) for length in (1024, 4096))
    assert abs(short) <= 2**20
    assert abs(long) <= 2**20
    assert abs(long - short) <= 2**16


def test_a_sliding_drafter_is_fed_the_end_of_a_prompt_only() -> None:
    """Same context as from the whole prompt, without taps on the chunks that no draft can see."""
    drafter = tiny.build_drafter(
        2, num_target_layers=4, layer_types=["sliding_attention"] * 2, sliding_window=12
    )
    target = tiny.build("llama")
    pair = fakes.pair_of(target, drafter)
    prompt = [(3 * i) % tiny.VOCAB for i in range(60)]
    taps_used = []
    original = target.forward
    target.forward = lambda ids, state, taps=(), **more: (
        taps_used.append(bool(taps)),
        original(ids, state, taps, **more),
    )[1]
    chunked = fakes.line_at(pair, prompt, step=10)
    assert taps_used == [False] * 4 + [True] * 2
    whole = fakes.line_at(pair, prompt, step=100)
    drafts = [
        drafter.draft(mx.array([[1]]), 6, line.context, target, 0.0).tokens.tolist()
        for line in (chunked, whole)
    ]
    assert chunked.context.length == whole.context.length == 59
    assert drafts[0] == drafts[1]


def test_statistics_add_up() -> None:
    target = tiny.build("llama")
    plain = [
        t
        for e in stream_generate(fakes.pair_of(target), PROMPT, max_tokens=50)
        if isinstance(e, Block)
        for t in e.tokens
    ]
    drafter = fakes.ScriptedDrafter([*PROMPT, *plain], lambda cycle: cycle % 4, tiny.VOCAB)
    prefilled, *blocks, finished = stream_generate(
        fakes.pair_of(target, drafter), PROMPT, max_tokens=50, width=5
    )
    stats = finished.stats
    assert isinstance(prefilled, Prefilled)
    assert (prefilled.prompt_tokens, prefilled.reused_tokens, prefilled.note) == (len(PROMPT), 0, None)
    assert stats.generated_tokens == sum(len(block.tokens) for block in blocks) == 50
    cycles = [block for block in blocks if block.width > 1]
    assert stats.cycles == len(cycles) == sum(stats.accepted_histogram)
    committed = sum(block.accepted + 1 for block in cycles)
    assert 1 + committed + stats.plain_steps == 50
    assert stats.acceptance_length == pytest.approx(committed / stats.cycles)
    assert len(stats.accepted_histogram) == 5
    assert (blocks[0].width, blocks[0].accepted) == (1, 0)
    assert stats.first_token_seconds >= stats.prefill_seconds > 0
    assert stats.tokens_per_second == pytest.approx(49 / stats.decode_seconds)
    assert stats.peak_memory_bytes > 0
    assert stats.width == 5
    assert stats.method == "dflash2"


def test_refusals_come_before_any_work() -> None:
    target = tiny.build("llama")
    drafter = fakes.ScriptedDrafter([], lambda cycle: 0, tiny.VOCAB)
    pair = fakes.pair_of(target, drafter, context_length=20)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "prompt is empty"),
        ([1, tiny.VOCAB], {}, "vocabulary"),
        ([-1], {}, "vocabulary"),
        ([1] * 20, {}, "context is 20"),
        ([1], {"width": 9}, "blocks have 8"),
        ([1], {"width": 0}, "at least 1 row"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        ([1], {"stop": [""]}, "stop string"),
        ([1], {"stop": "ab"}, "one string"),
        ([1], {"max_tokens": 4.5}, "max_tokens"),
        (
            [1],
            {"sampling": SamplingParams(logit_bias=dict.fromkeys(range(tiny.VOCAB), -math.inf))},
            "bans every",
        ),
        ([1], {"prefill_step": 0}, "prefill_step"),
        ([1], {"sampling": SamplingParams(logit_bias={999: 1.0})}, "logit_bias"),
    ]
    for prompt, options, words in cases:
        with pytest.raises(UserError, match=words):
            stream_generate(pair, prompt, **options)  # not a single event was asked for
    with pytest.raises(UserError, match="needs a drafter"):
        stream_generate(fakes.pair_of(target), [1], width=2)


def test_the_context_length_ends_a_generation_and_says_so() -> None:
    events = list(
        stream_generate(fakes.pair_of(tiny.build("llama"), context_length=20), PROMPT, max_tokens=100)
    )
    assert "9 more tokens" in events[0].note
    assert events[-1].reason == "length"
    assert events[-1].stats.generated_tokens == 9


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("width", [1, 8])
def test_a_long_reply_keeps_nothing_but_the_caches(window: int | None, width: int) -> None:
    """Plain steps hand their features to the drafter too, and these must not wait for a cycle."""
    sliding = {} if window is None else {"layer_types": ["sliding_attention"] * 2, "sliding_window": window}
    pair = fakes.pair_of(tiny.build("llama"), tiny.build_drafter(2, **sliding))
    session = Session(pair)
    beyond = []
    for event in session.generate(PROMPT, max_tokens=530, width=width):
        line = session._line
        if (
            isinstance(event, Block)
            and line.state.length // 256 != (line.state.length - len(event.tokens)) // 256
        ):
            gc.collect()
            mx.clear_cache()
            mx.synchronize()
            caches = line.state.nbytes + sum(array.nbytes for array in line.context.arrays())
            beyond.append(mx.get_active_memory() - caches)
    assert len(beyond) >= 2
    features = 256 * 3 * tiny.HIDDEN * 4  # of the tokens between two looks
    assert beyond[-1] - beyond[0] < features / 4


def test_statistics_are_the_engines_own_time() -> None:
    """A slow reader of the events slows nothing down."""
    pair = fakes.pair_of(tiny.build("llama"))
    seconds = []
    for pause in (0.0, 0.03):
        events = []
        for event in stream_generate(pair, PROMPT, max_tokens=20):
            time.sleep(pause)
            events.append(event)
        seconds.append(events[-1].stats.decode_seconds)
    assert seconds[1] < 19 * 0.03


def test_prompts_may_be_arrays() -> None:
    pair = fakes.pair_of(tiny.build("llama"))

    def tokens(prompt: Any) -> list[int]:
        return [
            t for e in stream_generate(pair, prompt, max_tokens=5) if isinstance(e, Block) for t in e.tokens
        ]

    assert tokens(mx.array(PROMPT)) == tokens(np.array(PROMPT)) == tokens(tuple(PROMPT)) == tokens(PROMPT)
    for wrong in (["a"], [1.5, 2], mx.array([[1, 2]]), mx.array([1.5])):
        with pytest.raises(UserError, match="whole numbers"):
            stream_generate(pair, wrong)
