"""Sessions: what is reused, and that no history of turns and accidents changes a reply."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import fakes
import faults
import mlx.core as mx
import pytest
import tiny
from mlx_lm.generate import generate_step

from dflash_mlx.errors import UserError
from dflash_mlx.session import Session
from dflash_mlx.types import Block, Event, Finished, Prefilled, SamplingParams

FAMILIES = ("llama", "gemma3_text", "qwen3_5")  # one per kind of cache
FIRST = tuple(range(3, 23))
REPLY = 12


@cache
def target(family: str) -> Any:
    return tiny.build(family)


@cache
def drafter(sliding: bool = False) -> Any:
    kinds = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 12} if sliding else {}
    return tiny.build_drafter(2, **kinds)


@cache
def alone(family: str, prompt: tuple[int, ...], count: int = REPLY) -> tuple[int, ...]:
    """mlx-lm's own greedy reply."""
    model = target(family).model
    return tuple(token for token, _ in generate_step(mx.array(prompt), model, max_tokens=count))


def pair_of(family: str, sliding: bool = False) -> Any:
    return fakes.pair_of(target(family), drafter(sliding))


def turn(
    session: Session, prompt: Sequence[int], **options: Any
) -> tuple[tuple[int, ...], Prefilled, Finished]:
    options = {"max_tokens": REPLY, **options}
    events = list(session.generate(prompt, **options))
    tokens = tuple(token for event in events if isinstance(event, Block) for token in event.tokens)
    assert isinstance(events[0], Prefilled)
    assert isinstance(events[-1], Finished)
    assert session.tokens == (*prompt, *tokens)
    assert events[0].reused_tokens == events[-1].stats.reused_tokens
    return tokens, events[0], events[-1]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sliding", [False, True])
@pytest.mark.parametrize("width", [1, 5])
def test_an_extension_reads_only_what_is_new(family: str, sliding: bool, width: int) -> None:
    session = Session(pair_of(family, sliding))
    prompt: tuple[int, ...] = FIRST
    reused = 0
    for more in ((40, 41, 42), (50,), (60, 61, 62, 63, 64, 65, 66, 67, 68, 69)):
        reply, prefilled, _ = turn(session, prompt, width=width)
        assert reply == alone(family, prompt)
        assert prefilled.reused_tokens == reused
        assert prefilled.note is None
        reused = len(prompt) + REPLY - 1  # the last token of a reply is not in the caches
        prompt = (*prompt, *reply, *more)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_prompt_again_costs_one_token(family: str) -> None:
    session = Session(pair_of(family))
    for reused in (0, len(FIRST) - 1, len(FIRST) - 1):
        reply, prefilled, _ = turn(session, FIRST)
        assert reply == alone(family, FIRST)
        assert prefilled.reused_tokens == reused


