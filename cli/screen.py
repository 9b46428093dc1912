"""The live region at the bottom of a terminal; finished lines scroll away above it, not touched again.

Between frames the cursor stands, hidden, on the first row of the region. So a terminal that was resized, and
has moved and wrapped what it shows, has kept the cursor with that row: erasing from there on takes the whole
region and nothing else. rich's Live leaves it on the last row and counts rows upwards, which then are others.
"""

from __future__ import annotations

import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Self

from rich.text import Text

from .interrupt import Suspension
from .theme import ansi

FRAMES_PER_SECOND = 12
PAINTING = 0.02  # of the time, at most: a long table takes 1.9 ms a frame, a paragraph 0.1
SLOWEST = 0.25  # seconds between frames, whatever one takes
Lines = Sequence[Text]
Live = Lines | Callable[[int], Lines]

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know them show a frame at once
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_ERASE_LINE, _ERASE_BELOW = "\x1b[K", "\x1b[J"


class Screen:
    """Shows a reply as it comes. A context manager; outside of it the terminal is as it was.

    The cursor has to stand at the beginning of an empty line, and only this may write to the terminal: see
    `quiet_keys`.

    Args:
        write: Text to the terminal, at once.
        size: Columns and rows of the terminal, asked before every frame.
        suspension: Ctrl-Z, obeyed at the next update.
        frames_per_second: At most so many, fewer where one takes long; what comes between waits for the next.
        clock: Seconds, monotonic.

    Example:
        with quiet_keys(), Screen(console.write, shutil.get_terminal_size) as screen:
            for text in reply:
                lines = markdown.feed(text, screen.columns)
                screen.update(lines, lambda columns: [*markdown.tail(columns), readout(state, columns)])
            screen.close([*markdown.finish(screen.columns), readout(state, screen.columns)])
    """

    def __init__(
        self,
        write: Callable[[str], None],
        size: Callable[[], tuple[int, int]],
        *,
        suspension: Suspension | None = None,
        frames_per_second: float = FRAMES_PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._size, self._clock, self._suspension = write, size, clock, suspension
        self._least_pause = self._pause = 1 / frames_per_second
        self._painted = float("-inf")
        self._finished: list[Text] = []  # not yet in the scrollback
        self._live: Live = ()
        self._open = False

    @property
    def columns(self) -> int:
        """Of the terminal, now."""
        return max(1, self._size()[0])

    def __enter__(self) -> Self:
        self._open = True
        self._write(_HIDE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What there is to say of an exception comes below all that was shown.
        self.close()

    def update(self, finished_lines: Lines, live_lines: Live) -> None:
        """Show more, now or with a later frame.

        Args:
            finished_lines: Go above the region, once, and stay as they are.
            live_lines: The region from now on, a Text without a line break for each row; or what makes them
                for a number of columns, called when a frame is painted. Of more than fit, the last are shown.
        """
        self._finished += finished_lines
        self._live = live_lines
        if self._suspension is not None and self._suspension.wanted:
            self._suspend(self._suspension)
        elif self._clock() - self._painted >= self._pause:
            self.refresh()

    def refresh(self) -> None:
        """Paint a frame now."""
        began = self._clock()
        columns, rows = self._size()
        live = self._live(columns) if callable(self._live) else self._live
        self._paint(live, max(1, columns), max(1, rows - 1))
        costly = min((self._painted - began) / PAINTING, SLOWEST)
        self._pause = max(self._least_pause, costly)

    def close(self, last_lines: Lines = ()) -> None:
        """Put `last_lines` in the place of the region and give the cursor back; later calls do nothing."""
        if not self._open:
            return
        self._open = False
        self._finished += last_lines
        self._live = ()
        try:
            self._paint((), *self._size())
        finally:
            self._write(_WRAP + _SHOW)

    def _suspend(self, suspension: Suspension) -> None:
        """The shell gets its terminal without the region; when it gives it back, the region comes again."""
        self._paint((), *self._size())
        self._write(_SHOW)
        with _echoing(True):
            suspension.now()
        self._write(_HIDE)
        self.refresh()

    def _paint(self, live: Lines, columns: int, rows: int) -> None:
        """One frame, one write. Lines are erased first: behind a full one, erasing takes its last cell."""
        finished, self._finished = self._finished, []
        # One that was made for a wider terminal takes several rows.
        erase = [_ERASE_BELOW if line.cell_len > columns else _ERASE_LINE for line in finished]
        above = "".join(f"{first}{ansi(line)}\r\n" for first, line in zip(erase, finished, strict=True))
        shown = [ansi(_cropped(line, columns)) for line in live[-rows:]]
        below = "\r\n".join(_ERASE_LINE + line for line in shown[:-1])
        below += ("\r\n" if shown[:-1] else "") + _ERASE_BELOW + "".join(shown[-1:])
        up = f"\x1b[{len(shown) - 1}A" if shown[:-1] else ""
        self._write(f"{_BEGIN}\r{above}{_NO_WRAP}{below}{_WRAP}{up}\r{_END}")
        self._painted = self._clock()


def _cropped(line: Text, columns: int) -> Text:
    """The beginning of a line that was made for a wider terminal."""
    if line.cell_len <= columns:
        return line
    kept = line.copy()
    kept.truncate(columns, overflow="crop")
    return kept


def quiet_keys() -> AbstractContextManager[None]:
    """What is typed meanwhile is not shown, and is there for the next read; Ctrl-C and the like work.

    An echoed line break would move the region.
    """
    return _echoing(False)


@contextmanager
def _echoing(on: bool) -> Iterator[None]:
    try:
        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
    except (AttributeError, OSError, ValueError, termios.error):  # no keyboard
        yield
        return
    within = termios.tcgetattr(keyboard)
    within[3] = within[3] | termios.ECHO if on else within[3] & ~termios.ECHO
    termios.tcsetattr(keyboard, termios.TCSADRAIN, within)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
