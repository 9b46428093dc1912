"""What a reply looks like on a terminal and in a pipe, painted from the script of a session."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyte
import pytest
from chat_fakes import ScriptedSession, chat_of

from dflash_mlx.cli import console
from dflash_mlx.cli.plain_front import PlainFront, PlainView
from dflash_mlx.cli.screen import Screen
from dflash_mlx.cli.terminal_front import TerminalFront, TerminalView

SCRIPT = ["Let me ", "think.\n" * 9, "So.", "</think>\n\n", "**Yes**, ", "`it` is.\n\n", "- one\n- two"]


@dataclass
class Emulator:
    """A terminal; `frames` is the text after each write."""

    columns: int = 60
    rows: int = 12
    raw: str = ""
    frames: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._screen = pyte.HistoryScreen(self.columns, self.rows, history=1000)
        self._stream = pyte.Stream(self._screen)

    def write(self, text: str) -> None:
        self.raw += text
        self._stream.feed(text)
        self.frames.append(self.text)

    @property
    def text(self) -> str:
        above = ["".join(line[x].data for x in range(self.columns)) for line in self._screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self._screen.display]).rstrip("\n")


def painted(**settings: Any) -> Emulator:
    """A whole reply, every frame of it."""
    emulator, session = Emulator(), ScriptedSession([SCRIPT], chunks=2, reused=10)
    chat = chat_of(session, **settings)
    session.plain_tokens_per_second = 25.0
    with Screen(emulator.write, lambda: (60, 12), clock=count().__next__) as screen:  # paints everything
        chat.reply("Why?", TerminalView(screen, chat.settings), lambda: False)
    return emulator


def test_a_reply_with_its_readout() -> None:
    emulator = painted()
    thought, empty, answer, *rest = emulator.text.split("\n")
    assert thought.startswith("thought for ")
    assert (empty, answer) == ("", "Yes, it is.")
    assert "So." not in emulator.text
    assert next(line for line in rest if "tok/s" in line).startswith("DFlash 80.0 tok/s")
    assert "kept by position" in emulator.text
    assert emulator.text.endswith("reused 10 of 29 prompt tokens")


def test_while_it_comes() -> None:
    frames = painted().frames
    assert any("reading 29 tokens …" in frame for frame in frames)
    assert any("reading 14 of 29 tokens …" in frame for frame in frames)
    assert any("think." in frame and "plain 25.0 tok/s" in frame for frame in frames)
    thinking = [frame for frame in frames if "think." in frame]
    assert max(frame.count("think.") for frame in thinking) <= 3  # only its last lines
    assert any("Yes" in frame and "one" not in frame for frame in frames)
    assert all(frame.count("tok/s") <= 2 for frame in frames)  # one readout at a time: DFlash and plain


def test_thinking_that_is_to_be_shown_stays() -> None:
    text = painted(show_reasoning=True).text
    assert text.count("think.") == 9
    assert "thought for" not in text
    assert text.index("So.") < text.index("Yes")


def test_without_statistics_there_is_only_text() -> None:
    emulator = painted(show_stats=False)
    assert "tok/s" not in emulator.raw
    assert "reused" not in emulator.raw
    assert emulator.text.endswith("two")


def test_stopped_while_the_prompt_is_read_there_are_no_numbers(capsys: Any) -> None:
    emulator, chat = Emulator(), chat_of(ScriptedSession([SCRIPT, SCRIPT], chunks=4))
    presses = iter([False, False, True] * 2)
    with Screen(emulator.write, lambda: (60, 12), clock=count().__next__) as screen:  # paints everything
        chat.reply("Why?", TerminalView(screen, chat.settings), lambda: next(presses))
    assert "reading " in emulator.raw
    assert emulator.text == ""
    chat.reply("Why?", PlainView(chat.settings, first=True), lambda: next(presses))
    assert capsys.readouterr() == ("", "")


def test_after_an_exception_the_text_stays() -> None:
    emulator, session = Emulator(), ScriptedSession([SCRIPT], fails=RuntimeError("no memory"))
    chat = chat_of(session)
    with Screen(emulator.write, lambda: (60, 12)) as screen:
        view = TerminalView(screen, chat.settings)
        with pytest.raises(RuntimeError):
            chat.reply("Why?", view, lambda: False)
        view.close()
    assert "Yes, it is." in emulator.text
    assert "two" in emulator.text
    assert "thought for" in emulator.text


def test_after_an_exception_while_it_thinks_that_is_told() -> None:
    emulator, session = Emulator(), ScriptedSession([["Let me ", "think."]], fails=RuntimeError("no memory"))
    chat = chat_of(session)
    with Screen(emulator.write, lambda: (60, 12)) as screen:
        view = TerminalView(screen, chat.settings)
        with pytest.raises(RuntimeError):
            chat.reply("Why?", view, lambda: False)
        view.close()
    assert emulator.text.startswith("thought for ")


# ---- in a pipe -------------------------------------------------------------------------------------------


@pytest.fixture
def front() -> Iterator[PlainFront]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115 (closed by nobody, as any stdin)
        yield PlainFront(chat_of(ScriptedSession([])).settings)


def said(capsys: Any, script: list[str], **settings: Any) -> tuple[str, str]:
    chat = chat_of(ScriptedSession([script]), **settings)
    view = PlainView(chat.settings, first=True)
    chat.reply("Why?", view, lambda: False)
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_only_the_answer_goes_to_standard_output(capsys: Any) -> None:
    out, err = said(capsys, SCRIPT)
    assert out == "**Yes**, `it` is.\n\n- one\n- two\n"
    assert err.startswith("thought for ")
    assert "DFlash 80.0 tok/s" in err


def test_thinking_goes_to_standard_error(capsys: Any) -> None:
    out, err = said(capsys, SCRIPT, show_reasoning=True, show_stats=False)
    assert out.startswith("**Yes**")
    assert err == "Let me " + "think.\n" * 9 + "So.\n"


def test_nothing_steers_the_terminal(capsys: Any) -> None:
    out, _ = said(capsys, ["</think>a\x1b[2Jb", "\x9b1mc\td\r\n"], show_stats=False)
    assert out == "a[2Jb1mc\td\n"
    assert console.harmless("é\n漢") == "é\n漢"


@pytest.mark.parametrize("show", ["note", "error"])
def test_words_of_others_do_not_steer_it_either(capsys: Any, show: str) -> None:
    getattr(console, show)("held with \x1b]0;title\x07\x9bx")
    assert "held with ]0;titlex\n" in capsys.readouterr().err


def test_words_on_a_terminal_do_not_steer_it_and_errors_are_where_the_conversation_is(capsys: Any) -> None:
    front = TerminalFront(chat_of(ScriptedSession([])).settings, Any, first_run=False)
    front.say("\x1b]0;title\x07a")
    front.error("there is no `\x1b[2J`", "look")
    captured = capsys.readouterr()
    assert re.sub(r"\x1b\[[\d;]*m", "", captured.out) == "]0;titlea\nerror: there is no `[2J`\nhint: look\n"
    assert captured.err == ""


def test_an_empty_line_between_replies_and_none_at_the_end(capsys: Any, front: PlainFront) -> None:
    for script in (["</think>one"], [], ["</think>two\n"], ["</think>three"]):
        chat = chat_of(ScriptedSession([script]), show_stats=False)
        with front.view() as view:
            chat.reply("Why?", view, lambda: False)
    assert capsys.readouterr().out == "one\n\ntwo\n\nthree\n"
