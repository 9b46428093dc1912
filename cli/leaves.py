"""What stands in a reply inside of lists and quotes: paragraphs, code, tables; each gives lines as they come.

A leaf is fed whole source lines, a paragraph also less. What it gives out is final, and depends on the text
alone, not on the pieces in which that came.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

from rich.style import Style
from rich.syntax import SyntaxTheme
from rich.text import Text

from . import grid, theme
from .highlight import Highlighter
from .inline import guessed, inline, settled

LEAST_CHUNK = 40  # characters of a paragraph that are looked at together
MOST_CHUNK = 400  # a mark that is still open then will not be closed
LONGEST_WORD = 600  # that is looked at together
MOST_ROWS = 24  # of a table, before its columns are fixed
LEAST_COLUMN = 5  # cells; a table with less is shown as a list

_LETTERS = "\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff"
_CUT = re.compile(rf"(?<=[ \n])(?=[^ \n])|(?<=[{_LETTERS}、。，！？])(?=[{_LETTERS}])")
_INSIDE = re.compile(r"(?<=[!-~])(?=[!-~])")
_LANGUAGE = re.compile(r"[\w+#-]+")
_PIPE = re.compile(r"(?<!\\)\|")
_DELIMITER = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")


class Leaf:
    """The interface, and what most leaves do."""

    def copy(self) -> Self:
        """For what is not final."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def add(self, text: str, width: int) -> list[Text]:
        """Add source text; the lines that are final now."""
        raise NotImplementedError

    def finish(self, width: int, *, guess: bool = False) -> list[Text]:
        """The other lines.

        Args:
            width: Cells.
            guess: More is to come, and what is open may be shown as if it were closed.
        """
        raise NotImplementedError


class Paragraph(Leaf):
    """Text with inline markup: a paragraph, or a heading.

    The source is cut, at spaces, into chunks in which all marks are closed, or that are too long to wait any
    longer. All lines of a chunk but the last are final.
    """

    def __init__(self, style: Style = theme.NONE, *, heading: bool = False) -> None:
        self.heading = heading
        self._style = style
        self._source = ""  # of the chunk
        self._looked = 1  # up to here, there is no cut
        self._line = Text()  # the last one, to be continued
        self._written = False

    def add(self, text: str, width: int) -> list[Text]:
        """Add source text, line breaks included."""
        self._source += text
        lines: list[Text] = []
        while (cut := self._next_cut()) is not None:
            chunk, self._source, self._looked = self._source[:cut], self._source[cut:], 1
            lines += self._append(inline(chunk, self._style), width)
        self._written = self._written or bool(lines)
        return lines

    def finish(self, width: int, *, guess: bool = False) -> list[Text]:
        """The lines that were still open."""
        source = guessed(self._source) if guess else self._source
        lines = [*self._append(inline(source, self._style), width), self._line]
        if not self._line.plain.strip() and (self._written or len(lines) > 1):
            lines.pop()
        return lines

    def _next_cut(self) -> int | None:
        while True:
            begin = max(self._looked, LEAST_CHUNK)
            found = _CUT.search(self._source, begin)
            inside = _INSIDE.search(self._source, LONGEST_WORD) if len(self._source) > LONGEST_WORD else None
            cut = min((one.start() for one in (found, inside) if one), default=None)
            if cut is None:
                self._looked = max(begin, len(self._source))
                return None
            if cut >= MOST_CHUNK or settled(self._source[:cut]):
                return cut
            self._looked = cut + 1

    def _append(self, text: Text, width: int) -> list[Text]:
        *lines, self._line = grid.broken(Text.assemble(self._line, text), width)
        for line in lines:
            line.rstrip()
        return lines


