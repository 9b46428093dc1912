"""The line editor: keys, several lines, history on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from dflash_mlx.cli import paths
from dflash_mlx.cli.line_editor import CannotKeepError, LineEditor, history_file

Read = Callable[..., str]
UP = "\x1b[A"


@pytest.fixture
def read() -> Iterator[Read]:
    """What a new editor reads from the keys."""
    with create_pipe_input() as keyboard, create_app_session(input=keyboard, output=DummyOutput()):

        def read_keys(keys: str, history: Path | None = None) -> str:
            keyboard.send_text(keys)
            return LineEditor(history, {"/help": "this list"}).read()

        yield read_keys


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("Hi\r", "Hi"),
        ("Hi\n", "Hi"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("\x1b[200~one\ntwo\r\nthree\x1b[201~ four\r", "one\ntwo\nthree four"),
        ("gone\x03here\r", "here"),
        ("漢字 👩‍👩‍👧\r", "漢字 👩‍👩‍👧"),
        ("ac\x1b[Db\r", "abc"),
        ("\r", ""),
    ],
)
def test_keys(read: Read, keys: str, message: str) -> None:
    assert read(keys) == message


def test_leaving(read: Read) -> None:
    with pytest.raises(EOFError):
        read("\x04")
    with pytest.raises(KeyboardInterrupt):
        read("gone\x03\x03")


def test_history_lasts_and_keeps_lines_together(read: Read, tmp_path: Path) -> None:
    file, new = history_file(tmp_path / "state")
    assert new
    read("first\r", file)
    read("one\x1b\rtwo\r", file)
    assert not history_file(tmp_path / "state")[1]
    assert read(f"{UP}\r", file) == "one\ntwo"
    assert read(f"{UP}{UP}{UP}{UP}\r", file) == "first"


def test_history_is_for_its_owner_only(tmp_path: Path) -> None:
    file, _ = history_file(tmp_path / "state")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_history_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotKeepError, match="chat-history"):
        history_file(tmp_path / "file")


def test_a_disk_that_becomes_full_does_not_end_the_chat(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = history_file(tmp_path)
    file.unlink()
    os.mkdir(file)  # nothing can be appended to it
    monkeypatch.setattr("prompt_toolkit.history.FileHistory.load_history_strings", lambda self: [])
    assert read("Hi\r", file) == "Hi"


@pytest.mark.parametrize(
    ("platform", "given", "expected"),
    [
        ("linux", "", ".local/state/dflash-mlx"),
        ("linux", "relative", ".local/state/dflash-mlx"),
        ("linux", "/state", "/state/dflash-mlx"),
        ("darwin", "/state", "Library/Application Support/dflash-mlx"),
    ],
)
def test_the_state_folder(platform: str, given: str, expected: str) -> None:
    assert paths.state_folder({"XDG_STATE_HOME": given}, platform) == Path.home() / expected
