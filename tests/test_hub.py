"""Repository names -> folders: the real huggingface_hub against a hub on this machine."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_hub
import pytest
from fake_hub import FakeHub
from huggingface_hub import constants, errors

from dflash_mlx.errors import UserError
from dflash_mlx.hub import Hub, Resolved, Transfer, resolve
from dflash_mlx.hub_errors import MissingRepositoryError

NAME = "someone/Model-4bit"
WEIGHTS = os.urandom(300_000)


@pytest.fixture
def server() -> Iterator[FakeHub]:
    with fake_hub.serve() as state:
        state.repositories[NAME] = fake_hub.Repository(
            {
                "config.json": json.dumps({"model_type": "llama"}).encode(),
                "model.safetensors": WEIGHTS,
                "tokenizer.json": b"{}",
                "chat_template.jinja": b"{{ messages }}",
                "README.md": b"---\nlicense: mit\n---\n",
                "modeling_custom.py": b"raise SystemExit",
                "pytorch_model.bin": b"pickle",
                "onnx/model.safetensors": b"another one",
            }
        )
        yield state


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries of a download."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def refused(
    words: str, hint: str, hub: Hub, name: str | Path = NAME, revision: str | None = None
) -> UserError:
    with pytest.raises(UserError) as caught:
        hub.resolve(name, revision)
    error = caught.value
    assert re.search(words, error.message)
    assert "\n" not in error.message
    assert not error.message.endswith(".")
    assert hint in str(error.hint)
    return error


# ---- what works ----------------------------------------------------------------------------------------


def test_a_repository_becomes_a_folder_with_what_a_model_is_loaded_from(server: FakeHub, cache: Path) -> None:
    transfers: list[Transfer] = []
    found = server.hub(cache, transfers).resolve(NAME)
    commit = server.repositories[NAME].commit
    assert (found.name, found.commit, found.complete) == (NAME, commit, True)
    assert str(found) == f"{NAME}, commit {commit}"
    assert (found.folder / "model.safetensors").read_bytes() == WEIGHTS
    names = {path.relative_to(found.folder).as_posix() for path in found.folder.rglob("*")}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    assert transfers[-1].done == transfers[-1].total >= len(WEIGHTS)
    assert [t.done for t in transfers] == sorted(t.done for t in transfers)
    assert {t.name for t in transfers} == {NAME}


def test_looking_costs_only_the_config(server: FakeHub, cache: Path) -> None:
    hub = server.hub(cache)
    seen = hub.look(NAME)
    assert not seen.complete
    assert {path.name for path in seen.folder.iterdir()} == {"config.json"}
    assert hub.weight_bytes(seen) == len(WEIGHTS)
    assert server.sent < 1000


def test_what_was_looked_at_is_what_is_fetched(server: FakeHub, cache: Path) -> None:
    """Even if its owner pushes in between."""
    hub = server.hub(cache)
    seen = hub.look(NAME)
    repository = server.repositories[NAME]
    commit = repository.commit
    asked = len(server.requests)
    hub.fetch(seen)
    assert all(commit in request for request in server.requests[asked:])


def test_model_cards_come_only_if_asked_for(server: FakeHub, cache: Path) -> None:
    hub = server.hub(cache)
    assert (hub.fetch(hub.look(NAME), papers=True).folder / "README.md").is_file()


def test_a_pinned_revision(server: FakeHub, cache: Path) -> None:
    repository = server.repositories[NAME]
    repository.branches = ("main", "v1")
    for revision in ("v1", repository.commit):
        assert server.hub(cache).resolve(NAME, revision).commit == repository.commit


def test_a_second_time_nothing_is_downloaded(server: FakeHub, cache: Path) -> None:
    server.hub(cache).resolve(NAME)
    sent = server.sent
    transfers: list[Transfer] = []
    server.hub(cache, transfers).resolve(NAME)
    assert server.sent == sent
    assert transfers == []


def test_a_download_goes_on_where_it_stopped(
    server: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a file while the program runs."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    server.cut_after = 100_000
    transfers: list[Transfer] = []
    found = server.hub(cache, transfers).resolve(NAME)
    assert (found.folder / "model.safetensors").read_bytes() == WEIGHTS
    assert server.sent < len(WEIGHTS) + 1000
    assert transfers[-1].done == transfers[-1].total


def test_a_second_run_keeps_the_files_that_are_complete(server: FakeHub, cache: Path) -> None:
    files = server.repositories[NAME].files
    files["model.safetensors.index.json"] = b" " * 100_000
    server.cut_after = 200_000
    refused("cut off", "files that are complete are kept", server.hub(cache))
    server.cut_after, server.sent = None, 0
    assert server.hub(cache).resolve(NAME).complete
    assert len(WEIGHTS) <= server.sent < len(WEIGHTS) + 1000


# ---- without a network ---------------------------------------------------------------------------------


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("how", ["offline", "down", "status"])
def test_the_cache_is_enough(server: FakeHub, cache: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = server.hub(cache).resolve(NAME).commit
    if how == "offline":
        offline(monkeypatch)
    elif how == "down":
        server.url = "http://127.0.0.1:9"
    else:
        server.status = 503
    for revision in (None, commit):
        assert server.hub(cache).resolve(NAME, revision).commit == commit


def test_a_cache_that_another_program_filled_is_enough(
    server: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlx-lm asks for more files, and older versions of huggingface_hub kept no list of a repository's."""
    from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

    server.hub(cache).download(NAME, allow_patterns=DEFAULT_ALLOW_PATTERNS)
    offline(monkeypatch)
    assert server.hub(cache).resolve(NAME).complete
    shutil.rmtree(next(cache.glob("models--*")) / "trees")
    assert server.hub(cache).resolve(NAME).complete


