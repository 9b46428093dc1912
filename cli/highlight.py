"""Code line by line: each is coloured once, in time that does not grow with the block."""

from __future__ import annotations

from typing import Self

from rich.syntax import Syntax, SyntaxTheme
from rich.text import Text

LEAST_LINES = 12  # read again for every line
MOST_LINES = 60  # likewise, where no line begins anew


class Highlighter:
    """One block of code.

    A lexer cannot be stopped and continued, and reading the whole block for each of its lines takes time that
    grows with its square. So a lexer reads some lines before the wanted one, from a line on that begins a
    statement outside of strings and comments.

    Args:
        language: As written behind a fence; an unknown one has no colours.
        code_theme: Styles of tokens.
    """

    def __init__(self, language: str, code_theme: SyntaxTheme) -> None:
        self._theme = code_theme
        self._lexer = Syntax("", language).lexer if language else None
        self._lines: list[str] = []
        self._fresh = 0  # a line that a lexer could begin with

    def copy(self) -> Self:
        """For lines that are not final."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, _lines=list(self._lines))
        return other

    def line(self, code: str) -> Text:
        """The next line, coloured."""
        if self._lexer is None:
            return Text(code)
        self._lines.append(code)
        text = Text()
        anew = False  # no string or comment reaches into this line
        number, last = 0, len(self._lines) - 1
        for kind, value in self._lexer.get_tokens("\n".join(self._lines)):
            for index, part in enumerate(value.split("\n")):
                if index:
                    number += 1
                    anew = "String" not in kind and "Comment" not in kind if number == last else anew
                if number == last and part:
                    text.append(part, self._theme.get_style_for_token(kind))
        self._forget(anew and bool(code[:1].strip()))
        return text if text.plain == code else Text(code)  # a lexer may leave out what it does not know

    def _forget(self, anew: bool) -> None:
        """Begin where that is safe and enough lines are left, or somewhere when there are too many."""
        count = len(self._lines)
        if anew:
            self._fresh = self._fresh or count - 1
        if self._fresh and count - self._fresh >= LEAST_LINES:
            del self._lines[: self._fresh]
            self._fresh = 0
        elif count > MOST_LINES:
            del self._lines[: count - LEAST_LINES]
            self._fresh = 0
