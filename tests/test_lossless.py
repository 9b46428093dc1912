"""Speculative decoding writes what mlx-lm writes: token by token, for every kind of cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import fakes
import mlx.core as mx
import pytest
import reference
import tiny
from caches import assert_close, assert_same_state

from dflash_mlx.decode import Decoder
from dflash_mlx.generate import stream_generate
from dflash_mlx.sampling import Sampler
from dflash_mlx.targets.model import ModelTarget
from dflash_mlx.types import Block, Event, Finished, SamplingParams

PROMPT = [3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]
WIDTH = 8
# (family, seed): one per kind of cache; seeds without near-ties, as `reference.greedy` asserts.
KINDS = (("llama", 0), ("gemma3_text", 0), ("qwen3_5", 1))
OTHERS = (("muse_glimmer", 2), ("gpt_oss", 0), ("gemma4", 1), ("qwen3_next", 0))


@cache
def target_of(name: str, seed: int) -> ModelTarget:
    return tiny.build(name, seed)


@cache
def right(name: str, seed: int, prompt: tuple[int, ...] = tuple(PROMPT), count: int = 200) -> tuple[int, ...]:
    return tuple(reference.greedy(target_of(name, seed).model, prompt, count))


def scripted(kind: tuple[str, int], errors: Callable[[int], int], prompt: Sequence[int] = PROMPT) -> Any:
    script = [*prompt, *right(*kind, tuple(prompt), 200 if prompt == PROMPT else 60)]
    return fakes.ScriptedDrafter(script, errors, tiny.VOCAB)


def run(pair: Any, prompt: Sequence[int] = PROMPT, **options: Any) -> tuple[list[int], list[Event]]:
    events = list(stream_generate(pair, prompt, **options))
    return [token for event in events if isinstance(event, Block) for token in event.tokens], events


LONG = (2, WIDTH)  # widths with as many cycles without `slow`
LENGTHS = [(width, 200 if width in LONG else 70) for width in range(1, WIDTH + 1)]
LONGER = [pytest.param(width, 200, marks=pytest.mark.slow) for width in range(1, WIDTH) if width not in LONG]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize(("width", "count"), LENGTHS + LONGER)
def test_a_random_drafter_changes_nothing(
    kind: tuple[str, int], generation: int, width: int, count: int
) -> None:
    drafter = tiny.build_drafter(generation, num_target_layers=4)
    tokens, events = run(fakes.pair_of(target_of(*kind), drafter), max_tokens=count, width=width)
    assert tuple(tokens) == right(*kind)[:count]
    method = {1: "dflash", 2: "dflash2"}[generation] if width > 1 else "plain"
    assert events[-1].stats.method == method


@pytest.mark.parametrize("kind", KINDS + OTHERS, ids=str)
def test_mixed_accepted_counts(kind: tuple[str, int]) -> None:
    drafter = scripted(kind, lambda cycle: cycle % WIDTH)
    tokens, events = run(fakes.pair_of(target_of(*kind), drafter), max_tokens=200)
    assert tuple(tokens) == right(*kind)
    assert min(events[-1].stats.accepted_histogram) > 0


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("accepted", range(WIDTH))
def test_every_accepted_count_leaves_the_right_state(kind: tuple[str, int], accepted: int) -> None:
    """One cycle that keeps exactly `accepted`; then the state, and 50 more tokens by plain steps."""
    drafter = scripted(kind, lambda cycle: accepted)
    pair = fakes.pair_of(target_of(*kind), drafter)
    line = fakes.line_at(pair, [*PROMPT, right(*kind)[0]], step=4)
    decoder = Decoder(pair, line, Sampler(SamplingParams(), tiny.VOCAB))
    cycle = decoder.cycle(WIDTH, len)
    assert (cycle.accepted, len(cycle.tokens)) == (accepted, accepted + 1)
    assert tuple(line.tokens) == (*PROMPT, *right(*kind)[: accepted + 2])

    alone = target_of(*kind).new_state()
    features = []
    for token in line.tokens[:-1]:
        step = target_of(*kind).forward(mx.array([[token]]), alone, drafter.config.target_layer_ids)
        features.append(step.features)
    assert_same_state(line.state, alone)
    assert line.context.length == alone.length == len(line.tokens) - 1
    assert_close(mx.concatenate(line.context.features, axis=1), mx.concatenate(features, axis=1))

    assert list(decoder.plain(50)) == list(right(*kind)[accepted + 2 : accepted + 52])
    assert line.context.length == line.state.length == len(line.tokens) - 1


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("length", [1, 2, tiny.WINDOW - 1, tiny.WINDOW, tiny.WINDOW + 1, 4 * tiny.WINDOW])
@pytest.mark.parametrize("step", [3, 2048])
def test_prompts_around_the_window(kind: tuple[str, int], length: int, step: int) -> None:
    prompt = tuple((5 * i + 4) % tiny.VOCAB for i in range(length))
    drafter = scripted(kind, lambda cycle: (3 * cycle + 2) % WIDTH, prompt)
    tokens, _ = run(fakes.pair_of(target_of(*kind), drafter), prompt, max_tokens=60, prefill_step=step)
    assert tuple(tokens) == right(*kind, prompt, 60)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("max_tokens", [1, 2, WIDTH - 1, WIDTH, WIDTH + 1])
@pytest.mark.parametrize("width", [1, WIDTH])
def test_max_tokens(kind: tuple[str, int], max_tokens: int, width: int) -> None:
    drafter = scripted(kind, lambda cycle: WIDTH)
    tokens, events = run(fakes.pair_of(target_of(*kind), drafter), max_tokens=max_tokens, width=width)
    assert tuple(tokens) == right(*kind)[:max_tokens]
    assert events[-1].reason == "length"
    assert events[-1].stats.generated_tokens == max_tokens


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    ("accepted", "place"), [(7, 0), (7, 3), (7, 6), (7, 7), (3, 3), (0, 0)], ids=lambda value: str(value)
)
def test_a_stop_id_anywhere_in_a_block(kind: tuple[str, int], accepted: int, place: int) -> None:
    """First, in the middle, last drafted, and as the bonus token: kept as the last token, state before it."""
    text = right(*kind)
    # The block after the first token holds text[1:]; look for a start where the stop id is new there.
    start = next(i for i in range(1, 60) if text[i + 1 + place] not in text[: i + 1 + place])
    prompt, stop = [*PROMPT, *text[:start]], text[start + 1 + place]
    drafter = fakes.ScriptedDrafter([*PROMPT, *text], lambda cycle: accepted, tiny.VOCAB)
    pair = fakes.pair_of(target_of(*kind), drafter, stop_ids=[stop])
    tokens, events = run(pair, prompt, max_tokens=100)
    assert tokens == list(text[start : start + 2 + place])
    assert events[-1].reason == "stop"
    assert events[-1].stats.cycles == 1

    line = fakes.line_at(pair, [*prompt, text[start]])
    Decoder(pair, line, Sampler(SamplingParams(), tiny.VOCAB)).cycle(
        WIDTH, lambda block: block.index(stop) + 1
    )
    alone = target_of(*kind).new_state()
    target_of(*kind).forward(mx.array([line.tokens[:-1]]), alone)
    assert line.tokens[-1] == stop
    assert_same_state(line.state, alone)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("width", [1, WIDTH])
def test_closing_early_is_right_at_every_event(kind: tuple[str, int], width: int) -> None:
    """Whatever was shown is committed, and the states of target and drafter hold it or all but its end."""
    for events_seen in range(1, 9):
        drafter = scripted(kind, lambda cycle: (3 * cycle + 1) % WIDTH)
        pair = fakes.pair_of(target_of(*kind), drafter)
        events = stream_generate(pair, PROMPT, max_tokens=40, width=width)
        shown = [next(events) for _ in range(events_seen)]
        events.close()
        tokens = [token for event in shown if isinstance(event, Block) for token in event.tokens]
        assert tuple(tokens) == right(*kind)[: len(tokens)]
    whole, _ = run(pair, max_tokens=40, width=width)  # the pair itself holds nothing
    assert tuple(whole) == right(*kind)[:40]


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_closed_plain_run_leaves_states_in_step(steps: int) -> None:
    kind = KINDS[2]
    pair = fakes.pair_of(target_of(*kind), scripted(kind, lambda cycle: 0))
    line = fakes.line_at(pair, PROMPT, step=4)
    plain = Decoder(pair, line, Sampler(SamplingParams(), tiny.VOCAB)).plain(20)
    for _ in range(steps):
        next(plain)
    plain.close()
    alone = target_of(*kind).new_state()
    target_of(*kind).forward(mx.array([line.tokens]), alone)  # the running step was fed the last token
    assert_same_state(line.state, alone)
    assert line.context.length == alone.length


def test_cancelling_ends_between_steps() -> None:
    kind = KINDS[0]
    pair = fakes.pair_of(target_of(*kind), scripted(kind, lambda cycle: 2))
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 4

    tokens, events = run(pair, max_tokens=100, prefill_step=5, cancelled=cancelled)
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "interrupted"
    assert tuple(tokens) == right(*kind)[: len(tokens)]
    assert 0 < len(tokens) < 20

    tokens, events = run(pair, prefill_step=5, cancelled=lambda: True)
    assert (tokens, events[-1].reason, events[-1].stats.generated_tokens) == ([], "interrupted", 0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_two_drafters_take_turns_on_one_target(kind: tuple[str, int]) -> None:
    target = target_of(*kind)
    first, second = (
        tiny.build_drafter(generation, num_target_layers=4, target_layer_ids=taps)
        for generation, taps in ((1, [0, 2]), (2, [1, 2, 3]))
    )
    for drafter in (first, second, first, None):
        tokens, _ = run(fakes.pair_of(target, drafter), max_tokens=30)
        assert tuple(tokens) == right(*kind)[:30]
    assert tuple(reference.greedy(target.model, PROMPT, 30)) == right(*kind)[:30]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_greedy_with_bias_and_penalties(kind: tuple[str, int]) -> None:
    """Penalties see the drafted prefix row by row; plain decoding is the reference."""
    sampling = SamplingParams(
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.2,
        penalty_context=12,
        logit_bias={7: 1.5},
    )
    target = target_of(*kind)
    plain, _ = run(fakes.pair_of(target), max_tokens=80, sampling=sampling)
    for errors in (lambda cycle: cycle % WIDTH, lambda cycle: WIDTH):
        drafter = fakes.ScriptedDrafter([*PROMPT, *plain], errors, tiny.VOCAB)
        tokens, events = run(fakes.pair_of(target, drafter), max_tokens=80, sampling=sampling)
        assert tokens == plain
        assert events[-1].stats.acceptance_length > 3
    assert plain != list(right(*kind)[:80])
