"""Chat on a terminal: a line editor, and replies that are painted as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.text import Text

from dflash_mlx.reasoning import Piece
from dflash_mlx.types import Prefilled, Stats

from . import console, grid, readout, theme
from .conversation import Settings
from .interrupt import Suspension
from .line_editor import LineEditor
from .markdown import MarkdownStream
from .pace import Pace
from .screen import Screen, quiet_keys

THINKING_ROWS = 3  # of a thinking that will be folded


class TerminalFront:
    """Reads and paints.

    Args:
        settings: Of the chat.
        editor: Reads the messages.
        first_run: Nobody ever typed here.
    """

    interactive = True

    def __init__(self, settings: Settings, editor: LineEditor, *, first_run: bool) -> None:
        self._settings, self._editor, self.first_run = settings, editor, first_run

    def read(self) -> str | None:
        """The next message that is not empty; None when the user leaves."""
        while True:
            try:
                text = self._editor.read()
            except EOFError:
                return None
            except KeyboardInterrupt:
                self.say("Ctrl-D or `/exit` leaves")
                continue
            if text.strip():
                return text

    def say(self, what: str | Callable[[int], Text]) -> None:
        """Something that is no reply."""
        columns, _ = console.size()
        text = Text(console.harmless(what), style=theme.DIM) if isinstance(what, str) else what(columns)
        _write(text, columns)

    def error(self, message: str, hint: str | None) -> None:
        """What went wrong, where the conversation is: standard error may be a file."""
        columns, _ = console.size()
        for name, style, said in (("error:", theme.ERROR, message), ("hint:", theme.VALUE, hint)):
            if said:
                _write(Text.assemble((name, style), f" {console.harmless(said)}"), columns)

    @contextmanager
    def view(self) -> Iterator[TerminalView]:
        """For one reply."""
        with (
            Suspension() as suspension,
            quiet_keys(),
            Screen(console.write, console.size, suspension=suspension) as screen,
        ):
            view = TerminalView(screen, self._settings)
            try:
                yield view
            finally:
                view.close()
        console.write("\n")


class TerminalView:
    """Paints one reply: its text as markdown, the readout below it.

    Args:
        screen: The live region.
        settings: Of the chat.
    """

    def __init__(self, screen: Screen, settings: Settings) -> None:
        self._screen, self._settings = screen, settings
        self._answer, self._thinking = MarkdownStream(), MarkdownStream()
        self._thinks = False
        self._thought: list[Text] = []  # the last lines of a thinking that will be folded
        self._reused: tuple[int, int] | None = None
        self._pace: Pace | None = None  # the last one

    def reading(self, done: int, total: int) -> None:
        """How far the prompt is read."""
        text = f"reading {total:,} tokens …" if not done else f"reading {done:,} of {total:,} tokens …"
        self._screen.update([], [Text(text, style=theme.DIM)])

    def begin(self, event: Prefilled) -> None:
        """A note, if there is one."""
        self._reused = (event.reused_tokens, event.prompt_tokens)
        if event.note:
            self._screen.update(grid.wrap(Text(event.note, style=theme.DIM), self._screen.columns), [])

    def write(self, pieces: Sequence[Piece], pace: Pace) -> None:
        """More text, and the numbers so far."""
        self._pace = pace
        lines: list[Text] = []
        for piece in pieces:
            if piece.kind == "thinking":
                lines += self._think(piece.text)
            else:
                lines += self._end_thinking(pace)
                lines += self._answer.feed(piece.text, self._screen.columns)
        self._screen.update(lines, lambda columns: self._live(pace, columns))

    def end(self, pace: Pace, stats: Stats | None) -> None:
        """The last lines, with the numbers of the whole reply."""
        columns = self._screen.columns
        lines = [*self._end_thinking(pace), *self._answer.finish(columns)]
        if self._settings.show_stats and pace.tokens:
            lines += [Text(), *readout.readout(pace.readout(stats), columns).split("\n")]
            if stats is not None and stats.cycles:
                blocks = readout.shows(console.encoding())
                lines.append(readout.acceptance_bars(stats, columns, blocks=blocks))
            if self._reused is not None and self._reused[0]:
                lines.append(readout.reuse_line(*self._reused))
        self._screen.close(lines)

    def close(self) -> None:
        """What was shown stays, however the reply ended."""
        thought = [] if self._pace is None else self._end_thinking(self._pace)
        self._screen.close([*thought, *self._answer.finish(self._screen.columns)])

    def _live(self, pace: Pace, columns: int) -> list[Text]:
        if self._thinks:
            tail = [_dimmed(line) for line in self._thinking.tail(columns)]
            if not self._settings.show_reasoning:
                tail = [*self._thought, *tail][-THINKING_ROWS:]
        else:
            tail = self._answer.tail(columns)
        if not self._settings.show_stats:
            return tail
        return [*tail, Text(), *readout.readout(pace.readout(None), columns).split("\n")]

    def _think(self, text: str) -> list[Text]:
        self._thinks = True
        lines = [_dimmed(line) for line in self._thinking.feed(text, self._screen.columns)]
        if self._settings.show_reasoning:
            return lines
        self._thought = [*self._thought, *lines][-THINKING_ROWS:]
        return []

    def _end_thinking(self, pace: Pace) -> list[Text]:
        """What the thinking leaves on the screen: itself, or a line."""
        if not self._thinks:
            return []
        self._thinks = False
        if self._settings.show_reasoning:
            lines = [_dimmed(line) for line in self._thinking.finish(self._screen.columns)]
            return [*lines, Text()]
        return [readout.thought_line(pace.thought_seconds, pace.thought_tokens), Text()]


def _write(text: Text, columns: int) -> None:
    console.write("".join(f"{theme.ansi(line)}\n" for line in grid.wrap(text, columns)))


def _dimmed(line: Text) -> Text:
    dim = line.copy()
    dim.stylize(theme.DIM)
    return dim
