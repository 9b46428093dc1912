"""Chat without a terminal: messages a line on standard input, replies on standard output, nothing painted."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from chat_cases import Case, messages_of, write_pair
from child import bounded, python
from terminal import read_terminal
from typer.testing import CliRunner, Result

from dflash_mlx.cli.app import app

LIMIT = ["--max-tokens", "24"]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return write_pair(tmp_path_factory.mktemp("pair"))


def chat(case: Case, *lines: str | bytes, arguments: Any = LIMIT) -> Result:
    stdin = b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
    return CliRunner().invoke(app, [*case.arguments, *arguments], input=stdin)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def replies(case: Case, *questions: str, system: str | None = None) -> list[str]:
    """What the target alone answers in a conversation, each time with nothing reused."""
    messages = [{"role": "system", "content": system}] if system else []
    texts = []
    for question in questions:
        messages.append(user(question))
        texts.append(case.reply(messages, 24))
        messages.append({"role": "assistant", "content": texts[-1]})
    return texts


def test_three_turns_are_what_the_target_says_alone(case: Case, tmp_path: Path) -> None:
    questions = ["w10 w20", "w11 w12 w13", "w30"]
    result = chat(case, *questions, f"/save {tmp_path / 'talk'}")
    assert result.exit_code == 0
    wanted = replies(case, *questions)
    assert len(set(wanted)) == 3
    assert result.stdout == "\n".join(f"{text}\n" for text in wanted)
    assert [message["content"] for message in messages_of(tmp_path / "talk")[1::2]] == wanted
    assert len(re.findall(r"DFlash [\d.]+ tok/s   plain .*first token [\d.]+ s\n", result.stderr)) == 3
    assert len(re.findall(r"reused \d+ of \d+ prompt tokens\n", result.stderr)) == 2
    assert "saved to" in result.stderr
    assert "\x1b" not in result.output


def test_sampled_turns_repeat_with_their_seed(case: Case) -> None:
    arguments = [*LIMIT, "--temp", "1", "--seed", "5"]
    first, again = (chat(case, "w10", "w11", arguments=arguments) for _ in range(2))
    assert first.stdout == again.stdout != chat(case, "w10", "w11").stdout


def test_without_statistics_there_is_only_text(case: Case) -> None:
    result = chat(case, "w10 w20", "w11", arguments=["--max-tokens", "400", "--no-stats"])
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.startswith(replies(case, "w10 w20")[0])


def test_commands_work_and_their_words_go_to_standard_error(case: Case) -> None:
    result = chat(case, "/plain", "w10", "/reset", "/system w40", "w10", "/stats", "/exit", "w11")
    assert result.exit_code == 0
    wanted = [*replies(case, "w10"), *replies(case, "w10", system="w40")]
    assert result.stdout == "\n".join(f"{text}\n" for text in wanted)
    for words in ("plain decoding\n", "forgotten\n", "system message set\n", "reply  tokens"):
        assert words in result.stderr
    assert "DFlash" not in result.stderr


def test_a_retry_takes_the_place_of_a_reply(case: Case) -> None:
    result = chat(case, "w10", "/retry", "w11")
    one, two = replies(case, "w10", "w11")
    assert result.stdout == f"{one}\n\n{one}\n\n{two}\n"


def test_two_slashes_begin_a_message_with_one(case: Case, tmp_path: Path) -> None:
    chat(case, "//reset", f"/save {tmp_path / 'talk'}")
    assert messages_of(tmp_path / "talk")[0] == user("/reset")


def test_a_saved_conversation_goes_on(case: Case, tmp_path: Path) -> None:
    chat(case, "w10", f"/save {tmp_path / 'talk'}")
    result = chat(case, f"/load {tmp_path / 'talk'}", "w11")
    assert result.stdout == replies(case, "w10", "w11")[1] + "\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (" ".join(["w10"] * 5000), "context is full"),
        (b"\xff\xfe", "not UTF-8"),
        ("/nope", "no command `/nope`"),
        ("/load nowhere", "does not exist"),
    ],
)
def test_a_mistake_is_told_and_the_rest_goes_on(case: Case, line: str | bytes, words: str) -> None:
    result = chat(case, "w10", line, "w11")
    assert result.exit_code == 1
    assert result.stdout == "\n".join(f"{text}\n" for text in replies(case, "w10", "w11"))
    errors = [found for found in result.stderr.splitlines() if found.startswith("error: ")]
    assert len(errors) == 1
    assert words in errors[0]


@pytest.mark.parametrize("lines", [(), ("",), ("  ", "\t")])
def test_nothing_asked_is_nothing_said(case: Case, lines: tuple[str, ...]) -> None:
    result = chat(case, *lines)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_a_last_line_without_an_end_is_a_line(case: Case) -> None:
    result = CliRunner().invoke(app, [*case.arguments, *LIMIT], input="w10")
    assert result.stdout == replies(case, "w10")[0] + "\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plain"], "--plain.*--drafter"),
        (["--width", "9"], "width is 9.*8"),
        (["--reasoning", "off"], "--reasoning off"),
        (["--top-p", "2"], "top_p"),
        (["--drafter", "nowhere"], "nowhere"),
    ],
)
def test_options_are_checked_before_the_first_message(case: Case, arguments: list[str], words: str) -> None:
    result = chat(case, "w10", arguments=arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.search(words, result.stderr)


def test_a_model_that_cannot_chat_is_refused(case: Case, tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(case.target, target, ignore=shutil.ignore_patterns("chat_template.jinja"))
    result = CliRunner().invoke(app, ["chat", "--target", str(target), "--plain"], input="w10\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        "error: this model has no chat template\nhint: `dflash-mlx generate --raw`"
    )


@pytest.mark.parametrize(("source", "words"), [("<&-", "is closed"), ("0>/dev/null", "cannot be read")])
def test_an_input_that_cannot_be_read_ends_the_chat(case: Case, source: str, words: str) -> None:
    command = f"{shlex.join(program(case))} {source}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: standard input {words}")


# ---- as a process ----------------------------------------------------------------------------------------


def program(case: Case, *arguments: str) -> list[str]:
    return python("-m", "dflash_mlx.cli", *case.arguments, *arguments)


def test_a_reader_that_goes_away_is_no_news(case: Case) -> None:
    command = shlex.join(program(case, *case.endless, "--max-tokens", "3000", "--no-stats"))
    result = subprocess.run(
        ["bash", "-c", f"printf 'w10\\nw11\\n' | {command} | head -c 1; exit ${{PIPESTATUS[1]}}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (1, "")
    assert len(result.stdout) == 1


def test_ctrl_c_keeps_the_text_and_ends(case: Case) -> None:
    process = subprocess.Popen(
        program(case, *case.endless, "--max-tokens", "3000"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job would have SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("w10\nw11\n")
    process.stdin.flush()
    with bounded(process):
        start = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert (start + out).endswith("\n")
    assert (start + out).count("\n") == 1  # the second message was not answered
    assert "tok/s" in err
    assert "Traceback" not in err


def test_a_terminal_that_wants_no_codes_gets_lines(case: Case) -> None:
    main, child = pty.openpty()
    process = subprocess.Popen(
        program(case, *LIMIT),
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
        start_new_session=True,
    )
    os.close(child)
    shown = b""
    for keys in (b"w10\n", b"/nope\n", b"\x04"):
        shown += read_terminal(main, lambda new: b"> " in new)
        os.write(main, keys)
    shown += read_terminal(main)
    os.close(main)
    assert process.wait(120) == 0
    assert b"\x1b" not in shown
    text = shown.decode().replace("\r\n", "\n")
    assert replies(case, "w10")[0] in text
    assert "target " in text
    assert "there is no command `/nope`" in text
