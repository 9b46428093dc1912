"""The measurement of plain decoding: never more than its share, no bias, soon; and no reply changes by it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

import fakes
import mlx.core as mx
import pytest
import tiny
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_sampled import V, p_value, triples
from test_session import FAMILIES, FIRST, accident, alone, assert_drafts_as_fresh, pair_of, target, turn

from dflash_mlx import decode
from dflash_mlx.errors import UserError
from dflash_mlx.plain_rate import PlainRate, Tuning
from dflash_mlx.sampling import Sampler
from dflash_mlx.session import Session
from dflash_mlx.types import Block, Finished, SamplingParams

TUNING = Tuning()


def quickly(cases: Iterable[tuple[Any, ...]], quick: Collection[tuple[Any, ...]]) -> list[Any]:
    """All cases; those that are not among the quick ones with the slow tests only."""
    return [case if case in quick else pytest.param(*case, marks=pytest.mark.slow) for case in cases]


# ---- the pure class, told by a machine that computes nothing


@dataclass
class Machine:
    """Costs of steps, in seconds, and a clock; follows the protocol of `PlainRate`.

    Attributes:
        base: A pipelined plain step at context length 0.
        slope: Of a step's cost per token of context.
        start: What nothing overlaps in a first step, of the cost of a step.
        cold: What the second step of a run, and those after it, cost more, of a step: a wide pass was before.
        cycle: A cycle's cost in those of unpipelined steps.
        last: What the last step of a run costs, of a step: less where building the next one is the slow part.
        noise: Largest deviation of any cost, relative.
    """

    base: float = 0.04
    slope: float = 0.0
    start: float = 0.1
    cold: tuple[float, ...] = ()
    cycle: float = 1.5
    last: float = 1.0
    noise: float = 0.0
    committed: int = 4
    rate: PlainRate = field(default_factory=PlainRate)
    now: float = 0.0
    decode: float = 0.0  # seconds after first tokens
    plain: float = 0.0  # of these in runs
    # Decode time before, length, steps, seconds
    runs: list[tuple[float, int, int, float]] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def step(self, length: int) -> float:
        return self.base * (1 + self.slope * length)

    def spend(self, seconds: float) -> None:
        self.now += seconds * (1 + self.noise * self.chance.uniform(-1, 1))

    def reply(
        self, length: int, tokens: int, share: float, on_block: Callable[[], None] = lambda: None
    ) -> int:
        """Returns the context length at its end."""
        self.rate.begin(share)
        assert self.rate.plan(length, tokens) == 0  # the first token is a step like any other
        before = self.now
        self.spend(self.step(length) * (1 + self.start))
        assert not self.rate.read(self.now)
        self.rate.observe(1, self.now - before)
        left = tokens - 1
        while left > 0:
            run = self.rate.plan(length, left)
            assert run <= left
            before = self.now
            if run:
                self.run(run, length)
            else:
                self.spend(self.step(length) * (1 + self.start) * self.cycle)
                assert not self.rate.read(self.now)
            self.rate.observe(1 if run else 4, self.now - before)
            self.decode += self.now - before
            committed = run or min(self.committed, left)
            left, length = left - committed, length + committed
            on_block()
        return length

    def run(self, steps: int, length: int) -> None:
        before = self.now
        more = [1 + self.start, *(1 + cold for cold in self.cold), *[1.0] * steps]
        more[steps - 1] = self.last
        for i in range(steps):
            self.spend(self.step(length + i) * more[i])
            assert self.rate.read(self.now) == (i < steps - 1)
        self.plain += self.now - before
        self.runs.append((self.decode, length, steps, self.now - before))


MACHINES = st.builds(
    Machine,
    base=st.floats(1e-4, 2.0),
    slope=st.floats(0, 1e-4),  # over `near_tokens`, and with the noise, a step costs no more than the margin
    start=st.floats(0, 2),
    cold=st.sampled_from([(), (0.3,)]),
    cycle=st.floats(1.15, 6),
    last=st.floats(0.01, 1),
    noise=st.sampled_from([0.0, 0.03]),
    committed=st.integers(1, 12),
    chance=st.builds(random.Random, st.integers(0, 2**32)),
)
SHARES = st.sampled_from([0.01, 0.03, 0.3, 0.9, 1.0])
REPLIES = st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 300)), min_size=1, max_size=6)


def settled(runs: Sequence[tuple[float, int, int, float]], index: int) -> bool:
    """A run came where enough was known."""
    length = runs[index][1]
    reach = max(TUNING.near_tokens, TUNING.near_share * length)
    return sum(abs(run[1] - length) <= reach for run in runs[:index]) >= TUNING.last


@example(  # a first run, short, whose last step is nearly free, says too little of a longer one
    machine=Machine(base=1.0, slope=1e-4, start=0.0, cycle=6.0, last=1 / 64, committed=2),
    share=0.01,
    replies=[(1, 34), (1, 86), (1, 89)],
)
@given(machine=MACHINES, share=SHARES, replies=REPLIES)
@settings(deadline=None, max_examples=40)
def test_the_budget_is_never_overdrawn(
    machine: Machine, share: float, replies: list[tuple[int, int]]
) -> None:
    """At no moment: by the session, nor by a reply where enough is known."""
    length = 0
    for prompt, tokens in replies:
        decoded, runs = machine.decode, len(machine.runs)

        def within(decoded: float = decoded, runs: int = runs) -> None:
            assert machine.plain <= share * machine.decode * (1 + 1e-9)
            own = sum(run[3] for i, run in enumerate(machine.runs) if i >= runs and settled(machine.runs, i))
            assert own <= share * (machine.decode - decoded) * (1 + 1e-9)

        length = machine.reply(length + prompt, tokens, share, within)


def test_a_reply_pays_for_itself_where_enough_is_known() -> None:
    """Short ones, later, measure nothing more; they keep the figure."""
    machine = Machine()
    while len(machine.runs) < TUNING.last:
        machine.reply(100, 20, 0.03)
    for _ in range(200):
        machine.reply(100, 20, 0.03)
    assert len(machine.runs) == TUNING.last
    assert machine.rate.tokens_per_second(100) == pytest.approx(1 / machine.base)
    machine.reply(100, 4000, 0.03)
    assert len(machine.runs) > 2 * TUNING.last


@pytest.mark.parametrize("last", [0.02, 1.0])
@pytest.mark.parametrize("start", [0.0, 2.0])
@pytest.mark.parametrize("cold", [(0.05,), (0.6, 0.3, 0.1)])
def test_what_a_wide_pass_leaves_behind_is_left_out(
    cold: tuple[float, ...], start: float, last: float
) -> None:
    """Every run comes right after one, and a figure that is too low makes the ratio too high."""
    machine = Machine(cold=cold, start=start, last=last)
    while len(machine.runs) < TUNING.last + 1:
        machine.reply(100, 1000, 0.03)
        assert len(cold) > 1 or machine.rate.tokens_per_second(100) == pytest.approx(1 / machine.base)
    assert machine.rate.tokens_per_second(100) == pytest.approx(1 / machine.base)


def test_a_disturbed_run_does_not_flatter() -> None:
    """The only run takes three times as long: the first token's step says that it cannot be so."""
    disturbed = Machine(start=0.1)
    step = disturbed.step

    def slow_in_runs(length: int) -> float:
        return step(length) * (3 if disturbed.rate.run else 1)

    disturbed.step = slow_in_runs
    while not disturbed.runs:
        disturbed.reply(100, 20, 0.03)
    assert disturbed.rate.tokens_per_second(100) == pytest.approx(1 / (0.04 * 1.1))


