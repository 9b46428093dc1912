"""One turn of a chat: a question to a prompt, the engine's events to what is shown and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from dflash_mlx.errors import UserError
from dflash_mlx.types import Block, Event, Finished, FinishReason, Prefilled, Stats

from .conversation import Conversation, Exchange, Settings
from .pace import Pace

if TYPE_CHECKING:
    from rich.text import Text

    from dflash_mlx.load import Pair
    from dflash_mlx.reasoning import Piece, ThinkingSplitter
    from dflash_mlx.session import Session

    from .readout import Opening

MEMORY = "this machine's memory"
PLAIN_SHARE = 0.03  # of a reply's decoding time, for steps that measure plain decoding


@dataclass(frozen=True)
class Window:
    """How long a conversation can become.

    Attributes:
        tokens: Prompt and reply.
        of: What ends there, in words.
    """

    tokens: int
    of: str


def window_of(pair: Pair, *, force: bool) -> Window | None:
    """The model's context, or what there is memory for where that is less; None if neither is known.

    Args:
        pair: What was loaded.
        force: Memory is not asked.
    """
    known = []
    if pair.context_length is not None:
        known.append(Window(pair.context_length, "the model's context"))
    if pair.memory_context is not None and not force:
        known.append(Window(pair.memory_context, MEMORY))
    return min(known, key=lambda window: window.tokens, default=None)


@dataclass(frozen=True)
class Reply:
    """How a turn ended.

    Attributes:
        kept: It is part of the conversation; nothing was said otherwise.
        cut: It reached `Settings.max_tokens`.
        empty: The model ended it without a word.
    """

    kept: bool
    reason: FinishReason
    cut: bool
    empty: bool


class View(Protocol):
    """Shows one reply as it comes."""

    def reading(self, done: int, total: int) -> None:
        """So many tokens of the prompt are read."""

    def begin(self, event: Prefilled) -> None:
        """The prompt is read."""

    def write(self, pieces: Sequence[Piece], pace: Pace) -> None:
        """More of the reply, perhaps none yet, and its numbers."""

    def end(self, pace: Pace, stats: Stats | None) -> None:
        """No more comes."""


@dataclass
class _Said:
    """What came of a reply."""

    splitter: ThinkingSplitter
    view: View
    pace: Pace
    measured: Callable[[], float | None]
    thinking: str = ""
    answer: str = ""
    begun: bool = False
    finished: Finished | None = None
    _last: Sequence[Piece] = ()

    def follow(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Prefilled():
                    self.begun = True
                    self.pace.first_token_seconds = event.seconds
                    self.view.begin(event)
                case Block():
                    pieces = self.splitter.push(event.text)
                    self.pace.observe(event, thinking=self.splitter.kind == "thinking")
                    self.pace.plain_tokens_per_second = self.measured()
                    self._take(pieces)
                    self.view.write(pieces, self.pace)
                case Finished():
                    self.finished = event

    def stop(self) -> None:
        """No more comes: take in what was held back."""
        self._last = self.splitter.finish()
        self._take(self._last)

    def show_end(self) -> None:
        """The last of it on the screen."""
        self.view.write(self._last, self.pace)
        self.view.end(self.pace, self.stats)

    @property
    def stats(self) -> Stats | None:
        return None if self.finished is None else self.finished.stats

    @property
    def reason(self) -> FinishReason:
        return "interrupted" if self.finished is None else self.finished.reason

    def _take(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if piece.kind == "thinking":
                self.thinking += piece.text
            else:
                self.answer += piece.text


@dataclass
class Chat:
    """A conversation with a pair.

    Attributes:
        window: None if nothing is known of its length.
        opening: What runs.
        replies: Statistics of every finished one, across resets.
    """

    pair: Pair
    session: Session
    settings: Settings
    conversation: Conversation
    window: Window | None
    opening: Opening
    replies: list[Stats] = field(default_factory=list)
    _used: int = 0  # tokens of the conversation, the last reply included
    _warned: float = 0.0

    def reply(self, question: str, view: View, pressed: Callable[[], bool], *, again: bool = False) -> Reply:
        """Answer a question.

        Args:
            question: What the user wrote.
            view: Shows the answer as it comes.
            pressed: True ends it at the next step, as Ctrl-C does; what was said until then is kept. A
                `KeyboardInterrupt` meanwhile ends it at once, likewise.
            again: The answer takes the place of the last one, as soon as there is one.

        Raises:
            UserError: It cannot be answered; what was said before is as it was.
        """
        from dflash_mlx.prompts import encode_chat, message_border
        from dflash_mlx.reasoning import splitter

        tokenizer, settings, session = self.pair.tokenizer, self.settings, self.session
        if not again:
            self.conversation.unanswered = question
        messages = self.conversation.messages(question, again=again)
        prompt = encode_chat(tokenizer, messages, reasoning=settings.reasoning)
        room = self._room(prompt)
        border = message_border(tokenizer, messages, prompt, reasoning=settings.reasoning)
        width = self.pair.check_width(settings.asked_width)
        pace = Pace("plain" if width == 1 else self.pair.method, width)
        said = _Said(splitter(tokenizer, prompt), view, pace, lambda: session.plain_tokens_per_second)

        def cancelled() -> bool:
            if not said.begun:  # asked between the chunks of the prompt
                view.reading(len(session.tokens), len(prompt))
            return pressed()

        events = session.generate(
            prompt,
            settings.sampling,
            max_tokens=settings.max_tokens if room is None else min(settings.max_tokens, room),
            width=width,
            snapshot_at=[border],
            cancelled=cancelled,
            plain_share=self._plain_share(),
        )
        try:
            said.follow(events)
        except KeyboardInterrupt:
            pass  # the second Ctrl-C
        finally:
            said.stop()
            kept = self._keep(said, question, len(prompt), again=again)
        said.show_end()
        if said.stats is not None and kept:
            self.replies.append(said.stats)
        cut = said.reason == "length" and (room is None or room > settings.max_tokens)
        return Reply(kept, said.reason, cut, empty=kept and not (said.thinking or said.answer))

    def set_system(self, text: str | None) -> None:
        """Change the system message.

        Args:
            text: None for none.

        Raises:
            UserError: The chat template refuses it, as some refuse any; the conversation is as it was.
        """
        from dflash_mlx.prompts import encode_chat

        if text is not None:
            encode_chat(self.pair.tokenizer, Conversation(text).messages("."))
        self.conversation.system = text

    def reset(self) -> None:
        """Forget what was said."""
        self.conversation.reset()
        self._used, self._warned = 0, 0.0

    def take(self, conversation: Conversation) -> None:
        """Go on with another conversation."""
        self.conversation = conversation
        self._used, self._warned = 0, 0.0

    def warning(self) -> Text | None:
        """What to say of a window that fills up: once for each mark that it has passed, if full each time."""
        from . import readout

        if self.window is None:
            return None
        marks = (readout.WARN_AT, readout.WARN_AGAIN_AT, 1.0)
        passed = max((mark for mark in marks if self._used >= mark * self.window.tokens), default=0.0)
        before, self._warned = self._warned, passed
        if passed <= before and passed < 1:  # a reply that was cut says so each time
            return None
        text = readout.context_warning(self._used, self.window.tokens)
        if text is not None and self.window.of == MEMORY:
            text.append(f"; {MEMORY} sets the limit")
        return text

    def _room(self, prompt: Sequence[int]) -> int | None:
        """Tokens that fit behind a prompt; None for any number."""
        if self.window is None:
            return None
        room = self.window.tokens - len(prompt)
        if room >= 1:
            return room
        full = f"{self.window.of} is full: the prompt has {len(prompt):,} tokens, {self.window.tokens:,} fit"
        if self.conversation.exchanges:
            raise UserError(full, "`/reset` begins anew; `/save FILE` before that keeps this conversation")
        raise UserError(full, "shorten the message")

    def _plain_share(self) -> float:
        sampling = self.settings.sampling
        # When a step measures depends on the clock, and then a seed would not repeat a reply.
        repeats = sampling.seed is not None and not sampling.greedy
        return PLAIN_SHARE if self.settings.show_stats and not repeats else 0.0

    def _keep(self, said: _Said, question: str, prompt_tokens: int, *, again: bool) -> bool:
        """Make what was said a part of the conversation; False if that is nothing."""
        own_end = said.finished is not None and said.finished.reason != "interrupted"
        if not (said.thinking or said.answer or own_end):
            return False
        self.conversation.add(Exchange(question, said.answer, said.thinking), again=again)
        self._used = prompt_tokens + said.pace.tokens
        return True
