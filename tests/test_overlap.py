"""Work that is handed over early: the same tokens whoever reads them and from what thread; honest clocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import fakes
import mlx.core as mx
import pytest
import tiny
from mlx.utils import tree_flatten
from test_session import FAMILIES, FIRST, alone, assert_drafts_as_fresh, pair_of, turn

from dflash_mlx.decode import Decoder
from dflash_mlx.metrics import Overlap, Recorder
from dflash_mlx.sampling import Sampler
from dflash_mlx.session import Session
from dflash_mlx.targets.gated_delta import Replay
from dflash_mlx.types import Block, SamplingParams

SECOND = (*FIRST, 40, 41)


def tokens_of(events: list[Any]) -> tuple[int, ...]:
    return tuple(token for event in events if isinstance(event, Block) for token in event.tokens)


def in_a_thread(work: Callable[[], Any]) -> Any:
    """In a thread of its own, which is gone afterwards."""
    box: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            box.append(work())
        except BaseException as problem:  # noqa: BLE001 (told below)
            errors.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return box[0]


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_session_goes_on_in_another_thread(family: str, width: int) -> None:
    session = Session(pair_of(family))
    for prompt in (FIRST, SECOND, (*FIRST, 50)):  # the last one goes back to a snapshot
        events = in_a_thread(lambda prompt=prompt: list(session.generate(prompt, max_tokens=20, width=width)))
        assert tokens_of(events) == alone(family, prompt, 20)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_in_another_thread(family: str, width: int) -> None:
    """As `asyncio.to_thread` may do it."""
    session = Session(pair_of(family))

    async def reply(prompt: tuple[int, ...]) -> list[Any]:
        events, end = session.generate(prompt, max_tokens=20, width=width, plain_share=0.5), object()
        taken = []
        while (event := await asyncio.to_thread(next, events, end)) is not end:
            taken.append(event)
        return taken

    for prompt in (FIRST, SECOND):
        assert tokens_of(asyncio.run(reply(prompt))) == alone(family, prompt, 20)
    events = session.generate((*FIRST, 50), max_tokens=20, width=width)
    taken = [in_a_thread(lambda: next(events)) for _ in range(6)]
    in_a_thread(events.close)
    assert tokens_of(taken) == alone(family, (*FIRST, 50), 20)[: len(tokens_of(taken))]
    assert_drafts_as_fresh(session)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reader_that_leaves_after_every_block(family: str) -> None:
    session, wanted = Session(pair_of(family)), alone(family, FIRST, 20)
    prompt = list(FIRST)
    while len(prompt) < len(FIRST) + 20:
        events = session.generate(prompt, max_tokens=20, width=4)
        blocks: list[Block] = []
        while len(blocks) < 2:  # the first token, and a cycle whose successor is begun
            event = next(events)
            blocks += [event] if isinstance(event, Block) else []
        events.close()
        assert_drafts_as_fresh(session)
        prompt = list(session.tokens)
    assert tuple(prompt[len(FIRST) :][:20]) == wanted


def test_a_draft_of_another_width_is_thrown_away() -> None:
    pair = pair_of("qwen3_5")
    line = fakes.line_at(pair, list(FIRST))
    decoder = Decoder(pair, line, Sampler(SamplingParams(), tiny.VOCAB))
    list(decoder.plain(1))
    for width, begun in ((4, 6), (3, 2), (2, 0), (5, 5), (5, 2)):
        decoder.cycle(width, len, lambda _, begun=begun: begun)
    written = line.tokens[len(FIRST) :]
    assert tuple(written) == alone("qwen3_5", FIRST, 20)[: len(written)]


def test_a_plain_run_in_between_throws_the_draft_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock says when a run comes, after the draft was begun or before."""
    for share in (0.03, 0.3, 1.0):
        session = Session(pair_of("gemma3_text"))
        for prompt in (FIRST, SECOND):
            assert turn(session, prompt, width=4, plain_share=share)[0] == alone("gemma3_text", prompt)
        assert_drafts_as_fresh(session)


