"""Ctrl-C while a long prompt is read, on a real pseudo-terminal and a slow machine."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import slow_prefill
from chat_cases import Case, write_pair
from terminal import Terminal

from dflash_mlx.cli.saved import VERSION

TOKENS = 3000
SLACK = 4.0  # seconds; a chunk takes one, ending the process may take some, and other tests run meanwhile
PROMPT = " ".join(["w10"] * TOKENS)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return write_pair(tmp_path_factory.mktemp("pair"))


def slow(arguments: list[str], log: Path, state: Path) -> Terminal:
    return Terminal(arguments, state, program=[str(Path(slow_prefill.__file__)), str(log)])


def wait_for_chunks(terminal: Terminal, log: Path, number: int) -> None:
    terminal.wait(lambda: log.exists() and log.read_text().count("\n") >= number, f"chunk {number}")


def test_generate_ends_within_a_chunk(case: Case, tmp_path: Path) -> None:
    log = tmp_path / "chunks"
    arguments = ["generate", "--target", case.target, "--drafter", case.drafter, "--prompt", PROMPT]
    terminal = slow(arguments, log, tmp_path)
    wait_for_chunks(terminal, log, 3)
    terminal.interrupt()
    pressed = time.monotonic()
    assert terminal.end() == 130
    assert time.monotonic() - pressed < 1 + SLACK
    rows = [int(line) for line in log.read_text().split()]
    # The second and later ones take at most a second, the whole prompt half a minute.
    assert all(count <= slow_prefill.ROWS_PER_SECOND for count in rows[1:])
    assert sum(rows) < TOKENS / 2


def test_chat_asks_again_within_a_chunk(case: Case, tmp_path: Path) -> None:
    log, saved = tmp_path / "chunks", tmp_path / "talk.json"
    messages = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "w11"}]
    saved.write_text(json.dumps({"version": VERSION, "target": case.target, "messages": messages}))
    terminal = slow([*case.arguments], log, tmp_path)
    terminal.wait_prompt(1)
    terminal.say(f"/load {saved}")
    number = terminal.prompts
    terminal.send("w12\r")
    wait_for_chunks(terminal, log, 3)
    terminal.interrupt()
    pressed = time.monotonic()
    terminal.wait_prompt(number + 1)
    assert time.monotonic() - pressed < 1 + SLACK
    assert "stopped before anything was said" in terminal.text
    terminal.send("\x04")
    assert terminal.end() == 0
