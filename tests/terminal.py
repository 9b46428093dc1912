"""The program in a real pseudo-terminal, with an emulator that tells what is on the screen; or the bare one.

Whoever opens a pseudo-terminal has to read it while the program runs: on a Mac a program does not end before
what it wrote to a terminal was read.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pexpect
import pyte
from child import PATIENCE, python

_NEW_PROMPT = "\x1b[?2004h"  # the line editor asks for bracketed pastes when it begins to read


def read_terminal(descriptor: int, enough: Callable[[bytes], bool] = lambda _: False) -> bytes:
    """What comes out of a pseudo-terminal until it is enough, or the other end is closed.

    Args:
        descriptor: The end that is not the program's; stays open.
        enough: Judges everything that came in this call.
    """
    shown, end = b"", time.monotonic() + PATIENCE
    while not enough(shown):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"nothing came after:\n{shown.decode(errors='replace')}"
        try:
            part = os.read(descriptor, 1 << 16)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:  # how a Mac says it
            break
        shown += part
    return shown


class Terminal:
    """`dflash-mlx ARGUMENT...` on a terminal.

    Args:
        arguments: Of the program.
        state: Where it keeps what is to stay between runs.
        columns: Of the terminal, as are `rows`.
        environment: More variables.
        program: What Python runs.
    """

    def __init__(
        self,
        arguments: list[str],
        state: Path,
        *,
        columns: int = 80,
        rows: int = 24,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "dflash_mlx.cli"),
    ) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        command, *rest = python(*program, *arguments)
        self.raw = ""
        self._screen = pyte.HistoryScreen(columns, rows, history=100_000)
        self._stream = pyte.Stream(self._screen)
        self._child = pexpect.spawn(
            command,
            rest,
            env={  # the emulator answers no questions for the cursor's position
                **kept,
                "TERM": "xterm-256color",
                "PROMPT_TOOLKIT_NO_CPR": "1",
                "XDG_STATE_HOME": str(state),
                "HOME": str(state),
                **(environment or {}),
            },
            dimensions=(rows, columns),
            encoding="utf-8",
            echo=False,
        )

    @property
    def text(self) -> str:
        """All that was written, what has scrolled away included; lines without spaces at their end."""
        above = [
            "".join(line[x].data for x in range(self._screen.columns)) for line in self._screen.history.top
        ]
        return "\n".join(line.rstrip() for line in [*above, *self._screen.display])

    @property
    def shown(self) -> list[str]:
        """The rows of the screen."""
        return [line.rstrip() for line in self._screen.display]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until something is so."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"{what} did not come:\n{self.text}"
            self._read()

    def wait_for(self, text: str) -> None:
        """Until a text is somewhere."""
        self.wait(lambda: text in self.text, f"`{text}`")

    def wait_prompt(self, number: int) -> None:
        """Until the program asks for its `number`-th line."""
        self.wait(lambda: self.prompts >= number and self._at_prompt(), f"prompt {number}")

    @property
    def prompts(self) -> int:
        """How many lines were asked for."""
        return self.raw.count(_NEW_PROMPT)

    def send(self, keys: str) -> None:
        """Press keys."""
        self._child.send(keys)

    def say(self, line: str) -> str:
        """Type a line, wait for the next prompt; what came on the screen meanwhile."""
        number = self.prompts
        self.send(f"{line}\r")
        self.wait_prompt(number + 1)
        return self.text.rpartition(f"> {line}")[2]

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._child.sendintr()

    def resize(self, columns: int, rows: int) -> None:
        """The window gets another size."""
        self._screen.resize(rows, columns)
        self._child.setwinsize(rows, columns)

    def end(self) -> int:
        """Wait for the program's end; its exit code."""
        self.wait(lambda: self._child.flag_eof, "the end")
        self._child.close()
        assert self._child.exitstatus is not None, self._child.signalstatus
        return self._child.exitstatus

    def _at_prompt(self) -> bool:
        row = self._screen.display[self._screen.cursor.y].rstrip()
        return row == ">" and self._screen.cursor.x == 2

    def _read(self) -> None:
        try:
            data = self._child.read_nonblocking(1 << 16, timeout=0.2)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            return
        self.raw += data
        self._stream.feed(data)
