"""Code line by line: each is coloured once, in time that does not grow with the block."""

from __future__ import annotations

from typing import Self

from rich.syntax import Syntax, SyntaxTheme
from rich.text import Text

# How many lines a lexer reads again for the next one.
LEAST_LINES = 4  # where one begins at the left edge
MOST_LINES = 12  # where none does, or where languages lie in each other
LONGEST = 60  # inside of a long string
LONGEST_LINE = 500  # characters; nobody reads what is longer for its colours

_INNER = {"script": "javascript", "style": "css"}  # tags whose content a lexer of HTML knows by their end


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
        self._inner: tuple[str, Highlighter] | None = None  # the open tag with such a language

    def copy(self) -> Self:
        """For lines that are not final."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, _lines=list(self._lines), _anew=list(self._anew))
        if self._inner is not None:
            other._inner = (self._inner[0], self._inner[1].copy())
        return other

    def line(self, code: str) -> Text:
        """The next line, coloured."""
        if self._lexer is None or len(code) > LONGEST_LINE:
            return Text(code)
        if self._inner is not None and f"</{self._inner[0]}" not in code.lower():
            return self._inner[1].line(code)
        self._inner = None
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
        if self._nested:
            self._enter(code.lower())
        return text if text.plain == code else Text(code)  # a lexer may leave out what it does not know

    def _enter(self, code: str) -> None:
        for tag, language in _INNER.items():
            if code.rfind(f"<{tag}") > code.rfind(f"</{tag}"):
                self._inner = (tag, Highlighter(language, self._theme))

    def _forget(self) -> None:
        """Begin anew as soon as enough lines are left."""
        count = len(self._lines)
        least = MOST_LINES if self._nested else LEAST_LINES
        safe = [number for number in range(count - least, 0, -1) if self._anew[number]]
        statements = [number for number in safe if self._lines[number][:1].strip()]
        if statements:
            start = statements[0]
        elif safe and count >= MOST_LINES and not self._nested:
            start = safe[0]
        elif count >= LONGEST:
            start = count - MOST_LINES
        else:
            return
        del self._lines[:start], self._anew[:start]
