"""The command line with an engine that needs no model."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from child import bounded
from fake_engine import STATS, Engine, install
from terminal import read_terminal
from typer.testing import CliRunner, Result

import dflash_mlx
from dflash_mlx.cli.app import app

HARNESS = [sys.executable, str(Path(__file__).with_name("fake_engine.py"))]
PAIR = ["--target", "t", "--drafter", "d"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    modules: dict[str, Any] = {}
    install(engine, modules)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return engine


def generate(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["generate", *arguments], input=stdin)


def message(result: Result) -> list[str]:
    """The lines of an error: nothing on stdout, exit code 1, one sentence, perhaps a hint."""
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert re.fullmatch(r"error: .*[^.]", lines[0])
    assert all(re.fullmatch(r"hint: .*[^.]", line) for line in lines[1:])
    assert len(lines) <= 2
    return lines


# ---- generate ------------------------------------------------------------------------------------------


def test_text_to_stdout_and_one_line_of_statistics_to_stderr(engine: Engine) -> None:
    result = generate(*PAIR, "--prompt", "Hi")
    assert result.exit_code == 0
    assert result.stdout == "Hello τ\n"
    assert result.stderr == (
        "DFlash 2 80.0 tok/s   tokens 5   τ 4.00   width 4   first token 0.12 s   peak 1.23 GB"
        "   float32   cpu   OpenBLAS 0.3.21\n"
    )
    assert engine.loaded == ("t", "d")
    assert engine.prompt == "<user>Hi<assistant>"
    assert engine.arguments == {"max_tokens": 512, "width": None, "stop": []}


def test_options_reach_the_engine(engine: Engine) -> None:
    options = ["--max-tokens", "7", "--width", "3", "--stop", "a", "--stop", "b", "--system", "S"]
    assert generate(*PAIR, "-p", "Hi", *options).exit_code == 0
    assert engine.prompt == "<system>S<user>Hi<assistant>"
    assert engine.arguments == {"max_tokens": 7, "width": 3, "stop": ["a", "b"]}


def test_json_is_one_line_and_alone(engine: Engine) -> None:
    engine.scenario = "note"
    result = generate(*PAIR, "-p", "Hi", "--json")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    line = json.loads(result.stdout)
    assert list(line) == ["version", "text", "tokens", "finish_reason", "stats"]
    assert (line["version"], line["text"], line["tokens"]) == (1, "Hello τ", [1, 2, 3, 4, 5])
    assert line["finish_reason"] == "stop"
    assert line["stats"]["accepted_histogram"] == [0, 0, 0, 1]
    assert line["stats"]["generated_tokens"] == len(line["tokens"]) == STATS.generated_tokens


def test_a_note_is_printed_to_stderr(engine: Engine) -> None:
    engine.scenario = "note"
    assert generate(*PAIR, "-p", "Hi").stderr.startswith("a note\n")


@pytest.mark.parametrize(
    ("given", "read"),
    [("Hi\n", "Hi"), ("Hi", "Hi"), ("Hi\n\n", "Hi\n"), ("Hi\r\n", "Hi"), ("Grüße", "Grüße")],
)
def test_prompt_from_standard_input(engine: Engine, given: str, read: str) -> None:
    assert generate(*PAIR, stdin=given).exit_code == 0
    assert engine.prompt == f"<user>{read}<assistant>"


def test_raw_takes_no_template(engine: Engine) -> None:
    assert generate(*PAIR, "--raw", "-p", "Once").exit_code == 0
    assert engine.prompt == "^Once"


def test_plain_needs_no_drafter(engine: Engine) -> None:
    assert generate("--target", "t", "--plain", "-p", "Hi").exit_code == 0
    assert generate("--target", "t", "--plain", "--width", "1", "-p", "Hi").exit_code == 0
    assert engine.loaded == ("t", None)
    assert engine.looked["plain"]
    assert engine.load["plain"]


def test_without_a_drafter_the_registry_is_asked(engine: Engine) -> None:
    assert generate("--target", "t", "-p", "Hi").exit_code == 0
    assert engine.loaded == ("t", None)
    assert not engine.looked["plain"]


def test_options_about_models_reach_the_loader(engine: Engine) -> None:
    options = ["--revision", "v1", "--drafter-revision", "v2", "--drafter-bits", "16", "--force"]
    assert generate(*PAIR, "-p", "Hi" * 300, "--max-tokens", "50", *options).exit_code == 0
    assert engine.looked == {"plain": False, "revision": "v1", "drafter_revision": "v2"}
    assert engine.load == {"plain": False, "context": 250, "force": True}


# ---- errors --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PAIR, "--plain", "-p", "Hi"], "--plain.*--drafter"),
        (["--target", "t", "--plain", "--width", "4", "-p", "Hi"], "--plain.*--width 4"),
        (["--target", "t", "--plain", "--drafter-bits", "8", "-p", "Hi"], "--plain.*--drafter-bits 8"),
        (["--target", "t", "--plain", "--drafter-revision", "v1", "-p", "Hi"], "--drafter-revision v1"),
        ([*PAIR, "--drafter-bits", "4", "-p", "Hi"], "`d` is a local folder.*convert d --bits 4"),
        ([*PAIR, "--raw", "--system", "S", "-p", "Hi"], "--raw.*--system"),
        ([*PAIR, "--raw", "--reasoning", "off", "-p", "Hi"], "--raw.*--reasoning"),
        ([*PAIR, "-p", ""], "empty"),
        ([*PAIR, "-p", " \n"], "empty"),
        ([*PAIR, "--raw", "-p", ""], "empty"),
        ([*PAIR], "empty"),  # the standard input of the runner is no terminal, and holds nothing
        ([*PAIR, "-p", "Hi", "--top-p", "1.5"], "top_p"),
        (["--target", "missing", "--plain", "-p", "Hi"], "missing"),
    ],
)
def test_errors_are_a_sentence_and_a_hint(arguments: list[str], words: str) -> None:
    assert re.search(words, " ".join(message(generate(*arguments))))


@pytest.mark.usefixtures("engine")
def test_standard_input_that_is_no_text() -> None:
    assert "UTF-8" in message(generate(*PAIR, stdin=b"\xff\xfe"))[0]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompt", "Hi"],
        [*PAIR, "--colour"],
        [*PAIR, "-p", "Hi", "--max-tokens", "0"],
        [*PAIR, "-p", "Hi", "--width", "x"],
        [*PAIR, "-p", "Hi", "--logit-bias", "five"],
        [*PAIR, "-p", "Hi", "--drafter-bits", "5"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    result = generate(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error" in result.stderr


def test_a_mistake_of_ours_is_one_line_without_debug(engine: Engine) -> None:
    engine.scenario = "bug"
    first, hint = message(generate(*PAIR, "-p", "Hi"))
    assert first == "error: RuntimeError: [fake] bad shape"
    assert "--debug" in hint


@pytest.mark.parametrize("before", [True, False])
def test_debug_shows_the_traceback(engine: Engine, before: bool) -> None:
    engine.scenario = "bug"
    words = ["generate", *PAIR, "-p", "Hi"]
    words = ["--debug", *words] if before else [*words, "--debug"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "_events" in result.stderr


def test_debug_shows_where_a_user_error_came_from(engine: Engine) -> None:
    result = generate("--target", "missing", "--plain", "-p", "Hi", "--debug")
    assert "in look" in result.stderr
    assert "error: there is no folder `missing`\nhint: check the path\n" in result.stderr


# ---- the program ---------------------------------------------------------------------------------------


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"dflash-mlx {dflash_mlx.__version__}\n")


def test_no_command_prints_help() -> None:
    assert "generate" in CliRunner().invoke(app, []).output


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_shows_every_option_whole_and_an_example(columns: int) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "dflash_mlx.cli", "generate", "--help"],
        env={**os.environ, "COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        check=True,
    )
    for option in ("--target", "--drafter", "--repetition-penalty X", "--temperature, --temp X", "--json"):
        assert option in result.stdout
    example = [line for line in result.stdout.splitlines() if line.startswith("    ") and "-t ./" in line]
    assert example
    width = max(len(line) for line in result.stdout.split("Example:")[0].splitlines())
    assert width <= min(columns, 100)


def run(scenario: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HARNESS, scenario, "generate", *PAIR, *arguments],
        text=True,
        timeout=60,
        stderr=subprocess.PIPE,
        **options,
    )


def test_a_reader_that_goes_away_is_no_news() -> None:
    command = shlex.join([*HARNESS, "endless", "generate", *PAIR, "-p", "Hi"])
    result = subprocess.run(
        ["bash", "-c", f"{command} | head -c 1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stdout, result.stderr) == (1, "H", "a note\n")


def test_help_into_a_closed_pipe_is_no_news() -> None:
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [*HARNESS, "hello", "generate", "--help"], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60
    )
    os.close(write)
    assert (result.returncode, result.stderr) == (1, "")


def test_no_standard_output() -> None:
    result = subprocess.run(
        ["bash", "-c", shlex.join([*HARNESS, "hello", "generate", *PAIR, "-p", "Hi"]) + " >&-"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("error: standard output is closed\nhint: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk() -> None:
    with open("/dev/full", "w") as full:
        result = run("hello", "-p", "Hi", stdout=full)
    assert result.returncode == 1
    assert result.stderr.startswith("error: standard output cannot be written: ")
    assert "Traceback" not in result.stderr


def test_characters_that_the_terminal_lacks() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = run("hello", "-p", "Hi", stdout=subprocess.PIPE, env=environment)
    assert (result.returncode, result.stdout) == (0, "Hello ?\n")


def interrupted(scenario: str, *arguments: str, presses: int) -> tuple[int, str, str]:
    process = subprocess.Popen(
        [*HARNESS, scenario, "generate", *PAIR, "-p", "Hi", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job would have SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with bounded(process):
        assert process.stderr.readline() == "a note\n"  # it is at work
        start = "" if arguments else process.stdout.read(7)
    for _ in range(presses):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    out, err = process.communicate(timeout=60)
    return process.returncode, start + out, err


def test_ctrl_c_keeps_the_text_and_tells_what_ran() -> None:
    code, out, err = interrupted("endless", presses=1)
    assert code == 130
    assert re.fullmatch(r"Hello τ( more)*\n", out)
    assert "interrupted" in err
    assert "Traceback" not in err


def test_ctrl_c_with_json_prints_the_line() -> None:
    code, out, _ = interrupted("endless", "--json", presses=1)
    assert code == 130
    assert json.loads(out)["finish_reason"] == "interrupted"


def test_a_second_ctrl_c_does_not_wait() -> None:
    code, out, err = interrupted("deaf", presses=2)
    assert code == 130
    assert out.startswith("Hello τ")
    assert "Traceback" not in err


# ---- colours -------------------------------------------------------------------------------------------


def stderr_on_a_terminal(**environment: str) -> str:
    """What an error looks like on a terminal."""
    main, child = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [*HARNESS, "hello", "generate", *PAIR, "--plain", "-p", "Hi"],
        stdin=child,
        stdout=subprocess.PIPE,
        stderr=child,
        env={**kept, "TERM": "xterm", **environment},
    )
    os.close(child)
    shown = read_terminal(main).decode()
    os.close(main)
    out, _ = process.communicate(timeout=60)
    assert out == b""
    return shown


def test_colours_on_a_terminal_only() -> None:
    assert re.search(r"\x1b\[[0-9;]*31m", stderr_on_a_terminal())
    assert "\x1b" not in stderr_on_a_terminal(NO_COLOR="1")
    assert "\x1b" not in stderr_on_a_terminal(TERM="dumb")


@pytest.mark.usefixtures("engine")
def test_no_colours_in_a_pipe() -> None:
    assert "\x1b" not in generate(*PAIR, "--plain", "-p", "Hi").stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", ["--version", "--help", "generate --help"])
@pytest.mark.parametrize("output", [">/dev/full", ">&-"])
def test_nothing_to_print_to(arguments: str, output: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m dflash_mlx.cli {arguments} {output}"
    result = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode in (0, 1)  # Typer prints help into nothing where there is no stdout
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") <= 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_notes_do_not_decide_the_exit_code() -> None:
    command = shlex.join([*HARNESS, "note", "generate", *PAIR, "-p", "Hi"]) + " 2>/dev/full"
    result = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 0
    assert result.stdout
