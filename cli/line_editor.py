"""The line that chat reads on a terminal: editing, history across runs, several lines, completion.

Enter sends; Alt-Enter puts in a new line; a paste keeps its lines. Ctrl-C clears the line; Ctrl-D on an
empty line leaves; Ctrl-Z is the shell's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

PROMPT = "> "


class CannotKeepError(Exception):
    """The history cannot be kept on disk, for the reason in words."""


class LineEditor:
    """Reads one message after the other.

    Args:
        history: Its file; None keeps none beyond this run.
        commands: Names of commands and what they do, for completion.
    """

    def __init__(self, history: Path | None, commands: Mapping[str, str]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.filters import Condition

        session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            history=_history(history),
            completer=_completer(commands),
            complete_while_typing=Condition(lambda: session.default_buffer.text.startswith("/")),
            key_bindings=_keys(),
            reserve_space_for_menu=4,
            enable_suspend=True,
        )
        self._session = session

    def read(self) -> str:
        """The next message.

        Raises:
            EOFError: The user leaves.
            KeyboardInterrupt: Ctrl-C on an empty line.
        """
        return self._session.prompt()


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c")
    @keys.add("<sigint>")
    def _clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    return keys


def _completer(commands: Mapping[str, str]) -> Completer:
    """Of a command's name, which is the first word of a message."""
    from prompt_toolkit.completion import WordCompleter

    return WordCompleter(list(commands), meta_dict=dict(commands), sentence=True)


def _history(file: Path | None) -> History:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class KeptHistory(FileHistory):
        """A disk that becomes full does not end a chat."""

        def store_string(self, string: str) -> None:
            try:
                super().store_string(string)
            except OSError:
                return

    return InMemoryHistory() if file is None else KeptHistory(file)


def history_file(folder: Path) -> tuple[Path, bool]:
    """A file that can be written, for the user's eyes only; and if it is empty.

    Raises:
        CannotKeepError: There can be none.
    """
    path = folder / "chat-history"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600))
        return path, not path.stat().st_size
    except OSError as problem:
        raise CannotKeepError(f"`{path}` cannot be written: {problem.strerror}") from problem
