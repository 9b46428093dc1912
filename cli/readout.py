"""Numbers of a chat -> styled text: pure functions, each line at most as wide as asked for.

`.plain` of what they return is the same without colours, for terminals and pipes that want none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from rich.cells import cell_len
from rich.filesize import decimal
from rich.style import Style
from rich.text import Text

from dflash_mlx.types import Method, Stats

from . import grid, theme

UNKNOWN = "…"
WARN_AT, WARN_AGAIN_AT = 0.80, 0.95
_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", ".:-=+*#@"
_METHODS: dict[Method, str] = {"dflash2": "DFlash 2", "dflash": "DFlash", "plain": "plain decoding"}


# ---- the line under a reply ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Readout:
    """What is measured so far of one reply; None is not known yet.

    Attributes:
        method: "plain" has no ratio and no acceptance.
        tokens_per_second: Of this reply, all its steps.
        plain_tokens_per_second: Of pipelined plain steps at this context length.
        acceptance_length: τ, bonus token included.
        width: Rows of the last verify pass.
        first_token_seconds: From the prompt to the first token.
    """

    method: Method
    tokens_per_second: float | None = None
    plain_tokens_per_second: float | None = None
    acceptance_length: float | None = None
    width: int | Literal["auto"] | None = None
    first_token_seconds: float | None = None

    @classmethod
    def of(cls, stats: Stats) -> Self:
        """After a reply."""
        return cls(
            stats.method,
            stats.tokens_per_second or None,
            stats.plain_tokens_per_second,
            stats.acceptance_length,
            stats.width,
            stats.first_token_seconds,
        )

    @property
    def ratio(self) -> float | None:
        """How many times as fast as plain decoding, where both were measured."""
        if self.method == "plain" or not self.tokens_per_second or not self.plain_tokens_per_second:
            return None
        return self.tokens_per_second / self.plain_tokens_per_second


def readout(state: Readout, width: int) -> Text:
    """One line, or two where it does not fit; what matters least is left out then.

    Example:
        `DFlash 78.4 tok/s   plain 26.3 tok/s   2.98x   τ 4.8   width 5   first token 0.31 s`
    """
    fields = _fields(state)
    for gap in ("   ", "  "):
        line = Text(gap).join(fields)
        if line.cell_len <= width:
            return line
    short = [*fields[:-1], _short(fields[-1])]
    for count in range(len(short), 0, -1):
        lines = _filled(short[:count], width)
        if len(lines) <= 2:
            break
    return Text("\n").join(line[:width] if line.cell_len > width else line for line in lines)


def readout_text(state: Readout) -> str:
    """The whole line without styles.

    Example:
        >>> readout_text(Readout("dflash2", 78.4, 26.3, 4.81, 5, 0.31))
        'DFlash 78.4 tok/s   plain 26.3 tok/s   2.98x   τ 4.8   width 5   first token 0.31 s'
    """
    return "   ".join(field.plain for field in _fields(state))


def _fields(state: Readout) -> list[Text]:
    plain_only = state.method == "plain"
    name = "plain" if plain_only else "DFlash"
    fields = [_rate(name, state.tokens_per_second, theme.VALUE if plain_only else theme.GOOD)]
    if not plain_only:
        fields.append(_rate("plain", state.plain_tokens_per_second, theme.VALUE))
    if state.ratio is not None:
        fields.append(Text(f"{state.ratio:.2f}x", style=theme.GOOD if state.ratio >= 1 else theme.WARNING))
    if state.acceptance_length is not None:
        fields.append(_labelled("τ", f"{state.acceptance_length:.1f}"))
    if state.width is not None and not plain_only:
        fields.append(_labelled("width", str(state.width)))
    if state.first_token_seconds is not None:
        fields.append(_labelled("first token", f"{state.first_token_seconds:.2f} s"))
    return fields


def _rate(name: str, value: float | None, style: Style) -> Text:
    if not value:
        return _labelled(name, UNKNOWN)
    return Text.assemble((name, theme.DIM), " ", (f"{value:.1f} tok/s", style))


def _labelled(name: str, value: str) -> Text:
    return Text.assemble((name, theme.DIM), " ", value)


def _short(field: Text) -> Text:
    if field.plain.startswith("first token "):
        return _labelled("first", field.plain.removeprefix("first token "))
    return field


def _filled(fields: Sequence[Text], width: int) -> list[Text]:
    lines: list[Text] = []
    for field in fields:
        if lines and lines[-1].cell_len + 2 + field.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "  ", field)
        else:
            lines.append(field)
    return lines


# ---- after a reply ---------------------------------------------------------------------------------------


def acceptance_bars(stats: Stats, width: int, *, blocks: bool = True) -> Text:
    """How often the drafted token at each position was kept, with all before it; empty without a verify pass.

    Args:
        stats: Of one reply.
        width: Columns.
        blocks: False where the encoding has no block characters, see `shows`.

    Example:
        `kept by position   1 █ 92%   2 ▆ 78%   3 ▅ 61%   4 ▃ 40%`
    """
    shares = acceptance_shares(stats)
    if not shares:
        return Text()
    levels = _BLOCKS if blocks else _ASCII
    bars = [levels[min(len(levels) - 1, int(share * len(levels)))] for share in shares]
    head = "kept by position"
    each = [
        Text.assemble((str(place), theme.DIM), " ", (bar, theme.GOOD), f" {share:.0%}")
        for place, (bar, share) in enumerate(zip(bars, shares, strict=True), 1)
    ]
    for gap in ("   ", "  "):
        line = Text(gap).join([Text(head, style=theme.DIM), *each])
        if line.cell_len <= width:
            return line
    line = Text.assemble((head, theme.DIM), "  ", ("".join(bars), theme.GOOD))
    ends = f"  {shares[0]:.0%} to {shares[-1]:.0%}"
    return line.append(ends) if line.cell_len + len(ends) <= width else line


def acceptance_shares(stats: Stats) -> list[float]:
    """For position 1, 2, ...: the share of verify passes that kept at least so many drafted tokens."""
    histogram = stats.accepted_histogram
    cycles = sum(histogram)
    return [sum(histogram[place:]) / cycles for place in range(1, len(histogram))] if cycles else []


def shows(encoding: str | None, text: str = _BLOCKS) -> bool:
    """True if an encoding has these characters."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def reuse_line(reused: int, prompt_tokens: int) -> Text:
    """Example: `reused 1,204 of 1,260 prompt tokens`."""
    return Text(f"reused {reused:,} of {prompt_tokens:,} prompt tokens", style=theme.DIM)


