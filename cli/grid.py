"""Styled text in lines that fit: wrapping, columns, a box. Pure functions; widths are terminal cells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Literal

from rich.cells import cell_len, split_graphemes
from rich.style import Style
from rich.text import Text

from . import theme

Justify = Literal["left", "right", "center"]
_NOT_FIRST = frozenset("、。，．！？：；）」』】》〉…ー,.!?:;)")  # of a line, where it can be helped
_FLAG = re.compile("[\U0001f1e6-\U0001f1ff]")


def wrap(text: Text, width: int) -> list[Text]:
    """Break at spaces and between wide characters; words wider than a line are cut between graphemes.

    The lines but the last stay as they are whatever is appended to a text that ends with a space.

    Args:
        text: Line breaks in it are kept.
        width: At least 2.

    Returns:
        At least one line, without spaces at the end, none wider than `width`.
    """
    lines = broken(text.copy(), width)
    for line in lines:
        line.rstrip()
    return lines


def broken(text: Text, width: int) -> list[Text]:
    """`wrap` that leaves the spaces at the ends of lines."""
    rows = text.split("\n", allow_blank=True) if "\n" in text.plain else [text]
    lines: list[Text] = []
    for row in rows:
        lines += [row] if row.cell_len <= width else row.divide(_cuts(row.plain, width))
    return lines


def _cuts(plain: str, width: int) -> list[int]:
    """Offsets at which lines begin, but the first."""
    cuts: list[int] = []
    used = 0
    for start, end, size, ink in _words(plain):
        if used and used + ink > width:  # spaces at its end may hang over
            cuts.append(start)
            used = 0
        if ink > width:
            for begin, _, cells in _clusters(plain[start:end]):
                if used and used + cells > width and plain[start + begin] != " ":
                    cuts.append(start + begin)
                    used = 0
                used += cells
        else:
            used += size
    return cuts


def _words(plain: str) -> Iterator[tuple[int, int, int, int]]:
    """Start, end, cells and cells without the spaces at the end of what is not broken."""
    start = size = ink = 0
    before = ""
    last_cells = 0
    for begin, end, cells in _clusters(plain):
        first = plain[begin]
        breaks = before == " " and first != " "
        if 2 in (cells, last_cells) and before and first != " " and first not in _NOT_FIRST:
            breaks = True
        if breaks:
            yield start, begin, size, ink
            start, size, ink = begin, 0, 0
        size += cells
        if first != " ":
            ink = size
        before, last_cells = plain[end - 1], cells
    if start < len(plain):
        yield start, len(plain), size, ink


def _clusters(plain: str) -> Iterator[tuple[int, int, int]]:
    """Start, end and cells of what is drawn together; the two letters of a flag are."""
    if plain.isascii():
        yield from ((index, index + 1, 1) for index in range(len(plain)))
        return
    held: tuple[int, int, int] | None = None
    for start, end, cells in split_graphemes(plain)[0]:
        letter = _FLAG.match(plain, start) is not None
        if held is not None:
            joined = (held[0], end, held[2] + cells) if letter else None
            if joined is None:
                yield held
            held = None
            if joined is not None:
                yield joined
                continue
        if letter:
            held = (start, end, cells)
        else:
            yield start, end, cells
    if held is not None:
        yield held


def fit(natural: Sequence[int], room: int) -> list[int]:
    """Widths of columns that share `room` cells: the widest give way first, none falls below 1."""
    widths = [max(1, one) for one in natural]
    while sum(widths) > room:
        widest = max(widths)
        if widest == 1:
            break
        others = [one for one in widths if one < widest]
        count = len(widths) - len(others)
        over = sum(widths) - room
        lower = max(max(others, default=1), widest - max(1, over // count))
        for index, one in enumerate(widths):
            if one == widest and sum(widths) > room:
                widths[index] = lower
    return widths


def row(cells: Sequence[Text], widths: Sequence[int], justify: Sequence[Justify], gap: Text) -> list[Text]:
    """One row of a table as lines: each cell wrapped to its column."""
    wrapped = [wrap(cell, max(2, width)) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for parts in zip_longest(*wrapped):
        line = Text()
        for index, (part, width) in enumerate(zip(parts, widths, strict=True)):
            if index:
                line.append_text(gap)
            line.append_text(_aligned(part or Text(), width, justify[index]))
        line.rstrip()
        lines.append(line)
    return lines


def _aligned(text: Text, width: int, justify: Justify) -> Text:
    free = max(0, width - text.cell_len)
    left = {"left": 0, "right": free, "center": free // 2}[justify]
    return Text.assemble(" " * left, text, " " * (free - left))


def table(rows: Sequence[Sequence[str]], width: int) -> Text:
    """Plain columns under a header, all but the first to the right; the last ones are left out if need be."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    while len(widths) > 1 and sum(widths) + 2 * (len(widths) - 1) > width:
        widths.pop()
    justify: list[Justify] = ["right"] * len(widths)
    justify[0] = "left"
    lines = []
    for index, cells in enumerate(rows):
        style = theme.STRONG if index == 0 else theme.NONE
        texts = [Text(cell, style=style) for cell in cells[: len(widths)]]
        lines += row(texts, widths, justify, Text("  "))
    return Text("\n").join(lines)


def box(title: str, lines: Sequence[Text], width: int, style: Style = theme.RULE) -> Text:
    """A frame as wide as its content, at most `width`, with a title in its upper edge."""
    inside = min(width - 4, max([cell_len(title) + 2, *(line.cell_len for line in lines)]))
    wrapped = [piece for line in lines for piece in wrap(line, inside)]
    top = Text.assemble(
        ("╭─ ", style), (title, theme.STRONG), (f" {'─' * (inside - cell_len(title) - 1)}╮", style)
    )
    rows = [
        Text.assemble(("│ ", style), line, " " * (inside - line.cell_len), (" │", style)) for line in wrapped
    ]
    return Text("\n").join([top, *rows, Text(f"╰{'─' * (inside + 2)}╯", style=style)])
