"""How many rows a chunk of a prompt has: by the clock, by the scores, and both in a session."""

from __future__ import annotations

from collections.abc import Callable

import fakes
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from dflash_mlx.chunks import CHUNK_SECONDS, FIRST_ROWS, Chunks, Pace, first_rows
from dflash_mlx.scores import LEAST_CHUNK_ROWS, SCORES_LIMIT, Scores
from dflash_mlx.session import Session
from dflash_mlx.types import Finished, Prefilled

MOST = 2048


class Machine:
    """Reads chunks in a time of its own; a clock that stands still otherwise."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self._seconds, self.now = seconds, 0.0

    def clock(self) -> float:
        return self.now

    def read(self, chunks: Chunks, length: int, border: int = 10**9) -> list[tuple[int, float]]:
        """Rows and seconds of each chunk of a prompt."""
        done, start = [], 0
        while start < length:
            rows = min(chunks.rows(start), length - start, border - start % border)
            with chunks.reading(rows):
                self.now += self._seconds(rows)
            done.append((rows, self._seconds(rows)))
            start += rows
        return done


def read(seconds: Callable[[int], float], length: int = 16_384, **options: int) -> list[tuple[int, float]]:
    machine = Machine(seconds)
    return machine.read(Chunks(MOST, clock=machine.clock), length, **options)


def test_a_fast_machine_soon_has_large_chunks() -> None:
    rows = [rows for rows, _ in read(lambda rows: 0.01 + rows / 10_000)]
    assert rows[:4] == [256, 512, 1024, MOST]
    assert set(rows[3:-1]) == {MOST}


@pytest.mark.parametrize("most", [1, 5, 100, 300, 1500, 3000])
def test_any_upper_bound_is_reached(most: int) -> None:
    machine = Machine(lambda rows: 0.001)
    chunks = Chunks(most, clock=machine.clock)
    machine.read(chunks, 20 * most)
    assert chunks.rows(0) == most


def test_attention_that_costs_more_with_every_chunk() -> None:
    """Most of a toy model's time: a chunk of eight times the rows takes fifty times as long as the first."""
    machine = Machine(lambda rows: 0.0)
    chunks, start, seconds = Chunks(MOST, clock=machine.clock), 0, []
    while start < 16_384:
        rows = chunks.rows(start)
        start += rows
        seconds.append(rows * start / 10**6)
        with chunks.reading(rows):
            machine.now += seconds[-1]
    assert max(seconds) < 2 * CHUNK_SECONDS


@pytest.mark.parametrize("rate", [3, 10, 50, 100, 300, 900, 1500, 5000])
def test_no_chunk_but_the_first_takes_more_than_a_second(rate: int) -> None:
    chunks = read(lambda rows: rows / rate, length=8 * rate + FIRST_ROWS)
    assert all(seconds <= CHUNK_SECONDS for _, seconds in chunks[1:])
    # And no smaller ones than that asks for.
    assert all(seconds > CHUNK_SECONDS / 2 or rows == MOST for rows, seconds in chunks[4:-1])


def test_a_first_chunk_that_was_slow_is_forgotten() -> None:
    """Kernels are compiled in it."""
    machine = Machine(lambda rows: 4.0 if machine.now == 0 else rows / 4000)
    rows = [rows for rows, _ in machine.read(Chunks(MOST, clock=machine.clock), 16_384)]
    assert rows[:4] == [FIRST_ROWS, 64, 128, 256]
    assert rows[7] == MOST


@pytest.mark.parametrize("border", [10, 100, 1000])
def test_chunks_that_a_border_cuts_short_lower_nothing(border: int) -> None:
    """Reading the weights takes as long for few rows."""
    machine = Machine(lambda rows: 0.1 + rows / 2000)
    chunks = Chunks(MOST, clock=machine.clock)
    machine.read(chunks, 4 * MOST)
    machine.read(chunks, 4000, border=border)
    assert chunks.rows(0) == 1024


