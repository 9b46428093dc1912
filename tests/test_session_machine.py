"""Random conversations with random accidents: every reply is a fresh session's, for every kind of cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import fakes
import faults
import mlx.core as mx
import pytest
import tiny
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from mlx_lm.generate import generate_step
from test_session import assert_drafts_as_fresh

from dflash_mlx.session import Session
from dflash_mlx.types import Block, Finished, Prefilled

LONGEST = 8  # tokens of a reply
FAMILIES = ("llama", "gemma3_text", "qwen3_5")
SLIDING, FULL = "sliding_attention", "full_attention"
LAYERS = ((FULL, FULL), (SLIDING, FULL), (SLIDING, SLIDING))
PLAIN_SHARES = st.sampled_from(
    [0.0, 1.0]
)  # 1: runs of plain steps wherever one fits, whatever the clock says
TOKENS = st.lists(st.integers(0, tiny.VOCAB - 1), min_size=1, max_size=9)


@cache
def pair_of(family: str, layers: tuple[str, ...]) -> Any:
    drafter = tiny.build_drafter(2, layer_types=list(layers), sliding_window=9)
    return fakes.pair_of(tiny.build(family), drafter)


@cache
def alone(family: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """mlx-lm's own greedy reply, on the same model."""
    model = pair_of(family, LAYERS[0]).target.model
    return tuple(token for token, _ in generate_step(mx.array(prompt), model, max_tokens=LONGEST))


class Conversation(RuleBasedStateMachine):
    """One session; `history` is what the next prompt is made from."""

    @initialize(
        family=st.sampled_from(FAMILIES),
        layers=st.sampled_from(LAYERS),
        step=st.sampled_from([3, 2048]),
        snapshots=st.sampled_from([0, 1, 4]),
        history=TOKENS,
    )
    def begin(
        self, family: str, layers: tuple[str, ...], step: int, snapshots: int, history: list[int]
    ) -> None:
        self.family, self.pair = family, pair_of(family, layers)
        self.session = Session(self.pair, prefill_step=step, snapshots=snapshots)
        self.history = history

    # ---- how the next prompt relates to what the session holds

    @rule(message=TOKENS)
    def extend(self, message: list[int]) -> None:
        self.history = [*self.session.tokens, *message]

    @rule(message=TOKENS, place=st.floats(0, 1))
    def edit_history(self, message: list[int], place: float) -> None:
        self.history = [*self.history[: int(place * len(self.history))], *message]

    @rule(message=TOKENS, place=st.floats(0, 1), length=st.integers(1, 6))
    def drop_reasoning(self, message: list[int], place: float, length: int) -> None:
        start = int(place * len(self.session.tokens))
        self.history = [*self.session.tokens[:start], *self.session.tokens[start + length :], *message]

    @rule(place=st.floats(0, 1))
    def shorten(self, place: float) -> None:
        self.history = self.history[: max(1, int(place * len(self.history)))]

    @rule(message=TOKENS)
    def change_the_subject(self, message: list[int]) -> None:
        self.history = message

    # ---- turns

    @rule(
        width=st.integers(1, 8),
        borders=st.lists(st.integers(0, 40), max_size=2),
        count=st.integers(1, LONGEST),
        share=PLAIN_SHARES,
    )
    def reply(self, width: int, borders: list[int], count: int, share: float) -> None:
        prompt = self.prompt()
        stream = self.session.generate(
            prompt, max_tokens=count, width=width, snapshot_at=borders, plain_share=share
        )
        events = list(stream)
        tokens = self.check(prompt, events)
        assert isinstance(events[0], Prefilled)
        assert isinstance(events[-1], Finished)
        assert len(tokens) == count
        assert self.session.tokens == (*prompt, *tokens)
        assert_drafts_as_fresh(self.session)

    @rule(width=st.integers(1, 8), seen=st.integers(0, 6), closed=st.booleans(), share=PLAIN_SHARES)
    def leave(self, width: int, seen: int, closed: bool, share: float) -> None:
        prompt = self.prompt()
        stream = self.session.generate(prompt, max_tokens=LONGEST, width=width, plain_share=share)
        self.check(prompt, [event for event, _ in zip(stream, range(seen), strict=False)])
        if closed:
            stream.close()

    @rule(width=st.integers(1, 8), allowed=st.integers(0, 8), share=PLAIN_SHARES)
    def cancel(self, width: int, allowed: int, share: float) -> None:
        prompt, asked = self.prompt(), iter(range(allowed))
        events = self.session.generate(
            prompt,
            max_tokens=LONGEST,
            width=width,
            cancelled=lambda: next(asked, None) is None,
            plain_share=share,
        )
        self.check(prompt, list(events))

    @rule(
        width=st.integers(1, 8),
        call=st.integers(0, 2500),
        kind=st.sampled_from(["exception", "sigint"]),
        share=PLAIN_SHARES,
    )
    def accident(self, width: int, call: int, kind: str, share: float) -> None:
        prompt, events = self.prompt(), []
        try:
            with faults.at_call(call, kind):
                for event in self.session.generate(
                    prompt, max_tokens=LONGEST, width=width, snapshot_at=[4], plain_share=share
                ):
                    events.append(event)
        except (faults.Fault, KeyboardInterrupt):
            pass
        self.check(prompt, events)

    # ----

    @invariant()
    def target_and_drafter_are_in_step(self) -> None:
        line = self.session._line
        if not self.session._torn:
            assert line.state.length <= len(line.tokens)
        lengths = [snapshot.length for snapshot in self.session._snapshots]
        assert lengths == sorted(set(lengths))

    def prompt(self) -> tuple[int, ...]:
        self.history = self.history[-60:] or [1]
        return tuple(self.history)

    def check(self, prompt: tuple[int, ...], events: list[Any]) -> tuple[int, ...]:
        tokens = tuple(token for event in events if isinstance(event, Block) for token in event.tokens)
        assert tokens == alone(self.family, prompt)[: len(tokens)]
        return tokens


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Conversation,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,  # a near-tie of two tokens is no bug: seeds without one are kept
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_conversations() -> None:
    run(examples=24, steps=25)


@pytest.mark.slow
def test_many_random_conversations() -> None:
    run(examples=300, steps=50)
