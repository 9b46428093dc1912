"""`generate` on checkpoint folders of toy size: everything is real but the weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import folders
import pytest
from typer.testing import CliRunner, Result

from dflash_mlx.cli.app import app

PROMPT = ["--prompt", "w10 w20 w30"]
ENDLESS = ["--logit-bias", "1=-100"]  # never `</s>`


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`target`, and `dflash` and `dflash2` made for it."""
    return folders.write_checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def generate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["generate", "--target", "target", *arguments])


def line(*arguments: str) -> dict[str, Any]:
    result = generate(*PROMPT, "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    read: dict[str, Any] = json.loads(result.stdout)
    return read


def test_the_models_own_end() -> None:
    ended = line("--drafter", "dflash2", "--max-tokens", "60")
    assert ended["finish_reason"] == "stop"
    assert ended["tokens"][-1] == 1
    assert "</s>" not in ended["text"]


@pytest.mark.parametrize("name", ["dflash", "dflash2"])
@pytest.mark.parametrize("width", ["1", "2", "8"])
def test_a_drafter_changes_nothing_but_the_pace(name: str, width: str) -> None:
    plain = line("--plain", "--max-tokens", "60", *ENDLESS)
    drafted = line("--drafter", name, "--width", width, "--max-tokens", "60", *ENDLESS)
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["text"] == plain["text"]
    assert drafted["finish_reason"] == plain["finish_reason"] == "length"
    stats = drafted["stats"]
    assert (stats["method"], stats["width"]) == (name if width != "1" else "plain", int(width))
    assert (stats["target"], stats["drafter"]) == ("target", name)
    assert stats["generated_tokens"] == len(drafted["tokens"]) == 60
    assert stats["prompt_tokens"] == 6  # <s> user w10 w20 w30 assistant


def test_text_and_statistics_are_those_of_the_json_line() -> None:
    arguments = ["--drafter", "dflash2", "--max-tokens", "20", *ENDLESS]
    result = generate(*PROMPT, *arguments)
    assert result.exit_code == 0
    assert result.stdout == line(*arguments)["text"] + "\n"
    assert re.fullmatch(
        r"DFlash 2 [\d.]+ tok/s   tokens 20   τ [\d.]+   width 8   first token [\d.]+ s   peak [\d.]+ GB   "
        r"float32   .*   cut at its length limit\n",
        result.stderr,
    )


def test_sampling_repeats_with_its_seed() -> None:
    arguments = ["--drafter", "dflash2", "--temp", "1", "--top-k", "20", "--max-tokens", "20", "--seed"]
    assert line(*arguments, "5")["tokens"] == line(*arguments, "5")["tokens"]
    assert line(*arguments, "5")["tokens"] != line(*arguments, "6")["tokens"]


def test_raw_and_stop() -> None:
    raw = line("--plain", "--raw", "--max-tokens", "20")
    assert raw["stats"]["prompt_tokens"] == 3
    words = raw["text"].split()
    stopped = line("--drafter", "dflash2", "--raw", "--max-tokens", "20", "--stop", words[5])
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"].split() == words[: words.index(words[5])]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--drafter", "nowhere"], "nowhere"),
        (["--drafter", "target"], "chat model"),
        (["--drafter", "dflash2", "--width", "9"], "width is 9.*8"),
        (["--plain", "--stop", ""], "stop string"),
        (["--plain", "--prompt", " ".join(["w10"] * 5000)], "4096"),
    ],
)
def test_errors(arguments: list[str], words: str) -> None:
    result = generate(*PROMPT, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") <= 2
    assert re.search(words, result.stderr)


def test_a_damaged_target_is_an_error(folder: Path, tmp_path: Path) -> None:
    for file in (folder / "target").iterdir():
        (tmp_path / file.name).write_bytes(
            file.read_bytes()[:2000] if "safetensors" in file.name else file.read_bytes()
        )
    result = CliRunner().invoke(app, ["generate", "--target", str(tmp_path), "--plain", *PROMPT])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "model.safetensors" in result.stderr