def test_where_small_chunks_do_not_help_there_are_large_ones() -> None:
    """Weights that do not fit into memory are read again for each chunk."""
    chunks = read(lambda rows: 3.0 + rows / 10_000)
    assert chunks[-2][0] == MOST
    assert sum(seconds for _, seconds in chunks) < 16 * (3.0 + MOST / 10_000)


def test_one_hiccup_does_not_make_chunks_slow() -> None:
    calls = iter(range(10**6))
    chunks = read(lambda rows: rows / 100 + (6.0 if next(calls) == 4 else 0.0), length=4000)
    slow = [rows for rows, _ in chunks if rows / 100 > CHUNK_SECONDS]
    assert len(slow) <= 2  # the first one, and one after the hiccup


@given(
    st.integers(1, 5000),
    st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 100)), max_size=20),
    st.integers(0, 10**6),
)
def test_rows_are_always_possible(most: int, seen: list[tuple[int, float]], start: int) -> None:
    pace = Pace(most)
    for rows, seconds in seen:
        pace.observe(min(rows, pace.rows), seconds)
        assert 1 <= pace.rows <= most
    chunks = Chunks(most, [Scores(49)])
    rows = chunks.rows(start)
    assert 1 <= rows <= most
    assert rows <= LEAST_CHUNK_ROWS or 49 * rows * (start + rows) <= SCORES_LIMIT


def test_the_first_chunk_of_a_large_target_is_a_small_one() -> None:
    """A second at 2e12 operations a second on a GPU, at 2e10 on a CPU."""
    sizes = (10**6, 8 * 10**9, 27 * 10**9, 10**12)
    assert [first_rows(size, "metal") for size in sizes] == [256, 64, 32, 8]
    assert [first_rows(size, "cpu") for size in (0, *sizes[:2])] == [256, 256, 8]
    assert Chunks(MOST, first=32).rows(0) == 32
    assert Chunks(10, first=32).rows(0) == 10


def test_a_failed_chunk_tells_nothing() -> None:
    machine = Machine(lambda rows: 1.0)
    chunks = Chunks(MOST, clock=machine.clock)

    def fail() -> None:
        machine.now += 50
        raise RuntimeError

    with pytest.raises(RuntimeError), chunks.reading(1):
        fail()
    assert chunks.rows(0) == FIRST_ROWS


def test_a_session_keeps_its_pace() -> None:
    pair = fakes.pair_of(tiny.build("llama"), fakes.ScriptedDrafter([], lambda _: 9, tiny.VOCAB))
    session = Session(pair)
    clock = Machine(lambda rows: 0.0)
    session._chunks = Chunks(MOST, clock=clock.clock)
    forward, rows = pair.target.forward, []

    def slow(ids, *rest, **options):  # type: ignore[no-untyped-def]
        if not options:  # not a verify pass
            rows.append(ids.shape[1])
            clock.now += ids.shape[1] / 40
        return forward(ids, *rest, **options)

    pair.target.forward = slow
    first, *_ = session.generate([3] * 400, max_tokens=2, width=4)
    assert isinstance(first, Prefilled)
    assert rows[:6] == [256, 32, 32, 32, 32, 15]  # the last token is fed alone
    rows.clear()
    list(session.generate([*session.tokens, *[5] * 100], max_tokens=1))
    assert rows[0] == 32


def test_scores_make_a_sessions_chunks_smaller() -> None:
    wide = SCORES_LIMIT // (LEAST_CHUNK_ROWS * 200)
    pair = fakes.pair_of(tiny.build("llama"), attention_scores=(Scores(wide),))
    forward, rows = pair.target.forward, []
    pair.target.forward = lambda ids, *rest: rows.append(ids.shape[1]) or forward(ids, *rest)
    *_, finished = Session(pair).generate([3] * 500, max_tokens=1)
    assert isinstance(finished, Finished)
    assert rows == [64] * 7 + [51, 1]  # 500 - 1 tokens; 128 rows would fit only from 100 tokens down