@pytest.mark.parametrize("family", FAMILIES)
def test_a_changed_history_goes_back_to_where_it_can(family: str) -> None:
    session = Session(pair_of(family))
    border = 15
    turn(session, FIRST, snapshot_at=[border])
    changed = (*FIRST[:17], 90, 91)
    reply, prefilled, _ = turn(session, changed)
    assert reply == alone(family, changed)
    # Plain KV caches are cut anywhere; the others go back to the snapshot before.
    assert prefilled.reused_tokens == (17 if family == "llama" else border)
    unrelated = (70, 71, 72, 73)
    reply, prefilled, _ = turn(session, unrelated)
    assert (reply, prefilled.reused_tokens) == (alone(family, unrelated), 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropped_reasoning(family: str) -> None:
    """A template that drops earlier reasoning leaves the old prompt inside its generation prompt.

    The next turn then reads the shortened reply and the new message, not the conversation before them; and
    the drafter's context is as good as a fresh one.
    """
    history, opening, think_end = FIRST, (90, 91, 92), 93  # `<assistant>`, `<think>`, newline; `</think>`
    prompt = (*history, *opening)
    script = fakes.ScriptedDrafter([], lambda cycle: cycle % 5, tiny.VOCAB)
    pair = fakes.pair_of(target(family), script)
    session = Session(pair)
    script.follow([*prompt, *alone(family, prompt)])
    reply, *_ = turn(session, prompt, snapshot_at=[len(history)])
    answer = (*reply[6:], think_end)  # what is left of the reply
    second = (*history, opening[0], *answer, 40, 41, 42, *opening)
    right = alone(family, second, 30)
    script.follow([*second, *right])
    tokens, prefilled, finished = turn(session, second, max_tokens=30)
    fresh, _, fresh_finished = turn(Session(pair), second, max_tokens=30)
    assert tokens == fresh == right
    assert prefilled.reused_tokens == (len(history) + 1 if family == "llama" else len(history))
    assert finished.stats.acceptance_length >= fresh_finished.stats.acceptance_length


def assert_drafts_as_fresh(session: Session) -> None:
    """The drafter's context of a session is worth what one is that read all tokens at once."""
    line, pair = session._line, session._pair
    fresh = fakes.line_at(pair, line.tokens[: line.state.length + 1] or [0])
    if line.state.length != fresh.state.length:
        return  # the running plain step was fed the last token: there is no anchor
    anchor = mx.array([line.tokens[-1:]])
    mine, wanted = (
        pair.drafter.block_hidden(anchor, 6, one.context, pair.target)[0] for one in (line, fresh)
    )
    assert mx.abs(mine - wanted).max().item() < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sliding", [False, True])
def test_the_drafter_is_as_good_after_going_back(family: str, sliding: bool) -> None:
    session = Session(pair_of(family, sliding), prefill_step=16)
    long = tuple(3 + (7 * i) % 80 for i in range(120))
    prompts = [
        (long, [30, 100]),
        ((*long[:30], 5, 6, 7), []),  # fewer tokens follow the border than the drafter's window has
        ((*long[:30], 5, 6, 7, 8), [33]),
        ((*long[:100], 5), []),
        ((*long[:30], 9), []),
        (long[:10], []),
    ]
    reused = []
    for prompt, borders in prompts:
        reply, prefilled, _ = turn(session, prompt, width=5, snapshot_at=borders)
        assert reply == alone(family, prompt)
        assert prefilled.note is None
        assert_drafts_as_fresh(session)
        reused.append(prefilled.reused_tokens)
    assert reused[:2] == [0, 30]
    assert reused[2] in (32, 33)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sliding", [False, True])
@pytest.mark.parametrize("chunks", [1, 3, 5])
def test_a_shorter_prompt_after_a_cancelled_one(family: str, sliding: bool, chunks: int) -> None:
    """A sliding drafter skips the beginning of a long prompt; a shorter one needs its end."""
    long = tuple(3 + (7 * i) % 80 for i in range(120))
    for more in (2, 40):
        session = Session(pair_of(family, sliding), prefill_step=16)
        asked: list[int] = []

        def cancelled(asked: list[int] = asked) -> bool:
            asked.append(1)
            return len(asked) > chunks

        list(session.generate(long, width=5, cancelled=cancelled))
        read = len(session.tokens)
        assert read == 16 * chunks
        prompt = (*long[:read], *range(40, 40 + more))
        reply, prefilled, _ = turn(session, prompt, width=5)
        assert reply == alone(family, prompt)
        assert prefilled.reused_tokens in (0, read)
        assert prefilled.reused_tokens == read or (sliding and more == 2)
        assert_drafts_as_fresh(session)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_sessions_do_not_disturb_each_other(family: str) -> None:
    pair = pair_of(family)
    prompts = (FIRST, (*FIRST[:10], 80, 81))
    sessions = Session(pair), Session(pair)
    streams = [
        session.generate(prompt, max_tokens=REPLY) for session, prompt in zip(sessions, prompts, strict=True)
    ]
    tokens: list[list[int]] = [[], []]
    running = {0, 1}
    while running:
        for i in sorted(running):
            event = next(streams[i], None)
            if event is None:
                running.discard(i)
            elif isinstance(event, Block):
                tokens[i] += event.tokens
    assert [tuple(one) for one in tokens] == [alone(family, prompt) for prompt in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        more = (*session.tokens, 33, 34)
        assert turn(session, more)[0] == alone(family, more)
        assert session.tokens[: len(prompt)] == prompt


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("width", [1, 4])
def test_a_reply_can_be_left_anywhere(family: str, width: int) -> None:
    session = Session(pair_of(family), prefill_step=7)
    prompt: tuple[int, ...] = FIRST
    for seen in range(7):
        events = session.generate(prompt, max_tokens=REPLY, width=width)
        shown = [next(events) for _ in range(seen)]
        if seen % 2:
            events.close()
        # An even one is left open: the next call closes it.
        tokens = [token for event in shown if isinstance(event, Block) for token in event.tokens]
        assert tuple(tokens) == alone(family, prompt)[: len(tokens)]
        prompt = (*prompt, *tokens, 30 + seen)
        reply, prefilled, _ = turn(session, prompt, width=width)
        assert reply == alone(family, prompt)
        assert prefilled.note is None
        with pytest.raises(StopIteration):
            next(events)
        prompt = (*prompt, *reply, 60 + seen)


@pytest.mark.parametrize("family", FAMILIES)
def test_cancelling(family: str) -> None:
    session = Session(pair_of(family), prefill_step=6)
    for allowed in range(10):
        asked: list[int] = []

        def cancelled(allowed: int = allowed, asked: list[int] = asked) -> bool:
            asked.append(1)
            return len(asked) > allowed

        prompt = (*FIRST, allowed)
        *_, finished = session.generate(prompt, max_tokens=REPLY, width=4, cancelled=cancelled)
        assert finished.reason == "interrupted"
        reply, prefilled, _ = turn(session, prompt)
        assert reply == alone(family, prompt)
        assert prefilled.note is None


def test_snapshots_are_few_and_counted() -> None:
    bytes_of = {}
    for family in FAMILIES:
        session = Session(pair_of(family), snapshots=3)
        prompt: tuple[int, ...] = FIRST
        for i in range(5):
            reply, *_ = turn(session, prompt, snapshot_at=[len(prompt) - 4])
            assert len(session._snapshots) <= 3
            bytes_of[family] = session.snapshot_bytes
            prompt = (*prompt, *reply, 40 + i)
    assert bytes_of["llama"] == 0
    assert bytes_of["gemma3_text"] > 0
    assert bytes_of["qwen3_5"] > 0
    none = Session(pair_of("qwen3_5"), snapshots=0)
    turn(none, FIRST)
    assert none.snapshot_bytes == 0
    assert turn(none, FIRST)[1].reused_tokens == 0
    with pytest.raises(UserError, match="snapshots"):
        Session(pair_of("llama"), snapshots=-1)


def test_refusals_leave_the_session_as_it_was() -> None:
    session = Session(pair_of("llama"))
    events = session.generate(FIRST, max_tokens=REPLY)
    next(events)
    with pytest.raises(UserError):
        session.generate([])
    with pytest.raises(UserError):
        session.generate(FIRST, width=9)
    assert isinstance(next(events), Block)


def accident(
    session: Session, prompt: Sequence[int], number: int | None, kind: str, **options: Any
) -> tuple[bool, int]:
    """A turn in which call `number` goes wrong: whether something was raised, and the calls it took."""
    events: list[Event] = []
    expected = faults.Fault if kind == "exception" else KeyboardInterrupt
    try:
        with faults.at_call(number, kind) as calls:
            for event in session.generate(prompt, max_tokens=REPLY, **options):
                events.append(event)
    except expected:
        return True, calls.count
    return False, calls.count


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["exception", "sigint"])
@pytest.mark.parametrize("samples", [8, pytest.param(300, marks=pytest.mark.slow)])
def test_an_accident_at_any_call(family: str, kind: str, samples: int) -> None:
    """One turn, an accident in the second at every n-th call, then a third that must be as if nothing was."""
    pair = pair_of(family)
    second = (*FIRST, *alone(family, FIRST), 40, 41)
    third = (*second, 50, 51)
    wanted = alone(family, third)

    def begun() -> Session:
        session = Session(pair, prefill_step=8)
        turn(session, FIRST, snapshot_at=[12])
        return session

    _, total = accident(begun(), second, None, kind, width=4)
    classes = [type(module) for module in pair.target.model.modules()]
    raised = 0
    for number in range(0, total, max(1, total // samples)):
        session = begun()
        raised += accident(session, second, number, kind, width=4)[0]
        reply, prefilled, _ = turn(session, third, width=4)
        assert reply == wanted, number
        if kind == "sigint":
            assert prefilled.note is None  # the step that it fell into was finished first
            assert prefilled.reused_tokens >= len(FIRST) - 1
        assert [type(module) for module in pair.target.model.modules()] == classes
    assert raised > samples // 2


def test_a_torn_step_is_said() -> None:
    pair = pair_of("qwen3_5")
    session = Session(pair)
    turn(session, FIRST, snapshot_at=[12])
    commit = pair.target.commit
    pair.target.commit = lambda *_: (_ for _ in ()).throw(faults.Fault())  # between verify and commit
    try:
        with pytest.raises(faults.Fault):
            list(session.generate((*FIRST, 40), width=4))
    finally:
        pair.target.commit = commit
    reply, prefilled, _ = turn(session, (*FIRST, 40))
    assert reply == alone("qwen3_5", (*FIRST, 40))
    # The newest snapshot is the one before the last token of that prompt.
    assert prefilled.note == "the last reply was torn off in the middle of a step: went back to token 20"
    assert prefilled.reused_tokens == 20


def test_buffers_that_cannot_be_computed_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed computation (out of memory) even a snapshot's rows may be lost: begin anew."""
    session = Session(pair_of("llama"))
    turn(session, FIRST)
    evaluate, failures = mx.eval, [RuntimeError("out of memory")] * 2

    def failing(*arrays: Any) -> None:
        if failures:
            raise failures.pop()
        evaluate(*arrays)

    monkeypatch.setattr(mx, "eval", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(session.generate((*FIRST, 1, 2, 3)))
    reply, prefilled, _ = turn(session, (*FIRST, 1, 2, 3))
    assert reply == alone("llama", (*FIRST, 1, 2, 3))
    assert prefilled.reused_tokens == 0
    assert "went back to token 0" in str(prefilled.note)


def test_sampling_in_a_session_repeats_with_its_seed() -> None:
    params = SamplingParams(temperature=1.0, seed=3)
    second = (*FIRST, 40, 41)
    session = Session(pair_of("qwen3_5"))
    turn(session, FIRST)
    warm, *_ = turn(session, second, sampling=params, width=4)
    cold, *_ = turn(Session(pair_of("qwen3_5")), second, sampling=params, width=4)
    assert warm == cold


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["exception", "sigint"])
def test_an_accident_while_a_plain_run_is_put_away(kind: str, every: int) -> None:
    """The drafter reads the last plain step's features when the run is closed: a step like any other."""
    pair = pair_of("llama")
    second = (*FIRST, *alone("llama", FIRST), 40, 41)
    _, total = accident(Session(pair), FIRST, None, kind, width=1)
    for number in range(total - 1, total - 41, -every):
        session = Session(pair)
        accident(session, FIRST, number, kind, width=1)
        assert session._torn or session._line.context.length == session._line.state.length, number
        assert turn(session, second, width=4)[0] == alone("llama", second), number