# ---- the rollback, compiled ----


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_the_compiled_rollback_is_the_library_s_own(family: str) -> None:
    target = tiny.build(family)
    states = []
    for compiled in (False, True):
        target.replay = Replay(compiled=compiled)
        state = target.new_state()
        mx.eval(target.forward(mx.array([[3, 4, 5]]), state).logits)
        for rows, width in ((1, 4), (3, 4), (1, 4), (2, 3), (4, 4)):
            ids = mx.array([[(7 * state.length + i) % tiny.VOCAB for i in range(width)]])
            target.forward(ids, state, rollback=True)
            target.commit(state, rows)
        states.append(state.arrays())
        mx.eval(states)
    for one, other in zip(tree_flatten(states[0]), tree_flatten(states[1]), strict=True):
        assert one[1].shape == other[1].shape
        assert mx.abs(one[1] - other[1]).max().item() <= 1e-5 * max(1.0, mx.abs(one[1]).max().item())


def test_a_block_without_anything_before_it_is_replayed_too() -> None:
    target = tiny.build("qwen3_5")
    target.replay = Replay(compiled=True)
    for rows in (1, 3):
        state, plain = target.new_state(), target.new_state()
        target.forward(mx.array([[3, 4, 5, 6]]), state, rollback=True)
        target.commit(state, rows)
        target.forward(mx.array([[3, 4, 5][:rows]]), plain)
        after = [target.forward(mx.array([[9]]), one).logits for one in (state, plain)]
        assert mx.allclose(*after, atol=1e-4).item()


# ---- clocks ----


class World:
    """A device that works off what it is given, and a host; both by one clock."""

    def __init__(self, *, host: float, device: float, ahead: float) -> None:
        self.now, self.free = 0.0, 0.0
        self.host, self.device, self.ahead = host, device, ahead

    def hand_over(self, seconds: float) -> None:
        self.free = max(self.free, self.now) + seconds

    def wait(self) -> None:
        self.now = max(self.now, self.free)

    def decode_seconds(self, blocks: int, pause: float) -> float:
        """A recorder's account of cycles as `Session` has them: read, begin the next draft, hand out."""
        recorder = Recorder(lambda: self.now, 4, 1)
        recorder.prefilled()
        self.hand_over(self.device)
        for number in range(blocks):
            self.now += self.host  # the verify pass is built
            self.hand_over(self.device)
            self.wait()  # the host read
            recorder.count(4 if number else 1, 4 if number else 1, 3)
            self.now += self.host / 4
            self.hand_over(self.ahead)  # the next draft
            recorder.leave(self.wait)
            self.now += pause
            recorder.resume()
        return recorder.decode_seconds


@pytest.mark.parametrize(("host", "device", "ahead"), [(2.0, 30.0, 8.0), (8.0, 30.0, 2.0), (5.0, 10.0, 0.0)])
@pytest.mark.parametrize("pause", [0.5, 4.0, 30.0, 5000.0])
def test_a_readers_time_neither_counts_nor_hides_work(
    host: float, device: float, ahead: float, pause: float
) -> None:
    """Whatever the reader takes: the account is that of one who takes nothing, or a host part more."""
    costs = {"host": host, "device": device, "ahead": ahead}
    alone, read = World(**costs).decode_seconds(100, 0.0), World(**costs).decode_seconds(100, pause)
    assert alone <= read * 1.02  # the reader never makes it look faster
    # What the host cannot build meanwhile is lost, at most once a cycle.
    assert read <= alone + 100 * min(host, ahead) + 1e-9


def test_work_that_is_not_known_is_waited_for_now_and_then() -> None:
    overlap = Overlap()
    due = [overlap.due() for _ in range(100)]
    assert [i for i, waits in enumerate(due) if waits] == [0, 1, 33, 65, 97]
    overlap.busy = 2.0
    assert overlap.counted(5.0) == 2.0
    assert overlap.counted(1.0) == 1.0
    while not overlap.due():
        pass
    assert overlap.counted(5.0) == 0.0  # the device was idle when the reader got it
