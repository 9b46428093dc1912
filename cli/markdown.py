"""Markdown as it comes: text in pieces of any size -> finished lines, and a tail that still may change."""

from __future__ import annotations

from collections.abc import Sequence

from rich.syntax import SyntaxTheme
from rich.text import Text

from . import grid, theme


class MarkdownStream:
    """One reply."""

    def __init__(self, *, code_theme: SyntaxTheme = theme.CODE_THEME) -> None:
        self._code_theme = code_theme
        self._buffer = ""

    def feed(self, text: str, width: int) -> list[Text]:
        """Add text; the lines that became final with it."""
        *lines, self._buffer = (self._buffer + text).split("\n")
        return [part for line in lines for part in grid.wrap(Text(line), width)]

    def tail(self, width: int) -> list[Text]:
        """What the text so far leaves below the finished lines."""
        return grid.wrap(Text(self._buffer), width)

    def finish(self, width: int) -> list[Text]:
        """The remaining lines; nothing may be fed after it."""
        rest, self._buffer = self._buffer, ""
        return grid.wrap(Text(rest), width) if rest else []


def plain_lines(lines: Sequence[Text]) -> str:
    """Lines without styles."""
    return "".join(f"{line.plain}\n" for line in lines)
