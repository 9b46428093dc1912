"""Published drafters are quantized once, whoever asks, and however a process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import folders
import pytest
from child import python

from dflash_mlx import load_drafter
from dflash_mlx.cli.paths import cache_folder
from dflash_mlx.errors import UserError
from dflash_mlx.hub import Resolved
from dflash_mlx.weights_convert.drafter_cache import cached_drafter
from dflash_mlx.weights_convert.progress import Progress

COMMIT = "0123456789" * 4

# Says when it fetches, takes its time over it, and says when it is done.
WORKER = """
import sys, time
from pathlib import Path
from dataclasses import replace
from dflash_mlx.hub import Resolved
from dflash_mlx.weights_convert.drafter_cache import cached_drafter

source, cache, log, seconds = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])

def say(word):
    with log.open("a") as file:
        file.write(word + "\\n")

def fetch(drafter):
    say("fetching")
    time.sleep(seconds)
    return replace(drafter, complete=True)

say("ready")
found = cached_drafter(Resolved(source, "owner/drafter", "0123456789" * 4, complete=False), 4, cache, fetch)
say("done " + str(found.folder))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write_checkpoints(tmp_path_factory.mktemp("checkpoints")) / "dflash2"


@pytest.fixture
def drafter(source: Path) -> Resolved:
    return Resolved(source, "owner/drafter", COMMIT, complete=False)


class Fetch:
    """A download that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, drafter: Resolved) -> Resolved:
        self.count += 1
        return replace(drafter, complete=True)


def test_quantized_once(drafter: Resolved, tmp_path: Path) -> None:
    fetch, told = Fetch(), list[Progress]()
    found = cached_drafter(drafter, 4, tmp_path, fetch, told.append)
    assert (found.name, found.commit, found.complete) == ("owner/drafter", COMMIT, True)
    assert tmp_path in found.folder.parents
    assert told[-1].done == told[-1].total > 0
    assert load_drafter(found.folder).config.quantization["bits"] == 4
    assert cached_drafter(drafter, 4, tmp_path, fetch) == found
    assert fetch.count == 1


def test_another_recipe_commit_or_repository_is_another_copy(drafter: Resolved, tmp_path: Path) -> None:
    others = [replace(drafter, commit="f" * 40), replace(drafter, name="other/drafter")]
    found = {cached_drafter(one, 4, tmp_path, Fetch()).folder for one in (drafter, *others)}
    found.add(cached_drafter(drafter, 8, tmp_path, Fetch()).folder)
    assert len(found) == 4


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_copy_is_made_again(drafter: Resolved, tmp_path: Path, damage: str) -> None:
    found = cached_drafter(drafter, 4, tmp_path, Fetch())
    weights = found.folder / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "cut":
        weights.write_bytes(whole[:-5])
    else:
        weights.unlink()
    assert cached_drafter(drafter, 4, tmp_path, Fetch()) == found
    assert weights.read_bytes() == whole


@pytest.mark.parametrize("name", ["config.json", "conversion.json"])
@pytest.mark.parametrize("text", [None, "", "{", "{}", "\udcff"])
def test_a_copy_without_its_small_files_is_made_again(
    drafter: Resolved, tmp_path: Path, name: str, text: str | None
) -> None:
    """Of these only config.json is read; without the other, damaged weights are made again all the same."""
    found = cached_drafter(drafter, 4, tmp_path, Fetch())
    whole = (found.folder / "config.json").read_bytes()
    if text is None:
        (found.folder / name).unlink()
    else:
        (found.folder / name).write_bytes(text.encode(errors="surrogateescape"))
    if name == "conversion.json":
        (found.folder / "model.safetensors").unlink()
    fetch = Fetch()
    assert cached_drafter(drafter, 4, tmp_path, fetch) == found
    assert fetch.count == 1
    assert (found.folder / "config.json").read_bytes() == whole
    load_drafter(found.folder)


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_whatever_has_the_place_of_a_copy_makes_room(drafter: Resolved, tmp_path: Path, kind: str) -> None:
    found = cached_drafter(drafter, 4, tmp_path / "cache", Fetch())
    other = tmp_path / "other"
    found.folder.rename(other)
    (other / "config.json").unlink()
    if kind == "file":
        found.folder.touch()
    elif kind == "link":
        found.folder.symlink_to(other)
    else:
        found.folder.mkdir()
    assert cached_drafter(drafter, 4, tmp_path / "cache", Fetch()) == found
    load_drafter(found.folder)
    assert (other / "model.safetensors").exists()


def test_a_failed_download_leaves_nothing(drafter: Resolved, tmp_path: Path) -> None:
    def fails(_: Resolved) -> Resolved:
        raise UserError("no network")

    with pytest.raises(UserError, match="no network"):
        cached_drafter(drafter, 4, tmp_path, fails)
    assert cached_drafter(drafter, 4, tmp_path, Fetch()).complete


def test_a_drafter_that_cannot_be_converted(drafter: Resolved, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    broken = replace(drafter, folder=tmp_path / "empty")
    with pytest.raises(UserError, match=r"was not quantized: .*config\.json") as caught:
        cached_drafter(broken, 4, tmp_path / "cache", Fetch())
    assert "--drafter-bits 16" in str(caught.value.hint)


def test_a_cache_that_cannot_be_written(drafter: Resolved, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be kept in") as caught:
        cached_drafter(drafter, 4, tmp_path / "file", Fetch())
    assert "--drafter-bits 16" in str(caught.value.hint)


# ---- several processes ---------------------------------------------------------------------------------


def start(source: Path, root: Path, seconds: float) -> subprocess.Popen[bytes]:
    arguments = [str(source), str(root / "cache"), str(root / "log"), str(seconds)]
    return subprocess.Popen(python("-c", WORKER, *arguments))


def log(root: Path) -> list[str]:
    path = root / "log"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(root: Path, word: str, count: int = 1) -> None:
    end = time.monotonic() + 60
    while log(root).count(word) < count:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_two_processes_at_once_make_one(source: Path, tmp_path: Path) -> None:
    processes = [start(source, tmp_path, 1.0) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    lines = log(tmp_path)
    assert lines.count("fetching") == 1
    assert len({line for line in lines if line.startswith("done")}) == 1
    assert len([line for line in lines if line.startswith("done")]) == 2


def test_a_process_that_is_killed_holds_up_nobody(source: Path, tmp_path: Path) -> None:
    first = start(source, tmp_path, 60)
    wait_for(tmp_path, "fetching")
    second = start(source, tmp_path, 0)
    wait_for(tmp_path, "ready", 2)
    os.kill(first.pid, signal.SIGKILL)
    first.wait(60)
    assert second.wait(60) == 0
    assert log(tmp_path).count("fetching") == 2
    assert log(tmp_path)[-1].startswith("done")


# ---- where ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "platform", "place"),
    [
        ({}, "linux", "~/.cache/dflash-mlx"),
        ({"XDG_CACHE_HOME": "/data/cache"}, "linux", "/data/cache/dflash-mlx"),
        ({"XDG_CACHE_HOME": "relative"}, "linux", "~/.cache/dflash-mlx"),
        ({"XDG_CACHE_HOME": "/data/cache"}, "darwin", "~/Library/Caches/dflash-mlx"),
    ],
)
def test_the_users_cache_folder(environment: dict[str, str], platform: str, place: str) -> None:
    assert cache_folder(environment, platform) == Path(place).expanduser()
