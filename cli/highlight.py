"""Code line by line: each is coloured once, in time that does not grow with the block."""

from __future__ import annotations

from typing import Self

from rich.syntax import Syntax, SyntaxTheme
from rich.text import Text

LEAST_LINES = 12  # that a lexer reads again for every line
MOST_LINES = 24  # likewise, where no line begins a statement
LONGEST = 60  # likewise, inside of a long string, or where languages lie in each other


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
        self._anew: list[bool] = []  # that line begins outside of strings and comments
        self._nested = False  # markup, which has other languages in it

    def copy(self) -> Self:
        """For lines that are not final."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, _lines=list(self._lines), _anew=list(self._anew))
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
                    anew = not {"String", "Comment"} & set(kind) if number == last else anew
                if number == last and part:
                    text.append(part, self._theme.get_style_for_token(kind))
            self._nested = self._nested or "Tag" in set(kind)
        self._anew.append(anew)
        self._forget()
        return text if text.plain == code else Text(code)  # a lexer may leave out what it does not know

    def _forget(self) -> None:
        """Begin anew as soon as enough lines are left."""
        count = len(self._lines)
        safe = [number for number in range(count - LEAST_LINES, 0, -1) if self._anew[number]]
        statements = [number for number in safe if self._lines[number][:1].strip()]
        if statements:
            start = statements[0]
        elif safe and count >= MOST_LINES and not self._nested:
            start = safe[0]
        elif count >= LONGEST:
            start = count - LEAST_LINES
        else:
            return
        del self._lines[:start], self._anew[:start]