@given(machine=MACHINES, share=SHARES, length=st.integers(1, 30_000), tokens=st.integers(1, 60))
@settings(deadline=None, max_examples=40)
def test_the_first_figure_comes_soon(machine: Machine, share: float, length: int, tokens: int) -> None:
    """Bounded by the cost of four steps, whether replies are short or long."""
    first = machine.step(length) * (1 + machine.start)
    cycle = first * machine.cycle
    bound = TUNING.first_steps * TUNING.margin * first / share + cycle * (1 + TUNING.first_steps)
    for _ in range(10_000):
        machine.reply(length, tokens + TUNING.first_steps, share)
        if machine.runs:
            break
    assert machine.runs[0][0] <= bound * (1 + 2 * machine.noise)
    assert machine.runs[0][2] == TUNING.first_steps
    assert machine.rate.tokens_per_second(length) is not None


@given(machine=MACHINES, share=SHARES, replies=REPLIES)
@settings(deadline=None, max_examples=40)
def test_the_figure_is_right(machine: Machine, share: float, replies: list[tuple[int, int]]) -> None:
    """Where costs are constant exactly; else within what costs differ over the reach, and the noise."""
    length = 0

    def right() -> None:
        found = machine.rate.tokens_per_second(length)
        if found is None:
            return
        reach = max(TUNING.near_tokens, TUNING.near_share * length) + 400
        fast, slow = machine.step(max(0, length - reach)), machine.step(length + reach)
        noise = 1 + machine.noise + 1e-6
        assert 1 / (slow * noise) <= found <= noise / fast

    for prompt, tokens in replies:
        length = machine.reply(length + prompt, tokens, share, right)


