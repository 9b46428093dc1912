"""Markdown in pieces: the same lines in whatever pieces it comes, never too wide, nothing obeyed or lost."""

from __future__ import annotations

import re
import time
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.syntax import Syntax
from rich.text import Text

from dflash_mlx.cli import theme
from dflash_mlx.cli.highlight import Highlighter
from dflash_mlx.cli.inline import inline
from dflash_mlx.cli.leaves import MOST_CHUNK
from dflash_mlx.cli.markdown import MarkdownStream
from dflash_mlx.cli.theme import ansi

DATA = Path(__file__).parent / "data" / "chat"
REPLY = (DATA / "reply.md").read_text(encoding="utf-8")


def stream(pieces: list[str], width: int) -> list[Text]:
    markdown = MarkdownStream()
    lines: list[Text] = []
    for piece in pieces:
        lines += markdown.feed(piece, width)
    return lines + markdown.finish(width)


def shown(source: str, width: int = 80) -> list[str]:
    return [line.plain for line in stream([source], width)]


def styled(source: str, width: int = 80) -> str:
    return "\n".join(map(ansi, stream([source], width)))


# ---- what it looks like ----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_reply_at_this_width(width: int) -> None:
    expected = (DATA / f"reply-{width}.txt").read_text(encoding="utf-8")
    assert "\n".join(shown(REPLY, width)) + "\n" == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("**a** b", "\x1b[1ma\x1b[0m b"),
        ("*a*", "\x1b[3ma\x1b[0m"),
        ("`a *b*`", "\x1b[36ma *b*\x1b[0m"),
        ("~~a~~", "\x1b[9ma\x1b[0m"),
        ("# A", "\x1b[1;4mA\x1b[0m"),
        ("## A ##", "\x1b[1mA\x1b[0m"),
        ("[a](https://b.c)", "\x1b[4ma\x1b[0m\x1b[2m (https://b.c)\x1b[0m"),
        ("<https://b.c>", "\x1b[4mhttps://b.c\x1b[0m"),
        ("[https://b.c](https://b.c)", "\x1b[4mhttps://b.c\x1b[0m"),
        ("![a](b.png)", "\x1b[4ma\x1b[0m\x1b[2m (b.png)\x1b[0m"),
        ("5*3*2 and a_b_c and 2 * 3", "5\x1b[3m3\x1b[0m2 and a_b_c and 2 * 3"),
        ("**open", "**open"),
        (r"\*a\* &lt;", "*a* <"),
        ("<b>a</b>", "<b>a</b>"),
        ("`<br>`", "\x1b[36m<br>\x1b[0m"),
        (r"\(x\) \[ \frac{a}{b}\, \] `\(`", r"\(x\) \[ \frac{a}{b}\, \] " + "\x1b[36m\\(\x1b[0m"),
        (r"[a](https://b.c/\(d\))", "\x1b[4ma\x1b[0m\x1b[2m (https://b.c/(d))\x1b[0m"),
    ],
)
def test_marks_inside_of_text(source: str, expected: str) -> None:
    assert styled(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a\nb  \nc\\\nd", ["a", "b", "c", "d"]),
        ("a\n\n\n\nb", ["a", "", "b"]),
        ("a\n---\nb", ["a", "─" * 40, "b"]),
        ("- a\n- b\n  - c\n    - d\n- e", ["• a", "• b", "  • c", "    • d", "• e"]),
        ("1. a\n  - b\n  - c\n2. d", ["1. a", "   • b", "   • c", "2. d"]),
        ("- a\n    - b\n    - c", ["• a", "  • b", "  • c"]),
        ("9. a\n10. b", ["9. a", "10. b"]),
        ("In\n1984. It", ["In", "1984. It"]),
        ("- a\n\n  b\n\nc", ["• a", "", "  b", "", "c"]),
        ("-\n- a", ["•", "• a"]),
        ("- [ ] a\n- [x] b", ["☐ a", "☑ b"]),
        ("> a\n> b\n>\n> - c\n\nd", ["│ a", "│ b", "│", "│ • c", "", "d"]),
        ("> a\nb", ["│ a", "│ b"]),
        ("```py\na\n\n  b\n```\nc", ["── py", "a", "", "  b", "──", "", "c"]),
        ("````\n```\n````", ["── ".strip(), "```", "──"]),
        ("```\nopen", ["──", "open", "──"]),
        ("- a\n  ```\n  b\n  ```", ["• a", "  ──", "  b", "  ──"]),
        ("a\n\n    b\n\n      c\n\nd", ["a", "", "b", "", "  c", "", "d"]),
        ("a | b", ["a | b"]),
        ("| a | b |\nc", ["| a | b |", "c"]),
        ("a\n| b | c |\n|--|--:|\n| d |\n\ne", ["a", "", "b  │  c", "───┼───", "d  │", "", "e"]),
        ("| a |\n|---|\n| b | c |", ["a", "─────", "b | c"]),
        (r"| a \| b |" + "\n|---|", ["a | b", "─────"]),
        ("a<br>b", ["a", "b"]),
    ],
)
def test_blocks(source: str, expected: list[str]) -> None:
    assert shown(source) == expected