class Code(Leaf):
    """A block of code, fenced or (without a fence) indented."""

    def __init__(self, fence: str, indent: int, info: str, code_theme: SyntaxTheme) -> None:
        self.fence, self._indent = fence, indent
        language = _LANGUAGE.match(info)
        self._highlighter = Highlighter(language[0] if language else "", code_theme)
        self._held = 0  # empty lines that may be the last ones
        self.label = Text(f"── {info}".rstrip(), style=theme.RULE)

    def copy(self) -> Self:
        """The highlighter has a memory."""
        other = super().copy()
        other._highlighter = self._highlighter.copy()
        return other

    def closes(self, line: str) -> bool:
        """True if a source line is the closing fence."""
        mark = line.strip()
        return bool(self.fence) and mark.startswith(self.fence) and not mark.strip(self.fence[0])

    def add(self, text: str, width: int) -> list[Text]:
        """Add a source line."""
        if not self.fence and not text.strip():
            self._held += 1
            return []
        held, self._held = self._held, 0
        indent = min(self._indent, len(text) - len(text.lstrip(" ")))
        code = text[indent:].expandtabs(4)
        return [*(Text() for _ in range(held)), *grid.broken(self._highlighter.line(code), width)]

    def finish(self, width: int, *, guess: bool = False) -> list[Text]:
        """The rule below a fenced block."""
        return [Text("──", style=theme.RULE)] if self.fence and not guess else []


class Table(Leaf):
    """A table, or a line that may become one's header.

    Laid out when it ends, or when it has `MOST_ROWS`: the columns are fixed then, and each row is final.
    """

    def __init__(self, header: str) -> None:
        self.header = header
        self._rows = [_cells(header)]
        self._justify: list[grid.Justify] | None = None
        self._natural: list[int] | None = None

    def copy(self) -> Self:
        """Its rows are a list."""
        other = super().copy()
        other._rows = list(self._rows)
        return other

    @property
    def certain(self) -> bool:
        """True once the second line was a table's."""
        return self._justify is not None

    def accepts(self, line: str) -> bool:
        """True if a source line is the next one of this table."""
        if self.certain:
            return "|" in line
        return _DELIMITER.fullmatch(line.strip()) is not None and len(_cells(line)) == len(self._rows[0])

    def add(self, text: str, width: int) -> list[Text]:
        """Add a row, or the delimiter below the header."""
        if self._justify is None:
            self._justify = [_justify(cell) for cell in _cells_text(text)]
            return []
        count = len(self._justify)
        cells = _cells_text(text)
        cells[count - 1 :] = [" | ".join(cells[count - 1 :])]  # nothing that a model wrote is left out
        self._rows.append([*map(_cell, cells), *[Text()] * (count - len(cells))])
        if self._natural is None and len(self._rows) <= MOST_ROWS:
            return []
        return self._lay_out(width)

    def finish(self, width: int, *, guess: bool = False) -> list[Text]:
        """All rows that were not given out."""
        return self._lay_out(width) if self.certain else grid.wrap(inline(self.header), width)

    def _lay_out(self, width: int) -> list[Text]:
        rows, self._rows = self._rows, []
        first = self._natural is None
        if self._natural is None:
            columns = zip(*rows, strict=True)
            self._natural = [max(2, *(_cell_width(cell) for cell in column)) for column in columns]
            self._header = rows[0]
        room = width - 3 * (len(self._natural) - 1)
        if room < LEAST_COLUMN * len(self._natural):
            return self._as_list(rows[1:] if first else rows, width)
        widths = grid.fit(self._natural, room)
        justify = self._justify or []
        bar = Text(" │ ", style=theme.RULE)
        lines: list[Text] = []
        for row in rows:
            style = theme.STRONG if first and not lines else theme.NONE
            cells = [Text.assemble(cell, style=style) for cell in row]
            lines += grid.row(cells, widths, justify, bar)
            if style is theme.STRONG:
                lines.append(Text("─┼─".join("─" * one for one in widths), style=theme.RULE))
        return lines

    def _as_list(self, rows: Sequence[Sequence[Text]], width: int) -> list[Text]:
        """A line per cell, where columns would be too narrow to read."""
        lines: list[Text] = []
        for row in rows:
            for name, cell in zip(self._header, row, strict=True):
                label = Text.assemble(name, ": ", style=theme.STRONG)
                lines += grid.wrap(Text.assemble(label, cell), width)
            lines.append(Text())
        return lines


def _cells_text(line: str) -> list[str]:
    return [cell.strip() for cell in _PIPE.split(line.strip().removeprefix("|").removesuffix("|"))]


def _cells(line: str) -> list[Text]:
    return [_cell(source) for source in _cells_text(line)]


def _cell(source: str) -> Text:
    return inline(source.replace("\\|", "|"))


def _cell_width(cell: Text) -> int:
    return max((line.cell_len for line in cell.split("\n")), default=0)


def _justify(cell: str) -> grid.Justify:
    if cell.endswith(":"):
        return "center" if cell.startswith(":") else "right"
    return "left"