def context_warning(used: int, limit: int) -> Text | None:
    """What to say of a context that fills up; None while there is room.

    Args:
        used: Tokens of the conversation.
        limit: Most of them.
    """
    if used < WARN_AT * limit:
        return None
    numbers = f"{used:,} of {limit:,} tokens"
    if used >= limit:
        full = f"the context window is full: {numbers}; `/reset` begins a new conversation"
        return Text(full, style=theme.ERROR)
    warning = f"{int(100 * used / limit)}% of the context window is used: {numbers}"
    if used < WARN_AGAIN_AT * limit:
        return Text(warning, style=theme.WARNING)
    return Text(f"{warning}; `/reset` makes room", style=theme.ERROR)


# ---- the session -----------------------------------------------------------------------------------------


def session_table(replies: Sequence[Stats], width: int) -> Text:
    """A row per reply and, for several, one for all; columns that do not fit are left out, the last first."""
    if not replies:
        return Text("no reply yet", style=theme.DIM)
    rows = [["reply", "tokens", "tok/s", "plain", "ratio", "τ", "width", "first", "prompt", "reused"]]
    rows += [_row(str(number), stats) for number, stats in enumerate(replies, 1)]
    if len(replies) > 1:
        rows.append(_total(replies))
    return grid.table(rows, width)


