"""Markdown as it comes: text in pieces of any size -> finished lines, and a tail that still may change.

Knows no terminal.
"""

from __future__ import annotations

from rich.syntax import SyntaxTheme
from rich.text import Text

from . import theme
from .blocks import Blocks
from .inline import clean

LEAST_START = 100  # characters of a source line that tell what it is


class MarkdownStream:
    """One reply.

    Lines have no line break and no control characters, and are at most as wide as asked for. Joined, finished
    lines are the same for the same text in whatever pieces it came.

    Args:
        code_theme: Styles of tokens in code.

    Example:
        >>> stream = MarkdownStream()
        >>> [line.plain for line in stream.feed("# A *b*\\n\\n1. c", 40)]
        ['A b']
        >>> [line.plain for line in stream.tail(40)]
        ['', '1. c']
        >>> [line.plain for line in stream.finish(40)]
        ['', '1. c']
    """

    def __init__(self, *, code_theme: SyntaxTheme = theme.CODE_THEME) -> None:
        self._blocks = Blocks(code_theme)
        self._line = ""  # of the source, not yet known to be complete
        self._begun = False  # its beginning was given to the blocks, and what follows goes there at once
        self._waits = False  # it has to be complete

    def feed(self, text: str, width: int) -> list[Text]:
        """Add text; the lines that became final with it.

        Args:
            text: Any part of the reply.
            width: Columns of the terminal.
        """
        blocks = self._blocks
        blocks.width = width
        first, *others = clean(text).split("\n")
        self._continue(first)
        for part in others:
            self._end_line()
            self._continue(part)
        return blocks.take()

    def tail(self, width: int) -> list[Text]:
        """How the text so far goes on below the finished lines, as far as one can tell."""
        blocks = self._blocks.copy()
        blocks.width = width
        if self._line:
            blocks.line(self._line)
        blocks.finish(guess=True)
        return blocks.take()

    def finish(self, width: int) -> list[Text]:
        """The rest. Nothing can be fed after it."""
        self._blocks.width = width
        if self._line or self._begun:
            self._end_line()
        self._blocks.finish()
        return self._blocks.take()

    def _continue(self, part: str) -> None:
        if self._begun:
            self._blocks.more(part)
            return
        self._line += part
        # Always after so many characters: what is final must not depend on the pieces.
        if not self._waits and len(self._line) >= LEAST_START:
            start, rest = self._line[:LEAST_START], self._line[LEAST_START:]
            self._waits = not self._blocks.can_begin(start)
            if not self._waits:
                self._blocks.line(start, whole=False)
                self._blocks.more(rest)
                self._begun, self._line = True, ""

    def _end_line(self) -> None:
        if not self._begun:
            self._blocks.line(self._line)
        self._blocks.end_line()
        self._line, self._begun, self._waits = "", False, False
