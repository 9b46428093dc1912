"""Emphasis, code, links: markdown inside a paragraph -> styled text, and where a paragraph can be cut.

Knows no lines and no width.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from markdown_it import MarkdownIt
from rich.style import Style
from rich.text import Text

from . import theme

if TYPE_CHECKING:
    from markdown_it.token import Token

# Line separators become line breaks. Control characters are shown, not obeyed: no model moves the cursor or
# sets a title. Those that turn the direction of all that follows are left out, and so is what has no width.
_REPLACED: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(0x20)}
_REPLACED |= {0x7F: "\u2421", 0x2028: "\n", 0x2029: "\n", 0x0D: None, 0xFEFF: None, 0x00AD: None}
_REPLACED |= dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000), 0xE000, 0xFFFE, 0xFFFF], "\ufffd")
_REPLACED |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
del _REPLACED[0x09], _REPLACED[0x0A]

_PARSER = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable("strikethrough")
_STYLES = {"strong": theme.STRONG, "em": theme.EMPHASIS, "s": theme.STRIKE, "link": theme.LINK}
_SPECIAL = re.compile(r"[*_~`\[\]<&\\]")
_BREAK = re.compile(r"<br ?/?>")
_PAIRED = re.compile(r"\[[^\[\]]*\]")
# What is left of a text, once all that is closed is taken out, and could open something.
_OPENER = re.compile(r"`|\[|\*+(?=[^\s*])|(?<![^\W_])_+(?=[^\s_])|~~+(?=[^\s~])")
_CLOSERS = ("**", "*", "`", "***", "~~", "_", "__", "`**")
_FORMULA = re.compile(r"\\(?=[()\[\]{},;:!%&#])")
_BACKSLASH = "\ue000"  # one that stays: `\(` and the like are LaTeX, not markdown
_GONE = "."  # stands for what was taken out


def clean(text: str) -> str:
    """Text without anything that a terminal would obey, the line break excepted."""
    return text.translate(_REPLACED)


def inline(source: str, style: Style = theme.NONE) -> Text:
    """A part of a paragraph in which everything is closed; what is not stays as it is written.

    Line breaks stay, as in a chat they are meant.
    """
    if not _SPECIAL.search(source):
        return Text(_tidy(source), style)
    text = Text(style=style)
    stack: list[Style] = []
    link: tuple[str, int] | None = None
    for token in _parsed(source):
        name = token.type.removesuffix("_open")
        if token.nesting == 1:
            stack.append(_STYLES.get(name, theme.NONE))
            if name == "link":
                link = (_href(token), len(text))
        elif token.nesting == -1:
            stack.pop()
            if link is not None and token.type == "link_close":
                _append_url(text, *link)
                link = None
        else:
            _append(text, token, Style.combine([theme.NONE, *stack]))
    return text


def settled(source: str) -> bool:
    """True if nothing that comes behind `source` and a space can change how it looks."""
    return not _SPECIAL.search(source) or _OPENER.search(_left(source)) is None


def guessed(source: str) -> str:
    """`source` with what it leaves open closed: how it will probably look."""
    source = re.sub(r"(?<!\S)[*_~`]+$", "", source)  # an opening mark, and nothing behind it yet
    if settled(source) or "[" in _left(source):
        return source
    trimmed = source.rstrip()
    return next((trimmed + closer for closer in _CLOSERS if settled(trimmed + closer)), source)


def _left(source: str) -> str:
    """The text outside of marks that are closed."""
    left = "".join(token.content if token.type == "text" else _GONE for token in _parsed(source))
    while _PAIRED.search(left):
        left = _PAIRED.sub(_GONE, left)
    return left


def _tidy(source: str) -> str:
    return re.sub(r" *\n *", "\n", source).replace("\t", " ")


@lru_cache(maxsize=512)
def _parsed(source: str) -> tuple[Token, ...]:
    return tuple(_PARSER.parseInline(_FORMULA.sub(_BACKSLASH, source))[0].children or ())


def _append(text: Text, token: Token, style: Style) -> None:
    if token.type in ("softbreak", "hardbreak"):
        text.append("\n")
    elif token.type == "code_inline":
        text.append(_said(token.content), style + theme.CODE)
    elif token.type == "image":
        text.append(_said(token.content) or "image", style + theme.LINK)
        _append_url(text, _said(str(token.attrs.get("src", ""))), len(text))
    else:
        text.append(_BREAK.sub("\n", _said(token.content)), style)


def _said(content: str) -> str:
    """An entity can stand for any character."""
    return clean(content.replace(_BACKSLASH, "\\")).replace("\t", " ")


def _href(token: Token) -> str:
    return _said(str(token.attrs.get("href", "")).replace(quote(_BACKSLASH), ""))


def _append_url(text: Text, url: str, start: int) -> None:
    """The address behind a link's text, if it is another one."""
    shown = text.plain[start:]
    if url and shown not in (url, url.removeprefix("mailto:")):
        text.append(f" ({url})", theme.URL)