def test_a_table_that_is_too_narrow_becomes_a_list() -> None:
    source = "|aaaa|bbbb|cccc|dddd|eeee|\n|-|-|-|-|-|\n|1|2|3|4|5|\n"
    assert shown(source, 30) == ["aaaa: 1", "bbbb: 2", "cccc: 3", "dddd: 4", "eeee: 5", ""]


def test_the_tail_closes_what_is_open() -> None:
    markdown = MarkdownStream()
    assert markdown.feed("**bold and `co", 40) == []
    assert [ansi(line) for line in markdown.tail(40)] == ["\x1b[1mbold and \x1b[0m\x1b[1;36mco\x1b[0m"]
    assert [line.plain for line in markdown.finish(40)] == ["**bold and `co"]


# ---- wide characters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "width", "expected"),
    [
        ("日本語の文章", 5, ["日本", "語の", "文章"]),
        ("ab日本", 5, ["ab日", "本"]),
        ("日本語。", 6, ["日本", "語。"]),
        ("👩‍👩‍👧👩‍👩‍👧👩‍👩‍👧", 5, ["👩‍👩‍👧👩‍👩‍👧", "👩‍👩‍👧"]),
        ("🇩🇪🇫🇷🇮🇹", 5, ["🇩🇪🇫🇷", "🇮🇹"]),
        ("❤️❤️❤️", 5, ["❤️❤️", "❤️"]),
        ("e\u0301" * 6, 5, ["e\u0301" * 5, "e\u0301"]),
    ],
)
def test_nothing_is_broken_inside_of_what_is_drawn_together(
    source: str, width: int, expected: list[str]
) -> None:
    assert shown(source, width) == expected
    assert [line.plain for line in stream(list(source), width)] == expected


# ---- as it comes -----------------------------------------------------------------------------------------


def test_the_lines_of_a_long_paragraph_go_out_one_by_one() -> None:
    markdown = MarkdownStream()
    finished = 0
    for number in range(400):
        finished += len(markdown.feed(f"word{number} ", 40))
        assert len(markdown.tail(40)) <= 5
    assert finished > 70


def test_an_open_mark_does_not_hold_a_paragraph_for_ever() -> None:
    markdown = MarkdownStream()
    markdown.feed("a *mark ", 80)
    for _ in range(200):
        markdown.feed("and words ", 80)
        assert len(markdown.tail(80)) <= 8


def test_every_line_of_code_goes_out_when_it_is_complete() -> None:
    markdown = MarkdownStream()
    assert len(markdown.feed("```python\n", 80)) == 1
    for number in range(100):
        assert [line.plain for line in markdown.feed(f"x = {number}\n", 80)] == [f"x = {number}"]
        assert markdown.tail(80) == []


def test_a_long_table_flows_when_its_columns_are_fixed() -> None:
    markdown = MarkdownStream()
    markdown.feed("| a | b |\n|---|---|\n", 40)
    assert [line.plain for line in markdown.tail(40)] == ["a  │ b", "───┼───"]
    counts = [len(markdown.feed(f"| {number} | x |\n", 40)) for number in range(40)]
    assert sum(counts) == 42
    assert counts[-10:] == [1] * 10
    assert markdown.finish(40) == []


