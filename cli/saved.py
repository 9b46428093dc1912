"""A conversation in a file: JSON with a version, written whole or not at all, not trusted when it is read."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.errors import UserError

from .conversation import Conversation, Exchange

VERSION = 1
LARGEST_BYTES = 64_000_000  # of a file that is read: a conversation of any model's context is far smaller
_NOT_OURS = "give a file that `/save` wrote"


@dataclass(frozen=True)
class Saved:
    """What a file holds.

    Attributes:
        conversation: Its `file` is where it came from.
        target: The model that it was held with.
    """

    conversation: Conversation
    target: str


def save(conversation: Conversation, path: Path, target: str) -> None:
    """Write a conversation; it remembers `path`, which the next save may replace.

    Raises:
        UserError: There is another file under this name already, or it cannot be written.
    """
    document = {"version": VERSION, "target": target, "messages": conversation.said()}
    try:
        if path.exists() and path != conversation.file:
            raise UserError(f"`{path}` exists already", "choose another name: no file is replaced")
        _write(path, json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    except (OSError, ValueError) as problem:  # a name can have characters that no file system takes
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise UserError(f"`{path}` cannot be written: {reason}", "choose another place") from problem
    conversation.file = path


def _write(path: Path, text: str) -> None:
    """A reader sees the old file or the whole new one."""
    handle, name = tempfile.mkstemp(prefix=".dflash-mlx-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def load(path: Path) -> Saved:
    """Read a conversation.

    Raises:
        UserError: The file is not there, or is none that `save` wrote.
    """
    document = _document(path)
    version = document.get("version")
    if version != VERSION:
        raise UserError(f"`{path}` has version {version!r}, not {VERSION}", _NOT_OURS)
    target, messages = document.get("target"), document.get("messages")
    if not isinstance(target, str) or not isinstance(messages, list):
        raise UserError(f"`{path}` has no `target` or no `messages`", _NOT_OURS)
    try:
        system, exchanges = _exchanges(messages)
    except ValueError as problem:
        raise UserError(f"`{path}` holds no conversation: {problem}", _NOT_OURS) from problem
    return Saved(Conversation(system, exchanges, path), target)


def _document(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():  # reading a pipe would wait for ever
            state = "is no file" if path.exists() else "does not exist"
            raise UserError(f"`{path}` {state}", "check the path")
        if path.stat().st_size > LARGEST_BYTES:
            raise UserError(f"`{path}` is larger than a conversation", _NOT_OURS)
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UserError(f"`{path}` cannot be read: {problem.strerror}", "check the path") from problem
    except (ValueError, RecursionError) as problem:  # no JSON, no UTF-8, or nested without end
        raise UserError(f"`{path}` is no JSON text", _NOT_OURS) from problem
    if not isinstance(document, dict):
        raise UserError(f"`{path}` holds no JSON object", _NOT_OURS)
    return document


def _exchanges(messages: Sequence[Any]) -> tuple[str | None, list[Exchange]]:
    """System message and exchanges.

    Raises:
        ValueError: Roles or types are wrong, in words.
    """
    system = None
    if messages and isinstance(messages[0], dict) and messages[0].get("role") == "system":
        system, messages = _text(messages[0], "content", 1), messages[1:]
    if len(messages) % 2:
        raise ValueError("its last question has no answer")
    exchanges = []
    first = 1 if system is None else 2  # numbers as a reader of the file counts
    for place in range(0, len(messages), 2):
        question, answer = messages[place : place + 2]
        _check_role(question, "user", place + first)
        _check_role(answer, "assistant", place + first + 1)
        exchanges.append(
            Exchange(
                _text(question, "content", place + first),
                _text(answer, "content", place + first + 1),
                _text(answer, "reasoning_content", place + first + 1, default=""),
            )
        )
    return system, exchanges


def _check_role(message: Any, role: str, number: int) -> None:
    if not isinstance(message, dict) or message.get("role") != role:
        raise ValueError(f"message {number} is not one of `{role}`")


def _text(message: dict[str, Any], key: str, number: int, default: str | None = None) -> str:
    text = message.get(key, default)
    if not isinstance(text, str) or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"`{key}` of message {number} is no text")
    return text
