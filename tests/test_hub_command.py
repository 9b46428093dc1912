"""The program with names of repositories, against a hub on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import fake_hub
import folders
import homes
import huggingface_hub
import pytest
from child import PATIENCE, python
from fake_hub import FakeHub
from typer.testing import CliRunner, Result

from dflash_mlx.cli.app import app

TARGET, DRAFTER = "mlx-community/Qwen3.8-27B-4bit", "incoai/Qwen3.8-27B-DFlash2"
PROMPT = ["--prompt", "w10 w20 w30", "--max-tokens", "12"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write_checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def server(checkpoints: Path) -> Iterator[FakeHub]:
    with fake_hub.serve() as state:
        state.publish(TARGET, checkpoints / "target")
        state.publish(DRAFTER, checkpoints / "dflash2")
        state.publish("someone/Qwen3.8-27B-Coder", checkpoints / "target")
        quantized = state.publish("someone/4bit", checkpoints / "dflash2").files
        config = json.loads(quantized["config.json"])
        quantized["config.json"] = json.dumps({**config, "quantization": {"bits": 4}}).encode()
        state.repositories[DRAFTER].files["README.md"] = b"---\nlicense: apache-2.0\n---\n"
        yield state


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One user's caches, filled by one test and used by the next."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def run(server: FakeHub, home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The program in this process, with its own caches."""
    download = partial(huggingface_hub.snapshot_download, endpoint=server.url, cache_dir=home / "hub" / "hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for name, value in homes.variables(home).items():
        monkeypatch.setenv(name, value)
    return lambda *words: CliRunner().invoke(app, words)


def started(home: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    """The program as a user starts it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {**homes.variables(home), "HF_HOME": str(home / "hub"), **more}
    return subprocess.Popen(
        python("-m", "dflash_mlx.cli", *words),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job would have SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def copies(home: Path) -> list[Path]:
    return [path for path in homes.cache(home).rglob("model.safetensors") if "4bit" in str(path)]


def test_one_name_is_enough(server: FakeHub, home: Path, run: Callable[..., Result]) -> None:
    first = run("generate", "--target", TARGET, *PROMPT)
    assert first.exit_code == 0, first.stderr
    lines = first.stderr.splitlines()
    assert lines[0] == f"target {TARGET}, commit {server.repositories[TARGET].commit}"
    assert lines[1] == f"drafter {DRAFTER}, commit {server.repositories[DRAFTER].commit}"
    assert re.match(r"DFlash 2 [\d.]+ tok/s", lines[2])
    assert len(lines) == 3
    made = copies(home)
    assert len(made) == 1

    # Everything is here now: without a network, and without the drafter's original weights.
    for blob in (home / "hub").rglob("models--incoai*/snapshots/*/model.safetensors"):
        blob.unlink()
    again = started(home, "generate", "--target", TARGET, *PROMPT, "--json", HF_HUB_OFFLINE="1")
    text, problems = again.communicate(timeout=120)
    assert again.returncode == 0, problems
    line = json.loads(text)
    assert line["text"] + "\n" == first.stdout
    assert (line["stats"]["target"], line["stats"]["drafter"]) == (TARGET, DRAFTER)
    assert copies(home) == made


def test_the_drafter_as_it_was_published(
    home: Path, run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in homes.variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    found = run("generate", "-t", TARGET, *PROMPT, "--drafter-bits", "16")
    assert found.exit_code == 0, found.stderr
    assert not homes.cache(tmp_path).exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-t", "someone/Qwen3.8-27B-Coder"], f"only for `Qwen3.8-27B`\nhint: `--drafter {DRAFTER}`"),
        (["-t", "someone/nothing"], "`someone/nothing` is no folder here and no repository on the hub"),
        (["-t", TARGET, "--revision", "v7"], f"`{TARGET}` has no revision `v7`"),
        (["-t", TARGET, "--reasoning", "low"], "this model's chat template cannot be told"),
        (["-t", TARGET, "-d", "someone/4bit", "--drafter-bits", "8"], "`someone/4bit` is quantized already"),
        (["-t", "nothing"], "`nothing` does not exist\nhint: give the path"),
    ],
)
def test_errors(run: Callable[..., Result], words: list[str], message: str) -> None:
    result = run("generate", *words, *PROMPT)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


def test_ctrl_c_ends_a_download_soon_and_leaves_no_rest(tmp_path: Path) -> None:
    with fake_hub.serve() as slow:
        slow.repositories["someone/large"] = fake_hub.Repository(
            {"config.json": b"{}", "model.safetensors": bytes(200_000_000)}
        )
        slow.pause = 0.1
        process = started(tmp_path, "convert", "someone/large", "--out", "x", HF_ENDPOINT=slow.url)
        weights = f"GET someone/large/resolve/{slow.repositories['someone/large'].commit}/model.safetensors"
        end = time.monotonic() + PATIENCE
        while weights not in slow.requests or not list(tmp_path.rglob("*.incomplete")):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, problems = process.communicate(timeout=8)  # it would go on for ten seconds
    assert process.returncode == 130
    assert problems.endswith("interrupted: files that are complete are kept\n")
    assert list(tmp_path.rglob("*.incomplete")) == []


def test_convert_takes_a_repository_with_its_licence(
    server: FakeHub, run: Callable[..., Result], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = run("convert", DRAFTER, "--out", str(out))
    assert result.exit_code == 0, result.stderr
    commit = server.repositories[DRAFTER].commit
    assert f"source {DRAFTER}, commit {commit}" in result.stderr
    card = (out / "README.md").read_text()
    assert "apache-2.0" in card
    assert DRAFTER in card
    assert commit in (out / "conversion.json").read_text()
