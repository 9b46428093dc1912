"""The live region in an emulated terminal: what scrolls away stays, what is live is replaced, and no more."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pyte
import pytest
from child import bounded
from rich.text import Text

from dflash_mlx.cli.interrupt import Suspension
from dflash_mlx.cli.markdown import MarkdownStream
from dflash_mlx.cli.screen import Screen, quiet_keys

REPLY = (Path(__file__).parent / "data" / "chat" / "reply.md").read_text(encoding="utf-8")


class Terminal:
    """pyte with a scrollback, a resize that wraps as terminals do, and a record of every write.

    pyte's own resize cuts lines and leaves the cursor where it was; iTerm2, VTE, kitty, tmux and others break
    what became too long, and move the cursor with the row that it stands on.
    """

    def __init__(self, columns: int = 40, rows: int = 8) -> None:
        self.writes: list[str] = []
        self.missed: list[str] = []  # scrolled off before the last resize
        self._begin(columns, rows)

    def _begin(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=1)
        self._screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self._screen)

    def write(self, text: str) -> None:
        self.writes.append(text)
        self._stream.feed(text)

    def size(self) -> tuple[int, int]:
        return self.columns, self.rows

    @property
    def scrollback(self) -> list[str]:
        gone = [
            "".join(row[x].data for x in range(self.columns)).rstrip() for row in self._screen.history.top
        ]
        return self.missed + gone

    @property
    def display(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    @property
    def everything(self) -> list[str]:
        lines = self.scrollback + self.display
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def cursor(self) -> tuple[int, int]:
        return self._screen.cursor.x, self._screen.cursor.y

    @property
    def cursor_hidden(self) -> bool:
        return bool(self._screen.cursor.hidden)

    def resize(self, columns: int, rows: int) -> None:
        scrollback, display, at = self.scrollback, self.display, self.cursor[1]
        while len(display) > at + 1 and not display[-1]:
            display.pop()
        before = [piece for line in scrollback + display[:at] for piece in _pieces(line, columns)]
        below = [piece for line in display[at:] for piece in _pieces(line, columns)]
        lines = before + below
        first = min(len(before), max(0, len(lines) - rows))
        hidden = self.cursor_hidden
        self._begin(columns, rows)
        self.missed = lines[:first]
        shown = lines[first : first + rows]
        self._stream.feed("\r\n".join(shown) + f"\x1b[{len(before) - first + 1};1H")
        if hidden:
            self._stream.feed("\x1b[?25l")


def _pieces(line: str, columns: int) -> list[str]:
    return [line[start : start + columns] for start in range(0, len(line), columns)] or [""]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def texts(*lines: str) -> list[Text]:
    return [Text(line) for line in lines]


def screen_on(terminal: Terminal) -> Screen:
    return Screen(terminal.write, terminal.size, frames_per_second=1000, clock=iter(range(10**6)).__next__)


# ---- what is shown ---------------------------------------------------------------------------------------


def test_finished_lines_go_above_and_live_ones_are_replaced() -> None:
    terminal = Terminal()
    with screen_on(terminal) as screen:
        screen.update(texts("one"), texts("tail", "10 tok/s"))
        assert terminal.everything == ["one", "tail", "10 tok/s"]
        screen.update(texts("two", "three"), texts("t"))
        assert terminal.everything == ["one", "two", "three", "t"]
        screen.update([], texts("t", "", "20 tok/s"))
        assert terminal.everything == ["one", "two", "three", "t", "", "20 tok/s"]
        screen.close(texts("the end"))
    assert terminal.everything == ["one", "two", "three", "the end"]
    assert terminal.cursor == (0, 4)


def test_the_cursor_is_hidden_and_comes_back() -> None:
    terminal = Terminal()
    with screen_on(terminal) as screen:
        screen.update([], texts("tail"))
        assert terminal.cursor_hidden
    assert not terminal.cursor_hidden
    assert terminal.everything == []


def test_an_exception_gives_the_terminal_back() -> None:
    terminal = Terminal()
    screen = screen_on(terminal)

    def interrupted() -> None:
        with screen:
            screen.update(texts("said"), texts("live", "numbers"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.everything == ["said"]
    assert not terminal.cursor_hidden
    terminal.write("x" * 50)
    assert terminal.display[1:3] == ["x" * 40, "x" * 10]  # lines wrap again


def test_a_shell_that_is_called_for_finds_its_terminal_in_order() -> None:
    terminal = Terminal()
    seen: list[tuple[list[str], bool, tuple[int, int]]] = []

    class Shell(Suspension):
        def now(self) -> None:
            seen.append((terminal.everything, terminal.cursor_hidden, terminal.cursor))
            terminal.write("$ fg\n")
            self.wanted = False

    shell = Shell()
    with Screen(terminal.write, terminal.size, suspension=shell) as screen:
        screen.update(texts("one"), texts("tail", "10 tok/s"))
        shell.wanted = True
        screen.update(texts("two"), texts("new", "20 tok/s"))
        assert seen == [(["one", "two"], False, (0, 2))]
        assert terminal.everything == ["one", "two", "$ fg", "new", "20 tok/s"]
        assert terminal.cursor_hidden


def test_ctrl_z_waits_until_it_is_obeyed_and_stops_the_process() -> None:
    code = (
        "import os, signal\n"
        "from dflash_mlx.cli.interrupt import Suspension\n"
        "with Suspension() as suspension:\n"
        "    os.kill(os.getpid(), signal.SIGTSTP)\n"
        "    assert suspension.wanted\n"
        "    print('goes on', flush=True)\n"
        "    suspension.now()\n"
        "    assert not suspension.wanted\n"
        "assert signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # as a shell starts it
        preexec_fn=lambda: signal.signal(signal.SIGTSTP, signal.SIG_DFL),
    )
    assert process.stdout is not None
    with bounded(process):
        assert process.stdout.readline() == "goes on\n"
        _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0
    process.stdout.close()


def test_a_terminal_that_fails_still_gets_its_cursor() -> None:
    terminal = Terminal()
    fail = False

    def write(text: str) -> None:
        if fail and "\x1b[?25h" not in text:
            raise OSError
        terminal.write(text)

    screen = Screen(write, terminal.size)
    screen.__enter__()
    screen.update([], texts("a"))
    fail = True
    with pytest.raises(OSError):
        screen.close()
    assert not terminal.cursor_hidden


def test_a_long_reply_flows_into_the_scrollback_once() -> None:
    terminal = Terminal(40, 8)
    markdown = MarkdownStream()
    expected: list[str] = []
    with screen_on(terminal) as screen:
        for start in range(0, len(REPLY), 5):
            lines = markdown.feed(REPLY[start : start + 5], 40)
            expected += [line.plain for line in lines]
            screen.update(lines, [*markdown.tail(40), *texts("", "78.4 tok/s")])
            if start % 4 == 0:  # looking takes most of the time
                assert terminal.everything[: len(expected)] == [_cells(line) for line in expected]
        rest = markdown.finish(40)
        screen.close(rest)
    expected += [line.plain for line in rest]
    assert terminal.everything == [_cells(line) for line in expected]


def _cells(line: str) -> str:
    """A line as pyte keeps it: no cell has more than one character of an emoji sequence."""
    screen = pyte.Screen(40, 1)
    pyte.Stream(screen).feed(line)
    return screen.display[0].rstrip()


def test_the_region_is_never_taller_than_the_terminal() -> None:
    terminal = Terminal(40, 6)
    with screen_on(terminal) as screen:
        screen.update(texts("done"), texts(*map(str, range(20))))
        assert terminal.display == ["done", "15", "16", "17", "18", "19"]
        screen.update(texts("more"), texts(*map(str, range(20))))
        assert terminal.everything == ["done", "more", "15", "16", "17", "18", "19"]
    assert terminal.everything == ["done", "more"]


def test_full_lines_do_not_disturb_the_count() -> None:
    terminal = Terminal(10, 6)
    with screen_on(terminal) as screen:
        for number in range(3):
            screen.update(texts("f" * 10), texts("a" * 10, "b" * 10, str(number)))
    assert terminal.everything == ["f" * 10] * 3


def test_a_line_wider_than_the_terminal_is_cut_while_it_is_live() -> None:
    terminal = Terminal(10, 6)
    with screen_on(terminal) as screen:
        screen.update([], texts("abcdefghijkl", "日本語日本語", "end"))
        assert [line.replace(" ", "") for line in terminal.everything] == ["abcdefghij", "日本語日本", "end"]


# ---- frames ----------------------------------------------------------------------------------------------


def test_a_frame_is_one_write_that_is_shown_at_once() -> None:
    terminal = Terminal()
    with screen_on(terminal) as screen:
        terminal.writes.clear()
        screen.update(texts("one", "two"), texts("a", "b"))
    frame = terminal.writes[0]
    assert frame.startswith("\x1b[?2026h")
    assert frame.endswith("\x1b[?2026l")
    assert "\x1b[2J" not in frame


def test_at_most_twelve_frames_a_second_and_nothing_is_lost() -> None:
    terminal, clock = Terminal(), Clock()
    made = 0

    def live(columns: int) -> list[Text]:
        nonlocal made
        made += 1
        return texts(f"{columns} columns")

    with Screen(terminal.write, terminal.size, clock=clock) as screen:
        terminal.writes.clear()
        for number in range(100):
            clock.now = number / 100
            screen.update(texts(str(number)), live)
        assert made == len(terminal.writes)
        assert 10 <= made <= 12
        screen.refresh()
        assert terminal.everything == [*map(str, range(100)), "40 columns"]


@pytest.mark.parametrize(("cost", "least", "most"), [(0.0002, 110, 121), (0.004, 48, 51), (0.1, 27, 41)])
def test_painting_takes_a_small_share_of_the_time(cost: float, least: int, most: int) -> None:
    """In ten seconds; four frames a second come also where one takes long, as on a slow line."""
    terminal, clock = Terminal(), Clock()
    made = 0

    def live(columns: int) -> list[Text]:
        nonlocal made
        made += 1
        clock.now += cost
        return texts("a")

    with Screen(terminal.write, terminal.size, clock=clock) as screen:
        while clock.now < 10:
            clock.now += 0.004
            screen.update((), live)
    assert least <= made <= most
    assert cost > 0.05 or made * cost <= 0.021 * clock.now


# ---- resize ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(20, 8), (60, 8), (40, 5), (40, 12), (25, 5), (13, 20)])
def test_a_resize_while_it_streams_leaves_finished_lines_alone(size: tuple[int, int]) -> None:
    terminal = Terminal(40, 8)
    terminal.write("$ dflash-mlx chat\r\n")
    finished = [f"line {number} " + "f" * (number * 7 % 30) for number in range(12)]
    with screen_on(terminal) as screen:
        screen.update(texts(*finished[:10]), texts("l" * 40, "m" * 35, "numbers"))
        terminal.resize(*size)
        columns, _ = size
        live = texts("L" * columns, "numbers")
        screen.update(texts(*finished[10:]), live)
        assert terminal.everything[-2:] == [line.plain for line in live]
    kept = ["$ dflash-mlx chat", *finished]
    # What was printed before is wrapped by the terminal, what came after it by nobody.
    wrapped = [piece for line in kept for piece in _pieces(line.rstrip(), columns)]
    assert terminal.everything == wrapped


def test_many_resizes() -> None:
    terminal = Terminal(80, 24)
    kept = []
    with screen_on(terminal) as screen:
        for number in range(60):
            terminal.resize(30 + number * 37 % 60, 4 + number * 13 % 25)
            columns, _ = terminal.size()
            kept.append(f"line {number}")
            screen.update(texts(kept[-1]), texts("x" * columns, "y" * (columns // 2), "z"))
    assert terminal.everything == kept


# ---- the keyboard ----------------------------------------------------------------------------------------


def test_what_is_typed_is_not_echoed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, keyboard = pty.openpty()
    with os.fdopen(keyboard, "r", closefd=False) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        before = termios.tcgetattr(keyboard)
        with quiet_keys():
            during = termios.tcgetattr(keyboard)
            assert not during[3] & termios.ECHO
            assert during[3] & termios.ISIG  # Ctrl-C still is a signal
            os.write(controller, b"typed\n")
        assert termios.tcgetattr(keyboard) == before
        assert stream.readline() == "typed\n"
    os.close(controller)
    os.close(keyboard)


def test_without_a_keyboard_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with quiet_keys():
        pass


def test_no_control_character_of_a_line_is_written() -> None:
    terminal = Terminal()
    markdown = MarkdownStream()
    with screen_on(terminal) as screen:
        screen.update(markdown.feed("\x1b[2J\x1b]0;title\x07\n\n", 40), [])
    assert not re.search(r"\x1b\[2J|\x1b\]|\x07", "".join(terminal.writes))
