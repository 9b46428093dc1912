"""Chat as it is on every computer: on the demo pair, in a real pseudo-terminal and in a pipe."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from chat_cases import Case, messages_of
from child import python
from terminal import Terminal

from dflash_mlx import SamplingParams, load_pair

READOUT = r"DFlash [\d.]+ tok/s +plain (…|[\d.]+ tok/s +[\d.]+x) +τ [\d.]+ +width 8 +first token [\d.]+ s"
END = 2  # the token that ends a reply


@pytest.fixture(scope="module")
def case() -> Case:
    assert load_pair("demo", plain=True).stop_ids == {END}
    return Case("demo", "demo", ("--logit-bias", f"{END}=-100"))


def test_a_conversation(case: Case, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    chat = Terminal(["chat"], tmp_path)
    chat.wait_prompt(1)
    for words in ("target demo", "drafter demo", "DFlash 2   width 8", "--target mlx-community/"):
        assert words in re.sub(r" +", " ", chat.text).replace("2 width", "2   width")

    said = chat.say("What is 49 + 36?")
    assert "So 49 + 36 = 85." in said
    assert re.search(READOUT, said)
    said = chat.say("Now add 15.")
    assert "So 85 + 15 = 100." in said
    assert re.search(r"reused \d+ of \d+ prompt tokens", said)
    assert "there is no command `/nope`" in chat.say("/nope")
    chat.say("Was heißt 漢字 😀?")
    said = chat.say("Write a Python function helper that adds width and height.")
    assert "def helper(width, height):" in said
    assert "```" not in said
    assert "saved to" in chat.say(f"/save {saved}")
    chat.send("\x04")
    assert chat.end() == 0
    messages = messages_of(saved)
    assert messages[4]["content"] == "Was heißt 漢字 😀?"
    for place in range(1, 8, 2):
        assert messages[place]["content"] == case.reply(messages[:place], 200)

    again = Terminal(["chat"], tmp_path, columns=40)
    again.wait_prompt(1)
    again.send("\x1b[A\x1b[A")  # up: the history of the run before
    again.wait_for("> Write a Python function helper")
    again.send("\x03")
    assert "loaded 4 questions" in again.say(f"/load {saved}")
    assert "So 20 + 13 = 33." in again.say("20 + 13")
    again.send("/exit\r")
    assert again.end() == 0


def test_an_interrupted_reply_and_a_right_next_one(case: Case, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    chat = Terminal(["chat", *case.endless], tmp_path, columns=60)
    chat.wait_prompt(1)
    chat.send("Tell me a story about Zelda the fox and a map.\r")
    chat.wait_for("τ")
    chat.resize(44, 24)
    chat.interrupt()
    chat.wait_prompt(2)
    chat.send("What is 49 + 36?\r")
    chat.wait(lambda: chat.text.count("τ") >= 2, "the second reply")
    chat.interrupt()
    chat.wait_prompt(3)
    chat.say(f"/save {saved}")
    chat.send("\x04")
    assert chat.end() == 0
    messages = messages_of(saved)
    never_ends = SamplingParams(logit_bias={END: -100.0})
    for place in (1, 3):
        answer = messages[place]["content"]
        count = len(case.pair.tokenizer.encode(answer)) + 8
        assert case.reply(messages[:place], count, sampling=never_ends).startswith(answer)
        assert answer
    assert "Once there was a fox".startswith(messages[1]["content"][:20])  # the key may come early


def test_a_pipe() -> None:
    done = subprocess.run(
        python("-m", "dflash_mlx.cli", "chat"),
        input="What is 49 + 36?\nNow add 15.\n",
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.split("\n\n")
    assert first.endswith("So 49 + 36 = 85.")
    assert second.endswith("So 85 + 15 = 100.\n")
    assert "\x1b" not in done.stdout + done.stderr
    assert len(re.findall(r"reused \d+ of \d+ prompt tokens", done.stderr)) == 1
