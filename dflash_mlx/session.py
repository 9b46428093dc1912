"""A conversation: target and drafter keep what they have read, and a new prompt reuses its beginning.

Where a new prompt leaves the old one, the caches go back: by trimming where every one of them can (plain KV
caches), else to a snapshot, taken at message borders and at the end of each prompt. A step that an exception
tore apart is never continued: the next prompt starts from a snapshot, and says so.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
from mlx_lm.utils import common_prefix_len

from dflash_mlx.chunks import Chunks
from dflash_mlx.decode import Decoder, Line, LineSnapshot, Step, host_ints, host_wait
from dflash_mlx.errors import UserError
from dflash_mlx.estimate import SNAPSHOTS
from dflash_mlx.interrupts import deferred_sigint
from dflash_mlx.metrics import Recorder
from dflash_mlx.plain_rate import PlainRate
from dflash_mlx.prefill import prefill
from dflash_mlx.residency import residency
from dflash_mlx.sampling import Sampler
from dflash_mlx.scores import CHUNK_ROWS
from dflash_mlx.stream import Ending, TextStream
from dflash_mlx.types import Block, Event, Prefilled, SamplingParams

if TYPE_CHECKING:
    from dflash_mlx.pair import Pair

CLEAR_CACHE_TOKENS = 256  # mlx-lm's rhythm: keeps MLX's buffer cache from growing with the reply


@dataclass(frozen=True)
class _Turn:
    """One call of `generate`, checked."""

    prompt: list[int]
    sampler: Sampler
    width: int
    text: TextStream
    ending: Ending
    borders: frozenset[int]
    notes: list[str]
    cancelled: Callable[[], bool]
    plain_share: float


class _Making:
    """The block that is being made: one step, or all steps of a measuring run; then what comes next.

    Attributes:
        whole: No more steps belong to it.
    """

    def __init__(self, line: Line, ending: Ending, recorder: Recorder, rate: PlainRate) -> None:
        self._line, self._ending, self._recorder, self._rate = line, ending, recorder, rate
        self._tokens: list[int] = []
        self._seconds = 0.0
        self.whole = True

    def add(self, step: Step) -> int:
        """See `Decoder.steps`: a step's tokens are on the host; how many plain steps are to come next."""
        if self.whole:
            self._tokens = []
        self._tokens += step.tokens
        more = self._rate.read(self._recorder.clock())
        self.whole = not more or self._ending.ended()
        return self._end(step) if self.whole else 0

    def event(self, step: Step, text: str) -> Block:
        """The block, with its last step; not whole if the run was cancelled."""
        if not self.whole:
            self._end(step)
            self.whole = True
        return Block(tuple(self._tokens), text, step.width, step.accepted, self._seconds)

    def _end(self, step: Step) -> int:
        self._seconds = self._recorder.count(len(self._tokens), step.width, step.accepted)
        self._rate.observe(step.width, self._seconds)
        return self._rate.plan(len(self._line.tokens), self._ending.left)