def _row(name: str, stats: Stats) -> list[str]:
    state = Readout.of(stats)
    return [
        name,
        f"{stats.generated_tokens:,}",
        _number(state.tokens_per_second, ".1f"),
        _number(state.plain_tokens_per_second, ".1f"),
        _number(state.ratio, ".2f", "x"),
        _number(state.acceptance_length, ".2f"),
        str(stats.width),
        f"{stats.first_token_seconds:.2f} s",
        f"{stats.prompt_tokens:,}",
        f"{stats.reused_tokens:,}",
    ]


def _total(replies: Sequence[Stats]) -> list[str]:
    """Rates of all tokens in all the time; no mean of ratios that were measured at other lengths."""
    decoded = sum(max(0, stats.generated_tokens - 1) for stats in replies)
    seconds = sum(stats.decode_seconds for stats in replies)
    cycles = sum(stats.cycles for stats in replies)
    committed = sum(
        count * (kept + 1) for stats in replies for kept, count in enumerate(stats.accepted_histogram)
    )
    return [
        "all",
        f"{sum(stats.generated_tokens for stats in replies):,}",
        _number(decoded / seconds if seconds else None, ".1f"),
        "",
        "",
        _number(committed / cycles if cycles else None, ".2f"),
        "",
        "",
        f"{sum(stats.prompt_tokens for stats in replies):,}",
        f"{sum(stats.reused_tokens for stats in replies):,}",
    ]


def _number(value: float | None, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if value else "-"


# ---- the beginning ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opening:
    """What runs. None, and it is left out.

    Attributes:
        target: Its name.
        target_bits: In words: "4-bit", "float32".
        drafter: None for plain decoding.
        drafter_commit: Of a repository.
        drafter_bits: As of the target.
        method: As in the statistics.
        width: Rows of a verify pass, or "auto".
        memory_bytes: Of the loaded weights.
        device: What computes, in words.
        context_length: Most tokens of a conversation.
    """

    target: str
    method: Method
    target_bits: str | None = None
    drafter: str | None = None
    drafter_commit: str | None = None
    drafter_bits: str | None = None
    width: int | Literal["auto"] | None = None
    memory_bytes: int | None = None
    device: str | None = None
    context_length: int | None = None


def opening_panel(opening: Opening, width: int) -> Text:
    """One box that says what runs."""
    commit = opening.drafter_commit[:7] if opening.drafter_commit else None
    drafter = [opening.drafter, commit, opening.drafter_bits] if opening.drafter else ["none"]
    rows = [
        ("target", [opening.target, opening.target_bits]),
        ("drafter", drafter),
        ("method", [_METHODS[opening.method], None if opening.width is None else f"width {opening.width}"]),
        ("memory", [None if opening.memory_bytes is None else decimal(opening.memory_bytes)]),
        ("device", [opening.device]),
        ("context", [None if opening.context_length is None else f"{opening.context_length:,} tokens"]),
    ]
    said = [(name, "   ".join(part for part in parts if part)) for name, parts in rows]
    room = max(8, min(width - 13, max(cell_len(value) for _, value in said)))
    lines: list[Text] = []
    for name, value in said:
        if value:
            cells = Text(name, style=theme.DIM), Text(value)
            lines += grid.row(cells, (7, room), ("left", "left"), Text("  "))
    return grid.box("dflash-mlx chat", lines, width)


def first_run_help(width: int) -> Text:
    """Five lines, cut rather than wrapped."""
    lines = (
        ("Enter", "sends; Alt-Enter: a new line"),
        ("Ctrl-C", "stops a reply, keeps its text"),
        ("Ctrl-D", "or /exit leaves"),
        ("/help", "lists commands; Tab completes"),
        ("plain", "speed without DFlash, measured"),
    )
    names = max(cell_len(name) for name, _ in lines)
    texts = [Text.assemble((f"{name:{names}}", theme.VALUE), f"  {said}") for name, said in lines]
    for text in texts:
        text.truncate(width, overflow="ellipsis")
    return Text("\n").join(texts)


def thought_line(seconds: float, tokens: int) -> Text:
    """What a folded reasoning leaves. Example: `thought for 3.2 s, 214 tokens`."""
    return Text(f"thought for {seconds:.1f} s, {tokens:,} tokens", style=theme.DIM)