def test_code_keeps_its_colours_across_lines() -> None:
    lines = ["x = 1"] * 30 + ['y = """', "text # not a comment", '"""', "z = 2  # a comment"]
    source = "```python\n" + "\n".join(lines) + "\n```\n"
    coloured = styled(source).split("\n")
    assert coloured[32] == "\x1b[32mtext # not a comment\x1b[0m"
    assert coloured[34] == "z = \x1b[36m2\x1b[0m  \x1b[2;3m# a comment\x1b[0m"


PAGE = "\n".join(
    [
        "<html>",
        "<script>",
        *(f"  const x{n} = 'a'; // {n}" for n in range(40)),
        "</script>",
        "<p class='b'>a</p>",
    ]
)


@pytest.mark.parametrize(
    ("language", "code"), [("python", Path(__file__).read_text("utf-8")), ("html", PAGE)]
)
def test_colours_are_those_of_reading_the_whole_block(language: str, code: str) -> None:
    whole = Syntax("", language, theme=theme.CODE_THEME).highlight(code).split("\n")
    highlighter = Highlighter(language, theme.CODE_THEME)
    for number, line in enumerate(code.split("\n")[:-1]):
        assert ink(highlighter.line(line)) == ink(whole[number]), number


def ink(line: Text) -> list[tuple[str, str]]:
    return [(character, style) for character, style in cells_of(line) if character != " "]


def test_another_width_changes_only_what_comes() -> None:
    markdown = MarkdownStream()
    source = "word " * 100
    lines = markdown.feed(source, 80)
    narrow = markdown.feed(source, 40) + markdown.finish(40)
    assert max(line.cell_len for line in lines) > 40
    assert max(line.cell_len for line in narrow) <= 40
    assert " ".join(line.plain for line in lines + narrow).split() == (source * 2).split()


# ---- whatever comes --------------------------------------------------------------------------------------

MARKS = st.sampled_from(
    [
        "**",
        "*",
        "_",
        "`",
        "``",
        "~~",
        "[",
        "](",
        ")",
        "![",
        "<",
        ">",
        "> ",
        "- ",
        "* ",
        "1. ",
        "2) ",
        "# ",
        "### ",
    ]
    + [
        "```",
        "```py\n",
        "~~~\n",
        "| ",
        " | ",
        "|--|--|\n",
        "---\n",
        "***",
        "\n",
        "\n\n",
        "  ",
        "    ",
        "\t",
        "\\",
    ]
    + ["&amp;", "&#27;", "<br>", "- [ ] ", "https://a.b/c", "\r\n", "|a|b|\n|-|-|\n"]
)
WORDS = st.sampled_from(
    ["word", "a", "Donaudampfschifffahrt", "日本語", "。", "👩‍👩‍👧", "🇩🇪", "e\u0301", "❤️", "한국어", "x" * 60]
)
ODD = st.text(max_size=8)
SOURCES = st.lists(st.one_of(MARKS, WORDS, st.just(" "), ODD), max_size=60).map("".join)
LONG = st.lists(st.one_of(WORDS, st.just(" "), st.just(" "), MARKS), min_size=80, max_size=300).map("".join)


def pieces_of(source: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(source), *(cut % (len(source) + 1) for cut in cuts)})
    return [source[start:end] for start, end in pairwise(places)]


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(SOURCES, LONG), st.lists(st.integers(0, 10_000), max_size=30), st.integers(8, 200))
def test_the_same_lines_in_whatever_pieces(source: str, cuts: list[int], width: int) -> None:
    markdown = MarkdownStream()
    lines: list[Text] = []
    for piece in pieces_of(source, cuts):
        lines += markdown.feed(piece, width)
        check(markdown.tail(width), width)
    lines += markdown.finish(width)
    check(lines, width)
    assert [ansi(line) for line in lines] == [ansi(line) for line in stream([source], width)]