@pytest.mark.parametrize(
    ("slope", "tokens", "within"), [(0.0, 800, 1e-9), (3e-5, 800, 0.05), (3e-5, 120, 0.07)]
)
@pytest.mark.parametrize("last", [0.02, 1.0])
def test_a_growing_context_is_followed(slope: float, tokens: int, within: float, last: float) -> None:
    """3e-5: a step over 1,000 rows of cache more takes 3% longer; short replies measure less."""
    machine = Machine(slope=slope, last=last)
    length = 0
    while length < 30_000:
        length = machine.reply(length + tokens // 2, tokens, 0.03)
        found = machine.rate.tokens_per_second(length)
        if found is not None:
            assert found * machine.step(length) == pytest.approx(1, rel=within)
    assert len(machine.runs) > (20 if tokens == 800 else 5)
    assert tokens == 120 or machine.plain / machine.decode > 0.012


def test_another_context_length_is_another_figure() -> None:
    machine = Machine(slope=1e-4)
    machine.reply(100, 2000, 0.03)
    short = machine.rate.tokens_per_second(100)
    assert short is not None
    assert machine.rate.tokens_per_second(20_000) is None
    machine.reply(20_000, 2000, 0.03)
    long = machine.rate.tokens_per_second(20_000)
    assert long is not None
    assert long < short / 2
    assert machine.rate.tokens_per_second(100) == short  # back in a short conversation


def test_old_figures_fade() -> None:
    machine = Machine()
    machine.reply(100, 3000, 0.1)
    machine.base *= 2  # it got hot
    runs, length = len(machine.runs), 100
    while len(machine.runs) < runs + TUNING.last:
        length = machine.reply(100, 400, 0.1)
    assert machine.rate.tokens_per_second(length) == pytest.approx(1 / machine.base)


def test_no_share_no_run() -> None:
    machine = Machine()
    machine.reply(10, 5000, 0.0)
    assert machine.runs == []
    assert machine.rate.tokens_per_second(10) is None


def test_a_pause_of_the_process_buys_one_run_only() -> None:
    machine = Machine()
    machine.reply(10, 400, 0.03)
    runs = len(machine.runs)
    machine.rate.begin(0.03)
    for seconds in (0.05, 600.0):  # the first token; a cycle in which somebody pressed Ctrl-Z
        machine.rate.plan(10, 100)
        machine.rate.observe(4, seconds)
    machine.reply(10, 40, 0.03)
    assert len(machine.runs) <= runs + 2


# ---- in the engine


def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes by one second whenever it is looked at: runs come at the same places every time."""
    ticks = iter(range(10**9))
    monkeypatch.setattr("dflash_mlx.session.time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))


@pytest.fixture(params=["all", "mixed"])
def share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Every step after the first token is in a run; or some."""
    ticking(monkeypatch)
    return 1.0 if request.param == "all" else 0.6


def blocks_of(events: Sequence[Any]) -> list[Block]:
    return [event for event in events if isinstance(event, Block)]


def is_run(block: Block) -> bool:
    return block.width == 1 and len(block.tokens) > 1


@pytest.mark.parametrize(
    ("family", "sliding", "width", "share"),
    quickly(
        product(FAMILIES, [False, True], [2, 5], ["all", "mixed"]),
        [
            ("llama", False, 2, "all"),
            ("llama", True, 5, "mixed"),
            ("gemma3_text", False, 5, "mixed"),
            ("gemma3_text", True, 2, "all"),
            ("qwen3_5", False, 5, "all"),
            ("qwen3_5", True, 2, "mixed"),
        ],
    ),
    indirect=["share"],
)
def test_measuring_changes_no_reply_and_no_draft(
    family: str, sliding: bool, width: int, share: float
) -> None:
    session = Session(pair_of(family, sliding))
    prompt, reused = FIRST, 0
    for more in ((40, 41, 42), (50,), (60, 61, 62)):
        events = list(session.generate(prompt, max_tokens=40, width=width, plain_share=share))
        *_, finished = events
        blocks = blocks_of(events)
        tokens = tuple(token for block in blocks for token in block.tokens)
        assert tokens == alone(family, prompt, 40)
        assert events[0].reused_tokens == reused
        assert all(block.accepted == 0 for block in blocks if block.width == 1)
        assert any(is_run(block) and len(block.tokens) == TUNING.steps for block in blocks)
        stats = finished.stats
        assert stats.generated_tokens == len(tokens) == 40
        assert stats.plain_steps == sum(len(block.tokens) for block in blocks if block.width == 1) - 1
        cycles = [block for block in blocks if block.width > 1]
        assert stats.cycles == len(cycles) == sum(stats.accepted_histogram)
        assert stats.cycles == 0 or share < 1 or stats.cycles < TUNING.steps  # no run fits at the end
        assert stats.cycles > 0 or share == 1
        if cycles:
            committed = sum(len(block.tokens) for block in cycles)
            assert stats.acceptance_length == pytest.approx(committed / len(cycles))
        assert stats.plain_tokens_per_second == session.plain_tokens_per_second == 1.0  # one tick per step
        assert_drafts_as_fresh(session)
        reused = len(prompt) + 40 - 1
        prompt = (*prompt, *tokens, *more)


@pytest.mark.parametrize(
    ("family", "max_tokens"),
    quickly(
        product(FAMILIES, [1, 4, 5, 6, 7, 12]),
        [("llama", 4), ("llama", 6), ("gemma3_text", 1), ("gemma3_text", 7), ("qwen3_5", 5), ("qwen3_5", 12)],
    ),
)
def test_no_run_goes_beyond_max_tokens(family: str, max_tokens: int, share: float) -> None:
    session = Session(pair_of(family))
    for prompt in (FIRST, (*FIRST, 40)):  # the second begins with a known cost: longer runs
        tokens, _, finished = turn(session, prompt, max_tokens=max_tokens, width=4, plain_share=share)
        assert tokens == alone(family, prompt)[:max_tokens]
        assert finished.reason == "length"
        assert session._line.state.length == len(session.tokens) - 1  # nothing was fed that is not wanted


@pytest.mark.parametrize(
    ("family", "place", "kind"),
    quickly(
        product(FAMILIES, [1, 2, 3, 4, 6, 8], ["id", "string"]),
        [
            ("llama", 1, "id"),
            ("llama", 2, "string"),
            ("llama", 6, "id"),
            ("gemma3_text", 2, "id"),
            ("gemma3_text", 8, "id"),
            ("qwen3_5", 3, "id"),
            ("qwen3_5", 4, "id"),
        ],
    ),
)
def test_a_stop_anywhere_in_a_run(
    family: str, place: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking(monkeypatch)
    text = alone(family, FIRST)
    stop = text[place]
    wanted = text[: text.index(stop) + 1]
    pair = fakes.pair_of(
        target(family), tiny.build_drafter(2), stop_ids=[stop] if kind == "id" else [], context_length=None
    )
    session = Session(pair)
    options: dict[str, Any] = {} if kind == "id" else {"stop": [chr(stop)]}
    tokens, _, finished = turn(session, FIRST, width=4, plain_share=1.0, **options)
    assert tokens == wanted
    assert finished.reason == "stop"
    after = (*session.tokens, 33, 34)
    assert turn(session, after, width=4, max_tokens=1)[0] == alone(family, after)[:1]
    assert_drafts_as_fresh(session)


@pytest.mark.parametrize(
    ("family", "width", "share"),
    quickly(
        product(FAMILIES, [1, 4], ["all", "mixed"]),
        [("llama", 1, "all"), ("gemma3_text", 4, "mixed"), ("qwen3_5", 4, "mixed")],
    ),
    indirect=["share"],
)
def test_cancelling_between_the_steps_of_a_run(family: str, width: int, share: float) -> None:
    session = Session(pair_of(family), prefill_step=6)
    cut = 0
    for allowed in range(6, 14):
        asked = iter(range(allowed))
        prompt = (*FIRST, 40 + allowed % 2)  # not the one before
        *events, finished = session.generate(
            prompt,
            max_tokens=20,
            width=width,
            plain_share=share,
            cancelled=lambda asked=asked: next(asked, None) is None,
        )
        tokens = tuple(token for block in blocks_of(events) for token in block.tokens)
        assert tokens == alone(family, prompt, 20)[: len(tokens)]
        assert session.tokens == (*prompt, *tokens)  # all that was committed was shown
        assert finished.reason == "interrupted"
        blocks = blocks_of(events)
        cut += bool(blocks) and is_run(blocks[-1]) and len(blocks[-1].tokens) < TUNING.steps
        reply, prefilled, _ = turn(session, prompt, max_tokens=6, width=4, plain_share=share)
        assert reply == alone(family, prompt, 20)[:6]
        assert prefilled.note is None
        assert_drafts_as_fresh(session)
    assert cut > 1


@pytest.mark.parametrize(
    ("family", "kind", "samples"),
    quickly(
        product(FAMILIES, ["exception", "sigint"], [5, 60]),
        [("llama", "sigint", 5), ("gemma3_text", "exception", 5), ("qwen3_5", "exception", 5)],
    ),
)
def test_an_accident_in_a_run(family: str, kind: str, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch)
    pair = pair_of(family)
    second, third = (*FIRST, 40, 41), (*FIRST, 40, 41, 50)
    options: dict[str, Any] = {"width": 4, "plain_share": 0.6}

    def begun() -> Session:
        session = Session(pair)
        turn(session, FIRST, **options)
        return session

    _, total = accident(begun(), second, None, kind, **options)
    raised = 0
    for number in range(5, total, max(1, total // samples)):
        session = begun()
        raised += accident(session, second, number, kind, **options)[0]
        reply, prefilled, _ = turn(session, third, **options)
        assert reply == alone(family, third), number
        assert kind == "exception" or prefilled.note is None
        assert_drafts_as_fresh(session)
    assert raised > samples // 2


@pytest.mark.parametrize("width", [1, 5])
def test_a_seeded_reply_is_the_same_wherever_runs_come(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = []
    for seed, share in ((1, 0.0), (1, 0.6), (1, 1.0), (2, 0.6)):
        ticking(monkeypatch)
        session = Session(pair_of("llama"))
        params = SamplingParams(temperature=1.0, seed=seed)
        events = list(session.generate(FIRST, params, max_tokens=40, width=width, plain_share=share))
        replies.append([token for block in blocks_of(events) for token in block.tokens])
        assert session.plain_tokens_per_second == (1.0 if share else None)
    assert replies[:1] * 3 == replies[:3]
    assert replies[3] != replies[0]


@pytest.mark.slow
def test_plain_steps_between_cycles_leave_the_distribution_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three tokens in a row: a pipelined run of one or two of them, and a cycle."""
    params = SamplingParams(temperature=1.0)
    small = tiny.build("llama", vocab_size=V, num_hidden_layers=2)
    drafter = tiny.build_drafter(
        2, vocab_size=V, num_target_layers=2, target_layer_ids=[0, 1], num_hidden_layers=1
    )
    pair, prompt, draws = fakes.pair_of(small, drafter), [1, 4, 2, 8, 5, 7], 2000
    line = fakes.line_at(pair, prompt)
    start = line.snapshot()
    monkeypatch.setattr("secrets.randbits", random.Random(21).getrandbits)
    decoder = decode.Decoder(pair, line, Sampler(params, V))
    counts: Counter[tuple[int, ...]] = Counter()
    for draw in range(draws):
        line.restore(start)
        line.tokens = list(prompt)
        if draw % 2:
            list(decoder.plain(2))
        while len(line.tokens) < len(prompt) + 3:
            decoder.cycle(3, len)
            if draw % 4 == 0:
                list(decoder.plain(1))
        counts[tuple(line.tokens[len(prompt) : len(prompt) + 3])] += 1
    assert p_value(counts, triples(small.model, prompt, params), draws) > 1e-3


DEVICE, HOST = (0.001, 0.04), (0.01, 0.002)  # seconds of a step there; which of the two is the slow one


class Device:
    """What passes host reads, and a clock that only computing and a slow reader move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, host: float, device: float) -> None:
        self.now = 0.0
        self._host, self._device, self._free = host, device, 0.0
        self._target = target("llama")
        forward, read = self._target.forward, decode.host_ints

        def counted(ids: mx.array, *args: Any, **options: Any) -> Any:
            self.now += self._host  # building is the host's; what it queues runs after what is queued
            rows = ids.shape[1]
            self._free = max(self._free, self.now) + self._device * (1 if rows == 1 else 1.5)
            self._done.append(self._free)
            return forward(ids, *args, **options)

        def drained() -> None:
            self.now = max(self.now, self._free)

        def waited(array: mx.array) -> list[int]:
            self.now = max(self.now, self._done.pop(0))
            return read(array)

        self._done: list[float] = []
        monkeypatch.setattr(self._target, "forward", counted)
        monkeypatch.setattr(decode, "host_ints", waited)
        monkeypatch.setattr("dflash_mlx.session.host_wait", drained)
        monkeypatch.setattr("dflash_mlx.session.time", SimpleNamespace(perf_counter=lambda: self.now))

    def events(self, session: Session, prompt: Sequence[int], pause: float, **options: Any) -> Iterator[Any]:
        for event in session.generate(prompt, **options):
            if not isinstance(event, Block):
                self._done.clear()  # chunks of the prompt are not read like tokens
            yield event
            self.now += pause


@pytest.mark.parametrize(
    ("host", "device", "width", "pause"),
    quickly(
        [(*costs, *one) for costs in (DEVICE, HOST) for one in [*product([1, 5], [0.0, 0.03]), (5, 3.0)]],
        [(*DEVICE, 5, 0.0), (*HOST, 5, 0.03), (*DEVICE, 1, 0.03), (*HOST, 1, 0.0)],
    ),
)
def test_the_figure_is_that_of_a_long_plain_reply(
    host: float, device: float, width: int, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two is the slow one, and whatever the reader does: it never overlaps a run."""
    world = Device(monkeypatch, host=host, device=device)
    session = Session(pair_of("llama"))
    measured, decoding = 0.0, 0.0
    for i in range(2):
        prompt = (*FIRST, 40 + i)
        *events, finished = world.events(session, prompt, pause, max_tokens=80, width=width, plain_share=0.15)
        assert isinstance(finished, Finished)
        measured += sum(block.seconds for block in blocks_of(events) if is_run(block))
        decoding += finished.stats.decode_seconds
    assert 0 < measured <= 0.15 * decoding
    assert session.plain_tokens_per_second == pytest.approx(1 / max(host, device), rel=0.02)
    if width > 1:
        assert finished.stats.plain_tokens_per_second == session.plain_tokens_per_second


def test_a_plain_reply_tells_its_own_rate() -> None:
    session = Session(pair_of("llama"))
    for width in (1, 3):
        stats = turn(session, FIRST, width=width)[2].stats
        assert stats.plain_tokens_per_second == (stats.tokens_per_second if width == 1 else None)
        assert session.plain_tokens_per_second is None


@pytest.mark.parametrize("wrong", [-0.1, 1.01, float("nan")])
def test_a_share_is_a_share(wrong: float) -> None:
    with pytest.raises(UserError, match="plain_share"):
        Session(pair_of("llama")).generate(FIRST, plain_share=wrong)