def test_nothing_in_the_cache(server: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, server.url = server.url, "http://127.0.0.1:9"
    refused("not on this machine, and the hub cannot be reached", "network", server.hub(cache))
    server.url = url
    offline(monkeypatch)
    refused("not on this machine, and the hub is switched off", "HF_HUB_OFFLINE", server.hub(cache))


def test_half_a_download_and_no_network(
    server: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.hub(cache).look(NAME)
    offline(monkeypatch)
    refused(f"only a part of `{NAME}`.*switched off", "HF_HUB_OFFLINE", server.hub(cache))
    monkeypatch.undo()
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    server.url = "http://127.0.0.1:9"
    refused(f"only a part of `{NAME}`.*cannot be reached", "files that are complete", server.hub(cache))


def test_a_connection_that_is_always_dropped(server: FakeHub, cache: Path) -> None:
    server.cut_after = 0
    hub = server.hub(cache)
    refused(f"the download of `{NAME}` was cut off", "run it again", hub)
    server.cut_after = None
    assert hub.resolve(NAME).complete


# ---- refusals ------------------------------------------------------------------------------------------


def test_no_such_repository(server: FakeHub, cache: Path) -> None:
    error = refused("someone/Nothing.*no repository", "spelling", server.hub(cache), "someone/Nothing")
    assert isinstance(error, MissingRepositoryError)


def test_gated(server: FakeHub, cache: Path) -> None:
    server.repositories[NAME].error = (403, "GatedRepo")
    refused("gated", f"https://huggingface.co/{NAME}", server.hub(cache))


def test_no_such_revision(server: FakeHub, cache: Path) -> None:
    refused("no revision `v9`", "commit", server.hub(cache), revision="v9")


def test_no_config(server: FakeHub, cache: Path) -> None:
    server.repositories["someone/GGUF"] = fake_hub.Repository({"model.gguf": WEIGHTS})
    refused("`someone/GGUF` is in GGUF, llama.cpp's format", "MLX", server.hub(cache), "someone/GGUF")
    server.repositories["someone/LoRA"] = fake_hub.Repository({"adapters.safetensors": WEIGHTS})
    refused("has no `config.json`", "adapters", server.hub(cache), "someone/LoRA")
    assert server.sent == 0


@pytest.mark.parametrize("status", [403, 429, 500])
def test_a_hub_that_refuses(server: FakeHub, cache: Path, status: int) -> None:
    server.status = status
    refused(f"answers {status}", "", server.hub(cache))


def test_no_room(server: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000_000 + len(WEIGHTS)))
    refused("needs 0.0 GB on the disk, 0.1 GB are free", "HF_HOME", server.hub(cache))
    assert server.sent < 1000


class Broken:
    """`snapshot_download` up to the weights, then an exception."""

    def __init__(self, folder: Path, problem: Exception) -> None:
        self.folder, self.problem = folder, problem
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    def __call__(self, repository: str, **options: Any) -> Any:
        if options.get("dry_run"):
            return []
        if options["allow_patterns"] == ["config.json"]:
            return str(self.folder)
        raise self.problem


@pytest.mark.parametrize(
    ("problem", "words", "hint"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk is full", "HF_HOME"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/cache"),
            "Permission denied: `/cache`",
            "HF_HOME",
        ),
        (
            OSError("Consistency check failed: size\nsecond line"),
            "cut off: Consistency check failed: size$",
            "again",
        ),
        (RuntimeError("Data processing error: service error."), "cut off: Data processing error", "again"),
        (errors.HTTPError("[SSL] bad record"), "cut off: .SSL. bad record", "again"),
        (errors.HTTPError(""), "cut off: HTTPError$", "again"),
        (errors.OfflineModeIsEnabled("off"), "switched off", "HF_HUB_OFFLINE"),
        (errors.IncompleteSnapshotError("2 files", "/x"), "only a part", "network"),
    ],
)
def test_what_a_download_can_raise(tmp_path: Path, problem: Exception, words: str, hint: str) -> None:
    refused(words, hint, Hub(download=Broken(tmp_path / ("0" * 40), problem)))


