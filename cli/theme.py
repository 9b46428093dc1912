"""Colours and emphasis by meaning, and the one way in which styled text becomes terminal codes.

Only the terminal's own sixteen colours, whose owner has chosen them to be readable, and of them none that
vanishes on a light or on a dark background. Every renderer of the chat takes its styles from here.
"""

from __future__ import annotations

from itertools import pairwise

from rich.color import ColorSystem
from rich.style import Style
from rich.syntax import ANSISyntaxTheme
from rich.text import Text

NONE = Style.null()
DIM = Style(dim=True)
STRONG = Style(bold=True)
GOOD = Style(bold=True, color="green")
VALUE = Style(color="cyan")
WARNING = Style(bold=True, color="magenta")  # yellow is not readable on white
ERROR = Style(bold=True, color="red")

HEADINGS = (Style(bold=True, underline=True), Style(bold=True), Style(bold=True, italic=True))
EMPHASIS = Style(italic=True)
STRIKE = Style(strike=True)
CODE = Style(color="cyan")
LINK = Style(underline=True)
URL = Style(dim=True)
BULLET = Style(color="magenta")
QUOTE = Style(dim=True)
RULE = Style(dim=True)

CODE_THEME = ANSISyntaxTheme(
    {
        ("Comment",): Style(dim=True, italic=True),
        ("Comment", "Preproc"): Style(color="magenta"),
        ("Keyword",): Style(color="magenta"),
        ("Keyword", "Type"): Style(color="cyan"),
        ("Operator", "Word"): Style(color="magenta"),
        ("Name", "Builtin"): Style(color="cyan"),
        ("Name", "Class"): Style(bold=True, color="blue"),
        ("Name", "Decorator"): Style(color="blue"),
        ("Name", "Exception"): Style(color="cyan"),
        ("Name", "Function"): Style(color="blue"),
        ("Name", "Namespace"): Style(color="blue"),
        ("Name", "Tag"): Style(color="magenta"),
        ("Name", "Attribute"): Style(color="cyan"),
        ("Literal", "Number"): Style(color="cyan"),
        ("Literal", "String"): Style(color="green"),
        ("Generic", "Deleted"): Style(color="red"),
        ("Generic", "Inserted"): Style(color="green"),
        ("Generic", "Heading"): Style(bold=True),
        ("Generic", "Subheading"): Style(bold=True),
    }
)


def ansi(text: Text) -> str:
    """Text with terminal codes of the sixteen colours, each span closed; the text itself is not changed."""
    plain = text.plain
    whole = text.style if isinstance(text.style, Style) else NONE
    spans = [(span.start, span.end, span.style) for span in text.spans if isinstance(span.style, Style)]
    borders = {0, len(plain), *(start for start, _, _ in spans), *(end for _, end, _ in spans)}
    parts = []
    for start, end in pairwise(sorted(border for border in borders if 0 <= border <= len(plain))):
        over = [style for first, last, style in spans if first <= start and end <= last]
        style = Style.combine([whole, *over])
        parts.append(style.render(plain[start:end], color_system=ColorSystem.STANDARD))
    return "".join(parts)
