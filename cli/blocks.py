"""The block structure of markdown: source lines -> leaves in lists and quotes -> lines with their prefixes.

Lists, quotes, fences, headings, rules and GitHub tables are found line by line, and a complete line is never
read again; so there are no headings by underlining and no reference links, where a later line changes an
earlier one. Line breaks in a paragraph stay, HTML is shown as it is written, and under a number two columns
are enough for a nested list, as models write it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rich.syntax import SyntaxTheme
from rich.text import Text

from . import grid, theme
from .leaves import Code, Leaf, Paragraph, Table

_RULE = re.compile(r"([-*_])[ \t]*(\1[ \t]*){2,}")
_HEADING = re.compile(r"(#{1,6})([ \t]+|$)")
_CLOSING = re.compile(r"([ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r"(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*)")
_BULLET = re.compile(r"[-*+](?=[ \t]|$)")
_NUMBER = re.compile(r"(\d{1,9})[.)](?=[ \t]|$)")
_TASK = re.compile(r"\[([ xX])\][ \t]+")
_LEAST_NESTING = 2  # columns


@dataclass(frozen=True)
class _Container:
    """A quote, or an item of a list.

    Attributes:
        mark: What is shown before its first line.
        indent: Columns of its content in the source; 0 for a quote.
        at: Columns of its mark in the source.
        shown: Its mark has been.
    """

    mark: Text
    indent: int = 0
    at: int = 0
    shown: bool = False

    @property
    def quote(self) -> bool:
        return self.indent == 0

    @property
    def prefix(self) -> Text:
        return self.mark if self.quote or not self.shown else Text(" " * self.mark.cell_len)


class Blocks:
    """What is open at the end of the source so far, and the lines that were not taken yet.

    Args:
        code_theme: Styles of tokens in code.

    Attributes:
        width: Columns of the lines to come.
    """

    def __init__(self, code_theme: SyntaxTheme) -> None:
        self.width = 80
        self._code_theme = code_theme
        self._containers: list[_Container] = []
        self._leaf: Leaf | None = None
        self._lines: list[Text] = []
        self._any = False  # something was written
        self._apart = False  # the last line is an empty one between blocks
        self._blank = False  # there has to be one before what comes

    def copy(self) -> Self:
        """For what is not final; without lines."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, _containers=list(self._containers), _lines=[])
        other._leaf = self._leaf and self._leaf.copy()
        return other

    def take(self) -> list[Text]:
        """The lines since the last call."""
        lines, self._lines = self._lines, []
        return lines

    # ---- source lines ----

    def can_begin(self, start: str) -> bool:
        """True if a line that begins so is a paragraph's, and need not be complete."""
        trial = self.copy()
        trial.line(start, whole=False)
        return isinstance(trial._leaf, Paragraph)

    def line(self, source: str, *, whole: bool = True) -> None:
        """A source line, or the beginning of one that is a paragraph's."""
        if source[:1].isspace():
            source = source.replace("\t", "    ")
        matched, rest = self._descend(source)
        if isinstance(self._leaf, Code) and matched == len(self._containers) and self._goes_on(rest):
            return
        if not rest.strip():
            self._empty(matched)
            return
        if isinstance(self._leaf, Paragraph) and self._is_lazy(matched, rest):
            self._write(self._leaf.add("\n" + rest.lstrip(), self._room()))
            return
        if matched < len(self._containers) or isinstance(self._leaf, Code):
            self._close(matched)
        rest = self._open_containers(rest)
        self._open_leaf(rest, whole=whole)

    def more(self, text: str) -> None:
        """The line goes on."""
        if self._leaf is not None and text:
            self._write(self._leaf.add(text, self._room()))

    def end_line(self) -> None:
        """The line is complete."""
        if isinstance(self._leaf, Paragraph) and self._leaf.heading:
            self._end_leaf()

    def finish(self, *, guess: bool = False) -> None:
        """No more lines come; or, for a guess, that is not known."""
        self._end_leaf(guess=guess)
        self._close(0)

    # ---- containers ----

    def _descend(self, source: str) -> tuple[int, str]:
        """How many containers a line stays in, and what is left of it inside of them."""
        rest = source
        for index, container in enumerate(self._containers):
            indent = len(rest) - len(rest.lstrip(" "))
            if container.quote:
                if not (indent <= 3 and rest[indent : indent + 1] == ">"):
                    return index, rest
                rest = rest[indent + 1 :].removeprefix(" ")
            elif rest.strip() and indent < container.indent:
                if indent < container.at + _LEAST_NESTING or not _nests(rest[indent:]):
                    return index, rest
                rest = rest[indent:]
            else:
                rest = rest[container.indent :]
        return len(self._containers), rest

    def _is_lazy(self, matched: int, rest: str) -> bool:
        """True if a line goes on with the paragraph, inside its containers or without their marks."""
        inside = matched == len(self._containers)
        text = rest.lstrip()
        if _RULE.fullmatch(text.rstrip()) or _HEADING.match(text) or _FENCE.match(text) or text[0] in ">|":
            return False
        if _BULLET.match(text):
            return inside and not text[1:].strip()
        number = _NUMBER.match(text)
        if number is None:
            return True
        return inside and (number[1] != "1" or not text[number.end() :].strip()) and not self._in_list()

    def _in_list(self) -> bool:
        return any(not container.quote for container in self._containers)

    def _open_containers(self, rest: str) -> str:
        while True:
            text = rest.lstrip(" ")
            indent = len(rest) - len(text)
            if text.startswith(">") and indent <= 3:
                self._open(_Container(Text("│ ", style=theme.QUOTE)))
                rest = text[1:].removeprefix(" ")
                continue
            mark = _BULLET.match(text) or _NUMBER.match(text)
            if mark is None or _RULE.fullmatch(text.rstrip()) or (indent > 3 and not self._containers):
                return rest
            behind = text[mark.end() :]
            spaces = len(behind) - len(behind.lstrip(" "))
            spaces = spaces if 1 <= spaces <= 4 and behind.strip() else 1
            rest = behind[spaces:]
            self._open(_Container(_shown(mark[0]), indent + mark.end() + spaces, indent))
            if (task := _TASK.match(rest)) is not None:
                box = "☐ " if task[1] == " " else "☑ "
                self._containers[-1] = replace(self._containers[-1], mark=Text(box, style=theme.BULLET))
                rest = rest[task.end() :]

    def _open(self, container: _Container) -> None:
        self._end_leaf()
        self._separate(len(self._containers))
        self._containers.append(container)

    def _close(self, kept: int) -> None:
        """End the leaf and the containers but the first `kept`."""
        self._end_leaf()
        while len(self._containers) > kept:
            if not (self._containers[-1].shown or self._containers[-1].quote):
                self._write([Text()])  # an item without content
            self._containers.pop()

    # ---- leaves ----

    def _open_leaf(self, rest: str, *, whole: bool) -> None:
        """Begin what a line is, or go on with it."""
        text = rest.strip()
        indent = len(rest) - len(rest.lstrip(" "))
        if isinstance(self._leaf, Table):
            if self._leaf.accepts(text):
                if not self._leaf.certain:
                    self._blank = not (self._containers or self._apart)
                    self._separate(0)
                self._write(self._leaf.add(text, self._room()))
                return
            self._end_leaf()
        if not text:
            return
        if (fence := _FENCE.match(text)) is not None:
            self._begin(Code(fence[1], indent, fence[2], self._code_theme), apart=True)
        elif _RULE.fullmatch(text):
            self._begin(None)
            self._write([Text("─" * min(self._room(), 40), style=theme.RULE)])
        elif (heading := _HEADING.match(text)) is not None:
            style = theme.HEADINGS[min(len(heading[1]), len(theme.HEADINGS)) - 1]
            self._begin(Paragraph(style, heading=True), apart=True)
            title = rest.lstrip()[heading.end() :]
            self.more((_CLOSING.sub("", title) if whole else title) or " ")
        elif indent >= 4 and not self._containers:
            self._begin(Code("", 4, "", self._code_theme))
            self.more(rest)
        elif text[0] == "|" or ("|" in text and not isinstance(self._leaf, Paragraph)):
            self._begin(Table(text), apart=False)
        else:
            self._begin(Paragraph())
            self.more(rest.lstrip())

    def _goes_on(self, rest: str) -> bool:
        """Give a line to the block of code; False if it is not one of its lines."""
        code = self._leaf
        assert isinstance(code, Code)
        if code.closes(rest):
            self._end_leaf()
        elif code.fence or not rest.strip() or rest.startswith("    "):
            self._write(code.add(rest, self._room()))
        else:
            return False
        return True

    def _empty(self, matched: int) -> None:
        """An empty line ends what is open, but not a list."""
        self._end_leaf()
        if any(container.quote for container in self._containers[matched:]):
            self._close(matched)
        self._blank = True

    def _begin(self, leaf: Leaf | None, *, apart: bool = False) -> None:
        self._end_leaf()
        self._blank = self._blank or (apart and not self._containers)
        self._separate(len(self._containers))
        self._leaf = leaf
        if isinstance(leaf, Code) and leaf.fence:
            self._write(grid.wrap(leaf.label, self._room()))

    def _end_leaf(self, *, guess: bool = False) -> None:
        leaf, self._leaf = self._leaf, None
        if leaf is None:
            return
        self._write(leaf.finish(self._room(), guess=guess))
        wide = isinstance(leaf, Code) or (isinstance(leaf, Table) and leaf.certain)
        self._blank = wide and not self._containers

    # ---- lines ----

    def _separate(self, kept: int) -> None:
        """An empty line, in the quotes that go on."""
        if self._blank and self._any:
            self._lines.append(self._prefix(self._containers[:kept], blank=True))
            self._apart = True
        self._blank = False

    def _write(self, lines: Sequence[Text]) -> None:
        for line in lines:
            whole = Text.assemble(self._prefix(self._containers), line)
            whole.rstrip()
            self._lines.append(whole)
            if not all(one.shown for one in self._containers):
                self._containers = [replace(one, shown=True) for one in self._containers]
            self._any, self._apart = True, False

    def _room(self) -> int:
        return max(2, self.width - self._prefix(self._containers).cell_len)

    def _prefix(self, containers: Sequence[_Container], *, blank: bool = False) -> Text:
        parts = (
            [one.mark if one.quote else Text(" " * one.mark.cell_len) for one in containers]
            if blank
            else [one.prefix for one in containers]
        )
        prefix = Text.assemble(*parts)
        # The innermost marks: nesting must not eat up the line.
        while prefix.cell_len > self.width // 2:
            parts = parts[1:]
            prefix = Text.assemble(*parts)
        if blank:
            prefix.rstrip()
        return prefix


def _nests(text: str) -> bool:
    return bool(_BULLET.match(text) or _NUMBER.match(text) or _FENCE.match(text))


def _shown(mark: str) -> Text:
    return Text("• " if mark in "-*+" else f"{mark} ", style=theme.BULLET)
