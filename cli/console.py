"""Everything that is printed. Data goes to stdout, all else to stderr; colour only on a terminal."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from dflash_mlx.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn, TaskID

NARROW = 72  # columns; below, a bar leaves out what it can
PIPE_COLUMNS = 100
_STEERING = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class OutputLostError(UserError):
    """Nothing can be written to stdout any more."""


class InputLostError(UserError):
    """Nothing can be read from stdin any more."""


def write(text: str) -> None:
    """Data, to stdout, at once.

    Raises:
        BrokenPipeError: The reader is gone.
        OutputLostError: There is no stdout, or its device takes no more.
    """
    if sys.stdout is None:
        raise OutputLostError("standard output is closed", "redirect it to a file or to `/dev/null`")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise OutputLostError(f"standard output cannot be written: {problem.strerror}") from problem


def note(text: str) -> None:
    """A line about the work, to stderr; where that cannot be written, the work is what counts."""
    with suppress(OSError):
        _stderr().print(harmless(text), style="dim")


def error(message: str, hint: str | None = None) -> None:
    """What went wrong, and what to do about it; names of files and words of others may be in it."""
    from rich.text import Text

    console = _stderr()
    console.print(Text.assemble(("error:", "bold red"), f" {harmless(message)}"))
    if hint:
        console.print(Text.assemble(("hint:", "cyan"), f" {harmless(hint)}"))


def unexpected(problem: Exception) -> str:
    """An exception that nobody put into words, in one line."""
    return f"{type(problem).__name__}: {' '.join(str(problem).split())}"


def traceback() -> None:
    """The exception that is being handled, to stderr."""
    from traceback import format_exc

    _stderr().print(format_exc(), end="")


@contextmanager
def working(text: str) -> Iterator[None]:
    """Say on a terminal that something is going on; elsewhere say nothing."""
    console = _stderr()
    if not _paintable(console):
        yield
        return
    with console.status(text, spinner="dots"):
        yield


class Meter(Protocol):
    """Shows what is going on, how much of it is done, and of how much."""

    def __call__(self, text: str, done: int, total: int, unit: str = "") -> None:
        """`unit` is what is counted, bytes if it is empty; a total of 0 is one that nobody knows."""


@contextmanager
def progress() -> Iterator[Meter]:
    """A bar with the time left, on a terminal; elsewhere nothing."""
    console = _stderr()
    if not _paintable(console):
        yield lambda text, done, total, unit="": None
        return
    from rich.filesize import decimal
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    parts: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(bar_width=None)]
    if console.width >= NARROW:
        parts.append(TextColumn("{task.fields[amount]}"))
    parts.append(TimeRemainingColumn(compact=True, elapsed_when_finished=True))
    tasks: dict[str, TaskID] = {}
    with Progress(*parts, console=console) as bars:

        def show(text: str, done: int, total: int, unit: str = "") -> None:
            amount = f"{done} of {total} {unit}" if unit else f"{decimal(done)} of {decimal(total)}"
            amount = amount if total else ""
            known = total or None  # without, the bar says only that something is going on
            if text not in tasks:
                tasks[text] = bars.add_task(text, total=known, amount=amount)
            bars.update(tasks[text], completed=done, total=known, amount=amount)

        yield show


def show_cursor() -> None:
    """Bring back what a bar hides, when it cannot do so itself."""
    _stderr().show_cursor(True)


Counter = Callable[[int, int, str], None]  # how many are done, of how many, and what to say of them


@contextmanager
def counting(text: str) -> Iterator[Counter]:
    """A bar of things that are counted, with a changing text, on a terminal; elsewhere nothing."""
    console = _stderr()
    if not _paintable(console):
        yield lambda done, total, said: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    parts: list[ProgressColumn] = [TextColumn("{task.description}")]
    if console.width >= NARROW:
        parts.append(BarColumn(bar_width=20))
    parts += [MofNCompleteColumn(), TextColumn("{task.fields[said]}")]
    with Progress(*parts, console=console) as bars:
        task = bars.add_task(text, total=None, said="")
        yield lambda done, total, said: bars.update(task, completed=done, total=total, said=said)


def live() -> bool:
    """True if what is written to stderr can be taken back: a terminal."""
    return _paintable(_stderr())


def painted() -> bool:
    """True if stdin and stdout are a terminal that can be painted on, and its owner does not mind.

    `NO_COLOR` asks for lines without any control code.
    """
    if sys.stdin is None or sys.stdout is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown") and not os.environ.get(
        "NO_COLOR"
    )


def size() -> tuple[int, int]:
    """Columns and rows of the terminal that `write` writes to, now."""
    with suppress(OSError, AttributeError, ValueError):
        found = os.get_terminal_size(sys.stdout.fileno())
        if found.columns and found.lines:
            return found.columns, found.lines
    return shutil.get_terminal_size()


def encoding() -> str | None:
    """Of stdout."""
    return None if sys.stdout is None else sys.stdout.encoding


def harmless(text: str) -> str:
    """Text without the characters that steer a terminal; line breaks and tabs stay."""
    return text.translate(_STEERING)


def check_input() -> None:
    """Before anything is loaded.

    Raises:
        InputLostError: There is no stdin.
    """
    if sys.stdin is None:
        raise InputLostError("standard input is closed", "pipe messages in, one a line")


def read_line() -> bytes:
    """The next line of stdin, its end included; empty at the end of the input.

    Raises:
        InputLostError: It cannot be read.
    """
    check_input()
    try:
        # Bytes: the encoding of a pipe is not the locale's business.
        return sys.stdin.buffer.readline()
    except OSError as problem:
        raise InputLostError(f"standard input cannot be read: {problem.strerror}") from problem


def ask(prompt: str) -> None:
    """What a line is asked for with, to stderr."""
    with suppress(OSError):
        _stderr().print(prompt, end="")


def columns() -> int:
    """The width of what `write` writes to: a terminal's own, `PIPE_COLUMNS` elsewhere."""
    wide = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if wide else PIPE_COLUMNS


def replace_unencodable() -> None:
    """A terminal that cannot show a character shows `?`; it is no reason to stop."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def flush_or_forget() -> bool:
    """Write out what stdout still holds; False, and stdout is forgotten, if its reader is gone.

    Otherwise the interpreter tries again when it shuts down, and complains.
    """
    if sys.stdout is None:
        return True
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    except OSError:
        return False
    return True


def _paintable(console: Console) -> bool:
    """A terminal whose owner does not want plain lines: moving the cursor takes control codes too."""
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("NO_COLOR")


def _stderr() -> Console:
    """A console for one message: rich takes 50 ms to import, and tests exchange `sys.stderr`."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if console.no_color:
        # Not only without colours: without any escape sequence.
        return Console(
            stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True, color_system=None
        )
    return console