# ---- local folders and names ---------------------------------------------------------------------------


def no_download(*_: Any, **__: Any) -> None:
    raise AssertionError("the hub was asked")


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert Hub(download=no_download).resolve(tmp_path) == Resolved(tmp_path, str(tmp_path))
    assert resolve(str(tmp_path)) == Resolved(tmp_path, str(tmp_path), None, complete=True)
    assert str(resolve(tmp_path)) == str(tmp_path)


def test_a_folder_goes_before_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "someone" / "Model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert Hub(download=no_download).resolve("someone/Model").commit is None


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    refused("local folder.*no revision `v1`", "leave", Hub(download=no_download), tmp_path, "v1")


@pytest.mark.parametrize(
    "name", ["nowhere", "./some/where", "/some/where", "~/model", "a/b/c", "-x/y", "a/b c", ""]
)
def test_names_of_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name:
        refused("does not exist", "owner/name", Hub(download=no_download), name)


def test_a_path_is_never_a_repository(tmp_path: Path) -> None:
    refused("does not exist", "owner/name", Hub(download=no_download), Path("someone/Model"))


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    refused("is a file", "folder", Hub(download=no_download), tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["o/t--x", "o/t..x", "o/t.git", "o/" + "x" * 100])
def test_what_can_be_no_repositorys_name(name: str) -> None:
    with pytest.raises(UserError, match="cannot be a repository's name"):
        Hub().look(name)


def test_a_connection_that_another_thread_closed() -> None:
    def failing(problem: Exception) -> Hub:
        def closed(*_: object, **__: object) -> None:
            raise problem

        return Hub(download=closed)

    for problem in (
        RuntimeError("Cannot send a request, as the client has been closed."),
        AttributeError("'NoneType' object has no attribute 'request'"),
    ):
        with pytest.raises(UserError, match="hub cannot be reached"):
            failing(problem).look(NAME)
    with pytest.raises(AttributeError, match="a mistake"):
        failing(AttributeError("a mistake")).look(NAME)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_what_can_be_no_path(name: str) -> None:
    with pytest.raises(UserError, match="does not exist"):
        Hub().look(name)


def test_a_repository_of_pickles(server: FakeHub, cache: Path) -> None:
    server.repositories["someone/Pickles"] = fake_hub.Repository(
        {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    )
    refused(
        "`someone/Pickles` has no weights in safetensors", "pickles", server.hub(cache), "someone/Pickles"
    )
    server.repositories["someone/Both"] = fake_hub.Repository({"config.json": b"{}", "m.gguf": b"gguf"})
    refused("`someone/Both` is in GGUF", "safetensors", server.hub(cache), "someone/Both")