INLINE = st.sampled_from(
    ["**", "*", "_", "`", "``", "~~", "[", "](u)", "]", "![", "<", ">", "\\", "&lt;", "<http://a.b>"]
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.one_of(INLINE, WORDS, st.sampled_from([" ", ", ", "a ", "5", "\n"])), max_size=70).map(
        "".join
    )
)
def test_a_paragraph_looks_the_same_whether_it_was_cut_or_not(source: str) -> None:
    """`inline` gets it whole."""
    source = "word " + re.sub(r"\n(?![a-z5])", "", source)[: MOST_CHUNK - 5].rstrip()

    # As long as this there is no need to give up on a mark.
    assert [cells_of(line) for line in stream([source], 10_000)] == [
        cells_of(line) for line in inline(source).split("\n", allow_blank=True)
    ]


def cells_of(line: Text) -> list[tuple[str, str]]:
    """Characters and how each looks."""
    styles = [theme.NONE] * len(line.plain)
    for span in line.spans:
        assert isinstance(span.style, theme.Style)
        for place in range(span.start, min(span.end, len(styles))):
            styles[place] += span.style
    looks = [(character, str(style)) for character, style in zip(line.plain, styles, strict=True)]
    while looks and looks[-1][0] == " ":
        looks.pop()
    return looks


def check(lines: list[Text], width: int) -> None:
    for line in lines:
        assert line.cell_len <= width
        assert not any(
            unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in line.plain
        )
        assert not re.search("[\u202a-\u202e\u2066-\u2069]", line.plain)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@example(["alpha", "alpha", "| ", "alpha", "```\n", "|-|-|\n"], 20)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["alpha", "beta", "gamma"]),
            st.sampled_from(
                [
                    "**",
                    "*",
                    "_",
                    "`",
                    "~~",
                    "> ",
                    "- ",
                    "1. ",
                    "# ",
                    "```\n",
                    "| ",
                    "|-|-|\n",
                    "\n",
                    " ",
                    "    ",
                ]
            ),
        ),
        max_size=80,
    ),
    st.integers(20, 100),
)
def test_no_word_is_lost(parts: list[str], width: int) -> None:
    source = "".join(parts)
    letters = re.findall("[a-z]", "".join(shown(source, width)))
    # In any order: the lines of two cells that wrap stand beside each other.
    assert sorted(letters) == sorted(re.findall("[a-z]", source))


@pytest.mark.parametrize(
    "attack",
    [
        "\x1b[2J",
        "\x1b]0;title\x07",
        "\x9b2J",
        "a\bb",
        "\x00",
        "\x7f",
        "\x1b[A\r\x1b[K",
        "&#27;[2J",
        "&#x9b;2J",
        "\u202eabc",
    ],
)
@pytest.mark.parametrize(
    "around", ["{}", "`{}`", "```\n{}\n```", "[{}](https://a.b)", "[a](<{}>)", "|{}|\n|-|\n|{}|", "```{}\n"]
)
def test_a_model_cannot_control_the_terminal(attack: str, around: str) -> None:
    check(stream([around.replace("{}", attack)], 80), 80)


def test_time_is_linear_in_the_length() -> None:
    def seconds(source: str) -> float:
        tokens = re.findall(r"\s*\S{1,5}", source)
        markdown = MarkdownStream()
        begin = time.process_time()
        for token in tokens:
            markdown.feed(token, 80)
        markdown.finish(80)
        return time.process_time() - begin

    seconds(REPLY)
    once = min(seconds(REPLY * 2) for _ in range(3))
    assert min(seconds(REPLY * 12) for _ in range(2)) < 6 * once * 2


@pytest.mark.parametrize(
    "source", ["[" * 4000, "[" * 2000 + "]" * 2000, "_a" * 2000, "- " * 2000, "&" * 4000]
)
def test_a_model_that_repeats_itself_does_not_hold_up_the_chat(source: str) -> None:
    markdown = MarkdownStream()
    begin = time.process_time()
    for start in range(0, len(source), 4):
        markdown.feed(source[start : start + 4], 80)
        if start % 64 == 0:
            markdown.tail(80)
    markdown.finish(80)
    assert time.process_time() - begin < 3
