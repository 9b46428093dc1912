"""Chat end to end on a real pseudo-terminal."""

from __future__ import annotations

import re
from pathlib import Path
from unicodedata import normalize

import pytest
from chat_cases import Case, messages_of, write_pair
from terminal import Terminal

from dflash_mlx import SamplingParams

READOUT = r"DFlash [\d.]+ tok/s +plain (…|[\d.]+ tok/s +[\d.]+x) +τ [\d.]+ +width 8 +first token [\d.]+ s"
LIMIT = ("--max-tokens", "30")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return write_pair(tmp_path_factory.mktemp("pair"))


def flowed(text: str) -> str:
    """Words without markup, however they were broken into lines; the emulator composes accents."""
    return " ".join(normalize("NFC", text.replace("**", "").replace("`", "")).split())


def test_two_turns_commands_files_and_history(case: Case, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    first = Terminal([*case.arguments, *LIMIT], tmp_path)
    first.wait_prompt(1)
    for words in ("target ", "drafter ", "DFlash 2   width 8", "4,096 tokens", "Alt-Enter", "/exit leaves"):
        assert words in first.text

    said = first.say("w10 w20 漢字")
    assert re.search(READOUT, said)
    assert "kept by position" in said
    assert "reused" not in said
    said = first.say("w11 w12")
    assert re.search(r"reused \d+ of \d+ prompt tokens", said)
    assert re.search(r"there is no command `/nope`\n.*/help /reset", first.say("/nope"))
    assert "not a whole number" in first.say("/width x")
    number = first.prompts
    first.send("/he")
    first.wait_for("/help  this list")
    first.send("\t")
    first.wait_for("> /help")
    first.send("\r")
    first.wait_prompt(number + 1)
    assert re.search(r"//text +a message that begins with a slash", first.text)

    number = first.prompts
    first.send("one\x1b\rtwo\x1b[200~\nthree\nfour\x1b[201~\r")  # Alt-Enter, then a paste of lines
    first.wait_prompt(number + 1)
    first.interrupt()
    first.wait_for("Ctrl-D or `/exit` leaves")
    first.wait_prompt(number + 2)
    assert "saved to" in first.say(f"/save {saved}")
    other = tmp_path / "other"
    other.write_text("mine")
    assert "exists already" in flowed(first.say(f"/save {other}"))
    first.send("\x04")
    assert first.end() == 0

    messages = messages_of(saved)
    assert [message["content"] for message in messages[::2]] == [
        "w10 w20 漢字",
        "w11 w12",
        "one\ntwo\nthree\nfour",
    ]
    for place in (1, 3, 5):
        assert messages[place]["content"] == case.reply(messages[:place], 30)
        assert flowed(messages[place]["content"]) in flowed(first.text)

    second = Terminal([*case.arguments, *LIMIT], tmp_path)
    second.wait_prompt(1)
    assert "Alt-Enter" not in second.text
    second.send("\x1b[A\x1b[A\x1b[A")  # up: the newest lines of the run before, one of them of four lines
    second.wait(lambda: "four" in second.text and "two" in second.text, "the history")
    second.send("\x03")
    number = second.prompts
    assert "loaded 3 questions" in second.say(f"/load {saved}")
    assert second.prompts == number + 1
    second.say("w40 w41")
    second.say(f"/save {saved}")
    second.send("/exit\r")
    assert second.end() == 0
    messages = messages_of(saved)
    assert len(messages) == 8
    assert messages[7]["content"] == case.reply(messages[:7], 30)


def test_a_reply_is_interrupted_and_the_next_one_right_while_the_window_changes(
    case: Case, tmp_path: Path
) -> None:
    saved = tmp_path / "talk.json"
    chat = Terminal([*case.arguments, *case.endless, "--max-tokens", "3000"], tmp_path, columns=70)
    chat.wait_prompt(1)
    chat.send("w10 w20\r")
    chat.wait_for("τ")
    chat.resize(40, 24)
    grown = len(chat.text)
    chat.wait(lambda: len(chat.text) > grown + 400, "more text")
    chat.resize(100, 24)
    grown = len(chat.text)
    chat.wait(lambda: len(chat.text) > grown + 400, "more text")
    chat.interrupt()
    chat.wait_prompt(2)
    assert chat.text.count("tok/s") <= 3  # no frame was left behind but one that a resize has cut in two

    chat.send("w30\r")
    chat.wait(lambda: chat.text.count("τ") >= 2, "the second reply")
    chat.interrupt()
    chat.wait_prompt(3)
    assert re.search(r"reused [\d,]+ of", chat.text)
    chat.say(f"/save {saved}")
    chat.send("\x04")
    assert chat.end() == 0

    messages = messages_of(saved)
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    never_ends = SamplingParams(logit_bias={1: -100.0})
    for place in (1, 3):
        answer = messages[place]["content"]
        whole = case.reply(messages[:place], len(answer.split()) + 1, sampling=never_ends)
        assert whole.startswith(answer)
        assert answer
