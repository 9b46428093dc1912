"""What chat says in numbers: snapshots at 40, 80 and 160 columns, and what holds at every width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_engine import STATS
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from dflash_mlx.cli import grid, theme
from dflash_mlx.cli.readout import (
    Opening,
    Readout,
    acceptance_bars,
    acceptance_shares,
    context_warning,
    first_run_help,
    opening_panel,
    readout,
    readout_text,
    reuse_line,
    session_table,
    shows,
    thought_line,
)
from dflash_mlx.types import Stats

FULL = Readout("dflash2", 78.4, 26.3, 4.81, 5, 0.31)
REPLY = replace(
    STATS,
    width=5,
    generated_tokens=213,
    cycles=50,
    accepted_histogram=(3, 5, 9, 20, 13),
    acceptance_length=3.70,
    tokens_per_second=78.4,
    decode_seconds=2.7,
    plain_tokens_per_second=26.3,
    prompt_tokens=1260,
    reused_tokens=1204,
)
OPENING = Opening(
    "mlx-community/Qwen3.8-27B-4bit",
    "dflash2",
    target_bits="4-bit",
    drafter="z-lab/Qwen3.8-27B-DFlash2",
    drafter_commit="abcdef0123456789",
    drafter_bits="4-bit",
    width=5,
    memory_bytes=17_300_000_000,
    device="Apple M4 Max",
    context_length=262_144,
)


def shown(text: Text) -> list[str]:
    return text.plain.split("\n")


# ---- the line under a reply ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (40, ["DFlash 78.4 tok/s  plain 26.3 tok/s", "2.98x  τ 4.8  width 5  first 0.31 s"]),
        (80, ["DFlash 78.4 tok/s  plain 26.3 tok/s  2.98x  τ 4.8  width 5  first token 0.31 s"]),
        (160, ["DFlash 78.4 tok/s   plain 26.3 tok/s   2.98x   τ 4.8   width 5   first token 0.31 s"]),
        (30, ["DFlash 78.4 tok/s", "plain 26.3 tok/s  2.98x  τ 4.8"]),
        (12, ["DFlash 78.4 ", "plain 26.3 t"]),
    ],
)
def test_the_readout(width: int, expected: list[str]) -> None:
    assert shown(readout(FULL, width)) == expected


def test_what_is_not_known_yet() -> None:
    assert readout_text(Readout("dflash2")) == "DFlash …   plain …"
    assert readout_text(replace(FULL, plain_tokens_per_second=None)) == (
        "DFlash 78.4 tok/s   plain …   τ 4.8   width 5   first token 0.31 s"
    )


def test_plain_decoding_has_no_ratio() -> None:
    assert (
        readout_text(Readout("plain", 26.3, 26.1, None, 1, 0.31)) == "plain 26.3 tok/s   first token 0.31 s"
    )


def test_a_loss_is_not_dressed_up() -> None:
    slow = replace(FULL, tokens_per_second=20.0)
    assert "0.76x" in readout_text(slow)
    assert theme.ansi(Text("0.76x", style=theme.WARNING)) in theme.ansi(readout(slow, 80))
    assert theme.ansi(Text("2.98x", style=theme.GOOD)) in theme.ansi(readout(FULL, 80))


def test_after_a_reply_the_statistics_say_it() -> None:
    assert readout_text(Readout.of(REPLY)) == (
        "DFlash 78.4 tok/s   plain 26.3 tok/s   2.98x   τ 3.7   width 5   first token 0.12 s"
    )
    assert readout_text(Readout.of(replace(REPLY, tokens_per_second=0.0))).startswith("DFlash …")


# ---- after a reply ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (40, "kept by position  █▇▆▃  94% to 26%"),
        (80, "kept by position   1 █ 94%   2 ▇ 84%   3 ▆ 66%   4 ▃ 26%"),
        (160, "kept by position   1 █ 94%   2 ▇ 84%   3 ▆ 66%   4 ▃ 26%"),
    ],
)
def test_the_bars(width: int, expected: str) -> None:
    assert acceptance_bars(REPLY, width).plain == expected


def test_bars_without_block_characters() -> None:
    bars = acceptance_bars(REPLY, 80, blocks=False).plain
    assert bars == "kept by position   1 @ 94%   2 # 84%   3 * 66%   4 - 26%"
    assert bars.isascii()


def test_no_bars_without_a_verify_pass() -> None:
    assert acceptance_bars(replace(REPLY, accepted_histogram=(0,), cycles=0), 80).plain == ""


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=16))
def test_shares_are_those_of_the_histogram(histogram: list[int]) -> None:
    shares = acceptance_shares(replace(REPLY, accepted_histogram=tuple(histogram)))
    if not sum(histogram):
        assert shares == []
        return
    assert len(shares) == len(histogram) - 1
    assert shares == sorted(shares, reverse=True)
    # τ is 1 + the sum of them.
    committed = sum(count * (kept + 1) for kept, count in enumerate(histogram))
    assert 1 + sum(shares) == pytest.approx(committed / sum(histogram))


def test_what_an_encoding_shows() -> None:
    assert shows("utf-8")
    assert not shows("latin-1")
    assert not shows(None)
    assert not shows("no such encoding")


def test_reuse() -> None:
    assert reuse_line(1204, 1260).plain == "reused 1,204 of 1,260 prompt tokens"


def test_thinking() -> None:
    assert thought_line(3.21, 1214).plain == "thought for 3.2 s, 1,214 tokens"


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (6553, None),
        (6554, "80% of the context window is used: 6,554 of 8,192 tokens"),
        (7783, "95% of the context window is used: 7,783 of 8,192 tokens; `/reset` makes room"),
        (8192, "the context window is full: 8,192 of 8,192 tokens; `/reset` begins a new conversation"),
    ],
)
def test_a_context_that_fills_up(used: int, expected: str | None) -> None:
    warning = context_warning(used, 8192)
    assert (warning and warning.plain) == expected


# ---- the session -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            40,
            [
                "reply  tokens  tok/s  plain  ratio     τ",
                "1         213   78.4   26.3  2.98x  3.70",
                "2           5   80.0      -      -     -",
                "all       218   78.5                3.70",
            ],
        ),
        (
            80,
            [
                "reply  tokens  tok/s  plain  ratio     τ  width   first  prompt  reused",
                "1         213   78.4   26.3  2.98x  3.70      5  0.12 s   1,260   1,204",
                "2           5   80.0      -      -     -      1  0.12 s       3       0",
                "all       218   78.5                3.70                  1,263   1,204",
            ],
        ),
    ],
)
def test_the_table(width: int, expected: list[str]) -> None:
    plain = replace(STATS, method="plain", width=1, acceptance_length=None, accepted_histogram=(0,), cycles=0)
    assert shown(session_table([REPLY, plain], width)) == expected
    assert session_table([REPLY, plain], 160).plain == session_table([REPLY, plain], 80).plain


def test_a_table_of_nothing() -> None:
    assert session_table([], 80).plain == "no reply yet"
    assert len(shown(session_table([REPLY], 80))) == 2


# ---- the beginning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            40,
            [
                "╭─ dflash-mlx chat ────────────────────╮",
                "│ target   mlx-community/Qwen3.8-27B-4 │",
                "│          bit   4-bit                 │",
                "│ drafter  z-lab/Qwen3.8-27B-DFlash2   │",
                "│          abcdef0   4-bit             │",
                "│ method   DFlash 2   width 5          │",
                "│ memory   17.3 GB                     │",
                "│ device   Apple M4 Max                │",
                "│ context  262,144 tokens              │",
                "╰──────────────────────────────────────╯",
            ],
        ),
        (
            80,
            [
                "╭─ dflash-mlx chat ────────────────────────────────────╮",
                "│ target   mlx-community/Qwen3.8-27B-4bit   4-bit      │",
                "│ drafter  z-lab/Qwen3.8-27B-DFlash2   abcdef0   4-bit │",
                "│ method   DFlash 2   width 5                          │",
                "│ memory   17.3 GB                                     │",
                "│ device   Apple M4 Max                                │",
                "│ context  262,144 tokens                              │",
                "╰──────────────────────────────────────────────────────╯",
            ],
        ),
    ],
)
def test_the_panel(width: int, expected: list[str]) -> None:
    assert shown(opening_panel(OPENING, width)) == expected


def test_the_panel_leaves_out_what_nobody_knows() -> None:
    assert shown(opening_panel(Opening("toy", "plain"), 160)) == [
        "╭─ dflash-mlx chat ───────╮",
        "│ target   toy            │",
        "│ drafter  none           │",
        "│ method   plain decoding │",
        "╰─────────────────────────╯",
    ]


def test_the_help_of_a_first_run() -> None:
    assert shown(first_run_help(40)) == [
        "Enter   sends; Alt-Enter: a new line",
        "Ctrl-C  stops a reply, keeps its text",
        "Ctrl-D  or /exit leaves",
        "/help   lists commands; Tab completes",
        "plain   speed without DFlash, measured",
    ]
    assert first_run_help(160).plain == first_run_help(40).plain


# ---- at every width --------------------------------------------------------------------------------------

RATES = st.one_of(st.none(), st.floats(0, 99_999))
READOUTS = st.builds(
    Readout,
    st.sampled_from(["dflash2", "dflash", "plain"]),
    RATES,
    RATES,
    st.one_of(st.none(), st.floats(1, 16)),
    st.one_of(st.none(), st.integers(1, 16), st.just("auto")),
    st.one_of(st.none(), st.floats(0, 1e4)),
)
HISTOGRAMS = st.lists(st.integers(0, 10**6), min_size=1, max_size=16).map(tuple)


@settings(deadline=None)
@given(READOUTS, HISTOGRAMS, st.integers(40, 200))
def test_nothing_is_too_wide(state: Readout, histogram: tuple[int, ...], width: int) -> None:
    lines = list(readout(state, width).split("\n"))
    assert len(lines) <= 2
    stats: Stats = replace(REPLY, accepted_histogram=histogram)
    opening = replace(OPENING, target="日本語/" * 30, drafter="x" * 100)
    texts = [
        acceptance_bars(stats, width),
        session_table([stats] * 12, width),
        opening_panel(opening, width),
        first_run_help(width),
    ]
    lines += [line for text in texts for line in text.split("\n", allow_blank=True)]
    assert max(line.cell_len for line in lines) <= width


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.integers(12, 300))
def test_columns_share_their_room(natural: list[int], room: int) -> None:
    widths = grid.fit(natural, room)
    assert sum(widths) <= max(room, len(natural))
    assert all(1 <= got <= max(1, wanted) for got, wanted in zip(widths, natural, strict=True))
    if sum(max(1, wanted) for wanted in natural) <= room:
        assert widths == [max(1, wanted) for wanted in natural]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=80), st.integers(2, 60))
def test_wrapped_text_is_the_text(text: str, width: int) -> None:
    lines = grid.broken(Text(text), width)
    assert "".join(line.plain for line in lines) == text
    assert all(line.cell_len <= width for line in grid.wrap(Text(text), width))


def test_styles_are_those_of_every_terminal() -> None:
    names = [style for style in vars(theme).values() if isinstance(style, theme.Style)]
    styles = [*names, *theme.HEADINGS, *theme.CODE_THEME.style_map.values()]
    colours = {style.color.name for style in styles if style.color}
    assert colours <= {"red", "green", "blue", "magenta", "cyan"}
    assert not any(style.bgcolor for style in styles)