class Session:
    """One sequence on a pair, kept between turns.

    Any number of sessions share a pair; one of them computes at a time.

    Args:
        pair: What `load_pair` returned.
        prefill_step: Most rows of a prompt per chunk; there are fewer where a chunk would take more than a
            second, or its attention scores too much memory.
        snapshots: How many to keep, newest first. With plain KV caches they cost nothing.

    Example:
        >>> session = Session(pair)  # doctest: +SKIP
        >>> for event in session.generate(first_turn):  # doctest: +SKIP
        ...     pass
        >>> for event in session.generate(both_turns):  # reads only what is new  # doctest: +SKIP
        ...     pass
    """

    def __init__(self, pair: Pair, *, prefill_step: int = CHUNK_ROWS, snapshots: int = SNAPSHOTS) -> None:
        if prefill_step < 1:
            raise UserError(f"`prefill_step` is {prefill_step}; at least 1 row is needed")
        if snapshots < 0:
            raise UserError(f"`snapshots` is {snapshots}, a number below 0")
        self._pair, self._limit = pair, snapshots
        self._chunks = Chunks(prefill_step, pair.attention_scores, pair.first_rows)
        self._line = Line(pair)
        self._snapshots: list[LineSnapshot] = []  # oldest first, lengths ascending
        self._torn = False  # a step did not finish: line and caches may not fit each other
        self._running: Generator[Event] | None = None
        self._plain_rate = PlainRate()
        self._told_reach = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """All committed ids, the last prompt and its reply so far."""
        return tuple(self._line.tokens)

    @property
    def snapshot_bytes(self) -> int:
        """What the snapshots hold beyond the caches."""
        return sum(snapshot.nbytes for snapshot in self._snapshots)

    @property
    def plain_tokens_per_second(self) -> float | None:
        """What plain decoding would reach at the present context length; None until it was measured.

        Only replies with a `plain_share` measure it.
        """
        return self._plain_rate.tokens_per_second(len(self._line.tokens))

    def generate(
        self,
        prompt: Sequence[int] | mx.array,
        sampling: SamplingParams = SamplingParams(),
        *,
        max_tokens: int = 512,
        width: int | None = None,
        stop: Sequence[str] = (),
        snapshot_at: Sequence[int] = (),
        cancelled: Callable[[], bool] = lambda: False,
        plain_share: float = 0.0,
    ) -> Iterator[Event]:
        """Reply to `prompt`: `Prefilled`, then a `Block` per cycle or plain step, then `Finished`.

        Cancelled while the prompt is read, the stream is `Finished` alone.

        Args:
            prompt: Token ids of the whole conversation, at least one; what the session has read of it is
                not computed again.
            sampling: How tokens are chosen; every option is exact under speculation.
            max_tokens: At least 1; cut to what is left of the model's context, which `Prefilled.note` says.
            width: Rows of a verify pass, 1 (plain) .. the drafter's block size; None: `pair.default_width`.
            stop: Strings that end the text; they are not part of it.
            snapshot_at: Lengths of the prompt where a later one may leave it: ends of messages, see
                `prompts.message_border`.
            cancelled: Asked between steps; True ends the stream with reason "interrupted".
            plain_share: How much of the decode time (0 .. 1) may go to plain steps that measure what plain
                decoding would reach: of this reply's, or of the session's while little is known of its
                context length. They write the reply like any other step; with a seed, or greedy, it is the
                same reply with and without them.

        Returns:
            The events. Closing the iterator early is allowed at any time, and so is a new `generate`, which
            closes it. SIGINT waits for the end of a step.

        Raises:
            UserError: At once, before anything is computed, if an argument cannot be served.
        """
        pair = self._pair
        prompt = whole_numbers(prompt, "the prompt has to be token ids")
        borders = whole_numbers(snapshot_at, "`snapshot_at` has to be lengths of the prompt")
        room = pair.check_prompt(prompt)
        _check_end(max_tokens, stop)
        if not 0 <= plain_share <= 1:
            raise UserError(f"`plain_share` is {plain_share}, outside [0, 1]")
        notes = []
        if room is not None and max_tokens > room:
            notes.append(f"only {room} more tokens fit into the model's context of {pair.context_length}")
            max_tokens = room
        text = TextStream(pair.tokenizer.detokenizer, stop)
        turn = _Turn(
            prompt=prompt,
            sampler=Sampler(sampling, pair.target.vocab_size),
            width=pair.check_width(width),
            text=text,
            ending=Ending(pair.stop_ids, text, max_tokens),
            borders=frozenset(borders),
            notes=notes,
            cancelled=cancelled,
            plain_share=plain_share,
        )
        if self._running is not None:
            self._running.close()
        self._running = self._events(turn)
        return self._running

    def _events(self, turn: _Turn) -> Generator[Event]:
        mx.reset_peak_memory()
        residency.keep(self._pair.target)
        recorder = Recorder(time.perf_counter, turn.width, len(turn.prompt))
        torn = self._torn
        with self._step():
            recorder.reused_tokens = self._go_back(turn, torn)
        self._torn = False
        whole = self._read(turn)
        if whole:
            note = "; ".join((*turn.notes, *self._reach_notes(turn))) or None
            event = Prefilled(len(turn.prompt), recorder.reused_tokens, recorder.prefilled(), note)
            recorder.leave()
            yield event
            recorder.resume()
            yield from self._write(turn, recorder)
        reason, rate = turn.ending.reason or "interrupted", self.plain_tokens_per_second
        yield recorder.finish(reason, self._pair, mx.get_peak_memory(), rate)

    def _reach_notes(self, turn: _Turn) -> Iterator[str]:
        """Once: the conversation can become longer than the drafter was trained for.

        Nothing stops there: rotary embedding goes on, and the target decides on every token.
        """
        drafter = self._pair.drafter
        if drafter is None or turn.width == 1 or self._told_reach:
            return
        limit = drafter.config.max_position_embeddings
        if limit is not None and drafter.config.reaches(len(turn.prompt) + turn.ending.left) > limit:
            self._told_reach = True
            yield (
                f"the drafter was made for {limit:,} tokens: beyond them it may draft worse, "
                "which costs speed and changes no text"
            )

    def _go_back(self, turn: _Turn, torn: bool) -> int:
        """Make the line the longest usable prefix of the prompt; its length."""
        # The last token is always fed again: its logits are the first token's.
        end = len(turn.prompt) - 1
        usable = min(common_prefix_len(self._line.tokens, turn.prompt), end)
        length = self._line.state.length
        # A cancelled prompt can have left the drafter without rows that this one's drafts would see.
        if not torn and length <= usable and self._line.complete(end - length):
            return length
        self._forget_beyond(usable)
        if not torn and self._line.trim_to(usable):
            return usable
        if self._snapshots:
            self._line.restore(self._snapshots[-1])
        else:
            self._line = Line(self._pair)
        if torn:
            self._check_restored()
            at = self._line.state.length
            turn.notes.append(f"the last reply was torn off in the middle of a step: went back to token {at}")
        return self._line.state.length

    def _check_restored(self) -> None:
        """Buffers that a failed computation was to fill cannot be read any more: begin anew then."""
        try:
            mx.eval(self._line.arrays())
        except RuntimeError:
            self._line = Line(self._pair)
            self._snapshots.clear()

    def _read(self, turn: _Turn) -> bool:
        """Prefill; False if it was cancelled."""
        chunks = prefill(self._pair, self._line, turn.prompt, self._chunks, borders=turn.borders)
        with closing(chunks):
            while not turn.cancelled():
                with self._step():
                    length = next(chunks, None)
                    if length is None or length in turn.borders:
                        self._keep_snapshot()
                if length is None:
                    return True
        return False

    def _write(self, turn: _Turn, recorder: Recorder) -> Iterator[Event]:
        """One event per cycle, plain step or measuring run until the end."""
        cleared, block = 0, _Making(self._line, turn.ending, recorder, self._plain_rate)
        self._plain_rate.begin(turn.plain_share)
        self._plain_rate.plan(len(self._line.tokens), turn.ending.left)
        steps = Decoder(self._pair, self._line, turn.sampler).steps(turn.ending, turn.width, block.add)
        try:
            while not turn.ending.ended() and not turn.cancelled():
                event = self._next_block(turn, steps, block)
                recorder.leave(host_wait)
                yield event
                recorder.resume()
                if recorder.generated - cleared >= CLEAR_CACHE_TOKENS:
                    cleared = recorder.generated
                    mx.clear_cache()
        finally:
            torn = self._torn
            with self._step():
                steps.close()  # the drafter gets what it has not read of a plain run
                if not torn:
                    # A later reply may come in another thread, and has no stream for what is lazy here.
                    mx.eval(self._line.arrays())

    def _next_block(self, turn: _Turn, steps: Generator[Step], block: _Making) -> Block:
        """A cycle or a plain step; or a whole run, as the device works on while a reader has its tokens."""
        text = ""
        while True:
            with self._step():
                step = next(steps)
                text += turn.text.finish() if turn.ending.ended() else turn.text.take()
            if block.whole or turn.cancelled():
                return block.event(step, text)

    @contextmanager
    def _step(self) -> Iterator[None]:
        """What must happen whole: SIGINT waits, and after any other exception the caches are not trusted."""
        with deferred_sigint():
            torn, self._torn = self._torn, True
            yield
            self._torn = torn

    def _keep_snapshot(self) -> None:
        length = self._line.state.length
        if not self._limit or (self._snapshots and self._snapshots[-1].length == length):
            return
        if not self._line.complete():
            return  # nobody could draft from there
        self._snapshots.append(self._line.snapshot())
        del self._snapshots[: -self._limit]

    def _forget_beyond(self, length: int) -> None:
        """Rows from `length` on are about to be overwritten."""
        self._snapshots = [snapshot for snapshot in self._snapshots if snapshot.length <= length]


def whole_numbers(values: Sequence[int] | mx.array, what: str) -> list[int]:
    """Python's integers.

    Raises:
        UserError: They are not a flat sequence of integers.
    """
    try:
        listed = host_ints(values) if isinstance(values, mx.array) else values
        return [operator.index(value) for value in listed]
    except TypeError as problem:
        raise UserError(f"{what}, not a sequence of whole numbers") from problem


def _check_end(max_tokens: int, stop: Sequence[str]) -> None:
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise UserError(f"`max_tokens` is {max_tokens}, not a whole number of at least 1")
    if isinstance(stop, str):
        raise UserError("`stop` is one string", "give a list of strings")
    if any(not string for string in stop):
        raise UserError("a stop string is empty", "leave it out to stop at the model's own end only")
