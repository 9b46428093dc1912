"""Chat in plain lines, for pipes and for terminals that want no control codes: text in, replies out.

Standard output has the replies and nothing else, an empty line between two; all else goes to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dflash_mlx.errors import UserError
from dflash_mlx.types import Prefilled, Stats

from . import console
from .conversation import Settings
from .pace import Pace

if TYPE_CHECKING:
    from rich.text import Text

    from dflash_mlx.reasoning import Piece

PROMPT = "> "


class PlainFront:
    """Reads a message a line.

    Args:
        settings: Of the chat.
    """

    first_run = False

    def __init__(self, settings: Settings) -> None:
        console.check_input()
        self._settings = settings
        self._replies = 0
        self.interactive = sys.stdin.isatty()

    def read(self) -> str | None:
        """The next message that is not empty; None at the end of the input.

        Raises:
            UserError: A line is no text.
        """
        while raw := self._line():
            try:
                text = raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as problem:
                raise UserError("a line of standard input is not UTF-8 text", "convert it first") from problem
            if text.strip():
                return text
        return None

    def _line(self) -> bytes:
        while True:
            if self.interactive:
                console.ask(PROMPT)
            try:
                return console.read_line()
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                console.note("\nCtrl-D or `/exit` leaves")

    def say(self, what: str | Callable[[int], Text]) -> None:
        """Something that is no reply."""
        console.note(what if isinstance(what, str) else what(console.PIPE_COLUMNS).plain)

    def error(self, message: str, hint: str | None) -> None:
        """What went wrong."""
        console.error(message, hint)

    @contextmanager
    def view(self) -> Iterator[PlainView]:
        """For one reply."""
        view = PlainView(self._settings, first=not self._replies)
        try:
            yield view
        finally:
            view.close()
            self._replies += view.written


class PlainView:
    """Writes a reply as it comes; never takes anything back.

    Args:
        settings: Of the chat.
        first: No reply was written before.
    """

    def __init__(self, settings: Settings, *, first: bool) -> None:
        self._settings = settings
        self._before = "" if first else "\n"
        self._last = "\n"
        self.written = False
        self._thinking = ""
        self._reused: tuple[int, int] | None = None

    def reading(self, done: int, total: int) -> None:
        """Nothing: it could not be taken back."""

    def begin(self, event: Prefilled) -> None:
        """A note, if there is one."""
        if event.note:
            console.note(event.note)
        self._reused = (event.reused_tokens, event.prompt_tokens)

    def write(self, pieces: Sequence[Piece], pace: Pace) -> None:
        """The answer to standard output, the thinking not yet anywhere."""
        for piece in pieces:
            text = console.harmless(piece.text)
            if piece.kind == "thinking":
                self._thinking += text
                continue
            self._end_thinking(pace)
            if text:
                console.write(self._before + text)
                self._before, self._last, self.written = "", text[-1], True

    def end(self, pace: Pace, stats: Stats | None) -> None:
        """End the last line, tell the numbers."""
        self._end_thinking(pace)
        self.close()
        if not (self._settings.show_stats and pace.tokens):
            return
        from . import readout

        console.note(readout.readout_text(pace.readout(stats)))
        if self._reused is not None and self._reused[0]:
            console.note(readout.reuse_line(*self._reused).plain)

    def close(self) -> None:
        """However the reply ended, the next one begins on a line of its own."""
        if self._last != "\n":
            console.write("\n")
            self._last = "\n"

    def _end_thinking(self, pace: Pace) -> None:
        if self._thinking and self._settings.show_reasoning:
            console.note(self._thinking.rstrip("\n"))
        elif self._thinking and self._settings.show_stats:
            from . import readout

            console.note(readout.thought_line(pace.thought_seconds, pace.thought_tokens).plain)
        self._thinking = ""
